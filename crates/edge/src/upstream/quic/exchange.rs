//! A request over QUIC, from its stream to the end of its response.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use h3_quic::{ChangePriority, PriorityChanges, client::Reserved};
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::sync::Notify;

use super::link::Busy;
use crate::{
    body::{self, AnyBody},
    ending::{BodyError, Ending, ErrorWithEnding},
    upstream::{SendError, interim},
};

/// A stream for a request, and its place on the connection.
pub(in crate::upstream) struct ReservedRequest {
    stream: Reserved,
    busy: Busy,
}

impl ReservedRequest {
    pub(super) fn new(stream: Reserved, busy: Busy) -> Self {
        Self { stream, busy }
    }

    /// Sends a request. Its place on the connection is free when the content of the response has ended, or is dropped.
    ///
    /// # Errors
    /// When there is no response: the back end, the connection or the content of the request has failed.
    pub(in crate::upstream) async fn send(self, mut request: Request<AnyBody>) -> Result<Response<AnyBody>, SendError> {
        let failed = Arc::new(Notify::new());
        let changes = request.extensions_mut().remove::<PriorityChanges>();
        let priority = changes.map(|changes| Priorities { changes, to: self.stream.change_priority() });
        interim::over_quic(&mut request);
        let request = request.map(|content| own(content, failed.clone()));
        // A back end that is told so by a reset need not answer.
        let answered = tokio::select! {
            biased;
            answered = self.stream.send(request) => answered,
            () = failed.notified() => return Err(SendError::Content),
            () = poll_fn(|cx| {
                if let Some(priority) = &priority {
                    priority.pass(cx);
                }
                Poll::Pending
            }) => unreachable!("it is never ready"),
        };
        let answered = answered.map_err(SendError::Quic)?;
        self.busy.answered();
        Ok(answered.map(|content| {
            let content = Prioritised { content: content.map_err(broken), priority };
            body::with(content.boxed_unsync(), self.busy)
        }))
    }
}

/// Changes of a request's priority by its client, which go on to the back end.
struct Priorities {
    changes: PriorityChanges,
    to: ChangePriority,
}

impl Priorities {
    /// Passes on what has come; the task is woken when more comes.
    fn pass(&self, cx: &mut Context<'_>) {
        while let Poll::Ready(priority) = self.changes.poll_changed(cx) {
            self.to.set(priority);
        }
    }
}

/// Content of a response, whose client may still change its priority.
struct Prioritised<B> {
    content: B,
    priority: Option<Priorities>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Prioritised<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, B::Error>>> {
        if let Some(priority) = &self.priority {
            priority.pass(cx);
        }
        Pin::new(&mut self.content).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.content.size_hint()
    }
}

/// Content of a request as copies: what the client's connection is charged for is free once the stream has it, not when the back end has
/// acknowledged it. The send buffer of the connection bounds the copies. A failure of the content is notified.
fn own(content: AnyBody, failed: Arc<Notify>) -> AnyBody {
    if content.is_end_stream() {
        return content;
    }
    let content = content.map_frame(|frame| frame.map_data(|data| Bytes::copy_from_slice(&data)));
    let content = content.map_err(move |error| {
        failed.notify_one();
        error
    });
    content.boxed_unsync()
}

/// An error of a response is the back end's, whatever its connection has ended with.
fn broken(error: h3_quic::Error) -> BodyError {
    let ending = match &error {
        h3_quic::Error::Closed(tiderace::CloseReason::Memory { .. }) => Ending::Memory,
        _ => Ending::Broken,
    };
    ErrorWithEnding::error(ending, error.to_string())
}
