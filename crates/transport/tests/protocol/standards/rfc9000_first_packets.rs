//! RFC 9000 §5.2, §6 to §8, §14, §17: the first packets, versions, Retry.

use super::*;

// RFC 9000 §7.2 MUST-1, MUST-2; RFC 9000 §8.1 MUST-2; RFC 9000 §14.1 MUST-1; RFC 9001 §9.3 MUST-1
// RFC 9000 §12.2 MUST NOT-1; RFC 9000 §12.3 MUST-1, MUST NOT-1; RFC 9002 §6.2.2.1 MUST-3; RFC 9002 §6.2.4 MUST-1, MUST-2
#[test]
fn a_client_that_nobody_answers_repeats_itself_in_full_datagrams_to_one_id() {
    let (mut client, _, mut flight) = lonely_client();
    let first = flight.len();
    flight.extend(keeps_sending(&mut client, Instant::ZERO, at(9_000)));
    assert!(flight.len() >= first + 3, "probes");
    let Ok(Header::Long { dcid: id, .. }) = Header::parse(&flight[0], 8) else { panic!("a long header") };
    assert!(id.len() >= 8);
    let mut last = None;
    for datagram in &flight {
        assert!(datagram.len() >= 1200, "{}", datagram.len());
        for packet in initials(datagram, Side::Client, &id) {
            assert_eq!(packet.dcid, id);
            assert!(last.is_none_or(|last| packet.pn > last), "{} after {last:?}", packet.pn);
            last = Some(packet.pn);
            assert!(Frames::new(&packet.payload).flatten().any(|f| f.is_ack_eliciting()));
        }
    }
    // Another connection has another ID, which nobody could have known.
    let Ok(Header::Long { dcid: other, .. }) = Header::parse(&lonely_second()[0], 8) else { panic!("a long header") };
    assert_ne!(other, id);
}

fn lonely_second() -> Vec<Vec<u8>> {
    let (mut client, _, _) = lonely_client();
    let config = client_config(&Profile::default());
    client.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
    sent(&mut client, Instant::ZERO).into_iter().map(|d| d.payload).collect()
}

// RFC 9000 §7.2 MUST-5; RFC 9000 §14.1 MUST-2; RFC 9000 §17.2.2 MUST-1; RFC 9001 §4 SHOULD-1; RFC 9000 §12.2 MUST-1
#[test]
fn a_servers_first_flight_fills_its_datagrams_and_has_no_token() {
    let (_, _, flight) = lonely_client();
    let Ok(Header::Long { dcid: id, scid: named, .. }) = Header::parse(&flight[0], 8) else { panic!("a long header") };
    let mut server = server_endpoint(1, server_config(&Profile::default()));
    flight.iter().for_each(|d| give(&mut server, Instant::ZERO, client_address(0), d));
    let answer = sent(&mut server, Instant::ZERO);
    let (mut eliciting, mut coalesced) = (0, 0);
    for datagram in &answer {
        let packets = initials(&datagram.payload, Side::Server, &id);
        for packet in &packets {
            assert_eq!(packet.dcid, named);
            assert!(packet.token.is_empty());
            if Frames::new(&packet.payload).flatten().any(|f| f.is_ack_eliciting()) {
                eliciting += 1;
                assert!(datagram.payload.len() >= 1200);
            }
        }
        let Ok(header) = Header::parse(&datagram.payload, 8) else { panic!("a header") };
        coalesced += usize::from(!packets.is_empty() && header.packet_len() < datagram.payload.len());
    }
    assert!(eliciting > 0 && coalesced > 0, "{eliciting} {coalesced}");
}

