//! Keys of a connection, and the choice of the key for a packet (RFC 9001 §4.9, §5, §6).
//!
//! Packets are opened and sealed as a whole and in place: header protection, packet number, key phase, payload. Keys of Initial, 0-RTT and
//! Handshake packets are boxed, because a connection needs them only for its first round trips; `phases` has those of 1-RTT packets.

mod header;
mod phases;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::Duration;

use phases::{Phases, Used};
use serde::{Deserialize, Serialize};
use units::Instant;
use wire::{Side, bits, decode_packet_number};

use crate::PathId;
use crate::crypto::{CipherSuite, HeaderKey, KeyMaterial, Labels, PacketKey, Secret, initial_secrets};
use crate::error::{Code, TransportError};
use crate::tls::{Direction, Level};

/// Limits on the use of keys; the default is that of the standard for the suite (RFC 9001 §6.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Packets that may be sealed with one key.
    pub confidentiality: Option<u64>,
    /// Packets of the connection that may fail authentication.
    pub integrity: Option<u64>,
}

/// Policy of updates of the 1-RTT keys that this end starts (RFC 9001 §6), beside the limits of the cipher, which always hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyUpdatePolicy {
    /// After this many packets sent.
    pub packets: Option<u64>,
    /// After this many bytes of UDP payload sent.
    pub bytes: Option<u64>,
}

/// A packet that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The full packet number.
    pub pn: u64,
    /// Range of the frames in the packet.
    pub payload: Range<usize>,
    /// The packet is the first one from the peer in a new key phase: call [`Keys::retire_previous_at`].
    pub new_phase: bool,
    /// The packet was protected with the keys of the phase before this one.
    pub old_keys: bool,
}

/// A packet that could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No keys for the packet: it comes too early or too late.
    #[error("no keys for the packet")]
    NoKeys,
    /// Too short to have been protected.
    #[error("the packet is too short")]
    TooShort,
    /// Failed authentication.
    #[error("the packet failed authentication")]
    Forged,
    /// Too many packets failed authentication; the connection cannot continue.
    #[error("too many packets failed authentication")]
    IntegrityLimit,
    /// An authentic packet in which a reserved bit is set.
    #[error("a reserved bit of the header is set")]
    ReservedBits,
    /// An authentic packet whose key phase breaks the rules.
    #[error("{0}")]
    KeyUpdate(&'static str),
}

impl OpenError {
    /// The error that closes the connection; `None` when the packet is just to be dropped.
    pub fn fatal(self) -> Option<TransportError> {
        match self {
            Self::NoKeys | Self::TooShort | Self::Forged => None,
            Self::IntegrityLimit => {
                Some(TransportError::new(Code::AEAD_LIMIT_REACHED, "too many packets failed authentication"))
            }
            Self::ReservedBits => {
                Some(TransportError::new(Code::PROTOCOL_VIOLATION, "a reserved bit of the header is set"))
            }
            Self::KeyUpdate(reason) => Some(TransportError::new(Code::KEY_UPDATE_ERROR, reason)),
        }
    }
}

/// A packet that could not be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// No keys for the packet.
    #[error("no keys for the packet")]
    NoKeys,
    /// The key has sealed as many packets as it may, and an update is not possible (`AEAD_LIMIT_REACHED`). Only a
    /// stateless reset may be sent from here on.
    #[error("the key has been used for as many packets as it may")]
    ConfidentialityLimit,
}

impl From<SealError> for TransportError {
    fn from(error: SealError) -> Self {
        match error {
            SealError::NoKeys => Self::new(Code::INTERNAL_ERROR, "a packet was built without keys"),
            SealError::ConfidentialityLimit => {
                Self::new(Code::AEAD_LIMIT_REACHED, "a key was used for as many packets as it may")
            }
        }
    }
}

/// The keys of one direction at one level.
#[derive(Debug)]
struct DirectionKeys {
    packet: PacketKey,
    header: HeaderKey,
}

