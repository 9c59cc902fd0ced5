//! Connection for requests, of any version of HTTP.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, Request, Response, StatusCode, Uri, Version, header, request::Parts};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tiderace::Endpoint;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::{
    body::{BodyError, RequestBody, ResponseBody},
    closing::ClosingConnections,
    error::{Cause, FetchError},
    race::Leg,
    report,
    tasks::{Tasks, User},
    timeouts::Progress,
    upkeep::{Kept, Upkeep},
};

/// Limits on the memory of a TCP connection. Over HTTP/1.1: number of header fields without trailers, and bytes of the read buffer …
const H1_FIELDS: usize = 128;
const H1_BUFFER: usize = 256 * 1024;
/// … over HTTP/2: bytes of a field section, and of unread content, for a stream and in total. The connection has room for 32 streams that nobody
/// reads: when its window is full, no other stream goes on.
const H2_FIELDS: u32 = 64 * 1024;
const H2_STREAM: u32 = 2 << 20;
const H2_CONNECTION: u32 = 64 << 20;
/// Silence after which an HTTP/2 connection with a pending answer sends a PING, and time limit of its answer.
const H2_SILENCE: Duration = Duration::from_secs(20);

/// An exchange that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) cause: Cause,
    /// The server has not processed the request, so that any request may be sent again.
    pub(crate) unprocessed: bool,
}

impl From<Failed> for FetchError {
    fn from(failed: Failed) -> Self {
        Self::Exchange(failed.cause)
    }
}

/// Request to be sent; it can be sent again when it has no content.
pub(crate) struct Job {
    head: Parts,
    /// `None` without content, or once it was sent.
    body: Option<RequestBody>,
    empty: bool,
    /// A new connection did not serve it, and it was sent on another one.
    went_again: bool,
    progress: Progress,
}

impl Job {
    pub(crate) fn new(head: Parts, body: RequestBody, progress: Progress) -> Self {
        let empty = http_body::Body::is_end_stream(&body);
        Self { head, body: (!empty).then(|| progress.count(body)), empty, went_again: false, progress }
    }

    /// Progress of the content.
    pub(crate) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Sets the report of why QUIC is not used on the request, or removes it.
    pub(crate) fn report(&mut self, word: Option<&'static str>) {
        self.head.headers.remove(report::FIELD);
        self.head.headers.extend(word.map(|word| (report::FIELD, http::HeaderValue::from_static(word))));
    }

    /// Returns whether the request is safe to repeat (RFC 9110 §9.2.1), and can be repeated.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.empty && self.head.method.is_safe()
    }

    /// Returns whether it can be sent again after this failure.
    // RFC 9114 §4.1.1 SHOULD NOT-2
    pub(crate) fn survives(&self, failed: &Failed) -> bool {
        self.empty && (failed.unprocessed || self.head.method.is_idempotent())
    }

    /// Returns whether it can be sent again after this failure of a new connection, which is allowed once.
    pub(crate) fn may_go_again(&mut self, failed: &Failed) -> bool {
        self.survives(failed) && !std::mem::replace(&mut self.went_again, true)
    }

    /// The request. Its content can be taken once.
    pub(crate) fn request(&mut self) -> Request<RequestBody> {
        let nothing = || Empty::new().map_err(|never| match never {}).boxed_unsync();
        Request::from_parts(self.head.clone(), self.body.take().unwrap_or_else(nothing))
    }
}

/// Returns whether a GOAWAY without an error has left a request out: its stream has a higher number than the last one that the server
/// takes (RFC 9113 §6.8). Streams that the server takes fail in another way.
fn is_left_out(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR))
}

/// HTTP/3.
#[derive(Clone)]
pub(crate) struct Quic {
    pub(crate) endpoint: Arc<Endpoint>,
    sender: h3_quic::client::SendRequest,
    /// Ends with the last handle.
    kept: Option<Arc<Kept>>,
}

/// A connection.
pub(crate) enum Link {
    Quic(Quic),
    H2(http2::SendRequest<RequestBody>, User),
    /// One exchange at a time.
    H1(http1::SendRequest<RequestBody>),
}

impl Quic {
    /// Begins HTTP/3 on a connection, whose handshake may be in progress.
    pub(crate) async fn begin(endpoint: Arc<Endpoint>, connection: tiderace::Connection) -> Result<Self, Failed> {
        let sender = h3_quic::client::begin(connection).await;
        let sender = sender.map_err(|error| Failed { cause: (&error).into(), unprocessed: true })?;
        Ok(Self { endpoint, sender, kept: None })
    }

