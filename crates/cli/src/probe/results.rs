//! Results of a probe: each figure with its interval, its cost and its method.

use serde::Serialize;

use super::{
    client::{Direction, Mtu},
    estimate::{
        Estimate,
        delay::{RoundTrips, Variation},
        ecn::{ECT1, Ecn},
        loss::Loss,
        order::Reordering,
        overload::Overload,
    },
    verify::Verification,
};

/// Price of a measurement: bytes on the wire in both directions, and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Cost {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// A finding with its cost.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured<T> {
    pub(super) value: T,
    pub(super) cost: Cost,
}

/// Findings under load.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Loaded {
    pub(super) rtt: Option<RoundTrips>,
    pub(super) responsiveness: Option<Estimate>,
    /// Goodput of the load in bit/s.
    pub(super) goodput: f64,
}

/// Goodput of the kernel's TCP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tcp {
    /// In bit/s.
    pub(super) goodput: f64,
}

/// Findings of one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DirectionResults {
    pub(super) rate: Option<Measured<Overload>>,
    pub(super) loss: Option<Measured<Loss>>,
    pub(super) reordering: Option<Measured<Reordering>>,
    pub(super) variation: Option<Measured<Variation>>,
    pub(super) mtu: Option<Measured<Mtu>>,
    pub(super) ecn: Option<Measured<Ecn>>,
    pub(super) loaded: Option<Measured<Loaded>>,
    pub(super) tcp: Option<Measured<Tcp>>,
}

/// Time after which a NAT forgets a mapping of UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NatTimeout {
    /// Longest silence after which a packet still arrived, in seconds.
    pub(super) survives_s: u64,
    /// Shortest silence after which no packet arrived; `None`: all arrived.
    pub(super) forgets_s: Option<u64>,
}

/// All findings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Results {
    pub(super) rtt: Option<Measured<RoundTrips>>,
    pub(super) up: DirectionResults,
    pub(super) down: DirectionResults,
    pub(super) nat: Option<Measured<NatTimeout>>,
    /// Contenders over this path; `None` unless asked for.
    pub(super) verification: Option<Verification>,
    /// Set when the run was interrupted.
    pub(super) is_partial: bool,
    /// Reasons why figures are missing.
    pub(super) notes: Vec<String>,
    pub(super) cost: Cost,
}

impl Results {
    pub(super) const fn way(&self, direction: Direction) -> &DirectionResults {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }

    pub(super) const fn way_mut(&mut self, direction: Direction) -> &mut DirectionResults {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }
}

/// One figure of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Figure {
    pub(super) name: &'static str,
    /// `None`: of the round trip.
    pub(super) direction: Option<Direction>,
    #[serde(flatten)]
    pub(super) estimate: Estimate,
    pub(super) unit: &'static str,
    #[serde(flatten)]
    pub(super) cost: Cost,
    pub(super) method: &'static str,
}

/// Collects the figures of one direction.
struct Figures {
    direction: Option<Direction>,
    list: Vec<Figure>,
}

impl Figures {
    fn add(&mut self, name: &'static str, estimate: Estimate, unit: &'static str, cost: Cost, method: &'static str) {
        self.list.push(Figure { name, direction: self.direction, estimate, unit, cost, method });
    }

    /// Adds the share of `kept` among `all`, unless there are none.
    fn add_share(&mut self, name: &'static str, (kept, all): (u32, u32), cost: Cost, method: &'static str) {
        if all > 0 {
            let samples = usize::try_from(all).unwrap_or(usize::MAX);
            self.add(name, bare(f64::from(kept) / f64::from(all) * 100.0, samples), "%", cost, method);
        }
    }
}

/// A value of which no interval is known.
const fn bare(value: f64, samples: usize) -> Estimate {
    Estimate { value, low: value, high: Some(value), samples }
}

impl Results {
    /// All figures, in the order of the report.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let mut figures = Figures { direction: None, list: Vec::new() };
        if let Some(Measured { value: rtt, cost }) = &self.rtt {
            figures.add("rtt-min", rtt.smallest, "ms", *cost, "pings over UDP, smallest");
            figures.add("rtt-idle", rtt.median, "ms", *cost, "pings over UDP, median");
        }
        for direction in Direction::BOTH {
            figures.direction = Some(direction);
            self.way(direction).add(&mut figures);
        }
        figures.direction = None;
        if let Some(Measured { value: nat, cost }) = &self.nat {
            #[expect(clippy::cast_precision_loss, reason = "seconds")]
            let [survives, forgets] = [Some(nat.survives_s), nat.forgets_s].map(|time| time.map(|time| time as f64));
            let low = survives.unwrap_or(0.0);
            let estimate = Estimate { value: forgets.unwrap_or(low), low, high: forgets, samples: 1 };
            figures.add("nat-timeout", estimate, "s", *cost, "sockets that are silent for different times");
        }
        figures.list
    }
}

