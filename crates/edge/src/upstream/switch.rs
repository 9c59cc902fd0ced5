//! Connections that become something else than HTTP (WebSocket): asking for it, and carrying the bytes.

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::{ext::Protocol, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;

/// How a client asks for WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// By `upgrade` (RFC 6455).
    Upgrade,
    /// By an extended CONNECT (RFC 8441).
    Connect,
}

/// Whether a request asks for WebSocket.
pub(crate) fn asked<B>(request: &Request<B>) -> Option<Asked> {
    if request.method() == Method::CONNECT {
        let protocol = request.extensions().get::<Protocol>()?;
        return (protocol.as_str() == "websocket").then_some(Asked::Connect);
    }
    let upgrade = request.headers().get(header::UPGRADE)?;
    let named = request.headers().get_all(header::CONNECTION).iter().any(|value| {
        value.to_str().is_ok_and(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case("upgrade")))
    });
    let is_websocket = upgrade.as_bytes().eq_ignore_ascii_case(b"websocket");
    (named && is_websocket && request.version() == http::Version::HTTP_11).then_some(Asked::Upgrade)
}

/// Makes a request, from which [`strip`](super::fields::strip) has taken its wish away, ask a back end for WebSocket.
pub(crate) fn ask<B>(request: &mut Request<B>, how: Asked) {
    if how == Asked::Connect {
        *request.method_mut() = Method::GET;
        // The key proves nothing to the client, which has spoken HTTP/2; the back end wants one.
        let mut random = [0; 16];
        let _ = aws_lc_rs::rand::fill(&mut random);
        if let Ok(key) = HeaderValue::from_str(&base64(&random)) {
            request.headers_mut().insert(header::SEC_WEBSOCKET_KEY, key);
        }
    }
    request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    request.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
}

/// The answer for the client, when the back end has agreed.
pub(crate) fn answer<B>(response: &mut Response<B>, how: Asked) {
    match how {
        Asked::Upgrade => {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        }
        Asked::Connect => {
            *response.status_mut() = StatusCode::OK;
            response.headers_mut().remove(header::SEC_WEBSOCKET_ACCEPT);
        }
    }
}

/// Carries bytes both ways until both have ended.
pub(crate) async fn carry(client: OnUpgrade, back_end: OnUpgrade) {
    let (client, back_end) = match tokio::try_join!(client, back_end) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!("a connection did not become another: {error}");
            return;
        }
    };
    let (mut client, mut back_end) = (TokioIo::new(client), TokioIo::new(back_end));
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut back_end).await {
        tracing::debug!("a switched connection broke off: {error}");
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= chunk.len() { letter.into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_its_padding() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn who_asks_for_websocket() {
        let request = |connection: &str, upgrade: &str| {
            Request::get("/").header("connection", connection).header("upgrade", upgrade).body(()).unwrap()
        };
        assert_eq!(asked(&request("keep-alive, Upgrade", "WebSocket")), Some(Asked::Upgrade));
        assert_eq!(asked(&request("keep-alive", "websocket")), None);
        assert_eq!(asked(&request("upgrade", "h2c")), None);
        let connect = Request::connect("example.org").extension(Protocol::from_static("websocket")).body(()).unwrap();
        assert_eq!(asked(&connect), Some(Asked::Connect));
        assert_eq!(asked(&Request::connect("example.org:443").body(()).unwrap()), None);
    }
}
