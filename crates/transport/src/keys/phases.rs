//! Keys of 1-RTT packets, phase by phase (RFC 9001 §6).
//!
//! Both directions are always in the same phase. There are up to three receive keys: the current one, the next one (derived in advance, so
//! that a forged Key Phase bit takes as long as any other forged packet), and for a while the previous one, for delayed packets.

use std::time::Duration;

use units::Instant;
use wire::bits;

use super::{DirectionKeys, SealError};
use crate::PathId;
use crate::crypto::{CipherSuite, HeaderKey, KeyMaterial, Labels, PacketKey, Secret};
use crate::tls::Direction;

/// The key that opened a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Used {
    Current,
    Next,
    Previous,
}

#[derive(Debug)]
struct Sealing {
    keys: DirectionKeys,
    /// The secret of the current phase.
    secret: Secret,
    /// Packets sealed in the current phase.
    sealed: u64,
    /// Count from which on the keys are updated as soon as possible.
    update_from: u64,
    /// Largest count allowed (RFC 9001 §6.6).
    limit: u64,
    /// Packets below `limit` that are reserved for CONNECTION_CLOSE.
    reserve: u64,
}

/// CONNECTION_CLOSE packets that can be sealed when no other packet can.
const RESERVE: u64 = 8;

#[derive(Debug)]
struct Opening {
    header: HeaderKey,
    current: PacketKey,
    /// Absent while the connection rests.
    next: Option<PacketKey>,
    previous: Option<PacketKey>,
    /// The secret of the next phase.
    next_secret: Secret,
    /// A packet of the current phase has been opened.
    seen_current: bool,
}

/// Packet numbers of a path that key phases depend on.
#[derive(Clone, Copy, Debug)]
struct PathNumbers {
    path: PathId,
    /// The lowest packet number opened in the current phase; `u64::MAX` when there is none.
    opened_lowest: u64,
    /// One more than the highest packet number opened in the current phase, or 0.
    opened_end: u64,
    /// The same for the phases before.
    opened_end_before: u64,
    /// The lowest packet number sealed in the current phase; `u64::MAX` when there is none.
    sealed_lowest: u64,
}

impl PathNumbers {
    const fn new(path: PathId) -> Self {
        Self { path, opened_lowest: u64::MAX, opened_end: 0, opened_end_before: 0, sealed_lowest: u64::MAX }
    }

    fn begin_phase(&mut self) {
        self.opened_end_before = self.opened_end_before.max(self.opened_end);
        self.opened_end = 0;
        self.opened_lowest = u64::MAX;
        self.sealed_lowest = u64::MAX;
    }
}

#[derive(Debug)]
pub(super) struct Phases {
    suite: CipherSuite,
    sealing: Option<Sealing>,
    opening: Option<Opening>,
    /// The Key Phase bit of the current phase, in place.
    phase: u8,
    /// Number of updates.
    pub(super) generation: u64,
    /// The handshake is confirmed.
    pub(super) confirmed: bool,
    /// An acknowledgement of a packet of the current phase was sent in the current phase.
    ack_sent: bool,
    /// Time at which a packet sealed in the current phase was first acknowledged.
    acked_at: Option<Instant>,
    retire_at: Option<Instant>,
    /// Path 0 is first and always there; other paths are few.
    first: PathNumbers,
    others: Vec<PathNumbers>,
    limit: Option<u64>,
    /// Only CONNECTION_CLOSE is sealed from here on.
    closing: bool,
}

impl Phases {
    pub(super) const fn new(limit: Option<u64>) -> Self {
        Self {
            suite: CipherSuite::Aes128Gcm,
            sealing: None,
            opening: None,
            phase: 0,
            generation: 0,
            confirmed: false,
            ack_sent: false,
            acked_at: None,
            retire_at: None,
            first: PathNumbers::new(PathId(0)),
            others: Vec::new(),
            limit,
            closing: false,
        }
    }

