//! Backend on rustls: its QUIC sessions behind [`Session`].

mod config;
pub(in crate::tls) mod gate;
pub(in crate::tls) mod identity;
mod packet_keys;
mod secrets;
mod settled;
mod store;
#[cfg(test)]
mod tests;
pub(in crate::tls) mod ticket_check;
pub(in crate::tls) mod tickets;
mod verifier;

use std::{collections::VecDeque, sync::Arc, task::Waker};

pub use config::{ClientBuilder, FixedClock, KeyExchange, RustlsClient, RustlsServer, ServerBuilder};
use gate::{Gate, Passage};
pub use identity::{ConfigError, Credential, Identity, List};
pub use packet_keys::crypto_provider;
use rustls::quic::{Connection, KeyChange, Version};
use rustls::{AlertDescription, HandshakeKind, HandshakeType, PeerMisbehaved};
use secrets::Secrets;
use settled::Settled;
use ticket_check::{TicketCheck, WRONG_EARLY_SIZE};
use tickets::Limits;
pub use tickets::{TicketStats, Tickets};
pub use verifier::CertificateCheck;
use wire::Side;

use super::{
    CertificateFault, Direction, EarlyData, HandshakeFault, Level, Progress, Session, TicketVersions, TlsError,
    TlsEvent, alert,
};
use crate::crypto::{CipherSuite, KeyMaterial};

fn quic_version(version: u32) -> Result<Version, TlsError> {
    match version {
        wire::version::V1 => Ok(Version::V1),
        wire::version::V2 => Ok(Version::V2),
        _ => Err(TlsError::internal(format!("QUIC version {version:#x} is not supported"))),
    }
}

/// Events of a handshake between two calls of the connection, usually.
const EVENTS: usize = 8;

/// A rustls session. It waits for the strike register only: rustls opens tickets and signs in the call.
// RFC 9001 §6 MUST NOT-1: no KeyUpdate message of TLS is sent
// RFC 9001 §8.4 MUST NOT-1: no compatibility mode of TLS 1.3
struct RustlsSession {
    connection: Connection,
    side: Side,
    /// Server name requested by a client; a server's comes from rustls.
    server_name: Option<String>,
    secrets: Secrets,
    events: VecDeque<TlsEvent>,
    /// The peer's keys of 1-RTT packets, until it may be told.
    one_rtt_keys: Option<KeyMaterial>,
    write_level: Level,
    read_level: Level,
    early_data: EarlyData,
    /// Set if a client resumes, and rustls returns the parameters of the earlier connection until it has those of this one.
    remembers_parameters: bool,
    told_parameters: bool,
    /// Server: how its tickets are sealed.
    tickets: Option<Arc<Tickets>>,
    /// Server: what its own transport parameters permit; tickets remember it.
    limits: Limits,
    /// Server: what the ClientHello has to pass.
    gate: Option<Gate>,
    complete: bool,
    /// Check of tickets at a client, after the handshake.
    ticket_check: TicketCheck,
    failed: bool,
}

impl RustlsSession {
    /// Takes over a session just made; `secrets` holds what was captured while it was made.
    fn new(connection: Connection, side: Side, server_name: Option<String>, secrets: Secrets) -> Self {
        let mut session = Self {
            remembers_parameters: side == Side::Client && connection.quic_transport_parameters().is_some(),
            connection,
            side,
            server_name,
            secrets,
            events: VecDeque::with_capacity(EVENTS),
            one_rtt_keys: None,
            write_level: Level::Initial,
            read_level: Level::Initial,
            early_data: EarlyData::None,
            told_parameters: false,
            tickets: None,
            limits: Limits::default(),
            gate: None,
            complete: false,
            ticket_check: TicketCheck::default(),
            failed: false,
        };
        session.collect();
        session
    }

    /// A server's session whose tickets are sealed by `tickets`; with `early_data`, it is decided about by them, too.
    fn with_tickets(mut self, tickets: Arc<Tickets>, limits: Limits, early_data: bool) -> Self {
        let version = self.secrets.ticket_versions.offered;
        self.gate = early_data.then(|| Gate::new(Arc::clone(&tickets), version));
        self.tickets = Some(tickets);
        self.limits = limits;
        self
    }

