//! Settings of an endpoint, and the agreement of two endpoints (draft-ietf-webtrans-http3 §3.1, §5.1, §7.1).

use std::{fmt, sync::Arc};

use h3_quic::{PeerSettings, SessionStreams, SessionSupport};

use crate::codes;

/// Limits of each session's flow control, sent to the peer. All 0 is no flow control: then a connection has one session at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that may have come on all streams of a session and not been read.
    pub data: u64,
    /// Bidirectional streams that the peer may have open in a session.
    pub bidi: u64,
    /// Unidirectional streams that the peer may have open in a session.
    pub uni: u64,
}

impl Limits {
    /// No flow control.
    pub const NONE: Self = Self { data: 0, bidi: 0, uni: 0 };

    pub(crate) fn are_declared(self) -> bool {
        self != Self::NONE
    }

    pub(crate) fn streams(self) -> [u64; 2] {
        [self.bidi, self.uni]
    }

    /// Limits that the peer has sent.
    pub(crate) fn of_peer(settings: &PeerSettings) -> Self {
        Self::of(|id| settings.get(id))
    }

    /// Limits that this end has sent on the connection of a session, which are those that the peer may rely on.
    pub(crate) fn advertised(streams: &SessionStreams) -> Self {
        Self::of(|id| streams.own_setting(id))
    }

    fn of(value: impl Fn(u64) -> u64) -> Self {
        let [bidi, uni] = codes::WT_INITIAL_MAX_STREAMS.map(&value);
        Self { data: value(codes::WT_INITIAL_MAX_DATA), bidi, uni }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { data: 1 << 20, bidi: 64, uni: 64 }
    }
}

/// Origins whose pages may begin sessions. Clients that are no browsers send none, and pass.
#[derive(Clone)]
pub enum Origins {
    /// Any page.
    Any,
    /// Pages of these origins, such as `https://www.example.org`.
    List(Vec<String>),
    /// Pages of the origins for which this returns true.
    Check(Arc<dyn Fn(&str) -> bool + Send + Sync>),
}

impl Origins {
    pub(crate) fn allow(&self, origin: &str) -> bool {
        match self {
            Self::Any => true,
            Self::List(list) => list.iter().any(|one| one == origin),
            Self::Check(check) => check(origin),
        }
    }
}

impl fmt::Debug for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("Any"),
            Self::List(list) => f.debug_tuple("List").field(list).finish(),
            Self::Check(_) => f.write_str("Check"),
        }
    }
}

/// Settings of an end.
#[derive(Clone, Debug)]
pub struct Config {
    /// Flow control of each session, as [`support`](Self::support) advertises it. A session has the limits that were advertised on its
    /// connection.
    pub limits: Limits,
    /// Sessions that a client may have at a time on a connection; more are reset (H3_REQUEST_REJECTED). One at a time where the client
    /// does not declare flow control. Keep it below `max_requests` of HTTP/3, among which sessions count.
    pub max_sessions: usize,
    /// Streams that may arrive before their session, for each connection; more are refused (WT_BUFFERED_STREAM_REJECTED).
    pub max_early_streams: usize,
    /// Origins whose pages may begin sessions at this server; none by default.
    pub origins: Origins,
}

impl Default for Config {
    fn default() -> Self {
        let origins = Origins::List(Vec::new());
        Self { limits: Limits::default(), max_sessions: 16, max_early_streams: 16, origins }
    }
}

impl Config {
    /// Support of sessions on a connection, for HTTP/3's options. The current draft is advertised only if this endpoint accepts
    /// RESET_STREAM_AT (`streams.reset_stream_at` of its profile), which the draft requires; the drafts of browsers always are.
    pub fn support(&self, quic: &tiderace::Connection) -> SessionSupport {
        self.support_with(quic.accept_reset_at().0)
    }

    /// Support of sessions on connections whose profile accepts RESET_STREAM_AT, or does not: for
    /// [`early_data_state`](h3_quic::server::early_data_state), where there is no connection.
    pub fn support_with(&self, reset_stream_at: bool) -> SessionSupport {
        // Browsers declare no flow control, so that one session is all they may have.
        let mut settings = vec![(codes::DRAFT02_ENABLE, 1), (codes::DRAFT07_MAX_SESSIONS, 1)];
        if reset_stream_at {
            settings.push((codes::WT_ENABLED, 1));
        }
        let [bidi, uni] = codes::WT_INITIAL_MAX_STREAMS;
        let limits = [(bidi, self.limits.bidi), (uni, self.limits.uni), (codes::WT_INITIAL_MAX_DATA, self.limits.data)];
        settings.extend(limits.into_iter().filter(|(_, limit)| *limit > 0));
        SessionSupport { settings, max_early_streams: self.max_early_streams }
    }
}

/// Variant of the protocol, which the upgrade token of a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Draft {
    /// The current draft, whose upgrade token is its own.
    Current,
    /// Drafts 02 to 14, as far as they have the same format: what browsers speak.
    Earlier,
}

impl Draft {
    /// Upgrade token of requests for sessions (`:protocol`).
    pub const fn token(self) -> &'static str {
        match self {
            Self::Current => codes::TOKEN,
            Self::Earlier => codes::EARLIER_TOKEN,
        }
    }

    pub(crate) fn of_token(token: &str) -> Option<Self> {
        [Self::Current, Self::Earlier].into_iter().find(|draft| draft.token() == token)
    }

    /// Requirement of this variant that the settings of the peer, or the transport parameters, do not meet.
    pub(crate) fn lacks(self, settings: &PeerSettings, quic: &tiderace::Connection) -> Option<&'static str> {
        if !settings.datagrams || quic.max_datagram_size().is_none() {
            return Some("the peer takes no datagrams");
        }
        let enabled = match self {
            Self::Current => settings.get(codes::WT_ENABLED) == 1,
            Self::Earlier => settings.get(codes::DRAFT02_ENABLE) == 1 || settings.get(codes::DRAFT07_MAX_SESSIONS) > 0,
        };
        if !enabled {
            return Some("the peer does not support WebTransport");
        }
        // draft-ietf-webtrans-http3 §3.1: both ends advertise RESET_STREAM_AT
        if self == Self::Current && quic.accept_reset_at() != (true, true) {
            return Some("RESET_STREAM_AT was not agreed on");
        }
        None
    }
}
