//! Header of a packet, read from its bytes.

use serde::Serialize;
use wire::{Reader, bits};

use super::value::{Hex, Raw, Version};
use crate::observe::PacketSpace;

/// `PacketHeader`.
#[derive(Default, Serialize)]
pub(super) struct PacketHeader<'a> {
    packet_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    spin_bit: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_phase: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packet_number_length: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packet_number: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<Token>,
    #[serde(skip_serializing_if = "Option::is_none")]
    length: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<Version>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scil: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dcil: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scid: Option<Hex<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dcid: Option<Hex<'a>>,
}

/// `Token`, of which only the length is written: its bearer is taken for the client.
#[derive(Serialize)]
pub(super) struct Token {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(super) ty: Option<&'static str>,
    pub(super) raw: Raw,
}

impl<'a> PacketHeader<'a> {
    /// A packet of which only the type is known.
    pub(super) fn of_type(packet_type: &'static str) -> Self {
        Self { packet_type, ..Self::default() }
    }

    /// A packet of which no more than its number is kept.
    pub(super) fn numbered(space: PacketSpace, pn: u64) -> Self {
        Self { packet_number: Some(pn), ..Self::of_type(packet_type(space)) }
    }

    pub(super) fn retry(scid: &'a [u8], token_len: usize) -> Self {
        Self {
            scid: Some(Hex(scid)),
            scil: Some(scid.len()),
            token: Some(Token { ty: Some("retry"), raw: Raw::of(token_len) }),
            ..Self::of_type("retry")
        }
    }

    /// A packet whose header is `bytes`, without header protection. `key_phase` is only of interest in 1-RTT packets.
    pub(super) fn read(space: PacketSpace, pn: u64, key_phase: u64, bytes: &'a [u8]) -> Self {
        let mut header = Self::numbered(space, pn);
        let Some(&first) = bytes.first() else { return header };
        header.packet_number_length = Some((first & bits::PN_LEN) + 1);
        if space == PacketSpace::OneRtt {
            header.spin_bit = Some(first & bits::SPIN != 0);
            header.key_phase = Some(key_phase);
            let end = bytes.len().saturating_sub(usize::from(first & bits::PN_LEN) + 1).max(1);
            header.dcid = Some(Hex(&bytes[1..end]));
        } else {
            // What cannot be read is left out; it has been read before, so that there is nothing of the kind.
            let _ = header.read_long(space, &bytes[1..]);
        }
        header
    }

    fn read_long(&mut self, space: PacketSpace, bytes: &'a [u8]) -> Result<(), wire::Truncated> {
        let mut r = Reader::new(bytes);
        self.version = Some(Version(r.u32()?));
        let len = r.u8()?.into();
        (self.dcil, self.dcid) = (Some(len), Some(Hex(r.bytes(len)?)));
        let len = r.u8()?.into();
        (self.scil, self.scid) = (Some(len), Some(Hex(r.bytes(len)?)));
        if space == PacketSpace::Initial {
            let len = usize::try_from(r.varint()?).map_err(|_| wire::Truncated)?;
            r.bytes(len)?;
            // Whether it comes from a Retry or from an earlier connection cannot be seen.
            self.token = (len > 0).then(|| Token { ty: None, raw: Raw::of(len) });
        }
        self.length = usize::try_from(r.varint()?).ok();
        Ok(())
    }
}

/// `PacketType`.
pub(super) fn packet_type(space: PacketSpace) -> &'static str {
    match space {
        PacketSpace::Initial => "initial",
        PacketSpace::Handshake => "handshake",
        PacketSpace::ZeroRtt => "0RTT",
        PacketSpace::OneRtt => "1RTT",
    }
}

#[cfg(test)]
mod tests {
    use wire::{ConnectionId, LongHeader, LongType, Writer};

    use super::*;

    fn json(header: &PacketHeader<'_>) -> String {
        serde_json::to_string(header).unwrap()
    }

    #[test]
    fn a_long_header_is_read() {
        let id = |bytes: &[u8]| ConnectionId::new(bytes).unwrap();
        let mut buffer = [0; 100];
        let mut w = Writer::new(&mut buffer);
        let long =
            LongHeader { ty: LongType::Initial, version: 1, dcid: id(&[1, 2, 3, 4, 5, 6, 7, 8]), scid: id(&[0xab]) };
        let pos = long.encode(&mut w, b"token", 7, 2);
        let end = w.position();
        wire::patch_length(&mut buffer, &pos, 60);
        let header = PacketHeader::read(PacketSpace::Initial, 7, 0, &buffer[..end]);
        let expected = format!(
            r#"{{"packet_type":"initial","packet_number_length":2,"packet_number":7,"token":{{"raw":{{"length":5}}}},"length":{},"version":"00000001","scil":1,"dcil":8,"scid":"ab","dcid":"0102030405060708"}}"#,
            60 - pos.pn_offset
        );
        assert_eq!(json(&header), expected);
    }

    #[test]
    fn a_short_header_is_read() {
        let mut buffer = [0; 100];
        let mut w = Writer::new(&mut buffer);
        let dcid = ConnectionId::new(&[0xde, 0xad]).unwrap();
        wire::encode_short(&mut w, &dcid, 300, 2, true, false);
        let end = w.position();
        let header = PacketHeader::read(PacketSpace::OneRtt, 300, 5, &buffer[..end]);
        let expected = r#"{"packet_type":"1RTT","spin_bit":false,"key_phase":5,"packet_number_length":2,"packet_number":300,"dcid":"dead"}"#;
        assert_eq!(json(&header), expected);
    }

    #[test]
    fn no_bytes_are_too_few() {
        for space in [PacketSpace::Initial, PacketSpace::Handshake, PacketSpace::ZeroRtt, PacketSpace::OneRtt] {
            for first in [0x40, 0x43, 0xc0, 0xff] {
                let bytes = [first, 0, 0, 0, 1, 8, 1, 2, 3];
                for len in 0..bytes.len() {
                    json(&PacketHeader::read(space, 1, 0, &bytes[..len]));
                }
            }
        }
    }
}
