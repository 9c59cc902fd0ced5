//! Interface between the transport and TLS (RFC 9001 §4).
//!
//! The transport carries handshake bytes and protects packets; a [`Session`] does TLS. The session provides traffic *secrets*, not keys, so
//! a backend does not need to know packets. It may return *pending* wherever a server's answer can depend on an external service.
//!
//! Backends: [`rustls_backend`]; with the feature `boringssl` also `boring_backend`, whose tickets can be written to a file and whose
//! servers can wait for signatures. With the feature `testing`, `testing` has a backend without cryptography, and one that delays another.

#[macro_use]
mod server_settings;

#[cfg(feature = "boringssl")]
pub mod boring_backend;
pub mod client_hello;
mod fault;
pub mod rustls_backend;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tickets;

use std::{borrow::Cow, task::Waker};

pub use fault::{CertificateFault, HandshakeFault};
pub use tickets::{MemoryTickets, Ticket, TicketStore};

use crate::crypto::{CipherSuite, KeyMaterial, Secret};
use crate::error::{Code, TransportError};

/// An encryption level: which keys protect a packet (RFC 9001 §2.1).
pub use wire::PacketKind as Level;

/// The end that seals with a secret, seen from this endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Secret of the packets of this endpoint.
    Local,
    /// The peer seals its packets with it.
    Remote,
}

/// Result that a session waits for. The transport does not act on it; it is for logs, and for the task that resumes the
/// session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// Validity of a session ticket: its decryption, or the check for replayed early data.
    Ticket,
    /// A signature by a private key that is elsewhere.
    Signature,
}

/// State of a session after bytes were given to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// The session has processed all bytes.
    Ready,
    /// The session waits; it takes no more bytes until [`Session::resume`] returned [`Progress::Ready`].
    Pending(Waiting),
}

/// Event of a session for the transport. Events take effect in their order.
#[derive(Clone, Debug)]
pub enum TlsEvent {
    /// Handshake bytes to be sent at this level.
    Write {
        /// Never [`Level::ZeroRtt`].
        level: Level,
        /// The bytes that follow those written before at this level.
        data: Vec<u8>,
    },
    /// A secret became usable.
    ///
    /// The transport can act upon these at once: a server gets the secret for receiving 1-RTT packets only when the
    /// handshake is complete (RFC 9001 §5.7).
    Secret {
        /// Never [`Level::Initial`], whose secrets do not come from TLS.
        level: Level,
        /// The end that uses it.
        direction: Direction,
        /// The suite it is meant for.
        suite: CipherSuite,
        /// The secret.
        secret: Secret,
        /// Keys that the backend has derived from it for packets.
        keys: Option<KeyMaterial>,
    },
    /// The transport parameters of the peer, as they were on the wire. They are authenticated once the handshake is
    /// complete.
    PeerParameters(Vec<u8>),
    /// A client resumes with early data: the server's parameters of the earlier connection (RFC 9000 §7.4.1).
    RememberedParameters(Vec<u8>),
    /// Result of early data: at a client that offered it, or at a server that decided about it. At a client it precedes
    /// [`TlsEvent::PeerParameters`].
    EarlyData {
        /// Early data was accepted. Otherwise everything sent in 0-RTT packets has to be sent again.
        accepted: bool,
    },
    /// The handshake is complete (RFC 9001 §4.1.1): the peer's Finished message has been verified.
    Complete,
}

/// The versions of QUIC that tickets belong to; see [`Session::set_ticket_versions`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TicketVersions {
    /// Version of the tickets that a client may offer.
    pub offered: u32,
    /// Version of the tickets that a server gives.
    pub given: u32,
}

impl TicketVersions {
    /// One version for all.
    pub(crate) fn both(version: u32) -> Self {
        Self { offered: version, given: version }
    }
}

/// Outcome of early data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyData {
    /// The client did not offer any, or the session does not know yet.
    #[default]
    None,
    /// A client offers it and waits for the server's decision.
    Offered,
    /// The server takes it.
    Accepted,
    /// The server refuses it.
    Rejected,
}

/// A handshake that failed, or a session used in a wrong way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("TLS: {reason} ({code})")]
#[non_exhaustive]
pub struct TlsError {
    /// Error code for the peer: `CRYPTO_ERROR` with a TLS alert, except for violations of QUIC's own rules.
    pub code: Code,
    /// Cause for callers. An error that [`alert`](Self::alert) makes has the one of the alert.
    pub fault: HandshakeFault,
    /// Description of the fault.
    pub reason: Cow<'static, str>,
}

/// The TLS alerts that this crate raises itself (RFC 8446 §6).
pub mod alert {
    /// Alert for a message that is not expected at this point.
    pub const UNEXPECTED_MESSAGE: u8 = 10;
    /// No parameters that both sides accept.
    pub const HANDSHAKE_FAILURE: u8 = 40;
    /// A message that cannot be read.
    pub const DECODE_ERROR: u8 = 50;
    /// A fault of this endpoint.
    pub const INTERNAL_ERROR: u8 = 80;
    /// The server does not serve this name.
    pub const UNRECOGNIZED_NAME: u8 = 112;
    /// No application protocol that both sides speak.
    pub const NO_APPLICATION_PROTOCOL: u8 = 120;
}