    /// Maintains the connection as long as there is a handle, those of bodies included.
    pub(crate) fn keep(&mut self, upkeep: &Upkeep) {
        let kept = upkeep.begin(self.endpoint.clone(), self.connection().clone());
        self.kept = Some(Arc::new(kept));
    }

    pub(crate) fn connection(&self) -> &tiderace::Connection {
        self.sender.connection()
    }

    pub(crate) async fn send(&self, mut request: Request<RequestBody>) -> Result<Response<ResponseBody>, Failed> {
        strip(request.headers_mut());
        request.headers_mut().remove(header::HOST);
        let mut sender = self.sender.clone();
        let response = sender
            .send(request)
            .await
            .map_err(|error| Failed { unprocessed: error.is_unprocessed(), cause: (&error).into() })?;
        // The body keeps the connection: it goes with it.
        Ok(response.map(|body| {
            let mut keep = Some(self.clone());
            body.map_err(BodyError::from)
                .map_frame(move |frame| {
                    let _ = &mut keep;
                    frame
                })
                .boxed_unsync()
        }))
    }
}

impl Link {
    /// HTTP over TLS on TCP, as was agreed on. The connection is driven by a task that `closing` waits for.
    pub(crate) async fn over_tls(stream: TlsStream<TcpStream>, closing: &ClosingConnections) -> Result<Self, Failed> {
        let failed = |error: hyper::Error| Failed { cause: (&error).into(), unprocessed: true };
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let io = TokioIo::new(stream);
        if is_h2 {
            let tasks = Tasks::default();
            let mut builder = http2::Builder::new(tasks.clone());
            builder.max_header_list_size(H2_FIELDS).initial_stream_window_size(H2_STREAM);
            builder.initial_connection_window_size(H2_CONNECTION);
            builder.timer(TokioTimer::new()).keep_alive_interval(H2_SILENCE).keep_alive_timeout(H2_SILENCE);
            let (sender, connection) = builder.handshake(io).await.map_err(failed)?;
            let (user, drives) = tasks.drive(connection);
            closing.await_driver(drives);
            return Ok(Self::H2(sender, user));
        }
        let (sender, connection) = h1().handshake(io).await.map_err(failed)?;
        closing.await_driver(connection);
        Ok(Self::H1(sender))
    }

    /// HTTP/1.1 without TLS.
    pub(crate) async fn plain(stream: TcpStream, closing: &ClosingConnections) -> Result<Self, Failed> {
        let failed = |error: hyper::Error| Failed { cause: (&error).into(), unprocessed: true };
        let (sender, connection) = h1().handshake(TokioIo::new(stream)).await.map_err(failed)?;
        closing.await_driver(connection);
        Ok(Self::H1(sender))
    }

    pub(crate) fn protocol(&self) -> &'static str {
        match self {
            Self::Quic(_) => "h3",
            Self::H2(..) => "h2",
            Self::H1(_) => "http/1.1",
        }
    }

    pub(crate) fn leg(&self) -> Leg {
        if matches!(self, Self::Quic(_)) { Leg::Quic } else { Leg::Tcp }
    }

    /// Returns whether a request can be sent at this moment, and the content of other responses, which nobody reads, leaves room for its
    /// response.
    pub(crate) fn is_ready(&self) -> bool {
        match self {
            Self::Quic(quic) => {
                let connection = quic.connection();
                connection.close_reason().is_none() && !connection.is_mostly_unread()
            }
            Self::H2(sender, _) => sender.is_ready(),
            Self::H1(sender) => sender.is_ready(),
        }
    }

    /// Returns whether the connection is closed.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Quic(quic) => quic.connection().close_reason().is_some(),
            Self::H2(sender, _) => sender.is_closed(),
            Self::H1(sender) => sender.is_closed(),
        }
    }

    /// Another handle, if the connection carries several exchanges at a time.
    pub(crate) fn share(&self) -> Option<Self> {
        match self {
            Self::Quic(quic) => Some(Self::Quic(quic.clone())),
            Self::H2(sender, user) => Some(Self::H2(sender.clone(), user.clone())),
            Self::H1(_) => None,
        }
    }

    /// Sends a request, and returns the answer as soon as its header section has arrived.
    pub(crate) async fn send(&mut self, mut request: Request<RequestBody>) -> Result<Response<ResponseBody>, Failed> {
        let failed = |error: &hyper::Error| Failed {
            cause: error.into(),
            // Nothing of it was sent: the connection had ended.
            unprocessed: error.is_canceled() || error.is_closed() || is_left_out(error),
        };
        match self {
            Self::Quic(quic) => quic.send(request).await,
            Self::H2(sender, user) => {
                strip(request.headers_mut());
                request.headers_mut().remove(header::HOST);
                *request.version_mut() = Version::HTTP_2;
                if let Some(uri) = without_user(request.uri()) {
                    *request.uri_mut() = uri;
                }
                let mut keep = Some(user.clone());
                let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
                let keeps = move |frame| {
                    let _ = &mut keep;
                    frame
                };
                Ok(response.map(|body| body.map_err(BodyError::from).map_frame(keeps).boxed_unsync()))
            }
            Self::H1(sender) => {
                strip(request.headers_mut());
                let (mut head, body) = request.into_parts();
                head.version = Version::HTTP_11;
                let wrong = |error: &dyn std::fmt::Display| Failed {
                    cause: Cause::not_tried(error.to_string()),
                    unprocessed: true,
                };
                let authority = head.uri.authority().map_or("", |authority| authority.as_str());
                // RFC 9110 §4.2.4: who asks does not say who it is in the host's name.
                let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
                let host = authority.parse().map_err(|error| wrong(&error))?;
                head.headers.insert(header::HOST, host);
                let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
                head.uri = path.parse().map_err(|error| wrong(&error))?;
                let request = Request::from_parts(head, body);
                let mut response = sender.send_request(request).await.map_err(|error| failed(&error))?;
                // RFC 9112 §6.3: chunks decide how long the content is, and a length beside them goes no further.
                if response.headers().contains_key(header::TRANSFER_ENCODING) {
                    response.headers_mut().remove(header::CONTENT_LENGTH);
                }
                // RFC 9110 §15.2.2: nobody has asked for another protocol.
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    let reason = "the server switches to a protocol that it was not asked for".to_owned();
                    return Err(Failed { cause: Cause::Protocol { code: None, reason }, unprocessed: false });
                }
                Ok(response.map(|body| body.map_err(BodyError::from).boxed_unsync()))
            }
        }
    }
}

