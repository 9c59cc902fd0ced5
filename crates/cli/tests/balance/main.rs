//! Several machines behind load balancers serve one site: machines come, drain and go, clients change their address and their load
//! balancer, and nobody notices.
#![cfg(target_os = "linux")]

#[path = "../upgrade/clients.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod clients;
mod cost;
mod farm;
#[path = "../upgrade/fleet.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod fleet;
#[path = "../gateway/mod.rs"]
mod gateway;
mod machines;
mod returning;
mod rotation;
#[path = "../scratch/mod.rs"]
mod scratch;
mod tcp;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clients::{Nat, Site, content, get, read_slowly};
use farm::{Balancer, Farm, server_id};
use fleet::{LIMIT, large, signal};
use h3_quic::client::SendRequest;
use tiderace::{ClientConfig, Endpoint, Profile, RustlsClient};
use tokio::task::JoinSet;

/// Number in the environment, or another one.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The machine that answers.
async fn machine(h3: &mut SendRequest) -> usize {
    let response = h3.send(get("small")).await.unwrap();
    let machine = response.headers()["x-machine"].to_str().unwrap().parse().unwrap();
    assert_eq!(content(response).await, "small");
    machine
}

/// Machines of some new connections.
async fn machines_of_new(site: &Site, count: usize) -> BTreeMap<usize, usize> {
    let mut seen = BTreeMap::new();
    for _ in 0..count {
        let (_endpoint, mut h3) = site.h3().await;
        *seen.entry(machine(&mut h3).await).or_default() += 1;
    }
    seen
}

/// A connection at this machine.
async fn connection_at(site: &Site, wanted: usize) -> (Endpoint, tiderace::Connection, SendRequest) {
    loop {
        let (endpoint, connection) = site.quic().await;
        let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
        if machine(&mut h3).await == wanted {
            return (endpoint, connection, h3);
        }
    }
}

/// The same by a NAT in front of all load balancers. The address that it gives a client decides for a machine.
async fn connection_by_nat(farm: &Farm, balancers: &[Balancer], wanted: usize) -> (Nat, Endpoint, SendRequest) {
    loop {
        let nat = Nat::before_all(balancers.iter().map(|balancer| balancer.address).collect()).await;
        let (endpoint, mut h3) = farm.site(&balancers[0]).at(nat.address).h3().await;
        if machine(&mut h3).await == wanted {
            return (nat, endpoint, h3);
        }
    }
}