/// An Initial packet of a server, with what a test wants in its header.
fn server_initial(puppet: &mut Puppet, version: u32, scid: ConnectionId, token: &[u8]) -> Vec<u8> {
    let header = LongHeader { ty: LongType::Initial, version, dcid: puppet.dcid, scid };
    let mut packet = vec![0; header.encoded_len(token.len(), 4) + 1160 + TAG_LEN];
    let mut w = Writer::new(&mut packet);
    let pos = header.encode(&mut w, token, 77, 4);
    w.u8(1);
    let end = packet.len();
    wire::patch_length(&mut packet, &pos, end);
    puppet.keys.seal_long(Level::Initial, &mut packet, pos.pn_offset, 77).unwrap();
    packet
}

// RFC 9000 §5.2.1 MUST-1; RFC 9000 §7.2 MUST-3, MUST-6; RFC 9000 §17.2 MUST-1; RFC 9000 §17.2.2 MUST-2
#[test]
fn a_client_drops_initial_packets_that_are_not_of_its_server() {
    let other = ConnectionId::new(&[0x99; 8]).unwrap();
    for (name, version, scid, token, bit, counts) in [
        ("a conforming one", 1, None, &b""[..], 0x40, true),
        ("another version", wire::version::V2, None, b"", 0x40, false),
        ("another source", 1, Some(other), b"", 0x40, false),
        ("a token", 1, None, b"token", 0x40, false),
        ("no fixed bit", 1, None, b"", 0, false),
    ] {
        let profile = Profile { grease: false, ..Profile::default() };
        let mut puppet = Puppet::server(&profile, |_, _| {});
        puppet.flush(&[Level::Initial]);
        puppet.collect();
        let before = processed(&puppet);
        let scid = scid.unwrap_or(puppet.scid);
        let packet = server_initial(&mut puppet, version, scid, token);
        // The fixed bit is not protected, but authenticated: it has to be cleared before sealing to be authentic.
        let packet = if bit == 0 { without_fixed_bit(&mut puppet) } else { packet };
        puppet.give(&packet);
        assert_eq!(processed(&puppet) > before, counts, "{name}");
        assert_eq!(puppet.close_code(), None, "{name}");
    }
}

fn without_fixed_bit(puppet: &mut Puppet) -> Vec<u8> {
    let header = LongHeader { ty: LongType::Initial, version: 1, dcid: puppet.dcid, scid: puppet.scid };
    let mut packet = vec![0; header.encoded_len(0, 4) + 1160 + TAG_LEN];
    let mut w = Writer::new(&mut packet);
    let pos = header.encode(&mut w, &[], 78, 4);
    w.u8(1);
    let end = packet.len();
    wire::patch_length(&mut packet, &pos, end);
    packet[0] &= !0x40;
    puppet.keys.seal_long(Level::Initial, &mut packet, pos.pn_offset, 78).unwrap();
    packet
}

/// A Retry for a client's first packet.
fn retry(first: &[u8], scid: &ConnectionId, token: &[u8], unused: u8) -> Vec<u8> {
    let Ok(Header::Long { dcid, scid: client, .. }) = Header::parse(first, 8) else { panic!("a long header") };
    let mut packet = vec![0; 200];
    let mut w = Writer::new(&mut packet);
    wire::encode_retry(&mut w, 1, &client, scid, if token.is_empty() { b"x" } else { token });
    let len = w.position() - usize::from(token.is_empty());
    packet.truncate(len);
    packet[0] = packet[0] & 0xf0 | unused;
    let tag = retry_tag(Labels::of(1).unwrap(), dcid.as_slice(), &packet);
    packet.extend(tag);
    packet
}

