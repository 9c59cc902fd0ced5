//! End of a session's response, which waits for the session's task, so that the line of the access log is complete.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::oneshot;

use crate::{body::AnyBody, ending::BodyError};

struct After {
    body: AnyBody,
    has_ended: oneshot::Receiver<()>,
}

/// A body whose end waits until the sender of `has_ended` is dropped.
pub(super) fn after(body: AnyBody, has_ended: oneshot::Receiver<()>) -> AnyBody {
    After { body, has_ended }.boxed_unsync()
}

impl Body for After {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() {
            // An error says that the sender is gone.
            let _ = ready!(Pin::new(&mut self.has_ended).poll(cx));
        }
        Poll::Ready(frame)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
