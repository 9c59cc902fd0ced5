//! Answers of an endpoint to addresses that are not validated: stateless resets with a ring of several keys, and clients whose
//! NEW_TOKEN token cannot be judged.

use crate::support;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use sim::{client_address, server_address};
use support::{
    client_config, client_endpoint,
    direct::{converse, events, give, sent},
    server_config,
};
use transport::{
    Endpoint, EndpointConfig, Event, Profile, RetryPolicy,
    ring::{KeyRing, MAX_KEYS, RingKey, Strike, StrikeId, StrikeRegister},
};
use units::{Duration, Instant, Seed};

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn key(id: usize) -> RingKey {
    RingKey { from: Some(id as u64), ..RingKey::new(id as u32, [id as u8 + 1; 32]) }
}

/// A server with these keys, the last of which is the newest.
fn server(keys: impl Iterator<Item = usize>) -> Endpoint {
    let mut config = EndpointConfig::from_seed(Seed::from_number(1));
    config.ring = KeyRing::new(keys.map(key).collect()).unwrap();
    Endpoint::new(config, Some(Arc::new(server_config(&Profile::default()))))
}

/// A packet of `len` bytes for a connection that nobody knows.
fn unknown(connection: u64, len: usize) -> Vec<u8> {
    let mut packet = vec![0x41; len];
    packet[1..9].copy_from_slice(&connection.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    packet
}

/// The reset tokens that `server` answers a packet with.
fn answers(server: &mut Endpoint, now: Instant, packet: &[u8]) -> Vec<Vec<u8>> {
    give(server, now, client_address(0), packet);
    sent(server, now).into_iter().map(|d| d.payload).collect()
}

fn token(reset: &[u8]) -> [u8; 16] {
    *reset.last_chunk().unwrap()
}

/// The token that key `id` gives to a connection.
fn token_of(id: usize, connection: u64) -> [u8; 16] {
    let alone = answers(&mut server([id].into_iter()), at(100_000), &unknown(connection, 1_200));
    let [reset] = &alone[..] else { panic!("{} resets of one key", alone.len()) };
    token(reset)
}

// RFC 9000 §10.3 SHOULD-3, MUST NOT-1; RFC 9000 §10.3.3 MUST-1
#[test]
fn resets_of_all_keys_together_are_no_amplification() {
    for keys in 1..=MAX_KEYS {
        let mut server = server(0..keys);
        for (n, len) in (10..=1_200).enumerate() {
            // A second for each, so that the limit per second hides nothing.
            let now = at(1_000_000 + 1_000 * n as u64);
            let resets = answers(&mut server, now, &unknown(n as u64, len));
            let bytes: usize = resets.iter().map(Vec::len).sum();
            assert!(bytes <= 3 * len, "{keys} keys answer {len} bytes with {bytes}");
            assert!(resets.iter().all(|reset| reset.len() < len), "{keys} keys, {len} bytes");
            assert_eq!(!resets.is_empty(), len > 21, "{keys} keys, {len} bytes");
            // What may be a reset itself has one answer at most: a loop of two endpoints does not grow.
            assert!(len > 43 || resets.len() <= 1, "{} resets for {len} bytes", resets.len());
        }
    }
}

/// Two endpoints that have both lost their state answer each other's resets.
// RFC 9000 §10.3.3 MUST-1
#[test]
fn a_loop_of_resets_ends_and_does_not_grow() {
    let mut ends = [server(0..MAX_KEYS), server(0..MAX_KEYS)];
    let mut flying = vec![unknown(1, 1_200)];
    let (mut packets, mut rounds) = (0, 0);
    while !flying.is_empty() {
        let now = at(1_000_000 + 1_000 * rounds as u64);
        flying = flying.iter().flat_map(|packet| answers(&mut ends[rounds % 2], now, packet)).collect();
        packets += flying.len();
        rounds += 1;
        assert!(flying.len() <= MAX_KEYS, "{} packets in round {rounds}", flying.len());
    }
    assert!(rounds <= 23, "each is shorter than what it answers: {rounds} rounds");
    assert!(packets <= 22 * MAX_KEYS, "{packets} resets for one packet");
}

/// A client continues sending: whichever key its connection began with, it hears of it after a few packets.
#[test]
fn every_key_has_its_turn_the_newest_first() {
    for len in [22, 40, 43, 60, 100, 200] {
        let mut server = server(0..MAX_KEYS);
        // Many connections at a time: the turns of one are not taken by the others.
        let mut heard = BTreeMap::<u64, Vec<[u8; 16]>>::new();
        for round in 0..MAX_KEYS as u64 {
            for connection in 0..8 {
                let now = at(1_000_000 + 1_000 * (8 * round + connection));
                let resets = answers(&mut server, now, &unknown(connection, len));
                heard.entry(connection).or_default().extend(resets.iter().map(|reset| token(reset)));
            }
        }
        for (connection, tokens) in heard {
            assert_eq!(tokens[0], token_of(MAX_KEYS - 1, connection), "{len} bytes: the newest key first");
            for id in 0..MAX_KEYS {
                assert!(tokens.contains(&token_of(id, connection)), "{len} bytes: connection {connection}, key {id}");
            }
        }
    }
}

#[test]
fn the_limit_per_second_counts_resets() {
    for keys in [1, MAX_KEYS] {
        let mut server = server(0..keys);
        let now = at(1_000_000);
        let total: usize = (0..2_000).map(|n| answers(&mut server, now, &unknown(n, 1_200)).len()).sum();
        assert_eq!(total, 200, "{keys} keys, within one second");
        assert_eq!(server.stats().resets, 200);
        assert_eq!(answers(&mut server, at(1_001_000), &unknown(9, 1_200)).len(), keys, "the next second");
    }
}

/// A register that has no room, or whose answer is still on its way.
struct Speechless(Mutex<Strike>);

impl StrikeRegister for Speechless {
    fn strike(&self, _: &StrikeId, _: u64, _: u64, _: &std::task::Waker) -> Strike {
        *self.0.lock().unwrap()
    }
}

/// A client that shows a token which cannot be judged is as one without a token: it is asked to prove its address, and served.
// RFC 9000 §8.1.3 MUST-4, SHOULD-3; RFC 9000 §8.1.4 MUST-4
#[test]
fn a_token_that_cannot_be_judged_costs_a_round_trip_and_no_connection() {
    for answer in [Strike::Full, Strike::Pending] {
        for policy in [RetryPolicy::Always, RetryPolicy::Above(0), RetryPolicy::Never] {
            let register = Arc::new(Speechless(Mutex::new(Strike::First)));
            let mut config = EndpointConfig::from_seed(Seed::from_number(1));
            config.used_tokens = register.clone();
            let mut accepts = server_config(&Profile::default());
            accepts.retry = policy;
            let mut server = Endpoint::new(config, Some(Arc::new(accepts)));
            let profile = client_config(&Profile::default());
            let mut connect = |token: &[u8], now: Instant, seed: u64| {
                let mut client = client_endpoint(seed);
                let mut config = profile.clone();
                config.token = token.to_vec();
                let _ = client.connect(now, &config, server_address(0), "server.test").unwrap();
                converse(now, (&mut client, client_address(0)), (&mut server, server_address(0)));
                // What acknowledgements delay comes a little later.
                let later = now + Duration::from_millis(30);
                client.handle_timeout(later);
                server.handle_timeout(later);
                converse(later, (&mut client, client_address(0)), (&mut server, server_address(0)));
                let events = events(&mut client);
                let connected = events.iter().any(|(_, event)| matches!(event, Event::Connected));
                let token = events.iter().find_map(|(_, event)| match event {
                    Event::TokenReceived(token) => Some(token.to_vec()),
                    _ => None,
                });
                (connected, token, server.stats())
            };
            let (connected, token, before) = connect(&[], at(1_000), 1);
            let token = token.filter(|_| connected).expect("a first connection, with a token for the next");
            *register.0.lock().unwrap() = answer;
            let (connected, _, after) = connect(&token, at(5_000), 2);
            assert!(connected, "{answer:?}, {policy:?}: {after:?}");
            // Each datagram of the ClientHello is answered.
            assert_eq!(after.retries > before.retries, policy == RetryPolicy::Always, "{answer:?}, {policy:?}");
            assert!(after.tokens_unjudged > 0, "{answer:?}, {policy:?}: {after:?}");
            assert_eq!((after.tokens_not_accepted, after.dropped), (0, 0));
        }
    }
}
