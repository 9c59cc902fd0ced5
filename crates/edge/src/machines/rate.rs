//! Rate of bytes that all threads share.
//!
//! The state is one number, the theoretical arrival time of GCRA (ITU-T I.371): the time at which all bytes would have been sent at the
//! permitted rate.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

/// Nanoseconds by which bytes may be early: the burst.
const TOLERANCE: u64 = 100_000_000;

/// Rate of bytes.
pub(super) struct ByteRate {
    begun: Instant,
    /// Theoretical arrival time, in nanoseconds since `begun`.
    arrival: AtomicU64,
}

impl ByteRate {
    pub(super) fn new(begun: Instant) -> Self {
        Self { begun, arrival: AtomicU64::new(0) }
    }

    /// Takes bytes of a rate per second. `false` when they exceed it; then none are taken.
    pub(super) fn take(&self, now: Instant, bytes: u64, per_second: u64) -> bool {
        let now = u64::try_from(now.saturating_duration_since(self.begun).as_nanos()).unwrap_or(u64::MAX);
        let cost = bytes.saturating_mul(1_000_000_000) / per_second.max(1);
        let next = |arrival: u64| {
            let from = arrival.max(now);
            (from - now <= TOLERANCE).then(|| from.saturating_add(cost))
        };
        self.arrival.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let begun = Instant::now();
        let rate = ByteRate::new(begun);
        let taken = |at: u64| {
            let now = begun + Duration::from_millis(at);
            (0..1_000).take_while(|_| rate.take(now, 1_000, 1_000_000)).count()
        };
        // 100 ms at 1 MB/s are 100 of these; one more begins within the tolerance.
        assert_eq!(taken(0), 101);
        assert_eq!(taken(0), 0);
        assert_eq!(taken(10), 10);
        assert_eq!(taken(10_000), 101, "rest is not saved up");
    }
}
