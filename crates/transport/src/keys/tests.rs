use proptest::prelude::*;
use wire::version::{V1, V2};

use super::*;
use crate::crypto::TAG_LEN;
use crate::tls::testing::Toy;

const SUITE: CipherSuite = CipherSuite::Aes128Gcm;
const PATH: PathId = PathId(0);
const WAIT: Duration = Duration::from_millis(300);

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn endpoint(side: Side, limits: KeyLimits) -> Keys {
    let mut keys = Keys::new(side, Labels::of(V1).unwrap(), limits);
    keys.set_initial(b"12345678");
    for level in [Level::Handshake, Level::OneRtt] {
        keys.install(level, Direction::Local, SUITE, &Toy::secret(SUITE, level, side));
        keys.install(level, Direction::Remote, SUITE, &Toy::secret(SUITE, level, side.peer()));
    }
    let direction = if side == Side::Client { Direction::Local } else { Direction::Remote };
    keys.install(Level::ZeroRtt, direction, SUITE, &Toy::secret(SUITE, Level::ZeroRtt, Side::Client));
    keys.on_handshake_confirmed();
    keys
}

fn pair() -> (Keys, Keys) {
    (endpoint(Side::Client, KeyLimits::default()), endpoint(Side::Server, KeyLimits::default()))
}

const PAYLOAD: &[u8] = b"frames";

/// A short header packet with an empty connection ID and a packet number of two bytes.
fn short_packet(pn: u64) -> Vec<u8> {
    let mut packet = vec![bits::FIXED | 1];
    packet.extend_from_slice(&(pn as u16).to_be_bytes());
    packet.extend_from_slice(PAYLOAD);
    packet.resize(packet.len() + TAG_LEN, 0);
    packet
}

fn seal(keys: &mut Keys, pn: u64) -> Vec<u8> {
    let mut packet = short_packet(pn);
    keys.seal_short(&mut packet, 1, pn, PATH).unwrap();
    packet
}

fn open(keys: &mut Keys, packet: &[u8], expected: u64) -> Result<Opened, OpenError> {
    let mut packet = packet.to_vec();
    let opened = keys.open_short(&mut packet, 1, PATH, expected)?;
    assert_eq!(&packet[opened.payload.clone()], PAYLOAD);
    Ok(opened)
}

// RFC 9001 §5.6 MUST NOT-2, MUST NOT-3, MUST-2
#[test]
fn long_packets_of_every_level_go_from_one_side_to_the_other() {
    let (mut client, mut server) = pair();
    for level in [Level::Initial, Level::ZeroRtt, Level::Handshake] {
        let mut packet = vec![bits::LONG_FORM | bits::FIXED | 3, 0, 0, 0, 9];
        packet.extend_from_slice(PAYLOAD);
        packet.resize(packet.len() + TAG_LEN, 0);
        client.seal_long(level, &mut packet, 1, 9).unwrap();
        assert_eq!(
            client.open_long(level, &mut packet.clone(), 1, 0),
            Err(match level {
                Level::ZeroRtt => OpenError::NoKeys,
                _ => OpenError::Forged,
            })
        );
        let opened = server.open_long(level, &mut packet.clone(), 1, 0).unwrap();
        assert_eq!((opened.pn, opened.payload), (9, 5..5 + PAYLOAD.len()));
        for len in 0..packet.len() {
            assert!(server.open_long(level, &mut packet[..len].to_vec(), 1, 0).is_err(), "{len} bytes");
        }
        server.discard(level);
        assert!(!server.can_open(level));
        assert_eq!(server.open_long(level, &mut packet, 1, 0), Err(OpenError::NoKeys));
    }
    assert!(!server.can_seal(Level::ZeroRtt));
}

