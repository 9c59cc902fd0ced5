//! Capsules to send: the body of a session's request or response. It records pending announcements and holds no queue.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use h3_quic::capsule;
use http_body::{Body, Frame};
use tokio::sync::Notify;

use crate::{codes, lock::lock};

#[derive(Debug, Default)]
struct State {
    max_data: Option<u64>,
    max_streams: [Option<u64>; 2],
    data_blocked: Option<u64>,
    streams_blocked: [Option<u64>; 2],
    drain: bool,
    close: Option<(u32, String)>,
    /// No capsule follows the queued ones.
    is_finished: bool,
    is_aborted: bool,
    waker: Option<Waker>,
}

/// Capsules that are to be sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outgoing(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    /// HTTP/3 sends no more of it.
    gone: Notify,
}

/// Wakes HTTP/3, after the lock is free.
fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

fn put(out: &mut Vec<u8>, ty: u64, number: Option<u64>) {
    if let Some(number) = number {
        let mut value = Vec::with_capacity(8);
        wire::varint::push(&mut value, number);
        capsule::write(out, ty, &value);
    }
}

impl Outgoing {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        if state.is_finished || state.is_aborted {
            return;
        }
        change(&mut state);
        wake(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    pub(crate) fn max_data(&self, limit: u64) {
        self.change(|state| state.max_data = Some(limit));
    }

    pub(crate) fn max_streams(&self, dir: usize, limit: u64) {
        self.change(|state| state.max_streams[dir] = Some(limit));
    }

    pub(crate) fn data_blocked(&self, limit: u64) {
        self.change(|state| state.data_blocked = Some(limit));
    }

    pub(crate) fn streams_blocked(&self, dir: usize, limit: u64) {
        self.change(|state| state.streams_blocked[dir] = Some(limit));
    }

    pub(crate) fn drain(&self) {
        self.change(|state| state.drain = true);
    }

    /// Sends WT_CLOSE_SESSION and the end of the stream.
    pub(crate) fn close(&self, code: u32, reason: String) {
        self.change(|state| {
            state.close = Some((code, reason));
            state.is_finished = true;
        });
    }

    /// Sends the end of the stream.
    pub(crate) fn finish(&self) {
        self.change(|state| state.is_finished = true);
    }

    /// Waits until HTTP/3 sends no more, although capsules may be pending.
    pub(crate) async fn gone(&self) {
        self.0.gone.notified().await;
    }

    /// Resets the stream, also behind its end.
    pub(crate) fn abort(&self) {
        let mut state = self.lock();
        state.is_aborted = true;
        wake(state);
    }
}

impl State {
    /// Takes the capsules to be sent.
    fn take(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, codes::MAX_DATA, self.max_data.take());
        put(&mut out, codes::DATA_BLOCKED, self.data_blocked.take());
        for dir in 0..2 {
            put(&mut out, codes::MAX_STREAMS[dir], self.max_streams[dir].take());
            put(&mut out, codes::STREAMS_BLOCKED[dir], self.streams_blocked[dir].take());
        }
        if std::mem::take(&mut self.drain) {
            capsule::write(&mut out, codes::DRAIN_SESSION, &[]);
        }
        if let Some((code, reason)) = self.close.take() {
            capsule::write(&mut out, codes::CLOSE_SESSION, &[&code.to_be_bytes(), reason.as_bytes()].concat());
        }
        out
    }
}

/// Content of the message on a session's stream, for HTTP/3 to send.
#[derive(Debug)]
pub struct SessionBody(pub(crate) Option<Outgoing>);

impl Drop for SessionBody {
    fn drop(&mut self) {
        if let Some(outgoing) = &self.0 {
            outgoing.0.gone.notify_one();
        }
    }
}

/// Error of an aborted session.
#[derive(Debug, thiserror::Error)]
#[error("the session is given up")]
pub struct Aborted;

impl Body for SessionBody {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        let Some(outgoing) = &self.0 else { return Poll::Ready(None) };
        let mut state = outgoing.lock();
        if state.is_aborted {
            return Poll::Ready(Some(Err(Aborted)));
        }
        let said = state.take();
        if !said.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(said.into()))));
        }
        if state.is_finished {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}
