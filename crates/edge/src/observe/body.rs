//! Body of a response with the entry of its request.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::Entry;
use crate::{body::AnyBody, ending::BodyError};

/// An answer's body. The entry ends with it.
pub(super) struct Observed {
    body: AnyBody,
    entry: Entry,
}

impl Observed {
    pub(super) fn new(body: AnyBody, entry: Entry) -> Self {
        Self { body, entry }
    }
}

impl Body for Observed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(None) => self.entry.on_end(),
            Poll::Ready(Some(Ok(frame))) => {
                self.entry.on_data(frame.data_ref().map_or(0, |data| data.len() as u64));
                // Nothing comes behind trailers, and some never ask whether it does.
                if frame.is_trailers() || self.body.is_end_stream() {
                    self.entry.on_end();
                }
            }
            Poll::Ready(Some(Err(error))) => self.entry.on_error(error),
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
