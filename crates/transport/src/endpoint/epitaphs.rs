//! Goodbyes of connections whose closing period is over, for clients that still do not know.
//!
//! A client counts its handshake as confirmed when the server says so. Until then all that it sends again when nothing comes are
//! its Handshake packets, after waits that double: the next one may come long after the three probe timeouts for which this end
//! keeps the state of a connection that it has closed, and is no packet that a stateless reset could answer. So for as long as the
//! client may wait, one sealed packet is kept, and sent again (RFC 9000 §10.2.1 allows the same packet).

use std::{collections::VecDeque, net::SocketAddr};

use units::{Duration, Instant};
use wire::ConnectionId;

use super::{Datagram, Endpoint};

/// Goodbyes that are kept, of the connections that ended last.
const MAX_KEPT: usize = 256;
/// Bytes of a goodbye that is kept, at most.
pub(crate) const MAX_WORDS: usize = 300;
/// A goodbye is not kept for longer, whatever idle timeout the two ends have agreed on.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(120);
/// How often one is sent again.
const MAX_ANSWERS: u8 = 16;

/// What is left of a connection.
#[derive(Debug)]
pub(crate) struct Epitaph {
    /// The ID that the client addresses.
    pub(crate) id: ConnectionId,
    /// The client's address, which is validated.
    pub(crate) remote: SocketAddr,
    /// The client has given up by itself by then.
    pub(crate) until: Instant,
    /// A packet with the goodbye.
    pub(crate) words: Box<[u8]>,
}

/// Owns them, the oldest first.
#[derive(Default)]
pub(super) struct Epitaphs(VecDeque<(Epitaph, u8)>);

impl Epitaphs {
    /// Keeps one, for which the oldest may have to go.
    pub(super) fn keep(&mut self, epitaph: Epitaph) {
        if self.0.len() == MAX_KEPT {
            self.0.pop_front();
        }
        self.0.push_back((epitaph, 0));
    }

    /// What to answer to so many bytes that came from an address.
    // RFC 9000 §10.2.1 SHOULD-1: not without end
    // RFC 9000 §10.2.1 MUST-1: three times what arrived at most
    // RFC 9000 §10.2.1 MUST-2: nothing to an address that is not validated
    fn answer(&mut self, now: Instant, id: &ConnectionId, remote: SocketAddr, bytes: usize) -> Option<Vec<u8>> {
        self.0.retain(|(epitaph, answers)| now < epitaph.until && *answers < MAX_ANSWERS);
        let (epitaph, answers) = self.0.iter_mut().find(|(epitaph, _)| epitaph.id == *id)?;
        if epitaph.remote != remote || epitaph.words.len() > 3 * bytes {
            return None;
        }
        *answers += 1;
        Some(epitaph.words.to_vec())
    }
}

impl Endpoint {
    /// A Handshake packet for no connection that there is.
    // RFC 9000 §5.2.2 SHOULD-4: a Handshake packet for no known connection is ignored
    pub(super) fn repeat_goodbye(&mut self, now: Instant, datagram: &Datagram, dcid: &ConnectionId) {
        let words = self.epitaphs.answer(now, dcid, datagram.remote, datagram.payload.len());
        match words.map(|words| self.stateless.answer(datagram, words)) {
            Some(true) => self.stats.goodbyes_repeated += 1,
            Some(false) | None => self.stats.dropped += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    fn id(n: usize) -> ConnectionId {
        ConnectionId::new(&n.to_be_bytes()).unwrap()
    }

    fn epitaph(n: usize) -> Epitaph {
        let until = Instant::from_millis(1_000);
        Epitaph { id: id(n), remote: address(1), until, words: vec![7; 90].into_boxed_slice() }
    }

    // RFC 9000 §10.2.1 SHOULD-1, MUST-1, MUST-2
    #[test]
    fn a_goodbye_is_repeated_to_its_client_for_a_while() {
        let mut kept = Epitaphs::default();
        let now = Instant::ZERO;
        kept.keep(epitaph(1));
        assert!(kept.answer(now, &id(2), address(1), 90).is_none(), "another connection");
        assert!(kept.answer(now, &id(1), address(2), 90).is_none(), "another address");
        assert!(kept.answer(now, &id(1), address(1), 29).is_none(), "more than three times what came");
        assert_eq!(kept.answer(now, &id(1), address(1), 30), Some(vec![7; 90]));
        assert!(kept.answer(Instant::from_millis(1_000), &id(1), address(1), 90).is_none(), "too late");
        assert!(kept.0.is_empty());
        kept.keep(epitaph(1));
        let answers = (0..100).filter(|_| kept.answer(now, &id(1), address(1), 90).is_some()).count();
        assert_eq!((answers, kept.0.len()), (usize::from(MAX_ANSWERS), 0));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut kept = Epitaphs::default();
        (0..10_000).for_each(|n| kept.keep(epitaph(n)));
        assert_eq!(kept.0.len(), MAX_KEPT);
        assert!(kept.answer(Instant::ZERO, &id(9_999 - MAX_KEPT), address(1), 90).is_none());
        assert!(kept.answer(Instant::ZERO, &id(10_000 - MAX_KEPT), address(1), 90).is_some());
    }
}
