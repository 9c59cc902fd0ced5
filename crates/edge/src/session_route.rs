//! Configured WebTransport sessions of a route, and their support on connections, which is advertised before a route is known.

use std::sync::Arc;

use webtransport::{Config, Limits, Origins, server};

use crate::{
    config,
    masque::{ClientLimits, Clients},
    metrics::Metrics,
    setup::SetupError,
    stream_target::StreamTarget,
    upstream::{SessionDialer, Surroundings},
};

/// Sessions of a route.
pub(crate) struct SessionRoute {
    pub(crate) config: config::WebTransport,
    pub(crate) target: Arc<StreamTarget>,
    /// Connections to a back end that speaks WebTransport itself.
    pub(crate) dialer: Option<Arc<SessionDialer>>,
    pub(crate) limits: ClientLimits,
    pub(crate) clients: Arc<Clients>,
    pub(crate) settings: webtransport::Config,
    pub(crate) metrics: Arc<Metrics>,
}

impl SessionRoute {
    /// Configured sessions of a route.
    ///
    /// # Errors
    /// When the certificates that a back end is verified by cannot be used.
    pub(crate) fn new(
        (route, config): (&config::Route, &config::WebTransport),
        limits: &config::Limits,
        clients: &Arc<Clients>,
        surroundings: &Surroundings<'_>,
    ) -> Result<Self, SetupError> {
        let stream = config::Stream {
            to: config.to.clone(),
            datagrams_to: config.datagrams_to.clone(),
            proxy_protocol: config.proxy_protocol,
            connect_timeout: config.connect_timeout,
            ..config::Stream::default()
        };
        let dialer = config.is_passed_on().then(|| {
            let streams = config.streams_per_session as u64;
            SessionDialer::new(&config.to, (route, config.connect_timeout.0), streams, surroundings)
        });
        Ok(Self {
            target: Arc::new(StreamTarget::new(&stream, surroundings.places)),
            dialer: dialer.transpose()?.map(Arc::new),
            limits: ClientLimits {
                total: limits.sessions,
                tunnels: config.sessions_per_client,
                opened_per_second: config.begun_per_second,
                bytes_per_second: None,
            },
            clients: clients.clone(),
            settings: with_limits(limits),
            metrics: surroundings.metrics.clone(),
            config: config.clone(),
        })
    }

    /// Returns whether requests of the route may become this.
    pub(crate) fn carries(protocol: &str) -> bool {
        server::TOKENS.contains(&protocol)
    }
}

/// Settings of connections, if a route has sessions. The limits are the largest of all routes; each route checks its own.
pub(crate) fn support(config: &config::Config) -> Option<Config> {
    let streams =
        config.routes.iter().filter_map(|route| Some(route.webtransport.as_ref()?.streams_per_session)).max()?;
    let limits = Limits { bidi: streams as u64, ..Limits::default() };
    Some(Config { limits, ..with_limits(&config.limits) })
}

/// Settings for accepting sessions, with these limits of a connection. Origins are checked before.
fn with_limits(limits: &config::Limits) -> Config {
    Config { max_sessions: limits.sessions_per_connection, origins: Origins::Any, ..Config::default() }
}
