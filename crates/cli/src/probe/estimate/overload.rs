//! Rate, queue and policer of one direction, from a train of packets above its rate.
//!
//! A link with a queue delivers at its rate from the first packet on, and the delay grows until the queue is full. A policer delivers the
//! content of its bucket at the sender's rate, then packets at its own rate, and the delay does not grow.

use lab::stats::distribution::student_quantile;
use serde::Serialize;

use super::{Arrival, Estimate, at, loss::Loss, to_f64};

/// A train, with the packets of it that arrived.
#[derive(Clone, Debug, Default)]
pub(in crate::probe) struct Train {
    /// Bytes of each packet on the wire, IP header included.
    pub(in crate::probe) size: u32,
    /// Time of sending of each packet, in microseconds.
    pub(in crate::probe) sent: Vec<u64>,
    /// Arrivals in their order.
    pub(in crate::probe) arrivals: Vec<Arrival>,
}

/// Findings of a train.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::probe) struct Overload {
    /// Bits per second that leave the bottleneck. Only a lower bound when the train was not faster than the path.
    pub(in crate::probe) rate: Estimate,
    /// Rate at which the train was sent.
    pub(in crate::probe) offered: f64,
    /// Returns whether the path was the limit.
    pub(in crate::probe) is_limited: bool,
    /// Bytes that the queue holds; `None` when no queue was seen. Only a lower bound when it was not filled.
    pub(in crate::probe) queue: Option<Estimate>,
    /// Delay that the full queue adds, in ms.
    pub(in crate::probe) queue_delay_ms: f64,
    /// Bytes above its rate that a policer let through; `None` when there is no sign of one.
    pub(in crate::probe) policer_burst: Option<Estimate>,
    /// Share of the train that was lost.
    pub(in crate::probe) lost: f64,
}

/// Number of arrivals that an estimate needs.
pub(in crate::probe) const ARRIVALS: usize = 20;
/// Groups of arrivals over which the rate is compared with itself.
const GROUPS: usize = 10;
/// Share of the offered rate below which the path, and not the sender, was the limit.
const LIMITED: f64 = 0.93;
/// Share lost of a train that is too fast for a path that does not delay: trains get four times as fast, so some lose more.
const PRESSED: f64 = 0.25;
/// Packets that a policer lets through at least (netem and `tc` want one of full size; common ones hold tens).
const BURST_PACKETS: f64 = 5.0;
/// Relative error that is assumed even where the groups agree: clocks of both ends, and wake-ups.
const FLOOR: f64 = 0.005;

impl Train {
    /// Analyses the train. `idle_loss` is the share of packets that this direction loses without a load; it is taken for loss
    /// behind the bottleneck. `None` with too few arrivals.
    pub(in crate::probe) fn analyse(&self, idle_loss: f64) -> Option<Overload> {
        let mut arrivals = self.arrivals.clone();
        arrivals.sort_by_key(|arrival| arrival.received);
        if arrivals.len() < ARRIVALS || self.sent.len() < ARRIVALS {
            return None;
        }
        let kept = (1.0 - idle_loss).max(0.05);
        let offered = rate(self.size, self.sent.len() - 1, span(self.sent.first()?, self.sent.last()?));
        let (delivered, half) = steady_rate(self.size, arrivals.get(arrivals.len() / 2..)?)?;
        let value = delivered / kept;
        let half = (half / kept).max(value * FLOOR);
        let lost = 1.0 - to_f64(arrivals.len()) / to_f64(self.sent.len());
        let samples = arrivals.len();
        let growth = Growth::of(&arrivals)?;
        let bytes = |micros: f64| micros * value / 8e6;
        let packet = f64::from(self.size);
        // A burst of losses alone slows down what arrives, too.
        let is_pressed = bytes(growth.full) > 2.0 * packet || lost > idle_loss + PRESSED;
        let is_limited = value < offered * LIMITED && is_pressed;
        let rate = if is_limited {
            Estimate::new(value, value - half, value + half, samples)
        } else {
            Estimate::at_least(value.min(offered), samples)
        };
        let (excess, doubt) = self.excess(&arrivals, delivered, half);
        let (excess, doubt) = (excess / kept, doubt / kept);
        let queue_bytes = bytes(growth.full);
        let is_overflowing = excess_loss(self.sent.len(), &arrivals) > idle_loss + 0.03;
        let is_policed =
            is_limited && is_overflowing && excess > queue_bytes.max(BURST_PACKETS * packet).max(2.0 * doubt);
        let policer_burst = is_policed
            .then(|| Estimate::new(excess, (excess - packet - doubt).max(0.0), excess + packet + doubt, samples));
        let is_queue = is_limited && !is_policed && queue_bytes > packet;
        let queue = is_queue.then(|| {
            if is_overflowing && growth.has_ended {
                let low = bytes(growth.middle) * (1.0 - half / value) - packet;
                Estimate::new(queue_bytes, low.max(0.0), bytes(growth.most) * (1.0 + half / value) + packet, samples)
            } else {
                Estimate::at_least(queue_bytes, samples)
            }
        });
        let queue_delay_ms = growth.full / 1e3;
        Some(Overload { rate, offered, is_limited, queue, queue_delay_ms, policer_burst, lost })
    }

