//! Bodies on their way through: one type for all that come in, one for all that go out.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tokio::time::{Instant, Sleep};

/// Why a body broke off.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Any body.
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BodyError>;

/// A body that is there already.
pub(crate) fn full(data: impl Into<Bytes>) -> AnyBody {
    Full::new(data.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Boxes what comes from a client, which has to send the next part within `patience`.
pub(crate) fn incoming<B>(body: B, patience: Duration) -> AnyBody
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    if body.is_end_stream() {
        return full(Bytes::new());
    }
    Patient { body, patience, waits: None }.boxed_unsync()
}

/// Boxes what comes from a client, whenever it comes.
pub(crate) fn untimed<B>(body: B) -> AnyBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// Waits for the first part of a body that most likely has none, so that it is known. What breaks off goes on to break off.
pub(crate) async fn settle(mut body: AnyBody) -> AnyBody {
    match body.frame().await {
        None => full(""),
        first => Begun { first, rest: body }.boxed_unsync(),
    }
}

/// A body whose first part was read already.
struct Begun {
    first: Option<Result<Frame<Bytes>, BodyError>>,
    rest: AnyBody,
}

impl Body for Begun {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.first.take() {
            None => Pin::new(&mut self.rest).poll_frame(cx),
            first => Poll::Ready(first),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }
}

/// A body whose next part has to come within a time.
struct Patient<B> {
    body: B,
    patience: Duration,
    /// Made with the first wait: most bodies are there at once.
    waits: Option<(Pin<Box<Sleep>>, bool)>,
}

impl<B> Body for Patient<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if let Some((_, armed)) = &mut this.waits {
                *armed = false;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let patience = this.patience;
        let (sleep, armed) = this.waits.get_or_insert_with(|| (Box::pin(tokio::time::sleep(patience)), true));
        if !*armed {
            *armed = true;
            sleep.as_mut().reset(Instant::now() + patience);
        }
        if sleep.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err("the client sends its content too slowly".into())));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