/// The packets of RFC 9001 §A and RFC 9369 §A, whose packet numbers take 2, 3 and 4 bytes.
#[test]
fn the_samples_of_the_standards_are_sealed_and_opened() {
    use crate::crypto::vectors::*;
    let cases = [
        (V1, CLIENT_HEADER_V1, CLIENT_PACKET_V1, SERVER_HEADER_V1, SERVER_PACKET_V1),
        (V2, CLIENT_HEADER_V2, CLIENT_PACKET_V2, SERVER_HEADER_V2, SERVER_PACKET_V2),
    ];
    for (version, client_header, client_packet, server_header, server_packet) in cases {
        let labels = Labels::of(version).unwrap();
        let mut ends = [Side::Client, Side::Server].map(|side| {
            let mut keys = Keys::new(side, labels, KeyLimits::default());
            keys.set_initial(&DCID);
            keys
        });
        let mut padded = hex(CLIENT_FRAMES);
        padded.resize(1162, 0);
        let frames = hex(SERVER_FRAMES);
        for (header, frames, sample, pn_len, pn) in
            [(client_header, &padded, client_packet, 4, 2), (server_header, &frames, server_packet, 2, 1)]
        {
            let header = hex(header);
            let mut packet = [&header[..], frames, &[0; TAG_LEN]].concat();
            ends[0].seal_long(Level::Initial, &mut packet, header.len() - pn_len, pn).unwrap();
            assert_eq!(packet, hex(sample));
            let opened = ends[1].open_long(Level::Initial, &mut packet, header.len() - pn_len, 0).unwrap();
            assert_eq!((opened.pn, &packet[opened.payload]), (pn, &frames[..]));
            // The second packet goes the other way.
            ends.reverse();
        }
    }

    let suite = CipherSuite::ChaCha20Poly1305;
    let secret = Secret::new(&hex("9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b")).unwrap();
    let mut client = Keys::new(Side::Client, Labels::of(V1).unwrap(), KeyLimits::default());
    client.install(Level::OneRtt, Direction::Local, suite, &secret);
    client.install(Level::OneRtt, Direction::Remote, suite, &secret);
    let mut packet = [hex("4200bff401"), vec![0; TAG_LEN]].concat();
    client.seal_short(&mut packet, 1, 654_360_564, PATH).unwrap();
    assert_eq!(packet, hex("4cfe4189655e5cd55c41f69080575d7999c25a5bfb"));
    let opened = client.open_short(&mut packet, 1, PATH, 654_360_000).unwrap();
    assert_eq!((opened.pn, &packet[opened.payload]), (654_360_564, &[1][..]));
}

// RFC 9000 §17.2 MUST-5
#[test]
fn a_reserved_bit_in_an_authentic_packet_is_an_error_of_the_peer() {
    let (mut client, mut server) = pair();
    let mut packet = short_packet(1);
    packet[0] |= 0x10;
    client.seal_short(&mut packet, 1, 1, PATH).unwrap();
    let error = open(&mut server, &packet, 1).unwrap_err();
    assert_eq!(error.fatal().unwrap().code, Code::PROTOCOL_VIOLATION);

    let mut packet = vec![bits::LONG_FORM | bits::FIXED | 0x0c, 1, 2, 3, 4];
    packet.resize(packet.len() + TAG_LEN, 0);
    client.seal_long(Level::Initial, &mut packet, 1, 1).unwrap();
    let error = server.open_long(Level::Initial, &mut packet, 1, 0).unwrap_err();
    assert_eq!(error, OpenError::ReservedBits);
}

// RFC 9001 §5.5 MUST-1, MUST-2; RFC 9001 §6.6 MUST-5, MUST-6
#[test]
fn forged_packets_are_dropped_until_there_are_too_many() {
    let mut client = endpoint(Side::Client, KeyLimits::default());
    let mut server = endpoint(Side::Server, KeyLimits { integrity: Some(20), ..KeyLimits::default() });
    let packet = seal(&mut client, 1);
    for i in 0..20 {
        let mut forged = packet.clone();
        forged[i % packet.len()] ^= 0x24;
        let error = open(&mut server, &forged, 1).unwrap_err();
        assert_eq!((error, error.fatal()), (OpenError::Forged, None), "byte {i}");
    }
    assert!(open(&mut server, &packet, 1).is_ok(), "an authentic packet still opens");
    let mut forged = packet.clone();
    forged[10] ^= 1;
    let error = open(&mut server, &forged, 2).unwrap_err();
    assert_eq!(error.fatal().unwrap().code, Code::AEAD_LIMIT_REACHED);
    assert_eq!(server.forged(), 21);
    assert_eq!(server.updates(), 0, "a forged Key Phase bit updates nothing");
}

