//! Two state machines face to face, and peers that break rules: each is told what it did, and none makes the other keep more
//! than it allows.

use bytes::Bytes;
use proptest::prelude::*;
use tiderace_qmux::{Closed, Config, Event, Mux, Refused, parameters::Parameters, record};
use transport::Code;
use units::{Duration, Instant};
use wire::{Dir, Frame, Side, StreamFrame, StreamId, Writer, varint};

const PARAMETERS: u64 = 0x3f51_5330_0d0a_0d0a;
const PING: u64 = 0x348c_6752_9ef8_c7bd;

fn at(milliseconds: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(milliseconds)
}

fn small() -> Config {
    Config {
        window: 4_000,
        stream_window: 1_000,
        streams_bidi: 4,
        streams_uni: 2,
        datagram_queue: 2_000,
        ..Config::default()
    }
}

fn pair(config: &Config) -> (Mux, Mux) {
    let mut client = Mux::new(Side::Client, at(0), config.clone());
    let mut server = Mux::new(Side::Server, at(0), config.clone());
    exchange(&mut client, &mut server);
    (client, server)
}

/// Carries all there is between two ends; gives the bytes.
fn exchange(one: &mut Mux, other: &mut Mux) -> usize {
    let mut carried = 0;
    loop {
        let mut out = Vec::new();
        let sent = one.poll_transmit(at(0), &mut out);
        other.handle_bytes(at(0), &out);
        let mut back = Vec::new();
        let sent_back = other.poll_transmit(at(0), &mut back);
        one.handle_bytes(at(0), &back);
        carried += out.len() + back.len();
        if !sent && !sent_back {
            return carried;
        }
    }
}

fn read(mux: &mut Mux, id: StreamId) -> Vec<u8> {
    let mut all = Vec::new();
    while let Ok(Some(data)) = mux.read(id, 300) {
        if data.is_empty() {
            break;
        }
        all.extend_from_slice(&data);
    }
    all
}

#[test]
fn streams_carry_more_than_their_windows_and_end() {
    let (mut client, mut server) = pair(&small());
    let ids: Vec<_> = std::iter::from_fn(|| client.open(Dir::Bi)).collect();
    assert_eq!(ids.len(), 4, "as many as are allowed");
    let sent: Vec<Vec<u8>> =
        (0..4_u8).map(|n| (0..20_000_u32).map(|i| (i as u8).wrapping_mul(n + 1)).collect()).collect();
    let mut rest: Vec<Bytes> = sent.iter().cloned().map(Bytes::from).collect();
    let mut got = vec![Vec::new(); 4];
    let mut ended = [false; 4];
    for _ in 0..1_000 {
        for (id, rest) in ids.iter().zip(&mut rest) {
            if !rest.is_empty() {
                client.write(*id, rest).unwrap();
                if rest.is_empty() {
                    client.finish(*id).unwrap();
                }
            }
        }
        exchange(&mut client, &mut server);
        assert!(server.kept() <= 4_000 + 2_000, "{} bytes are kept", server.kept());
        while server.accept(Dir::Bi).is_some() {}
        for ((id, got), ended) in ids.iter().zip(&mut got).zip(&mut ended) {
            got.extend(read(&mut server, *id));
            *ended |= matches!(server.read(*id, 1), Ok(None) | Err(Refused::StreamClosed));
        }
    }
    assert_eq!(got, sent);
    assert_eq!(ended, [true; 4]);
    assert!(client.open(Dir::Bi).is_none(), "the server has not ended its half");
    for id in &ids {
        server.finish(*id).unwrap();
    }
    exchange(&mut client, &mut server);
    for id in &ids {
        assert_eq!(client.read(*id, 1), Ok(None));
    }
    exchange(&mut client, &mut server);
    assert_eq!(std::iter::from_fn(|| client.open(Dir::Bi)).count(), 4, "others may come");
}

