//! Requirements of the standards that show on the wire, one by one; the marks name them (`docs/compliance.md`).

use crate::support;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sim::{client_address, server_address};
use support::{
    client_config, client_endpoint,
    direct::{converse, events, give, sent},
    puppet::{LEVELS, Puppet, ack, bytes},
    server_config, server_endpoint,
};
use transport::{
    CloseReason, Code, Endpoint, Event, Handle, PathId, Profile, RetryPolicy,
    crypto::{Labels, TAG_LEN, retry_tag},
    keys::{KeyLimits, Keys},
    tls::Level,
};
use units::{Duration, Instant};
use wire::{
    ConnectionId, Dir, Frame, Frames, Header, LongHeader, LongType, ResetToken, Side, StreamFrame, StreamId, Writer,
};

const MS: Duration = Duration::from_millis(1);

fn client() -> Puppet {
    Puppet::client(&Profile::default(), |_, _| {})
}

fn server() -> Puppet {
    Puppet::server(&Profile::default(), |_, _| {})
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn processed(puppet: &Puppet) -> u64 {
    puppet.victim.connection(puppet.handle.unwrap()).unwrap().stats().packets_received
}

/// A client that nobody answers, and what it sends first.
fn lonely_client() -> (Endpoint, Handle, Vec<Vec<u8>>) {
    let mut client = client_endpoint(1);
    let config = client_config(&Profile::default());
    let handle = client.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
    let flight = sent(&mut client, Instant::ZERO).into_iter().map(|d| d.payload).collect();
    (client, handle, flight)
}

/// What the client of a connection sends until `end`, unanswered.
fn keeps_sending(client: &mut Endpoint, mut now: Instant, end: Instant) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some((due, ..)) = client.poll_timeout().filter(|(due, ..)| *due <= end) {
        now = now.max(due);
        client.handle_timeout(now);
        all.extend(sent(client, now).into_iter().map(|d| d.payload));
    }
    all
}

/// A packet with a long header, opened: its IDs, token, number and frames.
struct Opened {
    dcid: ConnectionId,
    scid: ConnectionId,
    token: Vec<u8>,
    pn: u64,
    payload: Vec<u8>,
}

/// The Initial packets in a datagram of `sender`, opened with keys for `id`.
fn initials(datagram: &[u8], sender: Side, id: &ConnectionId) -> Vec<Opened> {
    let mut keys = Keys::new(sender.peer(), Labels::of(1).unwrap(), KeyLimits::default());
    keys.set_initial(id.as_slice());
    let mut rest = datagram;
    let mut opened = Vec::new();
    while let Ok(header) = Header::parse(rest, 8) {
        let (packet, after) = rest.split_at(header.packet_len());
        if let Header::Long { ty: LongType::Initial, dcid, scid, token, pn_offset, .. } = header {
            let mut packet = packet.to_vec();
            let token = packet[token].to_vec();
            let open = keys.open_long(Level::Initial, &mut packet, pn_offset, 0).expect("the keys of this ID");
            opened.push(Opened { dcid, scid, token, pn: open.pn, payload: packet[open.payload].to_vec() });
        }
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    opened
}

/// The handshake bytes in payloads, put together.
fn handshake_bytes<'a>(payloads: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut all = BTreeMap::new();
    for payload in payloads {
        for frame in Frames::new(payload).flatten() {
            if let Frame::Crypto { offset, data } = frame {
                all.extend(data.iter().enumerate().map(|(n, &byte)| (offset + n as u64, byte)));
            }
        }
    }
    assert!(all.keys().copied().eq(0..all.len() as u64), "no gaps");
    all.into_values().collect()
}

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
        ("an honest one", 1, None, &b""[..], 0x40, true),
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
        assert_eq!(puppet.goodbye(), None, "{name}");
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
    let honest = std::mem::replace(&mut puppet.dcid, ConnectionId::new(&[0x31; 8]).unwrap());
    datagram.extend(packet(&mut puppet, 23));
    puppet.dcid = honest;
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

