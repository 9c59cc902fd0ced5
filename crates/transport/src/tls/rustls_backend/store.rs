//! A client's [`TicketStore`] in the form of rustls' interface.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use rustls::{
    NamedGroup,
    client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue},
    pki_types::ServerName,
};

use super::secrets::Secrets;
use crate::tls::{Ticket, TicketStore, TicketVersions};

/// A session of rustls with the version of QUIC that it is for.
struct Versioned {
    version: u32,
    session: Tls13ClientSessionValue,
}

/// Servers whose way to agree on keys is remembered, so that the first ClientHello fits.
const HINTS: usize = 256;

/// Passes rustls' sessions on to the store.
#[derive(Debug)]
pub(super) struct Sessions {
    tickets: Arc<dyn TicketStore>,
    hints: Mutex<BTreeMap<String, NamedGroup>>,
}

impl Sessions {
    pub(super) fn new(tickets: Arc<dyn TicketStore>) -> Self {
        Self { tickets, hints: Mutex::default() }
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, server: ServerName<'static>, group: NamedGroup) {
        let mut hints = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        let name = server.to_str();
        // A hint that is missing costs a round trip, so any of them may go.
        if hints.len() >= HINTS && !hints.contains_key(&*name) {
            hints.pop_first();
        }
        hints.insert(name.into_owned(), group);
    }

    fn kx_hint(&self, server: &ServerName<'_>) -> Option<NamedGroup> {
        self.hints.lock().unwrap_or_else(PoisonError::into_inner).get(&*server.to_str()).copied()
    }

    // QUIC has TLS 1.3 only.
    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, server: ServerName<'static>, session: Tls13ClientSessionValue) {
        if let Some(TicketVersions { given: version, .. }) = Secrets::ticket_versions() {
            self.tickets.insert(&server.to_str(), Ticket::new(Versioned { version, session }));
        }
    }

    fn take_tls13_ticket(&self, server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let ticket: Versioned = self.tickets.take(&server.to_str())?.into_inner()?;
        // RFC 9369 §5 MUST NOT-1: a ticket does not pass from one version to the other.
        (ticket.version == Secrets::ticket_versions()?.offered).then_some(ticket.session)
    }
}
