//! Pace of a link: a constant rate, one that changes, or the opportunities of a trace.

use units::{Bitrate, Instant, Seed};

use crate::{
    config::{Fate, LinkConfig, Outage, RateTrace},
    varying::RateDraws,
};

/// Bits times nanoseconds per second: one byte at one bit per second takes this many nanoseconds.
const BYTE_AT_ONE_BPS: u64 = 8 * 1_000_000_000;
/// Nanoseconds of a trace's unit.
const MILLI: u64 = 1_000_000;

/// Sends bytes one after the other and knows when it is free again, in nanoseconds *and* the fraction of one that is left
/// over, so that a million packets take exactly as long as their bits do and no rounding adds up.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// Free from this nanosecond on …
    free: u64,
    /// … and this many parts of the rate of the next one.
    fraction: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Bits per second, more than zero.
    Constant(u64),
    /// Spans of time, each with a rate of its own.
    Varying { rates: Vec<(u64, u64)>, outages: Vec<Outage> },
    /// Periods, each with a rate that is drawn.
    Drawn { rates: Box<RateDraws>, outages: Vec<Outage> },
    /// Opportunities, and how much of the current one is left.
    Trace { trace: RateTrace, turn: u64, index: usize, left: u32, outages: Vec<Outage> },
}

/// A packet's stay at the transmitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stay {
    /// Time at which its first bit is sent, rounded down to a nanosecond.
    pub(crate) starts: Instant,
    /// Time at which its last bit has been sent, rounded up to a nanosecond.
    pub(crate) ends: Instant,
}

impl Pace {
    /// `None` for a link without a rate.
    pub(crate) fn new(config: &LinkConfig, seed: &Seed) -> Option<Self> {
        let held = config.outages.iter().filter(|outage| outage.packets == Fate::Held);
        let outages: Vec<Outage> = held.copied().collect();
        let kind = if let Some(trace) = &config.rate_trace {
            Kind::Trace { trace: trace.clone(), turn: 0, index: 0, left: RateTrace::OPPORTUNITY, outages }
        } else if let Some(varying) = &config.varying_rate {
            Kind::Drawn { rates: Box::new(RateDraws::new(varying, seed)), outages }
        } else {
            let rate = config.rate.map(Bitrate::as_bps)?;
            let changes = config.changes.iter().filter_map(|change| {
                Some((u64::try_from(change.at.as_nanos()).unwrap_or(u64::MAX), change.rate?.as_bps()))
            });
            let rates: Vec<(u64, u64)> = core::iter::once((0, rate)).chain(changes).collect();
            if rates.len() == 1 && outages.is_empty() { Kind::Constant(rate) } else { Kind::Varying { rates, outages } }
        };
        Some(Self { free: 0, fraction: 0, kind })
    }

    /// Sets the rate from now on.
    pub(crate) fn set_rate(&mut self, rate: Bitrate) {
        // The fraction of a nanosecond that is left over counts in parts of the rate.
        self.free = self.free_at();
        self.fraction = 0;
        self.kind = Kind::Constant(rate.as_bps().max(1));
    }

    /// Returns whether nothing is being sent at `now`. If so, what is sent next starts now.
    #[inline]
    pub(crate) fn idle(&mut self, now: u64) -> bool {
        let idle = self.free < now || (self.free == now && self.fraction == 0);
        if idle {
            (self.free, self.fraction) = (now, 0);
        }
        idle
    }

    /// Time at which it is free again, rounded up.
    #[inline]
    pub(crate) const fn free_at(&self) -> u64 {
        self.free.saturating_add((self.fraction > 0) as u64)
    }

    /// Sends a packet when everything before it has been sent.
    #[inline]
    pub(crate) fn send(&mut self, size: u32) -> Stay {
        let starts = match &mut self.kind {
            Kind::Constant(rate) => {
                let (starts, rate) = (self.free, *rate);
                // At most 2^32 · 8·10^9 + rate: 3.5·10^19 does not fit 64 bits for absurd sizes, real ones (64 KiB) do.
                let parts = u128::from(size) * u128::from(BYTE_AT_ONE_BPS) + u128::from(self.fraction);
                let (nanos, fraction) = divide(parts, rate);
                self.free = self.free.saturating_add(nanos);
                self.fraction = fraction;
                starts
            }
            Kind::Varying { rates, outages } => {
                let at = |now| listed(rates, now);
                let (starts, ends, fraction) = varying(at, outages, self.free, self.fraction, size);
                (self.free, self.fraction) = (ends, fraction);
                starts
            }
            Kind::Drawn { rates, outages } => {
                let (starts, ends, fraction) = varying(|now| rates.at(now), outages, self.free, self.fraction, size);
                (self.free, self.fraction) = (ends, fraction);
                starts
            }
            Kind::Trace { trace, turn, index, left, outages } => {
                let (starts, ends) = opportunities(trace, (turn, index, left), outages, self.free, size);
                self.free = ends;
                starts
            }
        };
        Stay { starts: Instant::from_nanos(starts), ends: Instant::from_nanos(self.free_at()) }
    }
}

