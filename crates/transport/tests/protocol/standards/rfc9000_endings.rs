//! RFC 9000 §10, §11: idle timeouts, CONNECTION_CLOSE, stateless resets.

use super::*;

// RFC 9000 §10.2 SHOULD-1, SHOULD NOT-1, SHOULD-2; RFC 9000 §10.2.3 MUST-1
#[test]
fn a_connection_closes_in_one_rtt_packets_and_stays_for_three_probe_timeouts() {
    for mut puppet in [client().connected(), server().connected()] {
        let handle = puppet.handle.unwrap();
        let mark = puppet.received.len();
        puppet.victim.connection_mut(handle).unwrap().close(puppet.now, 7, b"enough");
        puppet.collect();
        let said: Vec<_> = puppet.received[mark..].to_vec();
        assert_eq!(said.len(), 1);
        assert_eq!(said[0].0, Level::OneRtt);
        let closes = Frame::ApplicationClose { error: 7, reason: b"enough" };
        assert!(Frames::new(&said[0].1).flatten().any(|f| f == closes));
        // The peer's delay alone makes a probe timeout of 25 ms.
        puppet.pass(74 * MS);
        assert!(puppet.victim.connection(handle).is_some(), "it is still known");
        puppet.pass(Duration::from_secs(10));
        assert!(puppet.victim.connection(handle).is_none());
        assert_eq!(puppet.victim.open_connections(), 0);
    }
}

// RFC 9000 §10.2.2 MUST NOT-1, MUST NOT-2
#[test]
fn after_the_close_of_the_peer_there_is_silence() {
    for mut puppet in [client().connected(), server().connected()] {
        puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap().ping();
        puppet.send(Level::OneRtt, &bytes(&[Frame::ApplicationClose { error: 1, reason: b"" }]));
        for _ in 0..20 {
            assert!(sent(&mut puppet.victim, puppet.now).is_empty());
            let packet = puppet.packet(Level::OneRtt, &[1; 30]);
            puppet.give(&packet);
            puppet.now += MS;
            puppet.victim.handle_timeout(puppet.now);
        }
    }
}

// RFC 9000 §10.2.1 MUST-1
#[test]
fn a_closing_connection_does_not_amplify() {
    let mut puppet = client().connected();
    let reason = [b'x'; 900];
    puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap().close(puppet.now, 7, &reason);
    assert_eq!(sent(&mut puppet.victim, puppet.now).len(), 1);
    let (mut received, mut answered) = (0, 0);
    for _ in 0..3_000 {
        // Whoever has seen the ID can send this.
        let noise = [&[0x40][..], puppet.dcid.as_slice(), &[9; 15]].concat();
        received += noise.len();
        puppet.give(&noise);
        answered += sent(&mut puppet.victim, puppet.now).iter().map(|d| d.payload.len()).sum::<usize>();
        assert!(answered <= 3 * received, "{answered} for {received}");
    }
    assert!(answered > 0, "CONNECTION_CLOSE is repeated all the same");
}

// RFC 9000 §10.2.3 MUST-2, MUST-3, SHOULD-4; RFC 9000 §12.5 MUST-1
#[test]
fn an_applications_close_is_not_told_before_the_handshake_is_confirmed() {
    for mut puppet in [client(), server()] {
        puppet.flush(&[Level::Initial]);
        puppet.collect();
        let mark = puppet.received.len();
        puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap().close(puppet.now, 7, b"secret");
        puppet.collect();
        let mut levels = BTreeSet::new();
        for (level, payload) in &puppet.received[mark..] {
            for frame in Frames::new(payload).flatten() {
                match frame {
                    Frame::ConnectionClose { error, reason, .. } => {
                        assert_ne!(*level, Level::OneRtt);
                        assert_eq!((Code(error), reason), (Code::APPLICATION_ERROR, &b""[..]));
                        levels.insert(format!("{level:?}"));
                    }
                    Frame::ApplicationClose { .. } => assert_eq!(*level, Level::OneRtt),
                    _ => {}
                }
            }
        }
        assert!(!levels.is_empty());
    }
}

// RFC 9000 §19.19 SHOULD-1
#[test]
fn words_that_are_cut_stay_readable() {
    for room in 0..4 {
        let mut puppet = client().connected();
        let reason = "x".repeat(room) + &"\u{2014}".repeat(2_000);
        puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap().close(puppet.now, 7, reason.as_bytes());
        puppet.collect();
        let cut = puppet.frames().find_map(|(_, f)| match f {
            Frame::ApplicationClose { reason, .. } => Some(reason.to_vec()),
            _ => None,
        });
        let cut = cut.expect("a CONNECTION_CLOSE");
        assert!(cut.len() > 900 && cut.len() < reason.len());
        assert!(reason.starts_with(std::str::from_utf8(&cut).expect("whole characters")));
    }
}

/// A client whose server gave it this reset token for its first ID.
fn resettable() -> Puppet {
    Puppet::server(&Profile::default(), |p, _| p.stateless_reset_token = Some(ResetToken([0x77; 16]))).connected()
}

fn was_reset(puppet: &mut Puppet) -> bool {
    puppet.collect_quietly();
    puppet.events.extend(events(&mut puppet.victim).into_iter().map(|(_, event)| event));
    puppet.events.iter().any(|e| matches!(e, Event::Closed(CloseReason::Reset)))
}

fn with_token(start: &[u8], len: usize, token: [u8; 16]) -> Vec<u8> {
    let mut datagram = start.to_vec();
    datagram.resize(len - 16, 0x2f);
    datagram.extend(token);
    datagram
}