impl DirectionKeys {
    fn new(suite: CipherSuite, secret: &Secret, labels: &Labels) -> Self {
        Self { packet: PacketKey::new(suite, secret, labels), header: HeaderKey::new(suite, secret, labels) }
    }

    /// The keys of a secret, where they may have been derived before.
    fn with(suite: CipherSuite, secret: &Secret, material: Option<&KeyMaterial>, labels: &Labels) -> Self {
        match material {
            Some(material) => Self {
                packet: PacketKey::from_material(suite, material),
                header: HeaderKey::from_material(suite, material),
            },
            None => Self::new(suite, secret, labels),
        }
    }
}

impl DirectionKeys {
    /// Opens a packet with a long header.
    fn open_long(&self, packet: &mut [u8], pn_offset: usize, expected_pn: u64) -> Result<Opened, OpenError> {
        let (pn_len, truncated) = header::unprotect(&self.header, packet, pn_offset).ok_or(OpenError::TooShort)?;
        let pn = decode_packet_number(truncated, pn_len, expected_pn);
        let payload_offset = pn_offset + pn_len;
        let (head, body) = packet.split_at_mut(payload_offset);
        match self.packet.open(pn, PathId(0), head, body) {
            // RFC 9000 §17.2 MUST-5: reserved bits of a long header that are set are PROTOCOL_VIOLATION
            Ok(_) if head[0] & bits::RESERVED_LONG != 0 => Err(OpenError::ReservedBits),
            Ok(len) => {
                let payload = payload_offset..payload_offset + len;
                Ok(Opened { pn, payload, new_phase: false, old_keys: false })
            }
            Err(_) => Err(OpenError::Forged),
        }
    }
}

/// The keys of one level whose keys are never updated.
#[derive(Debug, Default)]
struct LevelKeys {
    local: Option<DirectionKeys>,
    remote: Option<DirectionKeys>,
}

/// All keys of a connection.
///
/// Use: [`set_initial`](Self::set_initial) first, [`install`](Self::install) for every secret that TLS hands out,
/// [`discard`](Self::discard) when a level is done. `open_*` and `seal_*` take a packet from its first byte to its last,
/// the authentication tag included, and work in place.
#[derive(Debug)]
pub struct Keys {
    side: Side,
    labels: &'static Labels,
    /// RFC 9369 §4.1: early data keeps the version of the client's first flight.
    early_labels: &'static Labels,
    limits: KeyLimits,
    initial: Option<Box<LevelKeys>>,
    /// Initial keys of the client's first flight, at a server that changed the version (RFC 9369 §4.1).
    first_initial: Option<Box<DirectionKeys>>,
    zero_rtt: Option<Box<LevelKeys>>,
    handshake: Option<Box<LevelKeys>>,
    one_rtt: Phases,
    /// Packets that failed authentication.
    forged: u64,
    /// Number of them at which the connection closes (RFC 9001 §6.6).
    integrity_limit: u64,
}

impl Keys {
    /// Without keys. `labels` are those of the connection's version.
    pub fn new(side: Side, labels: &'static Labels, limits: KeyLimits) -> Self {
        Self {
            side,
            labels,
            early_labels: labels,
            limits,
            initial: None,
            first_initial: None,
            zero_rtt: None,
            handshake: None,
            one_rtt: Phases::new(limits.confidentiality),
            forged: 0,
            integrity_limit: limits.integrity.unwrap_or(u64::MAX),
        }
    }

    /// Installs the Initial keys that follow from a Destination Connection ID, in place of any before: that of the
    /// client's first packet, or of its first packet after a Retry (RFC 9001 §5.2).
    pub fn set_initial(&mut self, dcid: &[u8]) {
        let suite = CipherSuite::Aes128Gcm;
        let labels = self.labels;
        let [client, server] = initial_secrets(labels, dcid);
        let keys = |secret| Some(DirectionKeys::new(suite, secret, labels));
        let (local, remote) = if self.side == Side::Client { (&client, &server) } else { (&server, &client) };
        self.initial = Some(Box::new(LevelKeys { local: keys(local), remote: keys(remote) }));
        self.lower_integrity_limit(suite);
    }

