//! `tiderace lab run SCENARIO --real-time`: contenders on an emulated network of this machine, the kernel's TCP among them.

use std::{fmt::Write, process::ExitCode};

use emu::network::{Network, Privilege, controllers};
use indicatif::ProgressBar;
use lab::{
    contender::Contender,
    experiment::{Experiment, keep_whole_seeds, store},
    figure::Figure,
    record::{LAB, REAL_TIME, Record, RunOutcome},
    report::Report,
    scenario::{Overrides, Programs, Scenario},
    selftest::Check,
};
use live::{Agreement, KERNEL, Kernel, Tolerated, Watch, agreements, find_program, run_one, run_watched};
use units::duration_text;

use super::{RunArgs, contenders, figures::Figures, outside, print, progress, shell, writable};
use crate::{
    failure::{Failure, UNSOUND},
    stdout::write_out,
};

/// Contenders of the kernel that join when none is named.
const USUAL: [&str; 2] = ["kernel-cubic", "kernel-bbr"];

/// Splits the names in `--cc` into controllers of this stack and contenders of the kernel.
pub(super) fn split(named: &[String]) -> (Vec<String>, Vec<String>) {
    let (kernel, own): (Vec<_>, Vec<_>) = named.iter().cloned().partition(|name| name.starts_with(KERNEL));
    (own, kernel)
}

/// Name of the contender of `--server` and `--client`.
const COMMAND: &str = "command";

/// Adds the contender of `--server` and `--client`, and leaves those commands that `--cc` names, if it names anybody. Their names are taken from
/// the controllers in `overrides`.
pub(super) fn select_commands(args: &RunArgs, scenario: &mut Scenario, overrides: &mut Overrides) {
    let commands = &mut scenario.contenders.commands;
    let named = &args.settings.cc;
    overrides.congestion.retain(|name| !commands.iter().any(|one| one.name == *name));
    if !named.is_empty() {
        commands.retain(|one| named.contains(&one.name));
    }
    if let (Some(server), Some(client)) = (args.server.clone(), args.client.clone()) {
        commands.push(Programs { name: COMMAND.to_owned(), server, client, port: Programs::PORT });
    }
}

/// Refuses commands in virtual time.
pub(super) fn refuse_commands(scenario: &Scenario) -> Result<(), Failure> {
    match scenario.contenders.commands.first() {
        None => Ok(()),
        Some(one) => Err(Failure::new(format_args!("`{}` is a command, and runs in real time only", one.name)).hint(
            format_args!("`tiderace lab run {} --real-time` runs it; `--cc` chooses other contenders", scenario.name),
        )),
    }
}

/// Adds the kernel's contenders: the named ones, or in real time the default ones.
pub(super) fn select(scenario: &mut Scenario, named: &[String], real_time: bool) -> Result<(), Failure> {
    let (mut own, kernel) = split(named);
    let selection = &mut scenario.contenders;
    own.retain(|name| !selection.commands.iter().any(|one| one.name == *name));
    if !named.is_empty() && own.is_empty() {
        selection.congestion.clear();
        selection.profiles.clear();
    }
    if !kernel.is_empty() {
        selection.stacks.retain(|name| !name.starts_with(KERNEL));
        selection.stacks.extend(kernel);
    }
    let workload = scenario.traffic.workload;
    let has_kernel = selection.stacks.iter().any(|name| name.starts_with(KERNEL));
    if real_time && named.is_empty() && !has_kernel && Kernel::check(workload).is_ok() {
        selection.stacks.extend(USUAL.map(str::to_owned));
    }
    let stacks: Vec<String> = selection.stacks.iter().filter(|name| name.starts_with(KERNEL)).cloned().collect();
    if real_time {
        let with = if stacks.is_empty() { String::new() } else { format!(" with {}", stacks.join(", ")) };
        scenario.add_to_title(&format!("in real time{with}"));
    }
    if !real_time {
        refuse_commands(scenario)?;
    }
    let kernel: Vec<&String> = stacks.iter().filter(|name| name.starts_with(KERNEL)).collect();
    if let Some(reason) = kernel.iter().find_map(|name| Kernel::named(name).err()) {
        let (known, settings) = ((live::others().names)().join(", "), Kernel::SETTINGS);
        return Err(Failure::new(reason).hint(format_args!("there are {known}, each with {settings}")));
    }
    match kernel.first() {
        Some(name) if !real_time => {
            Err(Failure::new(format_args!("`{name}` is the kernel's, and runs in real time only"))
                .hint("add --real-time"))
        }
        Some(name) => Kernel::check(workload).map_err(|reason| {
            Failure::new(format_args!("`{name}` cannot run `{}`: {reason}", scenario.name)).hint("leave it out of --cc")
        }),
        None => Ok(()),
    }
}

