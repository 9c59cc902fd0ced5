//! The decoder against an oracle that knows nothing but linear algebra: after every arrival the symbols that came out are
//! exactly those that the ranks of the equations determine, and not a byte of them is wrong.

mod support;

use support::{Channel, Random, run};

#[test]
fn recovers_what_the_rank_determines() {
    let mut recovered = 0;
    for seed in 0..3_000 {
        recovered += run(seed).recovered;
    }
    assert!(recovered > 8_000, "only {recovered} symbols were ever recovered");
}

/// `cargo test -p tiderace-fec --release -- --ignored` (a minute or two).
#[test]
#[ignore = "10^6 blocks and windows; the short form runs always, `cargo xtask shows fec --only oracle` this one"]
fn recovers_what_the_rank_determines_a_million_times() {
    let (mut windows, mut recovered, mut seed) = (0, 0, 1 << 32);
    while windows < 1_000_000 {
        let outcome = run(seed);
        windows += outcome.repairs;
        recovered += outcome.recovered;
        seed += 1;
    }
    println!("{windows} blocks and windows, {recovered} symbols recovered, set and bytes equal to the oracle's");
}

#[test]
fn the_channel_loses_what_it_says() {
    for burst in [1.0, 3.0, 6.0] {
        let mut channel = Channel::new(0.05, burst);
        let mut random = Random(7);
        let (mut lost, mut runs, mut before) = (0u32, 0u32, false);
        for _ in 0..400_000 {
            let loses = channel.loses(&mut random);
            lost += u32::from(loses);
            runs += u32::from(loses && !before);
            before = loses;
        }
        let (share, length) = (f64::from(lost) / 400_000.0, f64::from(lost) / f64::from(runs));
        // Chance alone makes runs of 1 / (1 - p).
        let expected = if burst == 1.0 { 1.0 / 0.95 } else { burst };
        assert!((share - 0.05).abs() < 0.003 && (length / expected - 1.0).abs() < 0.05, "{burst}: {share} {length}");
    }
}

/// Seeds that once told decoder and oracle apart.
#[test]
fn seeds_that_were_hard() {
    for seed in [4_294_967_806, 4_294_967_807] {
        run(seed);
    }
}
