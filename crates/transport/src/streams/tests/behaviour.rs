//! Behaviour that applications rely on: ends, resets, priorities, fairness, memory, early data.

use bytes::Bytes;
use wire::{Dir, Side, StreamId, TransportParameters, Writer};

use super::pair::Pair;
use crate::{
    error::Code,
    sent::SentFrame,
    streams::{Order, Priority, ReadError, StreamEvent, Streams, StreamsConfig, WriteError},
};

fn zeros(n: usize) -> Bytes {
    vec![0; n].into()
}

fn pair() -> Pair {
    Pair::same(&StreamsConfig::default())
}

fn events(end: &mut Streams) -> Vec<StreamEvent> {
    std::iter::from_fn(|| end.poll_event()).collect()
}

fn read_all(end: &mut Streams, id: StreamId) -> (Vec<u8>, Result<(), ReadError>) {
    let mut all = Vec::new();
    loop {
        match end.read(id, usize::MAX, Order::Ordered) {
            Ok(Some(chunk)) => all.extend_from_slice(&chunk.data),
            Ok(None) => return (all, Ok(())),
            Err(error) => return (all, Err(error)),
        }
    }
}

/// Streams of the data frames of the next packets.
fn next_streams(pair: &mut Pair, from: usize, packets: usize) -> Vec<u64> {
    let mut order = Vec::new();
    for _ in 0..packets {
        let Some(i) = pair.send(from, 1200) else { break };
        for frame in &pair.packets[from][i].frames {
            if let SentFrame::Stream { id, .. } = frame {
                order.push(id.index());
            }
        }
    }
    order
}

#[test]
fn a_stream_without_data_ends() {
    let mut pair = pair();
    let id = pair.ends[0].open(Dir::Bi).unwrap();
    pair.ends[0].finish(id).unwrap();
    assert_eq!(pair.ends[0].finish(id), Err(WriteError::Closed));
    pair.exchange();
    assert_eq!(events(&mut pair.ends[0]), [StreamEvent::Finished { id }]);
    assert_eq!(events(&mut pair.ends[1]), [StreamEvent::Opened { dir: Dir::Bi }, StreamEvent::Readable { id }]);
    assert_eq!(pair.ends[1].accept(Dir::Bi), Some(id));
    assert_eq!(read_all(&mut pair.ends[1], id), (vec![], Ok(())));
    pair.ends[1].finish(id).unwrap();
    pair.exchange();
    assert_eq!(read_all(&mut pair.ends[0], id), (vec![], Ok(())));
    assert_eq!([0, 1].map(|i| pair.ends[i].figures().live_streams), [0, 0]);
}

#[test]
fn an_end_after_all_data_was_sent_goes_alone() {
    let mut pair = pair();
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    pair.ends[0].write(id, &mut zeros(10)).unwrap();
    pair.exchange();
    assert!(!pair.ends[0].wants_to_send());
    pair.ends[0].finish(id).unwrap();
    assert!(pair.ends[0].wants_to_send() && pair.ends[0].wants_to_send_data());
    let i = pair.send(0, 100).unwrap();
    assert_eq!(pair.packets[0][i].frames, [SentFrame::Stream { id, offset: 10, len: 0, fin: true }]);
    assert_eq!(pair.packets[0][i].payload.len(), 4, "type, stream, offset, no data");
    // It is lost, comes again, and the first arrives after all.
    pair.lose(0, i);
    let again = pair.send(0, 100).unwrap();
    assert_eq!(pair.packets[0][again].frames, pair.packets[0][i].frames);
    pair.deliver(0, i).unwrap();
    pair.ack(0, i);
    assert_eq!(events(&mut pair.ends[0]), [StreamEvent::Finished { id }]);
    pair.lose(0, again);
    assert!(!pair.ends[0].wants_to_send());
}

