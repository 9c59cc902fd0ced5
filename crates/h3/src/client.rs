//! Sends requests over a connection, as many at a time as the server lets.

use std::{future::poll_fn, pin::pin};

use bytes::Bytes;
use h3::client::RequestStream;
use http::{Request, Response};
use http_body::Body;

use crate::{
    body::{ResponseBody, known, promised},
    error::{Code, Error},
    priority,
    quic::{BidiStream, Connection, Opener, SendStream},
};

/// Bytes that the fields of a response may have (RFC 9114 §4.2.2).
const MAX_FIELDS: u64 = 256 * 1024;

/// Sends requests. Clones share the connection; with the last of them, and the last body, it is closed.
#[derive(Clone)]
pub struct SendRequest {
    inner: h3::client::SendRequest<Opener, Bytes>,
    quic: tiderace::Connection,
}

/// Begins HTTP/3 on a connection whose application protocol is [`ALPN`](crate::ALPN), and drives it on a task. Must be called
/// within a tokio runtime.
///
/// The connection may be one before its handshake is complete ([`tiderace::Connecting::into_early`]): requests with a safe method
/// then leave as early data, and the others wait for the handshake (RFC 8470 §4).
///
/// # Errors
/// When the connection is over.
pub async fn begin(quic: tiderace::Connection) -> Result<SendRequest, Error> {
    let adapter = Connection::new(quic.clone(), MAX_FIELDS);
    let mut builder = h3::client::builder();
    let (mut driver, inner) = builder.max_field_section_size(MAX_FIELDS).build(adapter).await?;
    tokio::spawn(async move {
        let end = poll_fn(|cx| driver.poll_close(cx)).await;
        tracing::debug!("the connection has ended: {end}");
    });
    Ok(SendRequest { inner, quic })
}

impl SendRequest {
    /// Sends a request with an absolute URI, and gives the response as soon as its fields are there. The request's body is
    /// sent by a task beside it.
    ///
    /// # Errors
    /// When the server or the connection fails the exchange; see [`Error::is_unprocessed`].
    pub async fn send<B>(&mut self, request: Request<B>) -> Result<Response<ResponseBody>, Error>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display + Send,
    {
        if !request.method().is_safe() && !self.quic.is_established() {
            self.quic.established().await.map_err(|reason| Error::Closed(reason.to_string()))?;
        }
        let (head, body) = request.into_parts();
        let asked = priority::of(&head.headers);
        let is_head = head.method == http::Method::HEAD;
        let stream: RequestStream<BidiStream, Bytes> = self.inner.send_request(Request::from_parts(head, ())).await?;
        self.quic.set_priority(tiderace::StreamId(stream.id().into_inner()), asked);
        let (mut send, mut recv) = stream.split();
        if body.is_end_stream() {
            match send.finish().await.map_err(Error::from) {
                // RFC 9114 §4.1: a server that has answered may need no more of the request. Its answer counts.
                Err(Error::Reset(Code::NO_ERROR)) => {}
                ended => ended?,
            }
        } else {
            tokio::spawn(async move {
                if let Err(error) = send_body(&mut send, body).await {
                    tracing::debug!("the body of a request was not sent to its end: {error}");
                }
            });
        }
        let response = loop {
            let response = recv.recv_response().await?;
            // RFC 9114 §4.1: interim responses come before the one that counts.
            if !response.status().is_informational() {
                break response;
            }
        };
        let length = promised(response.headers())?;
        // RFC 9110 §8.6: what would have come to another request, or before.
        let empty = is_head || matches!(response.status().as_u16(), 204 | 304);
        let length = length.filter(|_| !empty);
        Ok(response.map(|()| ResponseBody::new(recv, length)))
    }

    /// The connection below.
    pub fn connection(&self) -> &tiderace::Connection {
        &self.quic
    }
}

async fn send_body<B>(send: &mut RequestStream<SendStream, Bytes>, body: B) -> Result<(), Error>
where
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Display + Send,
{
    let mut body = pin!(body);
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                // What breaks off must not look complete.
                send.stop_stream(known(Code::REQUEST_CANCELLED));
                return Err(Error::Body(error.to_string()));
            }
        };
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => send.send_data(data).await?,
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    send.send_trailers(trailers).await?;
                    break;
                }
            }
        }
    }
    send.finish().await?;
    Ok(())
}
