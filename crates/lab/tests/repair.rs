//! Forward error correction in the laboratory: codes against theory, in short. The full measure: `cargo xtask shows fec`.

use tiderace_lab::{
    figure::Figure,
    reference::fec::{DATAGRAMS, MESSAGES, Setting, goodput, latency, measured, overhead, residual_loss, restraint},
};

#[test]
fn repair_leaves_less_missing_and_shows_evidence() {
    let setting = Setting { seconds: 6, seeds: 1, ..DATAGRAMS };
    let missing = |code| measured(&setting, code, Figure::ResidualLoss).unwrap().0;
    let (off, block, window) = (missing("off"), missing("rs:10+2"), missing("rlc:1/5:40"));
    println!("{off} {block} {window}");
    assert!((0.04..0.08).contains(&off), "{off}");
    assert!(block < 0.012 && window < 0.001, "{block} {window}");
}

#[test]
fn messages_wait_less() {
    let setting = Setting { seconds: 6, seeds: 1, ..MESSAGES };
    let p99 = |code| measured(&setting, code, Figure::DelayP99).unwrap().0;
    let (off, window) = (p99("off"), p99("rlc:1/5:40"));
    assert!(window < 0.7 * off, "{window} {off}");
}

/// Everything, for people: `cargo test --workspace --test repair -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes; `cargo xtask shows fec --only residual` runs it"]
fn all_findings() {
    for part in [residual_loss, overhead, latency, goodput, restraint] {
        match part() {
            Ok(findings) => findings.iter().for_each(|finding| {
                println!("{} {finding}", if finding.passed() { "pass" } else { "MISS" });
            }),
            Err(error) => println!("MISS {error}"),
        }
    }
}
