//! Answers without a connection: Version Negotiation, Retry, refusals, stateless resets.

use std::collections::VecDeque;

use rand_core::RngCore;
use units::{Duration, Instant};
use wire::{ConnectionId, ResetToken, Writer, version};

use super::{AttemptEvent, Endpoint};
use crate::udp::{Datagram, Transmit};

/// Answers that wait to be sent. A flood that outruns the socket loses answers, not memory.
const QUEUE_LIMIT: usize = 64;
/// Limit on stateless resets per second: an attacker who sends garbage must not make this endpoint send as much.
const RESETS_PER_SECOND: u32 = 200;
/// RFC 9000 §10.3 SHOULD: a reset looks like a short packet, so it is never shorter than the shortest one.
const MIN_RESET: usize = 21;
/// Length that suffices to look like a packet.
const MAX_RESET: usize = 42;

/// RFC 9000 §15: versions of the pattern 0x?a?a?a?a are never supported. Clients send them to test whether an answer comes.
const RESERVED_MASK: u32 = 0x0f0f_0f0f;
const RESERVED: u32 = 0x0a0a_0a0a;

/// Connections for which separate positions among the keys are kept.
const TURNS: usize = 256;

/// Owns the answers until they are sent, and the account of resets.
pub(super) struct Stateless {
    queue: VecDeque<(Transmit, Vec<u8>)>,
    window: Option<Instant>,
    resets: u32,
    /// Index of the key of the ring that has its turn, by a byte of the connection's newest reset token, which only key holders
    /// can compute.
    turns: [u8; TURNS],
}

impl Default for Stateless {
    fn default() -> Self {
        Self { queue: VecDeque::new(), window: None, resets: 0, turns: [0; TURNS] }
    }
}

/// Number of resets of `len` bytes that may answer a datagram of `trigger` bytes.
///
/// All of them together are at most three times as long, as for every unvalidated address. A packet that may itself be a reset gets one
/// answer: with several, two endpoints that have both lost their state would multiply them.
fn most_resets(trigger: usize, len: usize) -> usize {
    if trigger <= MAX_RESET + 1 { 1 } else { 3 * trigger / len }
}

impl Stateless {
    pub(super) fn poll(&mut self, buffer: &mut [u8]) -> Option<Transmit> {
        let (transmit, payload) = self.queue.pop_front()?;
        buffer[..payload.len()].copy_from_slice(&payload);
        Some(transmit)
    }

    /// Queues an answer to the sender of `datagram`. `false` when the queue is full.
    pub(super) fn answer(&mut self, datagram: &Datagram, payload: Vec<u8>) -> bool {
        if self.queue.len() >= QUEUE_LIMIT {
            return false;
        }
        let transmit = Transmit {
            remote: datagram.remote,
            local: datagram.local,
            ecn: None,
            len: payload.len(),
            segment_size: payload.len(),
        };
        self.queue.push_back((transmit, payload));
        true
    }

    /// Resets that may still be sent in this second.
    fn resets_left(&mut self, now: Instant) -> usize {
        if self.window.is_none_or(|start| now.saturating_since(start) >= Duration::from_secs(1)) {
            self.window = Some(now);
            self.resets = 0;
        }
        (RESETS_PER_SECOND - self.resets) as usize
    }
}

/// Tokens whose turn it is, at most `most` of them, and the next turn.
fn in_turn(tokens: &[ResetToken], turn: u8, most: usize) -> (impl Iterator<Item = ResetToken> + '_, u8) {
    let first = usize::from(turn) % tokens.len();
    let count = most.min(tokens.len());
    let next = (first + count) % tokens.len();
    ((0..count).map(move |n| tokens[(first + n) % tokens.len()]), u8::try_from(next).unwrap_or(0))
}

