//! Frames of a peer that violates the protocol, and of a peer that conforms to it with hostile intent.

use bytes::Bytes;
use wire::{Dir, Side, StreamId, TransportParameters};

use super::pair::Pair;
use crate::{
    error::{Code, TransportError},
    streams::{Order, ReadError, StreamEvent, Streams, StreamsConfig},
};

fn config() -> StreamsConfig {
    StreamsConfig {
        receive_window_stream: 1000,
        receive_window_connection: 2500,
        receive_window_max: 2500,
        max_streams_bidi: 4,
        max_streams_uni: 4,
        ..StreamsConfig::default()
    }
}

/// A server, which a client without manners will talk to.
fn victim() -> Streams {
    let mut streams = Streams::new(Side::Server, &config());
    streams
        .set_peer_parameters(&TransportParameters {
            initial_max_data: 5000,
            initial_max_stream_data_bidi_local: 1000,
            initial_max_stream_data_bidi_remote: 1000,
            initial_max_stream_data_uni: 1000,
            initial_max_streams_bidi: 2,
            initial_max_streams_uni: 2,
            ..TransportParameters::default()
        })
        .unwrap();
    streams
}

fn bi(index: u64) -> StreamId {
    StreamId::new(Side::Client, Dir::Bi, index)
}

fn uni(index: u64) -> StreamId {
    StreamId::new(Side::Client, Dir::Uni, index)
}

fn zeros(n: usize) -> Bytes {
    vec![0; n].into()
}

fn code<T: std::fmt::Debug>(result: Result<T, TransportError>) -> Code {
    let error = result.unwrap_err();
    assert_ne!(error.frame_type, 0, "{error} names its frame");
    error.code
}

#[test]
fn data_beyond_the_stream_limit() {
    let mut s = victim();
    s.on_stream(bi(0), 0, zeros(1000), false).unwrap();
    assert_eq!(code(s.on_stream(bi(0), 1000, zeros(1), false)), Code::FLOW_CONTROL_ERROR);
    let mut s = victim();
    assert_eq!(code(s.on_stream(bi(0), 1000, zeros(1), false)), Code::FLOW_CONTROL_ERROR);
    let mut s = victim();
    assert_eq!(code(s.on_stream(bi(0), wire::varint::MAX, zeros(1), false)), Code::FLOW_CONTROL_ERROR);
    assert_eq!(code(s.on_stream(bi(0), u64::MAX, zeros(1), true)), Code::FLOW_CONTROL_ERROR);
    assert_eq!(code(s.on_reset_stream(bi(0), 0, 1001)), Code::FLOW_CONTROL_ERROR);
}

// RFC 9000 §4.5 MUST-1
#[test]
fn data_beyond_the_connection_limit_counts_highest_offsets() {
    let mut s = victim();
    // One byte at the end of the window uses all of it.
    s.on_stream(bi(0), 999, zeros(1), false).unwrap();
    s.on_stream(bi(1), 999, zeros(1), false).unwrap();
    s.on_stream(bi(0), 0, zeros(1000), false).unwrap();
    s.on_stream(bi(2), 400, zeros(100), false).unwrap();
    assert_eq!(code(s.on_stream(bi(3), 0, zeros(1), false)), Code::FLOW_CONTROL_ERROR);
    let mut s = victim();
    s.on_stream(bi(0), 999, zeros(1), false).unwrap();
    s.on_stream(bi(1), 999, zeros(1), false).unwrap();
    assert_eq!(code(s.on_reset_stream(bi(2), 0, 501)), Code::FLOW_CONTROL_ERROR);
}

/// RFC 9000 §3.5: data of a stream that was stopped still counts, and its credit is given back.
#[test]
fn a_stopped_stream_stays_within_limits() {
    let mut s = victim();
    s.on_stream(bi(0), 0, zeros(500), false).unwrap();
    s.stop_sending(bi(0), 7).unwrap();
    s.on_stream(bi(0), 500, zeros(500), false).unwrap();
    assert_eq!(s.figures().receive_buffered_bytes, 0);
    assert_eq!(s.window.consumed(), 1000);
    assert_eq!(code(s.on_stream(bi(0), 1000, zeros(1), false)), Code::FLOW_CONTROL_ERROR);
}