#[test]
fn a_stateless_reset_token_survives_the_attempt_to_open_it() {
    let (_, mut server) = pair();
    let mut packet: Vec<u8> = (0..40).collect();
    packet[0] = bits::FIXED;
    assert_eq!(server.open_short(&mut packet, 9, PATH, 0), Err(OpenError::Forged));
    assert_eq!(packet[24..], (24..40).collect::<Vec<u8>>());
    assert_eq!(server.open_short(&mut packet[..20], 9, PATH, 0), Err(OpenError::TooShort));
}

// RFC 9001 §6.1 MUST NOT-1, MUST NOT-2; RFC 9001 §6.2 MUST-1; RFC 9001 §6.5 SHOULD-1
#[test]
fn an_update_needs_confirmation_acknowledgement_and_patience() {
    let (mut client, mut server) = pair();
    client.one_rtt.confirmed = false;
    assert!(!client.update(at(0), WAIT), "not before the handshake is confirmed");
    client.on_handshake_confirmed();
    assert!(client.update(at(0), WAIT));
    assert!(!client.update(at(10_000), WAIT), "nothing was acknowledged");

    let opened = open(&mut server, &seal(&mut client, 1), 0).unwrap();
    assert!(opened.new_phase && !opened.old_keys);
    assert_eq!(server.updates(), 1, "the server follows");
    assert!(!open(&mut server, &seal(&mut client, 2), 2).unwrap().new_phase);

    server.on_ack_sent(PATH, 2);
    let opened = open(&mut client, &seal(&mut server, 1), 0).unwrap();
    assert!(opened.new_phase, "the first packet with the new keys that the client sees");
    client.on_acked(PATH, 2, at(100), opened.old_keys).unwrap();
    assert!(!client.update(at(399), WAIT));
    assert!(client.update(at(400), WAIT));
    assert!(open(&mut server, &seal(&mut client, 3), 3).unwrap().new_phase);
    assert_eq!((client.updates(), server.updates()), (2, 2));
}

// RFC 9001 §6.3 MUST-1
#[test]
fn a_connection_that_has_rested_follows_an_update_and_starts_one() {
    let (mut client, mut server) = pair();
    let has_next = |keys: &Keys| keys.one_rtt.has_next();
    server.shrink();
    assert!(!has_next(&server));
    // Whatever arrives first, a forged packet too, makes the key.
    let mut forged = seal(&mut client, 1);
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(open(&mut server, &forged, 0), Err(OpenError::Forged));
    assert!(has_next(&server));
    server.shrink();
    assert!(client.update(at(0), WAIT));
    assert!(open(&mut server, &seal(&mut client, 2), 0).unwrap().new_phase);
    server.on_ack_sent(PATH, 2);
    client.shrink();
    let opened = open(&mut client, &seal(&mut server, 1), 0).unwrap();
    client.on_acked(PATH, 2, at(100), opened.old_keys).unwrap();
    // An update of its own while it rests.
    client.shrink();
    assert!(client.update(at(400), WAIT));
    assert!(open(&mut server, &seal(&mut client, 3), 3).unwrap().new_phase);
    server.on_ack_sent(PATH, 3);
    assert!(open(&mut client, &seal(&mut server, 2), 2).unwrap().new_phase);
}

// RFC 9001 §6.1 MUST-1; RFC 9001 §6.3 MUST-1
#[test]
fn both_sides_may_update_at_once() {
    let (mut client, mut server) = pair();
    let (old_c, old_s) = (seal(&mut client, 1), seal(&mut server, 1));
    assert!(client.update(at(0), WAIT) && server.update(at(0), WAIT));
    let (new_c, new_s) = (seal(&mut client, 2), seal(&mut server, 2));
    assert!(open(&mut server, &new_c, 0).unwrap().new_phase);
    assert!(open(&mut client, &new_s, 0).unwrap().new_phase);
    assert!(open(&mut server, &old_c, 3).unwrap().old_keys);
    assert!(open(&mut client, &old_s, 3).unwrap().old_keys);
    assert_eq!((client.updates(), server.updates()), (1, 1));
}

