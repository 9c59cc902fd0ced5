//! A peer that has the keys and breaks the rules: each breach closes the connection with its own code, nothing panics.

use crate::support;

use std::collections::BTreeSet;

use support::puppet::{LEVELS, Puppet, ack, bytes};
use transport::{Code, Event, Profile, tls::Level};
use units::Duration;
use wire::{ConnectionId, Dir, Frame, ResetToken, Side, StreamFrame, StreamId, TransportParameters, varint};

fn client() -> Puppet {
    Puppet::client(&Profile::default(), |_, _| {})
}

fn server() -> Puppet {
    Puppet::server(&Profile::default(), |_, _| {})
}

fn stream(id: StreamId, offset: u64, data: &[u8], fin: bool) -> Frame<'_> {
    Frame::Stream(StreamFrame { id, offset, fin, data })
}

const BI: StreamId = StreamId(0);
const UNI: StreamId = StreamId(2);
const SERVERS_BI: StreamId = StreamId(1);
const SERVERS_UNI: StreamId = StreamId(3);

fn id(byte: u8) -> ConnectionId {
    ConnectionId::new(&[byte; 8]).unwrap()
}

fn new_id(sequence: u64, retire_prior_to: u64, byte: u8) -> Frame<'static> {
    Frame::NewConnectionId { sequence, retire_prior_to, cid: id(byte), reset_token: ResetToken([byte; 16]) }
}

/// One of every frame but PADDING and ACK.
fn one_of_each() -> Vec<Frame<'static>> {
    vec![
        Frame::Ping,
        Frame::ResetStream { id: BI, code: 1, final_size: 0 },
        Frame::ResetStreamAt { id: BI, code: 1, final_size: 0, reliable_size: 0 },
        Frame::StopSending { id: BI, code: 1 },
        Frame::Crypto { offset: 0, data: &[] },
        Frame::NewToken { token: b"t" },
        stream(BI, 0, b"x", false),
        Frame::MaxData(1),
        Frame::MaxStreamData { id: BI, limit: 1 },
        Frame::MaxStreams { dir: Dir::Bi, limit: 1 },
        Frame::DataBlocked(1),
        Frame::StreamDataBlocked { id: BI, limit: 1 },
        Frame::StreamsBlocked { dir: Dir::Uni, limit: 1 },
        new_id(1, 0, 1),
        Frame::RetireConnectionId { sequence: 0 },
        Frame::PathChallenge([1; 8]),
        Frame::PathResponse([1; 8]),
        Frame::ApplicationClose { error: 1, reason: b"" },
        Frame::HandshakeDone,
        Frame::Datagram { data: b"d" },
        Frame::AckFrequency { sequence: 0, eliciting_threshold: 1, max_ack_delay_us: 25_000, reordering_threshold: 1 },
        Frame::ImmediateAck,
    ]
}

/// RFC 9000 §12.4, table 3.
// RFC 9000 §12.4 MUST-3; RFC 9000 §17.2.4 MUST-1; RFC 9221 §5 MUST-1; RFC 9221 §6 MUST-1
#[test]
fn frames_are_refused_in_packets_that_may_not_carry_them() {
    for side in [Side::Client, Side::Server] {
        for level in [Level::Initial, Level::Handshake] {
            for frame in one_of_each() {
                let mut puppet = if side == Side::Client { client() } else { server() };
                if level == Level::Handshake {
                    puppet.flush(&[Level::Initial]);
                    puppet.collect();
                }
                let mut payload = bytes(&[frame]);
                payload.resize(30, 0);
                puppet.send(level, &payload);
                let permitted = matches!(frame, Frame::Ping | Frame::Crypto { .. });
                let expected = (!permitted).then_some(Code::PROTOCOL_VIOLATION);
                assert_eq!(puppet.close_code(), expected, "{side:?} {level:?} {frame:?}");
            }
        }
    }
}