impl DirectionResults {
    fn add(&self, to: &mut Figures) {
        if let Some(Measured { value: found, cost }) = &self.rate {
            let method = if found.policer_burst.is_some() {
                "what arrives of a train of twice the rate, second half"
            } else if found.is_limited {
                "what leaves the queue under a train of twice the rate"
            } else {
                "the fastest train, which the path was not slower than"
            };
            to.add("rate", found.rate.scaled(1e-6), "Mbit/s", *cost, method);
            if let Some(queue) = found.queue {
                to.add("queue", queue.scaled(1e-3), "kB", *cost, "growth of the one-way delay under this train × rate");
                let delay = bare(found.queue_delay_ms, queue.samples);
                to.add("queue-delay", delay, "ms", *cost, "growth of the one-way delay under this train");
            }
            if let Some(burst) = found.policer_burst {
                to.add(
                    "policer-burst",
                    burst.scaled(1e-3),
                    "kB",
                    *cost,
                    "bytes above the rate, without delay, before losses",
                );
            }
        }
        if let Some(Measured { value: loss, cost }) = &self.loss {
            to.add(
                "loss",
                loss.share.scaled(100.0),
                "%",
                *cost,
                "numbered packets at an even pace; interval for bursts",
            );
            if let Some(burst) = loss.burst {
                to.add("loss-burst", burst, "packets", *cost, "mean length of gaps in the numbers");
            }
        }
        if let Some(Measured { value: order, cost }) = &self.reordering {
            to.add("reordering", order.share.scaled(100.0), "%", *cost, "numbers behind higher ones (RFC 4737)");
        }
        if let Some(Measured { value: variation, cost }) = &self.variation {
            to.add(
                "delay-variation",
                variation.median,
                "ms",
                *cost,
                "one-way delay above its smallest, median (RFC 5481)",
            );
            let p95 = bare(variation.p95, variation.median.samples);
            to.add("delay-variation-p95", p95, "ms", *cost, "one-way delay above its smallest, p95");
        }
        if let Some(Measured { value: mtu, cost }) = &self.mtu {
            let passes = f64::from(mtu.passes);
            let estimate = match mtu.lost {
                Some(_) => bare(passes, 4),
                None => Estimate::at_least(passes, 4),
            };
            to.add("mtu", estimate, "B", *cost, "largest IP packet that arrives, four copies, Don't Fragment");
        }
        if let Some(Measured { value: ecn, cost }) = &self.ecn {
            let (arrived, kept) = ecn.classic();
            let method = "packets whose ECT(0) or CE mark arrives, trains of 8";
            to.add_share("ecn", (kept, arrived), *cost, method);
            let (arrived, kept) = (ecn.ect1.arrived(), ecn.ect1.with(ECT1));
            to.add_share("l4s", (kept, arrived), *cost, "packets whose ECT(1) mark arrives, train of 8 (RFC 9331)");
        }
        if let Some(Measured { value: loaded, cost }) = &self.loaded {
            let load = "four QUIC connections of CUBIC load this direction";
            if let Some(rtt) = loaded.rtt {
                to.add("rtt-loaded", rtt.median, "ms", *cost, load);
            }
            if let Some(found) = loaded.responsiveness {
                to.add("responsiveness", found, "round trips/min", *cost, "draft-ietf-ippm-responsiveness, over QUIC");
            }
            to.add("quic-goodput", bare(loaded.goodput / 1e6, 1), "Mbit/s", *cost, load);
        }
        if let Some(Measured { value: tcp, cost }) = &self.tcp {
            to.add("tcp-goodput", bare(tcp.goodput / 1e6, 1), "Mbit/s", *cost, "one connection of the kernel's TCP");
        }
    }

    /// Factor by which TCP is faster than UDP on this direction, beyond what the figures may be wrong by; `None` when it is not.
    pub(super) fn shaped(&self) -> Option<f64> {
        let (udp, tcp) = (&self.rate.as_ref()?.value, self.tcp.as_ref()?.value.goodput);
        // Goodput has no headers: 1448 of 1500 bytes.
        let (tcp, most) = (tcp * 1_500.0 / 1_448.0, udp.rate.high?);
        (udp.is_limited && tcp > most * 1.2).then(|| tcp / udp.rate.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overload(rate: f64) -> Overload {
        Overload {
            rate: Estimate::new(rate, rate * 0.99, rate * 1.01, 500),
            offered: rate * 2.0,
            is_limited: true,
            queue: Some(Estimate::new(62_500.0, 60_000.0, 64_000.0, 500)),
            queue_delay_ms: 25.0,
            policer_burst: None,
            lost: 0.4,
        }
    }

    #[test]
    fn each_figure_has_interval_cost_and_method() {
        let cost = Cost { bytes: 5_000, seconds: 1.5 };
        let mut results = Results::default();
        results.up.rate = Some(Measured { value: overload(2e7), cost });
        results.nat = Some(Measured { value: NatTimeout { survives_s: 20, forgets_s: Some(30) }, cost });
        let figures = results.figures();
        let names: Vec<&str> = figures.iter().map(|figure| figure.name).collect();
        assert_eq!(names, ["rate", "queue", "queue-delay", "nat-timeout"]);
        assert_eq!((figures[0].estimate.value, figures[0].direction), (20.0, Some(Direction::Up)));
        assert_eq!((figures[3].estimate.low, figures[3].estimate.high), (20.0, Some(30.0)));
        assert!(figures.iter().all(|figure| figure.cost == cost && !figure.method.is_empty()));
        let json = serde_json::to_value(&figures[0]).unwrap();
        assert_eq!(
            (&json["unit"], &json["bytes"], &json["direction"]),
            (&"Mbit/s".into(), &5_000.into(), &"up".into())
        );
    }

    #[test]
    fn udp_is_shaped_where_tcp_is_faster() {
        let cost = Cost::default();
        let mut way =
            DirectionResults { rate: Some(Measured { value: overload(1.2e7), cost }), ..DirectionResults::default() };
        assert_eq!(way.shaped(), None);
        way.tcp = Some(Measured { value: Tcp { goodput: 1.15e7 }, cost });
        assert_eq!(way.shaped(), None);
        way.tcp = Some(Measured { value: Tcp { goodput: 9e7 }, cost });
        assert!(way.shaped().unwrap() > 7.0);
    }
}