    /// Changes the version: its labels serve all keys installed from here on (RFC 9369 §4.1).
    pub fn set_labels(&mut self, labels: &'static Labels) {
        self.labels = labels;
    }

    /// Keeps the present Initial keys for [`open_first_initial`](Self::open_first_initial) until the level is discarded, before other
    /// Initial keys are installed.
    // RFC 9369 §4.1 MUST NOT-2: a server keeps them until a Handshake packet of the negotiated version has come
    pub fn keep_first_initial(&mut self) {
        self.first_initial = self.initial.as_mut().and_then(|keys| keys.remote.take()).map(Box::new);
    }

    /// Installs the keys that follow from a secret of the handshake.
    pub fn install(&mut self, level: Level, direction: Direction, suite: CipherSuite, secret: &Secret) {
        self.install_with(level, direction, suite, secret, None);
    }

    /// As [`install`](Self::install), without deriving what TLS has derived already for the version that the keys are for.
    pub fn install_with(
        &mut self,
        level: Level,
        direction: Direction,
        suite: CipherSuite,
        secret: &Secret,
        material: Option<&KeyMaterial>,
    ) {
        self.lower_integrity_limit(suite);
        let labels = if level == Level::ZeroRtt { self.early_labels } else { self.labels };
        let material = material.filter(|material| material.is_of(labels));
        let place = match level {
            Level::OneRtt => return self.one_rtt.install(direction, suite, secret, material, labels),
            Level::Initial => &mut self.initial,
            Level::ZeroRtt => &mut self.zero_rtt,
            Level::Handshake => &mut self.handshake,
        };
        let keys = Some(DirectionKeys::with(suite, secret, material, labels));
        let level = place.get_or_insert_default();
        match direction {
            Direction::Local => level.local = keys,
            Direction::Remote => level.remote = keys,
        }
    }

    // RFC 9001 §6.6: the limit on failures is that of the suite; where suites differ, the lower one is safe.
    fn lower_integrity_limit(&mut self, suite: CipherSuite) {
        self.integrity_limit = self.limits.integrity.unwrap_or(suite.integrity_limit()).min(self.integrity_limit);
    }

    /// Forgets the keys of a level (RFC 9001 §4.9).
    pub fn discard(&mut self, level: Level) {
        match level {
            Level::Initial => {
                self.initial = None;
                self.first_initial = None;
            }
            Level::ZeroRtt => self.zero_rtt = None,
            Level::Handshake => self.handshake = None,
            Level::OneRtt => self.one_rtt = Phases::new(self.limits.confidentiality),
        }
    }

    fn level(&self, level: Level) -> Option<&LevelKeys> {
        match level {
            Level::Initial => self.initial.as_deref(),
            Level::ZeroRtt => self.zero_rtt.as_deref(),
            Level::Handshake => self.handshake.as_deref(),
            Level::OneRtt => None,
        }
    }

    /// Returns whether packets of this level can be sealed.
    pub fn can_seal(&self, level: Level) -> bool {
        match level {
            Level::OneRtt => self.one_rtt.can_seal(),
            _ => self.level(level).is_some_and(|keys| keys.local.is_some()),
        }
    }

    /// Permits CONNECTION_CLOSE packets to use the reserve of the last key.
    pub fn allow_close_packets(&mut self) {
        self.one_rtt.allow_close_packets();
    }

    /// Returns whether packets of this level can be opened.
    pub fn can_open(&self, level: Level) -> bool {
        match level {
            Level::OneRtt => self.one_rtt.can_open(),
            _ => self.level(level).is_some_and(|keys| keys.remote.is_some()),
        }
    }

    /// Opens a packet with a long header. `packet` ends at the end of the Length field's range; `expected_pn` is the largest packet number
    /// received in its space plus one, or zero.
    ///
    /// When it fails, the packet is overwritten.
    pub fn open_long(
        &mut self,
        level: Level,
        packet: &mut [u8],
        pn_offset: usize,
        expected_pn: u64,
    ) -> Result<Opened, OpenError> {
        let keys = self.level(level).and_then(|keys| keys.remote.as_ref()).ok_or(OpenError::NoKeys)?;
        let opened = keys.open_long(packet, pn_offset, expected_pn);
        self.count_if_forged(opened)
    }

