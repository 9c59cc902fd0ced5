//! Streams reset after a reliable size, between two of our endpoints (draft-ietf-quic-reliable-stream-reset).

use bytes::Bytes;
use wire::{Dir, Frame, Frames, Side, StreamId, TransportParameters, Writer};

use super::pair::Pair;
use crate::{
    sent::SentFrame,
    streams::{Order, ReadError, ResetAtError, StreamEvent, Streams, StreamsConfig, WriteError},
};

fn config() -> StreamsConfig {
    StreamsConfig { reset_stream_at: true, ..StreamsConfig::default() }
}

fn pair() -> Pair {
    Pair::same(&config())
}

fn numbers(n: usize) -> Bytes {
    (0..n).map(|i| (i % 251) as u8).collect::<Vec<_>>().into()
}

fn events(end: &mut Streams) -> Vec<StreamEvent> {
    std::iter::from_fn(|| end.poll_event()).collect()
}

/// Bytes that an application reads until there is nothing more, and what it is told then.
fn read_all(end: &mut Streams, id: StreamId, order: Order) -> (Vec<u8>, ReadError) {
    while end.accept(id.dir()).is_some() {}
    let mut all = Vec::new();
    loop {
        match end.read(id, usize::MAX, order) {
            Ok(Some(chunk)) => all.extend_from_slice(&chunk.data),
            Ok(None) => panic!("a clean end"),
            Err(error) => return (all, error),
        }
    }
}

/// Final size and reliable size of the only frame of a packet.
fn sizes(pair: &Pair, index: usize) -> (u64, u64) {
    let frames: Vec<_> = Frames::new(&pair.packets[0][index].payload).map(Result::unwrap).collect();
    let [Frame::ResetStreamAt { final_size, reliable_size, .. }] = frames[..] else { panic!("{frames:?}") };
    (final_size, reliable_size)
}

fn stream(id: StreamId, offset: u64, len: u16) -> SentFrame {
    SentFrame::Stream { id, offset, len, fin: false }
}

fn reset_at(id: StreamId, reliable_size: u64) -> SentFrame {
    SentFrame::ResetStreamAt { id, reliable_size }
}

/// Nothing is left of the streams of either end, and both count alike.
fn assert_over(pair: &Pair) {
    for end in &pair.ends {
        let figures = end.figures();
        assert_eq!((figures.live_streams, figures.send_buffered_bytes, figures.receive_buffered_bytes), (0, 0, 0));
        assert_eq!(end.window.consumed(), end.received, "all credit is given back");
    }
    assert_eq!(pair.ends[0].credit.used, pair.ends[1].received);
}

/// §5 MUST: data below the reliable size is repeated; SHOULD NOT: other data is not.
#[test]
fn lost_data_is_repeated_below_the_reliable_size_only() {
    let mut pair = pair();
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    pair.ends[0].write(id, &mut numbers(10_000)).unwrap();
    let sent: Vec<_> = (0..4).map(|_| pair.send(0, 1002).unwrap()).collect();
    pair.ends[0].reset_at(id, 77, 1500).unwrap();
    let figures = pair.ends[0].figures();
    assert_eq!((figures.send_buffered_bytes, figures.send_unsent_bytes), (1500, 0), "the rest is gone at once");
    let reset = pair.send(0, 1200).unwrap();
    assert_eq!(sizes(&pair, reset), (3994, 1500));
    sent.into_iter().for_each(|i| pair.lose(0, i));
    let again = pair.send(0, 2000).unwrap();
    assert_eq!(pair.packets[0][again].frames, [stream(id, 0, 1500)]);
    assert!(!pair.ends[0].wants_to_send());
    // The reset comes first: there is nothing to tell before the data.
    pair.deliver(0, reset).unwrap();
    assert_eq!(events(&mut pair.ends[1]), [StreamEvent::Opened { dir: Dir::Uni }]);
    assert_eq!(pair.ends[1].read(id, 10, Order::Ordered), Err(ReadError::Blocked));
    pair.deliver(0, again).unwrap();
    assert_eq!(events(&mut pair.ends[1]), [StreamEvent::Readable { id }]);
    assert_eq!(read_all(&mut pair.ends[1], id, Order::Ordered), (numbers(1500).to_vec(), ReadError::Reset(77)));
    [reset, again].into_iter().for_each(|i| pair.ack(0, i));
    assert_over(&pair);
}