/// Contents of a client's 1-RTT packet, with the error by which the server closes.
// RFC 9000 §5.2 MUST-1; RFC 9000 §10.3 MUST-1; RFC 9000 §11 SHOULD-1, SHOULD-2; RFC 9000 §11.1 MUST-1
#[test]
fn a_server_names_each_breach() {
    let far = varint::MAX;
    let mut long_id = bytes(&[new_id(1, 0, 1)]);
    long_id[3] = 21;
    let mut empty_id = bytes(&[new_id(1, 0, 1)]);
    empty_id[3] = 0;
    let window = Profile::default().streams.receive_window_stream;
    let whole = Profile::default().streams.receive_window_connection;
    let many: Vec<_> = (0..=whole / window).map(|n| stream(StreamId(4 * n), window - 1, b"x", false)).collect();
    let unsent: BTreeSet<u64> = [5_000].into();
    let table: Vec<(&str, Vec<u8>, Option<Code>)> = vec![
        // RFC 9000 §12.4 MUST-2
        ("no frames", vec![], Some(Code::PROTOCOL_VIOLATION)),
        // RFC 9000 §12.4 MUST-4
        ("an unknown frame", vec![0x21, 0, 0, 0], Some(Code::FRAME_ENCODING_ERROR)),
        ("an unknown frame of a large type", vec![0xc0, 1, 2, 3, 4, 5, 6, 7], Some(Code::FRAME_ENCODING_ERROR)),
        ("a frame that is cut off", vec![0x10], Some(Code::FRAME_ENCODING_ERROR)),
        ("a STREAM frame longer than the packet", vec![0x0a, 0, 60, 1], Some(Code::FRAME_ENCODING_ERROR)),
        // RFC 9000 §13.1 SHOULD-1
        ("an ACK of what was never sent", ack(&unsent), Some(Code::PROTOCOL_VIOLATION)),
        // RFC 9000 §19.3.1 MUST-1
        ("an ACK below zero", vec![2, 0, 0, 0, 1], Some(Code::FRAME_ENCODING_ERROR)),
        ("an ACK that promises ranges", vec![2, 0, 0, 63, 0], Some(Code::FRAME_ENCODING_ERROR)),
        // RFC 9000 §19.20 MUST-1
        ("HANDSHAKE_DONE", bytes(&[Frame::HandshakeDone]), Some(Code::PROTOCOL_VIOLATION)),
        // RFC 9000 §19.7 MUST-2
        ("NEW_TOKEN", bytes(&[Frame::NewToken { token: b"t" }]), Some(Code::PROTOCOL_VIOLATION)),
        ("a stream at its last byte", bytes(&[stream(BI, far - 1, b"x", false)]), Some(Code::FLOW_CONTROL_ERROR)),
        // RFC 9000 §19.8 MUST-2
        ("a stream beyond 2^62", bytes(&[stream(BI, far, b"x", false)]), Some(Code::FRAME_ENCODING_ERROR)),
        // RFC 9000 §4.1 MUST-1; RFC 9000 §19.10 MUST-3
        ("one byte beyond the window", bytes(&[stream(BI, window, b"x", false)]), Some(Code::FLOW_CONTROL_ERROR)),
        ("the last byte of the window", bytes(&[stream(BI, window - 1, b"x", false)]), None),
        // RFC 9000 §4.1 MUST-1; RFC 9000 §19.9 MUST-1
        ("more than the connection's window", bytes(&many), Some(Code::FLOW_CONTROL_ERROR)),
        (
            "a reset beyond the window",
            bytes(&[Frame::ResetStream { id: BI, code: 0, final_size: window + 1 }]),
            Some(Code::FLOW_CONTROL_ERROR),
        ),
        (
            // RFC 9000 §4.6 MUST-2; RFC 9000 §19.11 MUST-3
            "a bidirectional stream too many",
            bytes(&[stream(StreamId(400), 0, b"", false)]),
            Some(Code::STREAM_LIMIT_ERROR),
        ),
        ("the last bidirectional stream", bytes(&[stream(StreamId(396), 0, b"", false)]), None),
        (
            "a unidirectional stream too many",
            bytes(&[stream(StreamId(402), 0, b"", false)]),
            Some(Code::STREAM_LIMIT_ERROR),
        ),
        (
            "the largest stream of all",
            bytes(&[stream(StreamId(far - 1), 0, b"", false)]),
            Some(Code::STREAM_LIMIT_ERROR),
        ),
        (
            "a reset of a stream too many",
            bytes(&[Frame::ResetStream { id: StreamId(400), code: 0, final_size: 0 }]),
            Some(Code::STREAM_LIMIT_ERROR),
        ),
        (
            // RFC 9000 §19.8 MUST-1
            "data on the server's own sending stream",
            bytes(&[stream(SERVERS_UNI, 0, b"x", false)]),
            Some(Code::STREAM_STATE_ERROR),
        ),
        (
            // RFC 9000 §19.8 MUST-1
            "data on a stream the server did not open",
            bytes(&[stream(SERVERS_BI, 0, b"x", false)]),
            Some(Code::STREAM_STATE_ERROR),
        ),
        (
            // RFC 9000 §19.4 MUST-1
            "RESET_STREAM of the server's own stream",
            bytes(&[Frame::ResetStream { id: SERVERS_UNI, code: 0, final_size: 0 }]),
            Some(Code::STREAM_STATE_ERROR),
        ),
        (
            // RFC 9000 §19.10 MUST-2
            "MAX_STREAM_DATA for a receiving stream",
            bytes(&[Frame::MaxStreamData { id: UNI, limit: 9 }]),
            Some(Code::STREAM_STATE_ERROR),
        ),
        (
            // RFC 9000 §19.10 MUST-1
            "MAX_STREAM_DATA for a stream the server did not open",
            bytes(&[Frame::MaxStreamData { id: SERVERS_BI, limit: 9 }]),
            Some(Code::STREAM_STATE_ERROR),
        ),
        (
            // RFC 9000 §19.5 MUST-2
            "STOP_SENDING for a receiving stream",
            bytes(&[Frame::StopSending { id: UNI, code: 9 }]),
            Some(Code::STREAM_STATE_ERROR),
        ),
        (
            // RFC 9000 §19.5 MUST-1
            "STOP_SENDING for a stream the server did not open",
            bytes(&[Frame::StopSending { id: SERVERS_BI, code: 9 }]),
            Some(Code::STREAM_STATE_ERROR),
        ),
        (
            // RFC 9000 §19.13 MUST-1
            "STREAM_DATA_BLOCKED for a sending stream",
            bytes(&[Frame::StreamDataBlocked { id: SERVERS_UNI, limit: 9 }]),
            Some(Code::STREAM_STATE_ERROR),
        ),
        (
            // RFC 9000 §4.5 SHOULD-1
            "an end that moves out",
            bytes(&[stream(BI, 0, b"abc", true), stream(BI, 3, b"d", false)]),
            Some(Code::FINAL_SIZE_ERROR),
        ),
        (
            "an end before what was sent",
            bytes(&[stream(BI, 0, b"abc", false), stream(BI, 0, b"a", true)]),
            Some(Code::FINAL_SIZE_ERROR),
        ),
        ("two ends", bytes(&[stream(BI, 0, b"abc", true), stream(BI, 0, b"ab", true)]), Some(Code::FINAL_SIZE_ERROR)),
        (
            "a reset before what was sent",
            bytes(&[stream(BI, 0, b"abc", false), Frame::ResetStream { id: BI, code: 0, final_size: 2 }]),
            Some(Code::FINAL_SIZE_ERROR),
        ),
        (
            "a reset beyond the end",
            bytes(&[stream(BI, 0, b"abc", true), Frame::ResetStream { id: BI, code: 0, final_size: 4 }]),
            Some(Code::FINAL_SIZE_ERROR),
        ),
        (
            // RFC 9000 §4.6 MUST-1; RFC 9000 §19.11 MUST-1
            "2^60 + 1 streams",
            [&[0x12][..], &(0xc000_0000_0000_0000_u64 | ((1 << 60) + 1)).to_be_bytes()].concat(),
            Some(Code::FRAME_ENCODING_ERROR),
        ),
        (
            // RFC 9000 §19.14 MUST-1
            "blocked at 2^60 + 1 streams",
            [&[0x16][..], &(0xc000_0000_0000_0000_u64 | ((1 << 60) + 1)).to_be_bytes()].concat(),
            Some(Code::FRAME_ENCODING_ERROR),
        ),
        (
            // RFC 9000 §19.15 MUST-4
            "an ID that retires later ones",
            [[0x18, 1, 2, 8].to_vec(), vec![7; 24]].concat(),
            Some(Code::FRAME_ENCODING_ERROR),
        ),
        // RFC 9000 §19.15 MUST-1
        ("an ID of 21 bytes", [&long_id[..], &[0; 20]].concat(), Some(Code::FRAME_ENCODING_ERROR)),
        // RFC 9000 §19.15 MUST-1
        ("an ID of no bytes", empty_id, Some(Code::FRAME_ENCODING_ERROR)),
        ("two IDs of one number", bytes(&[new_id(1, 0, 1), new_id(1, 0, 2)]), Some(Code::PROTOCOL_VIOLATION)),
        ("one ID of two numbers", bytes(&[new_id(1, 0, 1), new_id(2, 0, 1)]), Some(Code::PROTOCOL_VIOLATION)),
        // RFC 9000 §19.15 MUST NOT-2
        ("the same ID twice", bytes(&[new_id(1, 0, 1), new_id(1, 0, 1)]), None),
        ("as many IDs as may be", bytes(&[new_id(1, 0, 1), new_id(2, 0, 2), new_id(3, 0, 3)]), None),
        (
            // RFC 9000 §5.1.1 MUST-3
            "one ID too many",
            bytes(&[new_id(1, 0, 1), new_id(2, 0, 2), new_id(3, 0, 3), new_id(4, 0, 4)]),
            Some(Code::CONNECTION_ID_LIMIT_ERROR),
        ),
        ("an ID in place of all others", bytes(&[new_id(1, 0, 1), new_id(2, 0, 2), new_id(9, 9, 9)]), None),
        (
            // RFC 9000 §19.16 MUST-1
            "giving up what was never issued",
            bytes(&[Frame::RetireConnectionId { sequence: 99 }]),
            Some(Code::PROTOCOL_VIOLATION),
        ),
        (
            "giving up the ID in use",
            bytes(&[Frame::RetireConnectionId { sequence: 0 }]),
            Some(Code::PROTOCOL_VIOLATION),
        ),
        (
            // RFC 9000 §7.5 MUST-2
            "CRYPTO far ahead",
            bytes(&[Frame::Crypto { offset: 1 << 20, data: b"x" }]),
            Some(Code::CRYPTO_BUFFER_EXCEEDED),
        ),
        // RFC 9000 §19.6 MUST-1
        ("CRYPTO beyond 2^62", bytes(&[Frame::Crypto { offset: far, data: b"x" }]), Some(Code::FRAME_ENCODING_ERROR)),
        (
            "a TLS message that is not due",
            bytes(&[Frame::Crypto { offset: 0, data: &[1, 0, 0, 0] }]),
            Some(Code::crypto(10)),
        ),
        ("an answer that nobody asked for", bytes(&[Frame::PathResponse([9; 8])]), None),
        ("nothing but padding", vec![0; 100], None),
        ("a datagram", bytes(&[Frame::Datagram { data: b"d" }]), None),
    ];
    for (name, payload, expected) in table {
        let mut puppet = client().connected();
        puppet.send(Level::OneRtt, &payload);
        assert_eq!(puppet.close_code(), expected, "{name}");
    }
}