    /// Bytes that arrived above the steady rate, and what these may be wrong by since the rate is: where they stand out the most.
    fn excess(&self, arrivals: &[Arrival], delivered: f64, half: f64) -> (f64, f64) {
        let first = arrivals[0].received;
        let beyond = arrivals.iter().enumerate().map(|(count, arrival)| {
            let elapsed = span(&first, &arrival.received) / 8e6;
            (to_f64(count) * f64::from(self.size) - delivered * elapsed, half * elapsed)
        });
        let stands_out = |(bytes, doubt): &(f64, f64)| bytes - 2.0 * doubt;
        beyond.max_by(|a, b| stands_out(a).total_cmp(&stands_out(b))).unwrap_or((0.0, 0.0))
    }
}

/// Growth of the one-way delay over a train, in microseconds.
struct Growth {
    /// In the last third, nearly at its most: the full queue.
    full: f64,
    most: f64,
    middle: f64,
    /// Returns whether growth ended before the last third.
    has_ended: bool,
}

impl Growth {
    fn of(arrivals: &[Arrival]) -> Option<Self> {
        let smallest = arrivals.iter().map(Arrival::one_way).min()?;
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a measurement")]
        let above: Vec<f64> = arrivals.iter().map(|arrival| (arrival.one_way() - smallest) as f64).collect();
        let last = above.get(above.len() * 2 / 3..)?;
        let median = |of: &[f64]| {
            let mut ascending = of.to_vec();
            ascending.sort_by(f64::total_cmp);
            at(&ascending, 0.5)
        };
        let (begin, end) = last.split_at_checked(last.len() / 2)?;
        let (begin, end) = (median(begin)?, median(end)?);
        let mut ascending = last.to_vec();
        ascending.sort_by(f64::total_cmp);
        let (full, most, middle) = (at(&ascending, 0.95)?, *ascending.last()?, at(&ascending, 0.5)?);
        Some(Self { full, most, middle, has_ended: end <= begin * 1.1 + 1_000.0 })
    }
}

/// Share of the packets of the last third of a train that were lost.
fn excess_loss(sent: usize, arrivals: &[Arrival]) -> f64 {
    let from = sent * 2 / 3;
    let late = arrivals.iter().filter_map(|arrival| usize::try_from(arrival.number).ok()?.checked_sub(from));
    Loss::of_numbers(sent - from, late.filter_map(|number| u32::try_from(number).ok())).share.value
}

/// Rate of arrivals in bit/s, and half of its 95 % interval: groups of as many packets each, from the last of one to the last of
/// the next.
fn steady_rate(size: u32, arrivals: &[Arrival]) -> Option<(f64, f64)> {
    let (first, last) = (arrivals.first()?, arrivals.last()?);
    let all = rate(size, arrivals.len() - 1, span(&first.received, &last.received));
    let each = (arrivals.len() - 1) / GROUPS;
    if !all.is_finite() {
        return None;
    }
    if each == 0 {
        return Some((all, all * 0.5));
    }
    let ends: Vec<u64> = arrivals.iter().step_by(each).map(|arrival| arrival.received).collect();
    let rates: Vec<f64> = ends.windows(2).map(|ends| rate(size, each, span(&ends[0], &ends[1]))).collect();
    if rates.len() < 2 || rates.iter().any(|rate| !rate.is_finite()) {
        return Some((all, all * 0.1));
    }
    let count = to_f64(rates.len());
    let variance = rates.iter().map(|rate| (rate - all).powi(2)).sum::<f64>() / (count - 1.0);
    Some((all, student_quantile(0.975, rates.len() - 1) * (variance / count).sqrt()))
}

