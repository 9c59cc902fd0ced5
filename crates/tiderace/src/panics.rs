//! Panics that leave the state machine of a shard between two steps: the end of the shard, and of nothing else.
//!
//! An empty state machine takes the place of the broken one. Handles find their connections closed
//! ([`CloseReason::StateLost`]), so the tasks that hold them end in order. Nothing reads the socket of the shard from then on, although the
//! kernel passes datagrams to it, and [`PanicAction`] tells the application so.

use std::{
    sync::{Arc, MutexGuard, PoisonError},
    task::Waker,
};

use transport::{CloseReason, EndpointConfig};
use units::Seed;

use crate::shared::{Shared, State};

/// Action when a shard is lost: a task has panicked that drives its socket, or that called one of its connections. It runs on the thread
/// that drives the socket, during a panic perhaps, and must not panic itself.
pub type PanicAction = Arc<dyn Fn() + Send + Sync>;

impl Shared {
    /// The state. After a panic under the lock, that of a shard that is given up.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        loop {
            match self.state.lock() {
                Ok(state) => return state,
                // The state machine is between two steps: nothing may use it any more.
                Err(poisoned) => drop(poisoned),
            }
            self.abandon();
        }
    }

    /// Gives the shard up, unless it is given up already: its connections are over, and the tasks that wait for them are woken.
    pub(crate) fn abandon(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = if state.is_lost() { Vec::new() } else { state.abandon() };
        self.state.clear_poison();
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// Returns whether a panic has ended the shard.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    fn abandon(&mut self) -> Vec<Waker> {
        // First of all: should one of the parts below panic when it is dropped, the others are not looked at again.
        self.lost = Some(self.endpoint.stats());
        let nothing = EndpointConfig::from_seed(Seed::from_number(0));
        self.endpoint = transport::Endpoint::new(nothing, None);
        self.service = None;
        self.machines = None;
        #[cfg(target_os = "linux")]
        {
            // A process that forwards learns by its end that nobody takes its datagrams.
            self.inbox = None;
        }
        self.incoming.clear();
        self.incoming_early.clear();
        let mut waiting: Vec<Waker> = self.driver.take().into_iter().collect();
        waiting.append(&mut self.incoming_waiters);
        waiting.append(&mut self.idle_waiters);
        self.turn.begin(&mut waiting);
        self.connections.retain(|_, waiters| waiters.held);
        for waiters in self.connections.values_mut() {
            waiters.close(CloseReason::StateLost, &mut waiting);
        }
        waiting
    }
}