#[test]
fn final_sizes_do_not_change() {
    let with_end = || {
        let mut s = victim();
        s.on_stream(bi(0), 10, zeros(10), true).unwrap();
        s
    };
    assert_eq!(code(with_end().on_stream(bi(0), 20, zeros(1), false)), Code::FINAL_SIZE_ERROR);
    assert_eq!(code(with_end().on_stream(bi(0), 0, zeros(5), true)), Code::FINAL_SIZE_ERROR);
    assert_eq!(code(with_end().on_stream(bi(0), 21, zeros(0), true)), Code::FINAL_SIZE_ERROR);
    assert_eq!(code(with_end().on_reset_stream(bi(0), 0, 19)), Code::FINAL_SIZE_ERROR);
    assert_eq!(code(with_end().on_reset_stream(bi(0), 0, 21)), Code::FINAL_SIZE_ERROR);
    with_end().on_reset_stream(bi(0), 0, 20).unwrap();
    with_end().on_stream(bi(0), 20, zeros(0), true).unwrap();

    let mut s = victim();
    s.on_stream(bi(0), 0, zeros(10), false).unwrap();
    assert_eq!(code(s.on_stream(bi(0), 0, zeros(9), true)), Code::FINAL_SIZE_ERROR, "an end before data received");
    assert_eq!(code(s.on_reset_stream(bi(0), 0, 9)), Code::FINAL_SIZE_ERROR);
    s.on_reset_stream(bi(0), 0, 12).unwrap();
    assert_eq!(code(s.on_stream(bi(0), 12, zeros(1), false)), Code::FINAL_SIZE_ERROR, "data after the reset");
    assert_eq!(code(s.on_reset_stream(bi(0), 0, 13)), Code::FINAL_SIZE_ERROR);
    s.on_stream(bi(0), 3, zeros(9), true).unwrap();
    assert_eq!(s.read(bi(0), 100, Order::Ordered), Err(ReadError::Reset(0)));
}

#[test]
fn streams_beyond_the_limit() {
    assert_eq!(code(victim().on_stream(bi(4), 0, zeros(1), false)), Code::STREAM_LIMIT_ERROR);
    assert_eq!(code(victim().on_stream(uni(4), 0, zeros(1), false)), Code::STREAM_LIMIT_ERROR);
    assert_eq!(code(victim().on_reset_stream(bi(1 << 59), 0, 0)), Code::STREAM_LIMIT_ERROR);
    assert_eq!(code(victim().on_stop_sending(bi(4), 0)), Code::STREAM_LIMIT_ERROR);
    assert_eq!(code(victim().on_max_stream_data(bi(4), 0)), Code::STREAM_LIMIT_ERROR);
    assert_eq!(code(victim().on_stream_data_blocked(uni(4), 0)), Code::STREAM_LIMIT_ERROR);
    let mut s = victim();
    s.on_stream(bi(3), 0, zeros(1), false).unwrap();
    assert_eq!(s.figures().live_streams, 4, "the lower ones are open, too");
    assert_eq!(s.poll_event(), Some(StreamEvent::Opened { dir: Dir::Bi }));
    assert_eq!(s.poll_event(), Some(StreamEvent::Readable { id: bi(3) }));
    assert_eq!(s.poll_event(), None);
}

#[test]
fn frames_for_parts_and_streams_that_do_not_exist() {
    let state = Code::STREAM_STATE_ERROR;
    let ours_bi = StreamId::new(Side::Server, Dir::Bi, 0);
    let ours_uni = StreamId::new(Side::Server, Dir::Uni, 0);
    for open in [false, true] {
        let with = |f: &dyn Fn(&mut Streams) -> Result<(), TransportError>| {
            let mut s = victim();
            if open {
                assert_eq!(s.open(Dir::Uni), Some(ours_uni));
            }
            f(&mut s)
        };
        assert_eq!(code(with(&|s| s.on_stream(ours_uni, 0, zeros(1), false))), state);
        assert_eq!(code(with(&|s| s.on_reset_stream(ours_uni, 0, 0))), state);
        assert_eq!(code(with(&|s| s.on_stream_data_blocked(ours_uni, 0))), state);
        assert_eq!(with(&|s| s.on_stop_sending(ours_uni, 0)).is_ok(), open);
        assert_eq!(with(&|s| s.on_max_stream_data(ours_uni, 0)).is_ok(), open);
    }
    assert_eq!(code(victim().on_stream(ours_bi, 0, zeros(1), false)), state);
    assert_eq!(code(victim().on_stop_sending(ours_bi, 0)), state);
    assert_eq!(code(victim().on_max_stream_data(ours_bi, 9)), state);
    assert_eq!(code(victim().on_max_stream_data(uni(0), 9)), state);
    assert_eq!(code(victim().on_stop_sending(uni(0), 9)), state);
    assert_eq!(code(victim().on_max_streams(Dir::Bi, (1 << 60) + 1)), Code::FRAME_ENCODING_ERROR);
    victim().on_max_streams(Dir::Bi, 1 << 60).unwrap();
}