/// §4 MUST NOT: the final size stays within the limits of the peer, so data goes before the frame.
#[test]
fn the_frame_waits_for_data_that_flow_control_holds_back() {
    let peer = StreamsConfig { receive_window_stream: 1000, receive_window_max: 1000, ..config() };
    let mut pair = Pair::new(&config(), &peer);
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    pair.ends[0].write(id, &mut numbers(5000)).unwrap();
    pair.ends[0].reset_at(id, 7, 2500).unwrap();
    assert_eq!(pair.ends[0].figures().send_unsent_bytes, 2500);
    pair.exchange();
    assert_eq!(pair.ends[0].figures().sent_bytes, 1000);
    let frames = |pair: &Pair| pair.packets[0].iter().flat_map(|packet| packet.frames.clone()).collect::<Vec<_>>();
    assert!(!frames(&pair).contains(&reset_at(id, 2500)));
    let mut all = Vec::new();
    for step in 0.. {
        let (data, then) = read_all(&mut pair.ends[1], id, Order::Ordered);
        all.extend(data);
        if then == ReadError::Reset(7) {
            break;
        }
        assert!(then == ReadError::Blocked && step < 10);
        pair.exchange();
    }
    assert_eq!(all, numbers(2500));
    let last = pair.packets[0].iter().position(|packet| packet.frames.contains(&reset_at(id, 2500))).unwrap();
    assert_eq!(sizes(&pair, last), (2500, 2500));
    assert_over(&pair);
}

/// §5.3: "Data Recvd" when both the frame and the data were acknowledged, in either order.
#[test]
fn the_sending_part_is_over_when_data_and_reset_have_arrived() {
    for data_first in [true, false] {
        let mut pair = pair();
        let id = pair.ends[0].open(Dir::Uni).unwrap();
        pair.ends[0].write(id, &mut numbers(3000)).unwrap();
        let data: Vec<_> = (0..3).map(|_| pair.send(0, 1002).unwrap()).collect();
        pair.ends[0].reset_at(id, 1, 1500).unwrap();
        let reset = pair.send(0, 1200).unwrap();
        for i in [data[0], data[1], data[2], reset] {
            pair.deliver(0, i).unwrap();
        }
        // The last packet lies behind the reliable size.
        let order = if data_first { [data[0], data[1], reset] } else { [reset, data[1], data[0]] };
        for (n, i) in order.into_iter().enumerate() {
            assert_eq!(events(&mut pair.ends[0]), [], "{n}");
            assert_eq!(pair.ends[0].figures().live_streams, 1);
            pair.ack(0, i);
        }
        assert_eq!(events(&mut pair.ends[0]), [StreamEvent::Finished { id }]);
        assert_eq!(pair.ends[0].figures().live_streams, 0);
        pair.ack(0, data[2]);
        assert_eq!(read_all(&mut pair.ends[1], id, Order::Ordered).0, numbers(1500));
        assert_over(&pair);
    }
}