    /// As [`open_long`](Self::open_long), of an Initial packet in the version that the connection began with.
    pub fn open_first_initial(
        &mut self,
        packet: &mut [u8],
        pn_offset: usize,
        expected_pn: u64,
    ) -> Result<Opened, OpenError> {
        let keys = self.first_initial.as_ref().ok_or(OpenError::NoKeys)?;
        let opened = keys.open_long(packet, pn_offset, expected_pn);
        self.count_if_forged(opened)
    }

    fn count_if_forged(&mut self, opened: Result<Opened, OpenError>) -> Result<Opened, OpenError> {
        match opened {
            Err(OpenError::Forged) => Err(self.count_forged()),
            other => other,
        }
    }

    /// Opens a packet with a short header. `expected_pn` is the largest packet number received on the path plus one, or
    /// zero.
    ///
    /// When it fails, the packet is overwritten, except for its last 16 bytes: they may be a stateless reset token.
    #[inline]
    pub fn open_short(
        &mut self,
        packet: &mut [u8],
        pn_offset: usize,
        path: PathId,
        expected_pn: u64,
    ) -> Result<Opened, OpenError> {
        self.one_rtt.wake(self.labels);
        let header_key = self.one_rtt.remote_header().ok_or(OpenError::NoKeys)?;
        // RFC 9001 §9.5 MUST-1: opening header and packet takes the same course whatever the packet number
        let (pn_len, truncated) = header::unprotect(header_key, packet, pn_offset).ok_or(OpenError::TooShort)?;
        let pn = decode_packet_number(truncated, pn_len, expected_pn);
        let payload_offset = pn_offset + pn_len;
        let (head, body) = packet.split_at_mut(payload_offset);
        let phase = head[0] & bits::KEY_PHASE != 0;
        let (key, used) = self.one_rtt.opening_key(phase, pn, path).ok_or(OpenError::NoKeys)?;
        // RFC 9001 §5.5 MUST-1: a packet that neither the keys of its number nor newer ones open is dropped
        // RFC 9001 §5.5 MUST-2: a packet that only looks like a key update is dropped
        let Ok(len) = key.open(pn, path, head, body) else { return Err(self.count_forged()) };
        // RFC 9000 §17.3.1 MUST-3: a reserved bit that is set after all protection is removed is a PROTOCOL_VIOLATION.
        if head[0] & bits::RESERVED_SHORT != 0 {
            return Err(OpenError::ReservedBits);
        }
        let new_phase = self.one_rtt.on_opened(used, pn, path, self.labels).map_err(OpenError::KeyUpdate)?;
        Ok(Opened { pn, payload: payload_offset..payload_offset + len, new_phase, old_keys: used == Used::Previous })
    }

    /// Returns memory of keys that an idle connection does not need: they are made again when a packet arrives.
    pub fn shrink(&mut self) {
        self.one_rtt.rest();
    }

    // RFC 9001 §6.6 MUST-5, MUST-6: failures count over the life of the connection and over all its keys.
    #[cold]
    fn count_forged(&mut self) -> OpenError {
        self.forged += 1;
        if self.forged > self.integrity_limit { OpenError::IntegrityLimit } else { OpenError::Forged }
    }

    /// Seals a packet with a long header. The header is written with its Length; the last 16 bytes of `packet` are room
    /// for the tag.
    ///
    /// # Panics
    /// If packet number and payload together have fewer than four bytes (RFC 9001 §5.4.2).
    pub fn seal_long(&mut self, level: Level, packet: &mut [u8], pn_offset: usize, pn: u64) -> Result<(), SealError> {
        let keys = self.level(level).and_then(|keys| keys.local.as_ref()).ok_or(SealError::NoKeys)?;
        let pn_len = usize::from(packet[0] & bits::PN_LEN) + 1;
        let (head, body) = packet.split_at_mut(pn_offset + pn_len);
        keys.packet.seal(pn, PathId(0), head, body);
        header::protect(&keys.header, packet, pn_offset);
        Ok(())
    }

