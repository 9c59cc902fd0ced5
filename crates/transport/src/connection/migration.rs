//! A peer whose address changes (RFC 9000 §9): a rebinding of a NAT, or a move to another network.

use std::net::{IpAddr, SocketAddr};

use rand_core::RngCore;
use units::Instant;
use wire::Side;

use super::Connection;
use crate::{
    events::Event,
    observe::{DropReason, Migration},
    path::{AmplificationLimit, Outcome, Path},
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
        if self.paths[self.active].remote == remote {
            return Some(self.active);
        }
        if let Some(known) = self.paths.0.iter().position(|p| p.remote == remote) {
            return Some(known);
        }
        // RFC 9000 §9 MUST: a client drops packets from addresses of the server that it does not know, and nobody
        // changes address before the handshake is confirmed.
        if self.side == Side::Client || !self.handshake.is_confirmed() {
            self.drop_packet(now, None, bytes, DropReason::UnknownAddress);
            return None;
        }
        self.newcomer = Some(Newcomer { remote, local, bytes, place: None });
        Some(NEWCOMER)
    }

    /// The path of a newcomer, one of whose packets turned out to be authentic and new.
    pub(super) fn welcome(&mut self, now: Instant) -> Option<usize> {
        let Newcomer { remote, local, bytes, place } = self.newcomer?;
        if place.is_some() {
            return place;
        }
        let place = self.add_path(now, remote, local)?;
        self.paths[place].amplification.on_received(bytes);
        self.newcomer = Some(Newcomer { remote, local, bytes, place: Some(place) });
        Some(place)
    }

    /// Makes room for a new path, at the cost of one that is neither in use nor the last that was validated.
    fn add_path(&mut self, now: Instant, remote: SocketAddr, local: Option<IpAddr>) -> Option<usize> {
        // RFC 9000 §9.4 MUST: a new path starts with a new congestion controller and a new RTT.
        let mut discovery = self.profile.mtu_discovery();
        let mtu = discovery.limit(self.peer.max_udp_payload_size);
        let seed = self.seed.child("path", self.paths_seen);
        let mut recovery = Recovery::new(&self.profile.recovery_config(), mtu, seed, now);
        recovery.set_max_ack_delay(self.ack_requests.max_ack_delay());
        let path = Path::new(remote, local, AmplificationLimit::unvalidated(), recovery, discovery, self.profile.ecn);
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
            self.abandon_path(place);
            self.stats.congestion_events += self.paths[place].recovery.congestion_events();
            self.paths[place] = path;
            place
        };
        self.paths_seen += 1;
        Some(place)
    }

    /// The newest packet came over another path, with more than probing frames: the peer lives there now.
    pub(super) fn migrate(&mut self, now: Instant, place: usize) {
        if self.side == Side::Client {
            return;
        }
        if self.paths[self.active].amplification.is_validated() {
            self.last_validated = self.active;
        }
        self.active = place;
        self.ack_requests.restart();
        self.observe_migration(now, Migration::Started, place);
        // RFC 9000 §9.3 MUST: the new address is validated, unless it was before.
        if !self.paths[place].amplification.is_validated() && !self.paths[place].challenge.is_running() {
            self.challenge(now, place);
        }
        // RFC 9000 §9.3.3: the old path is asked too; if the peer is still there, someone copies its packets.
        let old = self.last_validated;
        if old != place && !self.paths[old].challenge.is_running() {
            self.challenge(now, old);
        }
        // RFC 9000 §9.5 SHOULD: another ID on another path, so that observers cannot link the two.
        if let Err(error) = self.remote_ids.rotate() {
            self.fail(now, error);
        }
        self.fit_datagrams();
    }

    fn observe_migration(&mut self, now: Instant, state: Migration, place: usize) {
        let remote = self.paths[place].remote;
        self.observe(now, |observer, at| observer.migration(at, state, remote));
    }

    pub(super) fn challenge(&mut self, now: Instant, place: usize) {
        let data = self.challenge_data();
        let pto = self.paths[place].recovery.pto();
        self.paths[place].challenge.start(data, now, pto);
    }

    pub(super) fn challenge_data(&mut self) -> [u8; 8] {
        // RFC 9000 §8.2.1 MUST: unpredictable, and other data each time.
        self.random.next_u64().to_be_bytes()
    }

    pub(super) fn on_path_response(&mut self, now: Instant, data: [u8; 8]) {
        // RFC 9000 §8.2.3: the answer counts wherever it arrives.
        for place in 0..self.paths.0.len() {
            if self.paths[place].challenge.on_response(data) == Outcome::Validated
                && self.paths[place].amplification.validate()
                && place == self.active
            {
                self.last_validated = place;
                self.observe_migration(now, Migration::Validated, place);
                self.push(Event::Migrated);
            }
        }
    }

    /// A challenge is due again, or its time is over.
    pub(super) fn on_path_timeout(&mut self, now: Instant) {
        for place in 0..self.paths.0.len() {
            if self.paths[place].challenge.is_expired(now) {
                self.paths[place].challenge.abandon();
                if place == self.active && !self.paths[place].amplification.is_validated() {
                    // RFC 9000 §9.3.2 MUST: without proof the peer is still where it was.
                    self.active = self.last_validated;
                    self.observe_migration(now, Migration::Abandoned, place);
                }
            } else if let Some(pto) = self.paths[place].challenge.repeat_due(now) {
                let data = self.challenge_data();
                self.paths[place].challenge.start(data, now, pto * 2);
            }
        }
    }
}
