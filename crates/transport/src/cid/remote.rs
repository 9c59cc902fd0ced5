//! Connection IDs that the peer issued to this endpoint.

use std::collections::VecDeque;

use wire::{ConnectionId, ResetToken};

use crate::{
    error::{Code, TransportError},
    sent::PathIndex,
};

/// Our `active_connection_id_limit`: how many of the peer's IDs we keep.
// RFC 9000 §18.2 MUST-2: active_connection_id_limit is at least 2
pub(crate) const ACTIVE_LIMIT: u64 = 4;

/// Number of retirements that may wait for an acknowledgement. A peer that makes us retire faster than it acknowledges grows
/// our memory (RFC 9000 §5.1.2 recommends at least twice the limit).
// RFC 9000 §5.1.2 SHOULD-4: at least twice as many retirements as IDs in store can be on the way
const RETIREMENTS_LIMIT: usize = 4 * ACTIVE_LIMIT as usize;

/// Spare IDs that peers usually issue after the handshake: room for them is made at once.
const USUAL_SPARE: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offered {
    sequence: u64,
    id: ConnectionId,
    reset_token: Option<ResetToken>,
}

/// Owns the IDs to which this endpoint may address packets.
pub(crate) struct RemoteIds {
    /// On the path in use.
    current: Offered,
    /// On other paths. RFC 9000 §9.5 MUST NOT: one ID for two destinations.
    parked: Vec<(PathIndex, Offered)>,
    spare: VecDeque<Offered>,
    /// The highest sequence number that was ever taken into use.
    taken: u64,
    retire_prior_to: u64,
    to_retire: VecDeque<u64>,
    /// Sequence numbers of retirements sent and not yet acknowledged.
    unacknowledged: Vec<u64>,
}

impl RemoteIds {
    /// Starts with the ID of the handshake, sequence number 0.
    pub(crate) fn new(first: ConnectionId) -> Self {
        Self {
            current: Offered { sequence: 0, id: first, reset_token: None },
            parked: Vec::new(),
            taken: 0,
            spare: VecDeque::new(),
            retire_prior_to: 0,
            to_retire: VecDeque::new(),
            unacknowledged: Vec::new(),
        }
    }

    /// Returns memory that is not in use.
    pub(crate) fn shrink(&mut self) {
        self.spare.shrink_to_fit();
        self.to_retire.shrink_to_fit();
        self.unacknowledged.shrink_to_fit();
    }

    /// The ID that packets are addressed to.
    #[inline]
    pub(crate) fn current(&self) -> &ConnectionId {
        &self.current.id
    }

    /// Replaces the ID that the client has chosen by that of the peer's first packet (RFC 9000 §7.2).
    pub(crate) fn replace_first(&mut self, id: ConnectionId) {
        debug_assert_eq!(self.current.sequence, 0);
        self.current.id = id;
    }

    /// The reset token of the first ID, from the transport parameters.
    pub(crate) fn set_first_token(&mut self, token: ResetToken) {
        if self.current.sequence == 0 {
            self.current.reset_token = Some(token);
        }
    }

