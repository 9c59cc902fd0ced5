//! What the peer sends after its fields, as it comes.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use crate::{
    error::{Code, Error},
    quic::RecvStream,
};

/// The receiving half of an exchange, on either side.
trait Source {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>>;
    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, Error>>;
    fn stop(&mut self, code: Code);
}

macro_rules! source {
    ($side:ident) => {
        impl Source for h3::$side::RequestStream<RecvStream, Bytes> {
            fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
                let data = ready!(self.poll_recv_data(cx)).map_err(Error::from)?;
                // The buffer is one piece of a received packet: nothing is copied.
                Poll::Ready(Ok(data.map(|mut data| data.copy_to_bytes(data.remaining()))))
            }

            fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, Error>> {
                self.poll_recv_trailers(cx).map_err(Error::from)
            }

            fn stop(&mut self, code: Code) {
                self.stop_sending(known(code));
            }
        }
    };
}

source!(server);
source!(client);

/// `h3` has constants for codes, and no way to make others.
pub(crate) fn known(code: Code) -> h3::error::Code {
    match code {
        Code::NO_ERROR => h3::error::Code::H3_NO_ERROR,
        Code::EXCESSIVE_LOAD => h3::error::Code::H3_EXCESSIVE_LOAD,
        Code::REQUEST_REJECTED => h3::error::Code::H3_REQUEST_REJECTED,
        Code::REQUEST_CANCELLED => h3::error::Code::H3_REQUEST_CANCELLED,
        Code::MESSAGE_ERROR => h3::error::Code::H3_MESSAGE_ERROR,
        _ => h3::error::Code::H3_INTERNAL_ERROR,
    }
}

enum At {
    Data,
    Trailers,
    End,
}

/// A body on its way in. Dropped before its end, it tells the peer to send no more.
struct Incoming<S: Source> {
    source: S,
    at: At,
    /// Bytes that the fields have promised and that have not come.
    promised: Option<u64>,
    /// What the peer is told when the body is dropped before its end.
    unread: Code,
}

impl<S: Source> Incoming<S> {
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

    /// RFC 9114 §4.1.2: a message whose length is not what its fields say is malformed.
    fn mismatch(&mut self) -> Error {
        self.source.stop(Code::MESSAGE_ERROR);
        let reason = "the content is not as long as content-length says".to_owned();
        self.fail(Error::Protocol { code: Code::MESSAGE_ERROR, reason })
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.at, self.promised) {
            (At::End, _) => SizeHint::with_exact(0),
            (_, Some(left)) => SizeHint::with_exact(left),
            (_, None) => SizeHint::default(),
        }
    }
}

impl<S: Source> Drop for Incoming<S> {
    fn drop(&mut self) {
        if !matches!(self.at, At::End) {
            self.source.stop(self.unread);
        }
    }
}

macro_rules! body {
    ($(#[$doc:meta])* $name:ident, $side:ident, $unread:expr) => {
        $(#[$doc])*
        pub struct $name(Incoming<h3::$side::RequestStream<RecvStream, Bytes>>);

        impl $name {
            /// `promised` is the content's length, if the fields have it.
            pub(crate) fn new(source: h3::$side::RequestStream<RecvStream, Bytes>, promised: Option<u64>) -> Self {
                Self(Incoming { source, at: At::Data, promised, unread: $unread })
            }
        }

        impl Body for $name {
            type Data = Bytes;
            type Error = Error;

            fn poll_frame(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
                self.0.poll_frame(cx)
            }

            fn is_end_stream(&self) -> bool {
                matches!(self.0.at, At::End)
            }

            fn size_hint(&self) -> SizeHint {
                self.0.size_hint()
            }
        }
    };
}

body! {
    /// What a client sends with its request. Dropped before its end, the client is told that no more is needed.
    // RFC 9114 §4.1: a server that needs no more of a request stops it with H3_NO_ERROR.
    RequestBody, server, Code::NO_ERROR
}
body! {
    /// What a server sends with its response. Dropped before its end, the exchange is cancelled.
    ResponseBody, client, Code::REQUEST_CANCELLED
}

/// The length that the fields promise.
///
/// # Errors
/// When there are several that differ, or one that is no number: RFC 9110 §8.6.
pub(crate) fn promised(fields: &HeaderMap) -> Result<Option<u64>, Error> {
    let mut length = None;
    for value in fields.get_all(http::header::CONTENT_LENGTH) {
        let text =
            value.to_str().ok().filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
        let number = text.and_then(|text| text.parse::<u64>().ok());
        if number.is_none() || length.is_some_and(|length| Some(length) != number) {
            let reason = "content-length makes no sense".to_owned();
            return Err(Error::Protocol { code: Code::MESSAGE_ERROR, reason });
        }
        length = number;
    }
    Ok(length)
}
