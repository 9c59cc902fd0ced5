//! Timeouts: for a connection, for the fields of a response, and for its content.
//!
//! Each limit is on progress, so a large upload or download may take any time. At a limit the resources held by a slow server are freed:
//! the stream is reset, or the TCP connection closed.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::{
    task::{JoinError, JoinHandle},
    time::{Instant, Sleep},
};

use crate::{
    body::{BodyError, RequestBody, ResponseBody},
    error::FetchError,
};

/// Timeouts of requests. [`Duration::MAX`] is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For addresses, and a connection over QUIC or TCP with its handshakes.
    pub connect: Duration,
    /// For the fields of a response, from the last part of the request's content on. It includes the wait for permission to send.
    pub response: Duration,
    /// For the content of a response.
    pub content: Pace,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(30), response: Duration::from_secs(120), content: Pace::default() }
    }
}

/// Minimum rate of content: `bytes` for each `within` that its reader has waited. Time in which it is not read does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes; 0 is no limit.
    pub bytes: u64,
    /// Time spent waiting.
    pub within: Duration,
}

impl Default for Pace {
    /// One byte within five minutes: event streams may be silent for a while.
    fn default() -> Self {
        Self { bytes: 1, within: Duration::from_secs(300) }
    }
}

/// Parts of a request's content that have been taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Counts the parts of `body`.
    pub(crate) fn count(&self, body: RequestBody) -> RequestBody {
        http_body_util::BodyExt::boxed_unsync(Counted { body, parts: self.0.clone() })
    }

    /// Waits for `response`, up to `limit` after the last part of the request.
    pub(crate) async fn wait<T>(&self, limit: Duration, response: impl Future<Output = T>) -> Result<T, FetchError> {
        let mut response = std::pin::pin!(response);
        loop {
            let before = self.0.load(Relaxed);
            match tokio::time::timeout(limit, response.as_mut()).await {
                Ok(answered) => return Ok(answered),
                Err(_) if self.0.load(Relaxed) != before => {}
                Err(_) => return Err(FetchError::TimedOut { what: "a response", limit }),
            }
        }
    }
}

/// Content whose parts are counted.
struct Counted {
    body: RequestBody,
    parts: Arc<AtomicU64>,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.parts.fetch_add(1, Relaxed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Waits for a connection up to `limit`.
pub(crate) async fn connected<T>(
    limit: Duration,
    connects: impl Future<Output = Result<T, FetchError>>,
) -> Result<T, FetchError> {
    let late = |_| Err(FetchError::TimedOut { what: "a connection", limit });
    tokio::time::timeout(limit, connects).await.unwrap_or_else(late)
}

/// Task that ends with the task that waits for it.
pub(crate) struct Waited<T>(JoinHandle<T>);

impl<T: Send + 'static> Waited<T> {
    pub(crate) fn spawn(task: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }
}

impl<T> Future for Waited<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for Waited<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Error of a response whose content arrives too slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the content came too slowly: {got} bytes within {} s of waiting, and {} are the least", .least.within.as_secs_f64(), .least.bytes)]
pub struct TooSlow {
    /// Bytes received in that time.
    pub got: u64,
    /// Required pace.
    pub least: Pace,
}

/// Content that has to keep a pace.
struct Paced {
    /// `None` after the end by a timeout.
    body: Option<ResponseBody>,
    least: Pace,
    /// Bytes since the time began to count.
    got: u64,
    /// Time that its reader may still wait.
    left: Duration,
    /// Since when its reader waits.
    since: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
}

/// Content that fails when it comes slower than `least`.
pub(crate) fn paced(body: ResponseBody, least: Pace) -> ResponseBody {
    if least.bytes == 0 || body.is_end_stream() {
        return body;
    }
    let alarm = Box::pin(tokio::time::sleep(Duration::ZERO));
    let paced = Paced { body: Some(body), least, got: 0, left: least.within, since: None, alarm };
    http_body_util::BodyExt::boxed_unsync(paced)
}

impl Paced {
    /// Called when the reader's wait has ended, with the number of bytes.
    fn on_data(&mut self, length: usize) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        self.got += length as u64;
        if self.got >= self.least.bytes {
            (self.got, self.left) = (0, self.least.within);
        }
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<TooSlow> {
        if self.since.is_none() {
            let now = Instant::now();
            self.since = Some(now);
            // As long as there may be.
            let at = now.checked_add(self.left).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365));
            self.alarm.as_mut().reset(at);
        }
        ready!(self.alarm.as_mut().poll(cx));
        Poll::Ready(TooSlow { got: self.got, least: self.least })
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        match Pin::new(body).poll_frame(cx) {
            Poll::Ready(came) => {
                let length = match &came {
                    Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
                    _ => 0,
                };
                this.on_data(length);
                Poll::Ready(came)
            }
            Poll::Pending => {
                let slow = ready!(this.poll_alarm(cx));
                this.body = None;
                Poll::Ready(Some(Err(slow.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content at the required pace may take any time, and time without a reader does not count.
    #[tokio::test]
    async fn only_waiting_without_progress_counts() {
        let least = Pace { bytes: 10, within: Duration::from_secs(5) };
        let alarm = Box::pin(tokio::time::sleep(Duration::ZERO));
        let mut paced = Paced { body: None, least, got: 0, left: least.within, since: None, alarm };
        for _ in 0..100 {
            // Read without a wait.
            paced.on_data(4);
            assert_eq!((paced.got, paced.left), (4, least.within));
            // Read after a wait.
            paced.since = Instant::now().checked_sub(Duration::from_secs(4));
            paced.on_data(5);
            assert_eq!((paced.got, paced.since), (9, None));
            assert!(paced.left <= Duration::from_secs(1), "{:?}", paced.left);
            paced.on_data(1);
            assert_eq!((paced.got, paced.left), (0, least.within));
        }
    }
}
