//! Flow control over a path with delay: windows and buffers must not be the limit.

use bytes::Bytes;
use std::collections::VecDeque;
use units::{Duration, Instant};
use wire::{Dir, Writer};

use super::pair::{Pair, dispatch};
use crate::sent::SentFrame;
use crate::streams::{Order, StreamEvent, StreamsConfig, WriteError};

/// Time of arrival in milliseconds, frames to dispatch, frames acknowledged by it.
type Flying = (u64, Bytes, Vec<SentFrame>);

/// A bulk transfer, in steps of a millisecond. The sender's window doubles each round trip from ten packets and ends at
/// twice what the path holds. Returns the bytes delivered in each second, and the milliseconds in which flow control or the
/// send buffer left the sender with less to send than it was allowed.
fn bulk(config: &StreamsConfig, packets_per_ms: u64, rtt_ms: u64, seconds: u64, streams: usize) -> (Vec<u64>, u64) {
    const SIZE: usize = 1452;
    let mut pair = Pair::same(config);
    let chunk = Bytes::from(vec![7u8; 64 << 10]);
    let ids: Vec<_> = (0..streams).map(|_| pair.ends[0].open(Dir::Uni).unwrap()).collect();
    let write = |pair: &mut Pair, id| while pair.ends[0].write(id, &mut chunk.clone()) != Err(WriteError::Blocked) {};
    for id in &ids {
        write(&mut pair, *id);
    }
    // What arrives when: data at the receiver; acknowledged frames and the receiver's own frames at the sender.
    let mut to_receiver: VecDeque<Flying> = VecDeque::new();
    let mut to_sender: VecDeque<Flying> = VecDeque::new();
    let (mut cwnd, mut in_flight) = (10u64, 0u64);
    let cwnd_max = 2 * packets_per_ms * rtt_ms;
    let (mut delivered, mut starved) = (vec![0; seconds as usize], 0);
    for now in 0..seconds * 1000 {
        let time = Instant::from_millis(now);
        // Before the datagrams, as the contract asks.
        pair.ends[1].tune(time, Duration::from_millis(rtt_ms));
        while to_receiver.front().is_some_and(|(at, ..)| *at <= now) {
            let (_, payload, frames) = to_receiver.pop_front().unwrap();
            dispatch(&mut pair.ends[1], &payload).unwrap();
            to_sender.push_back((now + rtt_ms / 2, Bytes::new(), frames));
        }
        while let Some(event) = pair.ends[1].poll_event() {
            if let StreamEvent::Readable { id } = event {
                while let Ok(Some(chunk)) = pair.ends[1].read(id, usize::MAX, Order::Ordered) {
                    delivered[(now / 1000) as usize] += chunk.data.len() as u64;
                }
            }
        }
        while pair.ends[1].wants_to_send() {
            let mut buf = vec![0; SIZE];
            let mut w = Writer::new(&mut buf);
            pair.ends[1].write_frames(&mut w, &mut |_| {});
            let len = w.position();
            buf.truncate(len);
            to_sender.push_back((now + rtt_ms / 2, buf.into(), Vec::new()));
        }
        while to_sender.front().is_some_and(|(at, ..)| *at <= now) {
            let (_, payload, frames) = to_sender.pop_front().unwrap();
            dispatch(&mut pair.ends[0], &payload).unwrap();
            for frame in &frames {
                pair.ends[0].on_acked(frame);
            }
            if !frames.is_empty() {
                in_flight -= 1;
                cwnd = (cwnd + 1).min(cwnd_max);
            }
        }
        while let Some(event) = pair.ends[0].poll_event() {
            if let StreamEvent::Writable { id } = event {
                write(&mut pair, id);
            }
        }
        let mut budget = packets_per_ms;
        while budget > 0 && in_flight < cwnd && pair.ends[0].wants_to_send_data() {
            let mut buf = vec![0; SIZE];
            let mut w = Writer::new(&mut buf);
            let mut frames = Vec::new();
            pair.ends[0].write_frames(&mut w, &mut |frame| frames.push(frame));
            let len = w.position();
            buf.truncate(len);
            to_receiver.push_back((now + rtt_ms / 2, buf.into(), frames));
            in_flight += 1;
            budget -= 1;
            // The application writes as soon as it is told, also while packets are made.
            while let Some(event) = pair.ends[0].poll_event() {
                if let StreamEvent::Writable { id } = event {
                    write(&mut pair, id);
                }
            }
        }
        starved += u64::from(budget > 0 && in_flight < cwnd);
    }
    (delivered, starved)
}

/// 400 Mbit/s × 250 ms = 12.5 MB, with the defaults.
#[test]
fn a_long_fat_path_fills_without_a_setting() {
    for streams in [1, 4, 20] {
        let (delivered, starved) = bulk(&StreamsConfig::default(), 34, 250, 4, streams);
        let full = 34 * 1000 * 1440;
        assert!(delivered[3] > full * 97 / 100, "{streams} streams: {delivered:?} of {full}");
        assert!(starved < 10, "{streams} streams: {starved} ms starved, {delivered:?}");
    }
}

/// Shows that the test above can fail: on the same path, windows that cannot grow limit the rate.
#[test]
fn a_fixed_window_limits() {
    let config = StreamsConfig { receive_window_max: 1 << 20, ..StreamsConfig::default() };
    let (delivered, starved) = bulk(&config, 34, 250, 4, 1);
    assert!(*delivered.last().unwrap() < 6 << 20, "{delivered:?}");
    assert!(starved > 1000);
    let config = StreamsConfig { send_buffer_max: 4 << 20, ..StreamsConfig::default() };
    let (delivered, _) = bulk(&config, 34, 250, 4, 1);
    assert!(*delivered.last().unwrap() < 20 << 20, "{delivered:?}");
}

/// A reader that does not read makes nobody hold more than the first windows.
#[test]
fn nothing_grows_for_a_reader_that_does_not_read() {
    let mut pair = Pair::same(&StreamsConfig::default());
    let id = pair.ends[0].open(Dir::Uni).unwrap();
    for now in 1..200 {
        pair.ends[1].tune(Instant::from_millis(now), Duration::from_millis(50));
        while pair.ends[0].write(id, &mut Bytes::from_static(&[0; 5000])).is_ok() {}
        pair.exchange();
    }
    assert_eq!(pair.ends[1].figures().receive_buffered_bytes, 256 << 10);
    // The sender has said that it is blocked, and whatever the reader takes is announced, little or much.
    assert!(!pair.ends[0].wants_to_send());
    let mut read = 0;
    while read < 200 << 10 {
        read += pair.ends[1].read(id, 1000, Order::Ordered).unwrap().unwrap().data.len();
    }
    pair.exchange();
    assert!(pair.ends[1].figures().received_bytes > 256 << 10);
}
