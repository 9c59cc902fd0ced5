//! Sessions at a server.
//!
//! ```no_run
//! # async fn example(connection: tiderace::Connection) -> Result<(), Box<dyn std::error::Error>> {
//! use tiderace_webtransport::{Config, Origins, h3, server};
//!
//! let origins = Origins::List(vec!["https://www.example.org".to_owned()]);
//! let config = Config { origins, ..Config::default() };
//! let handler = |request: server::SessionRequest| async move {
//!     let protocol = request.protocols().iter().position(|one| one == "chat-2");
//!     let (session, response) = request.accept(protocol);
//!     tokio::spawn(async move {
//!         while let Ok((mut send, mut recv)) = session.accept_bi().await {
//!             if let Ok(all) = recv.read_to_end(100_000).await {
//!                 let _ = send.write_all(&all).await;
//!                 let _ = send.finish();
//!             }
//!         }
//!     });
//!     response
//! };
//! server::serve(connection, config, h3::server::Options::default(), std::future::pending(), handler).await?;
//! # Ok(())
//! # }
//! ```

use std::{future::Future, time::Duration};

use bytes::Bytes;
use h3_quic::{Code, Datagrams, Error, Protocol, RequestBody, SessionOffer, SessionStreams, server::Options};
use http::{HeaderValue, Request, Response, StatusCode, header, request::Parts, uri::Scheme};
use http_body::Body;

use crate::{
    codes,
    config::{Config, Draft, Limits},
    drive::{self, BoxError},
    flow::Flow,
    inner::Inner,
    outgoing::{Outgoing, SessionBody},
    protocols,
    session::Session,
};

/// Time limit for a client's settings, without which its draft is unknown.
const SETTINGS: Duration = Duration::from_secs(10);

/// Time for an earlier session of the client to end, where there are as many as the connection may have: a lost packet with its close
/// is sent again within it.
const PLACE: Duration = Duration::from_secs(2);

/// Field by which clients of draft 02 name their draft, and its answer.
const DRAFT02_REQUEST: &str = "sec-webtransport-http3-draft02";
const DRAFT02_RESPONSE: &str = "sec-webtransport-http3-draft";

/// Outcome of [`receive`]. `B` is the content of requests.
#[allow(clippy::large_enum_variant, reason = "moved once")]
pub enum Received<B = RequestBody> {
    /// A request for a session, which may be accepted.
    Session(SessionRequest<B>),
    /// A request for a session that is refused with this response.
    Refused(Response<SessionBody>, Refusal),
    /// Another request.
    Other(Request<B>),
}

/// Reason why [`receive`] refuses a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The client's settings do not come.
    Settings,
    /// The request, or the client's settings, lack what sessions need (draft-ietf-webtrans-http3 §3.1).
    Requirements,
    /// The connection has as many sessions as it may ([`Config::max_sessions`]).
    Sessions,
    /// The page's origin is not allowed ([`Config::origins`]).
    Origin,
}

/// A client's request for a session, with an allowed origin and all requirements of sessions.
pub struct SessionRequest<B = RequestBody> {
    head: Parts,
    body: B,
    streams: SessionStreams,
    datagrams: Datagrams,
    draft: Draft,
    flow: Flow,
    protocols: Vec<String>,
}

impl<B> SessionRequest<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    /// Head of the request: its URI and fields.
    pub fn head(&self) -> &Parts {
        &self.head
    }

    /// Origin of the page that asks; `None` for a client that is no browser.
    pub fn origin(&self) -> Option<&str> {
        self.head.headers.get(header::ORIGIN)?.to_str().ok()
    }

    /// Application protocols that the client offers, the preferred one first.
    pub fn protocols(&self) -> &[String] {
        &self.protocols
    }

    /// Accepts the session, with the application protocol at this place of [`protocols`](Self::protocols); with the response to be
    /// returned to HTTP/3.
    ///
    /// # Panics
    /// When there is no such place. Must be called within a tokio runtime.
    pub fn accept(self, protocol: Option<usize>) -> (Session, Response<SessionBody>) {
        let Self { head, body, streams, datagrams, draft, flow, mut protocols } = self;
        let protocol = protocol.map(|at| protocols.swap_remove(at));
        let outgoing = Outgoing::default();
        let mut response = Response::new(SessionBody(Some(outgoing.clone())));
        if let Some(value) = protocol.as_deref().and_then(|protocol| protocols::value(&[protocol])) {
            response.headers_mut().insert(protocols::CHOSEN, value);
        }
        if head.headers.contains_key(DRAFT02_REQUEST) {
            response.headers_mut().insert(DRAFT02_RESPONSE, HeaderValue::from_static("draft02"));
        }
        let inner = Inner::new(streams, datagrams, outgoing, protocol, draft, flow, None);
        tokio::spawn(drive::run(inner.clone(), body));
        (Session::new(inner), response)
    }

    /// Refuses the session.
    pub fn reject(self, status: StatusCode) -> Response<SessionBody> {
        refusal(status)
    }
}