    /// Seals a packet with a short header; sets its Key Phase bit. The last 16 bytes of `packet` are room for the tag.
    ///
    /// When the key nears its limit, this updates the keys by itself.
    ///
    /// # Panics
    /// If packet number and payload together have fewer than four bytes (RFC 9001 §5.4.2).
    #[inline]
    pub fn seal_short(&mut self, packet: &mut [u8], pn_offset: usize, pn: u64, path: PathId) -> Result<(), SealError> {
        self.seal_short_with(packet, pn_offset, pn, path, &[])
    }

    /// Returns whether packets may be sealed with a tail that lies elsewhere: it costs less than copying it into them.
    #[inline]
    pub fn seals_from_elsewhere(&self) -> bool {
        self.one_rtt.seals_from_elsewhere()
    }

    /// Like [`seal_short`](Self::seal_short); the last bytes before the tag are read from `tail` and not from the packet.
    pub fn seal_short_with(
        &mut self,
        packet: &mut [u8],
        pn_offset: usize,
        pn: u64,
        path: PathId,
        tail: &[u8],
    ) -> Result<(), SealError> {
        let (phase, keys) = self.one_rtt.sealing_key(pn, path, self.labels)?;
        packet[0] = packet[0] & !bits::KEY_PHASE | phase;
        let pn_len = usize::from(packet[0] & bits::PN_LEN) + 1;
        let (head, body) = packet.split_at_mut(pn_offset + pn_len);
        // RFC 9001 §9.5 MUST-2: sealing takes the same course whatever the packet number
        keys.packet.seal_with(pn, path, head, body, tail);
        header::protect(&keys.header, packet, pn_offset);
        Ok(())
    }

    /// The handshake is confirmed: from here on this endpoint may update the keys (RFC 9001 §6).
    pub fn on_handshake_confirmed(&mut self) {
        self.one_rtt.confirmed = true;
    }

    /// Records that a 1-RTT packet carries an ACK frame with this largest packet number. Call it before the next packet is opened: the peer
    /// may update its keys once it has an acknowledgement of the current ones.
    #[inline]
    pub fn on_ack_sent(&mut self, path: PathId, largest: u64) {
        self.one_rtt.on_ack_sent(path, largest);
    }

    /// Records that an ACK frame acknowledged this largest packet number; `old_keys` is that of the packet with the frame.
    #[inline]
    pub fn on_acked(&mut self, path: PathId, largest: u64, now: Instant, old_keys: bool) -> Result<(), TransportError> {
        self.one_rtt
            .on_acked(path, largest, now, old_keys)
            .map_err(|reason| TransportError::new(Code::KEY_UPDATE_ERROR, reason))
    }

    /// Updates the keys if that is allowed; `wait` is three times the largest PTO of all paths. Returns whether it did.
    // RFC 9001 §6.1: not before the handshake is confirmed, nor before a packet of the current phase is acknowledged.
    // §6.5: wait three times the PTO after that acknowledgement.
    pub fn update(&mut self, now: Instant, wait: Duration) -> bool {
        self.one_rtt.update(now, wait, self.labels)
    }

    /// Time at which the keys of the previous phase are to be forgotten: at most three times the PTO after the first packet with
    /// the new keys (RFC 9001 §6.5).
    pub fn retire_previous_at(&mut self, at: Instant) {
        self.one_rtt.retire_previous_at(at);
    }

    /// Time at which [`on_timeout`](Self::on_timeout) is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.one_rtt.retire_at()
    }

    /// Forgets the keys of the previous phase if their time has come.
    pub fn on_timeout(&mut self, now: Instant) {
        self.one_rtt.on_timeout(now);
    }

    /// Number of times the keys were updated, by either side.
    pub fn updates(&self) -> u64 {
        self.one_rtt.generation
    }

    /// Number of packets that failed authentication.
    pub fn forged(&self) -> u64 {
        self.forged
    }
}