    /// Gives rustls what has passed the gate.
    fn pass(&mut self, passage: Passage<'_>) -> Result<Progress, TlsError> {
        let (bytes, early_data) = match passage {
            Passage::Closed(progress) => return Ok(progress),
            Passage::Open { bytes, early_data } => (bytes, early_data),
        };
        self.gate = None;
        if let (Some(false), Connection::Server(server)) = (early_data, &mut self.connection) {
            server.reject_early_data();
        }
        self.feed(&bytes)?;
        if let Some(let_through) = early_data {
            let accepted = self.early_data == EarlyData::Accepted;
            if !accepted {
                self.early_data = EarlyData::Rejected;
            }
            if let (true, Some(tickets)) = (let_through, &self.tickets) {
                tickets.count_verdict(accepted);
            }
            self.events.push_back(TlsEvent::EarlyData { accepted });
        }
        Ok(Progress::Ready)
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        if self.complete && self.side == Side::Client && !self.ticket_check.read(bytes) {
            self.failed = true;
            return Err(TlsError::violation(WRONG_EARLY_SIZE));
        }
        let Self { connection, secrets, .. } = self;
        // RFC 9001 §5.3 MUST NOT-2: an unknown cipher suite in a ClientHello is no reason to reject it
        // RFC 9001 §6 MUST-1: a KeyUpdate message of TLS is unexpected_message
        // RFC 9001 §8.2 MUST-2: a handshake without them ends with missing_extension
        match secrets.capture(|| connection.read_hs(bytes)) {
            Ok(()) => {
                self.collect();
                Ok(())
            }
            Err(error) => {
                self.failed = true;
                Err(self.error(&error))
            }
        }
    }

    /// Converts rustls' results into events.
    fn collect(&mut self) {
        self.collect_early_data();
        self.collect_parameters();
        loop {
            let mut data = Vec::new();
            let Self { connection, secrets, .. } = self;
            let change = secrets.capture(|| connection.write_hs(&mut data));
            let [local, remote] = secrets.take_keys();
            let wrote = !data.is_empty();
            if let (Level::OneRtt, Some(tickets)) = (self.write_level, &self.tickets) {
                let version = self.secrets.ticket_versions.given;
                data = tickets.seal_all(data, &mut self.secrets.sessions, version, &self.limits);
            }
            if !data.is_empty() {
                self.events.push_back(TlsEvent::Write { level: self.write_level, data });
            }
            match change {
                // What is written from here on belongs to the new level.
                Some(KeyChange::Handshake { .. }) => {
                    self.tell_secret(Level::Handshake, Direction::Local, local);
                    self.tell_secret(Level::Handshake, Direction::Remote, remote);
                    self.write_level = Level::Handshake;
                    self.read_level = Level::Handshake;
                }
                Some(KeyChange::OneRtt { .. }) => {
                    self.tell_secret(Level::OneRtt, Direction::Local, local);
                    self.one_rtt_keys = remote;
                    self.write_level = Level::OneRtt;
                }
                None if wrote => {}
                None => break,
            }
        }
        if !self.complete && !self.connection.is_handshaking() {
            self.complete = true;
            self.read_level = Level::OneRtt;
            // RFC 9001 §5.7 MUST NOT-1, MUST NOT-2, MUST NOT-3: a server does not open 1-RTT packets before the
            // handshake is complete.
            let keys = self.one_rtt_keys.take();
            self.tell_secret(Level::OneRtt, Direction::Remote, keys);
            self.collect_parameters();
            self.events.push_back(TlsEvent::Complete);
        }
    }

