//! Scenario of the laboratory with the measured path.

use std::fmt::Write as _;

use super::{
    client::Direction,
    estimate::ecn::{Ecn, L4s},
    results::{DirectionResults, Results},
};

/// Delay variation below which none is written: scheduling delays at both ends have this size.
const QUIET_MS: f64 = 2.0;

/// The file. `None` without a round trip and a rate of downloads.
pub(super) fn text(results: &Results, name: &str, server: &str) -> Option<String> {
    let rtt = results.rtt.as_ref()?.value.smallest.value;
    results.down.rate.as_ref()?;
    let mut out = format!(
        "# A path as `tiderace probe` measured it. Run it: tiderace lab run FILE\nname = \"{name}\"\n\
         title = \"Measured path, RTT {rtt:.1} ms\"\n\
         about = \"\"\"\nMeasured by tiderace probe {server}. The delay is half of the round trip in each direction: only the sum is known.\n\
         What was not measured is left at its default.\n\"\"\"\n"
    );
    for direction in Direction::BOTH {
        let _ = writeln!(out, "\n[path.{}]", direction.name());
        link(&mut out, results.way(direction), rtt / 2.0);
    }
    if let Some(nat) = results.nat.as_ref().map(|nat| nat.value)
        && let Some(forgets) = nat.forgets_s
    {
        let _ = write!(out, "\n[path.nat]\ntimeout = \"{} s\"\ntimeout-max = \"{forgets} s\"\n", nat.survives_s.max(1));
    }
    out += "\n[traffic]\nworkload = \"bulk\"\nconnections = 2\nstart-spread = \"500 ms\"\n\n\
            [run]\nwarmup = \"5 s\"\nduration = \"20 s\"\nseeds = 10\n\n\
            [contenders]\ncongestion = [\"cubic\", \"bbr3\", \"auto\"]\n";
    Some(out)
}

fn link(out: &mut String, way: &DirectionResults, delay_ms: f64) {
    if let Some(found) = way.rate.as_ref().map(|rate| &rate.value) {
        let rate = found.rate.value;
        if let Some(burst) = found.policer_burst {
            // The line behind the policer is at least as fast as the train that passed it.
            let line = found.offered * 2.0;
            let _ = writeln!(out, "rate = \"{:.0} bit/s\"", line);
            let _ = writeln!(out, "queue = \"{:.0} B\"                # not measured: 50 ms", line / 8.0 * 0.05);
            let _ = writeln!(
                out,
                "policer = {{ rate = \"{rate:.0} bit/s\", burst = \"{:.0} B\"{} }}",
                burst.value.max(1_500.0),
                if way.shaped().is_some() { ", udp-only = true" } else { "" }
            );
        } else {
            let doubt = if found.is_limited { "" } else { "      # at least: the path was not the limit" };
            let _ = writeln!(out, "rate = \"{rate:.0} bit/s\"{doubt}");
            // A queue that was not seen is shorter than the packets of the train.
            let queue = found.queue.map_or(3_000.0, |queue| queue.value.max(3_000.0));
            let _ = writeln!(out, "queue = \"{queue:.0} B\"");
        }
    }
    let _ = writeln!(out, "delay = \"{:.0} us\"", delay_ms * 1e3);
    if let Some(variation) =
        way.variation.as_ref().map(|variation| variation.value).filter(|found| found.p95 >= QUIET_MS)
    {
        let _ = writeln!(out, "jitter = \"{:.0} us\"\njitter-period = \"200 ms\"", variation.p95 * 1e3);
    }
    if let Some(loss) = way.loss.as_ref().map(|loss| &loss.value).filter(|loss| loss.lost > 0 && loss.lost < loss.sent)
    {
        let share = loss.share.value * 100.0;
        match loss.burst.filter(|_| loss.is_bursty()) {
            Some(burst) => {
                let _ =
                    writeln!(out, "loss = {{ burst = {{ mean = \"{share:.4} %\", length = {:.2} }} }}", burst.value);
            }
            None => {
                let _ = writeln!(out, "loss = \"{share:.4} %\"");
            }
        }
    }
    if let Some(order) = way.reordering.as_ref().map(|order| order.value).filter(|order| order.share.value > 0.0) {
        // Enough to be overtaken by as many packets as one was at most, at the pace of the measurement.
        let _ =
            writeln!(out, "reorder = {{ probability = \"{:.4} %\", delay = \"10 ms\" }}", order.share.value * 100.0);
    }
    if let Some(treatment) = way.ecn.as_ref().and_then(|found| ecn(&found.value)) {
        let _ = writeln!(out, "ecn = \"{treatment}\"");
    }
    if let Some(mtu) = way.mtu.as_ref().map(|mtu| mtu.value).filter(|mtu| mtu.lost.is_some()) {
        // Devices of an emulated network take over `mtu`, and TCP learns it from them. Of a black hole they must not know.
        let _ = if mtu.is_of_interface {
            writeln!(out, "mtu = {}", mtu.passes)
        } else {
            writeln!(out, "changes = [{{ at = \"0 s\", mtu = {} }}]", mtu.passes)
        };
    }
}