/// HTTP/1.1 settings.
fn h1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_headers(H1_FIELDS).max_buf_size(H1_BUFFER);
    builder
}

/// RFC 9113 §8.3.1 MUST NOT: `:authority` has no userinfo. `None` if the URI has none.
fn without_user(uri: &Uri) -> Option<Uri> {
    let (_, host) = uri.authority()?.as_str().rsplit_once('@')?;
    let mut parts = uri.clone().into_parts();
    parts.authority = Some(host.parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// RFC 9110 §7.6.1: removes fields for one connection. `te` may say that trailers are welcome.
pub(crate) fn strip(fields: &mut HeaderMap) {
    let named: Vec<HeaderName> = fields
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let fixed = [
        header::CONNECTION,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ];
    for name in named.into_iter().chain(fixed) {
        fields.remove(name);
    }
    if fields.get(header::TE).is_some_and(|value| value != "trailers") {
        fields.remove(header::TE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_one_connection_stays_there() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("connection", "x-hop, Keep-Alive"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "gzip"),
            ("proxy-authorization", "Basic x"),
            ("transfer-encoding", "chunked"),
            ("accept", "*/*"),
        ] {
            fields.insert(HeaderName::from_static(name), value.parse().unwrap());
        }
        strip(&mut fields);
        assert_eq!(fields.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
        fields.insert(header::TE, "trailers".parse().unwrap());
        strip(&mut fields);
        assert_eq!(fields.len(), 2);
    }

    /// RFC 9114 §4.1.1 SHOULD NOT-2
    #[test]
    fn only_what_has_no_content_is_sent_twice() {
        let body = |text: &'static str| http_body_util::Full::from(text).map_err(|never| match never {}).boxed_unsync();
        let job = |method: &str, content| {
            let head = Request::builder().method(method).body(()).unwrap().into_parts().0;
            Job::new(head, body(content), Progress::default())
        };
        let seen = Failed { cause: Cause::other(""), unprocessed: false };
        let unseen = Failed { unprocessed: true, ..seen.clone() };
        for (method, content, repeatable, survives) in [
            ("GET", "", true, [true, true]),
            ("DELETE", "", false, [true, true]),
            ("POST", "", false, [false, true]),
            ("GET", "x", false, [false, false]),
            ("PUT", "x", false, [false, false]),
        ] {
            let mut job = job(method, content);
            let got = (job.is_repeatable(), [job.survives(&seen), job.survives(&unseen)]);
            assert_eq!(got, (repeatable, survives), "{method} {content}");
            let on_new = [job.may_go_again(&unseen), job.may_go_again(&unseen)];
            assert_eq!(on_new, [survives[1], false], "{method} {content}");
        }
    }
}
