//! Coalesced packets: splits a datagram into packets, without keys.

use std::ops::Range;

use wire::{ConnectionId, Header, LongType, Side};

/// RFC 9000 §14.1: the least size of a datagram with an Initial packet.
const MIN_INITIAL_DATAGRAM: usize = 1200;

/// Rules of a connection for packets, apart from keys.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) side: Side,
    /// Length of the IDs of this end.
    pub(super) id_len: usize,
    /// The fixed bit may be 0.
    pub(super) grease: bool,
}

/// A packet with a long header.
#[derive(Clone, Copy)]
pub(super) struct LongPacket {
    pub(super) ty: LongType,
    pub(super) version: u32,
    pub(super) dcid: ConnectionId,
    pub(super) scid: ConnectionId,
    pub(super) pn_offset: usize,
    /// The first of its datagram.
    pub(super) is_first: bool,
    /// An Initial packet that has to be dropped, even if it is authentic.
    pub(super) is_refused: bool,
}

/// A part of a datagram.
pub(super) enum Part {
    Short,
    Long(LongPacket),
    Retry {
        scid: ConnectionId,
        token: Range<usize>,
    },
    VersionNegotiation {
        scid: Range<usize>,
        versions: Range<usize>,
    },
    /// No packet.
    Invalid,
    /// Rest of the datagram, which is no packet of this connection.
    Ignored,
}

/// Takes a datagram apart.
pub(super) struct Coalesced {
    rules: Rules,
    start: usize,
    end: usize,
    at: usize,
    first_dcid: Option<ConnectionId>,
}

impl Coalesced {
    /// The datagram that lies in a buffer from `start` to `end`.
    pub(super) fn new(rules: Rules, start: usize, end: usize) -> Self {
        Self { rules, start, end, at: start, first_dcid: None }
    }

    /// Bytes that were not looked at.
    pub(super) fn rest(&self) -> usize {
        self.end - self.at
    }

    /// Leaves the rest out. Returns its bytes.
    pub(super) fn skip_rest(&mut self) -> usize {
        self.end - std::mem::replace(&mut self.at, self.end)
    }

    /// The next part, and where it lies.
    // RFC 9000 §12.2 MUST-1: several packets in a datagram are understood
    // RFC 9000 §12.2 MUST-2: each packet in a datagram is processed and acknowledged by itself
    #[inline]
    pub(super) fn next(&mut self, buffer: &[u8]) -> Option<(Range<usize>, Part)> {
        if self.at >= self.end {
            return None;
        }
        let at = self.at;
        let bytes = &buffer[at..self.end];
        let (len, part) = if wire::is_long(bytes) { self.long(bytes) } else { (bytes.len(), self.short(bytes)) };
        self.at += len;
        Some((at..self.at, part))
    }

    /// The rest of the datagram as a packet with a short header, which fills it.
    #[inline]
    fn short(&self, bytes: &[u8]) -> Part {
        let Rules { id_len, grease, .. } = self.rules;
        // RFC 9000 §10.3 MUST-2: packets too small to be valid are dropped
        let Some(dcid) = wire::short_dcid(bytes, id_len) else { return Part::Invalid };
        // RFC 9000 §17.3.1 MUST-1: without the fixed bit a packet is discarded, unless we offer to accept it.
        // RFC 9287 §3 MUST-2: who offers that takes packets without it
        if !grease && !wire::fixed_bit(bytes) {
            Part::Invalid
        } else if self.first_dcid.is_none_or(|first| first.as_slice() == dcid) {
            Part::Short
        } else {
            Part::Ignored
        }
    }

    /// The first packet of `bytes`, which has a long header, and its length. Apart, so that short ones stay cheap.
    #[inline(never)]
    fn long(&mut self, bytes: &[u8]) -> (usize, Part) {
        let Rules { side, id_len, grease } = self.rules;
        let Ok(header) = Header::parse(bytes, id_len) else { return (bytes.len(), Part::Invalid) };
        // RFC 9000 §17.2 MUST-1: the same holds for long headers. Version Negotiation has no such bit.
        let exempt = grease || matches!(header, Header::VersionNegotiation { .. });
        if !exempt && !wire::fixed_bit(bytes) {
            return (bytes.len(), Part::Invalid);
        }
        let len = header.packet_len();
        match header {
            Header::Short { .. } => unreachable!("a packet with a long header has none"),
            Header::Long { ty, version, dcid, scid, pn_offset, token, .. } => {
                // RFC 9000 §12.2 SHOULD-2: coalesced packets are for one connection; others are left out.
                if *self.first_dcid.get_or_insert(dcid) != dcid {
                    return (bytes.len(), Part::Ignored);
                }
                // RFC 9000 §14.1 MUST-3: a server discards an Initial packet in a datagram below 1,200 bytes;
                // RFC 9000 §17.2.2 MUST-2: a client one that carries a token.
                let refused = match side {
                    Side::Server => self.end - self.start < MIN_INITIAL_DATAGRAM,
                    Side::Client => !token.is_empty(),
                };
                // RFC 9000 §14 MUST NOT-3: a datagram of the wrong size does not close a connection
                let is_refused = ty == LongType::Initial && refused;
                let is_first = self.at == self.start;
                (len, Part::Long(LongPacket { ty, version, dcid, scid, pn_offset, is_first, is_refused }))
            }
            Header::Retry { scid, token, .. } => (len, Part::Retry { scid, token }),
            Header::VersionNegotiation { scid, versions, .. } => (len, Part::VersionNegotiation { scid, versions }),
            Header::UnknownVersion { .. } => (bytes.len(), Part::Ignored),
        }
    }
}