/// Treatment of ECN marks in the link model; `None`: marks arrive, or the model has no such treatment.
fn ecn(found: &Ecn) -> Option<&'static str> {
    let (arrived, kept) = found.classic();
    match found.l4s()? {
        L4s::Cleared if arrived > 0 && kept == 0 => Some("bleach"),
        L4s::Cleared => Some("bleach-ect1"),
        L4s::ChangedToEct0 => Some("ect1-to-ect0"),
        L4s::ChangedToCe => Some("ect1-to-ce"),
        L4s::Survives | L4s::Lost => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            client::Mtu,
            estimate::{
                Estimate,
                delay::RoundTrips,
                ecn::{CE, ECT0, Marked, NOT_ECT},
                loss::Loss,
                overload::Overload,
            },
            results::{Cost, Measured, NatTimeout},
        },
        *,
    };

    fn estimate(value: f64) -> Estimate {
        Estimate::new(value, value, value, 100)
    }

    fn measured<T>(value: T) -> Option<Measured<T>> {
        Some(Measured { value, cost: Cost::default() })
    }

    fn path() -> Results {
        let rtt = RoundTrips { smallest: estimate(50.2), median: estimate(50.4), p95: None, mean: 50.4 };
        let mut results = Results { rtt: measured(rtt), ..Results::default() };
        let rate = Overload {
            rate: estimate(20_040_000.0),
            offered: 4e7,
            is_limited: true,
            queue: Some(estimate(125_300.0)),
            queue_delay_ms: 50.0,
            policer_burst: None,
            lost: 0.5,
        };
        let policed = Overload { policer_burst: Some(estimate(60_000.0)), queue: None, ..rate.clone() };
        results.down.rate = measured(rate);
        results.up.rate = measured(policed);
        results.down.mtu = measured(Mtu { passes: 1_400, lost: Some(1_401), is_of_interface: false });
        let fates: Vec<bool> = (0..5_000).map(|number| number % 300 >= 6).collect();
        results.down.loss = measured(Loss::of(&fates));
        results.nat = measured(NatTimeout { survives_s: 20, forgets_s: Some(30) });
        results
    }

    #[test]
    fn the_laboratory_takes_it() {
        let text = text(&path(), "measured", "192.0.2.1:4433").unwrap();
        let scenario = lab::scenario::parse(&text, "measured").unwrap_or_else(|error| panic!("{error}\n{text}"));
        let down = &scenario.path.down;
        assert_eq!((down.rate.unwrap().as_bps(), down.mtu, down.changes[0].mtu), (20_040_000, None, Some(1_400)));
        assert_eq!(down.queue.bytes().unwrap().as_bytes(), 125_300);
        assert_eq!(down.delay, std::time::Duration::from_micros(25_100));
        assert!(
            matches!(down.loss, netem::Loss::Burst { length, .. } if (length - 6.0).abs() < 0.01),
            "{:?}",
            down.loss
        );
        assert_eq!(scenario.path.up().policer.unwrap().burst.as_bytes(), 60_000);
        assert_eq!(scenario.path.nat.unwrap().timeout_max, std::time::Duration::from_secs(30));
    }

    #[test]
    fn lost_marks_become_a_treatment() {
        let mut results = path();
        let [ect0, ce] = [ECT0, CE].map(|mark| Marked::new(8, [mark; 8]));
        let cleared = Marked::new(8, [NOT_ECT; 8]);
        results.down.ecn = measured(Ecn { ect0, ect1: cleared, ce });
        results.up.ecn = measured(Ecn { ect0: cleared, ect1: cleared, ce: cleared });
        let scenario = lab::scenario::parse(&text(&results, "measured", "a").unwrap(), "measured").unwrap();
        let found = [&scenario.path.down, scenario.path.up()].map(|link| link.ecn);
        assert_eq!(found, [netem::EcnTreatment::BleachEct1, netem::EcnTreatment::Bleach]);
        for (mark, treatment) in [(ECT0, "ect1-to-ect0"), (CE, "ect1-to-ce")] {
            assert_eq!(ecn(&Ecn { ect0, ect1: Marked::new(8, [mark; 8]), ce }), Some(treatment));
        }
    }

    #[test]
    fn a_path_without_a_rate_is_no_scenario() {
        assert_eq!(text(&Results::default(), "a", "b"), None);
        let mut idle = path();
        idle.down.rate = None;
        assert_eq!(text(&idle, "a", "b"), None);
    }
}
