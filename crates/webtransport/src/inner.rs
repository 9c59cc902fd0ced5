//! State of a session, shared by its handles, streams and task.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use h3_quic::{Code, Datagrams, SessionStreams};

use crate::{capsules::Violation, config::Draft, error::SessionEnd, flow::Flow, lock::lock, outgoing::Outgoing};

/// Half of a stream that ends with its session.
pub(crate) trait Half: Send + Sync {
    /// Gives the half up (WT_SESSION_GONE).
    fn abandon(&self, end: &SessionEnd);
}

pub(crate) struct State {
    pub(crate) flow: Flow,
    pub(crate) end: Option<SessionEnd>,
    pub(crate) is_draining: bool,
    /// Halves of streams in use, by number of the stream and whether they send.
    halves: BTreeMap<(u64, bool), Arc<dyn Half>>,
    /// Tasks that wait for credit, the drain or the end.
    waiting: Vec<Waker>,
    /// Place among the sessions of a client's connection, released at the end.
    place: Option<Place>,
}

/// Place among the sessions of a client's connection that have not ended.
pub(crate) struct Place {
    sessions: Arc<AtomicUsize>,
    /// Sessions that had a place before.
    pub(crate) before: usize,
}

impl Place {
    pub(crate) fn take(sessions: &Arc<AtomicUsize>) -> Self {
        let before = sessions.fetch_add(1, Ordering::AcqRel);
        Self { sessions: sessions.clone(), before }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sessions.fetch_sub(1, Ordering::AcqRel);
    }
}

impl State {
    /// Wakes the task when the session's state changes.
    pub(crate) fn wait(&mut self, cx: &Context<'_>) {
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
    }
}

/// A session.
pub(crate) struct Inner {
    pub(crate) streams: SessionStreams,
    pub(crate) datagrams: Datagrams,
    pub(crate) outgoing: Outgoing,
    /// Application protocol that was agreed on.
    pub(crate) protocol: Option<String>,
    /// Variant of the protocol that both ends speak.
    pub(crate) draft: Draft,
    state: Mutex<State>,
}

impl Inner {
    pub(crate) fn new(
        streams: SessionStreams,
        datagrams: Datagrams,
        outgoing: Outgoing,
        protocol: Option<String>,
        draft: Draft,
        flow: Flow,
        place: Option<Place>,
    ) -> Arc<Self> {
        if let Some(limits) = flow.stream_limits() {
            streams.set_limits(limits);
        }
        let state = State { flow, end: None, is_draining: false, halves: BTreeMap::new(), waiting: Vec::new(), place };
        Arc::new(Self { streams, datagrams, outgoing, protocol, draft, state: Mutex::new(state) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Changes the state, and wakes all tasks that wait for a change.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (changed, waiting) = {
            let state = &mut *self.lock();
            (change(state), std::mem::take(&mut state.waiting))
        };
        for waker in waiting {
            waker.wake();
        }
        changed
    }

    /// Ready when `found` returns a value for the state.
    pub(crate) async fn until<T>(&self, found: impl Fn(&State) -> Option<T>) -> T {
        poll_fn(|cx| {
            let state = &mut *self.lock();
            if let Some(found) = found(state) {
                return Poll::Ready(found);
            }
            state.wait(cx);
            Poll::Pending
        })
        .await
    }

    /// Waits for the end of the session.
    pub(crate) async fn ended(&self) -> SessionEnd {
        self.until(|state| state.end.clone()).await
    }

    /// Adds a half of a stream in use.
    ///
    /// # Errors
    /// When the session has ended.
    pub(crate) fn enter(&self, id: u64, sends: bool, half: Arc<dyn Half>) -> Result<(), SessionEnd> {
        let state = &mut *self.lock();
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        state.halves.insert((id, sends), half);
        Ok(())
    }

    /// Removes a half that has ended.
    pub(crate) fn leave(&self, id: u64, sends: bool) {
        let half = self.lock().halves.remove(&(id, sends));
        drop(half);
    }

    /// Ends the session, once: resets its streams, and wakes all waiting tasks. Returns false if it had ended before.
    // draft-ietf-webtrans-http3 §6 MUST: streams end with the session, in both directions
    pub(crate) fn terminate(&self, end: SessionEnd) -> bool {
        // First, so that whoever hears of the end finds the session's place among those of the connection free.
        self.streams.close();
        let halves = self.change(|state| {
            if state.end.is_some() {
                return None;
            }
            state.end = Some(end.clone());
            state.place = None;
            Some(std::mem::take(&mut state.halves))
        });
        let Some(halves) = halves else { return false };
        for half in halves.values() {
            half.abandon(&end);
        }
        true
    }

    /// Closes the session with the application's code and message.
    pub(crate) fn close(&self, code: u32, reason: &str) {
        if !self.terminate(SessionEnd::ClosedHere { code }) {
            return;
        }
        // draft-ietf-webtrans-http3 §6 MUST: cut at the boundary of a character
        let at = reason.floor_char_boundary(crate::capsules::MAX_REASON);
        self.outgoing.close(code, reason[..at].to_owned());
    }

    /// Breaks the session off: its request's stream is reset.
    pub(crate) fn abort(&self) {
        if self.terminate(SessionEnd::BrokenOff) {
            self.streams.give_up(Code::REQUEST_CANCELLED);
            self.outgoing.abort();
        }
    }

    /// Ends the session because the peer violates its rules.
    pub(crate) fn fail(&self, violation: Violation) {
        let Violation { code, reason } = violation;
        if self.terminate(SessionEnd::Violation { code, reason }) {
            self.streams.give_up(code);
            self.outgoing.abort();
        }
    }

    /// Notes bytes that have arrived, and bytes that were read or discarded.
    pub(crate) fn on_read(&self, received: u64, consumed: u64) {
        if (received, consumed) == (0, 0) {
            return;
        }
        let (checked, limit) = {
            let flow = &mut self.lock().flow;
            (flow.on_received(received), flow.on_consumed(consumed))
        };
        if let Err(violation) = checked {
            self.fail(violation);
        } else if let Some(limit) = limit {
            self.outgoing.max_data(limit);
        }
    }

    /// Notes that a stream of the peer is closed.
    pub(crate) fn on_closed(&self, dir: usize) {
        let (limit, limits) = {
            let flow = &mut self.lock().flow;
            (flow.on_closed(dir), flow.stream_limits())
        };
        if let (Some(limit), Some(limits)) = (limit, limits) {
            self.streams.set_limits(limits);
            self.outgoing.max_streams(dir, limit);
        }
    }
}

/// Handles and streams of a session: with the last of them it is closed.
pub(crate) struct Alive(pub(crate) Arc<Inner>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.close(0, "");
    }
}
