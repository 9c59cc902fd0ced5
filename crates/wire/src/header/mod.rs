//! Packet headers in a datagram, without keys: type of the first packet, its destination, its end.
//!
//! A [`Header`] holds offsets and no slices, so that the datagram can be changed in place afterwards (header protection, decryption). The
//! layer with the keys reads the protected fields (reserved bits, key phase, packet number) with [`bits`] and [`decode_packet_number`].

use std::ops::Range;

use crate::{ConnectionId, Reader, Truncated, version};

mod encode;
mod packet_number;
#[cfg(test)]
mod tests;

pub use encode::{
    HeaderPos, LongHeader, encode_retry, encode_short, encode_version_negotiation, patch_length, retry_pseudo_packet,
};
pub use packet_number::{decode_packet_number, packet_number_len};

/// Masks of the first byte of a packet.
pub mod bits {
    /// RFC 8999 §5.1: set in long headers.
    pub const LONG_FORM: u8 = 0x80;
    /// The bit that is 1 in versions 1 and 2 unless both ends agreed to grease it (RFC 9287).
    pub const FIXED: u8 = 0x40;
    /// Long headers: the packet type; its meaning depends on the version.
    pub const LONG_TYPE: u8 = 0x30;
    /// Long headers, under header protection: must be zero.
    pub const RESERVED_LONG: u8 = 0x0c;
    /// Short headers: the latency spin bit.
    pub const SPIN: u8 = 0x20;
    /// Short headers, under header protection: must be zero.
    pub const RESERVED_SHORT: u8 = 0x18;
    /// Short headers, under header protection: which generation of keys.
    pub const KEY_PHASE: u8 = 0x04;
    /// Under header protection: length of the packet number in bytes, minus one.
    pub const PN_LEN: u8 = 0x03;
}

/// Length of the tag at the end of a Retry packet, in bytes (RFC 9001 §5.8).
pub const RETRY_TAG_LEN: usize = 16;

/// The packets with a long header that carry frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LongType {
    /// First packets of either side, under keys that anyone can derive.
    Initial,
    /// Early data of a client that resumes.
    ZeroRtt,
    /// The rest of the handshake.
    Handshake,
}

/// First packet of a datagram, as far as it shows without keys. All offsets count from the start of the
/// bytes that were parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Header {
    /// A packet with frames and a long header of version 1 or 2.
    ///
    /// The length is not checked against a header protection sample; the code that takes the sample does that.
    Long {
        /// Packet type.
        ty: LongType,
        /// [`version::V1`] or [`version::V2`].
        version: u32,
        /// Destination connection ID.
        dcid: ConnectionId,
        /// Source connection ID.
        scid: ConnectionId,
        /// The token; empty unless the packet is an Initial.
        token: Range<usize>,
        /// Offset of the packet number.
        pn_offset: usize,
        /// End of the packet: payload and tag included. Another packet may follow.
        packet_len: usize,
    },
    /// A packet with a short header; it fills the datagram.
    Short {
        /// Destination connection ID.
        dcid: ConnectionId,
        /// Offset of the packet number.
        pn_offset: usize,
        /// End of the packet, which is the end of the bytes.
        packet_len: usize,
    },
    /// Retry: the server requests the Initial packet again, with a token.
    Retry {
        /// [`version::V1`] or [`version::V2`].
        version: u32,
        /// Destination connection ID.
        dcid: ConnectionId,
        /// Source connection ID: the destination of the next Initial packet (RFC 9000 §17.2.5).
        scid: ConnectionId,
        /// The token to bring along; never empty.
        token: Range<usize>,
        /// Offset of the integrity tag of [`RETRY_TAG_LEN`] bytes.
        tag_offset: usize,
        /// End of the packet, which is the end of the bytes.
        packet_len: usize,
    },
    /// A server does not speak the version of the client.
    VersionNegotiation {
        /// Destination connection ID: up to 255 bytes.
        dcid: Range<usize>,
        /// Source connection ID: up to 255 bytes.
        scid: Range<usize>,
        /// The versions, 4 bytes each, at least one; see [`versions`].
        versions: Range<usize>,
        /// End of the packet, which is the end of the bytes.
        packet_len: usize,
    },
    /// A long header of a version that is not known here; only the invariants of RFC 8999 apply.
    UnknownVersion {
        /// Neither known nor zero.
        version: u32,
        /// Destination connection ID: up to 255 bytes.
        dcid: Range<usize>,
        /// Source connection ID: up to 255 bytes.
        scid: Range<usize>,
        /// End of the packet: taken to be the end of the bytes.
        packet_len: usize,
    },
}

/// Error of bytes that do not begin with a packet. Such a datagram, or the rest of it, is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The header goes beyond the end of the datagram.
    #[error("the header goes beyond the end of the datagram")]
    Truncated,
    /// RFC 9000 §17.2: a connection ID of more than 20 bytes in version 1 or 2.
    #[error("a connection ID of more than 20 bytes")]
    CidTooLong,
    /// The Length field exceeds the datagram, or a mandatory part is missing (a Retry token, a list of versions).
    #[error("a length that contradicts the datagram")]
    BadLength,
}

