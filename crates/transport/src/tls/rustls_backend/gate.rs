//! Gate in front of a server's rustls session, which cannot wait and does not ask. The session receives the ClientHello only when it is
//! complete, and when the decision on early data is made.

use std::{borrow::Cow, sync::Arc, task::Waker};

use super::tickets::{Decision, Limits, Tickets};
use crate::tls::{
    Progress, TlsError, Waiting, alert,
    client_hello::{EarlyOffer, MAX_CLIENT_HELLO},
};

/// Owns the ClientHello until then.
pub(in crate::tls) struct Gate {
    tickets: Arc<Tickets>,
    /// Version of QUIC of the tickets that the client may offer.
    version: u32,
    received: Vec<u8>,
    /// The client's offer, while the register is asked.
    asking: Option<EarlyOffer>,
    /// For the register's answer.
    waker: Waker,
}

/// Decision of the gate on handshake bytes.
pub(in crate::tls) enum Passage<'a> {
    /// The session has to wait, or for more bytes.
    Closed(Progress),
    /// The bytes go to rustls, and no others have to come here.
    Open {
        bytes: Cow<'a, [u8]>,
        /// Decision on early data, if the client offers some.
        early_data: Option<bool>,
    },
}

impl Gate {
    pub(in crate::tls) fn new(tickets: Arc<Tickets>, version: u32) -> Self {
        Self { tickets, version, received: Vec::new(), asking: None, waker: Waker::noop().clone() }
    }

    /// The client's tickets are for this version of QUIC.
    pub(in crate::tls) fn set_version(&mut self, version: u32) {
        self.version = version;
    }

    /// Waker of the driver that resumes the session.
    pub(in crate::tls) fn set_waker(&mut self, waker: &Waker) {
        self.waker.clone_from(waker);
    }

    /// Takes bytes of the client's first flight.
    pub(in crate::tls) fn read<'a>(&mut self, data: &'a [u8], limits: &Limits) -> Result<Passage<'a>, TlsError> {
        if self.asking.is_some() {
            return Err(TlsError::internal("bytes were given to a session that waits"));
        }
        if self.received.len() + data.len() > 2 * MAX_CLIENT_HELLO {
            return Err(TlsError::alert(alert::DECODE_ERROR, "too much data before a ClientHello is complete"));
        }
        // Nearly always the ClientHello comes whole, and passes without a copy.
        if self.received.is_empty()
            && let Some(offer) = EarlyOffer::peek(data)?
        {
            if let Some(early_data) = self.decide(&offer, limits) {
                return Ok(Passage::Open { bytes: Cow::Borrowed(data), early_data });
            }
            self.received.extend_from_slice(data);
            return Ok(self.wait(offer));
        }
        self.received.extend_from_slice(data);
        self.asking = EarlyOffer::peek(&self.received)?;
        self.resume(limits)
    }

    /// Asks again.
    pub(in crate::tls) fn resume(&mut self, limits: &Limits) -> Result<Passage<'static>, TlsError> {
        let Some(offer) = self.asking.take() else { return Ok(Passage::Closed(Progress::Ready)) };
        let Some(early_data) = self.decide(&offer, limits) else { return Ok(self.wait(offer)) };
        Ok(Passage::Open { bytes: Cow::Owned(std::mem::take(&mut self.received)), early_data })
    }

    /// Decision on the early data of an offer, if it makes some; `None` while the register has no answer.
    fn decide(&self, offer: &EarlyOffer, limits: &Limits) -> Option<Option<bool>> {
        if !offer.is_made {
            return Some(None);
        }
        match self.tickets.decide(offer.ticket.as_ref(), self.version, limits, &self.waker) {
            Decision::Accept => Some(Some(true)),
            Decision::Refuse => Some(Some(false)),
            Decision::Wait => None,
        }
    }

    /// Keeps the offer until the register answers.
    fn wait(&mut self, offer: EarlyOffer) -> Passage<'static> {
        self.asking = Some(offer);
        Passage::Closed(Progress::Pending(Waiting::Ticket))
    }
}
