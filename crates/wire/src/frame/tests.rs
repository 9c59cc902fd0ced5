use proptest::prelude::*;

use super::*;
use crate::{ConnectionId, Dir, Reader, ResetToken, Side, StreamId, Writer, varint};

fn encode(frame: &Frame<'_>) -> Vec<u8> {
    let mut buf = vec![0xa5; frame.encoded_len()];
    let mut w = Writer::new(&mut buf);
    frame.encode(&mut w);
    assert_eq!(w.remaining(), 0, "{frame:?} is shorter than encoded_len says");
    buf
}

fn parse(bytes: &[u8]) -> Vec<Result<Frame<'_>, FrameError>> {
    Frames::new(bytes).collect()
}

const ID: StreamId = StreamId(0x1234);

/// Every frame with its bytes as the figures of RFC 9000 §19 and RFC 9221 §4 lay them out.
fn examples() -> Vec<(Frame<'static>, Vec<u8>)> {
    let stream = |offset, fin, data| Frame::Stream(StreamFrame { id: ID, offset, fin, data });
    let cid = ConnectionId::new(&[1, 2, 3]).unwrap();
    let mut new_cid = vec![0x18, 9, 4, 3, 1, 2, 3];
    new_cid.extend([0x77; 16]);
    vec![
        (Frame::Padding { len: 3 }, vec![0; 3]),
        (Frame::Ping, vec![1]),
        (Frame::ResetStream { id: ID, code: 7, final_size: 300 }, vec![0x04, 0x52, 0x34, 7, 0x41, 0x2c]),
        (
            Frame::ResetStreamAt { id: ID, code: 7, final_size: 300, reliable_size: 300 },
            vec![0x24, 0x52, 0x34, 7, 0x41, 0x2c, 0x41, 0x2c],
        ),
        (
            Frame::ResetStreamAt { id: ID, code: 7, final_size: 300, reliable_size: 0 },
            vec![0x24, 0x52, 0x34, 7, 0x41, 0x2c, 0],
        ),
        (Frame::StopSending { id: ID, code: 7 }, vec![0x05, 0x52, 0x34, 7]),
        (Frame::Crypto { offset: 5, data: b"tls" }, vec![0x06, 5, 3, b't', b'l', b's']),
        (Frame::NewToken { token: b"tk" }, vec![0x07, 2, b't', b'k']),
        (stream(0, false, b"ab"), vec![0x0a, 0x52, 0x34, 2, b'a', b'b']),
        (stream(0, true, b""), vec![0x0b, 0x52, 0x34, 0]),
        (stream(300, false, b"c"), vec![0x0e, 0x52, 0x34, 0x41, 0x2c, 1, b'c']),
        (stream(1, true, b"c"), vec![0x0f, 0x52, 0x34, 1, 1, b'c']),
        (Frame::MaxData(300), vec![0x10, 0x41, 0x2c]),
        (Frame::MaxStreamData { id: ID, limit: 1 }, vec![0x11, 0x52, 0x34, 1]),
        (Frame::MaxStreams { dir: Dir::Bi, limit: 1 }, vec![0x12, 1]),
        (Frame::MaxStreams { dir: Dir::Uni, limit: 1 }, vec![0x13, 1]),
        (Frame::DataBlocked(300), vec![0x14, 0x41, 0x2c]),
        (Frame::StreamDataBlocked { id: ID, limit: 1 }, vec![0x15, 0x52, 0x34, 1]),
        (Frame::StreamsBlocked { dir: Dir::Bi, limit: 1 }, vec![0x16, 1]),
        (Frame::StreamsBlocked { dir: Dir::Uni, limit: 1 }, vec![0x17, 1]),
        (Frame::NewConnectionId { sequence: 9, retire_prior_to: 4, cid, reset_token: ResetToken([0x77; 16]) }, new_cid),
        (Frame::RetireConnectionId { sequence: 4 }, vec![0x19, 4]),
        (Frame::PathChallenge(*b"12345678"), b"\x1a12345678".to_vec()),
        (Frame::PathResponse(*b"12345678"), b"\x1b12345678".to_vec()),
        (Frame::ConnectionClose { error: 10, frame_type: 8, reason: b"no" }, vec![0x1c, 10, 8, 2, b'n', b'o']),
        (Frame::ApplicationClose { error: 10, reason: b"no" }, vec![0x1d, 10, 2, b'n', b'o']),
        (Frame::HandshakeDone, vec![0x1e]),
        (Frame::Datagram { data: b"hi" }, vec![0x31, 2, b'h', b'i']),
        (Frame::ImmediateAck, vec![0x1f]),
        (Frame::SourceSymbol { id: 64 }, vec![0x7f, 0xe0, 0x40, 0x40]),
        (
            Frame::Repair(RepairFrame { first: 5, count: 40, stride: 1, row: 3, data: b"xy" }),
            vec![0x7f, 0xe1, 5, 40, 1, 3, b'x', b'y'],
        ),
        (
            Frame::AckFrequency {
                sequence: 3,
                eliciting_threshold: 9,
                max_ack_delay_us: 25_000,
                reordering_threshold: 3,
            },
            vec![0x40, 0xaf, 3, 9, 0x80, 0, 0x61, 0xa8, 3],
        ),
    ]
}

