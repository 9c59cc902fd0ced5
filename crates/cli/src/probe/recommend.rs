//! Settings for a path, only from the measured rows of docs/choose.md.

use serde::Serialize;

use super::{
    estimate::{loss::Loss, overload::Overload},
    results::{DirectionResults, Results},
};

/// A recommendation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Advice {
    /// Keys of a profile, as in a scenario or a configuration; empty: the defaults.
    pub(super) settings: Vec<&'static str>,
    /// Row of the table in docs/choose.md.
    pub(super) network: &'static str,
    /// Figures of this path that fit the row.
    pub(super) reason: String,
    /// Measured gain of the row, for one connection.
    pub(super) gain: &'static str,
    /// Condition under which it does not hold.
    pub(super) unless: &'static str,
    /// Run that measured the row.
    pub(super) command: &'static str,
}

/// Share of packets lost from which a loss that is not congestion matters to one connection: the row with the least has 0.1 %.
const LOSS: f64 = 0.0005;

/// Recommends settings for data in the direction of downloads, which the server sends. `None` when too little was measured.
pub(super) fn recommend(results: &Results) -> Option<Advice> {
    let rtt = results.rtt.as_ref()?.value.smallest.value;
    let rate = results.down.rate.as_ref().map(|rate| &rate.value);
    if rtt < 1.0 {
        return Some(Advice {
            settings: Vec::new(),
            network: "data centre, RTT below 1 ms",
            reason: format!("RTT {rtt:.2} ms"),
            gain: "request p99 0.67 ms, as all others",
            unless: "",
            command: "tiderace lab run datacenter",
        });
    }
    if let Some(found) = rate.filter(|found| found.policer_burst.is_some()) {
        return Some(Advice {
            settings: Vec::new(),
            network: "policed",
            reason: format!("packets above {:.1} Mbit/s are dropped without delay", found.rate.value / 1e6),
            gain: "10.9 Mbit/s; `auto` 11.3",
            unless: "one connection: `auto` is 4 % better",
            command: "tiderace lab run policer",
        });
    }
    if let (Some(down), Some(up)) = (rate, results.up.rate.as_ref().map(|rate| &rate.value))
        && up.is_limited
        && down.rate.value > 50.0 * up.rate.value
    {
        return Some(Advice {
            settings: vec!["ack_frequency = \"adaptive\""],
            network: "slow return path",
            reason: format!("{:.0} times faster down than up", down.rate.value / up.rate.value),
            gain: "96 Mbit/s, not 57",
            unless: "",
            command: "tiderace lab run asymmetric",
        });
    }
    if let Some(spread) = [&results.up, &results.down].into_iter().find_map(heavy_tail) {
        return Some(Advice {
            settings: vec!["congestion = \"bbr3\""],
            network: "interactive requests, heavy-tailed RTT",
            reason: format!("one-way delay varies by {spread:.0} ms at p95"),
            gain: "request p50 509 ms, not 758",
            unless: "`fec = \"auto\"`",
            command: "tiderace lab run uber-india",
        });
    }
    let loss = results.down.loss.as_ref().map(|loss| &loss.value).filter(|loss| loss.share.low >= LOSS);
    match loss {
        Some(loss) => Some(against_loss(loss, rtt)),
        None => rate.filter(|found| found.is_limited).map(|found| against_queue(found, rtt)),
    }
}

/// Settings for a path that loses packets without load.
fn against_loss(loss: &Loss, rtt: f64) -> Advice {
    let share = loss.share.value * 100.0;
    if loss.is_bursty() {
        let length = loss.burst.map_or(1.0, |burst| burst.value);
        return Advice {
            settings: vec!["congestion = \"bbr3\""],
            network: "Wi-Fi, losses in bursts",
            reason: format!("{share:.2} % loss in bursts of {length:.1} without load"),
            gain: "33 Mbit/s, not 13",
            unless: "many connections",
            command: "tiderace lab run wifi",
        };
    }
    let (network, gain, unless, command) = if rtt >= 200.0 {
        ("satellite, 1 % random loss", "43 Mbit/s, not 0.7", "", "tiderace lab run satellite")
    } else if loss.share.value >= 0.01 {
        ("mobile, 5 % random loss", "17.6 Mbit/s, not 1.0", "losses in bursts", "tiderace lab run mobile")
    } else {
        let unless = "with many connections: unfair";
        ("broadband, 0.1 % random loss", "94 Mbit/s, not 25", unless, "tiderace lab run production")
    };
    let reason = format!("{share:.2} % loss without load");
    Advice { settings: vec!["congestion = \"auto\""], network, reason, gain, unless, command }
}

