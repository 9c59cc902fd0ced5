//! Connections to a back end that speaks WebTransport: one for each session, so that no session waits for the reader of another, and the back
//! end knows each of them by its connection.

use std::time::Duration;

use http::{Uri, uri::Authority};
use tiderace::{Connection, Profile, transport::streams::StreamsConfig};

use super::{
    UNI,
    dial::{DialError, Dialer, Sockets},
};
use crate::{
    config::{Route, back_end},
    setup::SetupError,
    trust::Trust,
    upstream::{Surroundings, back_end::Host, names::Source},
    worker,
};

/// Flow control window of a session's connection, in bytes.
const WINDOW: u64 = 2 << 20;
/// Bytes of a session that wait for a back end that does not read, at most.
const SEND_BUFFER_MAX: u64 = 1 << 20;

/// Opens connections for sessions to one back end.
pub(crate) struct SessionDialer {
    dialer: Dialer,
    authority: Authority,
    /// Sockets of each worker.
    sockets: Vec<Sockets>,
}

/// Transport profile of a session's connection, on which the back end may open `streams` of each kind.
fn profile(connect_timeout: Duration, streams: u64) -> Profile {
    let base = super::profile(connect_timeout);
    Profile {
        name: "session".to_owned(),
        streams: StreamsConfig {
            send_buffer_max: SEND_BUFFER_MAX,
            receive_window_connection: WINDOW,
            max_streams_bidi: streams,
            max_streams_uni: UNI + streams,
            reset_stream_at: true,
            ..base.streams
        },
        ..base
    }
}

impl SessionDialer {
    /// Connections to `to`, verified as the route says. `streams` is the number of streams of each kind that the back end may open.
    ///
    /// # Errors
    /// When the roots of its certificate cannot be used.
    pub(crate) fn new(
        to: &str,
        (route, connect_timeout): (&Route, Duration),
        streams: u64,
        surroundings: &Surroundings<'_>,
    ) -> Result<Self, SetupError> {
        let (_, authority) = back_end(to).expect("the configuration was checked");
        let trust = if route.tls.verify { Trust::read(&route.tls.roots)? } else { Trust::Anybody };
        if trust == Trust::Anybody {
            tracing::warn!("the certificate of the back end {to} is not verified");
        }
        let mut route = route.clone();
        route.connect_timeout.0 = connect_timeout;
        let source = Source {
            route,
            trust,
            workers: surroundings.workers.handles().to_vec(),
            resolver: surroundings.resolver.clone(),
            memory: surroundings.memory.clone(),
            metrics: surroundings.metrics.clone(),
        };
        let failed =
            |error| SetupError::BackEnd { route: source.route.name(), to: to.to_owned(), source: Box::new(error) };
        let dialer = Dialer::new(&authority, Host::Url, &source, profile(connect_timeout, streams)).map_err(failed)?;
        let sockets = source.workers.iter().map(|_| Sockets::default()).collect();
        Ok(Self { dialer, authority, sockets })
    }

    /// Opens a connection, on the worker that runs the caller.
    ///
    /// # Errors
    /// When no address answers in time.
    pub(crate) async fn connect(&self) -> Result<Connection, DialError> {
        self.dialer.connect(&self.sockets[worker::current().min(self.sockets.len() - 1)]).await
    }

    /// Target of a request at the back end.
    pub(crate) fn target(&self, uri: &Uri) -> Uri {
        let path = uri.path_and_query().cloned().unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
        let target = Uri::builder().scheme("https").authority(self.authority.clone()).path_and_query(path);
        target.build().expect("all three parts are there")
    }
}
