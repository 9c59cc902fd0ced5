//! Changes of a request's priority after it was sent (RFC 9218 §7), for programs: those that a server hears, and those that a client makes.

use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use tiderace::{Priority, StreamId};

use crate::{priority_update::Watched, shared::Shared};

/// Changes of a request's priority by its client (PRIORITY_UPDATE): in the extensions of a request that a server gets. The stream of the
/// response has the priority without it; it is for programs that forward requests. Clones share what comes.
#[derive(Clone)]
pub struct PriorityChanges(Arc<Watch>);

struct Watch {
    shared: Arc<Shared>,
    stream: u64,
}

impl fmt::Debug for PriorityChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PriorityChanges").field("stream", &self.0.stream).finish_non_exhaustive()
    }
}

impl PriorityChanges {
    /// Changes of the request on a stream, the first of which came before it, if there was one.
    pub(crate) fn new(shared: &Arc<Shared>, stream: StreamId, early: Option<Priority>) -> Self {
        let watched = Watched { latest: early, waker: None };
        shared.lock().changes.watched.insert(stream.0, watched);
        Self(Arc::new(Watch { shared: shared.clone(), stream: stream.0 }))
    }

    /// Waits for the next change. Of several that came since the last call, the last counts.
    pub async fn changed(&self) -> Priority {
        poll_fn(|cx| self.poll_changed(cx)).await
    }

    /// Poll form of [`changed`](Self::changed), for futures written by hand.
    pub fn poll_changed(&self, cx: &mut Context<'_>) -> Poll<Priority> {
        let state = &mut *self.0.shared.lock();
        let Some(watched) = state.changes.watched.get_mut(&self.0.stream) else { return Poll::Pending };
        if let Some(priority) = watched.latest.take() {
            return Poll::Ready(priority);
        }
        watched.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.lock().changes.watched.remove(&self.stream);
    }
}

/// Changes the priority of a client's request after it was sent.
pub struct ChangePriority {
    shared: Arc<Shared>,
    stream: StreamId,
}

impl fmt::Debug for ChangePriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangePriority").field("stream", &self.stream.0).finish_non_exhaustive()
    }
}

impl ChangePriority {
    pub(crate) fn new(shared: &Arc<Shared>, stream: StreamId) -> Self {
        Self { shared: shared.clone(), stream }
    }

    /// Gives the content of the request this priority, and sends it to the server (PRIORITY_UPDATE). Of changes that still wait to be sent,
    /// the last counts.
    pub fn set(&self, priority: Priority) {
        self.shared.quic.set_priority(self.stream, priority);
        let state = &mut *self.shared.lock();
        state.changes.to_send.insert(self.stream.0, priority);
        state.wake_driver();
    }
}
