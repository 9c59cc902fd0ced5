//! Activity of a tunnel: the time of the last bytes, and the wait for silence.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// Time of the last bytes carried, in milliseconds of the tunnel.
pub(crate) struct Activity {
    begun: Instant,
    last: AtomicU64,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), last: AtomicU64::new(0) }
    }

    /// Records activity.
    pub(crate) fn note(&self) {
        self.last.store(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Waits until there was no activity for `timeout`.
    pub(crate) async fn over(&self, timeout: Duration) {
        loop {
            let until = self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed)) + timeout;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silence_begins_with_the_last_bytes() {
        let activity = Activity::new();
        let begun = Instant::now();
        let noting = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(9)).await;
                activity.note();
            }
        };
        tokio::join!(activity.over(Duration::from_secs(10)), noting);
        assert_eq!(begun.elapsed(), Duration::from_secs(37));
    }
}
