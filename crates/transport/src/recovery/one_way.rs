//! Variation of the one-way delay in each direction, from receive timestamps of the peer (draft-ietf-quic-receive-ts-02).
//!
//! The clocks of both ends need not be synchronized. The time between a packet's departure by our clock and its arrival by the peer's clock
//! is its delay plus the unknown offset of the clocks. The offset cancels out in differences, so the reported value is the distance of a
//! packet to the smallest such value of the last 5 to 10 seconds. A drift of the clocks moves the smallest value by at most the drift in 10
//! s: 1 ms at 100 ppm, with opposite signs in the two directions. A queue that stands for longer becomes part of the smallest value, as in
//! any estimate that forgets; [`super::Rtt::min`] does not forget.

use units::{Duration, Instant};

/// Half of the time for which a smallest value is remembered.
const HALF_WINDOW: Duration = Duration::from_secs(5);

/// The variation in one direction. All values are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Variation {
    /// The smallest value of the present half of the window, and of the one before.
    smallest: [Option<i64>; 2],
    half_began: Instant,
    latest: u64,
    smoothed: u64,
    samples: u64,
}

impl Variation {
    /// Takes a delay plus an unknown constant; returns how far it is above the smallest.
    fn sample(&mut self, now: Instant, raw: i64) -> u64 {
        if now >= self.half_began + HALF_WINDOW {
            // After a pause of more than the window nothing is remembered.
            let recent = now < self.half_began + 2 * HALF_WINDOW;
            self.smallest = [None, self.smallest[0].filter(|_| recent)];
            self.half_began = now;
        }
        let smallest = self.smallest[0].map_or(raw, |smallest| smallest.min(raw));
        self.smallest[0] = Some(smallest);
        let base = self.smallest[1].map_or(smallest, |before| before.min(smallest));
        // A peer may report any time.
        let variation = u64::try_from(raw.saturating_sub(base)).unwrap_or(0);
        self.latest = variation;
        self.smoothed = if self.samples == 0 { variation } else { self.smoothed - self.smoothed / 16 + variation / 16 };
        self.samples += 1;
        variation
    }
}

/// Direction in which a packet travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathDirection {
    /// To the peer.
    Forward,
    /// From the peer.
    Reverse,
}

/// Owns the estimates of one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct OneWay {
    directions: [Variation; 2],
    /// The smallest forward variation of the packets of one acknowledgement: a queue delays all of them, jitter does not.
    floor: u64,
}

impl OneWay {
    /// Records a packet that left at `sent_at` and arrived at `received` by the peer's clock, as reported at `now`. Returns the variation.
    pub(crate) fn on_forward(&mut self, now: Instant, sent_at: Instant, received: Duration) -> Duration {
        let raw = nanos(received).saturating_sub(nanos(sent_at - Instant::ZERO));
        Duration::from_nanos(self.directions[PathDirection::Forward as usize].sample(now, raw))
    }

    /// An acknowledgement left the peer at `sent` by its clock and arrived at `now`. Returns the variation.
    pub(crate) fn on_reverse(&mut self, now: Instant, sent: Duration) -> Duration {
        let raw = nanos(now - Instant::ZERO).saturating_sub(nanos(sent));
        Duration::from_nanos(self.directions[PathDirection::Reverse as usize].sample(now, raw))
    }

    /// Ends the packets of one acknowledgement, with the smallest variation among them.
    pub(crate) fn on_reported(&mut self, smallest: Duration) {
        self.floor = u64::try_from(smallest.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Smallest variation of all packets of the last acknowledgement: the delay that a queue adds.
    pub(crate) fn forward_floor(&self) -> Option<Duration> {
        (self.directions[0].samples > 0).then(|| Duration::from_nanos(self.floor))
    }

    /// The newest sample; zero before the first.
    pub(crate) fn latest(&self, direction: PathDirection) -> Duration {
        Duration::from_nanos(self.directions[direction as usize].latest)
    }

    /// The mean of the last samples, each new one with a weight of 1/16; zero before the first.
    pub(crate) fn smoothed(&self, direction: PathDirection) -> Duration {
        Duration::from_nanos(self.directions[direction as usize].smoothed)
    }
}

/// A span in nanoseconds, at most 146 years: two of them can be subtracted.
fn nanos(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn offsets_cancel_out() {
        for offset in [0, 1_000_000] {
            let mut path = OneWay::default();
            let delays = [30, 25, 40];
            let seen: Vec<_> = delays
                .iter()
                .zip(1..)
                .map(|(&delay, round)| {
                    let (now, sent) = (at(1000 + round * 100), at(1000 + round * 100 - 60));
                    path.on_forward(now, sent, (sent - Instant::ZERO) + MS * (offset + delay))
                })
                .collect();
            assert_eq!(seen, [Duration::ZERO, Duration::ZERO, MS * 15], "offset {offset}");
            let reverse: Vec<_> =
                [20, 35, 21].map(|delay| path.on_reverse(at(5_000_000), MS * (5_000_000 - delay + offset))).into();
            assert_eq!(reverse, [Duration::ZERO, MS * 15, MS]);
        }
    }

    /// At 100 ppm the clocks part by 1 ms in 10 s: no sample is further off than that.
    #[test]
    fn drift_is_bounded() {
        for ppm in [-100_i64, 100] {
            let mut path = OneWay::default();
            for millis in (0..120_000_u64).step_by(10) {
                let peer = millis as i64 * 1000 + 3_600_000_000 + millis as i64 * ppm / 1000;
                let seen = path.on_forward(at(millis), at(millis), Duration::from_micros(peer as u64) + 30 * MS);
                assert!(seen <= MS + MS / 50, "{ppm} ppm: {seen:?} at {millis}");
            }
        }
    }

    #[test]
    fn a_standing_queue_is_forgotten_and_a_pause_too() {
        let mut path = OneWay::default();
        path.on_forward(at(0), at(0), 20 * MS);
        for millis in 1..16_000 {
            let seen = path.on_forward(at(millis), at(millis), MS * u32::try_from(millis).unwrap() + 50 * MS);
            if millis < 5_000 {
                assert_eq!(seen, 30 * MS);
            }
            if millis > 10_000 {
                assert_eq!(seen, Duration::ZERO);
            }
        }
        assert_eq!(path.on_forward(at(100_000), at(100_000), 100_090 * MS), Duration::ZERO);
    }

    #[test]
    fn a_lying_peer_breaks_nothing() {
        let mut path = OneWay::default();
        for received in [Duration::MAX, Duration::ZERO, 20 * MS, Duration::MAX] {
            path.on_forward(at(10), at(0), received);
            path.on_reverse(at(10), received);
        }
        assert_eq!(path.directions[0].samples, 4);
        assert!(path.smoothed(PathDirection::Forward) > MS);
    }
}
