//! RESET_STREAM_AT frames of any peer: data read, credit, errors (draft-ietf-quic-reliable-stream-reset).

use bytes::Bytes;
use wire::{Dir, Side, StreamId, frame_type};

use crate::{
    error::{Code, TransportError},
    streams::{Awaited, Order, ReadError, StreamEvent, Streams, StreamsConfig},
};

const ID: StreamId = StreamId(2);

fn receiver() -> Streams {
    let config = StreamsConfig {
        receive_window_stream: 1000,
        receive_window_connection: 2500,
        receive_window_max: 2500,
        reset_stream_at: true,
        ..StreamsConfig::default()
    };
    let mut streams = Streams::new(Side::Server, &config);
    streams.next_buffer(2000, 2000);
    streams
}

/// Gives the receiver the bytes `from..to`.
fn give(s: &mut Streams, from: u64, to: u64) -> Result<(), TransportError> {
    s.on_stream(ID, from, (from..to).map(|i| i as u8).collect::<Vec<_>>().into(), false)
}

fn read_all(s: &mut Streams, order: Order) -> (Vec<(u64, Bytes)>, ReadError) {
    // A stream stays until the application knows of it.
    s.accept(Dir::Uni);
    let mut all = Vec::new();
    loop {
        match s.read(ID, usize::MAX, order) {
            Ok(Some(chunk)) => {
                assert!((chunk.offset..).zip(&chunk.data).all(|(at, byte)| *byte == at as u8));
                all.push((chunk.offset, chunk.data));
            }
            Ok(None) => panic!("a clean end"),
            Err(error) => return (all, error),
        }
    }
}

fn bytes_of(chunks: &[(u64, Bytes)]) -> usize {
    chunks.iter().map(|(_, data)| data.len()).sum()
}

/// Nothing is held, all credit is back, and each byte that came is in one column.
fn assert_settled(s: &Streams, came: u64, read: u64) {
    let figures = s.figures();
    assert_eq!((figures.live_streams, figures.receive_buffered_bytes, s.holdings.holes), (0, 0, 0));
    assert_eq!((s.holdings.bytes, s.holdings.heap() as u64), (0, s.holdings.memory()), "no buffer is pinned");
    assert_eq!(s.window.consumed(), s.received, "all credit is given back");
    assert_eq!(figures.delivered_bytes, read);
    assert_eq!(figures.delivered_bytes + figures.duplicate_bytes + figures.unwanted_bytes, came);
}

/// §5: data below the reliable size is read, in any order of data and frame.
#[test]
fn any_order_of_data_and_reset() {
    // The frame comes before the packet with this number; each packet has 100 bytes.
    for place in 0..=6 {
        for order in [Order::Ordered, Order::Unordered] {
            for reversed in [false, true] {
                let mut s = receiver();
                let packets: [u64; 6] = if reversed { [5, 4, 3, 2, 1, 0] } else { [0, 1, 2, 3, 4, 5] };
                for (n, packet) in packets.into_iter().enumerate() {
                    if n == place {
                        s.on_reset_stream_at(ID, 7, 900, 250).unwrap();
                    }
                    give(&mut s, packet * 100, packet * 100 + 100).unwrap();
                }
                if place == 6 {
                    s.on_reset_stream_at(ID, 7, 900, 250).unwrap();
                }
                assert_eq!(s.received, 900, "§4: the final size counts against the limits");
                assert_eq!(s.holdings.bytes, 250, "the rest is thrown away at once");
                assert_eq!(s.window.consumed(), 650, "and its credit is given back");
                let (chunks, then) = read_all(&mut s, order);
                assert_eq!((bytes_of(&chunks), then), (250, ReadError::Reset(7)), "{place} {order:?} {reversed}");
                assert_settled(&s, 600, 250);
                assert_eq!((s.figures().duplicate_bytes, s.figures().unwanted_bytes), (0, 350));
            }
        }
    }
}

/// The application has read behind the reliable size before the frame came.
#[test]
fn what_was_read_before_counts_once() {
    for order in [Order::Ordered, Order::Unordered] {
        let mut s = receiver();
        give(&mut s, 0, 300).unwrap();
        assert_eq!(bytes_of(&read_all(&mut s, order).0), 300);
        give(&mut s, 400, 500).unwrap();
        let unordered = bytes_of(&read_all(&mut s, order).0) as u64;
        assert_eq!(unordered, if order == Order::Unordered { 100 } else { 0 });
        s.on_reset_stream_at(ID, 7, 1000, 200).unwrap();
        assert_eq!((s.holdings.bytes, s.window.consumed()), (0, 1000));
        give(&mut s, 300, 400).unwrap();
        let (chunks, then) = read_all(&mut s, order);
        assert_eq!((bytes_of(&chunks), then), (0, ReadError::Reset(7)));
        assert_settled(&s, 500, 300 + unordered);
    }
}

