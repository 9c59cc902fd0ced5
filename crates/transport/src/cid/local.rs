//! Connection IDs that this endpoint issued to its peer.

use std::collections::VecDeque;

use wire::{ConnectionId, ResetToken};

use super::renewal::Renewal;
use crate::error::{Code, TransportError};

/// Number of local IDs that the peer may hold at a time, also if it offers to keep more: one in use, one for a change of address at either
/// end, and one in reserve while a replacement is in flight.
const ISSUED_AT_ONCE: u64 = 3;

/// An issued ID with the data of its NEW_CONNECTION_ID frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IssuedId {
    pub(crate) sequence: u64,
    pub(crate) id: ConnectionId,
    pub(crate) reset_token: ResetToken,
}

/// Owns the IDs that route to this connection.
pub(crate) struct LocalIds {
    first: ConnectionId,
    issued: Vec<IssuedId>,
    /// Sequence numbers of the IDs that have to be sent to the peer (again).
    to_announce: VecDeque<u64>,
    /// IDs that the peer retired and the endpoint has to forget.
    retired: Vec<ConnectionId>,
    next_sequence: u64,
    /// The peer's `active_connection_id_limit`.
    peer_limit: u64,
    /// Set once the handshake is complete, when new IDs are needed.
    wanted: bool,
    renewal: Renewal,
}

impl LocalIds {
    /// Starts with the ID of the handshake, sequence number 0.
    pub(crate) fn new(first: ConnectionId, reset_token: ResetToken) -> Self {
        let mut issued = Vec::with_capacity(ISSUED_AT_ONCE as usize);
        issued.push(IssuedId { sequence: 0, id: first, reset_token });
        Self {
            first,
            issued,
            to_announce: VecDeque::new(),
            retired: Vec::new(),
            next_sequence: 1,
            peer_limit: 2,
            wanted: false,
            renewal: Renewal::default(),
        }
    }

    /// The peer's limit is known and IDs may be issued.
    pub(crate) fn start(&mut self, peer_limit: u64) {
        self.peer_limit = peer_limit;
        // An empty ID cannot be joined by others (RFC 9000 §19.15 MUST NOT-1).
        self.wanted = !self.issued[0].id.as_slice().is_empty();
    }

    /// Returns memory that is not in use.
    pub(crate) fn shrink(&mut self) {
        self.issued.shrink_to_fit();
        self.to_announce.shrink_to_fit();
        self.retired.shrink_to_fit();
    }

    /// Number of IDs that the endpoint has yet to make.
    // RFC 9000 §5.1.1 MUST NOT-1: never have more IDs outstanding than the peer's limit, those excepted that it has to retire.
    pub(crate) fn wanted(&self) -> usize {
        if !self.wanted {
            return 0;
        }
        // RFC 9000 §5.1.1 SHOULD-1: the peer always has IDs in store
        // RFC 9000 §5.1.1 SHOULD-2: a retired ID is replaced with a new one
        let target = self.peer_limit.min(ISSUED_AT_ONCE);
        let current = self.issued.iter().filter(|i| !self.renewal.is_outdated(i.sequence)).count();
        usize::try_from(target.saturating_sub(current as u64)).unwrap_or(0)
    }

    /// Replaces all IDs that the peer holds by others.
    pub(crate) fn renew(&mut self) {
        self.renewal.begin(self.next_sequence, self.oldest());
    }

    /// Lowest sequence number that the peer has not retired.
    fn oldest(&self) -> Option<u64> {
        self.issued.iter().map(|i| i.sequence).min()
    }

    /// Sequence number below which the peer has to retire IDs when it reads the announcement of this one.
    pub(crate) fn retire_prior_to(&self, sequence: u64) -> u64 {
        self.renewal.retire_prior_to(sequence)
    }

    /// The endpoint made another ID.
    pub(crate) fn issue(&mut self, id: ConnectionId, reset_token: ResetToken) {
        let sequence = self.next_sequence;
        // RFC 9000 §5.1.1 MUST-1: issued IDs are numbered without gaps
        self.next_sequence += 1;
        self.issued.push(IssuedId { sequence, id, reset_token });
        self.to_announce.push_back(sequence);
    }

    /// An ID that the transport parameters announce, with the preferred address (RFC 9000 §5.1.1).
    pub(crate) fn issue_in_parameters(&mut self, id: ConnectionId, reset_token: ResetToken) {
        self.issued.push(IssuedId { sequence: self.next_sequence, id, reset_token });
        self.next_sequence += 1;
    }

    /// The next ID for a NEW_CONNECTION_ID frame.
    pub(crate) fn next_announcement(&self) -> Option<IssuedId> {
        let sequence = *self.to_announce.front()?;
        self.issued.iter().find(|i| i.sequence == sequence).copied()
    }

    /// The announcement was written into a packet.
    pub(crate) fn announced(&mut self) {
        self.to_announce.pop_front();
    }

    /// Returns whether a NEW_CONNECTION_ID frame waits.
    pub(crate) fn wants_to_send(&self) -> bool {
        !self.to_announce.is_empty()
    }

    /// The packet with the announcement was lost.
    pub(crate) fn on_lost(&mut self, sequence: u64) {
        if self.issued.iter().any(|i| i.sequence == sequence) && !self.to_announce.contains(&sequence) {
            self.to_announce.push_back(sequence);
        }
    }