/// §4 MUST, §5.2 MUST, MUST NOT: the frame with the smallest reliable size is repeated until it has arrived, and none is larger.
#[test]
fn the_reliable_size_falls_and_never_rises() {
    let mut pair = pair();
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    pair.ends[0].write(id, &mut numbers(3000)).unwrap();
    let data = pair.send(0, 4000).unwrap();
    assert_eq!(pair.ends[0].reset_at(id, 5, 3001), Err(ResetAtError::TooLarge { limit: 3000 }));
    pair.ends[0].reset_at(id, 5, 2000).unwrap();
    let first = pair.send(0, 1200).unwrap();
    assert_eq!(pair.ends[0].reset_at(id, 5, 2001), Err(ResetAtError::TooLarge { limit: 2000 }));
    pair.ends[0].reset_at(id, 5, 2000).unwrap();
    assert!(!pair.ends[0].wants_to_send(), "the same says nothing new");
    // The code of the first one stays.
    pair.ends[0].reset_at(id, 6, 800).unwrap();
    let second = pair.send(0, 1200).unwrap();
    assert_eq!((sizes(&pair, first), sizes(&pair, second)), ((3000, 2000), (3000, 800)));
    pair.lose(0, first);
    assert!(!pair.ends[0].wants_to_send(), "another has taken its place");
    pair.lose(0, second);
    let third = pair.send(0, 1200).unwrap();
    assert_eq!(pair.packets[0][third].payload, pair.packets[0][second].payload);
    pair.lose(0, data);
    let again = pair.send(0, 1200).unwrap();
    assert_eq!(pair.packets[0][again].frames, [stream(id, 0, 800)]);
    // All of them arrive, in the worst order; the larger size does not count.
    for i in [third, first, data, second, again] {
        pair.deliver(0, i).unwrap();
    }
    [first, again].into_iter().for_each(|i| pair.ack(0, i));
    assert_eq!(events(&mut pair.ends[0]), [], "the first frame is not the one that counts");
    pair.ack(0, third);
    assert_eq!(events(&mut pair.ends[0]), [StreamEvent::Finished { id }]);
    assert_eq!(read_all(&mut pair.ends[1], id, Order::Ordered), (numbers(800).to_vec(), ReadError::Reset(5)));
    assert_over(&pair);
}

/// §5.2: RESET_STREAM is as a reliable size of 0, with the same code and final size.
#[test]
fn reset_stream_takes_the_rest_back() {
    for early in [true, false] {
        let mut pair = pair();
        let id = pair.ends[0].open(Dir::Uni).unwrap();
        pair.ends[0].write(id, &mut numbers(3000)).unwrap();
        let data = pair.send(0, 1002).unwrap();
        pair.ends[0].reset_at(id, 5, if early { 2000 } else { 500 }).unwrap();
        let first = (!early).then(|| pair.send(0, 1200).unwrap());
        if early {
            pair.ends[0].reset(id, 9).unwrap();
        } else {
            pair.ends[0].reset_at(id, 9, 0).unwrap();
        }
        assert_eq!(pair.ends[0].figures().send_buffered_bytes, 0);
        let reset = pair.send(0, 1200).unwrap();
        let frames: Vec<_> = Frames::new(&pair.packets[0][reset].payload).map(Result::unwrap).collect();
        assert_eq!(frames, [Frame::ResetStream { id, code: 5, final_size: 1000 }]);
        pair.lose(0, data);
        first.into_iter().for_each(|i| pair.lose(0, i));
        assert!(!pair.ends[0].wants_to_send());
        // RFC 9000 §3.2: data that was not read vanishes.
        for i in [first, Some(data), Some(reset), first].into_iter().flatten() {
            pair.deliver(0, i).unwrap();
        }
        assert_eq!(read_all(&mut pair.ends[1], id, Order::Ordered), (vec![], ReadError::Reset(5)));
        assert_eq!(pair.ends[0].reset_at(id, 5, 1), Err(ResetAtError::Closed));
        pair.ack(0, reset);
        assert_eq!(events(&mut pair.ends[0]), []);
        assert_over(&pair);
    }
}