#[test]
fn two_updates_without_an_acknowledgement_are_an_error() {
    let (mut client, mut server) = pair();
    assert!(client.update(at(0), WAIT));
    open(&mut server, &seal(&mut client, 1), 0).unwrap();
    // A client that breaks the rules: it takes for granted that its packet was acknowledged.
    client.on_acked(PATH, 1, at(0), false).unwrap();
    assert!(client.update(at(1000), WAIT));
    server.retire_previous_at(at(900));
    server.on_timeout(at(900));
    let error = open(&mut server, &seal(&mut client, 2), 2).unwrap_err();
    assert_eq!(error.fatal().unwrap().code, Code::KEY_UPDATE_ERROR);
}

// RFC 9001 §6.4 MUST-2
#[test]
fn old_keys_after_new_ones_are_an_error() {
    let (mut old_client, mut server) = pair();
    let mut new_client = endpoint(Side::Client, KeyLimits::default());
    // The server updates, so that it expects both phases; the client uses new keys for 5 and old ones for 6.
    assert!(server.update(at(0), WAIT));
    assert!(open(&mut server, &seal(&mut old_client, 6), 0).unwrap().old_keys);
    assert!(new_client.update(at(0), WAIT));
    let error = open(&mut server, &seal(&mut new_client, 5), 7).unwrap_err();
    assert_eq!(error.fatal().unwrap().code, Code::KEY_UPDATE_ERROR);
}

// RFC 9001 §6.2 MUST-2
#[test]
fn an_acknowledgement_of_new_keys_in_old_ones_is_an_error() {
    let (mut client, mut server) = pair();
    let old = seal(&mut server, 1);
    assert!(client.update(at(0), WAIT));
    seal(&mut client, 7);
    let opened = open(&mut client, &old, 0).unwrap();
    assert!(opened.old_keys);
    assert_eq!(client.on_acked(PATH, 6, at(1), opened.old_keys), Ok(()));
    assert_eq!(client.on_acked(PATH, 7, at(1), opened.old_keys).unwrap_err().code, Code::KEY_UPDATE_ERROR);
}

// RFC 9001 §6.1 SHOULD-1; RFC 9001 §6.5 SHOULD-2, SHOULD-3
#[test]
fn previous_keys_are_forgotten_in_time() {
    let (mut client, mut server) = pair();
    let (late, later) = (seal(&mut client, 1), seal(&mut client, 2));
    assert!(client.update(at(0), WAIT));
    assert!(open(&mut server, &seal(&mut client, 3), 0).unwrap().new_phase);
    server.retire_previous_at(at(300));
    assert_eq!(server.deadline(), Some(at(300)));
    server.on_timeout(at(299));
    assert!(open(&mut server, &late, 4).unwrap().old_keys);
    server.on_timeout(at(300));
    assert_eq!(server.deadline(), None);
    assert_eq!(open(&mut server, &later, 4), Err(OpenError::Forged));
    assert_eq!(server.updates(), 1);
}

// RFC 9001 §5.3 MUST-1; RFC 9001 §6.6 MUST-1, MUST-2, MUST-3
// RFC 9001 §6.6 MUST-4, RECOMMENDED-1
#[test]
fn a_key_near_its_limit_is_updated_and_never_used_beyond_it() {
    let limits = KeyLimits { confidentiality: Some(16), ..KeyLimits::default() };
    let (mut client, mut server) = (endpoint(Side::Client, limits), pair().1);
    for pn in 0..14 {
        open(&mut server, &seal(&mut client, pn), pn).unwrap();
    }
    assert_eq!(client.updates(), 0);
    for pn in 14..29 {
        open(&mut server, &seal(&mut client, pn), pn).unwrap();
    }
    assert_eq!((client.updates(), server.updates()), (1, 1), "at 14 of 16, by itself");
    let mut packet = short_packet(29);
    let error = client.seal_short(&mut packet, 1, 29, PATH).unwrap_err();
    assert_eq!(error, SealError::ConfidentialityLimit, "nothing was acknowledged, so no further update");
    assert_eq!(TransportError::from(error).code, Code::AEAD_LIMIT_REACHED);
    let mut other = endpoint(Side::Client, limits);
    (0..28).for_each(|pn| drop(seal(&mut other, pn)));
    client.on_acked(PATH, 14, at(0), false).unwrap();
    seal(&mut client, 30);
    assert_eq!(client.updates(), 2);
    // One packet of the sixteen is for CONNECTION_CLOSE, and none follows it.
    (28..29).for_each(|pn| drop(seal(&mut other, pn)));
    assert!(other.seal_short(&mut short_packet(29), 1, 29, PATH).is_err());
    other.allow_close_packets();
    seal(&mut other, 29);
    assert_eq!(other.seal_short(&mut short_packet(30), 1, 30, PATH), Err(SealError::ConfidentialityLimit));
}