#[test]
fn a_client_names_each_breach() {
    let table: Vec<(&str, Vec<u8>, Option<Code>)> = vec![
        // RFC 9000 §19.7 MUST-1
        ("an empty token", vec![7, 0, 0, 0], Some(Code::FRAME_ENCODING_ERROR)),
        // RFC 9001 §9.2 MUST-2
        ("a token", bytes(&[Frame::NewToken { token: b"t" }]), None),
        ("HANDSHAKE_DONE again", bytes(&[Frame::HandshakeDone, Frame::HandshakeDone]), None),
        (
            "data on the client's own sending stream",
            bytes(&[stream(UNI, 0, b"x", false)]),
            Some(Code::STREAM_STATE_ERROR),
        ),
        ("a stream too many", bytes(&[stream(StreamId(401), 0, b"x", false)]), Some(Code::STREAM_LIMIT_ERROR)),
        (
            "a TLS message that is not due",
            bytes(&[Frame::Crypto { offset: 200, data: &[1, 0, 0, 0] }]),
            Some(Code::crypto(10)),
        ),
    ];
    for (name, payload, expected) in table {
        let mut puppet = server().connected();
        puppet.send(Level::OneRtt, &payload);
        assert_eq!(puppet.close_code(), expected, "{name}");
    }
}

