//! Addresses that change (RFC 9000 §9): a peer behind a NAT that rebinds, a client that moves to another network or to the
//! address that the server prefers.

use std::net::{IpAddr, SocketAddr};

use rand_core::RngCore;
use units::Instant;
use wire::{PreferredAddress, Side};

use super::Connection;
use crate::{
    events::{CloseReason, Event},
    observe::{DropReason, Ending, Migration},
    path::{AmplificationLimit, EcnMarks, Outcome, Path, Spin},
    reach::may_refer,
    recovery::Recovery,
};

/// Paths that are remembered at a time.
const PATHS: usize = 4;

/// Stands for the path of a datagram from an address that is not known, until one of its packets is authentic: who only
/// knows our connection ID takes no place among the paths.
pub(super) const NEWCOMER: usize = usize::MAX;

/// Where a datagram came from that came over no known path.
#[derive(Clone, Copy)]
pub(super) struct Newcomer {
    remote: SocketAddr,
    local: Option<IpAddr>,
    bytes: usize,
    /// The path, once there is one.
    place: Option<usize>,
}

/// Why a connection does not move to another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// Only clients migrate (RFC 9000 §9).
    #[error("only a client can migrate")]
    NotClient,
    /// The handshake is not confirmed, or the connection is over.
    #[error("the connection is not established")]
    NotEstablished,
    /// The server has asked its clients to stay (`disable_active_migration`).
    #[error("the server does not want clients to migrate")]
    Disabled,
    /// The server has given no spare connection ID: moving would let observers link the paths.
    #[error("the server has left no connection ID for another path")]
    NoConnectionId,
}

impl Connection {
    /// The path that a datagram of `bytes` came over; [`NEWCOMER`] when the address is new and may be.
    #[inline]
    pub(super) fn path_of(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<IpAddr>,
        bytes: usize,
    ) -> Option<usize> {
        if self.paths[self.active].is(remote, local) {
            return Some(self.active);
        }
        self.other_path_of(now, remote, local, bytes)
    }

    fn other_path_of(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<IpAddr>,
        bytes: usize,
    ) -> Option<usize> {
        if let Some(known) = self.paths.0.iter().position(|p| p.is(remote, local)) {
            return Some(known);
        }
        if self.paths[self.active].may_be(remote, local) {
            return Some(self.active);
        }
        if let Some(known) = self.paths.0.iter().position(|p| p.may_be(remote, local)) {
            return Some(known);
        }
        // RFC 9000 §9 MUST-3: a client drops packets from addresses of the server that it does not know, and nobody
        // changes address before the handshake is confirmed.
        if self.side == Side::Client || !self.handshake.is_confirmed() {
            self.drop_packet(now, None, bytes, DropReason::UnknownAddress);
            return None;
        }
        self.newcomer = Some(Box::new(Newcomer { remote, local, bytes, place: None }));
        Some(NEWCOMER)
    }

    /// The path of a newcomer, one of whose packets turned out to be authentic and new.
    pub(super) fn welcome(&mut self, now: Instant) -> Option<usize> {
        let Newcomer { remote, local, bytes, place } = **self.newcomer.as_ref()?;
        if place.is_some() {
            return place;
        }
        let place = self.add_path(now, remote, local)?;
        self.paths[place].amplification.on_received(bytes);
        self.newcomer = Some(Box::new(Newcomer { remote, local, bytes, place: Some(place) }));
        Some(place)
    }

