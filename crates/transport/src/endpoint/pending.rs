//! Handshakes that wait for an external answer: a signature by an external key, a remote strike register.
//!
//! A pending session wakes a [`Waker`](std::task::Waker). The endpoint has no thread of its own, so its driver sets the target of such
//! wake-ups ([`Endpoint::set_handshake_waker`]), and then calls [`Endpoint::resume_handshake`].

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::Wake,
};

use units::Instant;

use super::{Endpoint, Handle};

/// Waker of the task that drives an endpoint, for handshakes that are worth resuming.
///
/// Called from any thread, also in the middle of a call of the endpoint: it notes the handle, and the driver calls
/// [`Endpoint::resume_handshake`] later.
pub trait HandshakeWaker: Send + Sync {
    /// Notes that the handshake of this connection is worth resuming. The connection may be over.
    fn wake(&self, handle: Handle);
}

impl<F: Fn(Handle) + Send + Sync> HandshakeWaker for F {
    fn wake(&self, handle: Handle) {
        self(handle);
    }
}

/// State of the waker of one session.
#[derive(Default)]
struct Target {
    /// `None` until the connection has its place in the endpoint.
    handle: Option<Handle>,
    woken: bool,
}

/// The waker of one session.
pub(super) struct SessionWaker {
    driver: Arc<dyn HandshakeWaker>,
    target: Mutex<Target>,
}

impl SessionWaker {
    pub(super) fn new(driver: Arc<dyn HandshakeWaker>) -> Arc<Self> {
        Arc::new(Self { driver, target: Mutex::default() })
    }

    /// Gives the waker the connection's place. The session may have been woken before.
    pub(super) fn assign(&self, handle: Handle) {
        let woken = {
            let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
            target.handle = Some(handle);
            target.woken
        };
        if woken {
            self.driver.wake(handle);
        }
    }
}

impl Wake for SessionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let handle = {
            let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
            target.woken |= target.handle.is_none();
            target.handle
        };
        if let Some(handle) = handle {
            self.driver.wake(handle);
        }
    }
}

impl Endpoint {
    /// Sets the waker that learns which handshakes of accepted connections are worth resuming.
    pub fn set_handshake_waker(&mut self, waker: Arc<dyn HandshakeWaker>) {
        self.handshake_waker = Some(waker);
    }

    /// Resumes a handshake whose result is ready ([`HandshakeWaker`]). Drain [`poll_transmit`](Self::poll_transmit) afterwards. Without
    /// effect if the connection has ended.
    pub fn resume_handshake(&mut self, now: Instant, handle: Handle) {
        if let Some(connection) = self.connection_mut(handle) {
            connection.resume_handshake(now);
        }
    }

    /// Returns whether any handshake is in progress: only then can one be worth resuming.
    pub fn has_handshakes(&self) -> bool {
        self.half_open > 0
    }
}
