//! Packet-timed round trips: queueing delay, delivery rate and losses of each, and the propagation delay.

use units::{Duration, Instant};

use super::super::AckSample;

/// Time after which the smallest RTT expires unless it is seen again: routes change.
const PROPAGATION_SPAN: Duration = Duration::from_secs(15);
/// RTT samples of which the smallest counts: a lost or late acknowledgement makes a sample longer, never shorter.
const GROUP: u32 = 4;

/// Propagation delay in nanoseconds at least: windows follow from its share of the RTT, which nothing has in nothing.
const LEAST_PROPAGATION: u64 = 1_000;

/// Delay differences in targets at which they are attributed to jitter partly, and mostly.
const JITTER: (f64, f64) = (1.0, 2.0);
/// Largest share of the target that jitter contributes.
const JITTER_COUNTS: f64 = 0.2;

/// A complete packet-timed round trip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Round {
    /// Packets that were acknowledged.
    pub(super) acked: u64,
    /// Packets that were declared lost.
    pub(super) lost: u64,
    /// Propagation delay of both ways in seconds.
    pub(super) propagation: f64,
    /// Queueing delay in seconds: the mean over groups of samples of the smallest in each.
    pub(super) wait: f64,
    /// The smallest queueing delay of any packet, in seconds.
    pub(super) least_wait: f64,
    /// The smallest in the last three round trips.
    pub(super) floor: f64,
    /// The best delivery rate in bytes per second; 0 without one.
    pub(super) rate: f64,
    /// The congestion window held data back.
    pub(super) limited: bool,
    /// Mean difference of successive RTT samples in seconds.
    pub(super) jitter: f64,
}

impl Round {
    /// Queueing delay in seconds, without jitter.
    ///
    /// A queue delays all packets, jitter some of them. Where delays within three round trips differ by much more than the target,
    /// most of the difference is jitter: sending less would not make it smaller.
    pub(super) fn queueing(&self, target: f64) -> f64 {
        let spread = self.wait - self.floor;
        let jitter = ((spread / target - JITTER.0) / (JITTER.1 - JITTER.0)).clamp(0.0, 1.0);
        self.floor + spread.min(target * (1.0 - jitter * (1.0 - JITTER_COUNTS))).min(spread)
    }

    /// Packets that were sent in the round trip before.
    #[expect(clippy::cast_precision_loss, reason = "packets of one round trip")]
    pub(super) fn packets(&self) -> f64 {
        (self.acked + self.lost) as f64
    }

    /// The mean round-trip time in seconds.
    pub(super) fn rtt(&self) -> f64 {
        self.propagation + self.wait
    }
}

/// Owns the measurements of the current round trip, and the propagation delay.
#[derive(Clone, Debug)]
pub(super) struct Rounds {
    /// The smallest RTT of this span and of the one before, in nanoseconds; `u64::MAX` without one.
    propagation: [u64; 2],
    span_since: Instant,
    /// Other flows keep the queue filled: the propagation delay cannot be measured, and does not expire.
    kept: bool,
    /// Delivered bytes that end the round trip: with the first packet that was sent after them.
    ends_at: u64,
    acked: u64,
    lost: u64,
    /// The smallest RTT in nanoseconds, and those of the last two round trips.
    least: u64,
    before: [u64; 2],
    /// The best delivery rate in bits per second.
    rate: u64,
    limited: bool,
    /// The smallest sample of the group that is being filled, in nanoseconds, and the samples in it.
    group: (u64, u32),
    /// Sum of the smallest samples of full groups, in nanoseconds, and their number.
    groups: (u64, u64),
    /// RTT of the last round trip with a full group, in nanoseconds; 0 before the first sample.
    mean: u64,
    /// The newest RTT sample in nanoseconds, 0 before the first.
    newest: u64,
    /// Sum of the differences of successive samples in nanoseconds, and their number.
    differences: (u64, u64),
}