/// §5.2 MUST: a smaller reliable size counts; MUST: a larger one is ignored.
#[test]
fn the_smallest_reliable_size_counts() {
    let mut s = receiver();
    give(&mut s, 100, 600).unwrap();
    s.on_reset_stream_at(ID, 7, 900, 500).unwrap();
    assert_eq!((s.holdings.bytes, s.window.consumed()), (400, 400));
    s.on_reset_stream_at(ID, 7, 900, 700).unwrap();
    assert_eq!((s.holdings.bytes, s.window.consumed()), (400, 400));
    s.on_reset_stream_at(ID, 7, 900, 300).unwrap();
    assert_eq!((s.holdings.bytes, s.window.consumed()), (200, 600));
    give(&mut s, 0, 900).unwrap();
    let (chunks, then) = read_all(&mut s, Order::Ordered);
    assert_eq!((bytes_of(&chunks), then), (300, ReadError::Reset(7)));
    assert_settled(&s, 500 + 900, 300);
    assert_eq!(s.figures().duplicate_bytes, 200, "what came again below the reliable size");
    // A stream whose reader waited for data is told when it need not wait any more: §5.2 MUST NOT expect it.
    let mut s = receiver();
    give(&mut s, 0, 100).unwrap();
    s.on_reset_stream_at(ID, 7, 900, 500).unwrap();
    assert_eq!(read_all(&mut s, Order::Ordered).1, ReadError::Blocked);
    while s.poll_event().is_some() {}
    assert_eq!(s.awaited(0), Awaited::Rest);
    s.on_reset_stream_at(ID, 7, 900, 100).unwrap();
    assert_eq!(s.awaited(0), Awaited::Nothing);
    assert_eq!(s.poll_event(), Some(StreamEvent::Readable { id: ID }));
    assert_eq!(read_all(&mut s, Order::Ordered).1, ReadError::Reset(7));
    assert_settled(&s, 100, 100);
}

/// §5.2: RESET_STREAM is as a reliable size of zero, before and after.
#[test]
fn reset_stream_and_reset_stream_at() {
    for first in [true, false] {
        let mut s = receiver();
        give(&mut s, 0, 400).unwrap();
        if first {
            s.on_reset_stream(ID, 7, 900).unwrap();
        }
        s.on_reset_stream_at(ID, 7, 900, 300).unwrap();
        if !first {
            s.on_reset_stream(ID, 7, 900).unwrap();
        }
        assert_eq!((s.holdings.bytes, s.window.consumed()), (0, 900));
        assert_eq!(read_all(&mut s, Order::Ordered), (vec![], ReadError::Reset(7)));
        assert_settled(&s, 400, 0);
    }
    // A reliable size of zero is valid (§5).
    let mut s = receiver();
    s.on_reset_stream_at(ID, 7, 0, 0).unwrap();
    assert_eq!(read_all(&mut s, Order::Ordered), (vec![], ReadError::Reset(7)));
    assert_settled(&s, 0, 0);
}

/// RFC 9000 §3.2: once all data has arrived with its end, the reset may be ignored.
#[test]
fn a_reset_behind_all_data_is_ignored() {
    let mut s = receiver();
    give(&mut s, 0, 300).unwrap();
    s.on_stream(ID, 300, Bytes::new(), true).unwrap();
    s.on_reset_stream_at(ID, 7, 300, 100).unwrap();
    s.accept(Dir::Uni);
    assert_eq!(s.read(ID, 1000, Order::Ordered).unwrap().unwrap().data.len(), 300);
    assert_eq!(s.read(ID, 1000, Order::Ordered), Ok(None));
    assert_settled(&s, 300, 300);
}

/// The application gives up the part that still comes: the peer need not be told, because it sends no more than that.
#[test]
fn a_reader_that_stops_gets_all_credit_back() {
    let mut s = receiver();
    give(&mut s, 100, 400).unwrap();
    s.on_reset_stream_at(ID, 7, 900, 300).unwrap();
    s.accept(Dir::Uni);
    s.stop_sending(ID, 1).unwrap();
    assert_eq!(s.stop_sending(ID, 1), Err(ReadError::Unknown));
    give(&mut s, 0, 100).unwrap();
    assert_settled(&s, 400, 0);
    let mut sent = Vec::new();
    s.write_frames(&mut wire::Writer::new(&mut [0; 100]), &mut |frame| sent.push(frame));
    assert!(!sent.contains(&crate::sent::SentFrame::StopSending(ID)), "{sent:?}");
    // Stopped before: the frame only tells the final size.
    let mut s = receiver();
    give(&mut s, 0, 100).unwrap();
    s.accept(Dir::Uni);
    s.stop_sending(ID, 1).unwrap();
    s.on_reset_stream_at(ID, 7, 900, 300).unwrap();
    give(&mut s, 100, 300).unwrap();
    assert_settled(&s, 300, 0);
}