#[test]
fn resets_stops_datagrams_pings_and_closes() {
    let (mut client, mut server) = pair(&small());
    let id = client.open(Dir::Bi).unwrap();
    client.write(id, &mut Bytes::from_static(b"abc")).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(server.accept(Dir::Bi), Some(id));
    client.reset(id, 7).unwrap();
    server.stop(id, 9);
    exchange(&mut client, &mut server);
    assert_eq!(server.finish(id), Ok(()));
    assert_eq!(client.write(id, &mut Bytes::from_static(b"x")), Err(Refused::StreamClosed));
    let other = client.open(Dir::Bi).unwrap();
    client.write(other, &mut Bytes::from_static(b"abc")).unwrap();
    exchange(&mut client, &mut server);
    server.stop(other, 9);
    exchange(&mut client, &mut server);
    assert_eq!(client.write(other, &mut Bytes::from_static(b"x")), Err(Refused::Stopped(9)));
    client.send_datagram(Bytes::from_static(b"ping")).unwrap();
    client.ping();
    exchange(&mut client, &mut server);
    assert_eq!(server.recv_datagram(), Some(Bytes::from_static(b"ping")));
    assert_eq!(client.send_datagram(Bytes::from(vec![0; 20_000])), Err(Refused::Datagram));
    server.close(42, "enough");
    exchange(&mut server, &mut client);
    let closed = Closed::Application { code: 42, reason: "enough".to_owned() };
    assert_eq!(client.closed(), Some(&closed));
    assert!(client.is_finished() && server.is_finished());
    assert_eq!(client.open(Dir::Bi), None);
    let mut last = None;
    while let Some(event) = client.poll_event() {
        last = Some(event);
    }
    assert_eq!(last, Some(Event::Closed(closed)));
}

#[test]
fn silence_ends_a_connection_unless_it_is_kept_alive() {
    let idle = Config { idle_timeout: Duration::from_millis(100), ..small() };
    let (mut client, _) = pair(&idle);
    assert_eq!(client.poll_timeout(), Some(at(100)));
    client.handle_timeout(at(99));
    assert_eq!(client.closed(), None);
    client.handle_timeout(at(100));
    assert_eq!(client.closed(), Some(&Closed::Idle));
    assert!(!client.poll_transmit(at(100), &mut Vec::new()), "nothing is said");
    let (mut client, mut server) = pair(&Config { keep_alive: Some(Duration::from_millis(40)), ..idle });
    for turn in 1..10 {
        client.handle_timeout(at(turn * 40));
        let (mut out, mut back) = (Vec::new(), Vec::new());
        assert!(client.poll_transmit(at(turn * 40), &mut out));
        server.handle_bytes(at(turn * 40), &out);
        server.handle_timeout(at(turn * 40));
        assert!(server.poll_transmit(at(turn * 40), &mut back));
        client.handle_bytes(at(turn * 40), &back);
    }
    assert_eq!((client.closed(), server.closed()), (None, None));
}

fn record(frames: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    record::push(&mut out, frames);
    out
}

fn greeting() -> Vec<u8> {
    let (mut parameters, mut frame) = (Vec::new(), Vec::new());
    let declared = Parameters { initial_max_data: 1_000, streams_bidi: 4, streams_uni: 4, ..Parameters::default() };
    declared.encode(&mut parameters);
    varint::push(&mut frame, PARAMETERS);
    varint::push(&mut frame, parameters.len() as u64);
    frame.extend(parameters);
    frame
}

fn frame(frame: Frame<'_>) -> Vec<u8> {
    let mut buffer = vec![0; 20_000];
    let mut w = Writer::new(&mut buffer);
    frame.encode(&mut w);
    w.written().to_vec()
}

fn ping(number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint::push(&mut out, PING);
    varint::push(&mut out, number);
    out
}

fn stream(id: u64, offset: u64, len: usize, fin: bool) -> Vec<u8> {
    let data = vec![0; len];
    frame(Frame::Stream(StreamFrame { id: StreamId(id), offset, fin, data: &data }))
}