    /// Allows CONNECTION_CLOSE to use the packets reserved for it.
    pub(super) fn allow_close_packets(&mut self) {
        self.closing = true;
    }

    pub(super) fn install(
        &mut self,
        direction: Direction,
        suite: CipherSuite,
        secret: &Secret,
        material: Option<&KeyMaterial>,
        labels: &Labels,
    ) {
        self.suite = suite;
        let keys = DirectionKeys::with(suite, secret, material, labels);
        match direction {
            Direction::Local => {
                let limit = self.limit.unwrap_or(suite.confidentiality_limit());
                self.sealing = Some(Sealing {
                    keys,
                    secret: secret.clone(),
                    sealed: 0,
                    update_from: limit - limit / 8,
                    limit,
                    reserve: RESERVE.min(limit / 16),
                });
            }
            Direction::Remote => {
                // RFC 9001 §6.3 SHOULD-1: the next keys, once made, are kept
                // RFC 9001 §6.3 MUST-1: current and next keys for receiving are both there
                // RFC 9001 §9.5 SHOULD-1: the next receiving keys are made ahead
                let next_secret = secret.next(suite, labels);
                let DirectionKeys { packet: current, header } = keys;
                self.opening = Some(Opening {
                    header,
                    current,
                    next: Some(PacketKey::new(suite, &next_secret, labels)),
                    previous: None,
                    next_secret,
                    seen_current: true,
                });
            }
        }
    }

    pub(super) fn can_seal(&self) -> bool {
        self.sealing.is_some()
    }

    pub(super) fn can_open(&self) -> bool {
        self.opening.is_some()
    }

    /// Frees the next key for receiving until a packet arrives: it is made again from its secret.
    pub(super) fn rest(&mut self) {
        if let Some(opening) = &mut self.opening {
            opening.next = None;
        }
    }

    /// Makes the next key for receiving if the connection has rested, before anything of a packet is looked at: so the time that it takes
    /// does not depend on the Key Phase bit.
    #[inline]
    pub(super) fn wake(&mut self, labels: &Labels) {
        if let Some(opening) = &mut self.opening
            && opening.next.is_none()
        {
            opening.next = Some(PacketKey::new(self.suite, &opening.next_secret, labels));
        }
    }

    /// Returns whether the next key for receiving is there.
    #[cfg(test)]
    pub(super) fn has_next(&self) -> bool {
        self.opening.as_ref().is_some_and(|opening| opening.next.is_some())
    }

    #[inline]
    pub(super) fn remote_header(&self) -> Option<&HeaderKey> {
        self.opening.as_ref().map(|opening| &opening.header)
    }

    #[inline]
    fn numbers(&mut self, path: PathId) -> &mut PathNumbers {
        if path == PathId(0) { &mut self.first } else { self.numbers_of_other(path) }
    }

    fn numbers_of_other(&mut self, path: PathId) -> &mut PathNumbers {
        let at = match self.others.iter().position(|numbers| numbers.path == path) {
            Some(at) => at,
            None => {
                self.others.push(PathNumbers::new(path));
                self.others.len() - 1
            }
        };
        &mut self.others[at]
    }

    /// Lowest packet number opened on a path in the current phase, without making a place for the path: the packet is
    /// not authenticated yet.
    #[inline]
    fn opened_lowest(&self, path: PathId) -> u64 {
        if path == PathId(0) {
            return self.first.opened_lowest;
        }
        self.others.iter().find(|numbers| numbers.path == path).map_or(u64::MAX, |numbers| numbers.opened_lowest)
    }

