//! RFC 9000 §5.1, §12, §13, §19: packets, numbers, acknowledgements, connection IDs.

use super::*;

// RFC 9000 §12.3 MUST-3, MUST-4
#[test]
fn a_packet_that_comes_twice_counts_once() {
    let mut puppet = client().connected();
    let packet = puppet.packet(Level::OneRtt, &[1; 30]);
    let before = processed(&puppet);
    puppet.give(&packet);
    puppet.give(&packet);
    assert_eq!(processed(&puppet), before + 1);
}

// RFC 9000 §12.3 MUST-1, MUST NOT-1; RFC 9000 §12.4 MUST-1; RFC 9000 §12.5 MUST-2; RFC 9000 §17.2 MUST-4
// RFC 9000 §17.3.1 MUST-2; RFC 9001 §4.9 MUST-2; RFC 9221 §5 MUST-1; RFC 9221 §6 MUST-1
#[test]
fn frames_travel_where_they_belong_and_numbers_are_used_once() {
    for (side, puppet) in conversations() {
        assert!(puppet.received.iter().all(|(_, payload)| !payload.is_empty()));
        let numbers: usize = puppet.seen.iter().map(BTreeSet::len).sum();
        assert_eq!(numbers, puppet.received.len(), "{side:?}");
        let mut kinds = BTreeSet::new();
        for (level, frame) in puppet.frames() {
            if level == Level::OneRtt {
                kinds.insert(frame.ty());
                continue;
            }
            let handshake = matches!(
                frame,
                Frame::Padding { .. }
                    | Frame::Ping
                    | Frame::Ack(_)
                    | Frame::Crypto { .. }
                    | Frame::ConnectionClose { .. }
            );
            assert!(handshake, "{side:?} {level:?} {frame:?}");
        }
        assert!(kinds.contains(&wire::frame_type::NEW_CONNECTION_ID), "{kinds:?}");
        assert!(kinds.range(wire::frame_type::STREAM..=wire::frame_type::STREAM_LAST).next().is_some(), "{kinds:?}");
    }
}

// RFC 9000 §19.7 MUST NOT-1, MUST NOT-2; RFC 9000 §19.15 MUST-3; RFC 9000 §5.1 MUST NOT-2; RFC 9000 §5.1.1 MUST-1
// RFC 9000 §10.3.2 MUST-2, MUST NOT-3
#[test]
fn tokens_and_ids_that_are_given_out() {
    for (side, puppet) in conversations() {
        let tokens: Vec<_> = puppet
            .frames()
            .filter_map(|(_, f)| if let Frame::NewToken { token } = f { Some(token.to_vec()) } else { None })
            .collect();
        assert_eq!(!tokens.is_empty(), side == Side::Server);
        assert!(tokens.iter().all(|token| !token.is_empty()));
        let mut issued = BTreeMap::new();
        for (_, frame) in puppet.frames() {
            if let Frame::NewConnectionId { sequence, retire_prior_to, cid, reset_token } = frame {
                assert!(retire_prior_to <= sequence);
                assert_eq!(cid.len(), puppet.dcid.len());
                issued.insert(sequence, (cid, reset_token.0));
            }
        }
        assert!(issued.keys().copied().eq(1..=issued.len() as u64), "{issued:?}");
        let ids: BTreeSet<_> = issued.values().map(|(id, _)| *id).chain([puppet.dcid]).collect();
        let tokens: BTreeSet<_> = issued.values().map(|(_, token)| *token).collect();
        assert_eq!((ids.len(), tokens.len()), (issued.len() + 1, issued.len()));
    }
}

// RFC 9000 §13.3 MUST-1; RFC 9000 §19.20 MUST NOT-1; RFC 9001 §4.1.2 MUST-1
#[test]
fn handshake_done_comes_with_the_end_of_the_handshake_and_until_it_has_arrived() {
    let done = |puppet: &Puppet| count(puppet, |f| matches!(f, Frame::HandshakeDone));
    let mut puppet = client();
    puppet.flush(&[Level::Initial]);
    puppet.collect();
    puppet.wait(Duration::from_secs(1));
    assert_eq!(done(&puppet), 0, "the client's Finished is missing");
    puppet.flush(&[Level::Handshake]);
    puppet.collect();
    assert_eq!(done(&puppet), 1, "at once");
    puppet.wait(Duration::from_secs(5));
    let repeated = done(&puppet);
    assert!(repeated > 1, "nobody acknowledged it");
    puppet.acknowledge(Level::OneRtt);
    puppet.collect();
    puppet.wait(Duration::from_secs(5));
    assert_eq!(done(&puppet), repeated);
}

