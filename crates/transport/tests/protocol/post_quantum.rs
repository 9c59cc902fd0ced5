//! The hybrid key exchange X25519MLKEM768 beside X25519 alone: what its larger messages cost a handshake and what follows.
//!
//! Lines that begin with `measured` are what `cargo xtask shows standards` reads. POST_QUANTUM_SEEDS is the number of pairs of
//! runs on each path.

use crate::support;

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use netem::{DropReason, LinkConfig};
use serde::Deserialize;
use sim::{client_address, point_to_point, server_address};
use support::{CLOCK, Host, client_endpoint, exchange::Exchange, server_endpoint};
use transport::{
    ClientConfig, Profile, ServerConfig,
    tls::rustls_backend::{Identity, KeyExchange, RustlsClient, RustlsServer},
};
use units::{Duration, Instant, Seed};

/// Bytes of the answer, for goodput.
const ANSWER: usize = 400_000;
/// Size of an IPv4 and a UDP header, in bytes.
const HEADERS: u32 = 28;

/// The path of a scenario of the lab.
#[derive(Deserialize)]
struct Scenario {
    path: Links,
}

#[derive(Deserialize)]
struct Links {
    up: Option<LinkConfig>,
    down: LinkConfig,
}

fn links(name: &str) -> [LinkConfig; 2] {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../scenarios/{name}.toml"));
    let Links { up, down } = toml::from_str::<Scenario>(&std::fs::read_to_string(file).unwrap()).unwrap().path;
    [up.unwrap_or_else(|| down.clone()), down].map(|mut link| {
        // The narrowest path that carries QUIC: one byte more would be lost.
        link.mtu = Some(1_200 + HEADERS);
        link
    })
}

/// A leaf and its root. With a chain of several kB the handshake of X25519 alone would wait for the anti-amplification limit,
/// which the second datagram of the hybrid's ClientHello lifts: that is not what is compared here.
fn identity() -> &'static (Identity, Vec<u8>) {
    static IDENTITY: OnceLock<(Identity, Vec<u8>)> = OnceLock::new();
    IDENTITY.get_or_init(|| {
        let root_key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let mut root = rcgen::CertificateParams::new(Vec::new()).unwrap();
        root.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let root_cert = root.self_signed(&root_key).unwrap();
        let issuer = rcgen::Issuer::new(root, root_key);
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["server.test".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        let identity = Identity::from_der(vec![leaf.der().to_vec()], key.serialize_der()).unwrap();
        (identity, root_cert.der().to_vec())
    })
}

/// Figures of one run.
struct Run {
    handshake_ms: f64,
    goodput_mbps: f64,
    too_large: u64,
}

fn run(links: &[LinkConfig; 2], group: KeyExchange, seed: u64) -> Option<Run> {
    let profile = Profile { initial_mtu: 1_200, max_mtu: 1_200, ..Profile::default() };
    let tls = RustlsClient::builder().roots([identity().1.clone()]).alpn("test").key_exchanges([group]);
    let tls = tls.clock(Arc::new(CLOCK)).build().unwrap();
    let config = ClientConfig::new(Arc::new(tls), Arc::new(profile.clone()));
    let mut client = client_endpoint(seed);
    let handle = client.connect(Instant::ZERO, &config, server_address(0), "server.test").unwrap();
    let client = Host::new(client_address(0), client, Exchange::client(handle, 200, ANSWER));
    let tls =
        RustlsServer::builder().identity(identity().0.clone()).alpn("test").clock(Arc::new(CLOCK)).build().unwrap();
    let server = server_endpoint(seed, ServerConfig::new(Arc::new(tls), Arc::new(profile)));
    let server = Host::new(server_address(0), server, Exchange::server(ANSWER));
    let mut sim = point_to_point(Seed::from_number(seed), &links[0], &links[1], client, server).unwrap();
    let outcome = sim.run_until(Instant::ZERO + Duration::from_secs(120)).unwrap();
    assert!(outcome.is_finished(), "{group:?}, seed {seed}: {outcome}");
    let too_large = sim.network().links().map(|link| link.counters().dropped(DropReason::Mtu).packets).sum();
    let app = &sim.node(0).app;
    let (connected, answered) = (app.connected?, app.answered?);
    let handshake = connected.saturating_since(Instant::ZERO);
    let transfer = answered.saturating_since(connected).as_secs_f64();
    Some(Run { handshake_ms: handshake.as_secs_f64() * 1e3, goodput_mbps: ANSWER as f64 * 8e-6 / transfer, too_large })
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}