/// Nanoseconds that `parts` take at a rate, and the remainder.
#[inline]
fn divide(parts: u128, rate: u64) -> (u64, u64) {
    match u64::try_from(parts) {
        Ok(parts) => (parts / rate, parts % rate),
        Err(_) => wide(parts, rate),
    }
}

/// The same division for numbers that need more than 64 bits.
#[cold]
#[expect(clippy::cast_possible_truncation, reason = "a remainder is less than its 64-bit divisor")]
fn wide(parts: u128, rate: u64) -> (u64, u64) {
    let rate = u128::from(rate);
    (u64::try_from(parts / rate).unwrap_or(u64::MAX), (parts % rate) as u64)
}

/// The rate at a nanosecond by a list of changes, and the nanosecond of the next change.
fn listed(rates: &[(u64, u64)], now: u64) -> (u64, u64) {
    let place = rates.partition_point(|(from, _)| *from <= now);
    (rates[place.saturating_sub(1)].1, rates.get(place).map_or(u64::MAX, |(from, _)| *from))
}

/// Sends through spans of different rates, of which `rate_at` tells rate and end: when the first bit starts, and where the last one ends.
fn varying(
    mut rate_at: impl FnMut(u64) -> (u64, u64),
    outages: &[Outage],
    free: u64,
    fraction: u64,
    size: u32,
) -> (u64, u64, u64) {
    let (mut at, mut fraction) = (free, fraction);
    let mut parts = u128::from(size) * u128::from(BYTE_AT_ONE_BPS);
    let mut starts = None;
    loop {
        let moment = Instant::from_nanos(at);
        if let Some(end) = outages.iter().filter_map(|outage| outage.end(moment)).max() {
            (at, fraction) = (end.as_nanos(), 0);
            continue;
        }
        starts = starts.or(Some(at));
        let (rate, change) = rate_at(at);
        let outage = outages.iter().filter_map(|outage| outage.begin(moment)).min();
        let end = change.min(outage.map_or(u64::MAX, Instant::as_nanos));
        let room = (u128::from(end - at) * u128::from(rate)).saturating_sub(u128::from(fraction));
        if parts <= room || end == u64::MAX {
            let (nanos, rest) = divide(parts + u128::from(fraction), rate);
            return (starts.unwrap_or(at), at.saturating_add(nanos), rest);
        }
        parts -= room;
        (at, fraction) = (end, 0);
    }
}

/// Sends with the opportunities of a trace. An unused opportunity is lost.
fn opportunities(
    trace: &RateTrace,
    (turn, index, left): (&mut u64, &mut usize, &mut u32),
    outages: &[Outage],
    free: u64,
    mut size: u32,
) -> (u64, u64) {
    let list = &trace.opportunities;
    let period = u64::from(list.last().copied().unwrap_or(1).max(1)) * MILLI;
    let time = |turn: u64, index: usize| turn.saturating_mul(period).saturating_add(u64::from(list[index]) * MILLI);
    let passed = |at: u64| at < free || outages.iter().any(|outage| outage.end(Instant::from_nanos(at)).is_some());
    if time(*turn, *index) < free {
        // Whole turns are skipped at once, however long nothing was sent.
        if free / period > *turn {
            (*turn, *index) = (free / period, 0);
            // The last opportunity of a turn comes at the same moment as the begin of the next.
            if *turn > 0 && time(*turn - 1, list.len() - 1) >= free {
                let first = list.partition_point(|millis| u64::from(*millis) * MILLI < period);
                (*turn, *index) = (*turn - 1, first);
            }
        }
        *left = RateTrace::OPPORTUNITY;
    }
    let mut starts = None;
    // An outage that comes again may cover every opportunity there is: then the packet never leaves.
    let give_up = turn.saturating_add(10_000);
    while *turn < give_up {
        let at = time(*turn, *index);
        if *left > 0 && !passed(at) {
            starts = starts.or(Some(at));
            let taken = size.min(*left);
            size -= taken;
            *left -= taken;
            if size == 0 {
                return (starts.unwrap_or(at), at);
            }
        }
        *index += 1;
        if *index == list.len() {
            (*turn, *index) = (*turn + 1, 0);
        }
        *left = RateTrace::OPPORTUNITY;
    }
    (u64::MAX, u64::MAX)
}

#[cfg(test)]
mod tests {
    use units::Duration;

    use super::*;
    use crate::config::{Change, Queue};

    const MS: Duration = Duration::from_millis(1);

    fn link(mbps: u64) -> LinkConfig {
        let queue = Queue::DropTail { bytes: units::DataSize::from_bytes(1 << 40) };
        LinkConfig { rate: Some(Bitrate::from_mbps(mbps)), queue, ..LinkConfig::default() }
    }

    fn stays(config: &LinkConfig, sizes: &[u32]) -> Vec<(u64, u64)> {
        let mut pace = Pace::new(config, &Seed::from_number(1)).unwrap();
        let micros = |at: Instant| at.as_nanos() / 1_000;
        sizes.iter().map(|size| pace.send(*size)).map(|stay| (micros(stay.starts), micros(stay.ends))).collect()
    }

