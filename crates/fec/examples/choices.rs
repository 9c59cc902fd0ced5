//! Computes the table that the controller of the transport chooses codes from, by running encoder and decoder over simulated
//! channels:
//!
//! ```text
//! cargo run --release -p tiderace-fec --example choices > crates/transport/src/fec/table.rs
//! ```
//!
//! With `residual` as argument it prints the residual loss of codes instead, for docs/fec.md.

#[allow(dead_code, reason = "the oracle is not needed here")]
#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use fec::{Decoder, Encoder, Kernel, Schedule, Scheme};
use support::{Channel, Random};

const LOSSES: [f64; 15] =
    [0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.085, 0.10, 0.125, 0.15, 0.20];
const BURSTS: [f64; 4] = [1.0, 2.0, 3.0, 6.0];
/// Packets in which a loss has to be repaired.
const SLOTS: [u64; 15] = [10, 12, 15, 20, 25, 30, 35, 40, 50, 60, 80, 120, 160, 240, 320];
const TARGETS: [f64; 4] = [0.0002, 0.001, 0.01, 0.03];
const CODES: [&str; 21] = [
    "rlc:1/20:20",
    "rlc:1/20:40",
    "rlc:1/20:80",
    "rlc:1/20:160",
    "rlc:1/10:20",
    "rlc:1/10:40",
    "rlc:1/10:80",
    "rlc:1/10:160",
    "rlc:3/20:20",
    "rlc:3/20:40",
    "rlc:3/20:120",
    "rlc:1/5:20",
    "rlc:1/5:40",
    "rlc:1/5:120",
    "rlc:1/4:20",
    "rlc:1/4:40",
    "rlc:1/4:120",
    "rlc:1/3:20",
    "rlc:1/3:40",
    "rlc:1/3:80",
    "rlc:1/3:160",
];

/// Residual loss of a code on a channel, for each of the limits in `slots`.
fn residual(scheme: Scheme, loss: f64, burst: f64, slots: &[u64], symbols: u64) -> Vec<f64> {
    let mut random = Random(0x7ab1e ^ (loss * 1e6) as u64 ^ (burst * 1e3) as u64);
    let mut channel = Channel::new(loss, burst);
    let mut encoder = Encoder::new(Kernel::best(), scheme.span() as usize);
    let mut schedule = Schedule::new(scheme, 0);
    let mut decoder = Decoder::new(Kernel::best(), 256);
    let mut sent_at: BTreeMap<u64, u64> = BTreeMap::new();
    let mut missed = vec![0u64; slots.len()];
    let mut slot = 0u64;
    let mut lost = 0u64;
    for _ in 0..symbols {
        let id = encoder.push(&[]);
        slot += 1;
        if channel.loses(&mut random) {
            sent_at.insert(id, slot);
            lost += 1;
        } else {
            decoder.on_source(id, &[]).expect("a conforming sender");
        }
        schedule.on_source(id);
        loop {
            while let Some((id, _)) = decoder.next_recovered() {
                if let Some(at) = sent_at.remove(&id) {
                    for (missed, limit) in missed.iter_mut().zip(slots) {
                        *missed += u64::from(slot - at > *limit);
                    }
                }
            }
            let Some(repair) = schedule.take_due() else { break };
            slot += 1;
            let value = encoder.repair(&repair, None).expect("held").to_vec();
            if !channel.loses(&mut random) {
                decoder.on_repair(&repair, &value).expect("a conforming sender");
            }
        }
    }
    let _ = lost;
    missed.iter().map(|missed| (*missed + sent_at.len() as u64) as f64 / symbols as f64).collect()
}

fn main() {
    if std::env::args().any(|arg| arg == "residual") {
        return print_residual();
    }
    let symbols = 200_000;
    // By loss, burst, code: residual for each limit.
    let scheme = |code: &str| code.parse::<Scheme>().expect("a code");
    let mut all = Vec::new();
    for burst in BURSTS {
        for loss in LOSSES {
            let codes: Vec<_> = CODES.iter().map(|code| residual(scheme(code), loss, burst, &SLOTS, symbols)).collect();
            all.push(codes);
        }
    }
    println!("//! Which code is the least that meets a target: computed, not written.");
    println!("//!");
    println!(
        "//! Made by `cargo run --release -p tiderace-fec --example choices`, which runs the codes over {symbols} packets of a"
    );
    println!("//! Gilbert channel for each entry.");
    println!("#![cfg_attr(rustfmt, rustfmt_skip)]");
    println!();
    println!("use fec::Scheme;");
    println!();
    println!("/// Shares of packets lost.");
    println!("pub(super) const LOSSES: [f64; {}] = {LOSSES:?};", LOSSES.len());
    println!("/// Mean lengths of bursts of lost packets.");
    println!("pub(super) const BURSTS: [f64; {}] = {BURSTS:?};", BURSTS.len());
    println!("/// Packets in which a loss has to be repaired.");
    println!("pub(super) const SLOTS: [f64; {}] = {:?};", SLOTS.len(), SLOTS.map(|s| s as f64));
    println!("/// Shares of packets that may remain lost.");
    println!("pub(super) const TARGETS: [f64; {}] = {TARGETS:?};", TARGETS.len());
    println!();
    println!("/// The codes, from the least repair to the most.");
    println!("pub(super) const CODES: [Scheme; {}] = [", CODES.len());
    for code in CODES {
        let Scheme::Window { repairs, sources, window } = scheme(code) else { unreachable!("all are windows") };
        println!("    Scheme::Window {{ repairs: {repairs}, sources: {sources}, window: {window} }},");
    }
    println!("];");
    println!();
    println!("/// Index into [`CODES`], by target, slots, burst and loss; 255 where no code meets the target.");
    println!(
        "pub(super) const CHOICES: [[[[u8; {}]; {}]; {}]; {}] = [",
        LOSSES.len(),
        BURSTS.len(),
        SLOTS.len(),
        TARGETS.len()
    );
    for target in TARGETS {
        println!("    [");
        for slots in 0..SLOTS.len() {
            println!("        [");
            for burst in 0..BURSTS.len() {
                let choices: Vec<_> = (0..LOSSES.len())
                    .map(|loss| {
                        let codes = &all[burst * LOSSES.len() + loss];
                        let meets =
                            |code: &usize| codes[*code][slots] <= target && codes[*code][slots] < LOSSES[loss] / 2.0;
                        (0..CODES.len()).find(meets).map_or(u8::MAX, |code| code as u8)
                    })
                    .collect();
                println!("            {choices:?},");
            }
            println!("        ],");
        }
        println!("    ],");
    }
    println!("];");
}

fn print_residual() {
    let codes = [
        "xor:10",
        "rs:10+2",
        "rs:20+4",
        "rs:20+4/6",
        "rlc:1/10:40",
        "rlc:1/5:40",
        "rlc:1/5:120",
        "rlc:1/5:160",
        "rlc:1/5:192",
        "rlc:1/3:40",
    ];
    println!("| code | i.i.d. | burst 3 | burst 6 |");
    println!("|---|---|---|---|");
    for code in codes {
        let scheme = code.parse().expect("a code");
        let cells: Vec<_> = [1.0, 3.0, 6.0]
            .iter()
            .map(|burst| format!("{:.3} %", 100.0 * residual(scheme, 0.05, *burst, &[1 << 40], 3_000_000)[0]))
            .collect();
        println!("| {code} | {} |", cells.join(" | "));
    }
}
