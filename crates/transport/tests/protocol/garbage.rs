//! Noise: random datagrams, damaged copies of real ones, random frames in authentic packets. Nothing panics, nothing
//! grows, and what is real still works.

use crate::support;

use proptest::prelude::*;
use sim::{client_address, server_address};
use support::{
    client_config, client_endpoint,
    direct::{events, give, sent},
    puppet::Puppet,
    server_config, server_endpoint,
};
use transport::{Endpoint, Handle, Profile, tls::Level};
use units::{Duration, Instant};

fn pair() -> (Endpoint, Handle, Endpoint) {
    let profile = Profile::default();
    let mut client = client_endpoint(1);
    let config = client_config(&profile);
    let handle = client.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
    (client, handle, server_endpoint(1, server_config(&profile)))
}

/// A change to a datagram.
#[derive(Clone, Debug)]
enum Damage {
    Flip { bit: usize },
    Cut { to: usize },
    Append { bytes: Vec<u8> },
    Splice { from: usize },
}

impl Damage {
    fn apply(&self, datagram: &[u8]) -> Vec<u8> {
        let mut copy = datagram.to_vec();
        match self {
            Self::Flip { bit } => {
                let bit = bit % (copy.len() * 8);
                copy[bit / 8] ^= 1 << (bit % 8);
            }
            Self::Cut { to } => copy.truncate(to % copy.len()),
            Self::Append { bytes } => copy.extend_from_slice(bytes),
            Self::Splice { from } => drop(copy.drain(..from % copy.len())),
        }
        copy
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => any::<usize>().prop_map(|bit| Damage::Flip { bit }),
        // The header is where most can go wrong.
        4 => (0_usize..400).prop_map(|bit| Damage::Flip { bit }),
        2 => any::<usize>().prop_map(|to| Damage::Cut { to }),
        1 => proptest::collection::vec(any::<u8>(), 1..60).prop_map(|bytes| Damage::Append { bytes }),
        1 => any::<usize>().prop_map(|from| Damage::Splice { from }),
    ]
}

/// Bytes that look like frames for a while: a type that exists, then anything.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let frame = (0_u8..0x33, proptest::collection::vec(prop_oneof![Just(0), Just(1), 0_u8..64, any::<u8>()], 0..30));
    proptest::collection::vec(frame, 1..12).prop_map(|frames| {
        frames.into_iter().flat_map(|(ty, rest)| std::iter::once(ty).chain(rest)).take(1_100).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn random_datagrams_open_nothing(
        datagrams in proptest::collection::vec(
            (any::<u8>(), prop_oneof![Just(1_u32), Just(0), Just(0x6b33_43cf), any::<u32>()],
             proptest::collection::vec(any::<u8>(), 0..60), 0_usize..1_400),
            1..30,
        ),
    ) {
        let (_, _, mut server) = pair();
        let (mut received, mut answered) = (0, 0);
        for (first, version, rest, len) in datagrams {
            let mut datagram = vec![first];
            datagram.extend(version.to_be_bytes());
            datagram.extend(rest);
            datagram.resize(datagram.len().max(len), first);
            received += datagram.len();
            give(&mut server, Instant::ZERO, client_address(0), &datagram);
            answered += sent(&mut server, Instant::ZERO).iter().map(|d| d.payload.len()).sum::<usize>();
        }
        prop_assert_eq!(server.open_connections(), 0);
        prop_assert!(answered <= received);
    }

    /// Each datagram of a handshake is preceded by damaged copies; the handshake completes all the same.
    #[test]
    fn damaged_copies_do_not_stop_a_handshake(damages in proptest::collection::vec(damage(), 1..12)) {
        let (mut client, handle, mut server) = pair();
        let mut now = Instant::ZERO;
        for _ in 0..40 {
            for (from_client, source) in [(true, client_address(0)), (false, server_address(0))] {
                let (from, to) = if from_client { (&mut client, &mut server) } else { (&mut server, &mut client) };
                for datagram in sent(from, now) {
                    // Nothing protects Version Negotiation: damaged, it says something else.
                    let protected = datagram.payload[1..5] != [0; 4];
                    for damage in damages.iter().filter(|_| protected) {
                        let copy = damage.apply(&datagram.payload);
                        if !copy.is_empty() {
                            give(to, now, source, &copy);
                        }
                    }
                    give(to, now, source, &datagram.payload);
                }
            }
            now += Duration::from_millis(50);
            client.handle_timeout(now);
            server.handle_timeout(now);
        }
        let told = (events(&mut client), events(&mut server), server.stats());
        let connection = client.connection(handle);
        prop_assert!(connection.is_some_and(transport::Connection::is_connected), "{:?}", told);
        prop_assert!(server.open_connections() <= 1 + damages.len());
    }

    /// An authentic peer that says anything, at any level and at any time.
    #[test]
    fn random_frames_do_not_panic(
        as_client: bool,
        steps in 0_usize..4,
        packets in proptest::collection::vec((0_usize..3, frames()), 1..20),
    ) {
        let profile = Profile::default();
        let mut puppet =
            if as_client { Puppet::client(&profile, |_, _| {}) } else { Puppet::server(&profile, |_, _| {}) };
        for _ in 0..steps {
            puppet.flush(&support::puppet::LEVELS);
            puppet.collect_quietly();
        }
        for (level, payload) in packets {
            let level = support::puppet::LEVELS[level];
            if puppet.keys.can_seal(level) {
                puppet.send(level, &payload);
                puppet.collect_quietly();
                puppet.pass(Duration::from_millis(40));
            }
        }
        puppet.pass(Duration::from_secs(120));
        prop_assert_eq!(puppet.victim.open_connections(), 0, "every connection ends");
        let _ = Level::Initial;
    }
}
