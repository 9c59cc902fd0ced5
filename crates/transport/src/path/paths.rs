//! Paths of a connection: known paths, the active path, and the candidate path.
//!
//! A path is named by its [`PathIndex`], which ledgers record with every packet. An index stays valid until a new path replaces its path,
//! which happens only when the list is full.

use std::{
    net::{IpAddr, SocketAddr},
    ops::{Index, IndexMut},
};

use units::{Duration, Instant};
use wire::PreferredAddress;

use super::Path;
use crate::{
    recovery::{self, Deadline, Progress, Recovery},
    sent::PathIndex,
};

/// Paths that are remembered at a time.
const LIMIT: usize = 4;

/// The path that a datagram arrived on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrivalPath {
    /// A path of the list.
    Known(PathIndex),
    /// An address that no path has. It becomes a path when one of its packets is authentic: a peer that only knows a
    /// connection ID takes no place in the list.
    Candidate,
}

/// An address that packets arrived from and that no path had.
#[derive(Clone, Copy)]
struct Candidate {
    remote: SocketAddr,
    local: Option<IpAddr>,
    /// Bytes of the datagrams, which count towards the amplification limit of the path.
    bytes: usize,
    /// The path, once there is one.
    path: Option<PathIndex>,
}

/// Owns the paths of a connection and which of them is in use.
pub(crate) struct Paths {
    list: Vec<Path>,
    active: PathIndex,
    /// The path to fall back to when the one in use turns out not to lead to the peer.
    last_validated: PathIndex,
    /// Boxed, because few connections have one.
    candidate: Option<Box<Candidate>>,
    /// The address that a server prefers (RFC 9000 §9.6).
    preferred: Option<Box<PreferredAddress>>,
    /// A client moves to the preferred address.
    follows_preferred: bool,
    /// A client has yet to try the preferred address.
    preferred_due: bool,
    /// The peer's address in the handshake.
    handshake_remote: SocketAddr,
    /// Number of paths there ever were.
    opened: u32,
}

impl Paths {
    /// The paths of a connection that begins on `path`.
    pub(crate) fn new(path: Path) -> Self {
        Self {
            handshake_remote: path.remote,
            list: vec![path],
            active: PathIndex::FIRST,
            last_validated: PathIndex::FIRST,
            candidate: None,
            preferred: None,
            follows_preferred: false,
            preferred_due: false,
            opened: 1,
        }
    }

    /// The path that is sent on.
    #[inline]
    pub(crate) fn active(&self) -> &Path {
        &self[self.active]
    }

    /// The path that is sent on.
    #[inline]
    pub(crate) fn active_mut(&mut self) -> &mut Path {
        let active = self.active;
        &mut self[active]
    }

    /// Index of the path that is sent on.
    #[inline]
    pub(crate) fn active_index(&self) -> PathIndex {
        self.active
    }

    /// Sends on `path` from here on. Returns the path that was in use.
    pub(crate) fn activate(&mut self, path: PathIndex) -> PathIndex {
        std::mem::replace(&mut self.active, path)
    }

    /// Index of the last path that was validated.
    pub(crate) fn last_validated(&self) -> PathIndex {
        self.last_validated
    }

    /// Records that `path` is validated, and the one to fall back to.
    pub(crate) fn set_last_validated(&mut self, path: PathIndex) {
        self.last_validated = path;
    }

    /// The last address at which the peer has shown that it receives; before that, the address of the Initial packets.
    pub(crate) fn validated_remote(&self) -> SocketAddr {
        let active = self.active();
        if active.amplification.is_validated() { active.remote } else { self[self.last_validated].remote }
    }

    /// Returns whether the peer has shown that it receives at [`validated_remote`](Self::validated_remote).
    pub(crate) fn has_validated_remote(&self) -> bool {
        self.active().amplification.is_validated() || self[self.last_validated].amplification.is_validated()
    }

    /// The peer's address in the handshake.
    pub(crate) fn handshake_remote(&self) -> SocketAddr {
        self.handshake_remote
    }

