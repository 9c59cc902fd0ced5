//! RFC 9001 and RFC 9002: keys and levels, the congestion window and probes.

use super::*;

// RFC 9001 §4.9.1 MUST-1, MUST-2, MUST NOT-1; RFC 9001 §4.9.2 MUST-1
#[test]
fn keys_of_the_handshake_go_when_they_should() {
    for mut puppet in [client(), server()] {
        puppet.flush(&[Level::Initial]);
        puppet.collect();
        puppet.flush(&[Level::Handshake]);
        puppet.collect();
        // A client has sent Handshake packets, a server has opened one: Initial packets mean nothing any more.
        let before = processed(&puppet);
        puppet.send(Level::Initial, &[1; 20]);
        assert_eq!(processed(&puppet), before, "{:?}", puppet.side);
        let mark = puppet.received.len();
        puppet.wait(Duration::from_secs(1));
        assert!(puppet.received[mark..].iter().all(|(level, _)| *level != Level::Initial), "{:?}", puppet.side);
        let mut puppet = puppet.connected();
        let before = processed(&puppet);
        puppet.send(Level::Handshake, &[1; 20]);
        assert_eq!(processed(&puppet), before, "{:?}", puppet.side);
        let mark = puppet.received.len();
        puppet.wait(Duration::from_secs(5));
        assert!(puppet.received[mark..].iter().all(|(level, _)| *level == Level::OneRtt), "{:?}", puppet.side);
    }
}

// RFC 9001 §4.1.3 MUST-2
#[test]
fn handshake_bytes_that_are_left_over_at_a_level_are_refused() {
    // Right behind the ClientHello, and behind a gap.
    for gap in [0, 5] {
        let mut puppet = client();
        let pieces = puppet.pieces(Level::Initial, 900);
        let end = pieces.iter().flat_map(|p| Frames::new(p).flatten()).filter_map(|f| match f {
            Frame::Crypto { offset, data } => Some(offset + data.len() as u64),
            _ => None,
        });
        let offset = end.max().unwrap() + gap;
        puppet.send(Level::Initial, &bytes(&[Frame::Crypto { offset, data: b"more" }]));
        for piece in &pieces {
            puppet.send(Level::Initial, piece);
        }
        assert_eq!(puppet.close_code(), Some(Code::PROTOCOL_VIOLATION), "{gap}");
    }
}

// RFC 9002 §7 MUST NOT-1; RFC 9002 §7.5 MUST NOT-1, MUST-1; RFC 9002 §6.2.4 MUST-1, MUST-2; RFC 9221 §5.4 MUST-1
#[test]
fn the_window_holds_datagrams_back_and_lets_probes_pass() {
    let mut puppet = server().connected();
    puppet.acknowledge(Level::OneRtt);
    puppet.collect();
    let connection = puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap();
    for _ in 0..100 {
        connection.send_datagram(Bytes::from(vec![1; 1_000])).unwrap();
    }
    let bytes: usize = sent(&mut puppet.victim, puppet.now).iter().map(|d| d.payload.len()).sum();
    assert!((5_000..=14_720).contains(&bytes), "{bytes}");
    // Nothing is acknowledged: probes leave, few of them, and each asks for an acknowledgement.
    let mut probes = 0;
    for _ in 0..200 {
        puppet.now += Duration::from_millis(20);
        puppet.victim.handle_timeout(puppet.now);
        for datagram in sent(&mut puppet.victim, puppet.now) {
            let (_, payload) = open_short(&mut puppet, &datagram.payload);
            assert!(Frames::new(&payload).flatten().any(|f| f.is_ack_eliciting()));
            probes += 1;
        }
    }
    assert!((2..=30).contains(&probes), "{probes}");
}

// RFC 9001 §5.7 MUST NOT-1, MUST NOT-3
#[test]
fn a_client_reads_no_data_before_the_handshake_is_complete() {
    let readable = |puppet: &Puppet| puppet.events.iter().any(|e| matches!(e, Event::Stream(_)));
    let mut puppet = server();
    puppet.flush(&[Level::Initial]);
    puppet.collect();
    let before = processed(&puppet);
    let frame = Frame::Stream(StreamFrame { id: StreamId(1), offset: 0, fin: true, data: b"early" });
    puppet.send(Level::OneRtt, &bytes(&[frame]));
    puppet.collect();
    assert_eq!(processed(&puppet), before);
    assert!(!readable(&puppet));
    puppet.flush(&[Level::Handshake]);
    puppet.collect();
    assert!(readable(&puppet), "it has waited");
}
