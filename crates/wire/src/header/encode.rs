//! Encoding of packet headers, before header protection.

use super::{LongType, bits};
use crate::{ConnectionId, Writer, varint, version};

/// A long header to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongHeader {
    /// Packet type.
    pub ty: LongType,
    /// [`version::V1`] or [`version::V2`].
    pub version: u32,
    /// Destination connection ID.
    pub dcid: ConnectionId,
    /// Source connection ID.
    pub scid: ConnectionId,
}

/// Positions in a header that was written; offsets in the writer's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderPos {
    /// The first byte.
    pub start: usize,
    /// The Length field, 2 bytes, for [`patch_length`].
    pub length_offset: usize,
    /// The packet number.
    pub pn_offset: usize,
}

impl LongHeader {
    /// Number of bytes that [`encode`](Self::encode) writes.
    #[inline]
    pub fn encoded_len(&self, token_len: usize, pn_len: usize) -> usize {
        let token = if self.ty == LongType::Initial { varint::len(token_len as u64) + token_len } else { 0 };
        1 + 4 + 1 + self.dcid.len() + 1 + self.scid.len() + token + 2 + pn_len
    }

    /// Writes the header up to and including the lowest `pn_len` bytes of the packet number. The Length field holds
    /// zero until [`patch_length`].
    ///
    /// Only an Initial packet has a place for `token`; with any other type it has to be empty.
    ///
    /// # Panics
    /// When there is no room, `pn_len` is not 1 to 4, or a token is given that has no place.
    pub fn encode(&self, w: &mut Writer<'_>, token: &[u8], pn: u64, pn_len: usize) -> HeaderPos {
        let start = w.position();
        // RFC 9000 §17.2 MUST-4: reserved bits of a long header are sent as 0
        w.u8(bits::LONG_FORM | bits::FIXED | type_bits(self.version, Some(self.ty)) | pn_len_bits(pn_len));
        w.u32(self.version);
        counted_cid(w, &self.dcid);
        counted_cid(w, &self.scid);
        if self.ty == LongType::Initial {
            w.varint(token.len() as u64);
            w.bytes(token);
        } else {
            assert!(token.is_empty(), "only an Initial packet carries a token");
        }
        let length_offset = w.position();
        w.varint_with_len(0, 2);
        let pn_offset = w.position();
        w.bytes(&pn.to_be_bytes()[8 - pn_len..]);
        HeaderPos { start, length_offset, pn_offset }
    }
}

/// Sets the Length field of a packet that ends at `end_including_tag`; `buf` is the buffer the header was written to.
///
/// # Panics
/// When the end is before the packet number, or the length of the packet does not fit into 2 bytes (16383 bytes).
#[inline]
pub fn patch_length(buf: &mut [u8], pos: &HeaderPos, end_including_tag: usize) {
    let length = (end_including_tag - pos.pn_offset) as u64;
    Writer::new(&mut buf[pos.length_offset..pos.pn_offset]).varint_with_len(length, 2);
}

/// Writes a short header up to and including the lowest `pn_len` bytes of the packet number, and returns the offset of that
/// number.
///
/// # Panics
/// When there is no room (`1 + dcid.len() + pn_len` bytes), or `pn_len` is not 1 to 4.
#[inline]
pub fn encode_short(
    w: &mut Writer<'_>,
    dcid: &ConnectionId,
    pn: u64,
    pn_len: usize,
    key_phase: bool,
    spin: bool,
) -> usize {
    // RFC 9000 §17.3.1 MUST-2: reserved bits of a short header are sent as 0
    let mut first = bits::FIXED | pn_len_bits(pn_len);
    if key_phase {
        first |= bits::KEY_PHASE;
    }
    if spin {
        first |= bits::SPIN;
    }
    w.u8(first);
    w.bytes(dcid.as_slice());
    let pn_offset = w.position();
    w.bytes(&pn.to_be_bytes()[8 - pn_len..]);
    pn_offset
}

/// Writes a Retry packet without its integrity tag, which the caller appends; see [`retry_pseudo_packet`].
///
/// # Panics
/// When there is no room, or the token is empty (RFC 9000 §17.2.5: a client drops such a Retry).
pub fn encode_retry(w: &mut Writer<'_>, version: u32, dcid: &ConnectionId, scid: &ConnectionId, token: &[u8]) {
    assert!(!token.is_empty(), "a Retry packet carries a token");
    // The lowest four bits are unused and arbitrary; ones are what the example in RFC 9001 A.4 has.
    w.u8(bits::LONG_FORM | bits::FIXED | type_bits(version, None) | 0x0f);
    w.u32(version);
    counted_cid(w, dcid);
    counted_cid(w, scid);
    w.bytes(token);
}

/// Input of a Retry packet's integrity tag (RFC 9001 §5.8): the connection ID that the client's first
/// Initial was sent to, with its length, and then the packet up to the tag.
pub fn retry_pseudo_packet(original_dcid: &ConnectionId, retry_without_tag: &[u8]) -> Vec<u8> {
    let mut pseudo = Vec::with_capacity(1 + original_dcid.len() + retry_without_tag.len());
    pseudo.push(len_byte(original_dcid.as_slice()));
    pseudo.extend_from_slice(original_dcid.as_slice());
    pseudo.extend_from_slice(retry_without_tag);
    pseudo
}

/// Writes a Version Negotiation packet. The connection IDs are those of the received packet, swapped (RFC 8999 §6). The low seven bits of
/// the first byte are taken from `unused`, which the caller draws at random.
///
/// # Panics
/// When there is no room, or a connection ID has more than 255 bytes.
pub fn encode_version_negotiation(w: &mut Writer<'_>, unused: u8, dcid: &[u8], scid: &[u8], versions: &[u32]) {
    // RFC 9000 §17.2.1 SHOULD-1: with the fixed bit set, the packet is not mistaken for another protocol on the same
    // port.
    w.u8(bits::LONG_FORM | bits::FIXED | unused);
    // RFC 9000 §17.2.1 MUST-2: Version Negotiation has version 0
    w.u32(version::NEGOTIATION);
    for cid in [dcid, scid] {
        w.u8(len_byte(cid));
        w.bytes(cid);
    }
    for &version in versions {
        w.u32(version);
    }
}

/// The type in the first byte of a long header, with none for Retry; the reverse of `long_type`.
fn type_bits(version: u32, ty: Option<LongType>) -> u8 {
    let ty = match ty {
        Some(LongType::Initial) => 0,
        Some(LongType::ZeroRtt) => 1,
        Some(LongType::Handshake) => 2,
        None => 3,
    };
    // RFC 9369 §3.2: version 2 counts from one place further.
    let ty = if version == version::V2 { (ty + 1) & 3 } else { ty };
    ty << 4
}

#[inline]
fn pn_len_bits(pn_len: usize) -> u8 {
    match pn_len {
        1 => 0,
        2 => 1,
        3 => 2,
        4 => 3,
        _ => panic!("a packet number has 1 to 4 bytes, not {pn_len}"),
    }
}

fn counted_cid(w: &mut Writer<'_>, cid: &ConnectionId) {
    w.u8(len_byte(cid.as_slice()));
    w.bytes(cid.as_slice());
}

fn len_byte(cid: &[u8]) -> u8 {
    u8::try_from(cid.len()).expect("a connection ID has at most 255 bytes")
}
