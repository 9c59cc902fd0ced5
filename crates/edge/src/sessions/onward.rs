//! Session at a back end that speaks WebTransport. It is begun before the client has its response, so that a refusal of the back end is one to
//! the client.

use std::{sync::Arc, time::Duration};

use http::{Method, Request, StatusCode, request::Parts};
use tokio::time::timeout;
use webtransport::{Client, Config, ConnectError, Limits, Session};

use super::refusal::Refusal;
use crate::{generation::Target, observe::Entry, peer::Peer, session_route::SessionRoute, upstream::SessionDialer};

/// Session at a back end.
pub(super) struct Onward {
    pub(super) session: Session,
    /// Owner of the socket, which outlives the configuration.
    _dialer: Arc<SessionDialer>,
}

/// Refusal of a session because of its back end, with the reason in words.
type Failed = (Refusal, String);

impl SessionRoute {
    /// Begins the session at the route's back end, if that speaks WebTransport, with the application protocols that the client offers.
    ///
    /// # Errors
    /// When the back end refuses, or is not reached in time.
    pub(super) async fn begin_onward(
        &self,
        head: &Parts,
        protocols: &[&str],
        target: &Target,
        peer: &Peer,
        entry: &mut Entry,
    ) -> Result<Option<Onward>, Refusal> {
        let Some(dialer) = &self.dialer else { return Ok(None) };
        let mut uri = head.uri.clone();
        target.direct(&mut uri);
        let mut request = Request::new(());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = dialer.target(&uri);
        *request.headers_mut() = head.headers.clone();
        let fields = request.headers_mut();
        peer.introduce(fields, &entry.record.host, entry.record.early, entry.record.user.as_deref());
        // `:authority` is the back end's, as of other requests over HTTP/3.
        fields.remove(http::header::HOST);
        target.site.request(fields);
        entry.record.back_end = Some(self.config.to.clone());
        entry.record.tries = 1;
        match self.connect(dialer, request, protocols, target.route.timeout.0).await {
            Ok(session) => Ok(Some(Onward { session, _dialer: dialer.clone() })),
            Err((refusal, reason)) => {
                entry.record.error = Some(format!("{}: {reason}", self.config.to));
                Err(refusal)
            }
        }
    }

    async fn connect(
        &self,
        dialer: &SessionDialer,
        request: Request<()>,
        protocols: &[&str],
        patience: Duration,
    ) -> Result<Session, Failed> {
        let connection = dialer.connect().await.map_err(|error| match error.word {
            "timeout" => (Refusal::Timeout, error.to_string()),
            _ => (Refusal::Unreachable, error.to_string()),
        })?;
        let streams = self.config.streams_per_session as u64;
        let limits = Limits { bidi: streams, uni: streams, ..Limits::default() };
        let config = Config { limits, max_sessions: 1, ..Config::default() };
        let begun = async { Client::begin(connection, config).await?.connect(request, protocols).await };
        match timeout(patience, begun).await {
            Ok(begun) => begun.map_err(failed),
            Err(_) => Err((Refusal::Timeout, format!("no answer within {patience:?}"))),
        }
    }
}

/// Refusal for a failed request.
fn failed(error: ConnectError) -> Failed {
    let refusal = match &error {
        ConnectError::RequirementsNotMet(_) => Refusal::BackEndSupport,
        ConnectError::Refused(status) if status.is_client_error() || status.is_server_error() => {
            Refusal::BackEndStatus(*status)
        }
        // draft-ietf-webtrans-http3 §3.2 MUST NOT: a redirection is not followed
        ConnectError::Refused(_) => Refusal::BackEndStatus(StatusCode::BAD_GATEWAY),
        ConnectError::Protocol(_) => Refusal::BackEndProtocol,
        _ => Refusal::BackEndBroken,
    };
    (refusal, error.to_string())
}
