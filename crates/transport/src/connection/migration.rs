//! Changes of address (RFC 9000 §9): NAT rebinding of the peer, a client that moves to another network or to the server's preferred
//! address.

use std::net::{IpAddr, SocketAddr};

use rand_core::RngCore;
use units::Instant;
use wire::Side;

use super::Connection;
use crate::{
    error::MigrateError,
    events::{CloseReason, Event},
    observe::{DropReason, Ending, Migration},
    path::{AmplificationLimit, ArrivalPath, EcnMarks, Failure, MoveState, Path, Spin, Validated},
    recovery::Recovery,
    sent::PathIndex,
};

impl Connection {
    /// The path that a datagram of `bytes` arrived on. `None` when its address may not be a new one.
    #[inline]
    pub(super) fn path_of(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<IpAddr>,
        bytes: usize,
    ) -> Option<ArrivalPath> {
        if let Some(known) = self.paths.lookup(remote, local) {
            return Some(ArrivalPath::Known(known));
        }
        // RFC 9000 §9 MUST-3: a client drops packets from addresses of the server that it does not know, and nobody
        // changes address before the handshake is confirmed.
        if self.side == Side::Client || !self.packets.sources.handshake.is_confirmed() {
            self.observation.drop_packet(&mut self.stats, now, None, bytes, DropReason::UnknownAddress);
            return None;
        }
        self.paths.set_candidate(remote, local, bytes);
        Some(ArrivalPath::Candidate)
    }

    /// The path of the candidate, one of whose packets turned out to be authentic and new.
    pub(super) fn promote_candidate(&mut self, now: Instant) -> Option<PathIndex> {
        if let Some(path) = self.paths.candidate_path() {
            return Some(path);
        }
        let (remote, local) = self.paths.candidate_addresses()?;
        let path = self.add_path(now, remote, local)?;
        self.paths.promote_candidate(path);
        Some(path)
    }

    /// Makes room for a new path, at the cost of one that is neither in use nor the last that was validated.
    fn add_path(&mut self, now: Instant, remote: SocketAddr, local: Option<IpAddr>) -> Option<PathIndex> {
        let mut discovery = self.profile.mtu_discovery();
        let mtu = discovery.limit(self.peer.max_udp_payload_size);
        let before = self.paths.active();
        let recovery = if self.side == Side::Server && before.differs_in_port(remote, local) {
            before.continued(now, mtu)
        } else {
            let seed = self.packets.random.path_seed(self.paths.opened());
            let mut recovery = Recovery::new(&self.profile.recovery_config(), mtu, seed, now);
            recovery.set_max_ack_delay(self.packets.sources.ack_requests.max_ack_delay());
            recovery
        };
        // RFC 9000 §8: the limit protects third parties from servers; a client knows the server's address.
        let limit = match self.side {
            Side::Client => AmplificationLimit::validated(),
            // RFC 9000 §9.6.3 MUST-2: a client that appears from elsewhere at the preferred address is held to the
            // limits for unvalidated addresses
            Side::Server => AmplificationLimit::unvalidated(),
        };
        let spin = Spin::new(self.profile.spin, self.packets.random.stream.next_u64());
        let marks = EcnMarks::new(self.profile.ecn);
        let path = Path::new(remote, local, limit, recovery, discovery, marks, spin);
        let replaced = self.paths.replaceable();
        match replaced {
            Some(replaced) => {
                // RFC 9000 §5.1.2 SHOULD-1: IDs of a path that is given up are retired
                self.packets.abandon_path(replaced);
                self.release_id(now, replaced);
                self.stats.congestion_events += self.paths[replaced].recovery.congestion_events();
            }
            None if self.paths.has_room() => {}
            None => return None,
        }
        let index = self.paths.add(path, replaced);
        self.packets.identity.remote_ids.assign(index);
        Some(index)
    }

    /// Moves to the path of the newest packet, which had other than probing frames: the peer has migrated.
    pub(super) fn migrate_with_peer(&mut self, now: Instant, path: PathIndex) {
        if self.side == Side::Client {
            return;
        }
        if self.paths.active().amplification.is_validated() {
            self.paths.set_last_validated(self.paths.active_index());
        }
        let old = self.paths.last_validated();
        // RFC 9000 §9.6.2 MUST-2: the server sends from its first address until it has heard the client at the preferred
        // one and validated that path.
        if self.paths.is_preferred(self.paths[path].local) && !self.paths[path].proven {
            self.paths[path].destined = true;
            if !self.paths[path].challenge.is_running() {
                self.paths.challenge(now, path, self.packets.random.challenge_data());
            }
            return;
        }
        self.use_path(now, path);
        // RFC 9000 §9 MUST-1, MUST-2, RFC 9000 §9.3 MUST-1, MUST-2, MUST-3: the new address is validated, unless it
        // was before.
        if self.paths[path].proven {
            self.arrived(now, path);
        } else if !self.paths[path].challenge.is_running() {
            self.paths.challenge(now, path, self.packets.random.challenge_data());
        }
        // RFC 9000 §9.3.3 MUST-1: the old path is asked too; if the peer is still there, someone copies its packets.
        if old != path && !self.paths[old].challenge.is_running() {
            self.paths.challenge(now, old, self.packets.random.challenge_data());
        }
    }

