//! Same seed, same trace: within a process, in another process, and as it was when this was written.

mod nodes;

use std::process::Command;

use netem::{Duplicate, LinkConfig, Loss, Queue, Reorder};
use nodes::{Actor, Echo, Pacer};
use sim::{Access, Dumbbell, Host, TraceHash, client_address, server_address};
use tiderace_sim as sim;
use units::{Bitrate, DataSize, Duration, Instant, Probability, Seed};

/// Ten clients over a path on which everything goes wrong.
fn run(seed: u64) -> (TraceHash, u64) {
    let probability = |value| Probability::new(value).unwrap();
    let link = LinkConfig {
        rate: Some(Bitrate::from_bps(1_100_000)),
        queue: Queue::DropTail { bytes: DataSize::from_bytes(64_000) },
        delay: Duration::from_millis(100),
        jitter: Duration::from_millis(20),
        jitter_period: Duration::from_millis(100),
        reorder: Some(Reorder { probability: probability(0.01), delay: Duration::from_millis(5) }),
        duplicate: Some(Duplicate { probability: probability(0.01), delay: Duration::from_millis(5) }),
        loss: Loss::Burst { mean: probability(0.02), length: 6.0 },
        corrupt: probability(0.01),
        ..LinkConfig::default()
    };
    let access = Access { delay: Duration::from_millis(1), jitter: Duration::from_micros(300) };
    let clients = (0..10).map(|n| {
        let pacer = Pacer::new(client_address(n), server_address(0), 300, Duration::from_millis(80 + u64::from(n)));
        Host { access, ..Host::new(format!("client {n}"), Actor::Pacer(pacer)) }
    });
    let dumbbell = Dumbbell { up: link.clone(), down: link, start_jitter: Duration::from_millis(100), nat: None };
    let server = [Host::new("server", Actor::Echo(Echo::default()))];
    let mut simulation = dumbbell.build(Seed::from_number(seed), clients, server).unwrap();
    assert!(simulation.run_until(Instant::from_millis(60_000)).unwrap().is_finished());
    (simulation.trace().hash(), simulation.trace().packets())
}

#[test]
fn same_seed_same_trace() {
    let (hash, packets) = run(1);
    assert!(packets > 5000);
    assert_eq!(run(1), (hash, packets));
    assert_ne!(run(2).0, hash);
}

/// Recorded runs refer to their trace by this hash. If it changes, either the model has changed (say so in the
/// changelog) or something depends on what it must not.
#[test]
fn the_trace_is_the_one_that_was_recorded() {
    assert_eq!(run(1).0.to_string(), "bea701f9d0af7e4c186dc54fcf80962a");
}

const CHILD: &str = "TIDERACE_SIM_TEST_CHILD";

#[test]
fn two_processes_agree() {
    if std::env::var_os(CHILD).is_some() {
        println!("hash {}", run(1).0);
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["two_processes_agree", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    let (_, hash) = text.split_once("hash ").unwrap_or_else(|| panic!("the child printed no hash: {text}"));
    assert_eq!(hash.split_whitespace().next(), Some(run(1).0.to_string().as_str()));
}
