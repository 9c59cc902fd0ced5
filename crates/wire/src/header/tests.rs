use proptest::prelude::*;

use super::*;
use crate::{Writer, version};

/// Bytes written in hexadecimal, with spaces where they help.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
}

fn cid(text: &str) -> ConnectionId {
    ConnectionId::new(&hex(text)).unwrap()
}

/// Writes a packet with a payload of zeros up to `packet_len`, and gives the header's bytes beside it.
fn packet(header: &LongHeader, token: &[u8], pn: u64, pn_len: usize, packet_len: usize) -> (Vec<u8>, Vec<u8>) {
    let mut buf = vec![0; packet_len];
    let mut w = Writer::new(&mut buf);
    let pos = header.encode(&mut w, token, pn, pn_len);
    let header_len = w.position();
    assert_eq!(header_len, header.encoded_len(token.len(), pn_len));
    patch_length(&mut buf, &pos, packet_len);
    (buf[..header_len].to_vec(), buf)
}

#[test]
fn initial_packets_of_rfc_9001_a_and_rfc_9369_a() {
    let client = LongHeader {
        ty: LongType::Initial,
        version: version::V1,
        dcid: cid("8394c8f03e515708"),
        scid: ConnectionId::EMPTY,
    };
    let server = LongHeader { dcid: ConnectionId::EMPTY, scid: cid("f067a5502a4262b5"), ..client };
    let v2 = |header| LongHeader { version: version::V2, ..header };
    // The client's packet has 1200 bytes, the server's 4 + 113 beyond its Length field of 0x0075, less the packet
    // number.
    for (header, pn, pn_len, packet_len, expected) in [
        (client, 2, 4, 1200, "c300000001088394c8f03e5157080000449e00000002"),
        (server, 1, 2, 18 + 0x75, "c1000000010008f067a5502a4262b50040750001"),
        (v2(client), 2, 4, 1200, "d36b3343cf088394c8f03e5157080000449e00000002"),
        (v2(server), 1, 2, 18 + 0x75, "d16b3343cf0008f067a5502a4262b50040750001"),
    ] {
        let (written, packet) = packet(&header, &[], pn, pn_len, packet_len);
        assert_eq!(written, hex(expected));
        let pn_offset = written.len() - pn_len;
        let token = pn_offset - 2..pn_offset - 2;
        let LongHeader { ty, version, dcid, scid } = header;
        assert_eq!(
            Header::parse(&packet, 8),
            Ok(Header::Long { ty, version, dcid, scid, token, pn_offset, packet_len })
        );
        assert_eq!(long_dcid(&packet), Some(dcid.as_slice()));
        assert!(is_long(&packet) && fixed_bit(&packet));
    }
}

#[test]
fn retry_packets_of_rfc_9001_a_4_and_rfc_9369_a_4() {
    for (version, expected) in [
        (version::V1, "ff000000010008f067a5502a4262b574 6f6b656e04a265ba2eff4d829058fb3f 0f2496ba"),
        (version::V2, "cf6b3343cf0008f067a5502a4262b574 6f6b656ec8646ce8bfe33952d9555436 65dcc7b6"),
    ] {
        let packet = hex(expected);
        let (dcid, scid) = (ConnectionId::EMPTY, cid("f067a5502a4262b5"));
        let parsed = Header::parse(&packet, 0).unwrap();
        let token = 15..20;
        assert_eq!(&packet[token.clone()], b"token");
        assert_eq!(parsed, Header::Retry { version, dcid, scid, token, tag_offset: 20, packet_len: 36 });

        let mut buf = [0; 20];
        encode_retry(&mut Writer::new(&mut buf), version, &dcid, &scid, b"token");
        assert_eq!(buf, packet[..20]);
        let pseudo = retry_pseudo_packet(&cid("8394c8f03e515708"), &buf);
        assert_eq!(pseudo, [&hex("088394c8f03e515708")[..], &buf].concat());
    }
}

