//! Propagation: delay, jitter without reordering, and reordering.

use rand_core::RngCore;
use units::{Duration, Instant, RandomStream, Seed};

use crate::{
    config::LinkConfig,
    draw::{Chance, inverse, scale, up_to},
};

/// The far end of the way: when a packet that left the transmitter arrives.
#[derive(Clone, Debug)]
pub(crate) struct Propagation {
    delay: Duration,
    /// Other delays from given moments on, in the order of time.
    changes: Vec<(Instant, Duration)>,
    jitter: Jitter,
    /// Jitter may not change the order.
    keeps_order: bool,
    /// Time at which the latest of the packets in order arrives.
    floor: Instant,
    reorder: Option<(Chance, Duration, RandomStream)>,
}

/// Extra delay that varies, in nanoseconds.
#[derive(Clone, Debug)]
enum Jitter {
    None,
    /// A draw per packet.
    PerPacket {
        span: u64,
        draws: RandomStream,
    },
    /// A value of a distribution, drawn anew for each period.
    Stepping {
        quantiles: Vec<(f64, u64)>,
        period: u64,
        index: u64,
        value: u64,
        draws: RandomStream,
    },
    /// A line between values drawn at multiples of the period.
    Wandering {
        span: u64,
        period: u64,
        /// The period that `from` and `to` belong to.
        index: u64,
        from: u64,
        to: u64,
        draws: RandomStream,
    },
}

impl Propagation {
    pub(crate) fn new(config: &LinkConfig, seed: &Seed) -> Self {
        let changes = config.changes.iter().filter_map(|change| Some((Instant::ZERO + change.at, change.delay?)));
        Self {
            delay: config.delay,
            changes: changes.collect(),
            jitter: Jitter::new(config, seed.stream("jitter")),
            keeps_order: !config.jitter_reorders,
            floor: Instant::ZERO,
            reorder: config
                .reorder
                .map(|reorder| (Chance::new(reorder.probability), reorder.delay, seed.stream("reorder"))),
        }
    }

    /// Time at which a packet arrives whose last bit was sent at `sent`.
    #[inline]
    pub(crate) fn arrival(&mut self, sent: Instant) -> Instant {
        let (jitter, leaves) = self.draw(sent);
        let delay = if self.changes.is_empty() { self.delay } else { self.delay_at(sent) };
        if let Some(extra) = leaves {
            return sent + delay + extra;
        }
        let at = sent + delay + Duration::from_nanos(jitter);
        if !self.keeps_order {
            return at;
        }
        self.floor = self.floor.max(at);
        self.floor
    }
}

impl Propagation {
    /// The propagation delay of a packet sent at this moment.
    #[cold]
    fn delay_at(&self, sent: Instant) -> Duration {
        let passed = self.changes.partition_point(|(from, _)| *from <= sent);
        passed.checked_sub(1).map_or(self.delay, |place| self.changes[place].1)
    }

    /// Takes a packet that does not arrive: it makes its draws and delays no other.
    pub(crate) fn skip(&mut self, sent: Instant) {
        self.draw(sent);
    }

    /// The jitter, and the extra delay when the packet leaves the order.
    #[inline]
    fn draw(&mut self, sent: Instant) -> (u64, Option<Duration>) {
        let jitter = self.jitter.at(sent);
        let leaves =
            self.reorder.as_mut().and_then(|(chance, extra, draws)| chance.decides(draws.next_u64()).then_some(*extra));
        (jitter, leaves)
    }
}

impl Jitter {
    fn new(config: &LinkConfig, draws: RandomStream) -> Self {
        let (span, period) = (nanos(config.jitter), nanos(config.jitter_period));
        if !config.jitter_quantiles.is_empty() {
            let quantiles = config.jitter_quantiles.iter().map(|(share, delay)| (share.get(), nanos(*delay))).collect();
            let mut stepping = Self::Stepping { quantiles, period: period.max(1), index: 0, value: 0, draws };
            stepping.turn(0);
            return stepping;
        }
        match (span, period) {
            (0, _) => Self::None,
            (span, 0) => Self::PerPacket { span, draws },
            (span, period) => {
                let mut wandering = Self::Wandering { span, period, index: 0, from: 0, to: 0, draws };
                wandering.turn(0);
                wandering
            }
        }
    }