// RFC 9221 §3 MUST-1
#[test]
fn datagrams_are_refused_where_none_were_offered() {
    let profile = Profile { datagram_queue: 0, ..Profile::default() };
    let mut puppet = Puppet::client(&profile, |_, _| {}).connected();
    puppet.send(Level::OneRtt, &bytes(&[Frame::Datagram { data: b"d" }]));
    assert_eq!(puppet.close_code(), Some(Code::PROTOCOL_VIOLATION));
}

/// A thousand empty datagrams in each packet cost their receiver as much as a thousand full ones would; so only as many are taken as packets
/// justify. Datagrams that come in numbers that a sender has use for all arrive.
#[test]
fn packets_full_of_empty_datagrams_are_read_in_part() {
    const PACKETS: u64 = 100;
    for (in_packet, most) in [(30, 30 * PACKETS), (1_000, 1_024 + 32 * PACKETS)] {
        let mut puppet = Puppet::client(&Profile::default(), |_, _| {}).connected();
        let payload = bytes(&vec![Frame::Datagram { data: b"" }; in_packet as usize]);
        let mut delivered = 0;
        for _ in 0..PACKETS {
            puppet.send(Level::OneRtt, &payload);
            let connection = puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap();
            delivered += std::iter::from_fn(|| connection.recv_datagram()).count() as u64;
        }
        assert_eq!(puppet.close_code(), None);
        let stats = puppet.victim.connection(puppet.handle.unwrap()).unwrap().stats();
        assert_eq!(stats.datagram_frames_received, in_packet * PACKETS);
        assert_eq!(stats.datagram_frames_dropped, in_packet * PACKETS - delivered);
        assert!(
            delivered <= most && delivered + 32 >= most,
            "{delivered} of {in_packet} in each packet, expected {most}"
        );
    }
}

