//! Fall-back of a back end to TCP: why QUIC fails, and when it is tried again.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// First time without QUIC after a failure. Each further failure doubles it …
const FIRST: Duration = Duration::from_secs(1);
/// … up to this.
const LONGEST: Duration = Duration::from_secs(300);

/// Advice for a request without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// Wait for a connection over QUIC.
    Wait,
    /// Begin one, and go over TCP meanwhile.
    Beside,
    /// Go over TCP.
    Tcp,
}

/// State of the fall-back.
#[derive(Default)]
pub(super) struct FallBack(Mutex<Option<State>>);

struct State {
    failure: String,
    failures: u32,
    retry_at: Instant,
    /// TCP fails, too.
    tcp_fails: bool,
}

impl FallBack {
    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advice for a request that needs a connection, of which one may be `in_progress`. `attempt` is the time limit of a connection attempt,
    /// during which no other worker begins one.
    pub(super) fn advice(&self, now: Instant, attempt: Duration, in_progress: bool) -> Advice {
        match &mut *self.lock() {
            None => Advice::Wait,
            Some(state) if state.tcp_fails => Advice::Wait,
            Some(state) if !in_progress && state.retry_at <= now => {
                state.retry_at = now + attempt;
                Advice::Beside
            }
            Some(_) => Advice::Tcp,
        }
    }

    /// Notes a failure of QUIC. Returns the time for which TCP is used.
    pub(super) fn begin(&self, now: Instant, failure: &str) -> Duration {
        let mut state = self.lock();
        let failures = state.as_ref().map_or(0, |state| state.failures);
        let tcp_fails = state.as_ref().is_some_and(|state| state.tcp_fails);
        let wait = FIRST.saturating_mul(1 << failures.min(16)).min(LONGEST);
        let retry_at = now + wait;
        *state = Some(State { failure: failure.to_owned(), failures: failures.saturating_add(1), retry_at, tcp_fails });
        wait
    }

    /// Notes whether TCP works, which matters while it is used.
    pub(super) fn on_tcp(&self, works: bool) {
        if let Some(state) = &mut *self.lock() {
            state.tcp_fails = !works;
        }
    }

    /// Ends the fall-back, because a request was answered over QUIC. Returns whether there was one.
    pub(super) fn end(&self) -> bool {
        self.lock().take().is_some()
    }

    /// The last failure, as long as there was no answer over QUIC.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().as_ref().map(|state| state.failure.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quic_is_tried_again_ever_later_by_one_at_a_time_and_an_answer_ends_it() {
        let (fall_back, start) = (FallBack::default(), Instant::now());
        let advice = |seconds| fall_back.advice(start + Duration::from_secs(seconds), Duration::from_secs(5), false);
        assert_eq!((advice(0), fall_back.failure()), (Advice::Wait, None));
        let waits: Vec<u64> = (0..12).map(|_| fall_back.begin(start, "timeout").as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert_eq!((advice(299), fall_back.failure().as_deref()), (Advice::Tcp, Some("timeout")));
        assert_eq!(fall_back.advice(start + Duration::from_secs(300), Duration::ZERO, true), Advice::Tcp);
        assert_eq!((advice(300), advice(301), advice(305)), (Advice::Beside, Advice::Tcp, Advice::Beside));
        // Without TCP nothing is left but to wait for QUIC.
        fall_back.on_tcp(false);
        assert_eq!(advice(306), Advice::Wait);
        fall_back.begin(start, "timeout");
        assert_eq!(advice(0), Advice::Wait);
        fall_back.on_tcp(true);
        assert_eq!(advice(0), Advice::Tcp);
        assert!(fall_back.end() && !fall_back.end());
        fall_back.on_tcp(false);
        assert_eq!((advice(0), fall_back.failure()), (Advice::Wait, None));
        assert_eq!(fall_back.begin(start, "refused"), FIRST);
    }
}
