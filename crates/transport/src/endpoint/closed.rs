//! Retained CONNECTION_CLOSE packets of connections whose closing period has ended, for clients that may not have received them.
//!
//! A client's handshake is confirmed by the server. Until then the client repeats only its Handshake packets, at intervals that double. The
//! next one may arrive long after the three probe timeouts for which this endpoint keeps the state of a closed connection, and a stateless
//! reset cannot answer a Handshake packet. So one sealed packet is retained as long as the client may wait, and sent again (RFC 9000
//! §10.2.1 allows the same packet).

use std::{collections::VecDeque, net::SocketAddr};

use units::Instant;
use wire::ConnectionId;

use super::Endpoint;
use crate::{connection::RetainedClose, udp::Datagram};

/// CONNECTION_CLOSE packets that are retained, of the connections that ended last.
const MAX_KEPT: usize = 256;
/// Number of times a packet is sent again.
const MAX_ANSWERS: u8 = 16;

/// Owns the retained packets, the oldest first.
#[derive(Default)]
pub(super) struct ClosedConnections(VecDeque<(RetainedClose, u8)>);

impl ClosedConnections {
    /// Retains a packet; the oldest one may be evicted.
    pub(super) fn keep(&mut self, close: RetainedClose) {
        if self.0.len() == MAX_KEPT {
            self.0.pop_front();
        }
        self.0.push_back((close, 0));
    }

    /// Answer to this number of bytes from an address.
    // RFC 9000 §10.2.1 SHOULD-1: not without end
    // RFC 9000 §10.2.1 MUST-1: three times what arrived at most
    // RFC 9000 §10.2.1 MUST-2: nothing to an address that is not validated
    fn answer(&mut self, now: Instant, id: &ConnectionId, remote: SocketAddr, bytes: usize) -> Option<Vec<u8>> {
        self.0.retain(|(close, answers)| now < close.until && *answers < MAX_ANSWERS);
        let (close, answers) = self.0.iter_mut().find(|(close, _)| close.id == *id)?;
        if close.remote != remote || close.packet.len() > 3 * bytes {
            return None;
        }
        *answers += 1;
        Some(close.packet.to_vec())
    }
}

impl Endpoint {
    /// Answers a Handshake packet for a connection that is gone with its retained CONNECTION_CLOSE, if there is one.
    // RFC 9000 §5.2.2 SHOULD-4: a Handshake packet for no known connection is ignored
    pub(super) fn repeat_close(&mut self, now: Instant, datagram: &Datagram, dcid: &ConnectionId) {
        let packet = self.closed.answer(now, dcid, datagram.remote, datagram.payload.len());
        match packet.map(|packet| self.stateless.answer(datagram, packet)) {
            Some(true) => self.stats.closes_repeated += 1,
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

    fn close(n: usize) -> RetainedClose {
        let until = Instant::from_millis(1_000);
        RetainedClose { id: id(n), remote: address(1), until, packet: vec![7; 90].into_boxed_slice() }
    }

    // RFC 9000 §10.2.1 SHOULD-1, MUST-1, MUST-2
    #[test]
    fn a_close_is_repeated_to_its_client_for_a_while() {
        let mut kept = ClosedConnections::default();
        let now = Instant::ZERO;
        kept.keep(close(1));
        assert!(kept.answer(now, &id(2), address(1), 90).is_none(), "another connection");
        assert!(kept.answer(now, &id(1), address(2), 90).is_none(), "another address");
        assert!(kept.answer(now, &id(1), address(1), 29).is_none(), "more than three times what came");
        assert_eq!(kept.answer(now, &id(1), address(1), 30), Some(vec![7; 90]));
        assert!(kept.answer(Instant::from_millis(1_000), &id(1), address(1), 90).is_none(), "too late");
        assert!(kept.0.is_empty());
        kept.keep(close(1));
        let answers = (0..100).filter(|_| kept.answer(now, &id(1), address(1), 90).is_some()).count();
        assert_eq!((answers, kept.0.len()), (usize::from(MAX_ANSWERS), 0));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut kept = ClosedConnections::default();
        (0..10_000).for_each(|n| kept.keep(close(n)));
        assert_eq!(kept.0.len(), MAX_KEPT);
        assert!(kept.answer(Instant::ZERO, &id(9_999 - MAX_KEPT), address(1), 90).is_none());
        assert!(kept.answer(Instant::ZERO, &id(10_000 - MAX_KEPT), address(1), 90).is_some());
    }
}