impl TlsError {
    /// An error that is sent as this TLS alert.
    // RFC 9001 §4.8 MUST-1: an alert becomes a connection error of 0x0100 plus its number.
    pub fn alert(alert: u8, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { code: Code::crypto(alert), fault: HandshakeFault::of_alert(alert), reason: reason.into() }
    }

    /// Server name that no handshake can begin with.
    pub fn invalid_server_name(name: &str) -> Self {
        Self::internal(format!("{name:?} is neither a DNS name nor an IP address"))
            .with_fault(HandshakeFault::InvalidServerName)
    }

    /// Violation of QUIC's own rules by the peer: PROTOCOL_VIOLATION.
    pub fn violation(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { code: Code::PROTOCOL_VIOLATION, fault: HandshakeFault::Violation, reason: reason.into() }
    }

    /// The same error with a cause that its alert does not name.
    #[must_use]
    pub fn with_fault(mut self, fault: HandshakeFault) -> Self {
        self.fault = fault;
        self
    }

    /// An error of this endpoint.
    pub fn internal(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::alert(alert::INTERNAL_ERROR, reason)
    }
}

impl From<TlsError> for TransportError {
    fn from(error: TlsError) -> Self {
        // The frame that leads to errors of the handshake is CRYPTO (RFC 9000 §19.6).
        Self::new(error.code, error.reason).in_frame(0x06)
    }
}

/// TLS session: one handshake, and the state after it.
///
/// Give it the peer's bytes in order with [`read`](Self::read); after each `read` and each `resume`, take events until
/// there are none. A client's session has events right after its start. An error is final.
pub trait Session: Send {
    /// Takes handshake bytes of the peer, in order within their level. Messages may be split anywhere.
    ///
    /// Bytes at a level other than [`read_level`](Self::read_level) are an error of the peer. While the session is
    /// pending, calling this is an error of the caller; keep the bytes until it has been resumed.
    fn read(&mut self, level: Level, data: &[u8]) -> Result<Progress, TlsError>;

    /// Takes whom to wake when a pending session is worth [resuming](Self::resume). Called before the first byte is given; a
    /// session that never waits has no use for it.
    fn set_waker(&mut self, _: &Waker) {}

    /// Asks a pending session to try again; a session that does not wait answers [`Progress::Ready`].
    fn resume(&mut self) -> Result<Progress, TlsError>;

    /// The next thing to do.
    fn next_event(&mut self) -> Option<TlsEvent>;

    /// The level at which the peer's next handshake bytes are due.
    fn read_level(&self) -> Level;

    /// Returns whether the peer's Finished message has been verified.
    fn is_complete(&self) -> bool;

    /// The application protocol that was agreed.
    fn alpn(&self) -> Option<&[u8]>;

    /// Server name requested by the client.
    fn server_name(&self) -> Option<&str>;

    /// The peer's certificates in DER, its own first; empty when there are none.
    fn peer_certificates(&self) -> Vec<&[u8]>;

    /// Outcome of early data.
    fn early_data(&self) -> EarlyData;

    /// Returns whether the handshake resumed an earlier session. Meaningful once it is complete; `false` from a backend that cannot
    /// resume.
    fn is_resumed(&self) -> bool {
        false
    }

    /// The cipher suite that was agreed.
    fn cipher_suite(&self) -> Option<CipherSuite>;

    /// Sets the versions of QUIC of tickets: offered ones are of the version of the client's first packet, issued ones of the negotiated
    /// version. A session starts with one version for both; this is called if they differ, at a server before its first byte.
    // RFC 9369 §5 MUST NOT-1, MUST-1
    fn set_ticket_versions(&mut self, _: TicketVersions) {}

    /// Random bytes of the ClientHello, by which key logs name the connection, once there is a secret; `None` from a backend without it.
    fn client_random(&self) -> Option<[u8; 32]> {
        None
    }

    /// Returns a smaller replacement for this session that answers all getters and does no more work; `None` if the session is needed
    /// unchanged. Called once the handshake is confirmed and no event is left; after a replacement, the session itself is not used any
    /// more.
    fn settle(&mut self) -> Option<Box<dyn Session>> {
        None
    }

    /// Fills `out` with key material that only the two endpoints know (RFC 8446 §7.5).
    fn export_keying_material(&self, out: &mut [u8], label: &[u8], context: Option<&[u8]>) -> Result<(), TlsError>;
}

/// A client's TLS configuration.
pub trait ClientTls: Send + Sync {
    /// Starts a handshake with the server called `server_name`, a DNS name or an IP address. `version` is the QUIC
    /// version, `parameters` the encoded transport parameters.
    fn start(&self, version: u32, server_name: &str, parameters: Vec<u8>) -> Result<Box<dyn Session>, TlsError>;
}

/// A server's TLS configuration.
pub trait ServerTls: Send + Sync {
    /// Starts a handshake with a client. `version` is the QUIC version, `parameters` the encoded transport parameters.
    fn start(&self, version: u32, parameters: Vec<u8>) -> Result<Box<dyn Session>, TlsError>;
}
