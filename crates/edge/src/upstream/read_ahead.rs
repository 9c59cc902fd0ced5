//! Content of responses that HTTP/2 has read ahead of their clients.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tiderace::{ProcessBudget, transport::memory::ProcessCharge};

use super::back_end::STREAM_WINDOW;
use crate::{body::AnyBody, ending::BodyError};

/// Content that may wait in the buffers of a connection.
struct ReadAhead<B> {
    body: B,
    charge: ProcessCharge,
}

/// Charges the receive window of a stream, or the rest of the content if that is less, to the process while content may be waiting in it:
/// from a part that was there until none is.
pub(super) fn charged<B>(body: B, memory: &ProcessBudget) -> AnyBody
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    if body.is_end_stream() {
        return body.map_err(Into::into).boxed_unsync();
    }
    let mut this = ReadAhead { charge: memory.charge(0), body };
    this.charge.set(this.most());
    this.map_err(Into::into).boxed_unsync()
}

impl<B: Body> ReadAhead<B> {
    /// Bytes that may be waiting at most.
    fn most(&self) -> u64 {
        let window = u64::from(STREAM_WINDOW);
        match self.body.is_end_stream() {
            true => 0,
            false => self.body.size_hint().upper().map_or(window, |rest| rest.min(window)),
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ReadAhead<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let waiting = if matches!(polled, Poll::Ready(Some(Ok(_)))) { self.most() } else { 0 };
        self.charge.set(waiting);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use http_body_util::{Full, channel::Channel};

    use super::*;

    fn poll(body: &mut AnyBody) -> Poll<Option<usize>> {
        let polled = Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()));
        polled.map(|frame| frame.map(|frame| frame.unwrap().into_data().unwrap().len()))
    }

    #[tokio::test]
    async fn content_is_charged_while_more_of_it_may_be_waiting() {
        let memory = ProcessBudget::default();
        let (mut sender, body) = Channel::<Bytes, BodyError>::new(1);
        let mut body = charged(body, &memory);
        // Nobody has asked yet.
        assert_eq!(memory.held(), u64::from(STREAM_WINDOW));
        assert!(poll(&mut body).is_pending());
        assert_eq!(memory.held(), 0, "there is none");
        sender.send_data(Bytes::from_static(b"some")).await.unwrap();
        assert_eq!(poll(&mut body), Poll::Ready(Some(4)));
        assert_eq!(memory.held(), u64::from(STREAM_WINDOW));
        drop(body);
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test]
    async fn no_more_is_charged_than_there_is_to_come() {
        let memory = ProcessBudget::default();
        let mut body = charged(Full::new(Bytes::from_static(b"hello")), &memory);
        assert_eq!(memory.held(), 5);
        assert_eq!(poll(&mut body), Poll::Ready(Some(5)));
        assert_eq!(memory.held(), 0);
    }
}
