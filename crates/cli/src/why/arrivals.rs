//! Arrival times: bytes in short spans, and silences in the middle of a transfer.

use serde::Serialize;
use units::{Duration, Instant};

/// Span in which arrivals are added up.
const SPAN: Duration = Duration::from_millis(10);
/// Spans that are kept: ten minutes.
const SPANS_MAX: usize = 60_000;
/// Spans over which a rate is taken.
const WINDOW: usize = 20;
/// Stalls that are kept.
const STALLS_MAX: usize = 64;
/// Shortest stall: shorter ones are round trips.
const STALL_MIN: Duration = Duration::from_millis(150);
/// Packets with data whose sizes are compared on either side of a stall.
const BESIDE: usize = 8;

/// Bytes by the time of their arrival.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    spans: Vec<u64>,
}

/// Figures of arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct ArrivalFacts {
    /// Highest rate over 200 ms that a tenth of these windows exceed, in bit/s; `None` for shorter transfers.
    pub(super) peak: Option<f64>,
    /// Mean rate from the first to the last arrival, in bit/s.
    pub(super) mean: f64,
    /// Share of the spans of 10 ms between them in which nothing arrived.
    pub(super) silent: f64,
}

impl Arrivals {
    /// Counts bytes that arrive `since` the start.
    pub(super) fn add(&mut self, since: Duration, bytes: u64) {
        let place = usize::try_from(since.as_nanos() / SPAN.as_nanos()).unwrap_or(usize::MAX);
        if place >= SPANS_MAX {
            return;
        }
        if place >= self.spans.len() {
            self.spans.resize(place + 1, 0);
        }
        self.spans[place] += bytes;
    }

    /// Figures; `None` where nothing arrived, or all of it in one span, which has no rate.
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 bytes")]
    pub(super) fn facts(&self) -> Option<ArrivalFacts> {
        let first = self.spans.iter().position(|bytes| *bytes > 0)?;
        let spans = &self.spans[first..];
        let seconds = |spans: usize| spans as f64 * SPAN.as_secs_f64();
        let total: u64 = spans.iter().sum();
        let mut rates: Vec<f64> =
            spans.windows(WINDOW).map(|window| window.iter().sum::<u64>() as f64 * 8.0 / seconds(WINDOW)).collect();
        rates.sort_by(f64::total_cmp);
        let mean = total as f64 * 8.0 / seconds(spans.len());
        let peak = rates.get(rates.len() * 9 / 10).copied();
        let silent = spans.iter().filter(|bytes| **bytes == 0).count() as f64 / spans.len() as f64;
        (spans.len() > 1).then_some(ArrivalFacts { peak, mean, silent })
    }
}

/// A silence in the middle of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Stall {
    /// Length.
    pub(super) ms: f64,
    /// Largest packet with data among the last eight before it, in bytes.
    pub(super) before: usize,
    /// Largest among the first eight after it.
    pub(super) after: usize,
    /// Packets that are missing after it and were not before.
    pub(super) missing: usize,
}

/// Finds stalls.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    list: Vec<Stall>,
    last: Option<(Instant, usize)>,
    sizes: Vec<usize>,
    /// Packets after the latest stall.
    after: usize,
    /// Time in silences longer than a round trip across which nothing was lost.
    pauses: Duration,
}

impl Stalls {
    /// A packet of `size` bytes brings new data, when `missing` packets have not arrived.
    pub(super) fn data(&mut self, now: Instant, size: usize, missing: usize, rtt: Option<Duration>) {
        if let Some((at, was_missing)) = self.last
            && now.saturating_since(at) > (rtt.unwrap_or_default() * 5 / 4).max(SPAN)
            && missing <= was_missing
        {
            self.pauses += now.saturating_since(at);
        }
        let least = STALL_MIN.max(rtt.unwrap_or_default() * 3);
        if let Some((at, was_missing)) = self.last
            && now.saturating_since(at) >= least
            && self.list.len() < STALLS_MAX
        {
            let before = self.sizes.iter().copied().max().unwrap_or(0);
            let missing = missing.saturating_sub(was_missing);
            let ms = now.saturating_since(at).as_secs_f64() * 1e3;
            self.list.push(Stall { ms, before, after: 0, missing });
            self.after = 0;
            self.sizes.clear();
        }
        if let Some(stall) = self.list.last_mut()
            && self.after < BESIDE
        {
            stall.after = stall.after.max(size);
            self.after += 1;
        }
        if self.sizes.len() == BESIDE {
            self.sizes.remove(0);
        }
        self.sizes.push(size);
        self.last = Some((now, missing));
    }

    /// Time in silences longer than a round trip across which nothing was lost: the sender had nothing to wait for from this end.
    pub(super) fn pauses(&self) -> Duration {
        self.pauses
    }

    pub(super) fn list(&self) -> Vec<Stall> {
        self.list.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_spans() {
        let mut arrivals = Arrivals::default();
        for place in 0..100 {
            // 12 Mbit/s, with every second span silent.
            arrivals.add(SPAN * (2 * place), 30_000);
        }
        let facts = arrivals.facts().unwrap();
        assert!((facts.mean / 12e6 - 1.0).abs() < 0.02 && (facts.peak.unwrap() / 12e6 - 1.0).abs() < 0.02, "{facts:?}");
        assert!((facts.silent - 0.5).abs() < 0.01, "{facts:?}");
        arrivals.add(Duration::from_secs(1 << 30), 1);
        assert_eq!(arrivals.facts(), Some(facts));
    }

    #[test]
    fn what_is_too_short_has_no_rate() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.facts(), None);
        arrivals.add(SPAN * 3, 1_200);
        assert_eq!(arrivals.facts(), None);
        arrivals.add(SPAN * 12, 1_200);
        let facts = arrivals.facts().unwrap();
        assert_eq!((facts.peak, facts.mean), (None, 2_400.0 * 8.0 / 0.1));
    }

    #[test]
    fn a_stall_knows_the_sizes_beside_it() {
        let mut stalls = Stalls::default();
        for n in 0..20 {
            stalls.data(Instant::from_millis(n), 1_452, 0, None);
        }
        for n in 0..20 {
            stalls.data(Instant::from_millis(500 + n), 1_200, 12, None);
        }
        let [stall] = stalls.list()[..] else { panic!("{:?}", stalls.list()) };
        assert_eq!((stall.before, stall.after, stall.missing), (1_452, 1_200, 12));
        assert!((stall.ms - 481.0).abs() < 1e-6);
        // Losses explain a silence; without them the sender has paused.
        assert_eq!(stalls.pauses(), Duration::ZERO);
        stalls.data(Instant::from_millis(619), 1_200, 12, Some(Duration::from_millis(90)));
        assert_eq!(stalls.pauses(), Duration::ZERO);
        stalls.data(Instant::from_millis(739), 1_200, 12, Some(Duration::from_millis(90)));
        assert_eq!(stalls.pauses(), Duration::from_millis(120));
    }
}