#[test]
fn what_peers_may_not_do() {
    type Frames = fn(&mut Streams) -> Result<(), TransportError>;
    let faults: [(&str, Code, u64, Frames); 12] = [
        ("§5.2 MUST: another code", Code::STREAM_STATE_ERROR, frame_type::RESET_STREAM_AT, |s| {
            s.on_reset_stream_at(ID, 7, 500, 200)?;
            s.on_reset_stream_at(ID, 8, 500, 100)
        }),
        (
            "another code beside a size that would be ignored",
            Code::STREAM_STATE_ERROR,
            frame_type::RESET_STREAM_AT,
            |s| {
                s.on_reset_stream_at(ID, 7, 500, 200)?;
                s.on_reset_stream_at(ID, 8, 500, 300)
            },
        ),
        ("another code of RESET_STREAM", Code::STREAM_STATE_ERROR, frame_type::RESET_STREAM, |s| {
            s.on_reset_stream_at(ID, 7, 500, 0)?;
            s.on_reset_stream(ID, 8, 500)
        }),
        ("another code after RESET_STREAM", Code::STREAM_STATE_ERROR, frame_type::RESET_STREAM_AT, |s| {
            s.on_reset_stream(ID, 7, 500)?;
            s.on_reset_stream_at(ID, 8, 500, 0)
        }),
        ("§5.2 MUST: another final size", Code::FINAL_SIZE_ERROR, frame_type::RESET_STREAM_AT, |s| {
            s.on_reset_stream_at(ID, 7, 500, 200)?;
            s.on_reset_stream_at(ID, 7, 501, 200)
        }),
        ("another final size of RESET_STREAM", Code::FINAL_SIZE_ERROR, frame_type::RESET_STREAM, |s| {
            s.on_reset_stream_at(ID, 7, 500, 200)?;
            s.on_reset_stream(ID, 7, 499)
        }),
        ("another final size of the end", Code::FINAL_SIZE_ERROR, frame_type::STREAM, |s| {
            s.on_reset_stream_at(ID, 7, 500, 200)?;
            s.on_stream(ID, 100, Bytes::from_static(&[0; 100]), true)
        }),
        ("another final size after the end", Code::FINAL_SIZE_ERROR, frame_type::RESET_STREAM_AT, |s| {
            s.on_stream(ID, 100, Bytes::from_static(&[0; 100]), true)?;
            s.on_reset_stream_at(ID, 7, 500, 200)
        }),
        ("a final size below data that came", Code::FINAL_SIZE_ERROR, frame_type::RESET_STREAM_AT, |s| {
            give(s, 100, 300)?;
            s.on_reset_stream_at(ID, 7, 299, 200)
        }),
        ("data behind the final size", Code::FINAL_SIZE_ERROR, frame_type::STREAM, |s| {
            s.on_reset_stream_at(ID, 7, 500, 200)?;
            give(s, 450, 501)
        }),
        (
            "§4 MUST: a final size above the stream's limit",
            Code::FLOW_CONTROL_ERROR,
            frame_type::RESET_STREAM_AT,
            |s| s.on_reset_stream_at(ID, 7, 1001, 0),
        ),
        ("§4 MUST: a final size above the connection's", Code::FLOW_CONTROL_ERROR, frame_type::RESET_STREAM_AT, |s| {
            for index in 1..3 {
                s.on_stream(StreamId::new(Side::Client, Dir::Uni, index), 0, Bytes::from_static(&[0; 1000]), false)?;
            }
            s.on_reset_stream_at(ID, 7, 501, 0)
        }),
    ];
    for (what, code, frame, frames) in faults {
        let error = frames(&mut receiver()).expect_err(what);
        assert_eq!((error.code, error.frame_type), (code, frame), "{what}");
    }
    // RFC 9000 does not name an error for another code in a second RESET_STREAM.
    let mut s = receiver();
    s.on_reset_stream(ID, 7, 500).unwrap();
    s.on_reset_stream(ID, 8, 500).unwrap();
    assert_eq!(read_all(&mut s, Order::Ordered).1, ReadError::Reset(7));
}

/// §3: without the parameter the frame is not supported, whatever it says.
#[test]
fn the_frame_is_refused_where_it_was_not_advertised() {
    let mut s = Streams::new(Side::Server, &StreamsConfig::default());
    let error = s.on_reset_stream_at(ID, 0, 0, 0).unwrap_err();
    assert_eq!((error.code, error.frame_type), (Code::PROTOCOL_VIOLATION, frame_type::RESET_STREAM_AT));
    let mut s = receiver();
    for (id, code) in [(StreamId(3), Code::STREAM_STATE_ERROR), (StreamId(402), Code::STREAM_LIMIT_ERROR)] {
        assert_eq!(s.on_reset_stream_at(id, 0, 0, 0).unwrap_err().code, code);
    }
}
