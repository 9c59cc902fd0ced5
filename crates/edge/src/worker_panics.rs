//! Panics of workers while they drive a UDP socket.
//!
//! Nothing reads the socket of such a worker any more, although the kernel passes a share of all clients to it. So the process hands over to a
//! new one, as in an upgrade: the connections of its other workers continue, and the new process resets those of the lost one. Where this
//! would begin a circle, or fails, the process ends itself, to be started again by the service manager.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use prometheus_client::metrics::counter::Counter;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// After a panic, none may follow within this time: a packet that panics each process would start one after another.
const CIRCLE: Duration = Duration::from_secs(60);

/// Panics until a hand-over, as the newer process receives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct PanicHistory {
    pub(crate) count: u64,
    /// Milliseconds since the last one.
    pub(crate) last_ms: Option<u64>,
}

/// Role of the process when a worker panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Serving,
    /// Hands over because of a panic.
    Replacing,
    /// Another process reads the sockets, or this one stops.
    Leaving,
}

/// Response to a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaction {
    HandOver,
    /// The socket has, or will have, another reader.
    Continue,
    End,
}

#[derive(Debug)]
struct State {
    role: Role,
    last: Option<Instant>,
}

impl State {
    fn react(&mut self, now: Instant) -> Reaction {
        let before = self.last.replace(now);
        let is_circle = before.is_some_and(|before| now.saturating_duration_since(before) < CIRCLE);
        match self.role {
            Role::Leaving | Role::Replacing => Reaction::Continue,
            Role::Serving if is_circle => Reaction::End,
            Role::Serving => {
                self.role = Role::Replacing;
                Reaction::HandOver
            }
        }
    }
}

/// Account of the panics of workers.
#[derive(Debug)]
pub(crate) struct WorkerPanics {
    counter: Counter,
    state: Mutex<State>,
    reported: Notify,
}

impl WorkerPanics {
    /// Continues the history of the process before this one.
    pub(crate) fn new(history: PanicHistory, counter: Counter) -> Self {
        counter.inc_by(history.count);
        let ago = history.last_ms.map(Duration::from_millis);
        let last = ago.and_then(|ago| Instant::now().checked_sub(ago));
        Self { counter, state: Mutex::new(State { role: Role::Serving, last }), reported: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of panics, those of older processes included.
    pub(crate) fn count(&self) -> u64 {
        self.counter.get()
    }

    /// History for a newer process.
    pub(crate) fn history(&self) -> PanicHistory {
        let since = self.state().last.map(|last| last.elapsed().as_millis());
        PanicHistory { count: self.count(), last_ms: since.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX)) }
    }

    /// Reports a panic; may end the process. Called on the thread that panics.
    pub(crate) fn report(&self) {
        self.counter.inc();
        let what = "a worker has panicked while it drove its UDP socket, and its connections over QUIC are lost";
        match self.state().react(Instant::now()) {
            Reaction::HandOver => {
                tracing::error!("{what}: a new process takes over");
                self.reported.notify_one();
            }
            Reaction::Continue => tracing::error!("{what}"),
            Reaction::End => {
                let seconds = CIRCLE.as_secs();
                tracing::error!(
                    "{what}, less than {seconds} s after another one: the process ends, to be started again"
                );
                std::process::abort();
            }
        }
    }

    /// Waits for a panic after which a new process has to take over.
    pub(crate) async fn replaced(&self) {
        self.reported.notified().await;
    }

    /// Notes that another process reads the sockets, or that this one stops.
    pub(crate) fn leave(&self) {
        self.state().role = Role::Leaving;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_soon_after_another_one_ends_the_process_and_later_ones_do_not() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let fresh = || State { role: Role::Serving, last: None };
        let mut state = fresh();
        assert_eq!(state.react(at(0)), Reaction::HandOver);
        assert_eq!(state.react(at(1)), Reaction::Continue, "another worker, while the new process starts");
        // The new process knows of the last one.
        for (seconds, expected) in [(60, Reaction::End), (61, Reaction::HandOver)] {
            assert_eq!(State { last: state.last, ..fresh() }.react(at(seconds)), expected, "{seconds} s");
        }
        let mut left = State { role: Role::Leaving, last: None };
        assert_eq!([left.react(at(0)), left.react(at(0))], [Reaction::Continue; 2]);
    }

    #[test]
    fn a_newer_process_continues_the_history() {
        let older = WorkerPanics::new(PanicHistory { count: 3, last_ms: None }, Counter::default());
        assert_eq!((older.history(), older.count()), (PanicHistory { count: 3, last_ms: None }, 3));
        older.report();
        let history = older.history();
        assert_eq!(history.count, 4);
        let newer = WorkerPanics::new(history, Counter::default());
        assert!(newer.history().last_ms.unwrap() >= history.last_ms.unwrap());
        assert_eq!(newer.state().react(Instant::now()), Reaction::End);
    }
}
