//! Discrimination of random loss from congestive loss, and the share of random loss that a controller may ignore.
//!
//! Congestion shows before and during its losses: the queue grows until it is full, or a router marks packets. Loss without queueing delay,
//! without marks, and not too frequent has another cause, and a lower rate does not reduce it. The signs are taken from the packets sent
//! next to the lost one, which met the same queue.
//!
//! The tolerance finds its own limit: where a queue stands (see [`StandingQueue`]) whose delay is not seen, because the flow began behind it
//! or because its buffer is short, no more is passed over than the share of losses that came while the queue was empty.
//!
//! A buffer or policer that overflows without any queueing delay deceives both tests. Its loss counts as random up to the tolerance, which is
//! the share that such a sender may cost other flows. So the tolerance is small, bounded, and off by default.

use serde::{Deserialize, Serialize};
use units::{Duration, Instant, Probability};

use super::standing_queue::StandingQueue;
use super::{OneWay, PathDirection, Rtt};

/// The share of packets that may be lost without a reaction, as long as no queue builds; at most 15 %. Zero switches
/// discrimination off.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "Probability", into = "Probability")]
pub struct LossTolerance(Probability);

/// The share is out of range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a tolerance of {0} is out of range: 0 to 15 % of packets may be lost at random without a reaction")]
pub struct ToleranceOutOfRange(Probability);

impl LossTolerance {
    /// No loss is passed over.
    pub const OFF: Self = Self(Probability::ZERO);

    /// The largest share there is.
    pub const MOST: f64 = 0.15;

    /// The share, between 0 and 1.
    pub fn share(self) -> f64 {
        self.0.get()
    }
}

impl TryFrom<Probability> for LossTolerance {
    type Error = ToleranceOutOfRange;
    fn try_from(share: Probability) -> Result<Self, Self::Error> {
        if share.get() <= Self::MOST { Ok(Self(share)) } else { Err(ToleranceOutOfRange(share)) }
    }
}

impl From<LossTolerance> for Probability {
    fn from(tolerance: LossTolerance) -> Self {
        tolerance.0
    }
}

/// Cause of a loss, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// Queue that is full or filling, or more loss than may be ignored.
    Congestion,
    /// No sign of congestion.
    Random,
}

/// Packets over which the share of losses is averaged.
const SPAN: f64 = 256.0;
/// Samples of the RTT of which the smallest counts: jitter delays some packets, a queue all of them.
const SAMPLES: usize = 4;
/// Round trips for which marks count.
const MARK_ROUNDS: u32 = 4;
/// The wait that counts as a queue: this share of the smallest RTT …
const QUEUE_SHARE: u32 = 10;
/// … but no less than timers and schedulers add …
const QUEUE_LEAST: Duration = Duration::from_millis(1);
/// … and no more than anyone should have to wait.
const QUEUE_MOST: Duration = Duration::from_millis(15);

/// Packets over which the share of losses behind an empty queue is averaged.
const EMPTY_SPAN: f64 = 512.0;
/// Behind a queue that stands, losses are passed over up to this multiple of that share …
const EMPTY_FACTOR: f64 = 1.5;
/// … and this much: chance makes one span differ from the next.
const EMPTY_SLACK: f64 = 0.005;

/// Share of packets that are lost, as a moving average over a number of packets. It begins at zero: few packets are no evidence of random
/// loss.
#[derive(Clone, Copy, Debug, Default)]
struct LossShare(f64);

impl LossShare {
    fn add(&mut self, packets: f64, lost: f64, span: f64) {
        self.0 += (lost / packets - self.0) * (packets / span).min(1.0);
    }
}

/// Owns the signs of congestion on one path.
#[derive(Clone, Debug)]
pub(crate) struct Discrimination {
    tolerance: LossTolerance,
    /// Time for which packets waited, from the last samples of the RTT.
    waits: [Duration; SAMPLES],
    next: usize,
    lost: LossShare,
    marked_at: Option<Instant>,
    standing: StandingQueue,
    /// Losses while the queue was empty.
    empty: LossShare,
    /// Delay that counts as a queue, of the newest sample.
    threshold: Duration,
}

impl Discrimination {
    /// State before the first loss; `None` without a tolerance.
    pub(crate) fn new(tolerance: LossTolerance) -> Option<Self> {
        let on = tolerance != LossTolerance::OFF;
        on.then_some(Self {
            tolerance,
            waits: [Duration::ZERO; SAMPLES],
            next: 0,
            lost: LossShare::default(),
            marked_at: None,
            standing: StandingQueue::default(),
            empty: LossShare::default(),
            threshold: QUEUE_LEAST,
        })
    }

