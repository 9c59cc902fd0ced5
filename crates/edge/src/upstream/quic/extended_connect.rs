//! Requests for another protocol over QUIC: extended CONNECT (RFC 9220).

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use h3_quic::{Datagrams, Protocol};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::{
    BodyExt,
    channel::{Channel, Sender},
};

use super::{NoStream, QuicPool, exchange::ReservedRequest};
use crate::{
    body::{AnyBody, full},
    ending::BodyError,
    upstream::{SendError, tunnel::PARTS},
};

/// Value that the key of a WebSocket is hashed with (RFC 6455 §1.3).
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Stream of a back end that has agreed to a tunnel.
pub(crate) struct BackEndStream {
    pub(crate) to: Sender<Bytes, BodyError>,
    pub(crate) from: AnyBody,
    pub(crate) datagrams: Option<Datagrams>,
}

/// Stream of a tunnel in the extensions of its response.
#[derive(Clone)]
struct Carried(Arc<Mutex<Option<BackEndStream>>>);

/// Takes the stream of a tunnel from its response; `None` if the tunnel is not one over QUIC.
pub(crate) fn take_stream<B>(response: &mut Response<B>) -> Option<BackEndStream> {
    let carried = response.extensions_mut().remove::<Carried>()?;
    carried.0.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Answer to the key of a WebSocket (RFC 6455 §4.2.2), which a back end over HTTP/3 does not get (RFC 8441 §5).
fn accept(key: &HeaderValue) -> Option<HeaderValue> {
    let mut hash = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key.as_bytes());
    hash.update(WEBSOCKET_GUID);
    HeaderValue::from_str(&STANDARD.encode(hash.finish())).ok()
}

/// Fate of a request for another protocol.
pub(in crate::upstream) enum Switched {
    /// The back end's response. That of a back end that agrees has the form of HTTP/1.1: 101, with [its stream](take_stream).
    Answered(Response<AnyBody>),
    /// The back end has not acted on it. The reason.
    OverTcp(&'static str),
}

/// A request for another protocol once more: its client's end has been taken from it.
pub(in crate::upstream) fn without_content(request: &Request<AnyBody>) -> Request<AnyBody> {
    let mut copy = Request::new(full(""));
    (*copy.method_mut(), *copy.uri_mut()) = (request.method().clone(), request.uri().clone());
    *copy.headers_mut() = request.headers().clone();
    copy
}

impl QuicPool {
    /// Sends a request for another protocol, in the form of HTTP/1.1 (`upgrade`) and without content, if the back end takes such.
    ///
    /// # Errors
    /// When there is no response.
    pub(in crate::upstream) async fn switch(
        self: &Arc<Self>,
        request: Request<AnyBody>,
        queue: Duration,
    ) -> Result<Switched, SendError> {
        let reserved = match self.reserve(queue).await {
            Ok(reserved) => reserved,
            Err(NoStream::Queued) => return Err(SendError::Queued),
            Err(NoStream::FallBack) => return Ok(Switched::OverTcp("there is no connection")),
        };
        match switch(reserved, request).await {
            // RFC 9220 §3: only to a server that says that it takes such
            Err(SendError::Quic(h3_quic::Error::NoConnectProtocol)) => {
                Ok(Switched::OverTcp("the back end takes no extended CONNECT"))
            }
            // RFC 9220 §3: the answer for a protocol that a server does not support over HTTP/3
            Ok(response) if response.status() == StatusCode::NOT_IMPLEMENTED => {
                Ok(Switched::OverTcp("the back end answers with 501"))
            }
            Ok(response) => {
                self.on_answer();
                Ok(Switched::Answered(response))
            }
            Err(error) => Err(error),
        }
    }
}

async fn switch(reserved: ReservedRequest, mut request: Request<AnyBody>) -> Result<Response<AnyBody>, SendError> {
    let headers = request.headers_mut();
    headers.remove(header::CONNECTION);
    let accepted = headers.remove(header::SEC_WEBSOCKET_KEY).and_then(|key| accept(&key));
    let upgrade = headers.remove(header::UPGRADE);
    let protocol = upgrade.as_ref().and_then(|upgrade| upgrade.to_str().ok()).and_then(Protocol::new);
    *request.method_mut() = Method::CONNECT;
    if let Some(protocol) = protocol {
        request.extensions_mut().insert(protocol);
    }
    let (to, content) = Channel::new(PARTS);
    *request.body_mut() = content.boxed_unsync();
    let mut response = reserved.send(request).await?;
    *response.version_mut() = Version::default();
    if !response.status().is_success() {
        return Ok(response);
    }
    let datagrams = response.extensions_mut().remove::<Datagrams>();
    let (mut head, from) = response.into_parts();
    head.status = StatusCode::SWITCHING_PROTOCOLS;
    head.headers.extend(upgrade.map(|upgrade| (header::UPGRADE, upgrade)));
    head.headers.extend(accepted.map(|accepted| (header::SEC_WEBSOCKET_ACCEPT, accepted)));
    head.extensions.insert(Carried(Arc::new(Mutex::new(Some(BackEndStream { to, from, datagrams })))));
    Ok(Response::from_parts(head, full("")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455 §1.3.
    #[test]
    fn the_key_of_a_websocket_is_answered() {
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept(&key).unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
