//! Sessions at a client.
//!
//! ```no_run
//! # async fn example(connection: tiderace::Connection) -> Result<(), Box<dyn std::error::Error>> {
//! use tiderace_webtransport::{Client, Config};
//!
//! let mut client = Client::begin(connection, Config::default()).await?;
//! let request = http::Request::get("https://www.example.org/chat").body(())?;
//! let session = client.connect(request, &["chat-2", "chat-1"]).await?;
//! let (mut send, mut recv) = session.open_bi().await?;
//! send.write_all(b"hello").await?;
//! send.finish()?;
//! println!("{} bytes", recv.read_to_end(100_000).await?.len());
//! session.close(0, "done");
//! # Ok(())
//! # }
//! ```

use std::sync::{Arc, atomic::AtomicUsize};

use h3_quic::{
    Code, Datagrams, Protocol, SessionOffer,
    client::{self, SendRequest},
};
use http::{HeaderName, HeaderValue, Method, Request};

use crate::{
    codes,
    config::{Config, Draft, Limits},
    drive,
    error::ConnectError,
    flow::Flow,
    inner::{Inner, Place},
    outgoing::{Outgoing, SessionBody},
    protocols,
    session::Session,
};

/// A client's connection, on which sessions are begun. Clones share it.
#[derive(Clone)]
pub struct Client {
    requests: SendRequest,
    limits: Limits,
    /// Sessions that have not ended.
    sessions: Arc<AtomicUsize>,
}

impl Client {
    /// Begins HTTP/3 with sessions on a connection whose application protocol is [`h3_quic::ALPN`]. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn begin(quic: tiderace::Connection, config: Config) -> Result<Self, ConnectError> {
        let options = client::Options { sessions: Some(config.support(&quic)), ..Default::default() };
        let requests = client::begin_with(quic, options).await?;
        Ok(Self { requests, limits: config.limits, sessions: Arc::default() })
    }

    /// Sends ordinary requests over the same connection.
    pub fn requests(&self) -> SendRequest {
        self.requests.clone()
    }

    /// Begins a session at the URI of `request`, with its header fields. With `protocols`, the preferred one first, the server has to
    /// choose one of them.
    ///
    /// # Errors
    /// When the server refuses, lacks what sessions need, or chooses no protocol, or the connection fails.
    pub async fn connect(&mut self, request: Request<()>, protocols: &[&str]) -> Result<Session, ConnectError> {
        // draft-ietf-webtrans-http3 §3.1 MUST NOT: not before the server's settings
        let settings = self.requests.peer_settings().await?;
        let quic = self.requests.connection().clone();
        if settings.get(codes::WT_ENABLED) > 1 {
            quic.close(Code::SETTINGS_ERROR.0, b"SETTINGS_WT_ENABLED is neither 0 nor 1");
            return Err(ConnectError::RequirementsNotMet("the server's settings make no sense"));
        }
        if !settings.connect_protocol {
            return Err(ConnectError::RequirementsNotMet("the server does not understand extended CONNECT"));
        }
        let draft = match (Draft::Current.lacks(&settings, &quic), Draft::Earlier.lacks(&settings, &quic)) {
            (None, _) => Draft::Current,
            (_, None) => Draft::Earlier,
            (Some(lack), _) => return Err(ConnectError::RequirementsNotMet(lack)),
        };
        let flow = Flow::new(self.limits, Limits::of_peer(&settings));
        let place = Place::take(&self.sessions);
        // draft-ietf-webtrans-http3 §5.1 MUST NOT: one session without flow control
        if !flow.is_enabled() && place.before > 0 {
            return Err(ConnectError::OneSessionOnly);
        }
        let outgoing = Outgoing::default();
        let request = head(request, draft, protocols)?.map(|()| SessionBody(Some(outgoing.clone())));
        let response = self.requests.send(request).await?;
        if !response.status().is_success() {
            // draft-ietf-webtrans-http3 §3.2 MUST NOT: redirects are not followed
            return Err(ConnectError::Refused(response.status()));
        }
        let (mut head, body) = response.into_parts();
        let streams = head.extensions.remove::<SessionOffer>().and_then(|offer| offer.take());
        let (Some(streams), Some(datagrams)) = (streams, head.extensions.remove::<Datagrams>()) else {
            return Err(ConnectError::RequirementsNotMet("this end does not support sessions"));
        };
        let chosen = protocols::chosen(&head.headers);
        // draft-ietf-webtrans-http3 §3.3 MUST: what was not offered, or nothing where something is needed
        let is_offered = chosen.as_deref().is_some_and(|chosen| protocols.contains(&chosen));
        if !is_offered && (chosen.is_some() || !protocols.is_empty()) {
            streams.give_up(Code::WT_ALPN_ERROR);
            outgoing.abort();
            return Err(ConnectError::Protocol(chosen));
        }
        let inner = Inner::new(streams, datagrams, outgoing, chosen, draft, flow, Some(place));
        tokio::spawn(drive::run(inner.clone(), body));
        Ok(Session::new(inner))
    }
}

/// Field of the earlier draft.
const DRAFT02: HeaderName = HeaderName::from_static("sec-webtransport-http3-draft02");

/// Head of the request for a session.
fn head(request: Request<()>, draft: Draft, protocols: &[&str]) -> Result<Request<()>, ConnectError> {
    let (mut head, ()) = request.into_parts();
    if head.uri.scheme_str() != Some("https") {
        return Err(ConnectError::Request("has a URI that is not https"));
    }
    head.method = Method::CONNECT;
    head.extensions.insert(Protocol::from_static(draft.token()));
    // Fields of another session, where the request is forwarded, say nothing of this one.
    head.headers.remove(DRAFT02);
    head.headers.remove(protocols::AVAILABLE);
    if draft == Draft::Earlier {
        head.headers.insert(DRAFT02, HeaderValue::from_static("1"));
    }
    if !protocols.is_empty() {
        let value = protocols::value(protocols).ok_or(ConnectError::Request("has a protocol that cannot be sent"))?;
        head.headers.insert(protocols::AVAILABLE, value);
    }
    Ok(Request::from_parts(head, ()))
}
