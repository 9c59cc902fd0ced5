//! Bursty loss against its closed form: parameters, mean, burst length and their distribution.
//!
//! The tolerances are those of a correlated sample: consecutive losses of a burst are one piece of luck, so the binomial
//! variance of the mean is inflated by 2B - 1.

#![expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]

use netem::{Link, LinkConfig, Loss, PacketMeta, Verdict};
use tiderace_netem as netem;
use units::{Instant, Probability, Seed};

const BURSTS: [f64; 3] = [3.0, 6.0, 11.0];
/// Mean loss, and the p of the reference table for each burst length.
const TABLE: [(f64, [f64; 3]); 4] = [
    (0.006, [0.002_012, 0.001_006, 0.000_549]),
    (0.01, [0.003_367, 0.001_684, 0.000_918]),
    (0.02, [0.006_803, 0.003_401, 0.001_855]),
    (0.05, [0.017_544, 0.008_772, 0.004_785]),
];
const PACKETS: u64 = 4_000_000;
/// Standard deviations allowed: 12 combinations of two figures each; 3.5 fails a sound model once in 90 seeds, and the
/// seed is fixed.
const SIGMAS: f64 = 3.5;

/// Lengths of the bursts among `packets` packets.
fn bursts(loss: Loss, packets: u64, seed: u64) -> (u64, Vec<u64>) {
    let config = LinkConfig { loss, ..LinkConfig::default() };
    let mut link = Link::new(&config, Seed::from_number(seed)).unwrap();
    let (mut lost, mut run, mut runs) = (0, 0, Vec::new());
    for number in 0..packets {
        let packet = PacketMeta { size: 1500, number, ..PacketMeta::default() };
        match link.offer(Instant::from_micros(number), &packet).verdict {
            Verdict::Dropped(_) => {
                lost += 1;
                run += 1;
            }
            Verdict::Delivered { .. } if run > 0 => runs.push(std::mem::take(&mut run)),
            Verdict::Held(_) | Verdict::Delivered { .. } => {}
        }
    }
    (lost, runs)
}

fn probability(value: f64) -> Probability {
    Probability::new(value).unwrap()
}

#[test]
fn parameters_are_those_of_the_table() {
    for (mean, row) in TABLE {
        for (length, expected) in BURSTS.into_iter().zip(row) {
            let Ok(Loss::GilbertElliott { p, r, loss_good, loss_bad }) = Loss::from_bursts(probability(mean), length)
            else {
                panic!("a chain");
            };
            assert!((p.get() - expected).abs() < 0.000_000_51, "{mean} {length}: {p:?}");
            assert!((r.get() - 1.0 / length).abs() < 1e-12);
            assert_eq!((loss_good, loss_bad), (Probability::ZERO, Probability::ONE));
        }
    }
}

#[test]
fn mean_and_burst_length_are_as_asked() {
    for (mean, _) in TABLE {
        for length in BURSTS {
            let (lost, runs) = bursts(Loss::Burst { mean: probability(mean), length }, PACKETS, 11);
            let share = lost as f64 / PACKETS as f64;
            let error = (mean * (1.0 - mean) * (2.0 * length - 1.0) / PACKETS as f64).sqrt();
            assert!((share - mean).abs() < SIGMAS * error, "mean {share} of {mean} at burst {length} (± {error})");
            let found = lost as f64 / runs.len() as f64;
            // A geometric length with mean B has the variance B(B - 1).
            let error = (length * (length - 1.0) / runs.len() as f64).sqrt();
            assert!((found - length).abs() < SIGMAS * error, "length {found} of {length} at mean {mean} (± {error})");
        }
    }
}

#[test]
fn burst_lengths_are_geometric() {
    for length in BURSTS {
        let (_, runs) = bursts(Loss::Burst { mean: probability(0.02), length }, PACKETS, 5);
        let total = runs.len() as f64;
        let stays = 1.0 - 1.0 / length;
        // Classes 1, 2, …, 19 and "20 or more".
        let mut observed = [0.0; 20];
        for run in &runs {
            observed[(*run as usize).min(20) - 1] += 1.0;
        }
        let mut chi_square = 0.0;
        let mut classes = 0;
        for (index, count) in observed.into_iter().enumerate() {
            let at_least = f64::powi(stays, i32::try_from(index).unwrap());
            let expected = total * if index == 19 { at_least } else { at_least / length };
            if expected >= 5.0 {
                chi_square += (count - expected) * (count - expected) / expected;
                classes += 1;
            }
        }
        // 99.9 % point of chi-square with at most 19 degrees of freedom: 43.8; with 12 (burst 3): 32.9.
        let limit = if classes > 13 { 43.8 } else { 32.9 };
        assert!(classes >= 12 && chi_square < limit, "burst {length}: chi-square {chi_square} over {classes} classes");
    }
}

#[test]
fn independent_loss_has_bursts_of_its_own_kind() {
    // The negative control: the test above must tell the two models apart.
    let (lost, runs) = bursts(Loss::Iid { p: probability(0.05) }, PACKETS, 3);
    let share = lost as f64 / PACKETS as f64;
    assert!((share - 0.05).abs() < SIGMAS * (0.05f64 * 0.95 / PACKETS as f64).sqrt(), "{share}");
    let length = lost as f64 / runs.len() as f64;
    assert!((length - 1.0 / 0.95).abs() < 0.003, "{length}");
}