    /// The jitter at a time.
    #[inline]
    fn at(&mut self, now: Instant) -> u64 {
        match self {
            Self::None => 0,
            Self::PerPacket { span, draws } => up_to(draws, *span),
            Self::Stepping { period, index, value, .. } => {
                let (wanted, value) = (now.as_nanos() / *period, *value);
                if wanted == *index {
                    return value;
                }
                self.turn(wanted);
                self.at(now)
            }
            Self::Wandering { period, index, .. } => {
                let wanted = now.as_nanos() / *period;
                if wanted != *index {
                    self.turn(wanted);
                }
                self.on_line(now.as_nanos())
            }
        }
    }

    /// Draws both ends of a period. The place in the stream is that of the period, so that the jitter at a time does not
    /// depend on which packets passed before.
    #[cold]
    fn turn(&mut self, wanted: u64) {
        if let Self::Wandering { span, index, from, to, draws, .. } = self {
            // Two 32-bit words per 64-bit draw.
            draws.set_word_pos(u128::from(wanted) * 2);
            *index = wanted;
            *from = scale(draws.next_u64(), *span);
            *to = scale(draws.next_u64(), *span);
        } else if let Self::Stepping { quantiles, index, value, draws, .. } = self {
            draws.set_word_pos(u128::from(wanted) * 2);
            *index = wanted;
            *value = inverse(quantiles, 0, draws.next_u64());
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a point between two 64-bit numbers")]
    fn on_line(&self, now: u64) -> u64 {
        match *self {
            Self::Wandering { period, from, to, .. } => {
                let (done, period) = (u128::from(now % period), u128::from(period));
                ((u128::from(from) * (period - done) + u128::from(to) * done) / period) as u64
            }
            _ => 0,
        }
    }
}

/// A span as integer nanoseconds, saturating.
fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use units::Probability;

    use super::*;
    use crate::config::Reorder;

    const MS: Duration = Duration::from_millis(1);

    /// Delays in microseconds of packets sent `gap` apart.
    fn delays(config: &LinkConfig, gap: Duration, packets: u32) -> Vec<u64> {
        let mut way = Propagation::new(config, &Seed::from_number(5));
        let mut sent = Instant::ZERO;
        (0..packets)
            .map(|_| {
                sent += gap;
                u64::try_from((way.arrival(sent) - sent).as_micros()).unwrap()
            })
            .collect()
    }

    fn median(mut values: Vec<u64>) -> u64 {
        values.sort_unstable();
        values[values.len() / 2]
    }

    #[test]
    fn without_jitter_the_delay_is_the_delay() {
        let config = LinkConfig { delay: 25 * MS, ..LinkConfig::default() };
        assert!(delays(&config, MS, 100).iter().all(|&delay| delay == 25_000));
    }

    #[test]
    fn sparse_packets_see_even_jitter() {
        let config = LinkConfig { jitter: 5 * MS, ..LinkConfig::default() };
        let median = median(delays(&config, 10 * MS, 20_000));
        assert!((2400..2600).contains(&median), "{median}");
    }

    /// The effect that the documentation of `jitter` warns of, and its cure.
    #[test]
    fn dense_packets_in_order_see_the_maximum_of_past_draws() {
        let dense = Duration::from_micros(200);
        let each = LinkConfig { jitter: 5 * MS, ..LinkConfig::default() };
        assert!(median(delays(&each, dense, 50_000)) > 3500);
        let wandering = LinkConfig { jitter_period: 50 * MS, ..each.clone() };
        let median_wandering = median(delays(&wandering, dense, 500_000));
        assert!((2300..2700).contains(&median_wandering), "{median_wandering}");
        let free = LinkConfig { jitter_reorders: true, ..each };
        let median_free = median(delays(&free, dense, 50_000));
        assert!((2400..2600).contains(&median_free), "{median_free}");
    }

    #[test]
    fn wandering_jitter_depends_on_time_alone() {
        let config = LinkConfig { jitter: 5 * MS, jitter_period: 50 * MS, ..LinkConfig::default() };
        let one = delays(&config, MS, 1000);
        let every_tenth = delays(&config, 10 * MS, 100);
        assert_eq!(one.into_iter().skip(9).step_by(10).collect::<Vec<_>>(), every_tenth);
    }

    /// The round-trip times that a ride-hailing service published, less their median.
    #[test]
    fn a_distribution_is_met() {
        let share = |value| Probability::new(value).unwrap();
        let quantiles = vec![
            (share(0.5), Duration::ZERO),
            (share(0.75), 75 * MS),
            (share(0.95), 375 * MS),
            (share(0.99), 1_950 * MS),
            (share(1.0), 2_500 * MS),
        ];
        let config = LinkConfig {
            jitter_quantiles: quantiles,
            jitter_period: 10 * MS,
            jitter_reorders: true,
            ..LinkConfig::default()
        };
        config.check().unwrap();
        let mut seen = delays(&config, 10 * MS, 100_000);
        seen.sort_unstable();
        let at = |q: f64| seen[(q * 100_000.0) as usize] as f64 / 1e3;
        assert_eq!(at(0.49), 0.0);
        for (q, expected, off) in [(0.75, 75.0, 4.0), (0.95, 375.0, 20.0), (0.99, 1_950.0, 60.0)] {
            assert!((at(q) - expected).abs() < off, "p{q}: {}", at(q));
        }
    }

    #[test]
    fn the_delay_changes_when_asked() {
        let change = crate::config::Change { at: 50 * MS, rate: None, delay: Some(40 * MS), mtu: None };
        let config = LinkConfig { delay: 10 * MS, changes: vec![change], ..LinkConfig::default() };
        let delays = delays(&config, MS, 100);
        assert!(delays[..49].iter().all(|&delay| delay == 10_000) && delays[49..].iter().all(|&delay| delay == 40_000));
    }

    #[test]
    fn order_is_kept_unless_asked_otherwise() {
        let arrivals = |config: &LinkConfig| {
            let mut way = Propagation::new(config, &Seed::from_number(1));
            (0..1000).map(|n| way.arrival(Instant::from_micros(n * 100))).collect::<Vec<_>>()
        };
        let kept = LinkConfig { delay: 10 * MS, jitter: 5 * MS, ..LinkConfig::default() };
        assert!(arrivals(&kept).is_sorted());
        let loose = LinkConfig { jitter_reorders: true, ..kept.clone() };
        assert!(!arrivals(&loose).is_sorted());
        let late = Reorder { probability: Probability::new(0.1).unwrap(), delay: 20 * MS };
        let late = arrivals(&LinkConfig { reorder: Some(late), jitter: Duration::ZERO, ..kept });
        let out_of_order = (0..1000).filter(|&n| late[n] == Instant::from_micros(n as u64 * 100) + 30 * MS).count();
        assert!((70..130).contains(&out_of_order), "{out_of_order}");
    }

    #[test]
    fn a_packet_that_skips_the_jitter_overtakes() {
        let config = LinkConfig {
            delay: 10 * MS,
            jitter: 5 * MS,
            reorder: Some(Reorder { probability: Probability::new(0.05).unwrap(), delay: Duration::ZERO }),
            ..LinkConfig::default()
        };
        let at_once = delays(&config, Duration::from_micros(100), 10_000).iter().filter(|&&d| d == 10_000).count();
        assert!((400..600).contains(&at_once), "{at_once}");
    }
}
