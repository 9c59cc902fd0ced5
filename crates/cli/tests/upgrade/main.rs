//! A gateway whose program is replaced under load loses no connection and no request; a program that cannot take over changes
//! nothing.
#![cfg(target_os = "linux")]

mod clients;
mod fleet;
mod forms;
mod forwarding;
#[path = "../gateway/mod.rs"]
mod gateway;
mod killed;
mod ring;
#[path = "../scratch/mod.rs"]
mod scratch;
mod sessions;
mod steering;
mod tunnels;

use std::{
    collections::VecDeque,
    os::unix::fs::PermissionsExt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clients::{Nat, Site, content, get, get1, read_slowly};
use fleet::{Fleet, LIMIT, large, signal};
use tokio::task::JoinSet;

/// Older processes that have a connection of their own, beside the first one.
const SIDE_BY_SIDE: usize = 5;

/// Number in the environment, or another one.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Requests that were answered, by clients that stop when they are asked to.
#[derive(Clone, Default)]
struct Load {
    stop: Arc<AtomicBool>,
    requests: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn answered(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}

/// Requests on one connection over QUIC, which is never replaced.
async fn held_h3(site: Site, load: Load) {
    let (_endpoint, mut h3) = site.h3().await;
    while load.goes_on() {
        assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
        load.answered();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The same, behind a NAT that gives the client another port repeatedly.
async fn rebinding_h3(site: Site, load: Load) {
    let nat = Nat::before(site.address).await;
    let (_endpoint, mut h3) = site.at(nat.address).h3().await;
    while load.goes_on() {
        assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
        nat.rebind.send(()).await.unwrap();
        load.answered();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// New connections all the time.
async fn new_connections(site: Site, load: Load) -> Vec<Duration> {
    let mut handshakes = Vec::new();
    while load.goes_on() {
        let begun = Instant::now();
        let (_endpoint, mut h3) = site.h3().await;
        handshakes.push(begun.elapsed());
        assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
        let mut h1 = site.h1().await;
        assert_eq!(content(h1.send_request(get1("small")).await.unwrap()).await, "small");
        load.requests.fetch_add(2, Ordering::Relaxed);
        load.connections.fetch_add(2, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    handshakes
}

/// Returns whether the server has not seen the request, so that it is sent again: the connection had ended, or the request has a
/// higher number than the last one of a GOAWAY (RFC 9113 §6.8). One that was in progress would end with another error.
fn is_unprocessed(error: &hyper::Error) -> bool {
    error.is_canceled() || format!("{error:?}").contains("GoAway(b\"\", NO_ERROR, Remote)")
}

/// Requests over HTTP/2, on another connection whenever the server asks for that.
async fn h2_requests(site: Site, load: Load) {
    let mut h2 = site.h2().await;
    while load.goes_on() {
        match h2.send_request(get("small")).await {
            Ok(response) => {
                assert_eq!(content(response).await, "small");
                load.answered();
            }
            Err(error) if is_unprocessed(&error) => {
                h2 = site.h2().await;
                load.connections.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => panic!("a request failed: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Downloads that last from the beginning to the end, over HTTP/3 and HTTP/2.
async fn downloads(site: Site, load: Load) {
    let (_endpoint, mut h3) = site.h3().await;
    let mut h2 = site.h2().await;
    let (h3, h2) = (h3.send(get("large")).await.unwrap(), h2.send_request(get("large")).await.unwrap());
    let is_over = || !load.goes_on();
    let (h3, h2) = tokio::join!(read_slowly(h3, is_over), read_slowly(h2, is_over));
    assert!(h3 == large(), "{} bytes over HTTP/3", h3.len());
    assert!(h2 == large(), "{} bytes over HTTP/2", h2.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_under_load_lose_nothing() {
    let (upgrades, reloads, each) =
        (number("EDGE_UPGRADES", 4), number("EDGE_RELOADS", 8), number("EDGE_CONNECTIONS", 2));
    let mut fleet = Fleet::start("load", "");
    let (site, load) = (Site::of(&fleet), Load::default());
    let mut clients = JoinSet::new();
    for _ in 0..each {
        clients.spawn(held_h3(site.clone(), load.clone()));
        clients.spawn(h2_requests(site.clone(), load.clone()));
    }
    clients.spawn(rebinding_h3(site.clone(), load.clone()));
    clients.spawn(downloads(site.clone(), load.clone()));
    let opening = tokio::spawn(new_connections(site.clone(), load.clone()));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (mut upgraded, mut reloaded, mut most, mut held) = (0, 0, 0, VecDeque::new());
    let begun = Instant::now();
    while upgraded < upgrades {
        assert_eq!(fleet.upgrade().0, upgraded + 2);
        upgraded += 1;
        while reloaded * upgrades < reloads * upgraded {
            reloaded += 1;
            fleet.reload(reloaded, "");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Each process has a connection until some more have followed it. The first ones keep theirs to the end.
        let own = Load { stop: Arc::default(), ..load.clone() };
        clients.spawn(held_h3(site.clone(), own.clone()));
        held.push_back(own);
        if held.len() > SIDE_BY_SIDE {
            held.pop_front().unwrap().stop.store(true, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        most = most.max(fleet.running().len());
        while let Some(ended) = clients.try_join_next() {
            ended.unwrap();
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    held.iter().chain([&load]).for_each(|load| load.stop.store(true, Ordering::Relaxed));
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let mut handshakes = opening.await.unwrap();
    handshakes.sort();
    let ms = |time: Option<&Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
    println!("measured upgrades: {upgraded}");
    println!("measured reloads: {reloaded}");
    println!("measured processes side by side: {most}");
    println!("measured requests: {}", load.requests.load(Ordering::Relaxed));
    println!("measured connections opened: {}", load.connections.load(Ordering::Relaxed));
    println!("measured slowest handshake, ms: {}", ms(handshakes.last()));
    println!("measured median handshake, ms: {}", ms(handshakes.get(handshakes.len() / 2)));
    println!("measured seconds: {seconds}");
    assert!(most as u64 > upgrades.min(3), "{most} processes side by side");
    // Without connections the older processes end.
    for pid in fleet.running() {
        if Some(u64::from(pid)) != fleet.status()["processes"].as_array().unwrap().last().unwrap()["pid"].as_u64() {
            fleet.wait_for_end(pid);
        }
    }
}

/// A program of this text at a path of its own.
fn script(fleet: &Fleet, name: &str, text: &str) -> String {
    let path = fleet.folder.0.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_cannot_take_over_changes_nothing() {
    let mut fleet = Fleet::start("refused", "[upgrade]\nstart-timeout = \"3 s\"\n");
    let (site, load) = (Site::of(&fleet), Load::default());
    let mut clients = JoinSet::new();
    clients.spawn(held_h3(site.clone(), load.clone()));
    clients.spawn(h2_requests(site.clone(), load.clone()));
    let before = load.connections.load(Ordering::Relaxed);
    let crash = script(&fleet, "crash", "exit 7");
    let killed = script(&fleet, "killed", "kill -SEGV $$");
    let silent = script(&fleet, "silent", "exec sleep 60");
    // Says hello as a program of another version of the protocol, whose length has one digit less than a hundred.
    let hello = r#"{"from":7,"to":9,"program":"9"}"#;
    let other = script(&fleet, "other", &format!("printf '\\000\\000\\000\\037{hello}' >&0; exec sleep 60"));
    let liar = script(&fleet, "liar", "printf '\\377\\377\\377\\377' >&0; exec sleep 60");
    for (program, says) in [
        (crash.as_str(), "exit status: 7"),
        (&killed, "signal: 11"),
        (&silent, "has not taken over within 3 s"),
        (&other, "has version 7 to 9, and 2 to 4 is needed"),
        (&liar, "too large"),
        ("/nonexistent/tiderace", "cannot start /nonexistent/tiderace: No such file"),
        (env!("CARGO_MANIFEST_DIR"), "cannot start"),
    ] {
        let said = fleet.refused(&["--program", program]);
        assert!(said.contains(says), "{program}: {said}");
        assert_eq!(fleet.status()["process"], 1);
    }
    // A configuration that the new program cannot serve.
    let good = std::fs::read_to_string(&fleet.file).unwrap();
    for (bad, says) in [("nonsense", "edge.toml:1"), (&good.replace("cert.pem", "gone.pem"), "certificate")] {
        std::fs::write(&fleet.file, bad).unwrap();
        // The socket is named where the configuration does not say it any more.
        let socket = fleet.folder.0.join("edge.sock");
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tiderace"))
            .args(["edge", "upgrade", "--socket"])
            .arg(&socket)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(says), "{said}");
    }
    std::fs::write(&fleet.file, good).unwrap();
    assert_eq!(fleet.running(), [fleet.first_id()]);
    assert_eq!(load.connections.load(Ordering::Relaxed), before, "HTTP/2 has lost its connection");
    load.stop.store(true, Ordering::Relaxed);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    assert!(load.requests.load(Ordering::Relaxed) > 100);
    // And after all that an upgrade works. A process without connections ends at once, but not before it has answered.
    for process in 2..7 {
        assert_eq!(fleet.upgrade().0, process);
    }
    fleet.wait_for_end(fleet.first_id());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_process_that_is_killed_takes_only_its_own_with_it() {
    let mut fleet = Fleet::start("killed", "");
    let site = Site::of(&fleet);
    let (_first, of_first) = site.quic().await;
    let (_, second) = fleet.upgrade();
    let (_second, mut of_second) = site.h3().await;
    let (_, third) = fleet.upgrade();
    let (_third, mut of_third) = site.h3().await;
    assert_eq!(fleet.running().len(), 3);
    let begun = Instant::now();
    signal(fleet.first_id(), "KILL");
    // Nobody knows the connection any more, and the process that reads says so, when it has noticed.
    let mut closed = false;
    while !closed {
        assert!(begun.elapsed() < LIMIT, "no stateless reset");
        let _ = of_first.open_uni().await.map(|mut stream| stream.finish());
        closed = of_first.close_reason().is_some();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("measured time to a stateless reset, ms: {}", begun.elapsed().as_millis());
    let reason = format!("{:?}", of_first.close_reason());
    assert!(reason.contains("Reset"), "{reason}");
    for h3 in [&mut of_second, &mut of_third] {
        assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
    }
    // The newest goes, and the one before it reads for its connections.
    signal(third, "KILL");
    fleet.wait_for_end(third);
    assert_eq!(content(of_second.send(get("small")).await.unwrap()).await, "small");
    drop((of_second, _second));
    fleet.wait_for_end(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_upgrades_and_a_stop_ends_all() {
    let fleet = Fleet::start("signal", "drain = \"1 s\"\n");
    let site = Site::of(&fleet);
    let (_endpoint, mut h3) = site.h3().await;
    signal(fleet.first_id(), "USR2");
    let begun = Instant::now();
    let second = loop {
        let status = fleet.status();
        if status["process"] == 2 {
            break u32::try_from(status["processes"][1]["pid"].as_u64().unwrap()).unwrap();
        }
        assert!(begun.elapsed() < LIMIT, "{status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
    let status = fleet.status();
    assert_eq!((&status["processes"][0]["process"], &status["processes"][0]["serving"]), (&1.into(), &false.into()));
    signal(second, "TERM");
    signal(fleet.first_id(), "TERM");
    fleet.wait_for_end(second);
    fleet.wait_for_end(fleet.first_id());
    assert!(!fleet.folder.0.join("edge.sock").exists(), "the admin socket is left behind");
}
