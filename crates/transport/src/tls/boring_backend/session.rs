//! A session on BoringSSL behind [`Session`].

use std::{sync::Arc, task::Waker};

use boring::{
    error::ErrorStack,
    ssl::{NameType, Ssl},
    x509::X509VerifyError,
};
use rustls::time_provider::TimeProvider;
use wire::Side;

use super::{
    library::{self, Outcome},
    state::{Shared, State},
};
use crate::{
    crypto::CipherSuite,
    tls::{
        CertificateFault, EarlyData, HandshakeFault, Level, Progress, Session, TicketVersions, TlsError, TlsEvent,
        Waiting, alert,
        rustls_backend::{
            Tickets,
            gate::{Gate, Passage},
            ticket_check::{TicketCheck, WRONG_EARLY_SIZE},
            tickets::Limits,
        },
    },
};

const CERTIFICATE_REQUEST: u8 = 13;
/// Reasons of the library for bytes that are left over when the keys change.
const LEFT_OVER: [&str; 2] = ["BUFFERED_MESSAGES_ON_CIPHER_CHANGE", "EXCESS_HANDSHAKE_DATA"];

/// A session, and the decisions around the library.
pub(super) struct BoringSession {
    ssl: Ssl,
    side: Side,
    clock: Arc<dyn TimeProvider>,
    /// Server name requested by a client; a server's comes from the library.
    server_name: Option<String>,
    /// The peer's certificates in DER, once the handshake is complete.
    certificates: Vec<Vec<u8>>,
    complete: bool,
    failed: bool,
    waiting: bool,
    /// Client: what comes after the handshake.
    ticket_check: TicketCheck,
    /// Server: how tickets are sealed, and what its own transport parameters permit.
    tickets: Option<Arc<Tickets>>,
    limits: Limits,
    /// Server: what the ClientHello has to pass, when early data may be accepted.
    gate: Option<Gate>,
    /// Server: early data was offered, and this was decided; the library has the last word.
    verdict_due: Option<bool>,
}

impl BoringSession {
    /// A client's; its events begin at once.
    pub(super) fn client(mut ssl: Ssl, clock: Arc<dyn TimeProvider>, server_name: String) -> Result<Self, TlsError> {
        ssl.param_mut().set_time(now(&*clock)?.cast_signed());
        let mut session = Self::new(ssl, Side::Client, clock, Some(server_name));
        match session.advance()? {
            Progress::Ready => Ok(session),
            Progress::Pending(_) => Err(TlsError::internal("a client's session waits")),
        }
    }

    /// A server's.
    pub(super) fn server(
        ssl: Ssl,
        clock: Arc<dyn TimeProvider>,
        tickets: Arc<Tickets>,
        limits: Limits,
        early_data: bool,
    ) -> Self {
        let mut session = Self::new(ssl, Side::Server, clock, None);
        let version = session.with_state(|state| state.ticket_versions.offered).unwrap_or_default();
        session.gate = early_data.then(|| Gate::new(Arc::clone(&tickets), version));
        session.tickets = Some(tickets);
        session.limits = limits;
        session
    }

    fn new(ssl: Ssl, side: Side, clock: Arc<dyn TimeProvider>, server_name: Option<String>) -> Self {
        Self {
            ssl,
            side,
            clock,
            server_name,
            certificates: Vec::new(),
            complete: false,
            failed: false,
            waiting: false,
            ticket_check: TicketCheck::default(),
            tickets: None,
            limits: Limits::default(),
            gate: None,
            verdict_due: None,
        }
    }

    fn with_state<R>(&self, with: impl FnOnce(&mut State) -> R) -> Option<R> {
        library::shared(&self.ssl).map(Shared::lock).map(|mut state| with(&mut state))
    }

    /// Gives the library what has passed the gate.
    fn pass(&mut self, passage: Passage<'_>) -> Result<Progress, TlsError> {
        let (bytes, early_data) = match passage {
            Passage::Closed(progress) => return Ok(self.note(progress)),
            Passage::Open { bytes, early_data } => (bytes, early_data),
        };
        self.gate = None;
        self.verdict_due = early_data;
        let refused = early_data == Some(false);
        if refused {
            library::set_early_data(&mut self.ssl, false);
        }
        self.provide(Level::Initial, &bytes)?;
        let progress = self.advance()?;
        if refused {
            // The tickets of this connection may be used for early data again.
            library::set_early_data(&mut self.ssl, true);
        }
        Ok(progress)
    }