    /// Makes room for a new path, at the cost of one that is neither in use nor the last that was validated.
    fn add_path(&mut self, now: Instant, remote: SocketAddr, local: Option<IpAddr>) -> Option<usize> {
        let mut discovery = self.profile.mtu_discovery();
        let mtu = discovery.limit(self.peer.max_udp_payload_size);
        let before = &self.paths[self.active];
        // RFC 9000 §9.4 MUST-1, MUST NOT-1: a new path starts with a new congestion controller and a new RTT, unless
        // only the peer's port has changed, as NATs do.
        let only_port = before.proven && before.remote.ip() == remote.ip() && before.local == local;
        let recovery = if self.side == Side::Server && only_port {
            let mut recovery = before.recovery.continued(now);
            recovery.set_mtu(now, mtu);
            recovery
        } else {
            let seed = self.seed.child("path", self.paths_seen);
            let mut recovery = Recovery::new(&self.profile.recovery_config(), mtu, seed, now);
            recovery.set_max_ack_delay(self.ack_requests.max_ack_delay());
            recovery
        };
        // RFC 9000 §8: the limit protects third parties from servers; a client knows the server's address.
        let limit = match self.side {
            Side::Client => AmplificationLimit::validated(),
            // RFC 9000 §9.6.3 MUST-2: a client that appears from elsewhere at the preferred address is held to the
            // limits for unvalidated addresses
            Side::Server => AmplificationLimit::unvalidated(),
        };
        let spin = Spin::new(self.profile.spin, self.random.next_u64());
        let marks = EcnMarks::new(self.profile.ecn);
        let path = Path::new(remote, local, limit, recovery, discovery, marks, spin);
        let place = if self.paths.0.len() < PATHS {
            self.paths.0.push(path);
            self.paths.0.len() - 1
        } else {
            let others = (0..PATHS).filter(|&place| place != self.active && place != self.last_validated);
            // Rather one on which nothing is under way.
            let place = others.min_by_key(|&place| {
                let Path { challenge, recovery, .. } = &self.paths[place];
                (challenge.is_running(), recovery.bytes_in_flight())
            })?;
            // RFC 9000 §5.1.2 SHOULD-1: IDs of a path that is given up are retired
            self.abandon_path(place);
            self.release_id(now, place);
            self.stats.congestion_events += self.paths[place].recovery.congestion_events();
            self.paths[place] = path;
            place
        };
        self.paths_seen += 1;
        self.remote_ids.assign(place);
        Some(place)
    }

    /// The newest packet came over another path, with more than probing frames: the peer lives there now.
    pub(super) fn migrate_with_peer(&mut self, now: Instant, place: usize) {
        if self.side == Side::Client {
            return;
        }
        if self.paths[self.active].amplification.is_validated() {
            self.last_validated = self.active;
        }
        let old = self.last_validated;
        // RFC 9000 §9.6.2 MUST-2: the server sends from its first address until it has heard the client at the preferred
        // one and validated that path.
        if self.is_preferred_here(self.paths[place].local) && !self.paths[place].proven {
            self.paths[place].destined = true;
            if !self.paths[place].challenge.is_running() {
                self.challenge(now, place);
            }
            return;
        }
        self.use_path(now, place);
        // RFC 9000 §9 MUST-1, MUST-2, RFC 9000 §9.3 MUST-1, MUST-2, MUST-3: the new address is validated, unless it
        // was before.
        if self.paths[place].proven {
            self.arrived(now, place);
        } else if !self.paths[place].challenge.is_running() {
            self.challenge(now, place);
        }
        // RFC 9000 §9.3.3 MUST-1: the old path is asked too; if the peer is still there, someone copies its packets.
        if old != place && !self.paths[old].challenge.is_running() {
            self.challenge(now, old);
        }
    }

    /// Whether this is the address at which this server would rather be reached, and the client began at another.
    pub(super) fn is_preferred_here(&self, local: Option<IpAddr>) -> bool {
        let (Some(local), Some(preferred)) = (local, &self.preferred_address) else { return false };
        let ipv4 = preferred.ipv4.map(|address| IpAddr::V4(*address.ip()));
        let ipv6 = preferred.ipv6.map(|address| IpAddr::V6(*address.ip()));
        self.side == Side::Server && [ipv4, ipv6].contains(&Some(local))
    }