#[test]
fn a_frame_that_fills_the_packet_has_no_length() {
    let mut pair = pair();
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    pair.ends[0].write(id, &mut zeros(5000)).unwrap();
    for (size, len) in [(1452, 1450), (1452, 1448), (300, 296)] {
        let i = pair.send(0, size).unwrap();
        assert_eq!(pair.packets[0][i].payload.len(), size);
        assert!(matches!(pair.packets[0][i].frames[..], [SentFrame::Stream { len: l, .. }] if l == len));
        pair.deliver(0, i).unwrap();
    }
    // With a few bytes to spare, the data has to share the packet with its length, or leave some for the next.
    let left = 5000 - 1450 - 1448 - 296;
    for spare in 0..4 {
        let mut s = Streams::new(Side::Client, &StreamsConfig::default());
        s.set_peer_parameters(&TransportParameters {
            initial_max_data: 10_000,
            initial_max_stream_data_uni: 10_000,
            initial_max_streams_uni: 1,
            ..TransportParameters::default()
        })
        .unwrap();
        let id = s.open(Dir::Uni).unwrap();
        s.write(id, &mut zeros(left)).unwrap();
        s.finish(id).unwrap();
        let mut sent = Vec::new();
        let mut buf = vec![0; 2 + left + spare];
        let mut w = Writer::new(&mut buf);
        s.write_frames(&mut w, &mut |frame| sent.push(frame));
        let frames: Vec<_> = wire::Frames::new(w.written()).map(Result::unwrap).collect();
        let wire::Frame::Stream(frame) = frames[0] else { panic!("{frames:?}") };
        assert_eq!(frames.len(), 1);
        assert_eq!(frame.data.len(), if spare == 1 { left - 1 } else { left });
        assert_eq!(frame.fin, spare != 1);
    }
}

// RFC 9000 §3.3 MUST NOT-1, MUST NOT-2; RFC 9000 §13.3 MUST NOT-1
#[test]
fn unsent_data_vanishes_on_reset() {
    let mut pair = pair();
    let id = pair.ends[0].open(Dir::Bi).unwrap();
    let big = Bytes::from(vec![1; 100_000]);
    pair.ends[0].write(id, &mut big.clone()).unwrap();
    let first = pair.send(0, 1200).unwrap();
    pair.ends[0].reset(id, 77).unwrap();
    assert!(big.is_unique(), "the buffer is released at once");
    assert_eq!(pair.ends[0].figures().send_buffered_bytes, 0);
    pair.lose(0, first);
    let i = pair.send(0, 1200).unwrap();
    assert_eq!(pair.packets[0][i].frames, [SentFrame::ResetStream(id)]);
    assert!(!pair.ends[0].wants_to_send());
    // The frame stays the same when it is repeated, and stops when it has arrived.
    pair.lose(0, i);
    let again = pair.send(0, 1200).unwrap();
    assert_eq!(pair.packets[0][again].payload, pair.packets[0][i].payload);
    pair.deliver(0, again).unwrap();
    pair.ack(0, again);
    assert_eq!(pair.ends[1].accept(Dir::Bi), Some(id));
    assert_eq!(read_all(&mut pair.ends[1], id), (vec![], Err(ReadError::Reset(77))));
    assert_eq!(pair.ends[0].write(id, &mut zeros(1)), Err(WriteError::Closed));
    assert_eq!(pair.ends[0].credit.used, pair.ends[1].received);
}

#[test]
fn reset_after_finish() {
    let mut pair = pair();
    // Before anything was sent: the peer learns of no data at all.
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    pair.ends[0].write(id, &mut zeros(10)).unwrap();
    pair.ends[0].finish(id).unwrap();
    pair.ends[0].reset(id, 1).unwrap();
    pair.exchange();
    assert_eq!(read_all(&mut pair.ends[1], id), (vec![], Err(ReadError::Reset(1))));
    // After the end was received: all data was there, so it may be read.
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    pair.ends[0].write(id, &mut zeros(10)).unwrap();
    pair.ends[0].finish(id).unwrap();
    let i = pair.send(0, 1200).unwrap();
    pair.deliver(0, i).unwrap();
    pair.ends[0].reset(id, 1).unwrap();
    pair.exchange();
    assert_eq!(read_all(&mut pair.ends[1], id), (vec![0; 10], Ok(())));
    while pair.ends[1].accept(Dir::Uni).is_some() {}
    assert_eq!(pair.ends[0].figures().live_streams, 0);
}

