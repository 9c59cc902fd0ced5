//! Bits and keys: the spin bit, the fixed bit that is not fixed, keys that are updated in time.

use crate::support;

use std::collections::BTreeSet;

use sim::{client_address, server_address};
use support::{
    client_config, client_endpoint,
    direct::{converse, give, sent},
    puppet::Puppet,
    server_config, server_endpoint,
};
use transport::{Code, Endpoint, Handle, KeyUpdatePolicy, Profile, keys::KeyLimits, tls::Level};
use units::{Duration, Instant};
use wire::{Dir, Frame};

const FIXED: u8 = 0x40;
const SPIN: u8 = 0x20;

struct Pair {
    now: Instant,
    client: Endpoint,
    server: Endpoint,
    handles: [Handle; 2],
}

impl Pair {
    fn new(seed: u64, profiles: [&Profile; 2]) -> Self {
        let (mut client, mut server) = (client_endpoint(seed), server_endpoint(seed, server_config(profiles[1])));
        let config = client_config(profiles[0]);
        let handle = client.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
        converse(Instant::ZERO, (&mut client, client_address(0)), (&mut server, server_address(0)));
        let handles = [handle, server.poll_accept().unwrap()];
        Self { now: Instant::ZERO, client, server, handles }
    }

    /// A PING in each direction; the first bytes of the short packets that carried them and their answers.
    fn ping(&mut self) -> [Vec<u8>; 2] {
        self.now += Duration::from_millis(30);
        self.client.handle_timeout(self.now);
        self.server.handle_timeout(self.now);
        self.client.connection_mut(self.handles[0]).unwrap().ping();
        self.server.connection_mut(self.handles[1]).unwrap().ping();
        let mut first = [Vec::new(), Vec::new()];
        loop {
            let up = sent(&mut self.client, self.now);
            up.iter().for_each(|d| give(&mut self.server, self.now, client_address(0), &d.payload));
            let down = sent(&mut self.server, self.now);
            down.iter().for_each(|d| give(&mut self.client, self.now, server_address(0), &d.payload));
            first[0].extend(up.iter().map(|d| d.payload[0]));
            first[1].extend(down.iter().map(|d| d.payload[0]));
            if up.is_empty() && down.is_empty() {
                return first;
            }
        }
    }

    fn key_updates(&self) -> u64 {
        self.client.connection(self.handles[0]).unwrap().stats().key_updates
    }
}

// RFC 9000 §17.4: the server returns the bit, the client turns it: one change in a round trip.
// RFC 9000 §17.4 MUST-3
#[test]
fn the_bit_spins_once_in_a_round_trip_on_most_paths() {
    let mut spinning = 0;
    for seed in 0..64 {
        let mut pair = Pair::new(seed, [&Profile::default(); 2]);
        let mut seen = Vec::new();
        for _ in 0..12 {
            seen.push(pair.ping()[0][0] & SPIN != 0);
        }
        spinning += usize::from(seen.windows(2).all(|pair| pair[0] != pair[1]));
    }
    // Both ends have to take part, each does on 15 of 16 paths: 56 of 64 are expected.
    assert!((46..=63).contains(&spinning), "{spinning}");
}

// RFC 9000 §17.4 MUST-1, MUST-2, MUST-4, RECOMMENDED-1
#[test]
fn a_path_that_shall_not_spin_shows_noise() {
    let quiet = Profile { spin: false, ..Profile::default() };
    let mut pair = Pair::new(1, [&quiet; 2]);
    let bits: Vec<bool> = (0..200).map(|_| pair.ping()[0][0] & SPIN != 0).collect();
    let ones = bits.iter().filter(|bit| **bit).count();
    assert!((60..140).contains(&ones), "{ones}");
    assert!(!bits.windows(2).all(|pair| pair[0] != pair[1]));
}

// RFC 9287 §3: only towards who has said that it may be.
// RFC 9287 §3 MUST-2; RFC 9287 §3.1 SHOULD-1, MUST NOT-3
#[test]
fn the_fixed_bit_is_cleared_for_peers_that_permit_it() {
    let plain = Profile { grease: false, ..Profile::default() };
    let greased = Profile::default();
    for (profiles, expected) in [([&greased, &greased], true), ([&greased, &plain], false), ([&plain, &greased], false)]
    {
        let mut pair = Pair::new(2, profiles);
        let mut kinds = [BTreeSet::new(), BTreeSet::new()];
        for _ in 0..40 {
            for (kinds, first) in kinds.iter_mut().zip(pair.ping()) {
                kinds.extend(first.iter().map(|byte| byte & FIXED != 0));
            }
        }
        let both = BTreeSet::from([false, true]);
        let fixed = BTreeSet::from([true]);
        assert_eq!(kinds, [(); 2].map(|()| if expected { both.clone() } else { fixed.clone() }));
    }
}

