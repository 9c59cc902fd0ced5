//! Content of a message, as it arrives.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::{
    error::{Code, Error, Violation},
    session_handle::GiveUp,
    shared::Handle,
    stream::Receiver,
};

enum At {
    Data,
    Trailers,
    End,
}

/// Incoming body. Dropped before its end, it asks the peer to stop sending.
struct Incoming {
    source: Receiver,
    at: At,
    /// Bytes that the fields have promised and that have not come.
    promised: Option<u64>,
    /// Error code for the peer when the body is dropped before its end.
    unread: Code,
    /// Code of an aborted session, which takes precedence.
    give_up: GiveUp,
}

impl Incoming {
    fn new(mut source: Receiver, promised: Option<u64>, unread: Code, give_up: GiveUp) -> Self {
        source.begin_content();
        // A message without content is known as one at once, if its end has come with its fields.
        let is_empty = source.is_at_end() && promised.is_none_or(|left| left == 0);
        let at = if is_empty { At::End } else { At::Data };
        Self { source, at, promised, unread, give_up }
    }

    // RFC 9114 §4.1 SHOULD-1: what is there is handed on before the rest has come
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        loop {
            match self.at {
                At::Data => match ready!(self.source.poll_data(cx)) {
                    Ok(Some(data)) if data.is_empty() => {}
                    Ok(Some(data)) => {
                        if let Some(promised) = &mut self.promised {
                            match promised.checked_sub(data.len() as u64) {
                                Some(left) => *promised = left,
                                None => return Poll::Ready(Some(Err(self.mismatch()))),
                            }
                        }
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    Ok(None) => self.at = At::Trailers,
                    Err(error) => return Poll::Ready(Some(Err(self.fail(error)))),
                },
                At::Trailers => match ready!(self.source.poll_trailers(cx)) {
                    Ok(trailers) => {
                        if self.promised.is_some_and(|left| left > 0) {
                            return Poll::Ready(Some(Err(self.mismatch())));
                        }
                        self.at = At::End;
                        if let Some(trailers) = trailers {
                            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                        }
                    }
                    Err(error) => return Poll::Ready(Some(Err(self.fail(error)))),
                },
                At::End => return Poll::Ready(None),
            }
        }
    }

    fn fail(&mut self, error: Error) -> Error {
        self.at = At::End;
        error
    }

    /// A message whose length contradicts its fields is malformed (RFC 9114 §4.1.2).
    fn mismatch(&mut self) -> Error {
        let reason = "the content is not as long as its fields say".to_owned();
        let error = self.source.malformed(Violation { code: Code::MESSAGE_ERROR, reason });
        self.fail(error)
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.at, self.promised) {
            (At::End, _) => SizeHint::with_exact(0),
            (_, Some(left)) => SizeHint::with_exact(left),
            (_, None) => SizeHint::default(),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !matches!(self.at, At::End) {
            // Both directions end with the same code, whichever the peer learns of first.
            self.source.stop(self.give_up.get().unwrap_or(self.unread));
        }
    }
}

macro_rules! body {
    ($name:ident) => {
        impl Body for $name {
            type Data = Bytes;
            type Error = Error;

            fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
                self.incoming.poll_frame(cx)
            }

            fn is_end_stream(&self) -> bool {
                matches!(self.incoming.at, At::End)
            }

            fn size_hint(&self) -> SizeHint {
                self.incoming.size_hint()
            }
        }
    };
}

/// Content of a request at the server. Dropped before its end, it asks the client to stop sending.
pub struct RequestBody {
    incoming: Incoming,
}

impl RequestBody {
    /// `promised` is the content's length, if the fields have it.
    pub(crate) fn new(source: Receiver, promised: Option<u64>, give_up: GiveUp) -> Self {
        // RFC 9114 §4.1 SHOULD-3: a server that needs no more of a request stops it with H3_NO_ERROR
        Self { incoming: Incoming::new(source, promised, Code::NO_ERROR, give_up) }
    }
}

/// Content of a response at the client. Dropped before its end, the exchange is cancelled.
pub struct ResponseBody {
    incoming: Incoming,
    /// Handle that keeps the connection open while its content is read.
    _handle: Arc<Handle>,
}

impl ResponseBody {
    /// `promised` is the content's length, if the fields have it.
    pub(crate) fn new(source: Receiver, promised: Option<u64>, handle: Arc<Handle>, give_up: GiveUp) -> Self {
        // RFC 9114 §4.1.1 SHOULD-4, MUST NOT-2
        let incoming = Incoming::new(source, promised, Code::REQUEST_CANCELLED, give_up);
        Self { incoming, _handle: handle }
    }
}

body!(RequestBody);
body!(ResponseBody);