// RFC 9000 §3.5 SHOULD-1, MUST-1, SHOULD-3; RFC 9000 §4.4 MUST-1
#[test]
fn stop_sending_resets_and_tells() {
    let mut pair = pair();
    let id = pair.ends[0].open(Dir::Bi).unwrap();
    pair.ends[0].write(id, &mut zeros(1000)).unwrap();
    pair.exchange();
    assert_eq!(pair.ends[1].accept(Dir::Bi), Some(id));
    pair.ends[1].stop_sending(id, 5).unwrap();
    assert_eq!(pair.ends[1].stop_sending(id, 5), Err(ReadError::Closed));
    assert_eq!(pair.ends[1].read(id, 10, Order::Ordered), Err(ReadError::Closed));
    pair.exchange();
    assert_eq!(events(&mut pair.ends[0]), [StreamEvent::Stopped { id, code: 5 }]);
    assert_eq!(pair.ends[0].write(id, &mut zeros(1)), Err(WriteError::Stopped(5)));
    assert_eq!(pair.ends[0].finish(id), Err(WriteError::Stopped(5)));
    // The other direction is alive.
    pair.ends[1].write(id, &mut Bytes::from_static(b"still")).unwrap();
    pair.ends[1].finish(id).unwrap();
    pair.exchange();
    assert_eq!(read_all(&mut pair.ends[0], id), (b"still".to_vec(), Ok(())));
    assert_eq!([0, 1].map(|i| pair.ends[i].figures().live_streams), [0, 0]);
}

// RFC 9000 §2.3 SHOULD-1
/// RFC 9218 §10 RECOMMENDED-1
#[test]
fn urgency_comes_first_and_can_change_until_sent() {
    let mut pair = pair();
    let ids: Vec<_> = (0..3).map(|_| pair.ends[0].open(Dir::Uni).unwrap()).collect();
    for id in &ids {
        pair.ends[0].write(*id, &mut zeros(3000)).unwrap();
    }
    pair.ends[0].set_priority(ids[2], Priority { urgency: 1, incremental: false }).unwrap();
    assert_eq!(next_streams(&mut pair, 0, 1), [2]);
    pair.ends[0].set_priority(ids[1], Priority { urgency: 0, incremental: true }).unwrap();
    assert_eq!(next_streams(&mut pair, 0, 1), [1]);
    pair.ends[0].set_priority(ids[1], Priority { urgency: 255, incremental: true }).unwrap();
    assert_eq!(next_streams(&mut pair, 0, 20), [2, 2, 0, 0, 0, 0, 1, 1]);
}

/// RFC 9218 §10 RECOMMENDED-2, SHOULD-1, SHOULD-2
#[test]
fn non_incremental_streams_follow_each_other_incremental_ones_share() {
    let mut pair = pair();
    let ids: Vec<_> = (0..5).map(|_| pair.ends[0].open(Dir::Uni).unwrap()).collect();
    // In the wrong order, to see that stream IDs count.
    for id in ids.iter().rev() {
        pair.ends[0].set_priority(*id, Priority { urgency: 3, incremental: id.index() >= 3 }).unwrap();
        pair.ends[0].write(*id, &mut zeros(60_000)).unwrap();
    }
    let order = next_streams(&mut pair, 0, 100);
    let share = |stream| order.iter().filter(|s| **s == stream).count();
    assert!(share(0) > 45, "the first non-incremental stream has half of the turns: {order:?}");
    assert_eq!((share(1) > 0, share(2)), (share(0) >= 51, 0));
    assert!(share(3).abs_diff(share(4)) <= 8 && share(3) > 15, "{order:?}");
}