// RFC 9000 §8.1.2 MUST-1; RFC 9000 §8.1.3 MUST-1, MUST NOT-1, MUST-3; RFC 9000 §17.2.5 MUST-1
// RFC 9000 §17.2.5.1 MUST-1, MUST-2; RFC 9000 §17.2.5.2 MUST-4, MUST NOT-1; RFC 9000 §17.2.5.3 MUST-1, MUST NOT-1
#[test]
fn a_client_obeys_a_retry_to_the_letter() {
    let new = ConnectionId::new(&[0x77; 12]).unwrap();
    for unused in 0..16 {
        let (mut client, handle, flight) = lonely_client();
        let Ok(Header::Long { dcid: id, scid: named, .. }) = Header::parse(&flight[0], 8) else { panic!("a header") };
        // One without a token, and one without a new ID.
        for bad in [retry(&flight[0], &new, b"", unused), retry(&flight[0], &id, b"token", unused)] {
            give(&mut client, at(1), server_address(0), &bad);
            assert!(sent(&mut client, at(1)).is_empty());
        }
        give(&mut client, at(1), server_address(0), &retry(&flight[0], &new, b"token", unused));
        let mut again: Vec<_> = sent(&mut client, at(1)).into_iter().map(|d| d.payload).collect();
        assert_eq!(again.len(), flight.len(), "unused bits {unused:x}");
        again.extend(keeps_sending(&mut client, at(1), at(4_000)));
        let before: Vec<_> = flight.iter().flat_map(|d| initials(d, Side::Client, &id)).collect();
        let after: Vec<_> = again.iter().flat_map(|d| initials(d, Side::Client, &new)).collect();
        assert!(after.iter().all(|p| p.dcid == new && p.scid == named && p.token == b"token"));
        let largest = before.iter().map(|p| p.pn).max().unwrap();
        assert!(after.iter().all(|p| p.pn > largest), "numbers go on");
        assert_eq!(
            handshake_bytes(before.iter().map(|p| &p.payload[..])),
            handshake_bytes(after.iter().map(|p| &p.payload[..])),
        );
        assert!(events(&mut client).iter().all(|(_, e)| !matches!(e, Event::TokenReceived(_))));
        assert!(!client.connection(handle).unwrap().is_closed());
    }
}

// RFC 9000 §17.2.5.1 MUST NOT-1, MUST NOT-2
#[test]
fn a_server_sends_one_retry_per_datagram_with_a_new_id() {
    let mut config = server_config(&Profile::default());
    config.retry = RetryPolicy::Always;
    let mut server = server_endpoint(1, config);
    let mut keys = Keys::new(Side::Client, Labels::of(1).unwrap(), KeyLimits::default());
    let (id, named) = (ConnectionId::new(&[0xdc; 8]).unwrap(), ConnectionId::new(&[0x5c; 8]).unwrap());
    keys.set_initial(id.as_slice());
    let mut two = support::puppet::seal_long(&mut keys, Level::Initial, id, named, 0, &[1; 600]);
    two.extend(support::puppet::seal_long(&mut keys, Level::Initial, id, named, 1, &[1; 600]));
    give(&mut server, Instant::ZERO, client_address(0), &two);
    let answers = sent(&mut server, Instant::ZERO);
    assert_eq!(answers.len(), 1);
    let Ok(Header::Retry { dcid, scid, .. }) = Header::parse(&answers[0].payload, 8) else { panic!("a Retry") };
    assert_eq!(dcid, named);
    assert_ne!(scid, id);
}

// RFC 9000 §17.2 SHOULD-1, SHOULD-2; RFC 9000 §17.2.1 SHOULD-1, MUST-2, MUST-3, MUST-4, MUST NOT-1, MUST NOT-2
// RFC 8999 §6 MUST-3, MUST-4
#[test]
fn version_negotiation_repeats_ids_of_any_length() {
    for (to, from) in [(0, 0), (8, 8), (21, 0), (255, 255), (7, 40)] {
        let mut server = server_endpoint(1, server_config(&Profile::default()));
        let mut datagram = vec![0xc3, 0x0b, 0x0b, 0x0b, 0x0b, to];
        datagram.extend(vec![0xaa; to.into()]);
        datagram.push(from);
        datagram.extend(vec![0xbb; from.into()]);
        datagram.resize(1300, 7);
        give(&mut server, Instant::ZERO, client_address(0), &datagram);
        let answers = sent(&mut server, Instant::ZERO);
        assert_eq!(answers.len(), 1, "{to} {from}");
        let answer = &answers[0].payload;
        let expected = [&[0, 0, 0, 0, from][..], &vec![0xbb; from.into()], &[to], &vec![0xaa; to.into()]].concat();
        assert_eq!(answer[0] & 0xc0, 0xc0);
        assert_eq!(answer[1..=expected.len()], expected[..]);
    }
}