impl Endpoint {
    /// Offers the supported versions to a client of another version.
    pub(super) fn negotiate_version(&mut self, datagram: &Datagram) {
        let payload = &datagram.payload[..];
        // RFC 9000 §5.2.2 MUST-1, RFC 9000 §6.1 MUST NOT-1: a datagram too small to be a first one in any version of
        // ours is not answered, and what looks like Version Negotiation itself never is.
        let ids = (payload.len() >= 1200).then(|| invariant_ids(payload)).flatten();
        let Some((version, dcid, scid)) = ids.filter(|(version, ..)| *version != version::NEGOTIATION) else {
            self.stats.dropped += 1;
            return;
        };
        // RFC 9000 §6.3: a version that is reserved for greasing stands among ours, unlike the one that was asked for.
        let mut greased = version::greased(self.random.next_u32());
        if greased == version {
            greased ^= 0x1000_0000;
        }
        let mut versions = self.server.as_ref().map(|server| server.versions.clone()).unwrap_or_default();
        versions.push(greased);
        let mut answer = vec![0; 7 + dcid.len() + scid.len() + 4 * versions.len()];
        let mut w = Writer::new(&mut answer);
        let unused = self.random.next_u32() as u8;
        // RFC 9000 §17.2.1 MUST-3: the destination ID of Version Negotiation is the source ID of what it answers
        // RFC 9000 §17.2.1 MUST-4: the source ID of Version Negotiation is the destination ID of what it answers
        // RFC 9000 §17.2.1 MUST NOT-2: one Version Negotiation packet per datagram
        // RFC 8999 §6 MUST-3: the destination ID of Version Negotiation is the source ID of what it answers
        // RFC 8999 §6 MUST-4: the source ID of Version Negotiation is the destination ID of what it answers
        // RFC 9368 §2.1 SHALL-1: all versions that are spoken here
        wire::encode_version_negotiation(&mut w, unused, scid, dcid, &versions);
        let len = w.position();
        answer.truncate(len);
        // RFC 9000 §5.2.2 SHOULD-1: a first packet of an unknown version, if long enough, is answered with Version
        // Negotiation
        // RFC 9000 §5.2.2 SHOULD-2: the answer to an unknown version depends only on the length of the datagram
        if self.stateless.answer(datagram, answer) {
            self.stats.version_negotiations += 1;
            if version & RESERVED_MASK != RESERVED {
                let offered = self.server.as_ref().is_some_and(|server| !server.versions.is_empty());
                self.note_attempt(datagram.remote, AttemptEvent::Negotiated { offered });
            }
        }
    }

    /// Sends a stateless reset to the sender of a packet for a connection that is not known (any more), RFC 9000 §10.3.
    // RFC 9000 §11 MUST NOT-1: nobody resets a connection whose state is there
    pub(super) fn maybe_reset(&mut self, now: Instant, datagram: &Datagram, dcid: &ConnectionId) {
        // RFC 9000 §10.3 SHOULD-3, MUST NOT-1, RFC 9000 §10.3.3 MUST-1: shorter than what triggered it, so that two
        // endpoints never reset each other for ever.
        let trigger = datagram.payload.len();
        let len = trigger.saturating_sub(1).min(MAX_RESET);
        let left = self.stateless.resets_left(now);
        if len < MIN_RESET || dcid.as_slice().is_empty() || left == 0 {
            self.stats.dropped += 1;
            return;
        }
        // The connection may be older than the newest key of the ring: one reset for each key that it may have, as many as
        // fit; the others have their turn when the peer sends its next packet.
        let tokens = self.tokens.reset_tokens(now, dcid);
        let slot = usize::from(tokens[0].0[0]);
        let (tokens, next) = in_turn(&tokens, self.stateless.turns[slot], most_resets(trigger, len).min(left));
        self.stateless.turns[slot] = next;
        for token in tokens {
            let mut answer = vec![0; len];
            // RFC 9000 §10.3 SHOULD-1: a stateless reset looks random but for the bits of a short header
            // RFC 9000 §10.3 MUST-3: a reset looks like a packet with a short header
            self.random.fill_bytes(&mut answer);
            answer[0] = (answer[0] & 0x3f) | wire::bits::FIXED;
            answer[len - 16..].copy_from_slice(&token.0);
            if self.stateless.answer(datagram, answer) {
                self.stateless.resets += 1;
                self.stats.resets += 1;
            }
        }
    }
}

/// Version and connection IDs of a long packet, by the invariants alone (RFC 8999 §5.1).
// RFC 9000 §17.2 SHOULD-1: Version Negotiation repeats destination IDs of other versions whatever their length
// RFC 9000 §17.2 SHOULD-2: Version Negotiation repeats source IDs of other versions whatever their length
// RFC 9000 §17.2.1 MUST NOT-1: the lengths of IDs do not decide whether Version Negotiation is sent
fn invariant_ids(payload: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let version = u32::from_be_bytes(payload.get(1..5)?.try_into().ok()?);
    let (dcid_len, rest) = payload.get(5..)?.split_first()?;
    let (dcid, rest) = rest.split_at_checked((*dcid_len).into())?;
    let (scid_len, rest) = rest.split_first()?;
    Some((version, dcid, rest.get(..usize::from(*scid_len))?))
}