// RFC 9000 §13.3 SHOULD-2
#[test]
fn lost_data_goes_before_new_data() {
    let mut pair = pair();
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    pair.ends[0].write(id, &mut zeros(10_000)).unwrap();
    let packets: Vec<_> = (0..3).map(|_| pair.send(0, 1200).unwrap()).collect();
    pair.lose(0, packets[1]);
    let i = pair.send(0, 600).unwrap();
    let SentFrame::Stream { offset: lost, .. } = pair.packets[0][packets[1]].frames[0] else { unreachable!() };
    assert!(matches!(pair.packets[0][i].frames[..], [SentFrame::Stream { offset, .. }] if offset == lost));
    // Late acknowledgement of the original: the rest of the repair is not needed any more.
    pair.deliver(0, packets[1]).unwrap();
    pair.ack(0, packets[1]);
    let i = pair.send(0, 1200).unwrap();
    let SentFrame::Stream { offset, .. } = pair.packets[0][i].frames[0] else { unreachable!() };
    assert!(offset > 3000, "new data again");
    // The repair itself is lost: nothing of it is needed.
    pair.lose(0, i - 1);
    assert!(!pair.ends[0].schedule.has_repair());
}

#[test]
fn idle_connections_hold_no_heap() {
    let streams = Streams::new(Side::Server, &StreamsConfig::default());
    assert!(streams.figures().overhead_bytes < 1024);
    assert!(size_of::<Streams>() < 2048, "{}", size_of::<Streams>());
    let stream = size_of::<crate::streams::stream::Stream>();
    assert!(stream <= 640, "{stream} bytes for each idle stream");
    let mut pair = pair();
    for _ in 0..1000 {
        let id = pair.ends[0].open(Dir::Uni).unwrap();
        pair.ends[0].write(id, &mut zeros(3000)).unwrap();
        pair.ends[0].finish(id).unwrap();
        pair.exchange();
        assert_eq!(pair.ends[1].accept(Dir::Uni), Some(id));
        assert_eq!(read_all(&mut pair.ends[1], id), (vec![0; 3000], Ok(())));
        pair.exchange();
        for end in &mut pair.ends {
            assert_eq!(end.figures().live_streams, 0);
            while end.poll_event().is_some() {}
        }
    }
    for end in &pair.ends {
        // Slots and event queue for the few streams that were alive at a time.
        assert!(end.figures().overhead_bytes < 8192, "{:?}", end.figures());
    }
}

#[test]
fn a_full_send_buffer_blocks_and_wakes_in_bulk() {
    let config = StreamsConfig {
        send_buffer: 100_000,
        send_buffer_max: 100_000,
        receive_window_stream: 1 << 20,
        receive_window_connection: 1 << 20,
        ..StreamsConfig::default()
    };
    let mut pair = Pair::same(&config);
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    let mut data = zeros(300_000);
    assert_eq!(pair.ends[0].write(id, &mut data), Ok(100_000));
    assert_eq!(pair.ends[0].write(id, &mut data), Err(WriteError::Blocked));
    let (mut wakes, mut packets) = (0, 0);
    while !data.is_empty() {
        let i = pair.send(0, 1200).expect("there is data");
        packets += 1;
        pair.deliver(0, i).unwrap();
        pair.ack(0, i);
        while let Some(event) = pair.ends[0].poll_event() {
            assert_eq!(event, StreamEvent::Writable { id });
            wakes += 1;
            while pair.ends[0].write(id, &mut data).is_ok_and(|n| n > 0) {}
        }
    }
    assert!(wakes * 8 < packets, "{wakes} times woken in {packets} packets");
}