    #[test]
    fn a_packet_that_meets_a_change_is_sent_at_both_rates() {
        // 12 Mbit/s: 1500 bytes take 1 ms. From 1.5 ms on it is a tenth.
        let change = Change { at: MS * 3 / 2, rate: Some(Bitrate::from_bps(1_200_000)), delay: None, mtu: None };
        let config = LinkConfig { changes: vec![change], ..link(12) };
        assert_eq!(stays(&config, &[1500, 1500, 1500]), [(0, 1_000), (1_000, 6_500), (6_500, 16_500)]);
    }

    #[test]
    fn a_packet_waits_for_the_end_of_an_outage() {
        let outage = Outage { at: MS / 2, lasts: 10 * MS, every: Some(20 * MS), packets: Fate::Held };
        let config = LinkConfig { outages: vec![outage], ..link(12) };
        // Half of the first packet leaves before, half behind; the second has ended before the outage comes again.
        assert_eq!(stays(&config, &[1500, 1500]), [(0, 11_000), (11_000, 12_000)]);
        let mut pace = Pace::new(&config, &Seed::from_number(1)).unwrap();
        assert!(pace.idle(21 * 1_000_000));
        assert_eq!(pace.send(1500).starts.as_nanos(), 30_500_000);
    }

    #[test]
    fn a_packet_that_meets_another_period_is_sent_at_both_rates() {
        use units::Probability;

        use crate::config::VaryingRate;
        let share = |share| Probability::new(share).unwrap();
        let quantiles = vec![(share(0.0), Bitrate::from_bps(1_000_000)), (share(1.0), Bitrate::from_bps(9_000_000))];
        let varying = VaryingRate { quantiles, period: MS * 5, stays: Probability::ZERO };
        let seed = Seed::from_number(4);
        let mut draws = RateDraws::new(&varying, &seed);
        let config = LinkConfig { rate: None, varying_rate: Some(varying), ..link(1) };
        let mut pace = Pace::new(&config, &seed).unwrap();
        let mut sent = 0_u64;
        while pace.free_at() < 500_000_000 {
            pace.send(1_500);
            sent += 1_500 * 8;
        }
        // The area below the rates of the periods, up to the last bit.
        let end = pace.free_at();
        let area: u128 = (0..=end / 5_000_000)
            .map(|period| {
                let (from, until) = (period * 5_000_000, ((period + 1) * 5_000_000).min(end));
                u128::from(draws.at(from).0) * u128::from(until - from)
            })
            .sum();
        let carried = u64::try_from(area / 1_000_000_000).unwrap();
        assert!(sent.abs_diff(carried) <= 200, "{sent} {carried}");
    }

    #[test]
    fn the_opportunities_of_a_trace() {
        let trace = RateTrace::parse("t", "2\n2\n5\n10\n").unwrap();
        assert_eq!(trace.mean().as_bps(), 4 * 1500 * 8 * 100);
        let config = LinkConfig { rate: None, rate_trace: Some(trace), ..link(1) };
        let ms = |list: Vec<(u64, u64)>| list.into_iter().map(|(a, b)| (a / 1000, b / 1000)).collect::<Vec<_>>();
        // Two at 2 ms, one at 5 and one at 10; then the turn begins again at 10 ms.
        assert_eq!(ms(stays(&config, &[1500; 6])), [(2, 2), (2, 2), (5, 5), (10, 10), (12, 12), (12, 12)]);
        // Small packets share an opportunity, a larger one takes parts of two.
        assert_eq!(ms(stays(&config, &[700, 700, 700, 900])), [(2, 2), (2, 2), (2, 2), (2, 2)]);
        assert_eq!(ms(stays(&config, &[1000, 2500])), [(2, 2), (2, 5)]);
        // What nobody uses is gone: at 3 ms the next is at 5; after a long silence too.
        let mut pace = Pace::new(&config, &Seed::from_number(1)).unwrap();
        assert!(pace.idle(3_000_000));
        assert_eq!(pace.send(100).ends.as_nanos(), 5_000_000);
        assert!(pace.idle(1_000_003_000_000));
        assert_eq!(pace.send(100).ends.as_nanos(), 1_000_005_000_000);
        // Exactly at the end of a turn the last opportunity of it is still there.
        let mut pace = Pace::new(&config, &Seed::from_number(1)).unwrap();
        assert!(pace.idle(30_000_000));
        assert_eq!(pace.send(1500).ends.as_nanos(), 30_000_000);
        assert_eq!(pace.send(1500).ends.as_nanos(), 32_000_000);
    }

    #[test]
    fn traces_that_are_none() {
        for (text, error) in [("", "no period"), ("0\n0", "no period"), ("5\n3", "line 2"), ("1\nx", "line 2: `x`")] {
            assert!(RateTrace::parse("t", text).unwrap_err().to_string().contains(error), "{text}");
        }
    }
}
