use wire::{Frame, Frames};

use super::*;

fn datagrams(send: u64, receive: u64) -> Datagrams {
    let config = DatagramsConfig { send_buffer: send, receive_buffer: receive, max_frame_size: 1200 };
    let mut datagrams = Datagrams::new(&config);
    datagrams.set_peer_max_frame_size(65535, false).unwrap();
    datagrams.set_packet_room(1000);
    datagrams
}

fn packet(datagrams: &mut Datagrams, size: usize) -> (Vec<Vec<u8>>, Vec<u64>) {
    let mut buf = vec![0; size];
    let mut w = Writer::new(&mut buf);
    let mut numbers = Vec::new();
    datagrams.write(Instant::ZERO, &mut w, &mut |frame| match frame {
        SentFrame::Datagram(number) => numbers.push(number),
        other => panic!("{other:?}"),
    });
    let frames = Frames::new(w.written()).map(|frame| match frame.unwrap() {
        Frame::Datagram { data } => data.to_vec(),
        other => panic!("{other:?}"),
    });
    (frames.collect(), numbers)
}

#[test]
fn a_full_queue_drops_the_oldest_and_says_so() {
    let mut d = datagrams(3 * (OVERHEAD + 10), 0);
    d.record_fates();
    for i in 0..5u8 {
        assert_eq!(d.send(vec![i; 10].into()), Ok(u64::from(i)));
    }
    assert_eq!(d.poll_event(), Some(DatagramEvent::SendDropped { count: 2, last: 1 }));
    assert_eq!(d.poll_event(), None);
    // The third fills the packet exactly and has no length.
    let (data, numbers) = packet(&mut d, 12 + 12 + 11);
    assert_eq!((data, numbers), (vec![vec![2; 10], vec![3; 10], vec![4; 10]], vec![2, 3, 4]));
    assert!(!d.wants_to_send());
    assert_eq!((d.figures().sent, d.figures().send_dropped, d.outgoing_cost), (3, 2, 0));
    let fates = d.take_fates();
    assert_eq!(fates[..2], [(0, DatagramFate::Dropped), (1, DatagramFate::Dropped)]);
    assert_eq!(fates[2..], [2, 3, 4].map(|number| (number, DatagramFate::Sent(Instant::ZERO))));
}

#[test]
fn room_is_told_when_half_of_the_queue_is_free() {
    // Ten of 36 bytes, each counted as 100.
    let mut d = datagrams(1_000, 1_000);
    for _ in 0..10 {
        assert!(d.has_room(36));
        d.send(Bytes::from_static(&[7; 36])).unwrap();
    }
    assert!(!d.has_room(36) && d.poll_event().is_none());
    // Four leave, which is not half; then one more.
    packet(&mut d, 4 * 38);
    assert_eq!(d.poll_event(), None);
    packet(&mut d, 38);
    assert_eq!((d.poll_event(), d.poll_event()), (Some(DatagramEvent::Writable), None));
    assert!(d.has_room(36) && d.figures().send_dropped == 0);
    // Nobody asked since, so nobody is told.
    packet(&mut d, 1_000);
    assert_eq!(d.poll_event(), None);
    assert!(d.has_room(5_000), "an empty queue takes what is larger than its bound");
}

#[test]
fn a_datagram_is_whole_or_waits() {
    let mut d = datagrams(10_000, 0);
    d.send(vec![1; 500].into()).unwrap();
    assert!(packet(&mut d, 500).1.is_empty());
    assert!(packet(&mut d, 502).1.is_empty(), "502 bytes cannot hold type, length and 500, nor end with 500");
    assert_eq!(packet(&mut d, 503).1, [0]);
    d.send(Bytes::new()).unwrap();
    assert_eq!(packet(&mut d, 1).0, [[0u8; 0]]);
}

#[test]
fn what_is_worthless_is_not_sent() {
    let mut d = datagrams(10_000, 0);
    let flow = DatagramFlow { expiry: Some(units::Duration::from_millis(20)), ..DatagramFlow::default() };
    for i in 0..3u8 {
        d.send_in(Instant::from_millis(10 * u64::from(i)), &flow, vec![i; 10].into()).unwrap();
    }
    d.send(vec![9; 10].into()).unwrap();
    assert_eq!(d.next_tolerance(Instant::from_millis(30)), Some(Tolerance::NONE));
    assert_eq!(d.poll_event(), Some(DatagramEvent::SendDropped { count: 2, last: 1 }));
    let mut buf = vec![0; 100];
    let mut numbers = Vec::new();
    d.write(Instant::from_millis(39), &mut Writer::new(&mut buf), &mut |frame| numbers.push(frame));
    assert_eq!(numbers, [SentFrame::Datagram(2), SentFrame::Datagram(3)]);
    assert_eq!((d.figures().expired, d.figures().send_dropped, d.outgoing_cost), (2, 0, 0));
}