    /// All paths.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Path> {
        self.list.iter()
    }

    /// All paths.
    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Path> {
        self.list.iter_mut()
    }

    /// The indices of all paths.
    pub(crate) fn indices(&self) -> impl Iterator<Item = PathIndex> + use<> {
        PathIndex::all(self.list.len())
    }

    /// The first path for which `wanted` holds.
    pub(crate) fn find(&self, mut wanted: impl FnMut(&Path) -> bool) -> Option<PathIndex> {
        self.indices().find(|&path| wanted(&self[path]))
    }

    /// Bytes in flight on all paths.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.list.iter().map(|path| path.recovery.bytes_in_flight()).sum()
    }

    /// Returns whether packets are in flight on any path.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.list.iter().any(|path| path.recovery.bytes_in_flight() > 0)
    }

    /// Times that congestion was reacted to, on all paths of the list.
    pub(crate) fn congestion_events(&self) -> u64 {
        self.list.iter().map(|path| path.recovery.congestion_events()).sum()
    }

    /// Time and reason of the next look of recovery, at the path that it names.
    pub(crate) fn recovery_deadline(&self, progress: &Progress) -> Option<(PathIndex, Deadline)> {
        let deadline = |path: PathIndex| {
            // The handshake happens on one path; others only wait for what they carried.
            let progress = if path == self.active { progress } else { &Progress::CONFIRMED };
            Some((path, self[path].recovery.deadline(progress)?))
        };
        self.indices().filter_map(deadline).min_by_key(|(_, d)| d.at)
    }

    /// The peer takes no datagrams above `max` bytes, and acknowledges within `max_ack_delay`.
    pub(crate) fn on_peer_limits(&mut self, now: Instant, max: u16, max_ack_delay: Duration) {
        for path in &mut self.list {
            path.limit_mtu(now, max);
            path.recovery.set_max_ack_delay(max_ack_delay);
        }
    }

    /// The delay of the peer's acknowledgements that may be in force.
    pub(crate) fn set_max_ack_delay(&mut self, delay: Duration) {
        self.list.iter_mut().for_each(|path| path.recovery.set_max_ack_delay(delay));
    }

    /// Time at which a path validation has to be looked at next.
    pub(crate) fn validation_deadline(&self) -> Option<Instant> {
        self.list.iter().filter_map(|path| path.challenge.next_timeout()).min()
    }

    /// The path between these addresses. `None` when no path has them.
    #[inline]
    pub(crate) fn lookup(&self, remote: SocketAddr, local: Option<IpAddr>) -> Option<PathIndex> {
        if self.active().is(remote, local) { Some(self.active) } else { self.lookup_other(remote, local) }
    }

    fn lookup_other(&self, remote: SocketAddr, local: Option<IpAddr>) -> Option<PathIndex> {
        self.find(|path| path.is(remote, local))
            .or_else(|| self.active().may_be(remote, local).then_some(self.active))
            .or_else(|| self.find(|path| path.may_be(remote, local)))
    }

    /// Returns whether any path leads to this address of the peer.
    pub(crate) fn has_remote(&self, remote: SocketAddr) -> bool {
        self.list.iter().any(|path| path.remote == remote)
    }

    /// Records the address of a datagram of `bytes` that no path has.
    pub(crate) fn set_candidate(&mut self, remote: SocketAddr, local: Option<IpAddr>, bytes: usize) {
        self.candidate = Some(Box::new(Candidate { remote, local, bytes, path: None }));
    }

    /// The path of the candidate, if it has one by now.
    pub(crate) fn candidate_path(&self) -> Option<PathIndex> {
        self.candidate.as_ref()?.path
    }

    /// The addresses of the candidate, the peer's first.
    pub(crate) fn candidate_addresses(&self) -> Option<(SocketAddr, Option<IpAddr>)> {
        self.candidate.as_ref().map(|candidate| (candidate.remote, candidate.local))
    }

    /// The candidate has become `path`.
    pub(crate) fn promote_candidate(&mut self, path: PathIndex) {
        if let Some(candidate) = &mut self.candidate {
            candidate.path = Some(path);
            let bytes = candidate.bytes;
            self[path].amplification.on_received(bytes);
        }
    }

    /// Number of paths there ever were: the seed of the next one.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.into()
    }

    /// Path that is replaced by a new one: neither the active nor the last validated one, preferably one without activity. `None` while
    /// there is room, and if there is no such path.
    pub(crate) fn replaceable(&self) -> Option<PathIndex> {
        if self.has_room() {
            return None;
        }
        let others = self.indices().filter(|&path| path != self.active && path != self.last_validated);
        others.min_by_key(|&path| (self[path].challenge.is_running(), self[path].recovery.bytes_in_flight()))
    }

    /// Returns whether a path can be added without giving another one up.
    pub(crate) fn has_room(&self) -> bool {
        self.list.len() < LIMIT
    }

    /// Adds a path, in place of `replaced` where the list is full.
    pub(crate) fn add(&mut self, path: Path, replaced: Option<PathIndex>) -> PathIndex {
        self.opened = self.opened.wrapping_add(1);
        match replaced {
            Some(index) => {
                self[index] = path;
                index
            }
            None => {
                self.list.push(path);
                PathIndex::new(self.list.len() - 1)
            }
        }
    }

    /// Sets the address that the server prefers, which a client that follows it has yet to move to.
    pub(crate) fn set_preferred_address(&mut self, address: Option<Box<PreferredAddress>>) {
        self.preferred_due = address.is_some() && self.follows_preferred;
        self.preferred = address;
    }

    /// Sets the address that this server prefers, unless the client came to it, at `local`, anyway.
    pub(crate) fn offer_preferred_address(&mut self, address: Option<PreferredAddress>, local: Option<IpAddr>) {
        self.set_preferred_address(address.map(Box::new));
        if self.is_preferred(local) {
            self.set_preferred_address(None);
        }
    }

    /// Lets a client move to the address that the server prefers.
    pub(crate) fn follow_preferred_address(&mut self, follows: bool) {
        self.follows_preferred = follows;
    }

    /// The address that a client has yet to move to.
    pub(crate) fn due_preferred_address(&self) -> Option<&PreferredAddress> {
        self.preferred.as_deref().filter(|_| self.preferred_due)
    }

    /// A client has yet to move to the preferred address.
    pub(crate) fn set_preferred_due(&mut self) {
        self.preferred_due = true;
    }

    /// A client has tried to move to the preferred address, or cannot.
    pub(crate) fn clear_preferred_due(&mut self) {
        self.preferred_due = false;
    }

    /// Returns whether `local` is the address that this server prefers, and the client began at another.
    pub(crate) fn is_preferred(&self, local: Option<IpAddr>) -> bool {
        let (Some(local), Some(preferred)) = (local, &self.preferred) else { return false };
        let ipv4 = preferred.ipv4.map(|address| IpAddr::V4(*address.ip()));
        let ipv6 = preferred.ipv6.map(|address| IpAddr::V6(*address.ip()));
        [ipv4, ipv6].contains(&Some(local))
    }
}

impl recovery::Paths for Paths {
    #[inline]
    fn recovery(&mut self, path: PathIndex) -> Option<&mut Recovery> {
        self.list.get_mut(path.get()).map(|path| &mut path.recovery)
    }

    #[inline]
    fn count(&self) -> usize {
        self.list.len()
    }
}

impl Index<PathIndex> for Paths {
    type Output = Path;
    #[inline]
    fn index(&self, path: PathIndex) -> &Path {
        &self.list[path.get()]
    }
}

impl IndexMut<PathIndex> for Paths {
    #[inline]
    fn index_mut(&mut self, path: PathIndex) -> &mut Path {
        &mut self.list[path.get()]
    }
}