// RFC 9000 §5.2.2 SHOULD-3
#[test]
fn a_server_that_is_full_says_so() {
    let mut config = server_config(&Profile::default());
    config.max_connections = 0;
    let mut server = server_endpoint(1, config);
    let (mut client, handle, flight) = lonely_client();
    give(&mut server, Instant::ZERO, client_address(0), &flight[0]);
    for answer in sent(&mut server, Instant::ZERO) {
        give(&mut client, at(1), server_address(0), &answer.payload);
    }
    sent(&mut client, at(1));
    let refused = events(&mut client).into_iter().any(|(_, event)| {
        matches!(event, Event::Closed(CloseReason::PeerClosed { error }) if error.code == Code::CONNECTION_REFUSED)
    });
    assert!(refused && client.connection(handle).unwrap().is_closed());
}

// RFC 9000 §5.2.2 SHOULD-4, MUST-2; RFC 9000 §10.3 MUST-2
#[test]
fn what_fits_no_connection_is_dropped() {
    let mut server = server_endpoint(1, server_config(&Profile::default()));
    let mut keys = Keys::new(Side::Client, Labels::of(1).unwrap(), KeyLimits::default());
    let (id, named) = (ConnectionId::new(&[0xdc; 8]).unwrap(), ConnectionId::new(&[0x5c; 8]).unwrap());
    keys.set_initial(id.as_slice());
    // Types of long packets that open nothing, and whatever is too short for a packet.
    let initial = support::puppet::seal_long(&mut keys, Level::Initial, id, named, 0, &[1; 1300]);
    let mut datagrams: Vec<Vec<u8>> = (0..22).map(|len| vec![0x41; len]).collect();
    for ty in [1, 2, 3] {
        let mut other = initial.clone();
        other[0] = other[0] & 0xcf | ty << 4;
        datagrams.push(other);
    }
    for datagram in datagrams {
        give(&mut server, Instant::ZERO, client_address(0), &datagram);
        assert!(sent(&mut server, Instant::ZERO).is_empty(), "{} bytes", datagram.len());
    }
    assert_eq!(server.open_connections(), 0);
}

// RFC 9000 §12.2 MUST-1, SHOULD-2, MUST-2, MUST-3; RFC 9000 §13.1 MUST NOT-1
#[test]
fn packets_of_a_datagram_are_processed_one_by_one() {
    let mut puppet = client();
    puppet.flush(&[Level::Initial]);
    puppet.collect();
    let before = processed(&puppet);
    let packet = |puppet: &mut Puppet, pn| puppet.packet_numbered(Level::Initial, pn, &[1; 300]);
    let mut datagram = packet(&mut puppet, 20);
    let mut forged = packet(&mut puppet, 21);
    forged[100] ^= 1;
    datagram.extend(forged);
    datagram.extend(packet(&mut puppet, 22));
    let conforming = std::mem::replace(&mut puppet.dcid, ConnectionId::new(&[0x31; 8]).unwrap());
    datagram.extend(packet(&mut puppet, 23));
    puppet.dcid = conforming;
    datagram.resize(datagram.len().max(1200), 0);
    puppet.give(&datagram);
    assert_eq!(processed(&puppet) - before, 2, "20 and 22");
    puppet.collect();
    let acked: BTreeSet<u64> = puppet
        .frames()
        .filter_map(
            |(_, f)| if let Frame::Ack(ack) = f { Some(ack.ranges().flatten().collect::<Vec<_>>()) } else { None },
        )
        .flatten()
        .collect();
    assert!(acked.contains(&20) && acked.contains(&22), "{acked:?}");
    assert!(!acked.contains(&21) && !acked.contains(&23), "{acked:?}");
}