/// Sets a bit of the header that protection covers, in an authentic packet.
// RFC 9000 §17.3.1 MUST-3
#[test]
fn reserved_bits_are_refused() {
    let mut puppet = client().connected();
    let pn = 100;
    let payload = [1; 20];
    let mut packet = vec![0; 1 + 8 + 4 + payload.len() + 16];
    let mut w = wire::Writer::new(&mut packet);
    let pn_offset = wire::encode_short(&mut w, &puppet.dcid, pn, 4, false, false);
    w.bytes(&payload);
    packet[0] |= 0x08;
    puppet.keys.seal_short(&mut packet, pn_offset, pn, transport::PathId(0)).unwrap();
    puppet.give(&packet);
    assert_eq!(puppet.close_code(), Some(Code::PROTOCOL_VIOLATION));
}

/// RFC 9000 §17.2, §17.3: a packet without the fixed bit is not of this version, unless an end says otherwise (RFC 9287). It
/// is authentic here.
// RFC 9000 §17.3.1 MUST-1
#[test]
fn packets_without_the_fixed_bit_are_dropped_unless_they_are_invited() {
    for grease in [false, true] {
        packet_without_the_fixed_bit(grease);
    }
}

fn packet_without_the_fixed_bit(grease: bool) {
    let profile = Profile { grease, ..Profile::default() };
    let mut puppet = Puppet::client(&profile, |_, _| {}).connected();
    let mut packet = vec![0; 1 + 8 + 4 + 20 + 16];
    let mut w = wire::Writer::new(&mut packet);
    let pn_offset = wire::encode_short(&mut w, &puppet.dcid, 100, 4, false, false);
    w.bytes(&bytes(&[Frame::ApplicationClose { error: 1, reason: &[0; 17] }]));
    packet[0] &= !0x40;
    puppet.keys.seal_short(&mut packet, pn_offset, 100, transport::PathId(0)).unwrap();
    puppet.give(&packet);
    let handle = puppet.handle.unwrap();
    assert_eq!(puppet.victim.connection(handle).unwrap().is_connected(), !grease);
}