/// The 95 % interval of the ratio of two statistics over pairs of runs, by the bootstrap over pairs.
fn interval(pairs: &[(f64, f64)], statistic: impl Fn(&mut [f64]) -> f64) -> [f64; 2] {
    use rand_core::RngCore;
    let mut random = Seed::from_number(7).stream("bootstrap");
    let mut ratios: Vec<f64> = (0..1_000)
        .map(|_| {
            let drawn = (0..pairs.len()).map(|_| pairs[random.next_u64() as usize % pairs.len()]);
            let (mut a, mut b): (Vec<f64>, Vec<f64>) = drawn.unzip();
            statistic(&mut a) / statistic(&mut b)
        })
        .collect();
    [quantile(&mut ratios, 0.025), quantile(&mut ratios, 0.975)]
}

fn measured(what: &str, value: f64) {
    println!("measured {what}: {value}");
}

/// Both on a path without loss: the larger ClientHello takes a datagram more and no round trip.
#[test]
fn the_hybrid_takes_no_round_trip_more() {
    let link = LinkConfig { delay: Duration::from_millis(50), ..LinkConfig::default() };
    let links = [link.clone(), link];
    let [hybrid, plain] = [KeyExchange::X25519MlKem768, KeyExchange::X25519]
        .map(|group| run(&links, group, 1).expect("nothing is lost").handshake_ms);
    measured("round trips of 100 ms more with the hybrid", (hybrid - plain) / 100.0);
    assert_eq!((hybrid, plain), (100.0, 100.0));
}

#[test]
fn the_hybrid_on_the_paths_of_the_lab() {
    let seeds = std::env::var("POST_QUANTUM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    for name in ["mobile", "production"] {
        let links = links(name);
        let mut runs = [Vec::new(), Vec::new()];
        for seed in 0..seeds {
            // The same seed, so the same luck, as far as packets correspond.
            let [hybrid, plain] = [KeyExchange::X25519MlKem768, KeyExchange::X25519]
                .map(|group| run(&links, group, seed).expect("all runs finish"));
            runs[0].push(hybrid);
            runs[1].push(plain);
        }
        let column = |side: usize, of: fn(&Run) -> f64| runs[side].iter().map(of).collect::<Vec<_>>();
        let pairs = |of: fn(&Run) -> f64| column(0, of).into_iter().zip(column(1, of)).collect::<Vec<_>>();
        let p95 = |values: &mut [f64]| quantile(values, 0.95);
        let median = |values: &mut [f64]| quantile(values, 0.5);
        let handshake = |run: &Run| run.handshake_ms;
        let goodput = |run: &Run| run.goodput_mbps;
        let [a, b] = [0, 1].map(|side| p95(&mut column(side, handshake)));
        measured(&format!("{name} p95 handshake ms, hybrid"), a);
        measured(&format!("{name} p95 handshake ms, X25519"), b);
        measured(&format!("{name} p95 handshake ratio"), a / b);
        let [low, high] = interval(&pairs(handshake), p95);
        measured(&format!("{name} p95 handshake ratio, low"), low);
        measured(&format!("{name} p95 handshake ratio, high"), high);
        let [a, b] = [0, 1].map(|side| median(&mut column(side, goodput)));
        measured(&format!("{name} goodput ratio"), a / b);
        let [low, high] = interval(&pairs(goodput), median);
        measured(&format!("{name} goodput ratio, low"), low);
        measured(&format!("{name} goodput ratio, high"), high);
        let too_large: u64 = runs.iter().flatten().map(|run| run.too_large).sum();
        measured(&format!("{name} datagrams above the path MTU"), too_large as f64);
        measured(&format!("{name} pairs of runs"), seeds as f64);
        assert_eq!(too_large, 0, "{name}");
    }
}
