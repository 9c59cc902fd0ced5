//! State that a session shares with the callbacks of BoringSSL: events and ticket data.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use wire::Side;

use super::{
    signer::{Signature, Signer},
    ticket::Remembered,
};
use crate::{
    crypto::{CipherSuite, Secret},
    tls::{
        Direction, EarlyData, Level, Ticket, TicketStore, TicketVersions, TlsEvent,
        rustls_backend::{
            Tickets,
            tickets::{Limits, MAX_SESSION},
        },
    },
};

/// State attached to the library's session, for its callbacks. The lock is never contended: a caller of the library releases it first.
pub(super) struct Shared(Mutex<State>);

impl Shared {
    pub(super) fn new(state: State) -> Self {
        Self(Mutex::new(state))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Owns what happens inside of the library.
pub(super) struct State {
    pub(super) side: Side,
    pub(super) events: VecDeque<TlsEvent>,
    pub(super) early_data: EarlyData,
    /// The alert that the library wants to be sent.
    pub(super) alert: Option<u8>,
    /// The peer's parameters, once known.
    pub(super) peer_parameters: Option<Vec<u8>>,
    pub(super) ticket_versions: TicketVersions,
    /// Client: where tickets go, and for which server they are.
    pub(super) store: Option<(Arc<dyn TicketStore>, String)>,
    /// Client: the server's parameters of the session that is resumed.
    pub(super) remembered: Option<Vec<u8>>,
    /// Server: its tickets, and what its own transport parameters permit, which they remember.
    pub(super) tickets: Option<Arc<Tickets>>,
    pub(super) limits: Limits,
    /// Server: sessions of unsent tickets, each with its placeholder name.
    pub(super) sessions: Vec<(Vec<u8>, Vec<u8>)>,
    /// Server: the key, if it is elsewhere, and the signature that is awaited.
    pub(super) signer: Option<Arc<dyn Signer>>,
    pub(super) signature: Option<Box<dyn Signature>>,
    /// Waker of the driver that resumes the session.
    pub(super) waker: Waker,
}

impl State {
    pub(super) fn new(side: Side, version: u32) -> Self {
        Self {
            side,
            events: VecDeque::new(),
            early_data: EarlyData::None,
            alert: None,
            peer_parameters: None,
            ticket_versions: TicketVersions::both(version),
            store: None,
            remembered: None,
            tickets: None,
            limits: Limits::default(),
            sessions: Vec::new(),
            signer: None,
            signature: None,
            waker: Waker::noop().clone(),
        }
    }

    /// The library installs a secret.
    pub(super) fn on_secret(&mut self, level: Level, direction: Direction, suite: CipherSuite, secret: Secret) {
        if level == Level::ZeroRtt {
            match self.side {
                Side::Client => {
                    self.early_data = EarlyData::Offered;
                    let parameters = self.remembered.clone().unwrap_or_default();
                    self.events.push_back(TlsEvent::RememberedParameters(parameters));
                }
                Side::Server => self.early_data = EarlyData::Accepted,
            }
        }
        self.events.push_back(TlsEvent::Secret { level, direction, suite, secret, keys: None });
    }

    /// The library has handshake bytes to send, whole messages.
    pub(super) fn on_write(&mut self, level: Level, data: &[u8]) {
        let data = match &self.tickets {
            Some(tickets) if level == Level::OneRtt => {
                let version = self.ticket_versions.given;
                tickets.seal_all(data.to_vec(), &mut self.sessions, version, &self.limits)
            }
            _ => data.to_vec(),
        };
        if !data.is_empty() {
            self.events.push_back(TlsEvent::Write { level, data });
        }
    }

    /// Takes the peer's parameters and the verdict on early data from the library; a client reports the verdict first.
    pub(super) fn on_progress(&mut self, peer_parameters: &[u8], early_data_accepted: bool) {
        if self.side == Side::Client && self.early_data == EarlyData::Offered {
            if !early_data_accepted {
                return;
            }
            self.early_data = EarlyData::Accepted;
            self.events.push_back(TlsEvent::EarlyData { accepted: true });
        }
        if self.peer_parameters.is_none() && !peer_parameters.is_empty() {
            self.peer_parameters = Some(peer_parameters.to_vec());
            self.events.push_back(TlsEvent::PeerParameters(peer_parameters.to_vec()));
        }
    }

    /// The server refuses a client's early data.
    pub(super) fn on_early_data_refused(&mut self) {
        if self.early_data == EarlyData::Offered {
            self.early_data = EarlyData::Rejected;
            self.events.push_back(TlsEvent::EarlyData { accepted: false });
        }
    }

    /// A client got a session to resume later.
    pub(super) fn on_ticket(&mut self, session: Vec<u8>) {
        let Some((store, server_name)) = &self.store else { return };
        let parameters = self.peer_parameters.clone().unwrap_or_default();
        let remembered = Remembered { version: self.ticket_versions.given, parameters, session };
        if let Some(bytes) = remembered.encode() {
            store.insert(server_name, Ticket::from_bytes(bytes));
        }
    }

    /// Stores a server's session for a ticket, and returns its placeholder name until it is sealed. `None` gives no ticket.
    pub(super) fn name_session(&mut self, session: &[u8]) -> Option<[u8; 16]> {
        if self.tickets.is_none() || session.len() > MAX_SESSION {
            return None;
        }
        let mut name = [0; 16];
        aws_lc_rs::rand::fill(&mut name).ok()?;
        self.sessions.push((name.to_vec(), session.to_vec()));
        Some(name)
    }

    /// The session in a ticket that a client shows.
    pub(super) fn open_ticket(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.tickets.as_ref()?.find(self.ticket_versions.offered, ticket)
    }

    /// Begins a signature, or polls the pending one.
    pub(super) fn sign(&mut self, scheme: u16, message: &[u8]) -> Option<Result<Vec<u8>, String>> {
        let Some(signer) = &self.signer else { return Some(Err("there is no key".to_owned())) };
        self.signature = Some(signer.sign(scheme, message));
        self.poll_signature()
    }

    /// Returns the signature, or why it failed; `None` while it is awaited.
    pub(super) fn poll_signature(&mut self) -> Option<Result<Vec<u8>, String>> {
        let Some(signature) = &mut self.signature else { return Some(Err("nothing is being signed".to_owned())) };
        let signed = signature.poll(&self.waker)?;
        self.signature = None;
        Some(signed)
    }
}