/// Settings for a path without such loss, by the queue in front of its bottleneck.
fn against_queue(found: &Overload, rtt: f64) -> Advice {
    let ratio = found.queue_delay_ms / rtt;
    let settings = vec!["congestion = \"auto\""];
    if found.queue.is_some() && ratio >= 3.0 {
        return Advice {
            settings,
            network: "deep buffer, few connections",
            reason: format!("the queue holds {:.0} ms, {ratio:.1} times the RTT", found.queue_delay_ms),
            gain: "RTT p95 54 ms, not 449",
            unless: "with many connections: `bbr3`",
            command: "tiderace lab run bufferbloat",
        };
    }
    if ratio <= 0.3 {
        return Advice {
            settings,
            network: "shallow buffer (0.25 BDP)",
            reason: format!("the queue holds {:.1} ms, {ratio:.2} times the RTT", found.queue_delay_ms),
            gain: "RTT p95 54 ms, not 63",
            unless: "behind policers",
            command: "tiderace lab run bufferbloat --queue '0.25 BDP'",
        };
    }
    Advice {
        settings,
        network: "broadband without loss",
        reason: format!("no loss without load; the queue holds {:.0} ms", found.queue_delay_ms),
        gain: "RTT p95 22 ms, not 40",
        unless: "with many connections: unfair",
        command: "tiderace lab run production --loss '0 %'",
    }
}

