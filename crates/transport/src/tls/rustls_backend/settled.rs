//! Remainder of a server's session after its handshake: results, and the exporter.
//!
//! A server has no work for TLS after it has written its tickets, and rustls' session is several times larger than this remainder.

use super::{Connection, RustlsSession};
use crate::crypto::{CipherSuite, Secret, export};
use crate::tls::{EarlyData, Level, Progress, Session, TlsError, TlsEvent, alert};

/// A server's session that has ended.
pub(super) struct Settled {
    /// The application protocol, then the server's name: one allocation for as long as the connection lasts.
    names: Box<[u8]>,
    /// Length of the protocol in `names`; `None` if none was agreed on.
    alpn_len: Option<usize>,
    /// The client named the server.
    is_named: bool,
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
        let (alpn, name) = (session.alpn(), session.server_name());
        let names = [alpn.unwrap_or_default(), name.unwrap_or_default().as_bytes()].concat().into();
        let (alpn_len, is_named) = (alpn.map(<[u8]>::len), name.is_some());
        Some(Self {
            exporter: session.secrets.exporter.take()?,
            names,
            alpn_len,
            is_named,
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
        self.alpn_len.map(|len| &self.names[..len])
    }

    fn server_name(&self) -> Option<&str> {
        let name = &self.names[self.alpn_len.unwrap_or(0)..];
        self.is_named.then(|| std::str::from_utf8(name).expect("it was made of a string"))
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
