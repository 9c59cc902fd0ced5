//! Support of sessions on connections: settings that are advertised before a route is known.

use webtransport::{Config, Limits, Origins};

use crate::config;

/// Settings of connections, if a route has sessions. The limits are the largest of all routes; each route checks its own.
pub(crate) fn support(config: &config::Config) -> Option<Config> {
    let streams =
        config.routes.iter().filter_map(|route| Some(route.webtransport.as_ref()?.streams_per_session)).max()?;
    let limits = Limits { bidi: streams as u64, ..Limits::default() };
    Some(Config { limits, ..with_limits(&config.limits) })
}

/// Settings for accepting sessions, with these limits of a connection. Origins are checked before.
pub(super) fn with_limits(limits: &config::Limits) -> Config {
    Config { max_sessions: limits.sessions_per_connection, origins: Origins::Any, ..Config::default() }
}
