//! TLS handshake steps that run on other threads, so that their cost does not delay the data of connections.
//!
//! [`Endpoint::poll_tls_step`] returns the next step. The driver runs it on any thread ([`TlsStep::run`]) and returns the result
//! ([`Endpoint::handle_tls_done`]). A connection has at most one step running, and continues without its session in the meantime.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
};

use units::Instant;

use super::{Endpoint, Handle};
use crate::handshake::{Done, Step};

/// Step of a TLS session. It has to be returned: until then the handshake waits.
#[must_use]
pub struct TlsStep {
    handle: Handle,
    step: Step,
}

/// The outcome of a [`TlsStep`].
#[must_use]
pub struct TlsDone {
    handle: Handle,
    begun: bool,
    done: Done,
}

impl TlsStep {
    /// Returns whether the handshake has begun: it is nearly complete, and goes before others.
    pub fn has_begun(&self) -> bool {
        self.step.has_begun()
    }

    /// Runs the step: key exchange, signature, certificates. May take long when the private key is remote. A panic of the TLS
    /// backend ends this one handshake.
    pub fn run(self) -> TlsDone {
        let Self { handle, step } = self;
        let begun = step.has_begun();
        let done = catch_unwind(AssertUnwindSafe(|| step.run())).unwrap_or_else(|_| Done::lost());
        TlsDone { handle, begun, done }
    }
}

/// Owner of the account of steps that are out or wait.
#[derive(Default)]
pub(super) struct StepQueue {
    /// First steps that may be out at a time. `None`: every step is run in place.
    limit: Option<usize>,
    /// First steps that are out.
    out: usize,
    begun: VecDeque<Handle>,
    new: VecDeque<Handle>,
}

impl StepQueue {
    pub(super) fn are_on(&self) -> bool {
        self.limit.is_some()
    }

    /// Returns whether the limit of handshakes that wait for their first step is reached: another would wait longer than its
    /// client does.
    pub(super) fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.out + self.new.len() >= limit)
    }
}

impl Endpoint {
    /// Hands out the TLS steps of accepted connections from here on, instead of running them in place.
    ///
    /// At most `limit` first steps are out at a time. When as many wait, first packets of further clients are dropped
    /// ([`EndpointStats::overloaded`](super::EndpointStats::overloaded)), and these clients try again by themselves.
    pub fn hand_out_tls(&mut self, limit: usize) {
        self.tls_steps.limit = Some(limit.max(1));
    }

    /// Returns the next step to run: steps of handshakes that have begun before first steps. Poll it before
    /// [`poll_transmit`](Self::poll_transmit) if steps run at once: their handshake bytes are then sent together with the connection's
    /// data.
    pub fn poll_tls_step(&mut self) -> Option<TlsStep> {
        if self.tls_steps.begun.is_empty() && self.tls_steps.new.is_empty() {
            for at in 0..self.dirty.len() {
                self.find_step(self.dirty[at]);
            }
        }
        while let Some(handle) = self.tls_steps.begun.pop_front() {
            if let Some(step) = self.take_step(handle) {
                return Some(TlsStep { handle, step });
            }
        }
        while self.tls_steps.limit.is_some_and(|limit| self.tls_steps.out < limit) {
            let handle = self.tls_steps.new.pop_front()?;
            if let Some(step) = self.take_step(handle) {
                self.tls_steps.out += 1;
                return Some(TlsStep { handle, step });
            }
        }
        None
    }

    /// Takes a step from its connection, which may be over meanwhile.
    fn take_step(&mut self, handle: Handle) -> Option<Step> {
        let slot = &mut self.slots[handle.index as usize];
        slot.connection.as_mut().filter(|_| slot.generation == handle.generation)?.take_tls_step()
    }

    /// Takes the outcome of a step. Drain [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn handle_tls_done(&mut self, now: Instant, done: TlsDone) {
        let TlsDone { handle, begun, done } = done;
        if !begun {
            self.tls_steps.out -= 1;
        }
        if let Some(connection) = self.connection_mut(handle) {
            connection.handle_tls_done(now, done);
        }
    }

    /// Notes whether a connection has a step to be run elsewhere.
    pub(super) fn find_step(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let handle = Handle { index, generation: slot.generation };
        match slot.connection.as_mut().and_then(|connection| connection.new_tls_step()) {
            Some(true) => self.tls_steps.begun.push_back(handle),
            Some(false) => self.tls_steps.new.push_back(handle),
            None => {}
        }
    }
}