#[test]
fn layout_of_every_frame() {
    for (frame, bytes) in examples() {
        assert_eq!(encode(&frame), bytes, "{frame:?}");
        assert_eq!(parse(&bytes), [Ok(frame)]);
        assert_eq!(frame.ty(), Reader::new(&bytes).varint().unwrap());
    }
}

#[test]
fn every_cut_of_every_frame_is_reported() {
    for (frame, bytes) in examples().into_iter().filter(|(frame, _)| !matches!(frame, Frame::Padding { .. })) {
        // What reaches to the end of a packet is as long as the packet.
        let open_ended = if let Frame::Repair(repair) = &frame { repair.data.len() } else { 0 };
        for cut in varint::len(frame.ty())..bytes.len() - open_ended {
            let error = FrameError { frame_type: frame.ty(), kind: FrameErrorKind::Truncated };
            assert_eq!(parse(&bytes[..cut]), [Err(error)], "{frame:?}");
        }
    }
}

#[test]
fn frames_without_a_length_reach_to_the_end() {
    let stream = |offset, fin| StreamFrame { id: StreamId(4), offset, fin, data: b"rest" };
    for (bytes, expected) in [
        (&b"\x01\x08\x04rest"[..], Frame::Stream(stream(0, false))),
        (b"\x01\x09\x04rest", Frame::Stream(stream(0, true))),
        (b"\x01\x0c\x04\x09rest", Frame::Stream(stream(9, false))),
        (b"\x01\x0d\x04\x09rest", Frame::Stream(stream(9, true))),
        (b"\x01\x30rest", Frame::Datagram { data: b"rest" }),
    ] {
        assert_eq!(parse(bytes), [Ok(Frame::Ping), Ok(expected)]);
        let mut buf = [0; 16];
        let mut w = Writer::new(&mut buf);
        w.u8(1);
        match expected {
            Frame::Stream(StreamFrame { id, offset, fin, .. }) => {
                StreamFrame::encode_header(&mut w, id, offset, fin, None);
                assert_eq!(w.position(), 1 + StreamFrame::header_len(id, offset, None));
            }
            _ => {
                encode_datagram_header(&mut w, None);
                assert_eq!(w.position(), 1 + datagram_header_len(None));
            }
        }
        w.bytes(b"rest");
        assert_eq!(w.written(), bytes);
    }
}

