//! An application-limited sender, controlled by an experiment.

use std::sync::{Arc, Mutex, PoisonError};

use units::{Bitrate, Duration, Instant};

/// Bytes that a limited application writes at a time.
const CHUNK: u64 = 1_000;

/// A limit on how fast the bulk workload writes, which may change while it runs. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Throttle(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// `None`: no limit.
    limit: Option<Limit>,
    news: bool,
}

#[derive(Debug)]
struct Limit {
    rate: Bitrate,
    since: Instant,
    written: u64,
}

impl Limit {
    /// Bytes that may be written at `now`.
    fn allowed(&self, now: Instant) -> u64 {
        let due = self.rate.in_time(now.saturating_since(self.since)).as_bytes();
        let allowed = due.saturating_sub(self.written);
        if allowed >= CHUNK { allowed } else { 0 }
    }
}

impl Throttle {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// From `now` on the application writes at most at this rate; zero: it pauses.
    pub fn limit(&self, now: Instant, rate: Bitrate) {
        self.with(|state| {
            state.limit = Some(Limit { rate, since: now, written: 0 });
            state.news = true;
        });
    }

    /// The application writes as fast as it can.
    pub fn free(&self) {
        self.with(|state| {
            state.limit = None;
            state.news = true;
        });
    }

    /// Returns whether the limit has changed since this was asked last: the application has to be called.
    pub fn take_news(&self) -> bool {
        self.with(|state| std::mem::take(&mut state.news))
    }

    /// Bytes that may be written at `now`.
    pub(crate) fn allowed(&self, now: Instant) -> u64 {
        self.with(|state| state.limit.as_ref().map_or(u64::MAX, |limit| limit.allowed(now)))
    }

    /// Counts bytes as written.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.with(|state| {
            if let Some(limit) = &mut state.limit {
                limit.written += bytes;
            }
        });
    }

    /// Time at which a limited application may write the next bytes; `None` when it may at once, or never.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.with(|state| {
            let limit = state.limit.as_ref().filter(|limit| limit.rate.as_bps() > 0)?;
            let nanos = u128::from(limit.written + CHUNK) * 8_000_000_000 / u128::from(limit.rate.as_bps());
            Some(limit.since + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX) + 1_000))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept_and_lifted() {
        let throttle = Throttle::default();
        let at = |millis| Instant::from_millis(millis);
        assert_eq!((throttle.allowed(at(0)), throttle.next()), (u64::MAX, None));
        throttle.limit(at(0), Bitrate::from_mbps(8));
        assert!(throttle.take_news() && !throttle.take_news());
        assert_eq!(throttle.allowed(at(0)), 0);
        let next = throttle.next().unwrap();
        assert!(throttle.allowed(next) >= CHUNK);
        throttle.wrote(1_000);
        assert_eq!(throttle.allowed(next), 0);
        throttle.limit(at(5), Bitrate::from_bps(0));
        assert_eq!((throttle.allowed(at(9000)), throttle.next()), (0, None));
        throttle.free();
        assert_eq!(throttle.allowed(at(6)), u64::MAX);
    }
}