    /// Early data: its secret on both sides, the server's verdict on the client's.
    fn collect_early_data(&mut self) {
        let Self { connection, secrets, early_data, .. } = self;
        let accepted = match connection {
            Connection::Client(client) => client.is_early_data_accepted(),
            // rustls forgets the secret when it refuses early data. It derives keys whenever it is asked.
            Connection::Server(server) => {
                *early_data == EarlyData::None && secrets.capture(|| server.zero_rtt_keys().is_some())
            }
        };
        match (self.side, self.early_data) {
            (Side::Client, EarlyData::None) if self.secrets.client_early.is_some() => {
                self.early_data = EarlyData::Offered;
                if let Some(parameters) = self.connection.quic_transport_parameters() {
                    self.events.push_back(TlsEvent::RememberedParameters(parameters.to_vec()));
                }
                self.tell_secret(Level::ZeroRtt, Direction::Local, None);
            }
            (Side::Client, EarlyData::Offered) if accepted => {
                self.early_data = EarlyData::Accepted;
                self.events.push_back(TlsEvent::EarlyData { accepted });
            }
            (Side::Client, EarlyData::Offered) if !self.connection.is_handshaking() => {
                self.early_data = EarlyData::Rejected;
                self.events.push_back(TlsEvent::EarlyData { accepted });
            }
            (Side::Server, EarlyData::None) if accepted => {
                self.early_data = EarlyData::Accepted;
                let [keys, _] = self.secrets.take_keys();
                self.tell_secret(Level::ZeroRtt, Direction::Remote, keys);
            }
            _ => {}
        }
    }

    fn collect_parameters(&mut self) {
        if self.told_parameters {
            return;
        }
        let still_remembered = self.remembers_parameters
            && self.connection.is_handshaking()
            && self.connection.handshake_kind() != Some(HandshakeKind::Resumed);
        if still_remembered {
            return;
        }
        if let Some(parameters) = self.connection.quic_transport_parameters() {
            // The server's parameters and its verdict on early data come in one message.
            if self.side == Side::Client && self.early_data == EarlyData::Offered {
                self.early_data = EarlyData::Rejected;
                self.events.push_back(TlsEvent::EarlyData { accepted: false });
            }
            self.events.push_back(TlsEvent::PeerParameters(parameters.to_vec()));
            self.told_parameters = true;
        }
    }

    fn tell_secret(&mut self, level: Level, direction: Direction, keys: Option<KeyMaterial>) {
        let sender = match direction {
            Direction::Local => self.side,
            Direction::Remote => self.side.peer(),
        };
        let secret = match (level, sender) {
            (Level::ZeroRtt, Side::Client) => self.secrets.client_early.take(),
            (Level::Handshake, Side::Client) => self.secrets.client_handshake.take(),
            (Level::Handshake, Side::Server) => self.secrets.server_handshake.take(),
            (Level::OneRtt, Side::Client) => self.secrets.client_one_rtt.take(),
            (Level::OneRtt, Side::Server) => self.secrets.server_one_rtt.take(),
            (Level::Initial, _) | (Level::ZeroRtt, Side::Server) => None,
        };
        // Both exist whenever rustls announces keys; without them the connection could only stall, so it would show.
        if let (Some(secret), Some(suite)) = (secret, self.cipher_suite()) {
            self.events.push_back(TlsEvent::Secret { level, direction, suite, secret, keys });
        }
    }

    fn error(&self, error: &rustls::Error) -> TlsError {
        // RFC 9001 §4.4 MUST-2: a CertificateRequest after the handshake is PROTOCOL_VIOLATION
        if let rustls::Error::InappropriateHandshakeMessage { got_type: HandshakeType::CertificateRequest, .. } = error
            && self.complete
        {
            return TlsError::violation("a certificate was requested after the handshake");
        }
        // RFC 9001 §4.1.3 MUST-2: handshake data left unread when newer keys come is PROTOCOL_VIOLATION
        if matches!(error, rustls::Error::PeerMisbehaved(PeerMisbehaved::KeyEpochWithPendingFragment)) {
            return TlsError::violation("handshake data beyond the end of its level");
        }
        let number = match (self.connection.alert(), error) {
            (Some(description), _) => u8::from(description),
            (None, rustls::Error::InvalidMessage(_)) => alert::DECODE_ERROR,
            (None, rustls::Error::PeerMisbehaved(_)) => u8::from(AlertDescription::IllegalParameter),
            (None, rustls::Error::PeerIncompatible(_)) => alert::HANDSHAKE_FAILURE,
            (None, rustls::Error::NoApplicationProtocol) => alert::NO_APPLICATION_PROTOCOL,
            (None, _) => alert::INTERNAL_ERROR,
        };
        let error_for_peer = TlsError::alert(number, error.to_string());
        match fault(error) {
            Some(fault) => error_for_peer.with_fault(fault),
            None => error_for_peer,
        }
    }
}