#[test]
fn flows_that_tolerate_more_are_told_apart() {
    let mut d = datagrams(10_000, 0);
    let flow = |loss| DatagramFlow { tolerated_loss: units::Probability::new(loss).unwrap(), ..Default::default() };
    for loss in [0.02, 0.02, 0.0, 0.02] {
        d.send_in(Instant::ZERO, &flow(loss), vec![1; 10].into()).unwrap();
    }
    let mut buf = vec![0; 100];
    let mut w = Writer::new(&mut buf);
    let tolerant = |tolerance: Tolerance| tolerance.share() > 0.01;
    let content = d.write_while(Instant::ZERO, &mut w, tolerant, &mut |_| {});
    assert_eq!((content.tolerance.share(), d.figures().sent), (0.02, 2));
    assert_eq!(d.write_while(Instant::ZERO, &mut w, |_| true, &mut |_| {}).tolerance, Tolerance::NONE);
    assert!(!d.wants_to_send());
}

// RFC 9221 §3 MUST NOT-1, MUST NOT-2, MUST-4, MUST-5
#[test]
fn sizes_follow_peer_and_path() {
    let mut d = datagrams(10_000, 0);
    assert_eq!(d.max_size(), Some(997));
    assert_eq!(d.send(vec![0; 998].into()), Err(SendDatagramError::TooLarge { len: 998, max: 997 }));
    d.send(vec![0; 997].into()).unwrap();
    d.send(vec![0; 5].into()).unwrap();
    // The path became narrower: what cannot be sent any more does not block the rest.
    d.set_packet_room(500);
    assert_eq!(packet(&mut d, 500).1, [1]);
    assert_eq!(d.poll_event(), Some(DatagramEvent::SendDropped { count: 1, last: 0 }));
    d.set_peer_max_frame_size(0, false).unwrap();
    assert_eq!(d.send(Bytes::new()), Err(SendDatagramError::Unsupported));
    d.set_peer_max_frame_size(100, false).unwrap();
    assert_eq!(d.max_size(), Some(97));
    assert_eq!(d.set_peer_max_frame_size(99, true).unwrap_err().code, Code::PROTOCOL_VIOLATION);
}

// RFC 9221 §5 SHOULD-2
#[test]
fn received_ones_wait_within_bounds() {
    let mut d = datagrams(0, 4 * (OVERHEAD + 100));
    assert_eq!(d.recv(), None);
    for i in 0..6u8 {
        d.on_datagram(vec![i; 100].into(), 103).unwrap();
    }
    assert_eq!(d.poll_event(), Some(DatagramEvent::Readable));
    assert_eq!(d.poll_event(), Some(DatagramEvent::ReceiveDropped { count: 2 }));
    for i in 2..6u8 {
        assert_eq!(d.recv().unwrap(), vec![i; 100]);
    }
    assert_eq!(d.recv(), None);
    assert_eq!(d.poll_event(), None);
    d.on_datagram(Bytes::new(), 1).unwrap();
    assert_eq!(d.poll_event(), Some(DatagramEvent::Readable));
    assert_eq!(d.recv(), Some(Bytes::new()));
}

/// RFC 9221 §3: what was not offered is a PROTOCOL_VIOLATION.
// RFC 9221 §3 MUST-1, MUST-2
#[test]
fn what_was_not_offered_is_refused() {
    let mut d = datagrams(0, 10_000);
    assert!(d.on_datagram(vec![0; 1199].into(), 1200).is_ok());
    // Type and length count.
    assert!(d.on_datagram(vec![0; 1198].into(), 1201).is_err());
    let error = d.on_datagram(vec![0; 1200].into(), 1201).unwrap_err();
    assert_eq!((error.code, error.frame_type), (Code::PROTOCOL_VIOLATION, 0x30));
    let mut none = Datagrams::new(&DatagramsConfig { max_frame_size: 0, ..DatagramsConfig::default() });
    assert!(none.on_datagram(Bytes::new(), 1).is_err());
}