#[test]
fn short_packet_of_rfc_9001_a_5() {
    let mut buf = [0; 4];
    let mut w = Writer::new(&mut buf);
    assert_eq!(encode_short(&mut w, &ConnectionId::EMPTY, 654_360_564, 3, false, false), 1);
    assert_eq!(w.written(), hex("4200bff4"));

    let packet = hex("4cfe4189655e5cd55c41f69080575d7999c25a5bfb");
    assert_eq!(
        Header::parse(&packet, 0),
        Ok(Header::Short { dcid: ConnectionId::EMPTY, pn_offset: 1, packet_len: 21 })
    );
    assert!(!is_long(&packet) && fixed_bit(&packet));
    assert_eq!(long_dcid(&packet), None);
    assert_eq!(short_dcid(&packet, 3), Some(&packet[1..4]));
    assert_eq!(short_dcid(&packet, 21), None);
    assert_eq!(short_dcid(&[], 0), None);
}

#[test]
fn type_bits_of_each_version() {
    // RFC 9000 table 5, RFC 9369 §3.2.
    for (version, bits) in [(version::V1, [0, 1, 2, 3]), (version::V2, [1, 2, 3, 0])] {
        let types = [Some(LongType::Initial), Some(LongType::ZeroRtt), Some(LongType::Handshake), None];
        for (ty, bits) in types.into_iter().zip(bits) {
            assert_eq!(long_type(version, 0xc0 | bits << 4), ty);
        }
    }
}

#[test]
fn first_byte_of_a_short_header() {
    for (key_phase, spin, expected) in [(false, false, 0x41), (true, false, 0x45), (false, true, 0x61)] {
        let mut buf = [0; 23];
        let mut w = Writer::new(&mut buf);
        encode_short(&mut w, &cid("0102"), 0x1234, 2, key_phase, spin);
        assert_eq!(w.written(), [expected, 1, 2, 0x12, 0x34]);
    }
}

// RFC 9000 §12.2 MUST-1
#[test]
fn coalesced_packets_follow_each_other() {
    let initial = LongHeader { ty: LongType::Initial, version: version::V1, dcid: cid("01"), scid: cid("0203") };
    let (_, mut datagram) = packet(&initial, b"tok", 0, 1, 60);
    let (_, handshake) = packet(&LongHeader { ty: LongType::Handshake, ..initial }, &[], 0, 1, 50);
    datagram.extend(handshake);
    let Ok(Header::Long { ty: LongType::Initial, token, packet_len: 60, .. }) = Header::parse(&datagram, 0) else {
        panic!("the first packet is not the Initial")
    };
    assert_eq!(&datagram[token], b"tok");
    let Ok(Header::Long { ty: LongType::Handshake, packet_len: 50, .. }) = Header::parse(&datagram[60..], 0) else {
        panic!("the second packet is not the Handshake")
    };
}

// RFC 9000 §17.2.1 MUST-1, SHOULD-1, MUST-2
#[test]
fn version_negotiation() {
    let mut buf = [0; 64];
    let mut w = Writer::new(&mut buf);
    encode_version_negotiation(&mut w, 0x8a, &[1; 3], &[2; 21], &[version::V1, 0x1a2a_3a4a]);
    let written = w.written();
    assert_eq!(written[..9], [0xca, 0, 0, 0, 0, 3, 1, 1, 1]);
    let versions_at = 31..39;
    assert_eq!(
        Header::parse(written, 8),
        Ok(Header::VersionNegotiation { dcid: 6..9, scid: 10..31, versions: versions_at.clone(), packet_len: 39 })
    );
    assert!(versions(&written[versions_at]).eq([version::V1, 0x1a2a_3a4a]));
    // RFC 8999 §6: an empty list or a cut one is ignored.
    for end in [31, 32, 38] {
        assert_eq!(Header::parse(&written[..end], 8), Err(HeaderError::BadLength), "{end} bytes");
    }
    assert_eq!(Header::parse(&written[..30], 8), Err(HeaderError::Truncated));
}

