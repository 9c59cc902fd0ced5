//! Report of a probe, as text and JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{
    client::Direction,
    estimate::Estimate,
    recommend::{Advice, recommend, repair},
    results::{Cost, Figure, Results},
    verify::Verification,
};
use crate::printable::printable;

/// The report as JSON.
pub(super) fn json(results: &Results, server: &str) -> Value {
    let shaped = Direction::BOTH.map(|direction| (direction.name(), results.way(direction).shaped()));
    json!({
        "server": server,
        "partial": results.is_partial,
        "figures": results.figures(),
        "udp": { "passes": true, "slower_than_tcp_by": shaped.into_iter().collect::<std::collections::BTreeMap<_, _>>() },
        "recommendation": recommend(results),
        "repair": repair(results),
        "verification": results.verification,
        "notes": results.notes,
        "cost": results.cost,
    })
}

/// The report for people.
pub(super) fn text(results: &Results, server: &str) -> String {
    let mut out = format!("Path to {}: {}\n\n", printable(server), cost(&results.cost));
    let mut before = None;
    for figure in results.figures() {
        let heading = figure.direction.map_or("round trip", Direction::name);
        if before != Some(heading) {
            let _ = writeln!(out, "{heading}");
            before = Some(heading);
        }
        out += &line(&figure);
    }
    out += "\n";
    for finding in findings(results) {
        let _ = writeln!(out, "{finding}");
    }
    match recommend(results) {
        Some(found) => out += &advice("Recommended for downloads", &found),
        None => out += "Recommended: nothing; a rate and round trips are needed for that\n",
    }
    if let Some(found) = repair(results) {
        out += &advice("Recommended for live datagrams", &found);
    }
    out += &results.verification.as_ref().map_or_else(String::new, Verification::text);
    for note in &results.notes {
        let _ = writeln!(out, "note: {}", printable(note));
    }
    out
}

fn line(figure: &Figure) -> String {
    format!(
        "  {:<20} {:>26} {:<15}  {:>6} samples  {:>18}  {}\n",
        figure.name,
        value(&figure.estimate),
        figure.unit,
        figure.estimate.samples,
        cost(&figure.cost),
        figure.method
    )
}

/// A value with its interval.
fn value(estimate: &Estimate) -> String {
    let number = |value: f64| match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    match estimate.high {
        None => format!("at least {}", number(estimate.value)),
        #[expect(clippy::float_cmp, reason = "a value without an interval is its own bound")]
        Some(high) if high == estimate.low => number(estimate.value),
        Some(high) => format!("{} [{}, {}]", number(estimate.value), number(estimate.low), number(high)),
    }
}

fn cost(cost: &Cost) -> String {
    format!("{}, {:.1} s", indicatif::DecimalBytes(cost.bytes), cost.seconds)
}

/// Conclusions that are no numbers.
fn findings(results: &Results) -> Vec<String> {
    let mut found = vec!["UDP passes.".to_owned()];
    for direction in Direction::BOTH {
        let (way, name) = (results.way(direction), direction.name());
        if let Some(times) = way.shaped() {
            found.push(format!("UDP is shaped {name}: TCP is {times:.1} times as fast."));
        }
        if let Some(rate) = way.rate.as_ref().map(|rate| &rate.value)
            && let Some(burst) = rate.policer_burst
        {
            found.push(format!(
                "Suspicion of a policer {name}: {:.0} kB pass without delay, then packets above {:.2} Mbit/s are dropped.",
                burst.value / 1e3,
                rate.rate.value / 1e6
            ));
        }
        if let Some(ecn) = way.ecn.as_ref().map(|ecn| ecn.value) {
            let [arrived, kept] = [ecn.arrived, ecn.kept].map(|counts| counts[0] + counts[1]);
            if kept < arrived {
                found.push(format!("ECN marks do not survive {name}: {kept} of {arrived} did."));
            }
        }
        if let Some(mtu) = way.mtu.as_ref().map(|mtu| mtu.value) {
            match mtu.lost {
                Some(lost) if mtu.is_of_interface => {
                    found.push(format!("MTU {name}: {} bytes, the sender's interface takes no {lost}.", mtu.passes));
                }
                Some(lost) => found
                    .push(format!("MTU {name}: {} bytes pass, {lost} are lost silently; TCP may stall.", mtu.passes)),
                None => found.push(format!("MTU {name}: {} bytes pass, more was not tried.", mtu.passes)),
            }
        }
    }
    found
}

fn advice(title: &str, found: &Advice) -> String {
    let settings = if found.settings.is_empty() { "the defaults".to_owned() } else { found.settings.join(", ") };
    let unless = if found.unless.is_empty() { String::new() } else { format!(" (not: {})", found.unless) };
    format!(
        "{title}: {settings}, since {}\n  as measured for “{}”: {}{unless}; see docs/choose.md, `{}`\n",
        found.reason, found.network, found.gain, found.command
    )
}

#[cfg(test)]
mod tests {
    use super::{
        super::{estimate::delay::RoundTrips, results::Measured},
        *,
    };

    #[test]
    fn a_report_has_value_interval_cost_and_method() {
        let rtt = RoundTrips {
            smallest: Estimate::new(50.0, 49.9, 50.0, 40),
            median: Estimate::new(50.25, 50.0, 51.0, 40),
            p95: None,
            mean: 50.3,
        };
        let cost = Cost { bytes: 5_920, seconds: 0.7 };
        let results = Results { rtt: Some(Measured { value: rtt, cost }), cost, ..Results::default() };
        let text = text(&results, "192.0.2.1:4433");
        assert!(text.contains("50.2 [50.0, 51.0] ms") && text.contains("5.92 kB, 0.7 s"), "{text}");
        assert!(text.contains("pings over UDP, median") && text.contains("Recommended: nothing"), "{text}");
        assert_eq!(json(&results, "a")["figures"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn values_say_what_is_known() {
        assert_eq!(value(&Estimate::at_least(2.5, 1)), "at least 2.50");
        assert_eq!(value(&Estimate::new(1_400.0, 1_400.0, 1_400.0, 1)), "1400");
        assert_eq!(value(&Estimate::new(0.0, 0.0, 0.004, 1)), "0 [0, 0.004]");
    }
}
