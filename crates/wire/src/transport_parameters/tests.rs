use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use proptest::prelude::*;

use super::*;
use crate::{Reader, Side, varint};

/// The bytes of parameters given as identifier and value.
fn bytes(parameters: &[(u64, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (id, value) in parameters {
        varint::push(&mut out, *id);
        varint::push(&mut out, value.len() as u64);
        out.extend_from_slice(value);
    }
    out
}

fn number(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint::push(&mut out, value);
    out
}

#[test]
fn nothing_said_is_the_default() {
    let default = TransportParameters::default();
    assert_eq!(TransportParameters::decode(Side::Client, &[]), Ok(default.clone()));
    assert_eq!(
        (default.max_udp_payload_size, default.ack_delay_exponent, default.max_ack_delay_ms),
        (65527, 3, 25),
        "RFC 9000 §18.2"
    );
    assert_eq!(default.active_connection_id_limit, 2);
    let mut out = Vec::new();
    default.encode(&mut out, Side::Server, None);
    assert!(out.is_empty());
}

/// The extension in the ClientHello of RFC 9001 A.2.
#[test]
fn parameters_of_rfc_9001_a_2() {
    let sent: &[u8] = &[
        0x04, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x05, 0x04, 0x80, 0x00, 0xff, 0xff, 0x07, 0x04,
        0x80, 0x00, 0xff, 0xff, 0x08, 0x01, 0x10, 0x01, 0x04, 0x80, 0x00, 0x75, 0x30, 0x09, 0x01, 0x10, 0x0f, 0x08,
        0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08, 0x06, 0x04, 0x80, 0x00, 0xff, 0xff,
    ];
    let expected = TransportParameters {
        initial_max_data: varint::MAX,
        initial_max_stream_data_bidi_local: 65535,
        initial_max_stream_data_uni: 65535,
        initial_max_streams_bidi: 16,
        max_idle_timeout_ms: 30000,
        initial_max_streams_uni: 16,
        initial_source_cid: ConnectionId::new(&[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08]),
        initial_max_stream_data_bidi_remote: 65535,
        ..Default::default()
    };
    assert_eq!(TransportParameters::decode(Side::Client, sent), Ok(expected));
}

// RFC 9000 §18.2 MUST-1: what the transport makes of any parameter that cannot be read is tested there.
#[test]
fn preferred_address_on_the_wire() {
    let mut value = vec![192, 0, 2, 1, 0x01, 0xbb];
    value.extend([0; 18]);
    value.push(2);
    value.extend([8, 9]);
    value.extend([0x55; 16]);
    let sent = bytes(&[(id::PREFERRED_ADDRESS, &value)]);
    let expected = TransportParameters {
        preferred_address: Some(PreferredAddress {
            ipv4: Some(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 443)),
            ipv6: None,
            cid: ConnectionId::new(&[8, 9]).unwrap(),
            reset_token: ResetToken([0x55; 16]),
        }),
        ..Default::default()
    };
    assert_eq!(TransportParameters::decode(Side::Server, &sent).as_ref(), Ok(&expected));
    let mut out = Vec::new();
    expected.encode(&mut out, Side::Server, None);
    assert_eq!(out, sent);

    for len in 0..value.len() {
        assert!(TransportParameters::decode(Side::Server, &bytes(&[(id::PREFERRED_ADDRESS, &value[..len])])).is_err());
    }
    value.push(0);
    assert!(TransportParameters::decode(Side::Server, &bytes(&[(id::PREFERRED_ADDRESS, &value)])).is_err());
    for cid_len in [0u8, 21] {
        let mut value = vec![1; 24];
        value.push(cid_len);
        value.extend(vec![2; usize::from(cid_len) + 16]);
        let error = TransportParameters::decode(Side::Server, &bytes(&[(id::PREFERRED_ADDRESS, &value)])).unwrap_err();
        assert_eq!(error.id, id::PREFERRED_ADDRESS);
    }
}

#[test]
fn limits_of_values() {
    for (id, good, bad) in [
        (id::MAX_UDP_PAYLOAD_SIZE, 1200, 1199),
        (id::INITIAL_MAX_STREAMS_BIDI, 1 << 60, (1 << 60) + 1),
        (id::INITIAL_MAX_STREAMS_UNI, 1 << 60, (1 << 60) + 1),
        (id::ACK_DELAY_EXPONENT, 20, 21),
        (id::MAX_ACK_DELAY, (1 << 14) - 1, 1 << 14),
        (id::ACTIVE_CONNECTION_ID_LIMIT, 2, 1),
        // Against the default of max_ack_delay, 25 ms.
        (id::MIN_ACK_DELAY, 25_000, 25_001),
    ] {
        assert!(TransportParameters::decode(Side::Client, &bytes(&[(id, &number(good))])).is_ok(), "{id:#x}");
        let error = TransportParameters::decode(Side::Client, &bytes(&[(id, &number(bad))])).unwrap_err();
        assert_eq!(error.id, id);
    }
}

#[test]
fn forms_of_values() {
    let long = [0; 21];
    for (id, value) in [
        (id::MAX_IDLE_TIMEOUT, &[][..]),
        (id::MAX_IDLE_TIMEOUT, &[0x40]),
        (id::MAX_IDLE_TIMEOUT, &[1, 0]),
        (id::DISABLE_ACTIVE_MIGRATION, &[0]),
        (id::GREASE_QUIC_BIT, &[0]),
        (id::STATELESS_RESET_TOKEN, &long[..15]),
        (id::STATELESS_RESET_TOKEN, &long[..17]),
        (id::ORIGINAL_DESTINATION_CONNECTION_ID, &long),
        (id::INITIAL_SOURCE_CONNECTION_ID, &long),
        (id::RETRY_SOURCE_CONNECTION_ID, &long),
    ] {
        let error = TransportParameters::decode(Side::Server, &bytes(&[(id, value)])).unwrap_err();
        assert_eq!(error.id, id, "{value:?}");
    }
    // A value may be encoded in more bytes than it needs.
    let decoded = TransportParameters::decode(Side::Client, &bytes(&[(id::MAX_IDLE_TIMEOUT, &[0x40, 7])])).unwrap();
    assert_eq!(decoded.max_idle_timeout_ms, 7);
}

/// draft-ietf-quic-receive-ts §5: the scale counts only beside the number of times.
#[test]
fn receive_timestamps() {
    let max = bytes(&[(id::MAX_RECEIVE_TIMESTAMPS_PER_ACK, &number(64))]);
    let decoded = TransportParameters::decode(Side::Client, &max).unwrap();
    assert_eq!((decoded.max_receive_timestamps_per_ack, decoded.receive_timestamps_exponent), (Some(64), 0));
    for (exponent, accepted) in [(20, true), (21, false)] {
        let exponent = bytes(&[(id::RECEIVE_TIMESTAMPS_EXPONENT, &number(exponent))]);
        let ignored = TransportParameters::decode(Side::Server, &exponent);
        assert_eq!(ignored, Ok(TransportParameters::default()));
        let both = TransportParameters::decode(Side::Server, &[max.clone(), exponent].concat());
        assert_eq!(both.is_ok(), accepted, "{both:?}");
    }
}

/// draft-ietf-quic-reliable-stream-reset §3: the parameter is empty, and either side may send it.
#[test]
fn reset_stream_at_is_a_flag() {
    for side in [Side::Client, Side::Server] {
        let decoded = TransportParameters::decode(side, &bytes(&[(0x1d, &[])])).unwrap();
        assert_eq!(decoded, TransportParameters { reset_stream_at: true, ..Default::default() });
        let error = TransportParameters::decode(side, &bytes(&[(0x1d, &[0])])).unwrap_err();
        assert_eq!((error.id, error.what), (0x1d, "has a value"));
    }
}

#[test]
fn a_client_may_not_send_what_is_the_servers() {
    let mut address = vec![1; 24];
    address.push(1);
    address.extend([1; 17]);
    for (id, value) in [
        (id::ORIGINAL_DESTINATION_CONNECTION_ID, &[1; 8][..]),
        (id::STATELESS_RESET_TOKEN, &[1; 16]),
        (id::PREFERRED_ADDRESS, &address),
        (id::RETRY_SOURCE_CONNECTION_ID, &[1; 8]),
    ] {
        let sent = bytes(&[(id, value)]);
        assert!(TransportParameters::decode(Side::Server, &sent).is_ok(), "{id:#x}");
        assert_eq!(TransportParameters::decode(Side::Client, &sent).unwrap_err().id, id);
    }
}

// RFC 9000 §7.4 SHOULD-1
#[test]
fn nothing_comes_twice() {
    for id in [id::INITIAL_MAX_DATA, 0x3fff] {
        let sent = bytes(&[(id, &[1]), (id::MAX_IDLE_TIMEOUT, &[1]), (id, &[1])]);
        assert_eq!(TransportParameters::decode(Side::Client, &sent).unwrap_err().id, id);
    }
}

// RFC 9000 §7.4.2 MUST-1
#[test]
fn unknown_parameters_are_ignored() {
    let sent = bytes(&[(0x1234_5678, b"whatever"), (id::INITIAL_MAX_DATA, &[9]), (0x21, &[])]);
    let expected = TransportParameters { initial_max_data: 9, ..Default::default() };
    assert_eq!(TransportParameters::decode(Side::Client, &sent), Ok(expected));
}

#[test]
fn every_cut_is_reported_or_falls_between_parameters() {
    let sent = bytes(&[(id::INITIAL_MAX_DATA, &number(100_000)), (id::MAX_DATAGRAM_FRAME_SIZE, &number(1200))]);
    for len in 0..sent.len() {
        let between = len == 0 || len == 6;
        assert_eq!(TransportParameters::decode(Side::Client, &sent[..len]).is_ok(), between, "{len} bytes");
    }
}

fn any_cid(min: usize) -> impl Strategy<Value = ConnectionId> {
    prop::collection::vec(any::<u8>(), min..=20).prop_map(|bytes| ConnectionId::new(&bytes).unwrap())
}

/// Numbers of all four lengths.
fn any_number() -> impl Strategy<Value = u64> {
    (0..=varint::MAX, 0..62u32).prop_map(|(value, shift)| value >> shift)
}

fn any_preferred_address() -> impl Strategy<Value = PreferredAddress> {
    let ipv4 = prop::option::of((any::<u32>(), 1..=u16::MAX));
    let ipv6 = prop::option::of((any::<u128>(), 1..=u16::MAX));
    (ipv4, ipv6, any_cid(1), any::<[u8; 16]>()).prop_map(|(v4, v6, cid, token)| PreferredAddress {
        ipv4: v4.map(|(ip, port)| SocketAddrV4::new(Ipv4Addr::from(ip), port)),
        ipv6: v6.map(|(ip, port)| SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, 0)),
        cid,
        reset_token: ResetToken(token),
    })
}