/// Both roles of a victim, connected, with a stream and a datagram each way.
fn conversations() -> Vec<(Side, Puppet)> {
    let mut all = Vec::new();
    for mut puppet in [client(), server()] {
        puppet.flush(&[Level::Initial]);
        puppet.collect();
        let mut puppet = puppet.connected();
        let handle = puppet.handle.unwrap();
        let connection = puppet.victim.connection_mut(handle).unwrap();
        let id = connection.open(Dir::Bi).unwrap();
        connection.write(id, &mut Bytes::from(vec![7; 5_000])).unwrap();
        connection.send_datagram(Bytes::from_static(b"datagram")).unwrap();
        puppet.collect();
        puppet.wait(Duration::from_secs(3));
        puppet.acknowledge(Level::OneRtt);
        puppet.collect();
        all.push((if puppet.side == Side::Client { Side::Server } else { Side::Client }, puppet));
    }
    all
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

fn count(puppet: &Puppet, wanted: impl Fn(&Frame<'_>) -> bool) -> usize {
    puppet.frames().filter(|(_, frame)| wanted(frame)).count()
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

/// Where a datagram with a short header goes, and its frames.
fn open_short(puppet: &mut Puppet, datagram: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut packet = datagram.to_vec();
    let dcid = packet[1..9].to_vec();
    let expected = puppet.seen[2].last().map_or(0, |pn| pn + 1);
    let opened = puppet.keys.open_short(&mut packet, 9, PathId(0), expected).expect("an authentic packet");
    puppet.seen[2].insert(opened.pn);
    (dcid, packet[opened.payload].to_vec())
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
fn after_the_peers_goodbye_there_is_silence() {
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
    assert!(answered > 0, "the goodbye is repeated all the same");
}

// RFC 9000 §10.2.3 MUST-2, MUST-3, SHOULD-4; RFC 9000 §12.5 MUST-1
#[test]
fn an_applications_goodbye_is_not_told_before_the_handshake_is_confirmed() {
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
        let cut = cut.expect("a goodbye");
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

// RFC 9000 §2.1 MUST NOT-1; RFC 9000 §4.6 MUST NOT-1, MUST-3, SHOULD-1; RFC 9000 §19.11 MUST-2, MUST NOT-1
// RFC 9000 §19.14 SHOULD-1
#[test]
fn streams_are_opened_as_the_peer_permits() {
    let mut puppet = server().connected();
    let handle = puppet.handle.unwrap();
    let open = |puppet: &mut Puppet| puppet.victim.connection_mut(handle).unwrap().open(Dir::Bi);
    let mut ids = BTreeSet::new();
    while let Some(id) = open(&mut puppet) {
        assert!(ids.insert(id));
    }
    assert_eq!(ids.len(), 10, "what the puppet offers");
    puppet.collect();
    assert_eq!(count(&puppet, |f| *f == Frame::StreamsBlocked { dir: Dir::Bi, limit: 10 }), 1);
    for (limit, opens) in [(9, 0), (0, 0), (11, 1), (10, 0), (11, 0), (13, 2)] {
        puppet.send(Level::OneRtt, &bytes(&[Frame::MaxStreams { dir: Dir::Bi, limit }]));
        let opened = std::iter::from_fn(|| open(&mut puppet)).inspect(|id| assert!(ids.insert(*id))).count();
        assert_eq!(opened, opens, "{limit}");
    }
}

// RFC 9000 §3.2 MUST-1
#[test]
fn a_stream_opens_those_before_it() {
    let mut puppet = client().connected();
    let frame = Frame::Stream(StreamFrame { id: StreamId(12), offset: 0, fin: false, data: b"x" });
    puppet.send(Level::OneRtt, &bytes(&[frame]));
    let connection = puppet.victim.connection_mut(puppet.handle.unwrap()).unwrap();
    let accepted: Vec<_> = std::iter::from_fn(|| connection.accept(Dir::Bi)).collect();
    assert_eq!(accepted, [StreamId(0), StreamId(4), StreamId(8), StreamId(12)]);
    assert_eq!(connection.accept(Dir::Uni), None);
}

// RFC 9000 §2.2 MUST NOT-2; RFC 9000 §4.1 MUST NOT-1, MUST-2, SHOULD-1; RFC 9000 §4.5 MUST NOT-1
// RFC 9000 §19.10 MUST NOT-1; RFC 9000 §19.12 SHOULD-1; RFC 9000 §19.13 SHOULD-1
#[test]
fn data_stays_within_the_credit_and_before_the_end() {
    for (stream, whole) in [(100, 1_000), (1_000, 100)] {
        let mut puppet = Puppet::server(&Profile::default(), |p, _| {
            p.initial_max_stream_data_bidi_remote = stream;
            p.initial_max_data = whole;
        })
        .connected();
        let handle = puppet.handle.unwrap();
        let connection = puppet.victim.connection_mut(handle).unwrap();
        let id = connection.open(Dir::Bi).unwrap();
        connection.write(id, &mut Bytes::from(vec![1; 5_000])).unwrap();
        connection.finish(id).unwrap();
        assert!(connection.write(id, &mut Bytes::from_static(b"more")).is_err(), "nothing comes behind the end");
        let end = |puppet: &Puppet| {
            let ends = puppet.frames().filter_map(|(_, f)| match f {
                Frame::Stream(f) => Some(f.offset + f.data.len() as u64),
                _ => None,
            });
            ends.max()
        };
        for limit in [100, 90, 100, 350, 200] {
            puppet.send(Level::OneRtt, &bytes(&[Frame::MaxData(limit), Frame::MaxStreamData { id, limit }]));
            puppet.collect();
            puppet.wait(Duration::from_millis(200));
            puppet.acknowledge(Level::OneRtt);
        }
        assert_eq!(end(&puppet), Some(350));
        let blocked =
            if stream < whole { Frame::StreamDataBlocked { id, limit: 100 } } else { Frame::DataBlocked(100) };
        assert!(count(&puppet, |f| *f == blocked) > 0);
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
        assert_eq!(puppet.goodbye(), Some(Code::PROTOCOL_VIOLATION), "{gap}");
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

// RFC 9000 §7.3 MUST-1; RFC 9000 §7.4 MUST NOT-1; RFC 9000 §18.2 MUST NOT-1, MUST-2, MUST NOT-5
#[test]
fn two_ends_accept_each_others_parameters() {
    for retry in [RetryPolicy::Never, RetryPolicy::Always] {
        let mut config = server_config(&Profile::default());
        config.retry = retry;
        let (mut client, handle, flight) = lonely_client();
        let mut server = server_endpoint(1, config);
        flight.iter().for_each(|d| give(&mut server, Instant::ZERO, client_address(0), d));
        converse(Instant::ZERO, (&mut client, client_address(0)), (&mut server, server_address(0)));
        assert!(client.connection(handle).unwrap().is_connected(), "{retry:?}");
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
        assert_eq!(puppet.goodbye(), None);
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