#[test]
fn other_versions_may_have_long_connection_ids() {
    let mut packet = hex("80 1a2a3a4a ff");
    packet.extend([7; 255]);
    packet.extend([2, 1, 1, 9, 9, 9]);
    assert_eq!(
        Header::parse(&packet, 8),
        Ok(Header::UnknownVersion { version: 0x1a2a_3a4a, dcid: 6..261, scid: 262..264, packet_len: 267 })
    );
    assert_eq!(long_dcid(&packet), Some(&[7; 255][..]));
    assert_eq!(long_dcid(&packet[..260]), None);
}

// RFC 9000 §17.2 MUST-2, MUST-3
#[test]
fn refused() {
    for (what, bytes, expected) in [
        ("nothing", "", HeaderError::Truncated),
        ("no version", "c0 000000", HeaderError::Truncated),
        ("destination of 21 bytes", &format!("c0 00000001 15 {} 00 00 00", "00".repeat(21)), HeaderError::CidTooLong),
        ("source of 21 bytes", &format!("c0 00000001 00 15 {} 00 00", "00".repeat(21)), HeaderError::CidTooLong),
        ("token beyond the end", "c0 00000001 00 00 05 01020304", HeaderError::Truncated),
        ("token length beyond all", "c0 00000001 00 00 ffffffffffffffff 00", HeaderError::Truncated),
        ("no length", "e0 00000001 00 00", HeaderError::Truncated),
        ("length beyond the end", "e0 00000001 00 00 4005 01020304", HeaderError::BadLength),
        ("length beyond all", "e0 00000001 00 00 ffffffffffffffff 00", HeaderError::BadLength),
        ("Retry without a token", &format!("f0 00000001 00 00 {}", "00".repeat(16)), HeaderError::BadLength),
        ("Retry without a tag", &format!("f0 00000001 00 00 {}", "00".repeat(15)), HeaderError::Truncated),
        ("short header cut off", "40 01020304050607", HeaderError::Truncated),
    ] {
        assert_eq!(Header::parse(&hex(bytes), 8), Err(expected), "{what}");
    }
    assert_eq!(Header::parse(&[0x40; 40], 21), Err(HeaderError::CidTooLong));
}

#[test]
#[should_panic(expected = "only an Initial")]
fn a_token_outside_an_initial_packet_is_a_bug() {
    let header =
        LongHeader { ty: LongType::Handshake, version: version::V1, dcid: cid("01"), scid: ConnectionId::EMPTY };
    header.encode(&mut Writer::new(&mut [0; 64]), b"token", 0, 1);
}

fn any_cid() -> impl Strategy<Value = ConnectionId> {
    prop::collection::vec(any::<u8>(), 0..=20).prop_map(|bytes| ConnectionId::new(&bytes).unwrap())
}

fn any_version() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![version::V1, version::V2])
}