// RFC 9287 §3 MUST-1; RFC 9368 §4 MUST-5
// RFC 9000 §7.3 MUST-2, MUST-3, MUST-4; RFC 9000 §7.4 MUST-1, SHOULD-1; RFC 9000 §18.2 MUST-3, MUST-4
#[test]
fn parameters_that_cannot_be_accepted_end_the_handshake() {
    type Change = fn(&mut TransportParameters, &mut Vec<u8>);
    let both: [(&str, Change); 16] = [
        ("none that names the source ID", |p, _| p.initial_source_cid = None),
        ("another source ID", |p, _| p.initial_source_cid = ConnectionId::new(&[1; 8])),
        ("one of them twice", |_, raw| raw.extend([0x04, 1, 9])),
        ("an unknown one twice", |_, raw| raw.extend([0x40, 0x99, 0, 0x40, 0x99, 0])),
        ("cut off", |_, raw| raw.extend([0x40, 0x99, 9])),
        ("a number with bytes after it", |p, raw| {
            p.initial_max_data = 0;
            raw.extend([0x04, 2, 9, 9]);
        }),
        ("datagrams below 1200 bytes", |_, raw| raw.extend([0x03, 2, 0x44, 0xaf])),
        ("an exponent of 21", |_, raw| raw.extend([0x0a, 1, 21])),
        ("a delay of 2^14", |_, raw| raw.extend([0x0b, 4, 0x80, 0, 0x40, 0])),
        ("one connection ID at a time", |p, raw| {
            p.active_connection_id_limit = 2;
            raw.extend([0x0e, 1, 1]);
        }),
        // RFC 9000 §4.6 MUST-1
        ("too many streams", |p, raw| {
            p.initial_max_streams_bidi = 0;
            raw.extend([0x08, 8, 0xd0, 0, 0, 0, 0, 0, 0, 1]);
        }),
        ("a reset token of 15 bytes", |_, raw| raw.extend([&[0x02, 15][..], &[0; 15]].concat())),
        ("an ID of 21 bytes", |p, raw| {
            p.initial_source_cid = None;
            raw.extend([&[0x0f, 21][..], &[0; 21]].concat());
        }),
        ("a flag with a value", |_, raw| raw.extend([0x0c, 1, 0])),
        ("the grease of the QUIC bit with a value", |_, raw| raw.extend([0x6a, 0xb2, 1, 0])),
        ("three quarters of a version", |_, raw| raw.extend([0x11, 3, 0, 0, 1])),
    ];
    let clients: [(&str, Change); 4] = [
        ("a client's original ID", |_, raw| raw.extend([&[0x00, 8][..], &[0xdc; 8]].concat())),
        ("a client's reset token", |_, raw| raw.extend([&[0x02, 16][..], &[0; 16]].concat())),
        ("a client's preferred address", |_, raw| raw.extend([&[0x0d, 41][..], &[0; 41]].concat())),
        ("a client's Retry ID", |_, raw| raw.extend([&[0x10, 8][..], &[0; 8]].concat())),
    ];
    let servers: [(&str, Change); 3] = [
        ("no original ID", |p, _| p.original_dcid = None),
        ("another original ID", |p, _| p.original_dcid = ConnectionId::new(&[1; 8])),
        ("a Retry that never was", |p, _| p.retry_source_cid = ConnectionId::new(&[1; 8])),
    ];
    for (name, change) in both.iter().chain(&clients) {
        let mut puppet = Puppet::client(&Profile::default(), change);
        puppet.flush(&[Level::Initial]);
        assert_eq!(puppet.close_code(), Some(Code::TRANSPORT_PARAMETER_ERROR), "to a server: {name}");
    }
    for (name, change) in both.iter().chain(&servers) {
        let mut puppet = Puppet::server(&Profile::default(), change);
        puppet.flush(&LEVELS);
        puppet.collect();
        puppet.flush(&LEVELS);
        assert_eq!(puppet.close_code(), Some(Code::TRANSPORT_PARAMETER_ERROR), "to a client: {name}");
    }
    let extreme = |p: &mut TransportParameters, _: &mut Vec<u8>| {
        p.max_idle_timeout_ms = varint::MAX;
        p.initial_max_data = varint::MAX;
        p.max_ack_delay_ms = (1 << 14) - 1;
        p.ack_delay_exponent = 20;
        p.active_connection_id_limit = varint::MAX;
        p.max_datagram_frame_size = varint::MAX;
        p.max_udp_payload_size = varint::MAX;
        p.initial_max_streams_bidi = 1 << 60;
    };
    let profile = Profile { idle_timeout: Duration::ZERO, ..Profile::default() };
    let mut puppet = Puppet::client(&profile, extreme).connected();
    puppet.send(Level::OneRtt, &[2, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);
    assert_eq!(puppet.close_code(), None, "the largest values are no breach");
}

/// RFC 9000 §21.4: numbers that were left out on purpose.
#[test]
fn acknowledging_everything_blindly_is_noticed() {
    let mut puppet = server().connected();
    let handle = puppet.handle.unwrap();
    let mut caught = false;
    for _ in 0..3_000 {
        puppet.victim.connection_mut(handle).unwrap().ping();
        puppet.collect();
        let largest = *puppet.seen[2].last().unwrap();
        let all: BTreeSet<u64> = (0..=largest).collect();
        puppet.send(Level::OneRtt, &ack(&all));
        if let Some(code) = puppet.close_code() {
            assert_eq!(code, Code::PROTOCOL_VIOLATION);
            caught = true;
            break;
        }
    }
    assert!(caught);
}

#[test]
fn tickets_after_the_handshake_are_read() {
    let mut puppet = server().connected();
    let mut offset = 0;
    // A toy's ticket of 200 bytes came with the handshake.
    let start = 200;
    let ticket = [&[4, 0, 3, 0xe4][..], &[0; 996]].concat();
    for _ in 0..200 {
        puppet.send(Level::OneRtt, &bytes(&[Frame::Crypto { offset: start + offset, data: &ticket }]));
        offset += ticket.len() as u64;
        puppet.collect();
    }
    assert_eq!(puppet.close_code(), None, "200 KiB of tickets, read as they come");
}

// RFC 9001 §4.1.3 MUST NOT-1, MUST-1
#[test]
fn crypto_bytes_of_a_level_that_is_over_are_refused() {
    let mut puppet = server();
    puppet.flush(&[Level::Initial]);
    puppet.collect();
    puppet.send(Level::Initial, &bytes(&[Frame::Crypto { offset: 1200, data: b"more" }]));
    // RFC 9001 §4.1.3.
    assert_eq!(puppet.close_code(), Some(Code::PROTOCOL_VIOLATION));
}

/// RFC 9001 §6.2: keys are not updated again before the first update was acknowledged.
#[test]
fn two_key_updates_at_once_are_refused() {
    let mut puppet = client().connected();
    puppet.keys.on_handshake_confirmed();
    puppet.acknowledge(Level::OneRtt);
    puppet.collect();
    assert!(puppet.keys.update(puppet.now, Duration::ZERO));
    puppet.send(Level::OneRtt, &[1, 0, 0, 0]);
    assert_eq!(puppet.close_code(), None);
    assert_eq!(puppet.victim.connection(puppet.handle.unwrap()).unwrap().stats().key_updates, 1);
}

/// An ID that was given up must not come back when the network repeats its announcement.
#[test]
fn an_id_that_was_given_up_is_not_used_again() {
    let mut puppet = client().connected();
    let announcements = [new_id(1, 0, 1), new_id(2, 0, 2), new_id(3, 0, 3)];
    puppet.send(Level::OneRtt, &bytes(&announcements));
    puppet.collect();
    // Each packet from another address makes the server change the ID.
    let mut used = Vec::new();
    for port in 1..4 {
        puppet.address.set_port(port);
        puppet.now += Duration::from_millis(100);
        puppet.send(Level::OneRtt, &[1; 50]);
        puppet.collect();
        puppet.acknowledge(Level::OneRtt);
        puppet.send(Level::OneRtt, &bytes(&announcements));
        for d in support::direct::sent(&mut puppet.victim, puppet.now) {
            if let Some(dcid) = wire::short_dcid(&d.payload, 8) {
                used.push(dcid.to_vec());
            }
        }
    }
    for sequence in 4..7 {
        puppet.send(Level::OneRtt, &bytes(&[new_id(sequence, sequence, sequence as u8)]));
        puppet.collect();
    }
    assert_eq!(puppet.close_code(), None);
    let retired: Vec<u64> = puppet
        .frames()
        .filter_map(|(_, f)| if let Frame::RetireConnectionId { sequence } = f { Some(sequence) } else { None })
        .collect();
    used.dedup();
    let mut once = used.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), used.len(), "no ID came back: {used:?}, given up: {retired:?}");
}