    /// RETIRE_CONNECTION_ID from the peer, in a packet addressed to `used`.
    pub(crate) fn on_retire(&mut self, sequence: u64, used: &[u8]) -> Result<(), TransportError> {
        // RFC 9000 §19.16 MUST-1, MUST-2: a sequence number that was never sent is an error.
        if sequence >= self.next_sequence {
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "retires a connection ID that was never issued"));
        }
        let Some(position) = self.issued.iter().position(|i| i.sequence == sequence) else { return Ok(()) };
        // RFC 9000 §19.16 MUST NOT: the ID that the packet itself was sent to cannot be retired by it.
        if self.issued[position].id.as_slice() == used {
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "retires the connection ID that it is sent to"));
        }
        let gone = self.issued.swap_remove(position);
        self.to_announce.retain(|&s| s != sequence);
        self.retired.push(gone.id);
        self.renewal.on_retired(self.next_sequence, self.oldest());
        Ok(())
    }

    /// The next ID that no longer routes to this connection.
    pub(crate) fn poll_retired(&mut self) -> Option<ConnectionId> {
        self.retired.pop()
    }

    /// The ID of the handshake: the source of long packets.
    pub(crate) fn first(&self) -> ConnectionId {
        self.first
    }

    /// Length of every local ID, in bytes.
    pub(crate) fn id_len(&self) -> usize {
        self.first.len()
    }

    /// All IDs that route to this connection.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        // RFC 9000 §5.1.1 MUST-2: an ID that was issued is answered to until the peer retires it
        self.issued.iter().map(|i| i.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> ConnectionId {
        ConnectionId::new(&[n; 8]).unwrap()
    }

    // RFC 9000 §5.1.1 MUST-1, SHOULD-1, MUST NOT-1, SHOULD-2
    #[test]
    fn never_more_than_the_peer_keeps() {
        let mut ids = LocalIds::new(id(0), ResetToken([0; 16]));
        assert_eq!(ids.wanted(), 0, "before the handshake the limit is not known");
        ids.start(2);
        assert_eq!(ids.wanted(), 1);
        ids.issue(id(1), ResetToken([1; 16]));
        assert_eq!(ids.wanted(), 0);
        assert_eq!(ids.next_announcement().unwrap().sequence, 1);
        ids.announced();
        ids.on_retire(0, &id(1)).unwrap();
        assert_eq!(ids.poll_retired(), Some(id(0)));
        assert_eq!(ids.wanted(), 1);
    }

    // RFC 9000 §19.16 MUST-1
    #[test]
    fn refuses_to_retire_what_was_not_issued_or_is_in_use() {
        let mut ids = LocalIds::new(id(0), ResetToken([0; 16]));
        assert_eq!(ids.on_retire(1, &id(0)).unwrap_err().code, Code::PROTOCOL_VIOLATION);
        assert_eq!(ids.on_retire(0, &id(0)).unwrap_err().code, Code::PROTOCOL_VIOLATION);
    }

    #[test]
    fn a_lost_announcement_goes_out_again_unless_retired() {
        let mut ids = LocalIds::new(id(0), ResetToken([0; 16]));
        ids.start(4);
        ids.issue(id(1), ResetToken([1; 16]));
        ids.announced();
        ids.on_lost(1);
        assert!(ids.wants_to_send());
        ids.on_retire(1, &id(0)).unwrap();
        assert!(!ids.wants_to_send());
        ids.on_lost(1);
        assert!(!ids.wants_to_send());
    }

    // RFC 9000 §5.1.1 MUST NOT-1; RFC 9000 §19.15 MUST-3
    #[test]
    fn a_renewal_replaces_all_and_the_next_one_waits_for_its_end() {
        let mut ids = LocalIds::new(id(0), ResetToken([0; 16]));
        // Before the handshake is complete, there is nothing to replace it with.
        ids.renew();
        assert_eq!(ids.wanted(), 0);
        ids.start(2);
        assert_eq!(ids.wanted(), 2, "the ID of the handshake is not counted any more");
        let issue = |ids: &mut LocalIds, n| ids.issue(id(n), ResetToken([n; 16]));
        issue(&mut ids, 1);
        issue(&mut ids, 2);
        assert_eq!((ids.wanted(), ids.retire_prior_to(2), ids.retire_prior_to(0)), (0, 1, 0));
        ids.renew();
        assert_eq!(ids.wanted(), 0, "the peer still holds the first one");
        ids.on_retire(0, &id(1)).unwrap();
        assert_eq!((ids.wanted(), ids.retire_prior_to(3)), (2, 3));
        issue(&mut ids, 3);
        issue(&mut ids, 4);
        // A lost announcement never retires the ID that it announces.
        ids.on_lost(2);
        assert_eq!(ids.retire_prior_to(2), 2);
        ids.on_retire(1, &id(3)).unwrap();
        ids.on_retire(2, &id(3)).unwrap();
        assert_eq!((ids.wanted(), ids.retire_prior_to(5)), (0, 3));
        assert_eq!(ids.iter().collect::<Vec<_>>(), [id(3), id(4)], "old ones route here until the peer retires them");
    }

    // RFC 9000 §19.15 MUST NOT-1; RFC 9000 §19.16 MUST-2
    #[test]
    fn an_empty_id_has_no_others_beside_it_and_cannot_be_retired() {
        let mut ids = LocalIds::new(ConnectionId::EMPTY, ResetToken([0; 16]));
        ids.start(8);
        assert_eq!(ids.wanted(), 0);
        for sequence in [0, 1] {
            assert_eq!(ids.on_retire(sequence, &[]).unwrap_err().code, Code::PROTOCOL_VIOLATION, "{sequence}");
        }
    }
}