    fn note(&mut self, progress: Progress) -> Progress {
        self.waiting = progress != Progress::Ready;
        progress
    }

    fn provide(&mut self, level: Level, data: &[u8]) -> Result<(), TlsError> {
        library::provide(&mut self.ssl, level, data).map_err(|reasons| self.fail(&reasons))
    }

    /// Runs the library on the available bytes.
    fn advance(&mut self) -> Result<Progress, TlsError> {
        let now = now(&*self.clock)?;
        let progress = loop {
            match library::handshake(&mut self.ssl, now) {
                Outcome::WantsBytes => break Progress::Ready,
                Outcome::WantsSignature => break Progress::Pending(Waiting::Signature),
                Outcome::Failed(reasons) => return Err(self.fail(&reasons)),
                Outcome::EarlyDataRefused => {
                    self.with_state(State::on_early_data_refused);
                    library::forget_early_data(&mut self.ssl);
                }
                Outcome::Complete => {
                    self.complete = true;
                    let chain = self.ssl.peer_cert_chain();
                    let certificates = chain.into_iter().flatten().filter_map(|certificate| certificate.to_der().ok());
                    self.certificates = certificates.collect();
                    self.with_state(|state| {
                        state.on_early_data_refused();
                        state.events.push_back(TlsEvent::Complete);
                    });
                    break Progress::Ready;
                }
            }
        };
        if progress == Progress::Ready {
            self.settle_early_data();
        }
        Ok(self.note(progress))
    }

    /// Reports the result of early data at a server, once the library has decided.
    fn settle_early_data(&mut self) {
        let Some(let_through) = self.verdict_due.take() else { return };
        let accepted = self.with_state(|state| {
            let accepted = state.early_data == EarlyData::Accepted;
            if !accepted {
                state.early_data = EarlyData::Rejected;
            }
            state.events.push_back(TlsEvent::EarlyData { accepted });
            accepted
        });
        if let (true, Some(tickets)) = (let_through, &self.tickets) {
            tickets.count_verdict(accepted == Some(true));
        }
    }

    /// Bytes after the handshake.
    fn read_on(&mut self, data: &[u8]) -> Result<Progress, TlsError> {
        if self.side == Side::Client && !self.ticket_check.read(data) {
            self.failed = true;
            return Err(TlsError::violation(WRONG_EARLY_SIZE));
        }
        self.provide(Level::OneRtt, data)?;
        let now = now(&*self.clock)?;
        match library::post_handshake(&mut self.ssl, now) {
            Ok(()) => Ok(Progress::Ready),
            // RFC 9001 §4.4 MUST-2: a CertificateRequest after the handshake is PROTOCOL_VIOLATION
            Err(_) if data.first() == Some(&CERTIFICATE_REQUEST) => {
                self.failed = true;
                Err(TlsError::violation("a certificate was requested after the handshake"))
            }
            Err(reasons) => Err(self.fail(&reasons)),
        }
    }

    fn fail(&mut self, reasons: &ErrorStack) -> TlsError {
        self.failed = true;
        // RFC 9001 §4.1.3 MUST-2: handshake data left unread when newer keys come is PROTOCOL_VIOLATION
        if reasons.errors().iter().any(|error| error.reason().is_some_and(|reason| LEFT_OVER.contains(&reason))) {
            return TlsError::violation("handshake data beyond the end of its level");
        }
        let number = self.with_state(|state| state.alert).flatten().unwrap_or(alert::INTERNAL_ERROR);
        match self.ssl.verify_result() {
            Ok(()) => TlsError::alert(number, reasons.to_string()),
            Err(why) => TlsError::alert(number, format!("the certificate is not good: {}", why.error_string()))
                .with_fault(HandshakeFault::Certificate(fault(why))),
        }
    }
}