impl Rounds {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            propagation: [u64::MAX; 2],
            span_since: now,
            kept: false,
            ends_at: 0,
            acked: 0,
            lost: 0,
            least: u64::MAX,
            before: [u64::MAX; 2],
            rate: 0,
            limited: false,
            group: (u64::MAX, 0),
            groups: (0, 0),
            mean: 0,
            newest: 0,
            differences: (0, 0),
        }
    }

    /// Returns whether any round trip has ended.
    pub(super) fn is_measured(&self) -> bool {
        self.mean > 0
    }

    /// Suspends or resumes the expiry of the propagation delay.
    pub(super) fn keep_propagation_delay(&mut self, keep: bool) {
        self.kept = keep;
    }

    /// Smallest queueing delay in the current round trip in seconds; 0 before the first sample.
    pub(super) fn least_wait(&self) -> f64 {
        if self.least == u64::MAX { 0.0 } else { seconds(self.least.saturating_sub(self.smallest())) }
    }

    fn smallest(&self) -> u64 {
        self.propagation[0].min(self.propagation[1])
    }

    /// A packet was lost.
    pub(super) fn on_packet_lost(&mut self) {
        self.lost += 1;
    }

    /// A loss was spurious.
    pub(super) fn on_spurious_loss(&mut self) {
        self.lost = self.lost.saturating_sub(1);
    }

    /// Discards the measurements of the current round trip: the path has changed.
    pub(super) fn discard(&mut self) {
        (self.acked, self.lost, self.least, self.rate, self.limited) = (0, 0, u64::MAX, 0, false);
        (self.group, self.groups) = ((u64::MAX, 0), (0, 0));
    }

    /// Processes an acknowledgement. Returns the round trip that it ends.
    #[inline]
    pub(super) fn on_acked(&mut self, now: Instant, ack: &AckSample) -> Option<Round> {
        self.acked += ack.packets;
        self.limited |= ack.window_limited;
        if ack.rtt.is_some() {
            let rtt = u64::try_from(ack.adjusted_rtt.as_nanos()).unwrap_or(u64::MAX);
            if self.newest > 0 {
                self.differences =
                    (self.differences.0.saturating_add(self.newest.abs_diff(rtt)), self.differences.1 + 1);
            }
            self.newest = rtt;
            self.least = self.least.min(rtt);
            self.group = (self.group.0.min(rtt), self.group.1 + 1);
            if self.group.1 == GROUP {
                self.groups = (self.groups.0.saturating_add(self.group.0), self.groups.1 + 1);
                self.group = (u64::MAX, 0);
            }
        }
        let rate = ack.rate.as_ref()?;
        if let Some(rate) = rate.delivery_rate {
            self.rate = self.rate.max(rate.as_bps());
        }
        if rate.prior_delivered < self.ends_at || self.least == u64::MAX {
            return None;
        }
        self.ends_at = ack.delivered;
        Some(self.end(now))
    }

    #[expect(clippy::cast_precision_loss, reason = "rates of less than 2^53 bit/s")]
    fn end(&mut self, now: Instant) -> Round {
        if !self.kept && now >= self.span_since + PROPAGATION_SPAN {
            self.propagation = [u64::MAX, self.propagation[0]];
            self.span_since = now;
        }
        // Small packets of the handshake are faster than full ones: they count while there is nothing else.
        if self.acked >= u64::from(GROUP) || self.propagation == [u64::MAX; 2] {
            self.propagation[0] = self.propagation[0].min(self.least);
        }
        let (differences, count) = std::mem::take(&mut self.differences);
        let (sum, groups) = std::mem::take(&mut self.groups);
        if let Some(mean) = sum.checked_div(groups) {
            self.mean = mean;
        } else if self.mean == 0 {
            self.mean = self.least;
        }
        let propagation = self.smallest();
        let round = Round {
            acked: self.acked,
            lost: self.lost,
            propagation: seconds(propagation.max(LEAST_PROPAGATION)),
            wait: seconds(self.mean.saturating_sub(propagation)),
            least_wait: seconds(self.least.saturating_sub(propagation)),
            floor: seconds(self.least.min(self.before[0]).min(self.before[1]).saturating_sub(propagation)),
            rate: self.rate as f64 / 8.0,
            limited: self.limited,
            jitter: seconds(differences.checked_div(count).unwrap_or(0)),
        };
        self.before = [self.least, self.before[0]];
        // Samples of a group that is not full count in the next round trip.
        let group = self.group;
        self.discard();
        self.group = group;
        round
    }
}

#[expect(clippy::cast_precision_loss, reason = "times of less than 2^53 ns")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