// RFC 9000 §13.2.6 MUST-1, MUST-2; RFC 9000 §17.2.3 MUST-2
#[test]
fn acknowledgements_travel_in_the_space_that_they_speak_of() {
    let mut spaces = BTreeSet::new();
    for mut puppet in [client(), server()] {
        puppet.next_pn = [1_000, 2_000, 3_000];
        let mut puppet = puppet.connected();
        puppet.send(Level::OneRtt, &[1; 20]);
        puppet.wait(Duration::from_secs(1));
        for (level, frame) in puppet.frames() {
            if let Frame::Ack(ack) = frame {
                let from = 1_000 * (1 + LEVELS.iter().position(|l| *l == level).unwrap() as u64);
                assert!(ack.ranges().flatten().all(|pn| (from..from + 1_000).contains(&pn)), "{level:?} {ack:?}");
                spaces.insert(from);
            }
        }
    }
    assert_eq!(spaces.len(), 3);
}

// RFC 9000 §13.2.1 MUST NOT-1, MUST NOT-2, MUST NOT-3
#[test]
fn acknowledgements_cause_no_endless_answers() {
    let mut puppet = client().connected();
    puppet.acknowledge(Level::OneRtt);
    puppet.wait(Duration::from_secs(2));
    puppet.acknowledge(Level::OneRtt);
    puppet.collect();
    // Acknowledgements, with gaps between their numbers.
    let mut answers = 0;
    for _ in 0..500 {
        puppet.next_pn[2] += 2;
        puppet.acknowledge(Level::OneRtt);
        answers += puppet.collect();
        puppet.now += MS;
    }
    assert_eq!(answers, 0);
    // Each packet that asks causes one acknowledgement at most, and few of them ask back.
    let mark = puppet.received.len();
    for _ in 0..500 {
        puppet.send(Level::OneRtt, &[1; 10]);
        puppet.collect();
        puppet.now += MS;
    }
    let answers: Vec<_> = puppet.received[mark..].iter().map(|(_, payload)| payload.clone()).collect();
    assert!((200..=501).contains(&answers.len()), "{}", answers.len());
    let asking = answers.iter().filter(|p| Frames::new(p).flatten().any(|f| f.is_ack_eliciting())).count();
    assert!((1..=20).contains(&asking), "{asking}");
}

// RFC 9000 §5.1.1 MUST-2, SHOULD-2; RFC 9000 §5.1 MUST NOT-2
#[test]
fn an_issued_id_is_good_until_it_is_retired() {
    let mut puppet = client().connected();
    let mut used = BTreeSet::from([puppet.dcid]);
    let mut current = 0;
    for round in 0..20 {
        puppet.collect();
        let issued: BTreeMap<u64, ConnectionId> =
            puppet
                .frames()
                .filter_map(|(_, f)| {
                    if let Frame::NewConnectionId { sequence, cid, .. } = f { Some((sequence, cid)) } else { None }
                })
                .collect();
        let (&next, &id) = issued.range(current + 1..).next().expect("another ID is there");
        assert!(used.insert(id), "round {round}: {id} was there before");
        let old = std::mem::replace(&mut puppet.dcid, id);
        let before = processed(&puppet);
        puppet.send(Level::OneRtt, &[1; 30]);
        assert_eq!(processed(&puppet), before + 1, "the new one is good");
        puppet.dcid = old;
        puppet.send(Level::OneRtt, &[1; 30]);
        assert_eq!(processed(&puppet), before + 2, "so is the old one");
        puppet.dcid = id;
        puppet.send(Level::OneRtt, &bytes(&[Frame::RetireConnectionId { sequence: current }]));
        puppet.acknowledge(Level::OneRtt);
        puppet.collect();
        puppet.dcid = old;
        let before = processed(&puppet);
        puppet.send(Level::OneRtt, &[1; 30]);
        assert_eq!(processed(&puppet), before, "until it is retired");
        puppet.dcid = id;
        current = next;
    }
}

