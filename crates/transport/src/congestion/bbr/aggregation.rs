//! Aggregation of acknowledgements on the return path or at the peer: bytes acknowledged at once beyond the estimated bandwidth (draft
//! "BBR.extra_acked").

use units::Instant;

use super::model::bytes_in;
use super::rounds::RoundMax;

/// ExtraAckedFilterLen, in rounds, once the bandwidth is known …
const FILTER: u64 = 10;
/// … and before.
const STARTUP_FILTER: u64 = 1;

/// Owner of the estimate.
#[derive(Clone, Debug)]
pub(super) struct Aggregation {
    since: Instant,
    delivered: u64,
    filter: RoundMax,
}

impl Aggregation {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, delivered: 0, filter: RoundMax::default() }
    }

    /// The connection sends again after idling: the pause is no aggregation.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = now;
    }

    /// Takes in an acknowledgement of `newly_acked` bytes while the bandwidth is taken to be `bw`.
    #[inline]
    pub(super) fn update(&mut self, now: Instant, bw: u64, newly_acked: u64, window: u64, round: u64, filled: bool) {
        let mut expected = bytes_in(bw, now.nanos_since(self.since));
        if self.delivered <= expected {
            // Acknowledgements come no faster than expected: no aggregation is going on.
            self.delivered = 0;
            self.since = now;
            expected = 0;
        }
        self.delivered += newly_acked;
        let extra = (self.delivered - expected).min(window);
        self.filter.update(round, if filled { FILTER } else { STARTUP_FILTER }, extra);
    }

    /// Bytes that are acknowledged at a time beyond what the bandwidth explains.
    #[inline]
    pub(super) fn extra_acked(&self) -> u64 {
        self.filter.best()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_of_acknowledgements_show_their_size() {
        // 8 Mbit/s: 1000 bytes per millisecond. Acknowledged every 20 ms, 20 packets at a time.
        let mut aggregation = Aggregation::new(Instant::ZERO);
        for burst in 1..=40 {
            for _ in 0..20 {
                aggregation.update(Instant::from_millis(burst * 20), 8_000_000, 1000, 1_000_000, burst / 4, true);
            }
        }
        assert_eq!(aggregation.extra_acked(), 20_000);
    }

    #[test]
    fn steady_acknowledgements_show_next_to_none() {
        let mut aggregation = Aggregation::new(Instant::ZERO);
        for millis in 1..=1000 {
            aggregation.update(Instant::from_millis(millis), 8_000_000, 1000, 1_000_000, millis / 50, true);
        }
        assert_eq!(aggregation.extra_acked(), 1000);
    }
}