#[test]
fn paths_have_packet_numbers_of_their_own() {
    let (mut client, mut server) = pair();
    let send = |client: &mut Keys, server: &mut Keys, path: u32, pn: u64| {
        let mut packet = short_packet(pn);
        client.seal_short(&mut packet, 1, pn, PathId(path)).unwrap();
        let other = server.open_short(&mut packet.clone(), 1, PathId(path + 1), pn);
        assert!(other.is_err(), "the path is authenticated");
        server.open_short(&mut packet, 1, PathId(path), pn)
    };
    for path in 0..3 {
        assert!(send(&mut client, &mut server, path, 100 * u64::from(path)).is_ok());
    }
    assert!(client.update(at(0), WAIT));
    assert!(send(&mut client, &mut server, 2, 201).unwrap().new_phase);
    // On other paths the packet numbers are lower, which says nothing about the phase.
    assert!(!send(&mut client, &mut server, 0, 1).unwrap().new_phase);
    assert!(send(&mut client, &mut server, 1, 101).is_ok());
    assert_eq!(server.updates(), 1);
}

/// Packet number, generation, bytes, and the largest packet number that the packet acknowledges.
type InFlight = (u64, u64, Vec<u8>, Option<u64>);

proptest! {
    /// Two conforming endpoints exchange packets over a path that delays and drops at will; the older of the keys that a
    /// delayed packet needs are there as long as the peer cannot have updated twice. Everything opens.
    // RFC 9001 §6.4 MUST-1; RFC 9001 §6.3 SHOULD-1; RFC 9001 §9.5 SHOULD-1
    #[test]
    fn reordering_across_updates_loses_nothing(
        steps in prop::collection::vec((any::<bool>(), 0u8..9, any::<u8>()), 1..300),
    ) {
        let mut keys = [endpoint(Side::Client, KeyLimits::default()), endpoint(Side::Server, KeyLimits::default())];
        // By receiver.
        let mut flight: [Vec<InFlight>; 2] = Default::default();
        let mut next_pn = [0u64; 2];
        let mut largest: [Option<u64>; 2] = [None; 2];
        for (i, (who, what, which)) in steps.into_iter().enumerate() {
            let (me, peer) = (usize::from(who), usize::from(!who));
            let now = at(i as u64);
            match what {
                0..=3 => {
                    let pn = next_pn[me];
                    next_pn[me] += 1;
                    if let Some(largest) = largest[me] {
                        keys[me].on_ack_sent(PATH, largest);
                    }
                    let packet = seal(&mut keys[me], pn);
                    let generation = keys[me].updates();
                    flight[peer].push((pn, generation, packet, largest[me]));
                }
                4..=6 if !flight[me].is_empty() => {
                    let at = usize::from(which) % flight[me].len();
                    let (pn, generation, packet, acked) = flight[me].remove(at);
                    let before = keys[me].updates();
                    let opened = open(&mut keys[me], &packet, largest[me].map_or(0, |pn| pn + 1));
                    // Only packets two phases back may be lost.
                    if generation + 1 < before {
                        continue;
                    }
                    let opened = opened.unwrap();
                    prop_assert_eq!(opened.pn, pn);
                    prop_assert_eq!(opened.old_keys, generation < before);
                    prop_assert_eq!(keys[me].updates(), before.max(generation));
                    largest[me] = largest[me].max(Some(pn));
                    if let Some(acked) = acked {
                        keys[me].on_acked(PATH, acked, now, opened.old_keys).unwrap();
                    }
                }
                // An end may rest at any time.
                8 => keys[me].shrink(),
                _ => {
                    // Without the wait of three PTO, so that updates follow each other as fast as the rules allow.
                    keys[me].update(now, Duration::ZERO);
                }
            }
            prop_assert!(keys[0].updates().abs_diff(keys[1].updates()) <= 1);
        }
    }
}