/// Cause with more detail than rustls' alert.
fn fault(error: &rustls::Error) -> Option<HandshakeFault> {
    use rustls::CertificateError as Seen;
    Some(HandshakeFault::Certificate(match error {
        rustls::Error::NoCertificatesPresented => CertificateFault::Missing,
        rustls::Error::InvalidCertificate(seen) => match seen {
            Seen::UnknownIssuer => CertificateFault::UnknownIssuer,
            Seen::NotValidForName | Seen::NotValidForNameContext { .. } => CertificateFault::WrongName,
            Seen::Expired | Seen::ExpiredContext { .. } => CertificateFault::Expired,
            Seen::NotValidYet | Seen::NotValidYetContext { .. } => CertificateFault::NotYetValid,
            Seen::Revoked => CertificateFault::Revoked,
            Seen::BadSignature => CertificateFault::BadSignature,
            _ => CertificateFault::Other,
        },
        _ => return None,
    }))
}

impl Session for RustlsSession {
    fn read(&mut self, level: Level, data: &[u8]) -> Result<Progress, TlsError> {
        if self.failed {
            return Err(TlsError::internal("the handshake has failed"));
        }
        // RFC 9001 §4.1.3: no data is accepted at a level once TLS has moved on from it.
        if level != self.read_level {
            self.failed = true;
            let due = self.read_level;
            return Err(TlsError::violation(format!("handshake data at level {level:?} while {due:?} is due")));
        }
        let Some(gate) = &mut self.gate else {
            self.feed(data)?;
            return Ok(Progress::Ready);
        };
        match gate.read(data, &self.limits) {
            Ok(passage) => self.pass(passage),
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        }
    }

    fn resume(&mut self) -> Result<Progress, TlsError> {
        let Some(gate) = &mut self.gate else { return Ok(Progress::Ready) };
        let passage = gate.resume(&self.limits)?;
        self.pass(passage)
    }

    fn next_event(&mut self) -> Option<TlsEvent> {
        self.events.pop_front()
    }

    fn read_level(&self) -> Level {
        self.read_level
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn alpn(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    fn client_random(&self) -> Option<[u8; 32]> {
        self.secrets.client_random
    }

    fn server_name(&self) -> Option<&str> {
        match &self.connection {
            Connection::Client(_) => self.server_name.as_deref(),
            Connection::Server(server) => server.server_name(),
        }
    }

    fn peer_certificates(&self) -> Vec<&[u8]> {
        self.connection.peer_certificates().unwrap_or_default().iter().map(AsRef::as_ref).collect()
    }

    fn early_data(&self) -> EarlyData {
        self.early_data
    }

    fn is_resumed(&self) -> bool {
        self.connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    fn cipher_suite(&self) -> Option<CipherSuite> {
        CipherSuite::from_number(u16::from(self.connection.negotiated_cipher_suite()?.suite()))
    }

    fn set_ticket_versions(&mut self, versions: TicketVersions) {
        self.secrets.ticket_versions = versions;
        if let Some(gate) = &mut self.gate {
            gate.set_version(versions.offered);
        }
    }

    fn set_waker(&mut self, waker: &Waker) {
        if let Some(gate) = &mut self.gate {
            gate.set_waker(waker);
        }
    }

    fn settle(&mut self) -> Option<Box<dyn Session>> {
        Some(Box::new(Settled::new(self)?))
    }

    fn export_keying_material(&self, out: &mut [u8], label: &[u8], context: Option<&[u8]>) -> Result<(), TlsError> {
        self.connection
            .export_keying_material(out, label, context)
            .map(|_| ())
            .map_err(|error| TlsError::internal(error.to_string()))
    }
}