    /// Sends on another path from here on.
    fn use_path(&mut self, now: Instant, place: usize) {
        let old = std::mem::replace(&mut self.active, place);
        // RFC 9000 §9.5 MUST NOT-2: with another connection ID.
        self.remote_ids.activate(place, old);
        self.ack_requests.restart();
        self.stats.path_changes += 1;
        self.observe_migration(now, Migration::Started, place);
        self.fit_datagrams();
    }

    /// Whether [`rebind`](Self::rebind) has nothing to wait for.
    pub(crate) fn may_rebind(&self) -> bool {
        self.side == Side::Server || self.handshake.is_confirmed() || !self.lifecycle.is_open()
    }

    /// The socket of this client was replaced by one with another address: goes on from there at once. Does nothing for a
    /// server, or before the handshake is confirmed.
    ///
    /// The path is validated while data flows. `local` is the new address, if it is to be named in
    /// [`Transmit::local`](crate::Transmit::local). A connection that may not go on from there, because the server forbids it
    /// or has left no connection ID for it, is over without a word: [`CloseReason::Stranded`].
    // RFC 9000 §9.2: the server is known to be willing, so a client need not validate before it moves.
    pub fn rebind(&mut self, now: Instant, local: Option<IpAddr>) {
        if self.side == Side::Server || !self.handshake.is_confirmed() || !self.lifecycle.is_open() {
            return;
        }
        self.preferred_due |= self.abandon_moves(now);
        // Not even a goodbye may leave from the new address.
        if let Err(why) = self.may_leave() {
            if self.lifecycle.drain() {
                self.end(now, CloseReason::Stranded(why), Ending::Silent);
            }
            return;
        }
        let remote = self.paths[self.active].remote;
        let Some(place) = self.add_path(now, remote, local) else { return };
        self.use_path(now, place);
        // There is no way back: the old socket is gone.
        self.last_validated = place;
        self.challenge(now, place);
        self.control.ping = true;
        self.consider_preferred_address(now);
    }

    /// Whether this client may send from another address.
    fn may_leave(&self) -> Result<(), MigrateError> {
        // RFC 9000 §9 MUST NOT-2, RFC 9000 §18.2 MUST NOT-2: the server's wish holds for the address of the
        // handshake, not for the one it prefers.
        if self.peer.disable_active_migration && self.paths[self.active].remote == self.handshake_remote {
            return Err(MigrateError::Disabled);
        }
        // RFC 9000 §9.5 MUST NOT-1: an ID of the peer is used from one local address only
        // RFC 9000 §9.5 SHOULD NOT-1: who sends to an empty ID does not migrate
        if !self.remote_ids.has_spare() {
            return Err(MigrateError::NoConnectionId);
        }
        Ok(())
    }

    /// Gives up all paths that this client was to move to. Returns whether one of them leads to the address that the server
    /// prefers.
    fn abandon_moves(&mut self, now: Instant) -> bool {
        let mut preferred = false;
        for place in 0..self.paths.0.len() {
            let path = &mut self.paths[place];
            if !std::mem::take(&mut path.destined) {
                continue;
            }
            path.challenge.abandon();
            preferred |= path.remote != self.handshake_remote;
            self.release_id(now, place);
        }
        preferred
    }

    /// Moves this client to another address of its host: validates the path, and changes over when it works. The outcome
    /// is [`Event::Migrated`] or [`Event::MigrationFailed`].
    ///
    /// # Errors
    /// See [`MigrateError`].
    pub fn migrate(&mut self, now: Instant, local: IpAddr) -> Result<(), MigrateError> {
        if self.side == Side::Server {
            return Err(MigrateError::NotClient);
        }
        // RFC 9000 §9 MUST NOT-1: no migration before the handshake is confirmed.
        if !self.handshake.is_confirmed() || !self.lifecycle.is_open() {
            return Err(MigrateError::NotEstablished);
        }
        self.may_leave()?;
        let remote = self.paths[self.active].remote;
        self.preferred_due |= self.abandon_moves(now);
        self.head_for(now, remote, Some(local))?;
        // RFC 9000 §9.6.3 SHOULD-1: a client that moves before it has gone to the preferred address validates both
        // addresses of the server from its new one.
        self.consider_preferred_address(now);
        Ok(())
    }