/// Feeds bytes to a server; returns the code that it reports to the peer.
fn fault(bytes: &[u8]) -> Option<Code> {
    let mut server = Mux::new(Side::Server, at(0), small());
    server.handle_bytes(at(0), bytes);
    let code = match server.closed() {
        Some(Closed::Fault(error)) => error.code,
        None => return None,
        Some(other) => panic!("{other}"),
    };
    let mut out = Vec::new();
    while server.poll_transmit(at(0), &mut out) {}
    let mut client = Mux::new(Side::Client, at(0), small());
    client.handle_bytes(at(0), &out);
    assert!(matches!(client.closed(), Some(Closed::Peer { code: told, .. }) if *told == code), "{:?}", client.closed());
    assert!(server.is_finished());
    Some(code)
}

#[test]
fn each_fault_has_its_code() {
    let after = |frames: &[Vec<u8>]| {
        let mut bytes = record(&greeting());
        frames.iter().for_each(|frames| bytes.extend(record(frames)));
        fault(&bytes)
    };
    let mut huge = Vec::new();
    varint::push(&mut huge, 16_383);
    // Client's streams are 0, 4, 8, 12 and 2, 6; the server's begin with 1 and 3.
    let cases: Vec<(&str, Option<Code>, Code)> = vec![
        ("no parameters", fault(&record(&stream(0, 0, 1, false))), Code::PROTOCOL_VIOLATION),
        ("parameters twice", after(&[greeting()]), Code::PROTOCOL_VIOLATION),
        (
            "parameters twice in one record",
            fault(&record(&[greeting(), greeting()].concat())),
            Code::PROTOCOL_VIOLATION,
        ),
        ("an empty record", after(&[vec![]]), Code::PROTOCOL_VIOLATION),
        ("a record too large", fault(&huge), Code::FRAME_ENCODING_ERROR),
        ("a frame cut off", after(&[vec![0x04, 0]]), Code::FRAME_ENCODING_ERROR),
        ("a type cut off", after(&[vec![0xff]]), Code::FRAME_ENCODING_ERROR),
        ("a frame that is not known", after(&[vec![0x40, 0x50]]), Code::FRAME_ENCODING_ERROR),
        ("PING", after(&[frame(Frame::Ping)]), Code::FRAME_ENCODING_ERROR),
        ("ACK", after(&[vec![2, 0, 0, 0, 0]]), Code::FRAME_ENCODING_ERROR),
        ("CRYPTO", after(&[frame(Frame::Crypto { offset: 0, data: b"x" })]), Code::FRAME_ENCODING_ERROR),
        ("NEW_TOKEN", after(&[frame(Frame::NewToken { token: b"x" })]), Code::FRAME_ENCODING_ERROR),
        (
            "RETIRE_CONNECTION_ID",
            after(&[frame(Frame::RetireConnectionId { sequence: 0 })]),
            Code::FRAME_ENCODING_ERROR,
        ),
        ("PATH_CHALLENGE", after(&[frame(Frame::PathChallenge([0; 8]))]), Code::FRAME_ENCODING_ERROR),
        ("PATH_RESPONSE", after(&[frame(Frame::PathResponse([0; 8]))]), Code::FRAME_ENCODING_ERROR),
        ("HANDSHAKE_DONE", after(&[frame(Frame::HandshakeDone)]), Code::FRAME_ENCODING_ERROR),
        ("a gap", after(&[stream(0, 0, 5, false), stream(0, 6, 1, false)]), Code::PROTOCOL_VIOLATION),
        ("again", after(&[stream(0, 0, 5, false), stream(0, 0, 5, false)]), Code::PROTOCOL_VIOLATION),
        ("beyond the stream", after(&[stream(0, 0, 1_001, false)]), Code::FLOW_CONTROL_ERROR),
        (
            "beyond the connection",
            after(&[0, 4, 8, 12, 2].map(|id| stream(id, 0, 900, false))),
            Code::FLOW_CONTROL_ERROR,
        ),
        ("after the end", after(&[stream(0, 0, 5, true), stream(0, 5, 1, false)]), Code::FINAL_SIZE_ERROR),
        (
            "a shorter end",
            after(&[stream(0, 0, 5, false), frame(Frame::ResetStream { id: StreamId(0), code: 1, final_size: 4 })]),
            Code::FINAL_SIZE_ERROR,
        ),
        (
            "an end too far",
            after(&[frame(Frame::ResetStream { id: StreamId(0), code: 1, final_size: 1_001 })]),
            Code::FLOW_CONTROL_ERROR,
        ),
        ("a stream too many", after(&[stream(16, 0, 1, false)]), Code::STREAM_LIMIT_ERROR),
        ("a stream far too many", after(&[stream(1 << 40, 0, 1, false)]), Code::STREAM_LIMIT_ERROR),
        ("not opened", after(&[stream(1, 0, 1, false)]), Code::STREAM_STATE_ERROR),
        ("one of ours", after(&[stream(3, 0, 1, false)]), Code::STREAM_STATE_ERROR),
        (
            "stops what it sends",
            after(&[frame(Frame::StopSending { id: StreamId(2), code: 0 })]),
            Code::STREAM_STATE_ERROR,
        ),
        (
            "raises what it sends",
            after(&[frame(Frame::MaxStreamData { id: StreamId(2), limit: 9 })]),
            Code::STREAM_STATE_ERROR,
        ),
        ("pings that stand", after(&[ping(1), ping(1)]), Code::PROTOCOL_VIOLATION),
        (
            "an answer to nothing",
            after(&[{
                let mut pong = Vec::new();
                varint::push(&mut pong, PING + 1);
                varint::push(&mut pong, 0);
                pong
            }]),
            Code::PROTOCOL_VIOLATION,
        ),
        ("frames for nothing", after(&vec![frame(Frame::DataBlocked(1)); 10_001]), Code::PROTOCOL_VIOLATION),
        ("pings for nothing", after(&(0..10_001).map(ping).collect::<Vec<_>>()), Code::PROTOCOL_VIOLATION),
        ("padding for nothing", after(&vec![vec![0, 0x14, 0]; 5_001]), Code::PROTOCOL_VIOLATION),
    ];
    for (what, got, expected) in cases {
        assert_eq!(got, Some(expected), "{what}");
    }
    assert_eq!(after(&vec![frame(Frame::DataBlocked(1)); 9_000]), None);
    let silent = Config { datagram_queue: 0, ..small() };
    let mut server = Mux::new(Side::Server, at(0), silent);
    server.handle_bytes(at(0), &record(&greeting()));
    server.handle_bytes(at(0), &record(&frame(Frame::Datagram { data: b"x" })));
    assert!(matches!(server.closed(), Some(Closed::Fault(error)) if error.code == Code::PROTOCOL_VIOLATION));
}