/// Cause with more detail than the library's alert.
fn fault(seen: X509VerifyError) -> CertificateFault {
    match seen {
        X509VerifyError::UNABLE_TO_GET_ISSUER_CERT
        | X509VerifyError::UNABLE_TO_GET_ISSUER_CERT_LOCALLY
        | X509VerifyError::UNABLE_TO_VERIFY_LEAF_SIGNATURE
        | X509VerifyError::DEPTH_ZERO_SELF_SIGNED_CERT
        | X509VerifyError::SELF_SIGNED_CERT_IN_CHAIN => CertificateFault::UnknownIssuer,
        X509VerifyError::HOSTNAME_MISMATCH | X509VerifyError::IP_ADDRESS_MISMATCH => CertificateFault::WrongName,
        X509VerifyError::CERT_HAS_EXPIRED => CertificateFault::Expired,
        X509VerifyError::CERT_NOT_YET_VALID => CertificateFault::NotYetValid,
        X509VerifyError::CERT_REVOKED => CertificateFault::Revoked,
        X509VerifyError::CERT_SIGNATURE_FAILURE => CertificateFault::BadSignature,
        _ => CertificateFault::Other,
    }
}

fn now(clock: &dyn TimeProvider) -> Result<u64, TlsError> {
    clock.current_time().map(|time| time.as_secs()).ok_or_else(|| TlsError::internal("the clock does not answer"))
}

impl Session for BoringSession {
    fn read(&mut self, level: Level, data: &[u8]) -> Result<Progress, TlsError> {
        if self.failed || self.waiting {
            return Err(TlsError::internal("bytes were given to a session that has failed or waits"));
        }
        // RFC 9001 §4.1.3: no data is accepted at a level once TLS has moved on from it.
        if level != self.read_level() {
            self.failed = true;
            let due = self.read_level();
            return Err(TlsError::violation(format!("handshake data at level {level:?} while {due:?} is due")));
        }
        if self.complete {
            return self.read_on(data);
        }
        if let Some(gate) = &mut self.gate {
            let passage = gate.read(data, &self.limits).inspect_err(|_| self.failed = true)?;
            return self.pass(passage);
        }
        self.provide(level, data)?;
        self.advance()
    }

    fn resume(&mut self) -> Result<Progress, TlsError> {
        if self.failed || !self.waiting {
            return Ok(Progress::Ready);
        }
        match &mut self.gate {
            Some(gate) => {
                let passage = gate.resume(&self.limits)?;
                self.pass(passage)
            }
            None => self.advance(),
        }
    }

    fn set_ticket_versions(&mut self, versions: TicketVersions) {
        self.with_state(|state| state.ticket_versions = versions);
        if let Some(gate) = &mut self.gate {
            gate.set_version(versions.offered);
        }
    }

    fn set_waker(&mut self, waker: &Waker) {
        self.with_state(|state| state.waker.clone_from(waker));
        if let Some(gate) = &mut self.gate {
            gate.set_waker(waker);
        }
    }

    fn next_event(&mut self) -> Option<TlsEvent> {
        self.with_state(|state| state.events.pop_front()).flatten()
    }

    fn read_level(&self) -> Level {
        library::read_level(&self.ssl)
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn alpn(&self) -> Option<&[u8]> {
        self.ssl.selected_alpn_protocol()
    }

    fn server_name(&self) -> Option<&str> {
        match self.side {
            Side::Client => self.server_name.as_deref(),
            Side::Server => self.ssl.servername(NameType::HOST_NAME),
        }
    }

    fn peer_certificates(&self) -> Vec<&[u8]> {
        self.certificates.iter().map(Vec::as_slice).collect()
    }

    fn early_data(&self) -> EarlyData {
        self.with_state(|state| state.early_data).unwrap_or(EarlyData::None)
    }

    fn is_resumed(&self) -> bool {
        self.ssl.session_reused()
    }

    fn cipher_suite(&self) -> Option<CipherSuite> {
        library::suite(&self.ssl)
    }

    fn export_keying_material(&self, out: &mut [u8], label: &[u8], context: Option<&[u8]>) -> Result<(), TlsError> {
        match self.complete && library::export(&self.ssl, out, label, context) {
            true => Ok(()),
            false => Err(TlsError::internal("the handshake is not complete")),
        }
    }
}