// RFC 9000 §5.1.2 MUST-1; RFC 9000 §19.16 MUST NOT-1
#[test]
fn retirements_do_not_travel_under_the_id_that_they_retire() {
    let mut puppet = client().connected();
    let mut named: BTreeMap<Vec<u8>, u64> = BTreeMap::from([(puppet.scid.to_vec(), 0)]);
    for sequence in 1..12 {
        let id = ConnectionId::new(&[sequence as u8; 8]).unwrap();
        named.insert(id.to_vec(), sequence);
        let frame =
            Frame::NewConnectionId { sequence, retire_prior_to: sequence, cid: id, reset_token: ResetToken([1; 16]) };
        puppet.send(Level::OneRtt, &bytes(&[frame]));
        puppet.now += Duration::from_millis(30);
        puppet.victim.handle_timeout(puppet.now);
        let mut retired = BTreeSet::new();
        for datagram in sent(&mut puppet.victim, puppet.now) {
            let (dcid, payload) = open_short(&mut puppet, &datagram.payload);
            assert_eq!(named[&dcid], sequence, "the old ID is not used any more");
            for frame in Frames::new(&payload).flatten() {
                if let Frame::RetireConnectionId { sequence } = frame {
                    assert_ne!(named[&dcid], sequence);
                    retired.insert(sequence);
                }
            }
        }
        assert!(retired.contains(&(sequence - 1)), "{retired:?}");
        puppet.acknowledge(Level::OneRtt);
        sent(&mut puppet.victim, puppet.now);
    }
}

// RFC 9000 §13.3 MUST-2
#[test]
fn frames_that_are_out_of_date_do_no_harm() {
    let mut puppet = server().connected();
    let all = ack(&puppet.seen[2].clone());
    let old = [
        all.clone(),
        all,
        bytes(&[
            Frame::MaxData(1),
            Frame::MaxStreams { dir: Dir::Bi, limit: 1 },
            Frame::MaxStreams { dir: Dir::Uni, limit: 1 },
        ]),
    ];
    for payload in old {
        puppet.send(Level::OneRtt, &payload);
        assert_eq!(puppet.close_code(), None);
    }
    assert!(puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap().open(Dir::Bi).is_some());
}

/// The marks on what the victim sends.
fn marks(puppet: &mut Puppet) -> BTreeSet<bool> {
    let connection = puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap();
    connection.ping();
    let mut buffer = vec![0; 64 * 1500];
    let mut marks = BTreeSet::new();
    // Losses and pacing may hold it back for a while.
    for _ in 0..100 {
        while let Some(transmit) = puppet.victim.poll_transmit(puppet.now, &mut buffer) {
            marks.insert(transmit.ecn.is_some());
            for datagram in buffer[..transmit.len].chunks(transmit.segment_size) {
                open_short(puppet, datagram);
            }
        }
        if !marks.is_empty() {
            break;
        }
        puppet.now += Duration::from_millis(10);
        puppet.victim.handle_timeout(puppet.now);
    }
    marks
}

/// Acknowledges everything, with these counts.
fn acknowledge_marked(puppet: &mut Puppet, counts: Option<wire::EcnCounts>) {
    let largest = *puppet.seen[2].last().unwrap();
    let mut buffer = [0; 100];
    let mut w = Writer::new(&mut buffer);
    wire::Ack::encode(&mut w, 0, std::iter::once(largest..=largest), 1, counts, 100);
    let payload = w.written().to_vec();
    puppet.now += MS;
    puppet.send(Level::OneRtt, &payload);
}

// RFC 9000 §13.4.2.2 MUST-1, MUST-2
#[test]
fn a_path_that_loses_marks_is_not_marked_any_more() {
    // From the first acknowledgement on, and after it has brought some back.
    for good in [0, 3] {
        let mut puppet = client().connected();
        let mut marked = 0;
        for _ in 0..good {
            assert_eq!(marks(&mut puppet), BTreeSet::from([true]));
            marked = puppet.seen[2].len() as u64;
            acknowledge_marked(&mut puppet, Some(wire::EcnCounts { ect0: marked + 100, ect1: 0, ce: 0 }));
        }
        assert_eq!(marks(&mut puppet), BTreeSet::from([true]), "{good} {marked}");
        acknowledge_marked(&mut puppet, None);
        for _ in 0..5 {
            assert_eq!(marks(&mut puppet), BTreeSet::from([false]));
            acknowledge_marked(&mut puppet, None);
        }
    }
}