/// §5.4 SHOULD: STOP_SENDING is answered with RESET_STREAM; §5.2 MUST NOT: its code stays.
#[test]
fn stop_sending_is_answered_with_reset_stream() {
    let mut pair = pair();
    let id = pair.ends[0].open(Dir::Bi).unwrap();
    pair.ends[0].write(id, &mut numbers(3000)).unwrap();
    let lost = pair.send(0, 1002).unwrap();
    let data = pair.send(0, 1002).unwrap();
    pair.deliver(0, data).unwrap();
    assert_eq!(pair.ends[1].accept(Dir::Bi), Some(id));
    pair.ends[1].stop_sending(id, 8).unwrap();
    pair.ends[0].reset_at(id, 5, 1500).unwrap();
    let reset = pair.send(0, 1200).unwrap();
    let stop = pair.send(1, 1200).unwrap();
    pair.deliver(1, stop).unwrap();
    assert_eq!(events(&mut pair.ends[0]), [StreamEvent::Stopped { id, code: 8 }]);
    assert_eq!(pair.ends[0].reset_at(id, 5, 100), Err(ResetAtError::Stopped(8)));
    pair.lose(0, lost);
    let answer = pair.send(0, 1200).unwrap();
    let frames: Vec<_> = Frames::new(&pair.packets[0][answer].payload).map(Result::unwrap).collect();
    assert_eq!(frames, [Frame::ResetStream { id, code: 5, final_size: 1998 }]);
    assert!(!pair.ends[0].wants_to_send(), "no data any more");
    for i in [answer, reset] {
        pair.deliver(0, i).unwrap();
        pair.ack(0, i);
    }
    pair.ends[1].finish(id).unwrap();
    pair.exchange();
    assert_eq!(pair.ends[0].read(id, 1, Order::Ordered), Ok(None));
    assert_over(&pair);
}

/// §5.1: RESET_STREAM_AT may follow the end of the stream, and may arrive before it.
#[test]
fn after_the_end_of_the_stream() {
    for fin_arrives in [Some(true), Some(false), None] {
        let mut pair = pair();
        let id = pair.ends[0].open(Dir::Uni).unwrap();
        pair.ends[0].write(id, &mut numbers(3000)).unwrap();
        pair.ends[0].finish(id).unwrap();
        let first = pair.send(0, 1002).unwrap();
        let last = pair.send(0, 3000).unwrap();
        assert!(matches!(pair.packets[0][last].frames[..], [SentFrame::Stream { fin: true, .. }]));
        pair.ends[0].reset_at(id, 4, 1200).unwrap();
        let reset = pair.send(0, 1200).unwrap();
        assert_eq!(sizes(&pair, reset), (3000, 1200));
        pair.lose(0, last);
        let again = pair.send(0, 3000).unwrap();
        assert_eq!(pair.packets[0][again].frames, [stream(id, 1000, 200)], "without the end");
        let order = match fin_arrives {
            Some(true) => vec![last, reset, first],
            Some(false) => vec![reset, again, first, last],
            None => vec![first, reset, again],
        };
        for i in order {
            pair.deliver(0, i).unwrap();
        }
        assert_eq!(read_all(&mut pair.ends[1], id, Order::Ordered), (numbers(1200).to_vec(), ReadError::Reset(4)));
        pair.deliver(0, again).unwrap();
        [first, again, reset].into_iter().for_each(|i| pair.ack(0, i));
        assert_over(&pair);
    }
    // Announced and never sent: the end of the stream moves to what is left of it.
    let mut pair = pair();
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    pair.ends[0].write(id, &mut numbers(3000)).unwrap();
    pair.ends[0].finish(id).unwrap();
    pair.ends[0].reset_at(id, 4, 100).unwrap();
    pair.exchange();
    assert_eq!(pair.ends[1].received, 100);
    assert_eq!(read_all(&mut pair.ends[1], id, Order::Ordered), (numbers(100).to_vec(), ReadError::Reset(4)));
    assert_over(&pair);
}