/// Returns whether a datagram has a packet with a long header without the fixed bit.
fn long_without_fixed(payload: &[u8]) -> bool {
    let mut rest = payload;
    while let Ok(header @ wire::Header::Long { .. }) = wire::Header::parse(rest, 8) {
        if rest[0] & FIXED == 0 {
            return true;
        }
        rest = &rest[header.packet_len()..];
    }
    false
}

// RFC 9287 §3.1 MUST-1, MUST NOT-1, MUST NOT-2
#[test]
fn the_fixed_bit_is_set_until_the_other_end_has_said_otherwise_in_this_connection() {
    let plain = Profile { grease: false, ..Profile::default() };
    let greased = Profile::default();
    let mut server = server_endpoint(1, server_config(&greased));
    for seed in 0..40 {
        // Clients from the same address that permit it, and that do not.
        let permits = seed % 2 == 0;
        let mut client = client_endpoint(seed);
        let config = client_config(if permits { &greased } else { &plain });
        client.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
        loop {
            let up = sent(&mut client, Instant::ZERO);
            up.iter().for_each(|d| give(&mut server, Instant::ZERO, client_address(0), &d.payload));
            let down = sent(&mut server, Instant::ZERO);
            down.iter().for_each(|d| give(&mut client, Instant::ZERO, server_address(0), &d.payload));
            assert!(!up.iter().chain(&down).any(|d| long_without_fixed(&d.payload)), "seed {seed}");
            if !permits {
                assert!(down.iter().all(|d| d.payload[0] & FIXED != 0), "seed {seed}: from a connection before");
            }
            if up.is_empty() && down.is_empty() {
                break;
            }
        }
    }
}

#[test]
fn keys_are_updated_after_so_many_packets_or_bytes() {
    let after = |packets, bytes| Profile { key_update: KeyUpdatePolicy { packets, bytes }, ..Profile::default() };
    let updates = |profile: &Profile| {
        let mut pair = Pair::new(3, [profile, &Profile::default()]);
        for _ in 0..100 {
            pair.now += Duration::from_millis(200);
            pair.ping();
        }
        pair.key_updates()
    };
    assert_eq!(updates(&Profile::default()), 0);
    let often = updates(&after(Some(20), None));
    assert!((5..=12).contains(&often), "{often}");
    let by_bytes = updates(&after(None, Some(2_000)));
    assert!((1..=12).contains(&by_bytes), "{by_bytes}");
}

// RFC 9001 §6.6 MUST: updated before the limit of the cipher; both ends continue.
// RFC 9001 §6.6 MUST-3
#[test]
fn keys_are_updated_before_their_limit() {
    let limits = KeyLimits { confidentiality: Some(40), integrity: None };
    let profile = Profile { key_limits: limits, ..Profile::default() };
    let mut pair = Pair::new(4, [&profile, &profile]);
    for _ in 0..200 {
        pair.now += Duration::from_millis(100);
        pair.ping();
    }
    assert!(pair.key_updates() >= 5, "{}", pair.key_updates());
    assert!(pair.client.connection(pair.handles[0]).unwrap().is_connected());
}

// RFC 9001 §6.6 MUST: without an update the connection ends at the limit.
// RFC 9001 §6.6 MUST-2, MUST-4, RECOMMENDED-1
#[test]
fn keys_that_cannot_be_updated_end_the_connection_at_their_limit() {
    let limits = KeyLimits { confidentiality: Some(40), integrity: None };
    let profile = Profile { key_limits: limits, ..Profile::default() };
    let mut puppet = Puppet::client(&profile, |_, _| {}).connected();
    let handle = puppet.handle.unwrap();
    // The puppet acknowledges nothing of the second phase, so that there is no third.
    puppet.acknowledge(Level::OneRtt);
    let mut packets = 0;
    for _ in 0..400 {
        let Some(connection) = puppet.victim.connection_mut(handle).filter(|c| !c.is_closed()) else { break };
        connection.ping();
        packets += sent(&mut puppet.victim, puppet.now).len();
        puppet.now += Duration::from_millis(1);
    }
    assert!(packets <= 81, "{packets}");
    assert!(puppet.victim.connection(handle).is_none_or(|c| c.is_closed()));
}

