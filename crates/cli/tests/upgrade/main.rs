//! A gateway whose program is replaced under load loses no connection and no request; a program that cannot take over changes
//! nothing.
#![cfg(target_os = "linux")]

mod clients;
mod committed;
mod downloads;
mod fleet;
mod forms;
mod forwarding;
#[path = "../gateway/mod.rs"]
mod gateway;
mod initials;
mod killed;
mod load;
mod mix;
mod private;
mod ring;
#[path = "../scratch/mod.rs"]
mod scratch;
mod sessions;
mod steering;
mod tunnels;
mod under_load;
mod workers;

use std::{
    os::unix::fs::PermissionsExt,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use clients::{Site, content, get};
use fleet::{Fleet, LIMIT, signal};
use load::{Load, hold};
use mix::Kind;
use tokio::task::JoinSet;

/// Number in the environment, or another one.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
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
    let (site, pause) = (Site::of(&fleet), Duration::from_millis(2));
    let (load, mut clients) = (Load::new(pause), JoinSet::new());
    for kind in [Kind::Http3, Kind::Http2] {
        clients.spawn(hold(load.clone(), site.clone(), kind, u64::MAX, pause));
    }
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
        (&other, "has version 7 to 9, and 2 to 5 is needed"),
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
    assert_eq!(load.counters.replaced.load(Ordering::Relaxed), 0, "HTTP/2 has lost its connection");
    load.end();
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    load.check();
    assert!(load.counters.requests.load(Ordering::Relaxed) > 100);
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