/// One writer fills the buffer and the peer never lets its data go: others write all the same.
#[test]
fn a_stuck_writer_does_not_starve_the_others() {
    let config = StreamsConfig { send_buffer: 64 << 10, send_buffer_max: 64 << 10, ..StreamsConfig::default() };
    let peer = StreamsConfig { receive_window_stream: 1000, ..StreamsConfig::default() };
    let mut pair = Pair::new(&config, &peer);
    let stuck = pair.ends[0].open(Dir::Uni).unwrap();
    let mut data = zeros(1 << 20);
    while pair.ends[0].write(stuck, &mut data).is_ok() {}
    assert!(pair.ends[0].figures().send_buffered_bytes >= 64 << 10);
    let other = pair.ends[0].open(Dir::Uni).unwrap();
    let mut left = zeros(50_000);
    let mut received = 0;
    let mut rounds = 0;
    let mut wait = false;
    while received < 50_000 {
        rounds += 1;
        assert!(rounds < 1000, "starved after {received} bytes");
        while !wait && !left.is_empty() {
            wait = pair.ends[0].write(other, &mut left) == Err(WriteError::Blocked);
        }
        pair.exchange();
        received += read_all(&mut pair.ends[1], other).0.len();
        pair.exchange();
        for event in events(&mut pair.ends[0]) {
            wait &= event != StreamEvent::Writable { id: other };
        }
    }
}

#[test]
fn writers_share_a_full_buffer() {
    let config = StreamsConfig { send_buffer: 64 << 10, send_buffer_max: 64 << 10, ..StreamsConfig::default() };
    let mut pair = Pair::same(&config);
    let ids: Vec<_> = (0..4).map(|_| pair.ends[0].open(Dir::Uni).unwrap()).collect();
    let mut written = [0usize; 4];
    // Every writer takes all it can get whenever it may; the first one always asks first.
    let mut may: Vec<StreamId> = ids.clone();
    for _ in 0..3000 {
        may.sort_unstable();
        for id in may.drain(..) {
            while let Ok(n) = pair.ends[0].write(id, &mut zeros(10_000)) {
                written[id.index() as usize] += n;
            }
        }
        if let Some(i) = pair.send(0, 1200) {
            pair.deliver(0, i).unwrap();
            pair.ack(0, i);
        }
        for id in &ids {
            let _ = read_all(&mut pair.ends[1], *id);
        }
        if let Some(i) = pair.send(1, 1200) {
            pair.deliver(1, i).unwrap();
            pair.ack(1, i);
        }
        may.extend(events(&mut pair.ends[0]).into_iter().filter_map(|event| match event {
            StreamEvent::Writable { id } => Some(id),
            _ => None,
        }));
    }
    let (least, most) = (written.iter().min().unwrap(), written.iter().max().unwrap());
    assert!(*least > 500_000 && most * 10 < least * 13, "{written:?}");
}

fn parameters(data: u64, stream: u64, streams: u64) -> TransportParameters {
    TransportParameters {
        initial_max_data: data,
        initial_max_stream_data_bidi_local: stream,
        initial_max_stream_data_bidi_remote: stream,
        initial_max_stream_data_uni: stream,
        initial_max_streams_bidi: streams,
        initial_max_streams_uni: streams,
        ..TransportParameters::default()
    }
}