// RFC 9000 §4.1 MUST-2; RFC 9000 §13.3 MUST-2
#[test]
fn limits_that_shrink_are_ignored() {
    let mut s = victim();
    s.on_max_streams(Dir::Uni, 1).unwrap();
    s.on_max_data(10);
    let id = s.open(Dir::Uni).unwrap();
    assert!(s.open(Dir::Uni).is_some());
    assert!(s.open(Dir::Uni).is_none());
    s.on_max_stream_data(id, 5).unwrap();
    assert_eq!(s.write(id, &mut zeros(900)), Ok(900));
    let mut buf = [0; 1200];
    let mut w = wire::Writer::new(&mut buf);
    s.write_frames(&mut w, &mut |_| {});
    assert_eq!(s.figures().sent_bytes, 900);
    s.on_max_streams(Dir::Uni, 2).unwrap();
    assert_eq!(s.poll_event(), None);
}

/// After a stream has ended, late and repeated frames for it change nothing.
#[test]
fn late_frames_for_closed_streams() {
    let mut s = victim();
    s.on_stream(uni(0), 0, zeros(10), true).unwrap();
    assert_eq!(s.accept(Dir::Uni), Some(uni(0)));
    assert_eq!(s.read(uni(0), 100, Order::Ordered).unwrap().unwrap().data.len(), 10);
    assert_eq!(s.read(uni(0), 100, Order::Ordered), Ok(None));
    assert_eq!(s.read(uni(0), 100, Order::Ordered), Err(ReadError::Unknown));
    assert_eq!(s.figures().live_streams, 0);
    s.on_stream(uni(0), 0, zeros(10), true).unwrap();
    s.on_reset_stream(uni(0), 1, 10).unwrap();
    s.on_stream_data_blocked(uni(0), 5).unwrap();
    assert_eq!(s.figures().live_streams, 0);
    assert_eq!(s.received, 10);
}

/// Single bytes with a hole after each: refused before it becomes expensive, within flow control that permits it.
// RFC 9000 §21.7 SHOULD-1
#[test]
fn a_flood_of_holes_ends_the_connection() {
    let config = StreamsConfig { max_streams_uni: 1000, ..StreamsConfig::default() };
    let mut s = Streams::new(Side::Server, &config);
    let mut refused = None;
    for i in 0..200_000u64 {
        // Over many streams, because a limit for each would be none.
        if let Err(error) = s.on_stream(uni(i % 100), 1 + i / 100 * 2, Bytes::from_static(b"x"), false) {
            refused = Some(error);
            break;
        }
    }
    assert_eq!(refused.unwrap().code, Code::INTERNAL_ERROR);
    let overhead = s.figures().overhead_bytes;
    assert!(overhead < 4 << 20, "{overhead} bytes for what is at most 8192 bytes of data");
}

/// A small slice pins the buffer of a whole batch of packets: few are held.
#[test]
fn small_fragments_do_not_pin_large_buffers() {
    const BUFFER: usize = 65_536;
    const SLACK: usize = 4;
    for (len, streams) in [(20, 4), (1200, 8)] {
        let mut s = Streams::new(Side::Server, &StreamsConfig::default());
        s.set_slack((SLACK * BUFFER) as u64);
        let mut buffers = Vec::new();
        for i in 0..400u64 {
            let buffer = Bytes::from(vec![i as u8; BUFFER]);
            s.next_buffer(BUFFER, len);
            s.on_stream(uni(i % streams), i / streams * len as u64, buffer.slice(100..100 + len), false).unwrap();
            buffers.push(buffer);
        }
        let pinned = buffers.iter().filter(|buffer| !buffer.is_unique()).count();
        assert!((1..=SLACK + 1).contains(&pinned), "{pinned} buffers are pinned");
        assert!(s.received_memory() < (BUFFER * (SLACK + 1) + 400 * 2 * len + 100_000) as u64);
    }
}

/// Opening and ending streams as fast as frames come leaves no more behind than the limit of streams.
#[test]
fn streams_that_nobody_accepts_are_bounded() {
    let mut pair = Pair::same(&StreamsConfig::default());
    let mut opened = 0;
    while let Some(id) = pair.ends[0].open(Dir::Uni) {
        pair.ends[0].reset(id, 1).unwrap();
        opened += 1;
        pair.exchange();
    }
    assert_eq!(opened, 100, "no credit comes back for what the application has not seen");
    assert_eq!(pair.ends[1].figures().live_streams, 100);
    let mut accepted = 0;
    while let Some(id) = pair.ends[1].accept(Dir::Uni) {
        assert_eq!(pair.ends[1].read(id, 1, Order::Ordered), Err(ReadError::Reset(1)));
        accepted += 1;
    }
    pair.exchange();
    assert_eq!((accepted, pair.ends[1].figures().live_streams), (100, 0));
    assert!(pair.ends[0].open(Dir::Uni).is_some());
    // What a connection does that falls quiet.
    pair.ends[1].shrink();
    assert!(pair.ends[1].figures().overhead_bytes < 4096, "{:?}", pair.ends[1].figures());
}