    /// Begins to validate a path that this client wants to move to.
    fn head_for(&mut self, now: Instant, remote: SocketAddr, local: Option<IpAddr>) -> Result<(), MigrateError> {
        // RFC 9000 §9.5 MUST NOT-1, MUST NOT-2: one ID for two addresses.
        if !self.remote_ids.has_spare() {
            return Err(MigrateError::NoConnectionId);
        }
        let place = self.add_path(now, remote, local).ok_or(MigrateError::NoConnectionId)?;
        self.paths[place].destined = true;
        self.challenge(now, place);
        Ok(())
    }

    /// The server would rather be reached elsewhere, and the client has not tried yet from where it is.
    // RFC 9000 §9.6.1 SHOULD-1, SHOULD-2, MUST-1, RFC 9000 §9.6.2 MUST-1, RFC 9000 §21.5.3 MUST NOT-1: once the
    // handshake is confirmed the client validates a path there, and moves if it works. RFC 9000 §21.5.6: not to an address that is
    // nearer to this host than the server is, so that no server has its clients ask who is there.
    pub(super) fn consider_preferred_address(&mut self, now: Instant) {
        let Some(preferred) = self.preferred_address.as_ref().filter(|_| self.preferred_due) else { return };
        let PreferredAddress { ipv4, ipv6, .. } = **preferred;
        let remote = self.paths[self.active].remote;
        let preferred = if remote.is_ipv4() { ipv4.map(SocketAddr::from) } else { ipv6.map(SocketAddr::from) };
        // From where the client is going, if it is.
        let from = self.paths.0.iter().find(|path| path.destined).unwrap_or(&self.paths[self.active]).local;
        let leads_on = |to: &SocketAddr| *to != remote && may_refer(remote.ip(), *to);
        self.preferred_due = match preferred.filter(leads_on) {
            // Without a connection ID for it the client waits for one.
            Some(preferred) => self.head_for(now, preferred, from).is_err(),
            None => false,
        };
    }

    fn observe_migration(&mut self, now: Instant, state: Migration, place: usize) {
        let remote = self.paths[place].remote;
        self.observe(now, |observer, at| observer.migration(at, state, remote));
    }

    /// The peer challenges us on a path. An answer that goes to an address without proof asks for proof as well: so the
    /// path is validated when the peer moves there.
    pub(super) fn on_path_challenge(&mut self, now: Instant, place: usize, data: [u8; 8]) {
        // RFC 9000 §8.2.2 MUST-1: a challenge is answered with its data
        // RFC 9000 §8.2.2 MUST-2: the answer goes along the path on which the challenge came
        // RFC 9000 §8.2.2 MUST NOT-1: the answer to a challenge does not wait, unless for congestion control
        // RFC 9000 §19.17 MUST-1: PATH_CHALLENGE is answered with PATH_RESPONSE of the same data
        // RFC 9000 §8.2.1 MUST NOT-1: a challenge or its answer in a small datagram is not dropped for its size
        self.paths[place].challenge.on_challenge(data);
        let path = &self.paths[place];
        // RFC 9000 §9.6.2 MUST-3: the server probes the client from the preferred address
        // RFC 9000 §9.6.3 SHOULD-2: a probe from another address makes the server validate that one
        if self.side == Side::Server && !path.proven && !path.challenge.is_running() {
            self.challenge(now, place);
        }
    }

    pub(super) fn challenge(&mut self, now: Instant, place: usize) {
        let data = self.challenge_data();
        let pto = self.paths[place].recovery.pto();
        self.paths[place].challenge.start(data, now, pto);
    }