prop_compose! {
    fn any_parameters()(
        numbers in prop::collection::vec(any_number(), 6),
        (streams_bidi, streams_uni) in (0..=1u64 << 60, 0..=1u64 << 60),
        max_udp_payload_size in 1200..=varint::MAX,
        (ack_delay_exponent, max_ack_delay_ms) in (0..=20u64, 0..1u64 << 14),
        min_ack_delay in prop::option::of(any::<u64>()),
        (max_receive_timestamps, receive_timestamps_exponent) in (prop::option::of(any_number()), 0..=20u64),
        (disable_active_migration, grease_quic_bit, reset_stream_at) in any::<(bool, bool, bool)>(),
        active_connection_id_limit in 2..=varint::MAX,
        (original_dcid, initial_source_cid, retry_source_cid) in
            (prop::option::of(any_cid(0)), prop::option::of(any_cid(0)), prop::option::of(any_cid(0))),
        token in prop::option::of(any::<[u8; 16]>()),
        preferred_address in prop::option::of(any_preferred_address()),
    ) -> TransportParameters {
        TransportParameters {
            original_dcid,
            max_idle_timeout_ms: numbers[0],
            stateless_reset_token: token.map(ResetToken),
            max_udp_payload_size,
            initial_max_data: numbers[1],
            initial_max_stream_data_bidi_local: numbers[2],
            initial_max_stream_data_bidi_remote: numbers[3],
            initial_max_stream_data_uni: numbers[4],
            initial_max_streams_bidi: streams_bidi,
            initial_max_streams_uni: streams_uni,
            ack_delay_exponent,
            max_ack_delay_ms,
            disable_active_migration,
            preferred_address,
            active_connection_id_limit,
            initial_source_cid,
            retry_source_cid,
            version_information: None,
            max_datagram_frame_size: numbers[5],
            grease_quic_bit,
            reset_stream_at,
            min_ack_delay_us: min_ack_delay.map(|v| v % (max_ack_delay_ms * 1000 + 1)),
            max_receive_timestamps_per_ack: max_receive_timestamps,
            receive_timestamps_exponent: max_receive_timestamps.map_or(0, |_| receive_timestamps_exponent),
            fec_window: min_ack_delay.map(|v| (v % 1000) + 16),
        }
    }
}