// RFC 9001 §6.6 MUST: so many forged packets end the connection.
// RFC 9001 §6.6 MUST-6
#[test]
fn forged_packets_end_the_connection_at_their_limit() {
    let limits = KeyLimits { confidentiality: None, integrity: Some(25) };
    let profile = Profile { key_limits: limits, ..Profile::default() };
    let mut puppet = Puppet::client(&profile, |_, _| {}).connected();
    for n in 0..26 {
        assert_eq!(puppet.close_code(), None, "after {n}");
        let mut packet = puppet.packet(Level::OneRtt, &[1; 40]);
        *packet.last_mut().unwrap() ^= 1;
        puppet.give(&packet);
        puppet.collect();
    }
    assert_eq!(puppet.close_code(), Some(Code::AEAD_LIMIT_REACHED));
}

// RFC 9000 §4.1 SHOULD: who is blocked says so again while nothing else happens.
// RFC 9000 §4.1 SHOULD-1, SHOULD-2
#[test]
fn a_limit_that_blocks_is_named_again_and_again() {
    let mut puppet = Puppet::client(&Profile::default(), |p, _| p.initial_max_data = 100).connected();
    let handle = puppet.handle.unwrap();
    let connection = puppet.victim.connection_mut(handle).unwrap();
    let stream = connection.open(Dir::Uni).unwrap();
    connection.write(stream, &mut vec![7; 1_000].into()).unwrap();
    for _ in 0..60 {
        let before = puppet.seen[2].len();
        puppet.wait(Duration::from_secs(1));
        puppet.collect();
        // Silence is what this is about: only what is new is acknowledged.
        if puppet.seen[2].len() > before {
            puppet.acknowledge(Level::OneRtt);
        }
    }
    let said = |payload: &Vec<u8>| wire::Frames::new(payload).flatten().any(|f| matches!(f, Frame::DataBlocked(100)));
    let count = puppet.received.iter().filter(|(_, payload)| said(payload)).count();
    assert!((3..=10).contains(&count), "{count} in a minute");
}

/// Memory of a busy phase is released when the connection is at rest.
#[test]
fn a_connection_at_rest_gives_memory_back() {
    let mut pair = Pair::new(5, [&Profile::default(); 2]);
    let connection = pair.client.connection_mut(pair.handles[0]).unwrap();
    let stream = connection.open(Dir::Uni).unwrap();
    let mut data = bytes::Bytes::from(vec![7; 3_000_000]);
    let mut peak = 0;
    for _ in 0..400 {
        pair.now += Duration::from_millis(5);
        let connection = pair.client.connection_mut(pair.handles[0]).unwrap();
        let _ = connection.write(stream, &mut data);
        while let Some(id) = pair.server.connection_mut(pair.handles[1]).unwrap().accept(Dir::Uni) {
            assert_eq!(id, stream);
        }
        let server = pair.server.connection_mut(pair.handles[1]).unwrap();
        while let Ok(Some(_)) = server.read(stream, usize::MAX, transport::streams::Order::Ordered) {}
        pair.client.handle_timeout(pair.now);
        pair.server.handle_timeout(pair.now);
        converse(pair.now, (&mut pair.client, client_address(0)), (&mut pair.server, server_address(0)));
        peak = peak.max(pair.client.connection(pair.handles[0]).unwrap().records_memory());
    }
    assert!(data.is_empty() && peak > 10_000, "{} left, {peak}", data.len());
    for _ in 0..12 {
        pair.now += Duration::from_secs(1);
        pair.client.handle_timeout(pair.now);
        pair.server.handle_timeout(pair.now);
        converse(pair.now, (&mut pair.client, client_address(0)), (&mut pair.server, server_address(0)));
    }
    let rest = pair.client.connection(pair.handles[0]).unwrap().records_memory();
    assert!(rest < 1_000, "{rest} of {peak}");
}

// RFC 9000 §8.1, §10.2: a CONNECTION_CLOSE that may not be sent to the address yet is sent later.
#[test]
fn a_close_waits_for_the_limit_on_bytes() {
    let mut puppet = Puppet::client(&Profile::default(), |_, _| {});
    puppet.flush(&[Level::Initial]);
    let mut bytes = 0;
    for _ in 0..50 {
        bytes += sent(&mut puppet.victim, puppet.now).iter().map(|d| d.payload.len()).sum::<usize>();
        puppet.now += Duration::from_millis(100);
        puppet.victim.handle_timeout(puppet.now);
    }
    assert!(bytes > 1_200, "{bytes}");
    let handle = puppet.victim.poll_accept().unwrap();
    puppet.victim.connection_mut(handle).unwrap().close(puppet.now, 1, b"");
    assert!(sent(&mut puppet.victim, puppet.now).is_empty(), "the budget is used up");
    puppet.send(Level::Initial, &support::puppet::bytes(&[Frame::Ping]));
    let close = sent(&mut puppet.victim, puppet.now);
    assert_eq!(close.len(), 1);
}