proptest! {
    #[test]
    fn long_headers_come_back(
        ty in prop::sample::select(vec![LongType::Initial, LongType::ZeroRtt, LongType::Handshake]),
        version in any_version(),
        (dcid, scid) in (any_cid(), any_cid()),
        token in prop::collection::vec(any::<u8>(), 0..200),
        (pn, pn_len) in (0..1u64 << 62, 1..=4usize),
        (before, payload, after) in (0..40usize, 0..1500usize, 0..40usize),
    ) {
        let token = if ty == LongType::Initial { token } else { Vec::new() };
        let header = LongHeader { ty, version, dcid, scid };
        let mut buf = vec![0xa5; before + header.encoded_len(token.len(), pn_len) + payload + after];
        let mut w = Writer::new(&mut buf);
        w.reserve(before);
        let pos = header.encode(&mut w, &token, pn, pn_len);
        let end = w.position() + payload;
        prop_assert_eq!((pos.start, w.remaining()), (before, payload + after));
        patch_length(&mut buf, &pos, end);

        let datagram = &buf[before..];
        let parsed = Header::parse(datagram, 8).unwrap();
        prop_assert_eq!(parsed.packet_len(), end - before);
        let token_at = pos.length_offset - token.len() - before..pos.length_offset - before;
        prop_assert_eq!(&datagram[token_at.clone()], &token[..]);
        let token = token_at;
        let pn_offset = pos.pn_offset - before;
        prop_assert_eq!(parsed, Header::Long { ty, version, dcid, scid, token, pn_offset, packet_len: end - before });
        prop_assert_eq!(usize::from(datagram[0] & bits::PN_LEN) + 1, pn_len);
        prop_assert_eq!(datagram[0] & bits::RESERVED_LONG, 0);
        let truncated = datagram[pn_offset..pn_offset + pn_len].iter().fold(0, |n, &byte| n << 8 | u64::from(byte));
        prop_assert_eq!(decode_packet_number(truncated, pn_len, pn), pn);

        // No cut of the packet is mistaken for a whole one.
        for cut in 0..end - before {
            prop_assert!(Header::parse(&datagram[..cut], 8).is_err());
        }
    }

    #[test]
    fn short_headers_come_back(
        dcid in any_cid(),
        (pn, pn_len) in (0..1u64 << 62, 1..=4usize),
        (key_phase, spin) in any::<(bool, bool)>(),
        payload in 0..100usize,
    ) {
        let packet_len = 1 + dcid.len() + pn_len + payload;
        let mut buf = vec![0xa5; packet_len];
        let mut w = Writer::new(&mut buf);
        let pn_offset = encode_short(&mut w, &dcid, pn, pn_len, key_phase, spin);
        prop_assert_eq!(w.remaining(), payload);
        prop_assert_eq!(Header::parse(&buf, dcid.len()), Ok(Header::Short { dcid, pn_offset, packet_len }));
        prop_assert_eq!(short_dcid(&buf, dcid.len()), Some(dcid.as_slice()));
        prop_assert_eq!(buf[0] & bits::KEY_PHASE != 0, key_phase);
        prop_assert_eq!(buf[0] & bits::SPIN != 0, spin);
        prop_assert_eq!(usize::from(buf[0] & bits::PN_LEN) + 1, pn_len);
        prop_assert_eq!(buf[0] & bits::RESERVED_SHORT, 0);
        let truncated = buf[pn_offset..pn_offset + pn_len].iter().fold(0, |n, &byte| n << 8 | u64::from(byte));
        prop_assert_eq!(decode_packet_number(truncated, pn_len, pn), pn);
    }

    #[test]
    fn retry_packets_come_back(
        version in any_version(),
        (dcid, scid) in (any_cid(), any_cid()),
        token in prop::collection::vec(any::<u8>(), 1..200),
        tag: [u8; RETRY_TAG_LEN],
    ) {
        let mut buf = [0; 300];
        let mut w = Writer::new(&mut buf);
        encode_retry(&mut w, version, &dcid, &scid, &token);
        let tag_offset = w.position();
        w.bytes(&tag);
        let packet_len = w.position();
        let token_at = tag_offset - token.len()..tag_offset;
        prop_assert_eq!(&w.written()[token_at.clone()], &token[..]);
        prop_assert_eq!(
            Header::parse(w.written(), 8),
            Ok(Header::Retry { version, dcid, scid, token: token_at, tag_offset, packet_len })
        );
    }

    #[test]
    fn version_negotiation_comes_back(
        unused: u8,
        dcid in prop::collection::vec(any::<u8>(), 0..=255),
        scid in prop::collection::vec(any::<u8>(), 0..=255),
        list in prop::collection::vec(any::<u32>(), 1..20),
    ) {
        let mut buf = [0; 1000];
        let mut w = Writer::new(&mut buf);
        encode_version_negotiation(&mut w, unused, &dcid, &scid, &list);
        let bytes = w.written();
        let Ok(Header::VersionNegotiation { dcid: d, scid: s, versions: v, packet_len }) = Header::parse(bytes, 8) else {
            panic!("not recognised")
        };
        prop_assert_eq!((&bytes[d], &bytes[s]), (&dcid[..], &scid[..]));
        prop_assert_eq!(packet_len, bytes.len());
        prop_assert_eq!(versions(&bytes[v]).collect::<Vec<_>>(), list);
    }
}