// RFC 9000 §12.4 MUST-5; RFC 9000 §19.3.1 MUST-1; RFC 9000 §19.6 MUST-1; RFC 9000 §19.7 MUST-1; RFC 9000 §19.8 MUST-2
// RFC 9000 §19.11 MUST-1; RFC 9000 §19.14 MUST-1; RFC 9000 §19.15 MUST-1, MUST-4
#[test]
fn refused() {
    const END: &[u8] = &[0xff; 8];
    let new_cid = |sequence, retire_prior_to, len: u8| {
        [&[0x18, sequence, retire_prior_to, len][..], &vec![3; usize::from(len) + 16]].concat()
    };
    let above_2_60 = (((1 << 60) + 1) | 0xc000_0000_0000_0000_u64).to_be_bytes();
    for (ty, what, bytes) in [
        (0x01, "frame type in two bytes", vec![0x40, 0x01]),
        (0x08, "frame type in eight bytes", vec![0xc0, 0, 0, 0, 0, 0, 0, 0x08, 1]),
        (0x40, "unknown frame type in four bytes", vec![0x80, 0, 0, 0x40]),
        (0x1f, "IMMEDIATE_ACK in two bytes", vec![0x40, 0x1f]),
        (
            0x0317_8307,
            "ACK with a receive time before the start",
            vec![0x83, 0x17, 0x83, 0x07, 5, 0, 0, 0, 1, 0, 2, 1, 2],
        ),
        (0x02, "first ACK range below zero", vec![0x02, 5, 0, 0, 6]),
        (0x02, "gap below zero", vec![0x02, 5, 0, 1, 0, 4, 0]),
        (0x02, "gap far below zero", [&[0x02, 5, 0, 1, 0], END, &[0]].concat()),
        (0x03, "later ACK range below zero", vec![0x03, 9, 0, 1, 0, 1, 7, 0, 0, 0]),
        (0x06, "handshake data beyond 2^62-1", [&[0x06], END, &[1, 0]].concat()),
        (0x07, "empty token", vec![0x07, 0]),
        (0x0e, "stream data beyond 2^62-1", [&[0x0e, 0], END, &[1, 0]].concat()),
        (0x0c, "stream data beyond 2^62-1 without a length", [&[0x0c, 0], END, &[0]].concat()),
        (0x24, "reliable size above the final size", vec![0x24, 0, 7, 0x41, 0x2c, 0x41, 0x2d]),
        (0x12, "more than 2^60 streams", [&[0x12][..], &above_2_60].concat()),
        (0x13, "more than 2^60 streams", [&[0x13][..], &above_2_60].concat()),
        (0x16, "blocked above 2^60 streams", [&[0x16][..], &above_2_60].concat()),
        (0x17, "blocked above 2^60 streams", [&[0x17][..], &above_2_60].concat()),
        (0x18, "retires what is to come", new_cid(4, 5, 8)),
        (0x18, "empty connection ID", new_cid(5, 5, 0)),
        (0x18, "connection ID of 21 bytes", new_cid(5, 5, 21)),
        (0x18, "connection ID of 64 bytes", new_cid(5, 5, 64)),
    ] {
        let frames = parse(&bytes);
        assert!(
            matches!(frames[..], [Err(FrameError { frame_type, kind: FrameErrorKind::Malformed(_) })] if frame_type == ty),
            "{what}: {frames:?}"
        );
    }
    // The same just inside the limits.
    for bytes in [
        vec![0x02, 5, 0, 0, 5],
        vec![0x02, 5, 0, 1, 0, 3, 0],
        [&[0x06], END, &[0]].concat(),
        [&[0x0e, 0], END, &[0]].concat(),
        [&[0x12][..], &(1 << 60 | 0xc000_0000_0000_0000_u64).to_be_bytes()].concat(),
        new_cid(5, 5, 20),
        new_cid(5, 0, 1),
    ] {
        assert!(matches!(parse(&bytes)[..], [Ok(_)]), "{bytes:?}");
    }
}

#[test]
fn unknown_types_end_the_packet() {
    for (bytes, ty) in [(&[0x21, 1][..], 0x21), (&[0x2f, 1], 0x2f), (&[0x32, 1], 0x32), (&[0x40, 0x40, 1], 0x40)] {
        assert_eq!(parse(bytes), [Err(FrameError { frame_type: ty, kind: FrameErrorKind::Unknown })]);
    }
    assert_eq!(parse(&[0x80, 0, 0]), [Err(FrameError { frame_type: 0, kind: FrameErrorKind::Truncated })]);
    assert_eq!(parse(&[]), []);
    assert_eq!(parse(&[1, 0x21, 1, 1]).len(), 2);
}

// RFC 9001 §8.3 MUST-1
#[test]
fn where_frames_may_be() {
    // RFC 9000 table 3: I, H, 0, 1 in this order; RFC 9221 §4 for DATAGRAM; §12.5 for what 0-RTT may not carry.
    let ack = Ack::parse(&mut Reader::new(&[1, 0, 0, 1]), false).unwrap();
    let everywhere = [true; 4];
    let handshake = [true, true, false, true];
    let data = [false, false, true, true];
    let last = [false, false, false, true];
    for frame in examples().into_iter().map(|(frame, _)| frame).chain([Frame::Ack(ack)]) {
        let expected = match frame {
            Frame::Padding { .. } | Frame::Ping | Frame::ConnectionClose { .. } => everywhere,
            Frame::Ack(_) | Frame::Crypto { .. } => handshake,
            Frame::NewToken { .. }
            | Frame::RetireConnectionId { .. }
            | Frame::PathResponse(_)
            | Frame::AckFrequency { .. }
            | Frame::ImmediateAck
            | Frame::SourceSymbol { .. }
            | Frame::Repair(_)
            | Frame::HandshakeDone => last,
            _ => data,
        };
        let kinds = [PacketKind::Initial, PacketKind::Handshake, PacketKind::ZeroRtt, PacketKind::OneRtt];
        assert_eq!(kinds.map(|kind| frame.is_permitted_in(kind)), expected, "{frame:?}");
    }
}