/// Bits per second of a number of packets within a number of microseconds.
fn rate(size: u32, packets: usize, micros: f64) -> f64 {
    f64::from(size) * 8.0 * to_f64(packets) / (micros / 1e6)
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a measurement")]
const fn span(from: &u64, to: &u64) -> f64 {
    to.saturating_sub(*from) as f64
}

#[cfg(test)]
mod tests {
    use netem::{LinkConfig, Loss as Law, Policer, Queue};
    use units::{Bitrate, DataSize, Duration, Probability};

    use super::{super::tests_support::train, *};

    const MBIT: u64 = 1_000_000;

    fn link(megabits: u64, queue: u64) -> LinkConfig {
        LinkConfig {
            rate: Some(Bitrate::from_bps(megabits * MBIT)),
            queue: Queue::DropTail { bytes: DataSize::from_bytes(queue) },
            delay: Duration::from_millis(25),
            ..LinkConfig::default()
        }
    }

    fn near(found: f64, truth: f64, share: f64) -> bool {
        (found - truth).abs() <= truth * share
    }

    #[test]
    fn a_queue_shows_rate_and_depth() {
        for (megabits, queue) in [(1, 64_000), (20, 125_000), (20, 1_000_000), (100, 62_500)] {
            let offered = 2 * megabits * MBIT;
            let span_us = 1_500_000_u64.max(queue * 8 * 3 / megabits);
            let found = train(&link(megabits, queue), offered, 1_228, span_us, 1).analyse(0.0).unwrap();
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let (rate, bytes) = ((megabits * MBIT) as f64, queue as f64);
            assert!(found.is_limited && found.policer_burst.is_none(), "{found:?}");
            assert!(near(found.rate.value, rate, 0.01) && found.rate.covers(rate), "{megabits} Mbit/s: {found:?}");
            let depth = found.queue.unwrap();
            assert!(near(depth.value, bytes, 0.1) && depth.covers(bytes), "{queue} bytes: {found:?}");
        }
    }

    #[test]
    fn random_loss_behind_the_queue_does_not_change_the_rate() {
        let config = LinkConfig { loss: Law::Iid { p: Probability::new(0.1).unwrap() }, ..link(20, 125_000) };
        let found = train(&config, 40 * MBIT, 1_228, 1_500_000, 3).analyse(0.1).unwrap();
        assert!(near(found.rate.value, 2e7, 0.04) && found.rate.covers(2e7), "{found:?}");
        assert!(near(found.queue.unwrap().value, 125_000.0, 0.15) && found.policer_burst.is_none(), "{found:?}");
    }

    #[test]
    fn a_train_below_the_rate_bounds_it() {
        let found = train(&link(20, 125_000), 10 * MBIT, 1_228, 500_000, 1).analyse(0.0).unwrap();
        assert!(!found.is_limited && found.rate.high.is_none() && found.queue.is_none(), "{found:?}");
        assert!(near(found.rate.value, 1e7, 0.02), "{found:?}");
    }

    #[test]
    fn bursts_of_losses_are_no_limit() {
        let law = Law::Burst { mean: Probability::new(0.03).unwrap(), length: 6.0 };
        for seed in 0..100 {
            let config = LinkConfig { loss: law.clone(), ..link(20, 125_000) };
            let found = train(&config, MBIT, 194, 200_000, seed).analyse(0.0);
            assert!(found.is_none_or(|found| !found.is_limited), "seed {seed}");
        }
    }

    #[test]
    fn a_queue_that_was_not_filled_is_a_lower_bound() {
        let found = train(&link(20, 8_000_000), 40 * MBIT, 1_228, 1_000_000, 1).analyse(0.0).unwrap();
        let queue = found.queue.unwrap();
        assert!(queue.high.is_none() && queue.value > 1_000_000.0 && queue.value < 8_000_000.0, "{found:?}");
    }

    #[test]
    fn a_policer_shows_rate_and_bucket() {
        for burst in [20_000, 60_000, 200_000] {
            let policer =
                Policer { rate: Bitrate::from_bps(12 * MBIT), burst: DataSize::from_bytes(burst), udp_only: false };
            let config = LinkConfig { policer: Some(policer), ..link(100, 500_000) };
            let found = train(&config, 24 * MBIT, 1_228, 1_500_000, 1).analyse(0.0).unwrap();
            assert!(near(found.rate.value, 1.2e7, 0.02) && found.queue.is_none(), "{found:?}");
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let truth = burst as f64;
            assert!(near(found.policer_burst.unwrap().value, truth, 0.15), "{burst}: {found:?}");
        }
    }

    #[test]
    fn a_small_bucket_shows_at_a_high_rate() {
        let policer =
            Policer { rate: Bitrate::from_bps(56 * MBIT), burst: DataSize::from_bytes(27_000), udp_only: false };
        let loss = Law::Burst { mean: Probability::new(0.015).unwrap(), length: 5.0 };
        let config = LinkConfig { policer: Some(policer), loss, ..link(280, 3_500_000) };
        let found = train(&config, 112 * MBIT, 1_228, 1_500_000, 1).analyse(0.015).unwrap();
        assert!(near(found.rate.value, 5.6e7, 0.03) && found.queue.is_none(), "{found:?}");
        assert!(near(found.policer_burst.unwrap().value, 27_000.0, 0.3), "{found:?}");
    }

    #[test]
    fn too_few_arrivals_say_nothing() {
        assert_eq!(Train::default().analyse(0.0), None);
        let mut short = train(&link(20, 125_000), 40 * MBIT, 1_228, 500_000, 1);
        short.arrivals.truncate(ARRIVALS - 1);
        assert_eq!(short.analyse(0.0), None);
    }

    #[test]
    fn arrivals_that_a_peer_made_up_do_no_harm() {
        let made_up = |arrivals: Vec<Arrival>| Train { size: 1_228, sent: (0..100).collect(), arrivals };
        let same = Arrival { number: u32::MAX, sent: u64::MAX, received: 0 };
        for found in [made_up(vec![same; 100]), made_up(vec![Arrival { sent: 0, ..same }; 1_000])] {
            // All at one moment: no rate.
            assert_eq!(found.analyse(0.0), None);
        }
    }
}