    /// The key for a packet whose header protection is removed.
    // RFC 9001 §6.5: with the other Key Phase, a packet number below all of the current phase needs the previous key, one
    // above them the next. While no packet of the current phase was seen on the path, and the previous keys are still
    // there, it is the previous one, because the peer cannot be two phases ahead of what it has acknowledged.
    #[inline]
    pub(super) fn opening_key(&self, phase: bool, pn: u64, path: PathId) -> Option<(&PacketKey, Used)> {
        let opening = self.opening.as_ref()?;
        if phase == (self.phase != 0) {
            return Some((&opening.current, Used::Current));
        }
        match &opening.previous {
            Some(previous) if pn < self.opened_lowest(path) => Some((previous, Used::Previous)),
            // RFC 9001 §6.3 MUST NOT-1: without a previous key the next one is tried all the same, so that no time
            // tells them apart.
            _ => Some((opening.next.as_ref()?, Used::Next)),
        }
    }

    /// Takes note of an authentic packet. Returns whether it is the first one of its phase.
    #[inline]
    pub(super) fn on_opened(
        &mut self,
        used: Used,
        pn: u64,
        path: PathId,
        labels: &Labels,
    ) -> Result<bool, &'static str> {
        match used {
            Used::Previous => {
                let numbers = self.numbers(path);
                numbers.opened_end_before = numbers.opened_end_before.max(pn + 1);
                return Ok(false);
            }
            Used::Next => self.on_update_of_peer(labels)?,
            Used::Current => {}
        }
        let numbers = self.numbers(path);
        // RFC 9001 §6.4 MUST-2: newer keys for a lower packet number than older keys are a KEY_UPDATE_ERROR.
        if pn < numbers.opened_end_before {
            return Err("old keys were used after new ones");
        }
        numbers.opened_lowest = numbers.opened_lowest.min(pn);
        numbers.opened_end = numbers.opened_end.max(pn + 1);
        let seen = self.opening.as_mut().map(|opening| std::mem::replace(&mut opening.seen_current, true));
        Ok(seen == Some(false))
    }

    // RFC 9001 §6.2 MUST-1, MUST-2: the peer updated; the keys for sending follow, before anything more is
    // acknowledged. An update of keys that were never acknowledged is a KEY_UPDATE_ERROR.
    #[cold]
    fn on_update_of_peer(&mut self, labels: &Labels) -> Result<(), &'static str> {
        if self.generation > 0 && !self.ack_sent {
            return Err("keys were updated twice without an acknowledgement");
        }
        if self.sealing.is_none() {
            return Err("keys were updated before the handshake was complete");
        }
        self.begin_phase(labels);
        Ok(())
    }

    /// Moves both directions on. Both keys must be there.
    fn begin_phase(&mut self, labels: &Labels) {
        let (Some(opening), Some(sealing)) = (&mut self.opening, &mut self.sealing) else { return };
        sealing.secret = sealing.secret.next(self.suite, labels);
        // RFC 9001 §6.4 MUST-1: packets are never sealed with older keys than those before them
        sealing.keys.packet = PacketKey::new(self.suite, &sealing.secret, labels);
        sealing.sealed = 0;
        let after = opening.next_secret.next(self.suite, labels);
        let following = std::mem::replace(&mut opening.next_secret, after);
        let after_next = PacketKey::new(self.suite, &opening.next_secret, labels);
        let current = match opening.next.replace(after_next) {
            Some(next) => next,
            None => PacketKey::new(self.suite, &following, labels),
        };
        // RFC 9001 §6.1 MUST-1: old keys stay until a packet under the new ones was opened
        // RFC 9001 §6.1 SHOULD-1: old keys stay for a while after the first packet under the new ones
        opening.previous = Some(std::mem::replace(&mut opening.current, current));
        opening.seen_current = false;
        self.retire_at = None;
        self.phase ^= bits::KEY_PHASE;
        self.generation += 1;
        self.ack_sent = false;
        self.acked_at = None;
        self.first.begin_phase();
        self.others.iter_mut().for_each(PathNumbers::begin_phase);
    }

    /// Returns whether the data of packets may lie elsewhere: see [`PacketKey::seals_from_elsewhere`](crate::crypto::PacketKey).
    #[inline]
    pub(super) fn seals_from_elsewhere(&self) -> bool {
        self.sealing.as_ref().is_some_and(|sealing| sealing.keys.packet.seals_from_elsewhere())
    }

    /// The keys for the next packet, and the Key Phase bit that goes with them.
    #[inline]
    pub(super) fn sealing_key(
        &mut self,
        pn: u64,
        path: PathId,
        labels: &Labels,
    ) -> Result<(u8, &DirectionKeys), SealError> {
        let sealing = self.sealing.as_ref().ok_or(SealError::NoKeys)?;
        if sealing.sealed >= sealing.update_from {
            self.near_the_limit(labels)?;
        }
        let numbers = self.numbers(path);
        numbers.sealed_lowest = numbers.sealed_lowest.min(pn);
        let sealing = self.sealing.as_mut().ok_or(SealError::NoKeys)?;
        // RFC 9001 §6.6 MUST-1: packets are counted under each set of keys
        sealing.sealed += 1;
        Ok((self.phase, &sealing.keys))
    }

    // RFC 9001 §5.3 MUST-1, RFC 9001 §6.6 MUST-2, MUST-3: update before more packets are sealed than the limit
    // permits; when that cannot be done, stop.
    #[cold]
    fn near_the_limit(&mut self, labels: &Labels) -> Result<(), SealError> {
        if self.may_update() {
            self.begin_phase(labels);
            return Ok(());
        }
        // RFC 9001 §6.6 RECOMMENDED-1: the connection closes while there are packets left to say so.
        let kept = |sealing: &Sealing| if self.closing { 0 } else { sealing.reserve };
        match &self.sealing {
            Some(sealing) if sealing.sealed >= sealing.limit - kept(sealing) => Err(SealError::ConfidentialityLimit),
            _ => Ok(()),
        }
    }

    fn may_update(&self) -> bool {
        // RFC 9001 §6.1 MUST NOT-1: no key update before the handshake is confirmed
        // RFC 9001 §6.1 MUST NOT-2: no key update before a packet of the current phase was acknowledged
        let acknowledged = self.generation == 0 || self.acked_at.is_some();
        self.confirmed && acknowledged && self.sealing.is_some() && self.opening.is_some()
    }

    pub(super) fn update(&mut self, now: Instant, wait: Duration, labels: &Labels) -> bool {
        // RFC 9001 §6.5 SHOULD-1: three probe timeouts lie between key updates
        let waited = self.acked_at.is_none_or(|at| now >= at + wait) || self.generation == 0;
        let may = self.may_update() && waited;
        if may {
            self.begin_phase(labels);
        }
        may
    }

    #[inline]
    pub(super) fn on_ack_sent(&mut self, path: PathId, largest: u64) {
        if !self.ack_sent && largest >= self.opened_lowest(path) {
            self.ack_sent = true;
        }
    }

    #[inline]
    pub(super) fn on_acked(
        &mut self,
        path: PathId,
        largest: u64,
        now: Instant,
        old_keys: bool,
    ) -> Result<(), &'static str> {
        if self.acked_at.is_some() && !old_keys {
            return Ok(());
        }
        if largest < self.numbers(path).sealed_lowest {
            return Ok(());
        }
        // RFC 9001 §6.2: a peer that acknowledges a packet with new keys has to have updated its own.
        if old_keys {
            return Err("new keys were acknowledged with old ones");
        }
        self.acked_at = Some(now);
        Ok(())
    }

    pub(super) fn retire_previous_at(&mut self, at: Instant) {
        if self.opening.as_ref().is_some_and(|opening| opening.previous.is_some()) {
            self.retire_at = Some(at);
        }
    }

    pub(super) fn retire_at(&self) -> Option<Instant> {
        self.retire_at
    }

    pub(super) fn on_timeout(&mut self, now: Instant) {
        if self.retire_at.is_some_and(|at| now >= at) {
            self.retire_at = None;
            if let Some(opening) = &mut self.opening {
                opening.previous = None;
            }
        }
    }
}