/// Recommends repair for live datagrams, which do not wait for a retransmission.
pub(super) fn repair(results: &Results) -> Option<Advice> {
    let loss = &results.down.loss.as_ref()?.value;
    if loss.share.low < 0.005 {
        return None;
    }
    let share = loss.share.value * 100.0;
    let (settings, network, gain, unless, command): (&[&'static str], _, _, _, _) = if loss.is_bursty() {
        let unless = "one flow below some 500 packets per second";
        let command = "tiderace lab run fec-burst3";
        (&["fec = \"rlc:1/5:160\""], "live datagrams, bursts of 3", "0 % missing, not 5.2", unless, command)
    } else {
        let unless = "no room for 20 % more packets";
        let command = "tiderace lab run fec-iid";
        (&["fec = \"rlc:1/5:40\""], "live datagrams, 5 % random loss", "0 % missing, not 5.1", unless, command)
    };
    let settings =
        settings.iter().copied().chain(["congestion = \"bbr3\"", "random_loss_tolerance = \"15 %\""]).collect();
    Some(Advice { settings, network, reason: format!("{share:.2} % loss without load"), gain, unless, command })
}

/// Variation of the one-way delay at p95, in ms, where it is that of the row.
fn heavy_tail(way: &DirectionResults) -> Option<f64> {
    way.variation.as_ref().map(|variation| variation.value.p95).filter(|p95| *p95 >= 300.0)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            estimate::{Estimate, delay::RoundTrips},
            results::{Cost, Measured},
        },
        *,
    };

    const COST: Cost = Cost { bytes: 0, seconds: 0.0 };

    fn path(rtt: f64, down: f64, up: f64, queue_ms: f64) -> Results {
        let estimate = |value: f64| Estimate::new(value, value, value, 100);
        let rate = |value: f64| {
            let queue = Some(estimate(value * queue_ms / 8e3));
            let found = Overload {
                rate: estimate(value),
                offered: 2.0 * value,
                is_limited: true,
                queue,
                queue_delay_ms: queue_ms,
                policer_burst: None,
                lost: 0.5,
            };
            Some(Measured { value: found, cost: COST })
        };
        let rtts = RoundTrips { smallest: estimate(rtt), median: estimate(rtt), p95: None, mean: rtt };
        let mut results = Results { rtt: Some(Measured { value: rtts, cost: COST }), ..Results::default() };
        (results.down.rate, results.up.rate) = (rate(down), rate(up));
        results
    }

    fn losing(mut results: Results, every: usize, length: usize) -> Results {
        let fates: Vec<bool> = (0..20_000).map(|number| number % every >= length).collect();
        results.down.loss = Some(Measured { value: Loss::of(&fates), cost: COST });
        results
    }

    fn network(results: &Results) -> &'static str {
        recommend(results).unwrap().network
    }

    #[test]
    fn each_row_has_its_paths() {
        assert_eq!(network(&path(0.3, 1e9, 1e9, 1.0)), "data centre, RTT below 1 ms");
        assert_eq!(network(&path(20.0, 1e8, 1e8, 20.0)), "broadband without loss");
        assert_eq!(network(&path(50.0, 2e7, 1e7, 400.0)), "deep buffer, few connections");
        assert_eq!(network(&path(50.0, 2e7, 2e7, 12.0)), "shallow buffer (0.25 BDP)");
        assert_eq!(network(&path(30.0, 1e8, 1e6, 30.0)), "slow return path");
        assert_eq!(network(&losing(path(50.0, 2e7, 2e7, 50.0), 20, 1)), "mobile, 5 % random loss");
        assert_eq!(network(&losing(path(20.0, 1e8, 1e8, 20.0), 1_000, 1)), "broadband, 0.1 % random loss");
        assert_eq!(network(&losing(path(250.0, 5e7, 5e6, 100.0), 100, 1)), "satellite, 1 % random loss");
        assert_eq!(network(&losing(path(20.0, 4e7, 4e7, 50.0), 200, 4)), "Wi-Fi, losses in bursts");
    }

    #[test]
    fn nothing_is_recommended_without_a_measurement() {
        assert_eq!(recommend(&Results::default()), None);
        let mut idle = path(50.0, 2e7, 2e7, 50.0);
        (idle.down.rate, idle.up.rate) = (None, None);
        assert_eq!(recommend(&idle), None);
        assert_eq!((repair(&idle), repair(&path(50.0, 2e7, 2e7, 50.0))), (None, None));
    }

    #[test]
    fn repair_is_for_loss_by_its_bursts() {
        let of = |every, length| repair(&losing(path(50.0, 2e7, 2e7, 50.0), every, length)).unwrap().settings[0];
        assert_eq!((of(20, 1), of(60, 3)), ("fec = \"rlc:1/5:40\"", "fec = \"rlc:1/5:160\""));
    }

    #[test]
    fn rows_are_those_of_the_table() {
        let table = include_str!("../../../../docs/choose.md");
        let paths = [
            path(0.3, 1e9, 1e9, 1.0),
            path(20.0, 1e8, 1e8, 20.0),
            path(50.0, 2e7, 1e7, 400.0),
            path(50.0, 2e7, 2e7, 12.0),
            path(30.0, 1e8, 1e6, 30.0),
            losing(path(50.0, 2e7, 2e7, 50.0), 20, 1),
            losing(path(20.0, 1e8, 1e8, 20.0), 1_000, 1),
            losing(path(250.0, 5e7, 5e6, 100.0), 100, 1),
            losing(path(20.0, 4e7, 4e7, 50.0), 200, 4),
        ];
        for advice in paths.iter().flat_map(|path| [recommend(path), repair(path)]).flatten() {
            let row = table.lines().find(|line| line.starts_with(&format!("| {} |", advice.network)));
            let row = row.unwrap_or_else(|| panic!("there is no row `{}`", advice.network));
            assert!(row.contains(advice.command), "{row}: {}", advice.command);
            assert!(
                advice.settings.first().is_none_or(|setting| row.contains(setting)),
                "{row}: {:?}",
                advice.settings
            );
        }
    }
}