/// Runs the scenario in real time.
pub(super) fn run(args: &RunArgs, mut scenario: Scenario) -> Result<ExitCode, Failure> {
    let seeds = u64::from(scenario.run.seeds);
    let settings = shell::settings(&scenario, scenario.run.seed)?;
    if args.qlog.is_some() {
        return Err(Failure::new("--qlog is for runs in virtual time").hint("leave out --real-time, or --qlog"));
    }
    // While this process has one thread.
    let privilege = Privilege::acquire()?;
    let all = contenders(&scenario)?;
    let probe = Network::start(&settings)?;
    refuse_missing(&all, &probe)?;
    refuse_unknown(&scenario)?;
    probe.stop()?;
    writable(&args.out, "--out")?;
    let span = scenario.run.end().as_secs_f64();
    let experiment = Experiment::new(scenario.clone(), contenders(&scenario)?);
    let mut manifest = experiment.manifest(&format!("{LAB}{REAL_TIME}"));
    let cells = experiment.cells();
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 runs")]
    let minutes = cells.len() as f64 * span / 60.0;
    let user =
        if privilege == Privilege::UserNamespace { " in a user namespace, without real-time priority" } else { "" };
    eprintln!(
        "{} contenders x {seeds} seeds, {} each: about {minutes:.0} min in real time{user}",
        all.len(),
        duration_text::display(std::time::Duration::from_secs_f64(span)),
    );
    let names: Vec<String> = all.iter().map(|contender| contender.identity().name).collect();
    let runs = cells.len();
    let figures = Figures::start(args, &scenario, &names, runs)?;
    let is_shown = figures.as_ref().is_some_and(Figures::shows);
    let bar = if is_shown { ProgressBar::hidden() } else { progress(runs) };
    let (mut records, mut path) = (Vec::new(), None);
    for (place, cell) in cells.into_iter().enumerate() {
        let (contender, tolerated) = (all[cell.contender].as_ref(), Tolerated { busy: args.accept_busy });
        let record = match &figures {
            None => run_one(&scenario, contender, cell.seed, tolerated),
            Some(figures) => {
                let watched = |watch: &Watch<'_>| run_watched(&scenario, contender, cell.seed, tolerated, watch);
                match figures.run(place, cell.contender, cell.seed, watched) {
                    Some(record) => record,
                    // A run that was broken off has no figures of its whole time.
                    None => break,
                }
            }
        };
        records.push(record);
        // After each, so that what was run is kept when somebody ends this.
        let stored = store(&args.out, &manifest, &records);
        path = Some(stored.map_err(|error| Failure::new(format_args!("cannot write the records: {error}")))?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    drop(figures);
    let is_partial = records.len() < runs;
    if is_partial {
        eprintln!("interrupted: {} of {runs} runs are complete", records.len());
        scenario.run.seeds = keep_whole_seeds(&mut manifest, &mut records);
        if scenario.run.seeds == 0 {
            eprintln!("there is no report, since not every contender has run");
            return Ok(ExitCode::from(UNSOUND));
        }
    }
    let compared = agreements(&scenario, &all, &records);
    let mut report = Report::new(manifest, &records);
    (report.self_test, report.records) = (checks(&records, args.accept_busy), path);
    print(&report, args.shown, args.json)?;
    if !args.json {
        write_out(&(costs(&report, &records) + &outside::table(&records) + &agreement(&compared)))?;
    }
    Ok(if report.is_sound() && !is_partial { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}

/// Refuses a contender whose controller the kernel does not have.
fn refuse_missing(all: &[Box<dyn Contender>], network: &Network) -> Result<(), Failure> {
    let known = controllers(network.server())
        .map_err(|error| Failure::new(format_args!("the kernel does not list its congestion controllers: {error}")))?;
    for contender in all {
        let name = contender.identity().name;
        let Ok(controller) = Kernel::named(&name).map(Kernel::controller) else { continue };
        if !known.iter().any(|one| one == controller) {
            let message = format!("`{name}`: this kernel has no `{controller}` loaded, only {}", known.join(", "));
            return Err(Failure::new(message)
                .hint(format_args!("`modprobe tcp_{controller}` as root loads it; `--cc` chooses other contenders")));
        }
    }
    Ok(())
}

/// Refuses a command whose program does not exist.
fn refuse_unknown(scenario: &Scenario) -> Result<(), Failure> {
    for one in &scenario.contenders.commands {
        for (role, command) in [("server", &one.server), ("client", &one.client)] {
            find_program(command).map_err(|word| {
                Failure::new(format_args!("the {role} of `{}`: there is no program `{word}`", one.name))
                    .hint("install it, or write its path; commands run with `sh -c` in the directory of this one")
            })?;
        }
    }
    Ok(())
}

/// State of the machine over all runs.
fn checks(records: &[Record], accept_busy: bool) -> Vec<Check> {
    let machine = || records.iter().filter_map(|record| record.real_time.as_ref());
    let worst = |read: fn(&lab::record::RealTime) -> f64| machine().map(read).fold(0.0, f64::max);
    let late = worst(|machine| machine.lateness[1]);
    let drops: u64 = machine().map(|machine| machine.device_drops).sum();
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
            detail: format!("{drops} packets dropped by devices"),
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

/// Figures of runs in real time only, a line for each contender.
fn costs(report: &Report, records: &[Record]) -> String {
    let mut out = String::from(
        "\nIn real time (medians)   CPU per MB  smoothed RTT  delivery rate  resent  late p99  other CPU\n",
    );
    for column in &report.contenders {
        let own: Vec<&Record> = records
            .iter()
            .filter(|record| record.contender.name == column.name && record.outcome == RunOutcome::Valid)
            .collect();
        let middle = |read: &dyn Fn(&Record) -> Option<f64>| {
            let mut values: Vec<f64> = own.iter().filter_map(|record| read(record)).collect();
            values.sort_by(f64::total_cmp);
            lab::stats::quantile::median(&values)
        };
        let figure = |figure: Figure, scale: f64, unit: &str| {
            let value = middle(&|record| record.figures.get(&figure)?.value);
            value.map_or_else(|| "–".to_owned(), |value| format!("{:.2} {unit}", value * scale))
        };
        let late = middle(&|record| Some(record.real_time.as_ref()?.lateness[1]));
        let foreign = middle(&|record| Some(record.real_time.as_ref()?.foreign));
        let _ = writeln!(
            out,
            "{:<23}  {:>10}  {:>12}  {:>13}  {:>6}  {:>8}  {:>9}",
            column.name,
            figure(Figure::Cpu, 1e3, "ms"),
            figure(Figure::SmoothedRtt, 1e3, "ms"),
            figure(Figure::DeliveryRate, 1e-6, "Mbit/s"),
            figure(Figure::Retransmitted, 1e2, "%"),
            late.map_or_else(|| "–".to_owned(), |late| format!("{:.2} ms", late * 1e3)),
            foreign.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", share * 100.0)),
        );
    }
    out
}

/// Table of the two clocks.
fn agreement(compared: &[Agreement]) -> String {
    let mut out = String::new();
    if !compared.is_empty() {
        out.push_str("\nBeside the simulator         goodput              RTT p50   agree (5 %, 2 ms)\n");
    }
    for one in compared {
        let rtt = one.rtt_difference().map_or_else(|| "–".to_owned(), |late| format!("{:+.2} ms", late * 1e3));
        let _ = writeln!(
            out,
            "{:<23}  {:>6.2} / {:.2} Mbit/s {:+5.1} %  {rtt:>10}   {}",
            one.contender,
            one.goodput[0] / 1e6,
            one.goodput[1] / 1e6,
            one.goodput_difference() * 100.0,
            if one.holds() { "yes" } else { "no" }
        );
    }
    out
}