// RFC 9001 §4.6.2 MUST-1
#[test]
fn refused_early_data_goes_out_again_within_the_real_limits() {
    let mut client = Streams::new(Side::Client, &StreamsConfig::default());
    assert_eq!(client.open(Dir::Bi), None);
    client.set_peer_parameters(&parameters(10_000, 5000, 3)).unwrap();
    assert_eq!(client.poll_event(), Some(StreamEvent::StreamsAvailable { dir: Dir::Bi }));
    let ids: Vec<_> = (0..3).map(|_| client.open(Dir::Bi).unwrap()).collect();
    for (i, id) in ids.iter().enumerate() {
        client.write(*id, &mut vec![i as u8; 2000].into()).unwrap();
        client.finish(*id).unwrap();
    }
    client.reset(ids[1], 9).unwrap();
    let mut buf = vec![0; 9000];
    client.write_frames(&mut Writer::new(&mut buf), &mut |_| {});
    assert_eq!(client.figures().sent_bytes, 4000);

    client.on_zero_rtt_rejected();
    assert!(!client.wants_to_send(), "no limit is known");
    client.set_peer_parameters(&parameters(1500, 1000, 2)).unwrap();
    let mut frames = Vec::new();
    let mut w = Writer::new(&mut buf);
    client.write_frames(&mut w, &mut |frame| frames.push(frame));
    assert!(frames.contains(&SentFrame::ResetStream(ids[1])));
    assert!(frames.contains(&SentFrame::Stream { id: ids[0], offset: 0, len: 1000, fin: false }), "{frames:?}");
    assert!(!frames.iter().any(|frame| matches!(frame, SentFrame::Stream { id, .. } if *id == ids[2])));
    client.on_max_streams(Dir::Bi, 3).unwrap();
    client.on_max_data(20_000);
    client.on_max_stream_data(ids[0], 5000).unwrap();
    client.on_max_stream_data(ids[2], 5000).unwrap();
    frames.clear();
    client.write_frames(&mut Writer::new(&mut buf), &mut |frame| frames.push(frame));
    assert!(frames.contains(&SentFrame::Stream { id: ids[0], offset: 1000, len: 1000, fin: true }), "{frames:?}");
    assert!(frames.contains(&SentFrame::Stream { id: ids[2], offset: 0, len: 2000, fin: true }), "{frames:?}");
}

/// RFC 9000 §7.4.1: limits of accepted early data may grow, not shrink below what was used.
#[test]
fn limits_after_accepted_early_data() {
    let early = || {
        let mut client = Streams::new(Side::Client, &StreamsConfig::default());
        client.set_peer_parameters(&parameters(10_000, 5000, 3)).unwrap();
        let id = client.open(Dir::Bi).unwrap();
        client.open(Dir::Bi).unwrap();
        client.write(id, &mut zeros(6000)).unwrap();
        let mut buf = vec![0; 9000];
        client.write_frames(&mut Writer::new(&mut buf), &mut |_| {});
        client
    };
    let code = |p: TransportParameters| early().set_peer_parameters(&p).map_err(|error| error.code);
    assert_eq!(code(parameters(4999, 5000, 3)), Err(Code::PROTOCOL_VIOLATION));
    assert_eq!(code(parameters(10_000, 4999, 3)), Err(Code::PROTOCOL_VIOLATION));
    assert_eq!(code(parameters(10_000, 5000, 1)), Err(Code::PROTOCOL_VIOLATION));
    let mut client = early();
    client.set_peer_parameters(&parameters(20_000, 6000, 5)).unwrap();
    let mut buf = vec![0; 9000];
    client.write_frames(&mut Writer::new(&mut buf), &mut |_| {});
    assert_eq!(client.figures().sent_bytes, 6000);
}

#[test]
fn unordered_reads_see_what_is_behind_a_hole() {
    let mut pair = pair();
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    pair.ends[0].write(id, &mut (0..200).collect::<Vec<u8>>().into()).unwrap();
    let first = pair.send(0, 100).unwrap();
    let second = pair.send(0, 104).unwrap();
    pair.deliver(0, second).unwrap();
    assert_eq!(events(&mut pair.ends[1]), [StreamEvent::Opened { dir: Dir::Uni }]);
    assert_eq!(pair.ends[1].read(id, 1000, Order::Ordered), Err(ReadError::Blocked));
    let chunk = pair.ends[1].read(id, 50, Order::Unordered).unwrap().unwrap();
    assert_eq!((chunk.offset, chunk.data[0], chunk.data.len()), (98, 98, 50));
    pair.deliver(0, first).unwrap();
    let chunk = pair.ends[1].read(id, 1000, Order::Ordered).unwrap().unwrap();
    assert_eq!((chunk.offset, chunk.data.len()), (0, 98));
    let chunk = pair.ends[1].read(id, 1000, Order::Ordered).unwrap().unwrap();
    assert_eq!(chunk.offset, 148, "what was read is passed over");
}