fn refusal(status: StatusCode) -> Response<SessionBody> {
    let mut response = Response::new(SessionBody(None));
    *response.status_mut() = status;
    response
}

/// Takes a request that HTTP/3 hands to a service, on a connection whose options have [`Config::support`]. For servers that serve other
/// requests beside sessions; others use [`serve`]. Of `config`, limits of flow control do not count: they are those that were advertised on
/// the connection. The content may be wrapped: an [`h3_quic::Error`] in it is recognised.
pub async fn receive<B>(mut request: Request<B>, config: &Config) -> Received<B> {
    let token = request.extensions().get::<Protocol>().map(|protocol| protocol.as_str().to_owned());
    let Some(draft) = token.as_deref().and_then(Draft::of_token) else { return Received::Other(request) };
    let offer = request.extensions_mut().remove::<SessionOffer>().and_then(|offer| offer.take());
    let datagrams = request.extensions_mut().remove::<Datagrams>();
    let (Some(streams), Some(datagrams)) = (offer, datagrams) else { return Received::Other(request) };
    let (head, body) = request.into_parts();
    let give_up = |code, reason| {
        streams.give_up(code);
        Received::Refused(refusal(StatusCode::BAD_REQUEST), reason)
    };
    // draft-ietf-webtrans-http3 §7.1 MUST NOT: before the client's settings, its draft is not known
    let Ok(Ok(settings)) = tokio::time::timeout(SETTINGS, streams.peer_settings()).await else {
        return give_up(Code::REQUEST_REJECTED, Refusal::Settings);
    };
    // draft-ietf-webtrans-http3 §3.1 MUST: a session without what it requires is malformed
    if let Some(lack) = draft.lacks(&settings, streams.connection()) {
        tracing::debug!("a session is refused: {lack}");
        return give_up(Code::MESSAGE_ERROR, Refusal::Requirements);
    }
    if head.uri.scheme() != Some(&Scheme::HTTPS) {
        return give_up(Code::MESSAGE_ERROR, Refusal::Requirements);
    }
    let flow = Flow::new(Limits::advertised(&streams), Limits::of_peer(&settings));
    // draft-ietf-webtrans-http3 §5.1 MUST: one session without flow control
    let max = if flow.is_enabled() { config.max_sessions } else { config.max_sessions.min(1) };
    // The close of an earlier session may still be on its way here, on a stream of its own.
    if tokio::time::timeout(PLACE, streams.admitted(max)).await.is_err() {
        return give_up(Code::REQUEST_REJECTED, Refusal::Sessions);
    }
    // draft-ietf-webtrans-http3 §3.2 MUST: pages of other origins get 403
    let mut origins = head.headers.get_all(header::ORIGIN).iter();
    if let Some(origin) = origins.next() {
        let is_allowed = origin.to_str().is_ok_and(|origin| config.origins.allow(origin));
        if !is_allowed || origins.next().is_some() {
            return Received::Refused(refusal(StatusCode::FORBIDDEN), Refusal::Origin);
        }
    }
    let protocols = protocols::available(&head.headers);
    Received::Session(SessionRequest { head, body, streams, datagrams, draft, flow, protocols })
}

/// Serves the sessions of a connection until it has ended; other requests are answered with 404. `drain` and `options` are those of
/// [`h3_quic::server::serve`].
///
/// # Errors
/// When the client breaks a rule of HTTP/3. The end of the connection is no error.
pub async fn serve<S, F>(
    quic: tiderace::Connection,
    config: Config,
    options: Options,
    drain: impl Future<Output = ()>,
    handler: S,
) -> Result<(), Error>
where
    S: Fn(SessionRequest) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<SessionBody>> + Send + 'static,
{
    let options = Options { sessions: Some(config.support(&quic)), ..options };
    let service = move |request: Request<RequestBody>| {
        let (config, handler) = (config.clone(), handler.clone());
        async move {
            match receive(request, &config).await {
                Received::Session(request) => handler(request).await,
                Received::Refused(response, _) => response,
                Received::Other(_) => refusal(StatusCode::NOT_FOUND),
            }
        }
    };
    h3_quic::server::serve(quic, options, drain, service).await
}

/// Upgrade tokens for which [`receive`] takes requests.
pub const TOKENS: [&str; 2] = [codes::TOKEN, codes::EARLIER_TOKEN];