#[test]
fn what_is_left_out_needs_no_memory() {
    let mut pair = pair();
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    let big = Bytes::from(vec![1; 100_000]);
    pair.ends[0].write(id, &mut big.clone()).unwrap();
    pair.ends[0].reset_at(id, 1, 8).unwrap();
    assert!(big.is_unique(), "the buffer is released at once");
    assert_eq!(pair.ends[0].write(id, &mut numbers(1)), Err(WriteError::Closed));
    assert_eq!(pair.ends[0].finish(id), Err(WriteError::Closed));
    // Others can write what this one gave back.
    let config = StreamsConfig { send_buffer: 4000, send_buffer_max: 4000, ..config() };
    let mut pair = Pair::same(&config);
    let [a, b] = [0, 1].map(|_| pair.ends[0].open(Dir::Uni).unwrap());
    while pair.ends[0].write(a, &mut numbers(4000)).is_ok() {}
    while pair.ends[0].write(b, &mut numbers(4000)).is_ok() {}
    pair.ends[0].reset_at(a, 1, 8).unwrap();
    assert_eq!(events(&mut pair.ends[0]), [StreamEvent::Writable { id: b }]);
    assert!(pair.ends[0].write(b, &mut numbers(4000)).unwrap() > 1000);
}

/// §3: the remembered parameter permits the frame in early data.
#[test]
fn refused_early_data_goes_out_again_up_to_the_reliable_size() {
    let parameters = |reset_stream_at| TransportParameters {
        initial_max_data: 10_000,
        initial_max_stream_data_uni: 5000,
        initial_max_streams_uni: 3,
        reset_stream_at,
        ..TransportParameters::default()
    };
    for still_supported in [true, false] {
        let mut client = Streams::new(Side::Client, &config());
        client.set_peer_parameters(&parameters(true)).unwrap();
        let id = client.open(Dir::Uni).unwrap();
        client.write(id, &mut numbers(2000)).unwrap();
        let mut buf = vec![0; 9000];
        let mut write = |client: &mut Streams| {
            let mut sent = Vec::new();
            client.write_frames(&mut Writer::new(&mut buf), &mut |frame| sent.push(frame));
            sent
        };
        assert_eq!(write(&mut client), [stream(id, 0, 2000)]);
        client.reset_at(id, 9, 1200).unwrap();
        assert_eq!(write(&mut client), [reset_at(id, 1200)]);
        client.on_zero_rtt_rejected();
        assert!(!client.wants_to_send());
        assert_eq!(client.reset_at(id, 9, 1100), Err(ResetAtError::Unsupported), "nothing is known");
        client.set_peer_parameters(&parameters(still_supported)).unwrap();
        client.release(client.slab.slots().next().unwrap());
        if still_supported {
            assert_eq!(write(&mut client), [stream(id, 0, 1200)]);
            assert_eq!(write(&mut client), [reset_at(id, 1200)]);
        } else {
            assert_eq!(write(&mut client), [SentFrame::ResetStream(id)]);
            assert_eq!(client.figures().send_buffered_bytes, 0);
        }
        assert_eq!(write(&mut client), []);
    }
}

/// §3: the frame is for a peer that has sent the parameter.
#[test]
fn a_peer_that_does_not_accept_it_gets_none() {
    let mut pair = Pair::new(&config(), &StreamsConfig::default());
    let id = pair.ends[0].open(Dir::Bi).unwrap();
    pair.ends[0].write(id, &mut numbers(100)).unwrap();
    assert_eq!(pair.ends[0].reset_at(id, 1, 50), Err(ResetAtError::Unsupported));
    pair.exchange();
    assert_eq!(pair.ends[1].accept(Dir::Bi), Some(id));
    // The other direction is another agreement.
    pair.ends[1].write(id, &mut numbers(100)).unwrap();
    pair.ends[1].reset_at(id, 2, 50).unwrap();
    pair.exchange();
    assert_eq!(read_all(&mut pair.ends[0], id, Order::Ordered), (numbers(50).to_vec(), ReadError::Reset(2)));
    assert_eq!(pair.ends[1].reset_at(StreamId(400), 2, 50), Err(ResetAtError::Unknown));
}
