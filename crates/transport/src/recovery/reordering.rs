//! Reordering thresholds of loss detection, adapted by spurious losses.

use units::{Duration, Instant};

use super::rtt::{GRANULARITY, Rtt};

/// RFC 9002 §6.1.1 RECOMMENDED-1, SHOULD NOT-1: packets that may overtake another.
const PACKET_THRESHOLD: u64 = 3;
/// More is beyond what networks reorder; time decides then.
const MAX_PACKET_THRESHOLD: u64 = 256;
/// RFC 9002 §6.1.2 RECOMMENDED-1: 9/8 of the RTT, in eighths.
const TIME_THRESHOLD_EIGHTHS: u32 = 9;
/// Twice the RTT: waiting longer would be slower than a probe timeout.
const MAX_TIME_THRESHOLD_EIGHTHS: u32 = 16;
/// Reactions to congestion in a row, none of them spurious, after which the thresholds fall back (as RFC 8985 §6.2 does).
const QUIET_EPISODES: u32 = 16;

/// Owns the thresholds of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reordering {
    packet_threshold: u64,
    time_threshold_eighths: u32,
    quiet_episodes: u32,
    /// Time that repair symbols take to arrive, in packets and as a duration.
    patience: (u64, Duration),
}

impl Default for Reordering {
    fn default() -> Self {
        Self {
            packet_threshold: PACKET_THRESHOLD,
            time_threshold_eighths: TIME_THRESHOLD_EIGHTHS,
            quiet_episodes: 0,
            patience: (0, Duration::ZERO),
        }
    }
}

impl Reordering {
    /// Packets after which an unacknowledged one counts as lost.
    #[inline]
    pub(crate) fn packet_threshold(&self) -> u64 {
        self.packet_threshold.max(self.patience.0)
    }

    /// Sets how many packets and how much time repair symbols take to arrive: a packet does not count as lost before, or
    /// retransmissions would always be spurious.
    pub(super) fn set_patience(&mut self, packets: u64, time: Duration) {
        self.patience = (packets.min(MAX_PACKET_THRESHOLD), time);
    }

    /// Time after which an unacknowledged packet counts as lost.
    #[inline]
    pub(crate) fn time_threshold(&self, rtt: &Rtt) -> Duration {
        // RFC 9002 §6.1.2 MUST-1: no packet is lost by time sooner than the granularity of timers
        Duration::from_nanos(rtt.conservative_nanos() / 8 * u64::from(self.time_threshold_eighths)).max(GRANULARITY)
            + self.patience.1
    }

    /// A packet counted as lost and arrived: `distance` packets after it had been acknowledged by then, and `age` had
    /// passed since it left. Both thresholds grow so that it would not have been declared lost (RFC 9002 §6.1).
    pub(crate) fn on_spurious_loss(&mut self, distance: u64, age: Duration, rtt: &Rtt) {
        self.quiet_episodes = 0;
        self.packet_threshold = self.packet_threshold.max(distance + 1).min(MAX_PACKET_THRESHOLD);
        let eighth = u128::from(rtt.conservative_nanos() / 8).max(1);
        let needed = u32::try_from(age.as_nanos().div_ceil(eighth)).unwrap_or(u32::MAX);
        self.time_threshold_eighths =
            self.time_threshold_eighths.max(needed.saturating_add(1).min(MAX_TIME_THRESHOLD_EIGHTHS));
    }

    /// A reaction to congestion began.
    pub(crate) fn on_episode(&mut self) {
        self.quiet_episodes += 1;
        if self.quiet_episodes >= QUIET_EPISODES {
            *self = Self { patience: self.patience, ..Self::default() };
        }
    }
}

/// Time at which a packet that left at `sent_at` counts as lost by time.
#[inline]
pub(super) fn lost_at(sent_at: Instant, threshold: Duration) -> Instant {
    sent_at + threshold
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rtt() -> Rtt {
        let mut rtt = Rtt::default();
        rtt.sample(Instant::ZERO, 80 * MS, Duration::ZERO);
        rtt
    }

    // RFC 9002 §6.1.1 RECOMMENDED-1, SHOULD NOT-1; RFC 9002 §6.1.2 MUST-1, RECOMMENDED-1
    #[test]
    fn starts_with_the_standard() {
        let reordering = Reordering::default();
        assert_eq!(reordering.packet_threshold(), 3);
        assert_eq!(reordering.time_threshold(&rtt()), 90 * MS);
        let mut short = Rtt::default();
        short.sample(Instant::ZERO, MS / 10, Duration::ZERO);
        assert_eq!(reordering.time_threshold(&short), MS);
    }

    #[test]
    fn grows_to_what_was_seen_and_no_further_than_its_bounds() {
        let mut reordering = Reordering::default();
        reordering.on_spurious_loss(10, 95 * MS, &rtt());
        assert_eq!((reordering.packet_threshold(), reordering.time_threshold(&rtt())), (11, 110 * MS));
        reordering.on_spurious_loss(4, 40 * MS, &rtt());
        assert_eq!((reordering.packet_threshold(), reordering.time_threshold(&rtt())), (11, 110 * MS));
        reordering.on_spurious_loss(1 << 40, 40_000 * MS, &rtt());
        assert_eq!((reordering.packet_threshold(), reordering.time_threshold(&rtt())), (256, 160 * MS));
    }

    #[test]
    fn falls_back_when_reordering_is_over() {
        let mut reordering = Reordering::default();
        reordering.on_spurious_loss(10, 95 * MS, &rtt());
        for _ in 0..15 {
            reordering.on_episode();
        }
        assert_eq!(reordering.packet_threshold(), 11);
        reordering.on_episode();
        assert_eq!(reordering, Reordering::default());
    }
}