#[test]
fn capacity_is_the_most_that_fits() {
    for (id, offset) in [(StreamId(0), 0), (ID, 70), (StreamId::new(Side::Server, Dir::Uni, 1 << 40), 1 << 33)] {
        let mut most = None;
        for space in 0..17_000 {
            // The answer grows with the space, so that the search can continue from the last one.
            while StreamFrame::header_len(id, offset, Some(most.map_or(0, |m| m + 1))) + most.map_or(0, |m| m + 1)
                <= space
            {
                most = Some(most.map_or(0, |m| m + 1));
            }
            assert_eq!(StreamFrame::capacity(id, offset, space), most, "{space} bytes");
        }
    }
}

/// Numbers of all four lengths.
fn any_number() -> impl Strategy<Value = u64> {
    (0..=varint::MAX, 0..62u32).prop_map(|(value, shift)| value >> shift)
}

fn any_dir() -> impl Strategy<Value = Dir> {
    prop::bool::ANY.prop_map(|uni| if uni { Dir::Uni } else { Dir::Bi })
}

/// Owned parts of frames, since frames themselves only borrow.
#[derive(Clone, Debug)]
struct Parts {
    kind: usize,
    numbers: [u64; 3],
    dir: Dir,
    fin: bool,
    token: [u8; 16],
    bytes: Vec<u8>,
}

const KINDS: usize = 26;

prop_compose! {
    fn any_parts()(
        kind in 0..KINDS,
        numbers in [any_number(), any_number(), any_number()],
        dir in any_dir(),
        fin: bool,
        token: [u8; 16],
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) -> Parts {
        Parts { kind, numbers, dir, fin, token, bytes }
    }
}

impl Parts {
    fn frame(&self) -> Frame<'_> {
        let [a, b, c] = self.numbers;
        let (id, dir, data) = (StreamId(a), self.dir, &self.bytes[..]);
        let offset = b.min(varint::MAX - data.len() as u64);
        let streams = a.min(StreamId::MAX_STREAMS);
        let challenge = [self.token[0]; 8];
        match self.kind {
            0 => Frame::Padding { len: data.len() + 1 },
            1 => Frame::Ping,
            2 => Frame::ResetStream { id, code: b, final_size: c },
            3 => Frame::StopSending { id, code: b },
            4 => Frame::Crypto { offset, data },
            5 if data.is_empty() => Frame::NewToken { token: b"t" },
            5 => Frame::NewToken { token: data },
            6 | 7 => Frame::Stream(StreamFrame { id, offset, fin: self.fin, data }),
            8 => Frame::MaxData(a),
            9 => Frame::MaxStreamData { id, limit: b },
            10 => Frame::MaxStreams { dir, limit: streams },
            11 => Frame::DataBlocked(a),
            12 => Frame::StreamDataBlocked { id, limit: b },
            13 => Frame::StreamsBlocked { dir, limit: streams },
            14 => Frame::NewConnectionId {
                sequence: a.max(b),
                retire_prior_to: a.min(b),
                cid: ConnectionId::new(&self.token[..=usize::from(self.token[0] % 16)]).unwrap(),
                reset_token: ResetToken(self.token),
            },
            15 => Frame::RetireConnectionId { sequence: a },
            16 => Frame::PathChallenge(challenge),
            17 => Frame::PathResponse(challenge),
            18 => Frame::ConnectionClose { error: a, frame_type: b, reason: data },
            19 => Frame::ApplicationClose { error: a, reason: data },
            20 => Frame::HandshakeDone,
            21 => Frame::AckFrequency {
                sequence: a,
                eliciting_threshold: b,
                max_ack_delay_us: c,
                reordering_threshold: a >> 3,
            },
            22 => Frame::ImmediateAck,
            23 => Frame::SourceSymbol { id: a },
            24 => Frame::ResetStreamAt { id, code: b, final_size: c, reliable_size: b.min(c) },
            _ => Frame::Datagram { data },
        }
    }
}

proptest! {
    #[test]
    fn packets_full_of_frames_come_back(parts in prop::collection::vec(any_parts(), 1..20)) {
        let mut frames: Vec<Frame<'_>> = parts.iter().map(Parts::frame).collect();
        // Two runs of padding in a row are one.
        frames.dedup_by(|a, b| matches!((a, b), (Frame::Padding { .. }, Frame::Padding { .. })));
        let payload: Vec<u8> = frames.iter().flat_map(encode).collect();
        let mut read = Frames::new(&payload);
        let mut position = 0;
        for frame in frames {
            prop_assert_eq!(read.next(), Some(Ok(frame)));
            position += frame.encoded_len();
            prop_assert_eq!(read.position(), position);
        }
        prop_assert_eq!(read.next(), None);
    }
}