proptest! {
    // RFC 9000 §7.4 MUST NOT-1
    #[test]
    fn parameters_come_back(sent in any_parameters(), grease: Option<u64>) {
        let mut out = Vec::new();
        sent.encode(&mut out, Side::Server, grease);
        prop_assert_eq!(TransportParameters::decode(Side::Server, &out), Ok(sent.clone()));

        // A client leaves out what is not its to send.
        let mut out = Vec::new();
        sent.encode(&mut out, Side::Client, grease);
        let expected = TransportParameters {
            original_dcid: None,
            stateless_reset_token: None,
            preferred_address: None,
            retry_source_cid: None,
            ..sent
        };
        prop_assert_eq!(TransportParameters::decode(Side::Client, &out), Ok(expected));
    }

    #[test]
    fn grease_is_reserved(random: u64) {
        let mut out = Vec::new();
        TransportParameters::default().encode(&mut out, Side::Client, Some(random));
        let mut r = Reader::new(&out);
        prop_assert_eq!(r.varint().unwrap() % 31, 27);
        r.counted().unwrap();
        prop_assert!(r.is_empty());
    }
}

// RFC 9368 §4 MUST-4, MUST-6, MUST-7
#[test]
fn version_information_is_read_strictly() {
    let with = |value: &[u8]| {
        let mut out = Vec::new();
        out.push(0x11);
        out.push(value.len() as u8);
        out.extend_from_slice(value);
        out
    };
    let (v1, v2) = ([0, 0, 0, 1], [0x6b, 0x33, 0x43, 0xcf]);
    for (value, from_client, from_server) in [
        ([v1, v2, v1].concat(), true, true),
        ([v1].concat(), false, true),
        ([v1, v2].concat(), false, true),
        (vec![], false, false),
        (vec![0, 0, 1], false, false),
        ([&v1[..], &v1[..], &[1][..]].concat(), false, false),
        ([[0; 4], [0; 4]].concat(), false, false),
        ([v1, v1, [0; 4]].concat(), false, false),
    ] {
        for (side, good) in [(Side::Client, from_client), (Side::Server, from_server)] {
            let read = TransportParameters::decode(side, &with(&value));
            assert_eq!(read.is_ok(), good, "{side:?} {value:?} {read:?}");
        }
    }
    let versions = VersionInformation { chosen: 1, available: vec![0x6b33_43cf, 1] };
    let parameters = TransportParameters { version_information: Some(versions), ..TransportParameters::default() };
    let mut out = Vec::new();
    parameters.encode(&mut out, Side::Client, None);
    assert_eq!(TransportParameters::decode(Side::Client, &out), Ok(parameters));
}