#[test]
fn what_is_kept_is_bounded() {
    let mut server = Mux::new(Side::Server, at(0), small());
    server.handle_bytes(at(0), &record(&greeting()));
    for _ in 0..1_000 {
        server.handle_bytes(at(0), &record(&frame(Frame::Datagram { data: &[0; 900] })));
        assert!(server.kept() <= 2_000);
    }
    // A record that never ends.
    let mut start = Vec::new();
    varint::push(&mut start, 16_382);
    server.handle_bytes(at(0), &start);
    server.handle_bytes(at(0), &vec![0; 10_000]);
    assert!(server.kept() <= 2_000 + 16_390);
    assert_eq!(server.closed(), None);
}

proptest! {
    /// Any input in any pieces: no panic, and the memory held has its bound.
    #[test]
    fn noise_is_survived(
        frames in prop::collection::vec(
            (0_u64..0x40, any::<[u8; 12]>(), 0_usize..12),
            0..40,
        ),
        pieces in prop::collection::vec(1_usize..50, 0..40),
    ) {
        let mut bytes = record(&greeting());
        for (ty, rest, len) in frames {
            let mut frame = Vec::new();
            varint::push(&mut frame, ty);
            frame.extend(&rest[..len]);
            bytes.extend(record(&frame));
        }
        let mut server = Mux::new(Side::Server, at(0), small());
        let mut rest = &bytes[..];
        for piece in pieces.into_iter().chain(std::iter::repeat(usize::MAX)) {
            let (now, later) = rest.split_at(piece.min(rest.len()));
            server.handle_bytes(at(0), now);
            prop_assert!(server.kept() <= 4_000 + 2_000 + 16_390);
            let mut out = Vec::new();
            while server.poll_transmit(at(0), &mut out) {}
            while server.poll_event().is_some() {}
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
    }
}
