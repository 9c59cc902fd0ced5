//! Path validation of a connection (RFC 9000 §8.2, §9): effects of challenges and responses.

use std::net::{IpAddr, SocketAddr};

use units::Instant;
use wire::PreferredAddress;

use super::{Outcome, Path, Paths};
use crate::{reach::may_refer, sent::PathIndex};

/// Outcome of an answer to a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validated {
    pub(crate) path: PathIndex,
    /// The peer receives at the address, which was not known.
    pub(crate) address_is_news: bool,
    /// The path carries what QUIC needs, which was not known.
    pub(crate) path_is_news: bool,
    /// Set if the connection moves to the path when it is validated.
    pub(crate) destined: bool,
    /// The challenge was small: another has to show what the path carries.
    pub(crate) is_partial: bool,
}

/// Consequence of an unanswered validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// None: the path is neither in use nor to be.
    Unimportant,
    /// The path was in use; this one, the last that was validated, is from here on.
    FellBack(PathIndex),
    /// A move of this end to the path has ended.
    MoveAbandoned,
}

/// State of a move of this end to another of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveState {
    /// The connection sends from there.
    Arrived,
    /// The path from there is being validated.
    UnderWay,
    /// The connection stays where it is.
    Abandoned,
}

impl Paths {
    /// State of a move to the address `local`.
    pub(crate) fn move_state(&self, local: IpAddr) -> MoveState {
        let is_there = |path: &Path| path.local == Some(local);
        match () {
            () if is_there(self.active()) => MoveState::Arrived,
            () if self.iter().any(|path| path.destined && is_there(path)) => MoveState::UnderWay,
            () => MoveState::Abandoned,
        }
    }

    /// Begins to validate a path, with this `data`.
    pub(crate) fn challenge(&mut self, now: Instant, path: PathIndex, data: [u8; 8]) {
        let path = &mut self[path];
        path.challenge.start(data, now, path.recovery.pto());
    }

    /// Processes a PATH_CHALLENGE on a path. Returns whether the path itself needs validation.
    // RFC 9000 §8.2.2 MUST-1: a challenge is answered with its data
    // RFC 9000 §8.2.2 MUST-2: the answer goes along the path on which the challenge came
    // RFC 9000 §8.2.2 MUST NOT-1: the answer to a challenge does not wait, unless for congestion control
    // RFC 9000 §19.17 MUST-1: PATH_CHALLENGE is answered with PATH_RESPONSE of the same data
    // RFC 9000 §8.2.1 MUST NOT-1: a challenge or its answer in a small datagram is not dropped for its size
    pub(crate) fn on_challenge(&mut self, path: PathIndex, data: [u8; 8]) -> bool {
        let Path { proven, challenge, .. } = &mut self[path];
        challenge.on_challenge(data);
        !*proven && !challenge.is_running()
    }

    /// The peer has answered a challenge.
    // RFC 9000 §8.2.2 MUST NOT-2: the answer counts wherever it arrives.
    pub(crate) fn on_response(&mut self, data: [u8; 8]) -> Option<Validated> {
        let (index, full_size) = self.indices().find_map(|index| match self[index].challenge.on_response(data) {
            Outcome::Validated { full_size } => Some((index, full_size)),
            Outcome::Unrelated => None,
        })?;
        let path = &mut self[index];
        let address_is_news = path.amplification.validate();
        let path_is_news = full_size && !path.proven;
        path.proven |= full_size;
        let destined = path.destined && path_is_news;
        path.destined &= !path_is_news;
        let is_partial = !path.proven;
        Some(Validated { path: index, address_is_news, path_is_news, destined, is_partial })
    }

    /// Processes the timer of a path's validation: repeats its challenge with new `data` when that is due. Returns `true` when its time has
    /// ended.
    pub(crate) fn on_validation_timeout(
        &mut self,
        now: Instant,
        path: PathIndex,
        data: impl FnOnce() -> [u8; 8],
    ) -> bool {
        let challenge = &mut self[path].challenge;
        if challenge.is_expired(now) {
            challenge.abandon();
            return true;
        }
        if let Some(pto) = challenge.repeat_due(now) {
            challenge.start(data(), now, pto * 2);
        }
        false
    }

    /// Ends the validation of a path without success.
    pub(crate) fn on_validation_failure(&mut self, path: PathIndex) -> Failure {
        let fallback = self.last_validated();
        if path != self.active_index() {
            let destined = std::mem::take(&mut self[path].destined);
            return if destined { Failure::MoveAbandoned } else { Failure::Unimportant };
        }
        if fallback == path {
            return Failure::Unimportant;
        }
        // RFC 9000 §9.3.2 MUST-1: without proof the peer is still where it was.
        self.activate(fallback);
        Failure::FellBack(fallback)
    }

    /// Abandons a path to which this client was to migrate. Returns `false` if it was not.
    pub(crate) fn abandon_move(&mut self, path: PathIndex) -> bool {
        let path = &mut self[path];
        let destined = std::mem::take(&mut path.destined);
        if destined {
            path.challenge.abandon();
        }
        destined
    }

    /// Returns whether a path is unused, as far as its connection ID goes.
    pub(crate) fn is_unused(&self, path: PathIndex) -> bool {
        let challenge = &self[path].challenge;
        self.active().proven && path != self.active_index() && !challenge.is_running() && !challenge.wants_to_send()
    }

    /// Target and origin of a client's move to the address that its server prefers. The first is `None` when there is no
    /// address that it can take.
    // RFC 9000 §21.5.6: not to an address that is nearer to this host than the server is, so that no server has its clients
    // ask who is there.
    pub(crate) fn preferred_move(&self) -> Option<(Option<SocketAddr>, Option<IpAddr>)> {
        let &PreferredAddress { ipv4, ipv6, .. } = self.due_preferred_address()?;
        let remote = self.active().remote;
        let preferred = if remote.is_ipv4() { ipv4.map(SocketAddr::from) } else { ipv6.map(SocketAddr::from) };
        // From where the client is going, if it is.
        let from = self.iter().find(|path| path.destined).unwrap_or(self.active()).local;
        let leads_on = |to: &SocketAddr| *to != remote && may_refer(remote.ip(), *to);
        Some((preferred.filter(leads_on), from))
    }
}