/// Requests on one connection, which stays at its machine; returns the machine.
async fn held(site: Site, stop: Arc<AtomicBool>, answered: Arc<AtomicU64>, connected: Arc<AtomicU64>) -> usize {
    let (_endpoint, mut h3) = site.h3().await;
    let first = machine(&mut h3).await;
    connected.fetch_add(1, Ordering::Relaxed);
    while !stop.load(Ordering::Relaxed) {
        assert_eq!(machine(&mut h3).await, first);
        answered.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first
}

/// A download that lasts from the beginning to the end.
async fn download(site: Site, stop: Arc<AtomicBool>) {
    let (_endpoint, mut h3) = site.h3().await;
    let response = h3.send(get("large")).await.unwrap();
    let got = read_slowly(response, || stop.load(Ordering::Relaxed)).await;
    assert!(got == large(), "{} bytes", got.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_come_and_drain_under_load_and_no_connection_is_lost() {
    let (connections, rounds) = (number("BALANCE_CONNECTIONS", 4), number("BALANCE_ROUNDS", 2));
    let farm = Farm::new("drain", 3);
    farm.configure(&[1, 2], &[]);
    let mut balancers = [farm.balancer(), farm.balancer()];
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let connected = Arc::new(AtomicU64::new(0));
    let (mut clients, mut downloads) = (JoinSet::new(), JoinSet::new());
    for balancer in &balancers {
        let site = farm.site(balancer);
        for _ in 0..connections {
            clients.spawn(held(site.clone(), stop.clone(), answered.clone(), connected.clone()));
            downloads.spawn(download(site.clone(), stop.clone()));
        }
    }
    // All of them begin before the third machine is there.
    let begun = Instant::now();
    while connected.load(Ordering::Relaxed) < 2 * connections {
        assert!(begun.elapsed() < LIMIT, "{} connections", connected.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let sites: Vec<Site> = balancers.iter().map(|balancer| farm.site(balancer)).collect();
    let mut opened = 0;
    for _ in 0..rounds {
        for (all, drained) in [(&[1, 2, 3][..], &[][..]), (&[1, 2, 3], &[1]), (&[3, 2, 1], &[2]), (&[1, 2, 3], &[])] {
            farm.configure(all, drained);
            for balancer in &mut balancers {
                assert_eq!(balancer.reload(), "the new configuration is in use");
            }
            for site in &sites {
                let seen = machines_of_new(site, 6).await;
                assert!(drained.iter().all(|machine| !seen.contains_key(machine)), "{drained:?} drains: {seen:?}");
                opened += 6;
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    let mut seen = BTreeMap::new();
    while let Some(ended) = clients.join_next().await {
        *seen.entry(ended.unwrap()).or_insert(0) += 1;
    }
    while let Some(ended) = downloads.join_next().await {
        ended.unwrap();
    }
    println!("measured requests: {}", answered.load(Ordering::Relaxed));
    println!("measured connections opened: {opened}");
    assert!(answered.load(Ordering::Relaxed) > 20 && seen.keys().all(|machine| *machine < 3), "{seen:?}");
    for balancer in &mut balancers {
        let datagrams = balancer.status()["datagrams"].clone();
        assert!(datagrams["routed"].as_u64().unwrap() > 100, "{datagrams}");
        assert_eq!((&datagrams["refused"], &datagrams["malformed"]), (&0.into(), &0.into()), "{datagrams}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_keeps_its_machine_at_another_address_and_another_load_balancer() {
    let farm = Farm::new("moves", 3);
    farm.configure(&[1, 2, 3], &[]);
    let balancers = [farm.balancer(), farm.balancer()];
    for wanted in 1..=3 {
        let (nat, _endpoint, mut h3) = connection_by_nat(&farm, &balancers, wanted).await;
        for _ in 0..6 {
            nat.rebind.send(()).await.unwrap();
            assert_eq!(machine(&mut h3).await, wanted);
        }
        let response = h3.send(get("large")).await.unwrap();
        // A client that only receives has to send something for its new address to be known.
        let download = tokio::spawn(content(response));
        while !download.is_finished() {
            nat.rebind.send(()).await.unwrap();
            assert_eq!(machine(&mut h3).await, wanted);
        }
        let got = download.await.unwrap();
        assert!(got == large(), "{} bytes", got.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_datagrams_of_a_hello_meet_one_machine_at_every_load_balancer() {
    let farm = Farm::new("hello", 3);
    farm.configure(&[1, 2, 3], &[]);
    let mut balancers = [farm.balancer(), farm.balancer()];
    let sites: Vec<Site> = balancers.iter().map(|balancer| farm.site(balancer)).collect();
    let count = usize::try_from(number("BALANCE_HELLOS", 20)).unwrap();
    let (mut seen, mut slowest) = (BTreeMap::new(), Duration::ZERO);
    for _ in 0..count {
        // One address and port of the client, by one load balancer and by the other.
        let tls = RustlsClient::builder().roots([sites[0].certificate().to_vec()]).alpn("h3").build().unwrap();
        let profile = Profile { handshake_timeout: LIMIT, ..Profile::default() };
        let config = ClientConfig::new(Arc::new(tls), Arc::new(profile));
        let endpoint = Endpoint::client_for(sites[0].address).unwrap();
        let mut machines = Vec::new();
        for site in &sites {
            let begun = Instant::now();
            let connection = endpoint.connect(&config, site.address, "localhost").unwrap().await.unwrap();
            slowest = slowest.max(begun.elapsed());
            let mut h3 = h3_quic::client::begin(connection).await.unwrap();
            machines.push(machine(&mut h3).await);
        }
        assert_eq!(machines[0], machines[1], "two load balancers have chosen differently");
        *seen.entry(machines[0]).or_insert(0) += 1;
    }
    println!("measured slowest handshake, ms: {}", slowest.as_secs_f64() * 1e3);
    assert_eq!(seen.len(), 3, "{seen:?}");
    for balancer in &mut balancers {
        let datagrams = balancer.status()["datagrams"].clone();
        let unroutable = datagrams["unroutable"].as_u64().unwrap();
        // With a retransmission now and then there are more.
        assert!(unroutable >= 2 * count as u64, "ClientHellos take two datagrams: {datagrams}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_killed_machine_are_told_and_come_to_another_one() {
    let farm = Farm::new("killed", 2);
    farm.configure(&[1, 2], &[]);
    let mut balancer = farm.balancer();
    let site = farm.site(&balancer);
    let (_first, of_first, _h3) = connection_at(&site, 1).await;
    let (_second, _, mut of_second) = connection_at(&site, 2).await;
    let begun = Instant::now();
    signal(farm.machines[0].gateway.id(), "KILL");
    // The other machine has the ring of keys, and ends the connection as soon as the load balancer knows.
    while of_first.close_reason().is_none() {
        assert!(begun.elapsed() < LIMIT, "no stateless reset");
        let _ = of_first.open_uni().await.map(|mut stream| stream.finish());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("measured time to a stateless reset, ms: {}", begun.elapsed().as_millis());
    let reason = format!("{:?}", of_first.close_reason());
    assert!(reason.contains("Reset"), "{reason}");
    balancer.wait_for(&server_id(1), "down");
    assert_eq!(machine(&mut of_second).await, 2, "connections of others go on");
    assert_eq!(machines_of_new(&site, 8).await, BTreeMap::from([(2, 8)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_ends_takes_no_new_connections_and_completes_those_it_has() {
    let farm = Farm::new("stop", 2);
    farm.configure(&[1, 2], &[]);
    let mut balancer = farm.balancer();
    let site = farm.site(&balancer);
    let (_endpoint, _connection, mut h3) = connection_at(&site, 1).await;
    let response = h3.send(get("large")).await.unwrap();
    signal(farm.machines[0].gateway.id(), "TERM");
    balancer.wait_for(&server_id(1), "closing");
    assert_eq!(machines_of_new(&site, 8).await, BTreeMap::from([(2, 8)]));
    assert!(content(response).await == large());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_of_a_machine_keeps_connections_that_come_by_a_load_balancer() {
    let mut farm = Farm::new("upgrade", 2);
    farm.configure(&[1, 2], &[]);
    let balancers = [farm.balancer(), farm.balancer()];
    let site = farm.site(&balancers[0]);
    let (nat, _endpoint, mut h3) = connection_by_nat(&farm, &balancers, 1).await;
    let response = h3.send(get("large")).await.unwrap();
    let mut of_others = Vec::new();
    for upgrade in 1..=2 {
        let output = gateway::edge("upgrade", &farm.machines[0].file).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        farm.pids.push(text.split_once("(PID ").unwrap().1.split_once(')').unwrap().0.parse().unwrap());
        for _ in 0..3 {
            assert_eq!(machine(&mut h3).await, 1, "after upgrade {upgrade}");
            nat.rebind.send(()).await.unwrap();
        }
        // The new process answers for new connections, and lives as long as it has one.
        of_others.push(connection_at(&site, 1).await);
    }
    assert!(content(response).await == large());
    // Connection IDs of another form cannot be taken over, nor by a reload.
    let text = std::fs::read_to_string(&farm.machines[0].file).unwrap();
    std::fs::write(&farm.machines[0].file, text.replace("key = \"lb.key\"", "key = \"lb.key\"\nnonce-length = 10"))
        .unwrap();
    for command in ["upgrade", "reload"] {
        let output = gateway::edge(command, &farm.machines[0].file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains("stay what they were at the start"), "{command}: {said}");
        assert!(said.contains("hint: a reload changes `key` together with `config-id`"), "{command}: {said}");
    }
    assert_eq!(machine(&mut h3).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_configuration_changes_nothing() {
    let farm = Farm::new("wrong", 1);
    let file = farm.configure(&[1], &[]);
    let mut balancer = farm.balancer();
    let site = farm.site(&balancer);
    let good = std::fs::read_to_string(&file).unwrap();
    for (wrong, says) in [
        (good.replace("[[machine]]", "[[machines]]"), "balance.toml:8: machines: unknown field"),
        (good.replace("lb.key", "gone.key"), "balance.toml:7: connection-ids[1].key: cannot use"),
        (good.replace("workers = 2", "workers = 3"), "`workers` stays what it was"),
        (good.replace("127.0.0.1:0", "127.0.0.2:0"), "`listen` stays what it was"),
    ] {
        std::fs::write(&file, wrong).unwrap();
        let said = balancer.reload();
        assert!(said.contains("the configuration in use stays") && said.contains(says), "{said}");
    }
    assert_eq!(machines_of_new(&site, 2).await, BTreeMap::from([(1, 2)]));
    std::fs::write(&file, good).unwrap();
    assert_eq!(balancer.reload(), "the new configuration is in use");
}