    /// Sends on another path from here on.
    fn use_path(&mut self, now: Instant, path: PathIndex) {
        let old = self.paths.activate(path);
        // RFC 9000 §9.5 MUST NOT-2: with another connection ID.
        self.packets.identity.remote_ids.activate(path, old);
        self.packets.sources.ack_requests.restart();
        self.stats.path_changes += 1;
        self.observation.migrating(now, Migration::Started, &self.paths[path]);
        self.fit_datagrams();
    }

    /// Returns whether [`rebind`](Self::rebind) is possible at this time.
    pub(crate) fn may_rebind(&self) -> bool {
        self.side == Side::Server || self.packets.sources.handshake.is_confirmed() || !self.lifecycle.is_open()
    }

    /// Continues from the new address of this client's socket. Without effect at a server, or before the handshake is confirmed.
    ///
    /// The path is validated while data flows. `local` is the new address, if it is to be named in
    /// [`Transmit::local`](crate::Transmit::local). A connection that may not continue from there, because the server forbids it
    /// or has left no connection ID for it, has ended without a word: [`CloseReason::Stranded`].
    // RFC 9000 §9.2: the server is known to be willing, so a client need not validate before it moves.
    pub fn rebind(&mut self, now: Instant, local: Option<IpAddr>) {
        let may_leave = may_leave(self);
        if matches!(may_leave, Err(MigrateError::NotClient | MigrateError::NotEstablished)) {
            return;
        }
        self.restart_moves(now);
        // Not even CONNECTION_CLOSE may leave from the new address.
        if let Err(why) = may_leave {
            if self.lifecycle.drain() {
                self.end(now, CloseReason::Stranded(why), Ending::Silent);
            }
            return;
        }
        let Some(path) = self.add_path(now, self.paths.active().remote, local) else { return };
        self.use_path(now, path);
        // There is no way back: the old socket is gone.
        self.paths.set_last_validated(path);
        self.paths.challenge(now, path, self.packets.random.challenge_data());
        self.packets.sources.control.ping.request();
        self.consider_preferred_address(now);
    }

    /// Abandons all paths to which this client was to move. Returns whether one of them leads to the server's preferred address.
    fn abandon_moves(&mut self, now: Instant) -> bool {
        let mut preferred = false;
        for index in self.paths.indices() {
            if self.paths.abandon_move(index) {
                preferred |= self.paths[index].remote != self.paths.handshake_remote();
                self.release_id(now, index);
            }
        }
        preferred
    }

    /// As [`abandon_moves`](Self::abandon_moves), before the client moves elsewhere: the preferred address is to be tried
    /// from there.
    fn restart_moves(&mut self, now: Instant) {
        if self.abandon_moves(now) {
            self.paths.set_preferred_due();
        }
    }

    /// Returns whether this client may move to another address, at this time.
    ///
    /// # Errors
    /// See [`MigrateError`].
    pub fn may_migrate(&self) -> Result<(), MigrateError> {
        may_leave(self)
    }

    /// Moves this client to another address of its host: validates the path, and changes over when it works. The outcome
    /// is [`Event::Migrated`] or [`Event::MigrationFailed`].
    ///
    /// # Errors
    /// See [`MigrateError`].
    pub fn migrate(&mut self, now: Instant, local: IpAddr) -> Result<(), MigrateError> {
        may_leave(self)?;
        self.restart_moves(now);
        self.head_for(now, self.paths.active().remote, Some(local))?;
        // RFC 9000 §9.6.3 SHOULD-1: a client that moves before it has gone to the preferred address validates both
        // addresses of the server from its new one.
        self.consider_preferred_address(now);
        Ok(())
    }

    /// Begins to validate a path that this client wants to move to.
    fn head_for(&mut self, now: Instant, remote: SocketAddr, local: Option<IpAddr>) -> Result<(), MigrateError> {
        // RFC 9000 §9.5 MUST NOT-1, MUST NOT-2: one ID for two addresses.
        if !self.packets.identity.remote_ids.has_spare() {
            return Err(MigrateError::NoConnectionId);
        }
        let path = self.add_path(now, remote, local).ok_or(MigrateError::NoConnectionId)?;
        self.paths[path].destined = true;
        self.paths.challenge(now, path, self.packets.random.challenge_data());
        Ok(())
    }

    /// The server would rather be reached elsewhere, and the client has not tried yet from where it is.
    // RFC 9000 §9.6.1 SHOULD-1, SHOULD-2, MUST-1, RFC 9000 §9.6.2 MUST-1, RFC 9000 §21.5.3 MUST NOT-1: once the
    // handshake is confirmed the client validates a path there, and moves if it works.
    pub(super) fn consider_preferred_address(&mut self, now: Instant) {
        let Some((preferred, from)) = self.paths.preferred_move() else { return };
        // Without a connection ID for it the client waits for one.
        if preferred.is_none_or(|preferred| self.head_for(now, preferred, from).is_ok()) {
            self.paths.clear_preferred_due();
        }
    }

