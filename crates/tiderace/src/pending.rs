//! Handshakes that wait for an external result: its source wakes the driver, which resumes them.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::mpsc;
use transport::{Endpoint, Handle};
use units::Instant;

/// Queue of woken handshakes, at the driver's end.
pub(crate) struct Pending {
    from: mpsc::UnboundedReceiver<Handle>,
}

impl Pending {
    /// Makes the handshakes of `endpoint` wake the task that [resumes](Self::resume) them.
    pub(crate) fn new(endpoint: &mut Endpoint) -> Self {
        let (to, from) = mpsc::unbounded_channel();
        // The driver may be gone; then so are the connections.
        endpoint.set_handshake_waker(Arc::new(move |handle| {
            let _ = to.send(handle);
        }));
        Self { from }
    }

    /// Resumes the handshakes that were woken. A later one wakes the task of `cx`.
    pub(crate) fn resume(&mut self, cx: &mut Context<'_>, now: Instant, endpoint: &mut Endpoint) {
        if !endpoint.has_handshakes() {
            return;
        }
        while let Poll::Ready(Some(handle)) = self.from.poll_recv(cx) {
            endpoint.resume_handshake(now, handle);
        }
    }
}