    /// An acknowledgement or a timeout: packets newly acknowledged and lost.
    #[expect(clippy::cast_precision_loss, reason = "packets of one acknowledgement")]
    pub(super) fn on_packets(&mut self, acked: u64, lost: u64) {
        let (packets, lost) = ((acked + lost) as f64, lost as f64);
        if packets > 0.0 {
            self.lost.add(packets, lost, SPAN);
            if self.standing.is_empty(self.threshold) {
                self.empty.add(packets, lost, EMPTY_SPAN);
            }
        }
    }

    /// Takes a new RTT sample.
    pub(super) fn on_rtt(&mut self, rtt: &Rtt, one_way: Option<&OneWay>) {
        let Some(min) = rtt.min() else { return };
        let mut wait = rtt.adjusted().saturating_sub(min);
        if let Some(forward) =
            one_way.and_then(|one_way| Some((one_way.forward_floor()?, one_way.latest(PathDirection::Reverse))))
        {
            // With the times at which packets arrived, delay on the way back is known and does not count. Either figure
            // may forget a queue that stands; so the larger one is taken.
            wait = wait.min(forward.0.max(wait.saturating_sub(forward.1)));
        }
        self.threshold = Self::threshold(min);
        self.standing.on_rtt(min + wait);
        self.waits[self.next] = wait;
        self.next = (self.next + 1) % SAMPLES;
    }

    /// Records ECN-CE marks.
    pub(super) fn on_ecn_ce(&mut self, now: Instant) {
        self.marked_at = Some(now);
    }

    /// Smallest queueing delay of the last samples.
    pub(crate) fn wait(&self) -> Duration {
        self.waits.into_iter().min().unwrap_or_default()
    }

    /// The wait from which on there is a queue, on a path with this smallest RTT.
    pub(crate) fn threshold(min_rtt: Duration) -> Duration {
        (min_rtt / QUEUE_SHARE).clamp(QUEUE_LEAST, QUEUE_MOST)
    }

    /// Cause of the losses that were just reported.
    pub(crate) fn cause(&self, now: Instant, rtt: &Rtt, growing: bool) -> Cause {
        if self.tolerated(now, rtt, growing).is_some() { Cause::Random } else { Cause::Congestion }
    }

    /// Share of losses that a controller may ignore at the moment; `None` while there is a sign of congestion, and
    /// while more is lost.
    ///
    /// A window that grows exponentially (`growing`) fills a queue within a round, and packets ahead of those that overflow it had little
    /// queueing delay: then the longest delay counts.
    pub(crate) fn tolerated(&self, now: Instant, rtt: &Rtt, growing: bool) -> Option<f64> {
        let min = rtt.min()?;
        let wait = if growing { self.waits.into_iter().max().unwrap_or_default() } else { self.wait() };
        let marked = self.marked_at.is_some_and(|at| now < at + rtt.smoothed() * MARK_ROUNDS);
        let congested =
            marked || wait > Self::threshold(min) || self.lost.0 > self.tolerance.share() || self.exceeds_its_limit();
        (!congested).then(|| self.tolerance.share())
    }

