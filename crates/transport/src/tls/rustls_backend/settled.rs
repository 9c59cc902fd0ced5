//! Remainder of a server's session after its handshake: results, and the exporter.
//!
//! A server has no work for TLS after it has written its tickets, and rustls' session is several times larger than this remainder.

use super::{Connection, RustlsSession};
use crate::crypto::{CipherSuite, Secret, export};
use crate::tls::{EarlyData, Level, Progress, Session, TlsError, TlsEvent, alert};

/// A server's session that has ended.
pub(super) struct Settled {
    alpn: Option<Box<[u8]>>,
    server_name: Option<Box<str>>,
    /// The client's certificates in DER; nearly always none.
    certificates: Box<[Box<[u8]>]>,
    early_data: EarlyData,
    resumed: bool,
    suite: CipherSuite,
    exporter: Secret,
}

impl Settled {
    /// Extracts the remaining results of a session; `None` if it has work left.
    pub(super) fn new(session: &mut RustlsSession) -> Option<Self> {
        let over = session.complete && !session.failed && session.events.is_empty();
        if !over || !matches!(session.connection, Connection::Server(_)) {
            return None;
        }
        let suite = session.cipher_suite()?;
        Some(Self {
            exporter: session.secrets.exporter.take()?,
            alpn: session.alpn().map(Into::into),
            server_name: session.server_name().map(Into::into),
            certificates: session.peer_certificates().into_iter().map(Into::into).collect(),
            early_data: session.early_data,
            resumed: session.is_resumed(),
            suite,
        })
    }
}

impl Session for Settled {
    fn read(&mut self, _: Level, _: &[u8]) -> Result<Progress, TlsError> {
        // RFC 9001 §6 MUST: a KeyUpdate message is an error of type unexpected_message; nothing else of a client comes
        // after its Finished.
        Err(TlsError::alert(alert::UNEXPECTED_MESSAGE, "a message after the end of the handshake"))
    }

    fn resume(&mut self) -> Result<Progress, TlsError> {
        Ok(Progress::Ready)
    }

    fn next_event(&mut self) -> Option<TlsEvent> {
        None
    }

    fn read_level(&self) -> Level {
        Level::OneRtt
    }

    fn is_complete(&self) -> bool {
        true
    }

    fn alpn(&self) -> Option<&[u8]> {
        self.alpn.as_deref()
    }

    fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    fn peer_certificates(&self) -> Vec<&[u8]> {
        self.certificates.iter().map(AsRef::as_ref).collect()
    }

    fn early_data(&self) -> EarlyData {
        self.early_data
    }

    fn is_resumed(&self) -> bool {
        self.resumed
    }

    fn cipher_suite(&self) -> Option<CipherSuite> {
        Some(self.suite)
    }

    fn export_keying_material(&self, out: &mut [u8], label: &[u8], context: Option<&[u8]>) -> Result<(), TlsError> {
        export(self.suite, &self.exporter, label, context.unwrap_or_default(), out).map_err(TlsError::internal)
    }
}