// RFC 9000 §10.3 MUST-3, MUST-4; RFC 9000 §10.3.1 MUST-1, MUST-3
#[test]
fn a_reset_is_recognised_in_any_form() {
    let id = resettable().dcid;
    let long = |version: u32| [&[0xc3][..], &version.to_be_bytes(), &[8], id.as_slice()].concat();
    let forms: [(&str, Vec<u8>); 6] = [
        ("short, another ID", with_token(&[0x41, 1, 2, 3, 4, 5, 6, 7, 8], 40, [0x77; 16])),
        ("short, our ID", with_token(&[&[0x41][..], id.as_slice()].concat(), 60, [0x77; 16])),
        ("long, of another version", with_token(&long(0x0a1a_2a3a), 60, [0x77; 16])),
        ("long, of this version", with_token(&long(1), 60, [0x77; 16])),
        ("long, another ID", with_token(&[0xc3, 0x0a, 0x1a, 0x2a, 0x3a, 2, 1, 1], 60, [0x77; 16])),
        ("the shortest", with_token(&[0x41], 21, [0x77; 16])),
    ];
    for (name, datagram) in forms {
        let mut puppet = resettable();
        assert!(!was_reset(&mut puppet), "{name}");
        puppet.give(&datagram);
        assert!(was_reset(&mut puppet), "{name}");
        // Not a word more.
        for _ in 0..5 {
            let packet = puppet.packet(Level::OneRtt, &[1; 30]);
            puppet.give(&packet);
            assert!(sent(&mut puppet.victim, puppet.now).is_empty(), "{name}");
        }
    }
}

// RFC 9000 §10.3.1 MUST NOT-1
#[test]
fn tokens_of_ids_that_are_not_in_use_reset_nothing() {
    let offer = |sequence: u64, retire: u64| Frame::NewConnectionId {
        sequence,
        retire_prior_to: retire,
        cid: ConnectionId::new(&[sequence as u8; 8]).unwrap(),
        reset_token: ResetToken([sequence as u8; 16]),
    };
    let mut puppet = resettable();
    puppet.send(Level::OneRtt, &bytes(&[offer(1, 0), offer(2, 0)]));
    puppet.collect();
    puppet.give(&with_token(&[0x41], 40, [1; 16]));
    assert!(!was_reset(&mut puppet), "of an ID that was never used");
    puppet.send(Level::OneRtt, &bytes(&[offer(3, 2)]));
    puppet.collect();
    for token in [[0x77; 16], [1; 16], [3; 16]] {
        puppet.give(&with_token(&[0x41], 40, token));
        assert!(!was_reset(&mut puppet), "of an ID that is retired, or not in use yet");
    }
    puppet.give(&with_token(&[0x41], 40, [2; 16]));
    assert!(was_reset(&mut puppet), "of the ID in use");
}

// RFC 9000 §10.3 MUST-2; RFC 9000 §11 MUST NOT-1; RFC 9001 §5.4.2 MUST-1
#[test]
fn noise_on_a_connection_is_not_answered() {
    let mut puppet = client().connected();
    puppet.acknowledge(Level::OneRtt);
    puppet.wait(Duration::from_secs(2));
    puppet.acknowledge(Level::OneRtt);
    puppet.collect();
    for len in 1..60 {
        let noise: Vec<u8> = [&[0x41][..], puppet.dcid.as_slice(), &vec![len; len.into()]].concat();
        puppet.give(&noise);
        puppet.give(&noise[..noise.len().min(len.into())]);
        assert!(sent(&mut puppet.victim, puppet.now).iter().all(|d| d.payload.len() < len.into()));
    }
    let connection = puppet.victim.connection(puppet.handle.unwrap()).unwrap();
    assert!(connection.is_connected() && !connection.is_closed());
    // A stateless reset answers IDs that are not known, and no other.
    let resets = puppet.victim.stats().resets;
    for _ in 0..50 {
        puppet.give(&[&[0x41][..], puppet.dcid.as_slice(), &[5; 50]].concat());
    }
    sent(&mut puppet.victim, puppet.now);
    assert_eq!(puppet.victim.stats().resets, resets);
}

// RFC 9000 §10.3 SHOULD-2
#[test]
fn packets_are_long_enough_to_be_answered_with_a_reset() {
    let mut puppet = client().connected();
    puppet.acknowledge(Level::OneRtt);
    puppet.collect();
    for _ in 0..10 {
        puppet.now += Duration::from_millis(400);
        puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap().ping();
        let datagrams = sent(&mut puppet.victim, puppet.now);
        assert!(!datagrams.is_empty());
        for datagram in datagrams {
            assert!(datagram.payload.len() >= puppet.dcid.len() + 22, "{}", datagram.payload.len());
            open_short(&mut puppet, &datagram.payload);
        }
        puppet.acknowledge(Level::OneRtt);
        sent(&mut puppet.victim, puppet.now);
    }
}

// RFC 9000 §10.1 MUST-1
#[test]
fn the_idle_timeout_is_at_least_three_probe_timeouts() {
    let profile = Profile { idle_timeout: MS, ..Profile::default() };
    let mut puppet = Puppet::client(&profile, |_, _| {}).connected();
    puppet.acknowledge(Level::OneRtt);
    puppet.collect();
    let handle = puppet.handle.unwrap();
    puppet.pass(74 * MS);
    assert!(puppet.victim.connection(handle).is_some_and(|c| !c.is_closed()), "a probe timeout takes 25 ms at least");
    puppet.pass(Duration::from_secs(5));
    assert!(puppet.victim.connection(handle).is_none());
}