    pub(super) fn challenge_data(&mut self) -> [u8; 8] {
        // RFC 9000 §8.2.1 MUST-1: unpredictable, and other data each time.
        self.random.next_u64().to_be_bytes()
    }

    pub(super) fn on_path_response(&mut self, now: Instant, data: [u8; 8]) {
        // RFC 9000 §8.2.2 MUST NOT-2: the answer counts wherever it arrives.
        let place = (0..self.paths.0.len()).find_map(|place| match self.paths[place].challenge.on_response(data) {
            Outcome::Validated { full_size } => Some((place, full_size)),
            Outcome::Unrelated => None,
        });
        let Some((place, full_size)) = place else { return };
        let path = &mut self.paths[place];
        let address_is_news = path.amplification.validate();
        let path_is_news = full_size && !path.proven;
        path.proven |= full_size;
        let destined = path.destined && path_is_news;
        path.destined &= !path_is_news;
        if !self.paths[place].proven {
            // RFC 9000 §8.2.1 MUST-3, RFC 9000 §8.2.3 MUST-1: the limit on bytes kept the challenge small; whether
            // the path carries 1,200 bytes is asked now that the address is known to be the peer's.
            self.challenge(now, place);
        }
        if destined {
            // RFC 9000 §9.6.3 MUST-1: if the preferred address answers, it is taken, and the validation of the other is
            // given up.
            if self.side == Side::Client && self.paths[place].remote != self.handshake_remote {
                self.abandon_moves(now);
            }
            self.last_validated = place;
            self.use_path(now, place);
            // RFC 9000 §9.2: anything but a probing frame tells the server.
            self.control.ping = true;
        }
        let news = if self.side == Side::Server && !destined { address_is_news } else { path_is_news };
        if news && place == self.active {
            self.arrived(now, place);
        }
        self.release_unused_ids(now);
    }

    /// The path in use is validated.
    fn arrived(&mut self, now: Instant, place: usize) {
        self.last_validated = place;
        self.observe_migration(now, Migration::Validated, place);
        self.push(Event::Migrated);
    }

    /// Gives the IDs of paths back that nobody needs any more.
    fn release_unused_ids(&mut self, now: Instant) {
        if !self.paths[self.active].proven {
            return;
        }
        for place in 0..self.paths.0.len() {
            let path = &self.paths[place];
            if place != self.active && !path.challenge.is_running() && !path.challenge.wants_to_send() {
                self.release_id(now, place);
            }
        }
    }

    fn release_id(&mut self, now: Instant, place: usize) {
        if let Err(error) = self.remote_ids.release(place) {
            self.fail(now, error);
        }
    }

    /// A challenge is due again, or its time is over.
    pub(super) fn on_path_timeout(&mut self, now: Instant) {
        for place in 0..self.paths.0.len() {
            if self.paths[place].challenge.is_expired(now) {
                self.paths[place].challenge.abandon();
                self.on_path_failure(now, place);
            } else if let Some(pto) = self.paths[place].challenge.repeat_due(now) {
                let data = self.challenge_data();
                self.paths[place].challenge.start(data, now, pto * 2);
            }
        }
        self.release_unused_ids(now);
    }

    /// Nobody has answered on a path in time.
    fn on_path_failure(&mut self, now: Instant, place: usize) {
        if self.paths[place].proven {
            return;
        }
        self.stats.path_failures += 1;
        if place == self.active {
            if self.last_validated == place {
                return;
            }
            // RFC 9000 §9.3.2 MUST-1: without proof the peer is still where it was.
            self.active = self.last_validated;
            self.remote_ids.activate(self.active, place);
            self.observe_migration(now, Migration::Abandoned, place);
            self.fit_datagrams();
        } else if std::mem::take(&mut self.paths[place].destined) {
            self.observe_migration(now, Migration::Abandoned, place);
            if self.side == Side::Client {
                self.push(Event::MigrationFailed);
            }
        }
    }
}