    /// Processes PATH_CHALLENGE on a path. A response to an unvalidated address carries a challenge too, so that the path is validated when
    /// the peer moves there.
    pub(super) fn on_path_challenge(&mut self, now: Instant, path: PathIndex, data: [u8; 8]) {
        let is_unproven = self.paths.on_challenge(path, data);
        // RFC 9000 §9.6.2 MUST-3: the server probes the client from the preferred address
        // RFC 9000 §9.6.3 SHOULD-2: a probe from another address makes the server validate that one
        if self.side == Side::Server && is_unproven {
            self.paths.challenge(now, path, self.packets.random.challenge_data());
        }
    }

    /// The peer has answered a challenge.
    pub(super) fn on_path_response(&mut self, now: Instant, data: [u8; 8]) {
        let Some(validated) = self.paths.on_response(data) else { return };
        let Validated { path, address_is_news, path_is_news, destined, is_partial } = validated;
        if is_partial {
            // RFC 9000 §8.2.1 MUST-3, RFC 9000 §8.2.3 MUST-1: the limit on bytes kept the challenge small; whether
            // the path carries 1,200 bytes is asked now that the address is known to be the peer's.
            self.paths.challenge(now, path, self.packets.random.challenge_data());
        }
        if destined {
            // RFC 9000 §9.6.3 MUST-1: if the preferred address answers, it is taken, and the validation of the other is
            // given up.
            if self.side == Side::Client && self.paths[path].remote != self.paths.handshake_remote() {
                self.abandon_moves(now);
            }
            self.paths.set_last_validated(path);
            self.use_path(now, path);
            // RFC 9000 §9.2: anything but a probing frame tells the server.
            self.packets.sources.control.ping.request();
        }
        let news = if self.side == Side::Server && !destined { address_is_news } else { path_is_news };
        if news && path == self.paths.active_index() {
            self.arrived(now, path);
        }
        self.release_unused_ids(now);
    }

    /// The path in use is validated.
    fn arrived(&mut self, now: Instant, path: PathIndex) {
        self.paths.set_last_validated(path);
        self.observation.migrating(now, Migration::Validated, &self.paths[path]);
        self.push(Event::Migrated);
    }

    /// Releases the IDs of unused paths.
    fn release_unused_ids(&mut self, now: Instant) {
        for index in self.paths.indices() {
            if self.paths.is_unused(index) {
                self.release_id(now, index);
            }
        }
    }

    fn release_id(&mut self, now: Instant, path: PathIndex) {
        if let Err(error) = self.packets.identity.remote_ids.release(path) {
            self.fail(now, error);
        }
    }

    /// A challenge is due again, or its time has ended.
    pub(super) fn on_path_timeout(&mut self, now: Instant) {
        for path in self.paths.indices() {
            if self.paths.on_validation_timeout(now, path, || self.packets.random.challenge_data())
                && !self.paths[path].proven
            {
                self.stats.path_failures += 1;
                self.on_path_failure(now, path);
            }
        }
        self.release_unused_ids(now);
    }

    /// Takes the failure of a path validation: no response arrived in time (RFC 9000 §8.2.4).
    fn on_path_failure(&mut self, now: Instant, path: PathIndex) {
        let failure = self.paths.on_validation_failure(path);
        if failure == Failure::Unimportant {
            return;
        }
        self.observation.migrating(now, Migration::Abandoned, &self.paths[path]);
        if let Failure::FellBack(fallback) = failure {
            self.packets.identity.remote_ids.activate(fallback, path);
            self.fit_datagrams();
        } else if self.side == Side::Client {
            self.push(Event::MigrationFailed);
        }
    }
}

/// State of a connection's move to `local`.
pub(crate) fn move_state(connection: &Connection, local: IpAddr) -> MoveState {
    connection.paths.move_state(local)
}

/// Returns whether this end may send from another address.
fn may_leave(connection: &Connection) -> Result<(), MigrateError> {
    let Connection { peer, paths, packets, .. } = connection;
    if connection.side == Side::Server {
        return Err(MigrateError::NotClient);
    }
    // RFC 9000 §9 MUST NOT-1: no migration before the handshake is confirmed.
    if !packets.sources.handshake.is_confirmed() || !connection.lifecycle.is_open() {
        return Err(MigrateError::NotEstablished);
    }
    // RFC 9000 §9 MUST NOT-2, RFC 9000 §18.2 MUST NOT-2: the server's wish holds for the address of the
    // handshake, not for the one it prefers.
    if peer.disable_active_migration && paths.active().remote == paths.handshake_remote() {
        return Err(MigrateError::Disabled);
    }
    // RFC 9000 §9.5 MUST NOT-1: an ID of the peer is used from one local address only
    // RFC 9000 §9.5 SHOULD NOT-1: who sends to an empty ID does not migrate
    if !packets.identity.remote_ids.has_spare() {
        return Err(MigrateError::NoConnectionId);
    }
    Ok(())
}