    /// Limit of the tolerance: true while more is lost behind a queue that stands than behind an empty one.
    fn exceeds_its_limit(&self) -> bool {
        self.lost.0 > self.empty.0 * EMPTY_FACTOR + EMPTY_SLACK && self.standing.stands(self.threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn tolerant(share: f64) -> Discrimination {
        let share = Probability::new(share).unwrap();
        Discrimination::new(LossTolerance::try_from(share).unwrap()).unwrap()
    }

    /// A path of 50 ms on which packets wait for so long.
    fn rtt(wait: Duration) -> Rtt {
        let mut rtt = Rtt::default();
        rtt.sample(at(0), 50 * MS, Duration::ZERO);
        rtt.sample(at(1), 50 * MS + wait, Duration::ZERO);
        rtt
    }

    /// An acknowledgement of packets that waited for so long.
    fn feedback(path: &mut Discrimination, acked: u64, lost: u64, wait: Duration) {
        path.on_rtt(&rtt(wait), None);
        path.on_packets(acked, lost);
    }

    #[test]
    fn off_by_default_and_bounded() {
        assert!(Discrimination::new(LossTolerance::default()).is_none());
        assert!(LossTolerance::try_from(Probability::new(0.15).unwrap()).is_ok());
        let error = LossTolerance::try_from(Probability::new(0.16).unwrap()).unwrap_err();
        assert!(error.to_string().contains("0 to 15 %"), "{error}");
    }

    #[test]
    fn loss_without_a_queue_is_random() {
        let mut path = tolerant(0.08);
        for _ in 0..100 {
            feedback(&mut path, 19, 1, 2 * MS);
        }
        assert!((path.lost.0 - 0.05).abs() < 0.01);
        assert_eq!(path.cause(at(0), &rtt(2 * MS), false), Cause::Random);
    }

    #[test]
    fn a_queue_makes_it_congestion_at_once_and_jitter_does_not() {
        let mut path = tolerant(0.08);
        for _ in 0..SAMPLES - 1 {
            feedback(&mut path, 19, 1, 9 * MS);
            assert_eq!(path.cause(at(0), &rtt(9 * MS), false), Cause::Random, "one packet waited less");
        }
        feedback(&mut path, 19, 1, 9 * MS);
        assert_eq!(path.cause(at(0), &rtt(9 * MS), false), Cause::Congestion);
        feedback(&mut path, 19, 1, MS);
        assert_eq!(path.cause(at(0), &rtt(MS), false), Cause::Random);
    }

    #[test]
    fn the_longest_wait_counts_while_the_window_doubles() {
        let mut path = tolerant(0.08);
        for wait in [MS, 9 * MS, MS, MS] {
            feedback(&mut path, 19, 1, wait);
        }
        assert_eq!(path.cause(at(0), &rtt(MS), false), Cause::Random);
        assert_eq!(path.cause(at(0), &rtt(MS), true), Cause::Congestion);
    }

    #[test]
    fn too_much_loss_is_congestion_whatever_the_queue() {
        let mut path = tolerant(0.08);
        feedback(&mut path, 60, 40, MS);
        assert_eq!(path.cause(at(0), &rtt(MS), false), Cause::Congestion);
    }

    /// Samples at the top of their range, below the threshold: the flow began behind a queue, or its buffer is short.
    fn behind_a_standing_queue(path: &mut Discrimination, batches: usize, lost: u64) {
        for waits in [4, 4, 4, 1].iter().cycle().take(batches) {
            feedback(path, 20 - lost, lost, *waits * MS);
        }
    }

    #[test]
    fn losses_behind_a_standing_queue_are_congestion() {
        let mut path = tolerant(0.15);
        behind_a_standing_queue(&mut path, 200, 1);
        assert_eq!(path.cause(at(0), &rtt(4 * MS), false), Cause::Congestion);
    }

    #[test]
    fn behind_a_standing_queue_random_loss_is_known_from_the_empty_one() {
        let mut path = tolerant(0.15);
        for waits in [0, 0, 0, 0, 0, 3].iter().cycle().take(200) {
            feedback(&mut path, 19, 1, *waits * MS);
        }
        assert!((path.empty.0 - 0.05).abs() < 0.01, "{:?}", path.empty);
        behind_a_standing_queue(&mut path, 200, 1);
        assert_eq!(path.cause(at(0), &rtt(4 * MS), false), Cause::Random, "no more is lost than without the queue");
        behind_a_standing_queue(&mut path, 200, 2);
        assert_eq!(path.cause(at(0), &rtt(4 * MS), false), Cause::Congestion, "twice as much is");
    }

    #[test]
    fn marks_are_congestion() {
        let mut path = tolerant(0.08);
        path.on_ecn_ce(at(100));
        assert_eq!(path.cause(at(200), &rtt(MS), false), Cause::Congestion);
        assert_eq!(path.cause(at(400), &rtt(MS), false), Cause::Random);
    }

    /// A queue on the way back is none of our making.
    #[test]
    fn receive_times_tell_the_directions_apart() {
        for (forward, reverse, expected) in [(0, 20, Cause::Random), (20, 0, Cause::Congestion)] {
            let mut path = tolerant(0.08);
            let mut one_way = OneWay::default();
            for (now, forward, reverse) in [(100, 0, 0), (200, forward, reverse)] {
                let variation = one_way.on_forward(at(now), at(now), MS * (now as u32 + 25 + forward));
                one_way.on_reverse(at(now), MS * (now as u32 - 25 - reverse));
                one_way.on_reported(variation);
            }
            for _ in 0..SAMPLES {
                path.on_rtt(&rtt(20 * MS), Some(&one_way));
            }
            assert_eq!(path.cause(at(0), &rtt(20 * MS), false), expected);
        }
    }
}
