//! Planted errors: a live path that differs from the simulated one is found.
#![cfg(target_os = "linux")]

use emu::network::{Network, NetworkConfig, Privilege};
use lab::{
    contender::Contender,
    record::RunOutcome,
    run,
    scenario::{Scenario, parse},
    tiderace::contender,
};
use netem::LinkConfig;
use tiderace_live::{Agreement, Conditions, run_one};
use units::{Bitrate, Duration, Seed};

fn permitted() -> bool {
    let config = NetworkConfig::new(LinkConfig::default(), LinkConfig::default(), Seed::from_number(1));
    let network = Privilege::acquire().and_then(|_| Network::start(&config));
    if let Err(error) = &network {
        eprintln!("not tested, since this system refuses: {error}");
    }
    network.is_ok()
}

const PATH: &str = r#"
name = "both-clocks"
title = "10 Mbit/s and 40 ms"
about = "The same path in real and in virtual time."
[path.down]
rate = "10 Mbit/s"
queue = "50 kB"
delay = "20 ms"
[path.up]
rate = "10 Mbit/s"
queue = "50 kB"
delay = "20 ms"
[traffic]
workload = "bulk"
connections = 1
[run]
warmup = "2 s"
duration = "3 s"
seeds = 1
"#;

/// Runs `live` in real time and `scenario` in the simulator. The machine may be too busy for its figures to be trusted: what is planted
/// is beyond what it could take back.
fn compared(scenario: &Scenario, live: &Scenario, stack: &dyn Contender) -> Agreement {
    let mut real = run_one(live, stack, 1, Conditions { accept_busy: true, ..Conditions::default() });
    if let RunOutcome::Failed(reason) = &real.outcome {
        assert!(reason.starts_with("not to be trusted"), "{reason}");
        real.outcome = RunOutcome::Valid;
    }
    let simulated = run::run_one(scenario, stack, 1, None);
    Agreement::of("tiderace cubic", [&real].into_iter(), [&simulated].into_iter()).unwrap()
}

#[test]
fn a_rate_that_is_a_tenth_lower_is_found() {
    if !permitted() {
        return;
    }
    let scenario = parse(PATH, "a test").unwrap();
    let mut live = scenario.clone();
    live.path.down.rate = Some(Bitrate::from_bps(9_000_000));
    let agreement = compared(&scenario, &live, contender("cubic").unwrap().as_ref());
    println!("{agreement:?}: {:+.1} %", agreement.goodput_difference() * 100.0);
    // No more passes than the rate lets through, however fast the machine is.
    assert!(agreement.goodput_difference() < -0.05 && !agreement.holds(), "{agreement:?}");
}

#[test]
fn five_milliseconds_more_are_found() {
    if !permitted() {
        return;
    }
    // Without a queue that fills, the RTT is that of the path: requests of one packet.
    let text = PATH.replace("workload = \"bulk\"", "workload = \"requests\"\nresponse-size = \"500 B\"\nstreams = 1");
    let scenario = parse(&text, "a test").unwrap();
    let mut live = scenario.clone();
    live.path.down.delay += Duration::from_millis(5);
    let agreement = compared(&scenario, &live, contender("cubic").unwrap().as_ref());
    println!("{agreement:?}: {:+.2} ms", agreement.rtt_difference().unwrap() * 1e3);
    // No packet arrives before it is due, so that 5 ms more are 5 ms more at least.
    assert!(agreement.rtt_difference().unwrap() >= 0.0049 && !agreement.holds(), "{agreement:?}");
}