    /// NEW_CONNECTION_ID from the peer.
    pub(crate) fn on_new(
        &mut self,
        sequence: u64,
        retire_prior_to: u64,
        id: ConnectionId,
        reset_token: ResetToken,
    ) -> Result<(), TransportError> {
        // RFC 9000 §19.15 MUST-2: with an empty ID in use the frame is an error.
        if self.current.id.as_slice().is_empty() {
            return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "new connection ID beside an empty one"));
        }
        let offered = Offered { sequence, id, reset_token: Some(reset_token) };
        // RFC 9000 §19.15 MUST: the same sequence number always names the same ID, and the reverse.
        for known in self.spare.iter().chain([&self.current]).chain(self.parked.iter().map(|(_, id)| id)) {
            let same = known.sequence == sequence || known.id == id;
            let equal = known.sequence == sequence
                && known.id == id
                && (known.reset_token.is_none() || known.reset_token == offered.reset_token);
            if same && !equal {
                return Err(TransportError::new(Code::PROTOCOL_VIOLATION, "connection ID issued twice, differently"));
            }
            // RFC 9000 §19.15 MUST NOT-2: the same NEW_CONNECTION_ID twice is no error
            if same {
                return Ok(());
            }
        }
        // RFC 9000 §19.15 MUST-5: Retire Prior To that goes back is ignored
        self.retire_prior_to = self.retire_prior_to.max(retire_prior_to);
        // RFC 9000 §19.15 MUST-6: an ID that is already asked back is retired at once. So is one that comes before an ID
        // that was taken into use: either it was given up and this is a late copy of its announcement (RFC 9000 §5.1.2
        // MUST NOT: use it again), or it was overtaken, and there are newer ones.
        if sequence < self.retire_prior_to || sequence <= self.taken {
            self.retire(sequence)?;
        } else {
            let place = self.spare.partition_point(|s| s.sequence < sequence);
            if self.spare.capacity() == 0 {
                self.spare.reserve_exact(USUAL_SPARE);
            }
            self.spare.insert(place, offered);
        }
        // RFC 9000 §5.1.2 MUST-1: first retire what the frame asks for, then count against the limit.
        while let Some(oldest) = self.spare.front().filter(|s| s.sequence < self.retire_prior_to) {
            let sequence = oldest.sequence;
            self.spare.pop_front();
            self.retire(sequence)?;
        }
        if self.current.sequence < self.retire_prior_to {
            self.rotate()?;
        }
        for at in (0..self.parked.len()).rev().filter(|_| retire_prior_to > 0) {
            let (path, old) = self.parked[at];
            if old.sequence < self.retire_prior_to {
                self.parked.swap_remove(at);
                self.retire(old.sequence)?;
                let next = self.take_spare();
                self.parked.extend(next.map(|next| (path, next)));
            }
        }
        // RFC 9000 §5.1.1 MUST-3: more IDs than we agreed to keep end the connection with CONNECTION_ID_LIMIT_ERROR
        if (self.spare.len() + self.parked.len()) as u64 + 1 > ACTIVE_LIMIT {
            return Err(TransportError::new(Code::CONNECTION_ID_LIMIT_ERROR, "more connection IDs than the limit"));
        }
        Ok(())
    }

    /// Replaces the current ID by the next one, for example when the address changes. Returns `false` without a next one.
    pub(crate) fn rotate(&mut self) -> Result<bool, TransportError> {
        let Some(next) = self.take_spare() else { return Ok(false) };
        let old = std::mem::replace(&mut self.current, next);
        // RFC 9000 §5.1.2 MUST NOT-1: an ID of the peer is never dropped without being retired
        self.retire(old.sequence)?;
        Ok(true)
    }

    fn take_spare(&mut self) -> Option<Offered> {
        let next = self.spare.pop_front()?;
        self.taken = self.taken.max(next.sequence);
        Some(next)
    }

    /// ID for packets on a path that is not active. Without its own ID it shares that of the active path.
    pub(crate) fn on_path(&self, path: PathIndex) -> &ConnectionId {
        self.parked.iter().find(|(parked, _)| *parked == path).map_or(&self.current.id, |(_, offered)| &offered.id)
    }

    /// Returns whether a path can get its own ID. Not while many retirements are in progress: an attacker that forwards the peer's packets
    /// from ever new addresses must not use up the IDs.
    pub(crate) fn has_spare(&self) -> bool {
        !self.spare.is_empty() && self.to_retire.len() + self.unacknowledged.len() < RETIREMENTS_LIMIT / 2
    }

    /// Gives a path its own ID. Returns `false` if none is left.
    pub(crate) fn assign(&mut self, path: PathIndex) -> bool {
        if self.parked.iter().any(|(parked, _)| *parked == path) {
            return true;
        }
        let next = if self.has_spare() { self.take_spare() } else { None };
        self.parked.extend(next.map(|next| (path, next)));
        next.is_some()
    }

    /// Makes `path` active in place of `old`, which keeps its ID.
    pub(crate) fn activate(&mut self, path: PathIndex, old: PathIndex) {
        // RFC 9000 §9.5: another ID on another path, so that observers cannot link the two. When the peer has left us
        // none, the one in use continues: that is permitted where the network has changed the peer's address.
        if path != old
            && self.assign(path)
            && let Some(at) = self.parked.iter().position(|(parked, _)| *parked == path)
        {
            let (_, next) = self.parked.swap_remove(at);
            let before = std::mem::replace(&mut self.current, next);
            self.parked.push((old, before));
        }
    }

    /// Releases the ID of an abandoned path.
    pub(crate) fn release(&mut self, path: PathIndex) -> Result<(), TransportError> {
        match self.parked.iter().position(|(parked, _)| *parked == path) {
            Some(at) => {
                let (_, gone) = self.parked.swap_remove(at);
                self.retire(gone.sequence)
            }
            None => Ok(()),
        }
    }

    fn retire(&mut self, sequence: u64) -> Result<(), TransportError> {
        // On the way already. A peer that has heard nothing for a while repeats what it has announced: its copies must not count against it.
        if self.to_retire.contains(&sequence) || self.unacknowledged.contains(&sequence) {
            return Ok(());
        }
        // RFC 9000 §5.1.2 SHOULD-3: the number of retirements on the way is bounded
        if self.to_retire.len() + self.unacknowledged.len() >= RETIREMENTS_LIMIT {
            return Err(TransportError::new(
                Code::CONNECTION_ID_LIMIT_ERROR,
                "connection IDs are retired faster than acknowledged",
            ));
        }
        self.to_retire.push_back(sequence);
        Ok(())
    }

    /// The next RETIRE_CONNECTION_ID frame.
    pub(crate) fn next_retirement(&self) -> Option<u64> {
        self.to_retire.front().copied()
    }

    /// The frame was written into a packet.
    pub(crate) fn retirement_sent(&mut self) {
        self.unacknowledged.extend(self.to_retire.pop_front());
    }

    /// The packet with the frame was acknowledged.
    pub(crate) fn on_acked(&mut self, sequence: u64) {
        self.unacknowledged.retain(|sent| *sent != sequence);
    }

    /// The packet with the frame was lost.
    pub(crate) fn on_lost(&mut self, sequence: u64) {
        self.unacknowledged.retain(|sent| *sent != sequence);
        if !self.to_retire.contains(&sequence) {
            self.to_retire.push_back(sequence);
        }
    }

    /// The token of the ID in use, if it has one.
    #[inline]
    pub(crate) fn reset_token(&self) -> Option<&ResetToken> {
        self.current.reset_token.as_ref()
    }

    /// Returns whether `token` ends the connection when a datagram carries it (RFC 9000 §10.3.1).
    pub(crate) fn is_reset(&self, token: &[u8; 16]) -> bool {
        // Only the ID in use counts: tokens of unused IDs are not accepted either by the peer or by us.
        // RFC 9000 §10.3.1 MUST NOT-1: tokens of IDs that were never used or are retired are not compared
        self.current.reset_token.as_ref().is_some_and(|t| t.ct_eq(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(ids: &mut RemoteIds, n: u8, retire: u64) -> Result<(), TransportError> {
        ids.on_new(n.into(), retire, ConnectionId::new(&[n; 8]).unwrap(), ResetToken([n; 16]))
    }

    fn path(index: usize) -> PathIndex {
        PathIndex::new(index)
    }

    fn start() -> RemoteIds {
        RemoteIds::new(ConnectionId::new(&[0; 8]).unwrap())
    }

    // RFC 9000 §5.1.1 MUST-3; RFC 9000 §5.1.2 MUST-1, MUST NOT-1
    #[test]
    fn the_limit_holds_after_retirement() {
        let mut ids = start();
        for n in 1..ACTIVE_LIMIT as u8 {
            offer(&mut ids, n, 0).unwrap();
        }
        offer(&mut ids.clone_for_test(), 9, 0).unwrap_err();
        offer(&mut ids, 4, 2).unwrap();
        assert_eq!(ids.current().as_slice(), [2; 8]);
        assert_eq!(ids.to_retire, [1, 0]);
    }

    impl RemoteIds {
        fn clone_for_test(&self) -> Self {
            Self {
                current: self.current,
                parked: self.parked.clone(),
                taken: self.taken,
                spare: self.spare.clone(),
                retire_prior_to: self.retire_prior_to,
                to_retire: self.to_retire.clone(),
                unacknowledged: self.unacknowledged.clone(),
            }
        }
    }

    #[test]
    fn the_same_number_names_the_same_id() {
        let mut ids = start();
        offer(&mut ids, 1, 0).unwrap();
        offer(&mut ids, 1, 0).unwrap();
        let other = ConnectionId::new(&[7; 8]).unwrap();
        assert_eq!(ids.on_new(1, 0, other, ResetToken([1; 16])).unwrap_err().code, Code::PROTOCOL_VIOLATION);
        let again = ConnectionId::new(&[1; 8]).unwrap();
        assert_eq!(ids.on_new(2, 0, again, ResetToken([1; 16])).unwrap_err().code, Code::PROTOCOL_VIOLATION);
    }

    // RFC 9000 §5.1.2 SHOULD-3, SHOULD-4
    #[test]
    fn a_peer_that_makes_us_retire_without_end_is_stopped() {
        let mut ids = start();
        let failed = (1u8..=255).any(|n| offer(&mut ids, n, n.into()).is_err());
        assert!(failed);
        assert!(ids.to_retire.len() <= RETIREMENTS_LIMIT);
    }

    /// The client changes its address while the server is silent; the server then repeats all that it has announced, several times.
    #[test]
    fn repeated_announcements_of_retired_ids_are_no_fault_of_the_peer() {
        let mut ids = start();
        for n in 1..=6 {
            offer(&mut ids, n, 0).unwrap();
            assert!(ids.rotate().unwrap());
        }
        while ids.next_retirement().is_some() {
            ids.retirement_sent();
        }
        for n in [1, 2, 3, 4, 5].repeat(10) {
            offer(&mut ids, n, 0).unwrap();
        }
        assert!(ids.to_retire.is_empty(), "{:?}", ids.to_retire);
        // One that is lost goes once more, and an acknowledged one may be announced again: nobody knows which came first.
        ids.on_lost(3);
        ids.on_acked(2);
        for n in [2, 3].repeat(10) {
            offer(&mut ids, n, 0).unwrap();
        }
        assert_eq!(ids.to_retire, [3, 2]);
        assert_eq!(ids.unacknowledged, [0, 1, 4, 5]);
    }

    // RFC 9000 §19.15 MUST-5, MUST-6
    #[test]
    fn each_path_has_an_id_of_its_own_and_none_is_used_again() {
        let mut ids = start();
        for n in 1..4 {
            offer(&mut ids, n, 0).unwrap();
        }
        assert!(ids.assign(path(1)) && ids.assign(path(1)));
        assert_eq!((ids.current().as_slice(), ids.on_path(path(1)).as_slice()), (&[0; 8][..], &[1; 8][..]));
        ids.activate(path(1), path(0));
        assert_eq!((ids.current().as_slice(), ids.on_path(path(0)).as_slice()), (&[1; 8][..], &[0; 8][..]));
        ids.activate(path(0), path(1));
        assert_eq!((ids.current().as_slice(), ids.on_path(path(1)).as_slice()), (&[0; 8][..], &[1; 8][..]));
        ids.release(path(1)).unwrap();
        assert_eq!(ids.to_retire, [1]);
        ids.to_retire.clear();
        // A late copy of the announcement.
        offer(&mut ids, 1, 0).unwrap();
        assert_eq!(ids.to_retire, [1], "it is given back at once");
        ids.activate(path(2), path(0));
        assert_eq!(ids.current().as_slice(), [2; 8]);
        assert_eq!(ids.on_path(path(7)), ids.current(), "a path without an ID of its own shares the one in use");
    }

    #[test]
    fn ids_of_other_paths_are_asked_back_too() {
        let mut ids = start();
        for n in 1..4 {
            offer(&mut ids, n, 0).unwrap();
        }
        ids.assign(path(1));
        ids.activate(path(2), path(0));
        // In use 2, at place 0 the first one, at place 1 the next; 3 is spare.
        offer(&mut ids, 4, 3).unwrap();
        assert!([0, 1, 2].iter().all(|sequence| ids.to_retire.contains(sequence)));
        assert_eq!(ids.current().as_slice(), [3; 8]);
        let mut held: Vec<u64> =
            ids.parked.iter().map(|(_, id)| id.sequence).chain(ids.spare.iter().map(|s| s.sequence)).collect();
        held.sort_unstable();
        assert_eq!(held, [4]);
    }

    #[test]
    fn ever_new_paths_do_not_use_the_ids_up() {
        let mut ids = start();
        for n in 1..=255u8 {
            if ids.spare.is_empty() {
                let _ = offer(&mut ids, n, 0);
            }
            ids.assign(path(1));
            ids.release(path(1)).unwrap();
        }
        assert!(ids.to_retire.len() <= RETIREMENTS_LIMIT / 2);
    }

    #[test]
    fn an_id_that_arrives_after_it_was_asked_back_is_retired() {
        let mut ids = start();
        offer(&mut ids, 3, 3).unwrap();
        offer(&mut ids, 2, 0).unwrap();
        assert!(ids.to_retire.contains(&2));
        assert_eq!(ids.current().as_slice(), [3; 8]);
    }

    // RFC 9000 §19.15 MUST-2
    #[test]
    fn an_empty_id_takes_no_others() {
        let mut ids = RemoteIds::new(ConnectionId::EMPTY);
        assert_eq!(offer(&mut ids, 1, 0).unwrap_err().code, Code::PROTOCOL_VIOLATION);
    }
}