/// Bytes that a victim may hold for all that is thrown at it below.
const HELD: usize = 24 << 20;

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

/// Floods that need no answer: the connection may end, with the code of the limit, or continue; it may not grow.
// RFC 9000 §21.9 SHOULD-1
#[test]
fn floods_are_bounded() {
    let rounds = 3_000_u64;
    type Make = fn(u64) -> Vec<u8>;
    let floods: [(&str, Make); 9] = [
        ("PATH_CHALLENGE", |n| bytes(&[Frame::PathChallenge(n.to_be_bytes()); 100])),
        ("PING", |_| vec![1; 1000]),
        ("NEW_CONNECTION_ID", |n| {
            let frames: Vec<_> = (n * 20 + 1..n * 20 + 21)
                .map(|s| Frame::NewConnectionId {
                    sequence: s,
                    retire_prior_to: s,
                    cid: ConnectionId::new(&s.to_be_bytes()).unwrap(),
                    reset_token: ResetToken([0; 16]),
                })
                .collect();
            bytes(&frames)
        }),
        ("CRYPTO with gaps", |n| {
            let frames: Vec<_> =
                (0..150).map(|i| Frame::Crypto { offset: 2 * (n * 150 + i) + 1, data: b"x" }).collect();
            bytes(&frames)
        }),
        ("single bytes of streams", |n| {
            let at = |i| n * 150 + i;
            let frames: Vec<_> =
                (0..150).map(|i| stream(StreamId(4 * (at(i) % 99)), 1 + 2 * (at(i) / 99), b"x", false)).collect();
            bytes(&frames)
        }),
        ("datagrams that nobody reads", |_| bytes(&[Frame::Datagram { data: &[9; 1000] }])),
        ("empty datagrams that nobody reads", |_| [0x31, 0].repeat(500)),
        ("streams opened and reset", |n| {
            let frames: Vec<_> =
                (0..90).map(|i| Frame::ResetStream { id: StreamId(4 * (i % 90)), code: n, final_size: 0 }).collect();
            bytes(&frames)
        }),
        ("BLOCKED frames", |n| bytes(&[Frame::DataBlocked(n); 300])),
    ];
    for (name, make) in floods {
        let mut puppet = client().connected();
        let before = resident();
        let mut answered = 0;
        for n in 0..rounds {
            puppet.send(Level::OneRtt, &make(n));
            answered += puppet.collect();
            puppet.received.clear();
            puppet.events.clear();
        }
        assert!(answered as u64 <= 2 * rounds + 20, "{name}: {answered} datagrams for {rounds}");
        let grown = resident().saturating_sub(before);
        assert!(grown < HELD, "{name}: {grown} bytes");
    }
}

