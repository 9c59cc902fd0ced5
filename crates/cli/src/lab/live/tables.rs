//! Checks and tables of runs in real time: state of the machine, costs, and the same runs by both clocks.

use std::collections::BTreeSet;

use indicatif::ProgressBar;
use lab::{
    figure::Figure,
    record::{RealTime, Record, RunOutcome},
    selftest::Check,
    stats::quantile::median,
};
use live::Agreement;

use crate::lab::table::Table;

/// State of the machine over all runs.
pub(in crate::lab) fn checks<'a>(runs: impl Iterator<Item = &'a RealTime> + Clone, accept_busy: bool) -> Vec<Check> {
    let worst = |read: fn(&RealTime) -> f64| runs.clone().map(read).fold(0.0, f64::max);
    let late = worst(|machine| machine.lateness[1]);
    let devices = devices(runs.clone()).map_or_else(String::new, |names| format!(" ({names})"));
    let drops: u64 = runs.clone().map(|machine| machine.device_drops).sum();
    let (foreign, stolen) = (worst(|machine| machine.foreign), worst(|machine| machine.stolen));
    let limit = emu::network::TRUSTED_LATENESS.as_secs_f64();
    let busy = foreign <= emu::network::TRUSTED_FOREIGN && stolen <= emu::network::TRUSTED_STOLEN;
    vec![
        Check {
            name: "packets on time",
            passed: late <= limit,
            detail: format!("p99 of lateness {:.3} ms in the worst run (limit {:.0} ms)", late * 1e3, limit * 1e3),
        },
        Check {
            name: "nothing lost on this machine",
            passed: drops == 0,
            detail: format!("{drops} packets dropped by devices{devices}"),
        },
        Check {
            name: if accept_busy { "CPU for the ends (accepted as it was)" } else { "CPU for the ends" },
            passed: busy || accept_busy,
            detail: format!(
                "other programs {:.0} %, stolen {:.0} % in the worst run (limits {:.0} and {:.0} %); --accept-busy takes such runs",
                foreign * 100.0,
                stolen * 100.0,
                emu::network::TRUSTED_FOREIGN * 100.0,
                emu::network::TRUSTED_STOLEN * 100.0
            ),
        },
    ]
}

/// Tells that runs before this one were discarded, and why.
pub(in crate::lab) fn tell_discarded(bar: &ProgressBar, record: &Record) {
    let name = &record.contender.name;
    for reason in record.real_time.iter().flat_map(|machine| &machine.discarded) {
        bar.suspend(|| eprintln!("{name}, seed {}: made again, the run before was {reason}", record.seed));
    }
}

/// Devices that carried these runs; `None` if no record says so.
fn devices<'a>(runs: impl Iterator<Item = &'a RealTime>) -> Option<String> {
    let names: BTreeSet<&str> = runs.filter_map(|machine| machine.device.as_deref()).collect();
    (!names.is_empty()).then(|| names.into_iter().collect::<Vec<_>>().join(", "))
}

/// Figures that only runs in real time have: medians of the runs that count, a line for each label.
pub(in crate::lab) fn costs(records: &[Record], label: &dyn Fn(&Record) -> String) -> String {
    let mut table = Table::new(&[
        "In real time (medians)",
        "CPU per MB",
        "smoothed RTT",
        "delivery rate",
        "resent",
        "late p99",
        "other CPU",
        "devices",
    ]);
    for (name, runs) in labelled(records.iter(), label) {
        let valid = || runs.iter().filter(|record| record.outcome == RunOutcome::Valid);
        let middle = |read: &dyn Fn(&Record) -> Option<f64>| {
            let mut values: Vec<f64> = valid().filter_map(|record| read(record)).collect();
            values.sort_by(f64::total_cmp);
            median(&values)
        };
        let figure = |figure: Figure, scale: f64, unit: &str| {
            let value = middle(&|record| record.figures.get(&figure)?.value);
            value.map_or_else(dash, |value| format!("{:.2} {unit}", value * scale))
        };
        let late = middle(&|record| Some(record.real_time.as_ref()?.lateness[1]));
        let foreign = middle(&|record| Some(record.real_time.as_ref()?.foreign));
        table.add(
            &name,
            [
                figure(Figure::Cpu, 1e3, "ms"),
                figure(Figure::SmoothedRtt, 1e3, "ms"),
                figure(Figure::DeliveryRate, 1e-6, "Mbit/s"),
                figure(Figure::Retransmitted, 1e2, "%"),
                late.map_or_else(dash, |late| format!("{:.2} ms", late * 1e3)),
                foreign.map_or_else(dash, |share| format!("{:.0} %", share * 100.0)),
                devices(runs.iter().filter_map(|record| record.real_time.as_ref())).unwrap_or_else(dash),
            ],
        );
    }
    table.text()
}

/// Records by their labels, in the order in which these come.
pub(in crate::lab) fn labelled<'a>(
    records: impl Iterator<Item = &'a Record>,
    label: &dyn Fn(&Record) -> String,
) -> Vec<(String, Vec<&'a Record>)> {
    let mut groups: Vec<(String, Vec<&Record>)> = Vec::new();
    for record in records {
        let name = label(record);
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, group)) => group.push(record),
            None => groups.push((name, vec![record])),
        }
    }
    groups
}

/// Table of the two clocks, with a name for each comparison.
pub(in crate::lab) fn agreement(compared: &[Agreement]) -> String {
    let mut table =
        Table::new(&["Beside the simulator", "real", "simulated", "difference", "RTT p50", "agree (5 %, 2 ms)"]);
    for one in compared {
        let rate = |value: f64| format!("{:.2} Mbit/s", value / 1e6);
        table.add(
            &one.contender,
            [
                rate(one.goodput[0]),
                rate(one.goodput[1]),
                format!("{:+.1} %", one.goodput_difference() * 100.0) + &interval(one.goodput_interval, 100.0, 1),
                one.rtt_difference()
                    .map_or_else(dash, |late| format!("{:+.2} ms", late * 1e3) + &interval(one.rtt_interval, 1e3, 2)),
                agrees(one).to_owned(),
            ],
        );
    }
    table.text()
}

fn agrees(one: &Agreement) -> &'static str {
    match (one.holds(), one.may_be_chance()) {
        (true, _) => "yes",
        (false, true) => "undecided",
        (false, false) => "no",
    }
}

fn interval(bounds: Option<[f64; 2]>, scale: f64, decimals: usize) -> String {
    bounds.map_or_else(String::new, |[low, high]| {
        format!(" ({:+.decimals$} to {:+.decimals$})", low * scale, high * scale)
    })
}

fn dash() -> String {
    "–".to_owned()
}
