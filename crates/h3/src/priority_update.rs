//! Changes of a request's priority after it was sent (RFC 9218 §7): what a server hears, and what a client sends.

use std::{
    collections::BTreeMap,
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tiderace::{Priority, StreamId};

use crate::{frame, shared::Shared};

/// Requests whose changes somebody waits for, and changes that this end has to send: one of each request, the last.
#[derive(Default)]
pub(crate) struct Changes {
    watched: BTreeMap<u64, Watched>,
    to_send: BTreeMap<u64, Priority>,
}

#[derive(Default)]
struct Watched {
    latest: Option<Priority>,
    waker: Option<Waker>,
}

impl Changes {
    /// Takes a change by the peer. Returns false when nobody waits for it.
    #[must_use]
    pub(crate) fn on_change(&mut self, stream: u64, priority: Priority) -> bool {
        let Some(watched) = self.watched.get_mut(&stream) else { return false };
        watched.latest = Some(priority);
        if let Some(waker) = watched.waker.take() {
            waker.wake();
        }
        true
    }

    /// Returns whether nothing is to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.to_send.is_empty()
    }

    /// Appends the frames of the changes that are to be sent.
    // RFC 9218 §7.2
    pub(crate) fn write(&mut self, out: &mut Vec<u8>) {
        for (stream, priority) in std::mem::take(&mut self.to_send) {
            let value = field(priority);
            frame::write_head(out, frame::PRIORITY_UPDATE, (wire::varint::len(stream) + value.len()) as u64);
            wire::varint::push(out, stream);
            out.extend(value.as_bytes());
        }
    }
}

/// Value of the `priority` field, without what is the default.
fn field(Priority { urgency, incremental }: Priority) -> String {
    match (urgency, incremental) {
        (3, true) => "i".to_owned(),
        (urgency, true) => format!("u={urgency}, i"),
        (urgency, false) => format!("u={urgency}"),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::priority;

    /// What is written is what is read.
    #[test]
    fn a_frame_has_the_request_and_its_priority() {
        let all = (0..8).flat_map(|urgency| [false, true].map(|incremental| Priority { urgency, incremental }));
        for (stream, priority) in (0..).step_by(4_000).zip(all) {
            let mut changes = Changes::default();
            changes.to_send.insert(stream, priority);
            let mut out = Vec::new();
            changes.write(&mut out);
            let mut reader = wire::Reader::new(&out);
            assert_eq!(reader.varint().unwrap(), frame::PRIORITY_UPDATE);
            let length = usize::try_from(reader.varint().unwrap()).unwrap();
            let payload = &out[out.len() - length..];
            assert_eq!(priority::read_update(payload), Some(priority::Update { stream, priority }));
            out.clear();
            changes.write(&mut out);
            assert!(out.is_empty(), "each is sent once");
        }
    }
}