impl From<Truncated> for HeaderError {
    #[inline]
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

impl Header {
    /// Reads the header of the first packet in `datagram`; connection IDs in short headers have `short_dcid_len` bytes.
    ///
    /// The fixed bit is not checked, since peers may agree to grease it (RFC 9287): ask [`fixed_bit`].
    ///
    /// # Errors
    /// See [`HeaderError`]; also [`HeaderError::CidTooLong`] when `short_dcid_len` is above 20.
    #[inline]
    pub fn parse(datagram: &[u8], short_dcid_len: usize) -> Result<Self, HeaderError> {
        let &first = datagram.first().ok_or(HeaderError::Truncated)?;
        if first & bits::LONG_FORM != 0 {
            return parse_long(first, datagram);
        }
        let dcid = short_dcid(datagram, short_dcid_len).ok_or(HeaderError::Truncated)?;
        let dcid = ConnectionId::new(dcid).ok_or(HeaderError::CidTooLong)?;
        Ok(Self::Short { dcid, pn_offset: 1 + short_dcid_len, packet_len: datagram.len() })
    }

    /// End of the packet, and start of the next one, if any.
    #[inline]
    pub fn packet_len(&self) -> usize {
        match *self {
            Self::Long { packet_len, .. }
            | Self::Short { packet_len, .. }
            | Self::Retry { packet_len, .. }
            | Self::VersionNegotiation { packet_len, .. }
            | Self::UnknownVersion { packet_len, .. } => packet_len,
        }
    }
}

fn parse_long(first: u8, datagram: &[u8]) -> Result<Header, HeaderError> {
    let mut r = Reader::new(datagram);
    r.u8()?;
    let version = r.u32()?;
    let dcid = invariant_cid(&mut r)?;
    let scid = invariant_cid(&mut r)?;
    let packet_len = datagram.len();

    if version == version::NEGOTIATION {
        // RFC 8999 §6: a list that is empty or cut off makes the packet one to ignore.
        let versions = r.position()..packet_len;
        return if versions.is_empty() || versions.len() % 4 != 0 {
            Err(HeaderError::BadLength)
        } else {
            Ok(Header::VersionNegotiation { dcid, scid, versions, packet_len })
        };
    }
    if !version::is_known(version) {
        return Ok(Header::UnknownVersion { version, dcid, scid, packet_len });
    }

    // RFC 9000 §17.2 MUST-2: a destination ID of more than 20 bytes makes the packet be dropped
    // RFC 9000 §17.2 MUST-3: a source ID of more than 20 bytes makes the packet be dropped
    let dcid = ConnectionId::new(&datagram[dcid]).ok_or(HeaderError::CidTooLong)?;
    let scid = ConnectionId::new(&datagram[scid]).ok_or(HeaderError::CidTooLong)?;
    // RFC 9000 §17.2.5 MUST-1: the unused bits of a Retry mean nothing
    let Some(ty) = long_type(version, first) else {
        let start = r.position();
        let tag_offset =
            packet_len.checked_sub(RETRY_TAG_LEN).filter(|&at| at >= start).ok_or(HeaderError::Truncated)?;
        // RFC 9000 §17.2.5.2 MUST-4: a Retry without a token is dropped.
        return if tag_offset == start {
            Err(HeaderError::BadLength)
        } else {
            Ok(Header::Retry { version, dcid, scid, token: start..tag_offset, tag_offset, packet_len })
        };
    };

    let token = if ty == LongType::Initial {
        let len = r.counted()?.len();
        r.position() - len..r.position()
    } else {
        r.position()..r.position()
    };
    let len = r.varint()?;
    let pn_offset = r.position();
    // RFC 9000 §17.2: Length counts packet number and payload; the packet ends inside the datagram.
    let len = usize::try_from(len).ok().filter(|&len| len <= r.remaining()).ok_or(HeaderError::BadLength)?;
    Ok(Header::Long { ty, version, dcid, scid, token, pn_offset, packet_len: pn_offset + len })
}

/// A connection ID after its length byte (RFC 8999 §5.1).
fn invariant_cid(r: &mut Reader<'_>) -> Result<Range<usize>, Truncated> {
    let len = r.u8()?;
    let start = r.position();
    r.bytes(usize::from(len))?;
    Ok(start..r.position())
}

/// The type in the first byte of a long header; none for Retry.
fn long_type(version: u32, first: u8) -> Option<LongType> {
    let ty = (first & bits::LONG_TYPE) >> 4;
    // RFC 9369 §3.2: version 2 counts from one place further, so that Retry has 0 there.
    let ty = if version == version::V2 { ty.wrapping_sub(1) & 3 } else { ty };
    match ty {
        0 => Some(LongType::Initial),
        1 => Some(LongType::ZeroRtt),
        2 => Some(LongType::Handshake),
        _ => None,
    }
}

/// Versions in a Version Negotiation packet: `list` is the content of the header's range.
pub fn versions(list: &[u8]) -> impl Iterator<Item = u32> + '_ {
    list.as_chunks::<4>().0.iter().map(|version| u32::from_be_bytes(*version))
}

/// Returns whether the first packet has a long header. Of no bytes it is false.
#[inline]
pub fn is_long(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & bits::LONG_FORM != 0)
}

/// Returns whether the fixed bit of the first packet is set. RFC 9000 §17.2 and §17.3 require that a packet of version 1 without it is
/// dropped; RFC 9287 lets an endpoint that advertised it accept such a packet. False without bytes.
#[inline]
pub fn fixed_bit(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & bits::FIXED != 0)
}

/// Destination connection ID, if the first packet has a short header and such an ID has `len` bytes. Reads the position only.
#[inline]
pub fn short_dcid(datagram: &[u8], len: usize) -> Option<&[u8]> {
    datagram.get(1..)?.get(..len)
}

/// The destination connection ID of a packet with a long header of any version; none for a short header, or when it is
/// cut off.
#[inline]
pub fn long_dcid(datagram: &[u8]) -> Option<&[u8]> {
    if !is_long(datagram) {
        return None;
    }
    let &len = datagram.get(5)?;
    datagram.get(6..)?.get(..usize::from(len))
}