/// The last byte of the ClientHello first, each in a frame of its own.
#[test]
fn a_client_hello_may_come_byte_by_byte() {
    let mut puppet = client();
    let mut pieces = puppet.pieces(Level::Initial, 5);
    assert!(pieces.len() > 1000);
    pieces.reverse();
    for pieces in pieces.chunks(200) {
        puppet.send(Level::Initial, &pieces.concat());
    }
    puppet.collect();
    assert_eq!(puppet.close_code(), None);
    assert!(puppet.frames().any(|(level, f)| level == Level::Initial && matches!(f, Frame::Crypto { .. })));
}

// RFC 9001 §4.1.4 SHOULD-1
#[test]
fn what_comes_before_the_handshake_is_complete_waits_or_is_dropped() {
    // 1-RTT packets overtake the client's last handshake packet.
    let mut puppet = client();
    puppet.flush(&[Level::Initial]);
    puppet.collect();
    for _ in 0..40 {
        // Copies of Initial packets whose keys are gone take no place away.
        puppet.send(Level::Initial, &[1; 10]);
    }
    let early = puppet.packet(Level::OneRtt, &bytes(&[stream(BI, 0, b"early", true)]));
    puppet.give(&early);
    puppet.flush(&[Level::Handshake]);
    puppet.collect();
    let readable = puppet.events.iter().any(|e| matches!(e, Event::Stream(_)));
    assert!(readable, "{:?}", puppet.events);
}
