//! Report of a probe, as text and JSON.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::{Value, json};

use super::{
    client::Direction,
    estimate::{
        Estimate,
        ecn::{CE, ECT0, ECT1, Ecn, L4s, NOT_ECT},
    },
    recommend::{Advice, recommend, repair},
    results::{Cost, Figure, Results},
    verify::Verification,
};
use crate::printable::printable;

/// The report as JSON.
pub(super) fn json(results: &Results, server: &str) -> Value {
    let shaped = Direction::BOTH.map(|direction| (direction.name(), results.way(direction).shaped()));
    let ecn = Direction::BOTH.map(|direction| {
        let marks = results.way(direction).ecn.as_ref().map(|ecn| ecn.value);
        (
            direction.name(),
            marks.map(|marks| json!({ "marks": marks, "classic": marks.classic_fate(), "l4s": marks.l4s() })),
        )
    });
    json!({
        "server": server,
        "partial": results.is_partial,
        "figures": results.figures(),
        "udp": { "passes": true, "slower_than_tcp_by": shaped.into_iter().collect::<BTreeMap<_, _>>() },
        "ecn": ecn.into_iter().collect::<BTreeMap<_, _>>(),
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
            let (arrived, kept) = ecn.classic();
            if kept < arrived {
                found.push(format!("ECN marks do not survive {name}: {kept} of {arrived} did."));
            }
            found.extend(l4s(&ecn, name));
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

/// Conclusion about ECT(1) in a direction.
fn l4s(ecn: &Ecn, name: &str) -> Option<String> {
    let sent = &ecn.ect1;
    let fates = [(NOT_ECT, "without a mark"), (ECT0, "as ECT(0)"), (CE, "as CE"), (ECT1, "as ECT(1)")];
    let fates = fates.map(|(field, how)| (sent.with(field), how)).into_iter().filter(|(count, _)| *count > 0);
    let fates = fates.map(|(count, how)| format!("{count} {how}")).collect::<Vec<_>>().join(", ");
    let arrived = sent.arrived();
    Some(match ecn.l4s()? {
        L4s::Survives => format!("L4S marks survive {name}: {arrived} packets with ECT(1) arrived, {fates}."),
        L4s::Lost => format!("Packets of L4S are lost {name}: none of {} with ECT(1) arrives.", sent.sent),
        L4s::Cleared | L4s::ChangedToEct0 | L4s::ChangedToCe => {
            format!("L4S marks do not survive {name}: {arrived} packets with ECT(1) arrived, {fates}.")
        }
    })
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
        super::{
            estimate::{delay::RoundTrips, ecn::Marked},
            results::Measured,
        },
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
    fn the_report_says_whether_l4s_marks_survive() {
        let cost = Cost::default();
        let [ect0, ce] = [ECT0, CE].map(|mark| Marked::new(8, [mark; 8]));
        let mut results = Results::default();
        let up = Ecn { ect0, ect1: Marked::new(8, [ECT1, ECT1, CE]), ce };
        let down = Ecn { ect0, ect1: Marked::new(8, [NOT_ECT, NOT_ECT, ECT1]), ce };
        results.up.ecn = Some(Measured { value: up, cost });
        results.down.ecn = Some(Measured { value: down, cost });
        let written = text(&results, "a");
        for line in [
            "L4S marks survive up: 3 packets with ECT(1) arrived, 1 as CE, 2 as ECT(1).",
            "L4S marks do not survive down: 3 packets with ECT(1) arrived, 2 without a mark, 1 as ECT(1).",
        ] {
            assert!(written.contains(line), "{written}");
        }
        assert!(!written.contains("ECN marks do not survive"), "{written}");
        let json = json(&results, "a");
        assert_eq!([&json["ecn"]["up"]["l4s"], &json["ecn"]["down"]["l4s"]], ["survives", "cleared"]);
        assert_eq!(json["ecn"]["up"]["marks"]["ect1"]["ce"], 1);
        assert_eq!(json["ecn"]["up"]["classic"], "survive");
        results.up.ecn = Some(Measured { value: Ecn { ect1: Marked::new(8, []), ..up }, cost });
        let written = text(&results, "a");
        assert!(written.contains("Packets of L4S are lost up: none of 8 with ECT(1) arrives."), "{written}");
    }

    #[test]
    fn values_say_what_is_known() {
        assert_eq!(value(&Estimate::at_least(2.5, 1)), "at least 2.50");
        assert_eq!(value(&Estimate::new(1_400.0, 1_400.0, 1_400.0, 1)), "1400");
        assert_eq!(value(&Estimate::new(0.0, 0.0, 0.004, 1)), "0 [0, 0.004]");
    }
}
