//! Looks for times that depend on data: two kinds of input in random turns, and Welch's t of their times, after the slowest were cut off
//! at several shares. An absolute t above 4.5 would be a finding ("Dude, is my code constant time?", Reparaz et al., 2017).
//!
//! `cargo run --profile dist -p tiderace-gcm --example timing`

#![expect(clippy::disallowed_methods, reason = "a measurement of real time needs a clock")]

use std::{hint::black_box, time::Instant};

use gcm::Key;

const CALLS: usize = 400_000;
/// Calls that are timed together, because a clock is coarse.
const TOGETHER: u32 = 8;

/// A sequence that looks random (splitmix64).
struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn bytes<const LEN: usize>(&mut self) -> [u8; LEN] {
        std::array::from_fn(|_| self.next() as u8)
    }
}

/// Welch's t of two samples.
fn t(samples: [&[f64]; 2]) -> f64 {
    let moments = samples.map(|sample| {
        let count = sample.len() as f64;
        let mean = sample.iter().sum::<f64>() / count;
        (mean, sample.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0) / count)
    });
    (moments[0].0 - moments[1].0) / (moments[0].1 + moments[1].1).sqrt()
}

/// The largest t over several cuts.
fn compare(name: &str, sequence: &mut Sequence, mut call: impl FnMut(bool, &mut Sequence) -> f64) {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..CALLS {
        let class = sequence.next() & 1 == 1;
        let time = call(class, sequence);
        times[usize::from(class)].push(time);
    }
    let mut all = times.concat();
    all.sort_by(f64::total_cmp);
    let worst = [0.5, 0.7, 0.9, 0.99].map(|share| {
        let limit = all[(share * (all.len() - 1) as f64) as usize];
        let cut = times.each_ref().map(|one| one.iter().copied().filter(|&time| time <= limit).collect::<Vec<_>>());
        t([&cut[0], &cut[1]])
    });
    let worst = worst.into_iter().max_by(|a, b| a.abs().total_cmp(&b.abs())).expect("four cuts");
    println!("{name}: t = {worst:.1} of {CALLS} times (median {:.0} ns)", all[all.len() / 2]);
}

/// Random bytes, or zeros that were made in the same way: what a call finds in caches must not differ.
fn chosen<const LEN: usize>(sequence: &mut Sequence, is_random: bool) -> [u8; LEN] {
    let mask = 0_u8.wrapping_sub(black_box(u8::from(is_random)));
    sequence.bytes::<LEN>().map(|byte| byte & mask)
}

fn timed(mut call: impl FnMut()) -> f64 {
    let begun = Instant::now();
    (0..TOGETHER).for_each(|_| call());
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(TOGETHER)
}

fn main() {
    let mut sequence = Sequence(1);
    let Some(key) = Key::new(&sequence.bytes::<16>()) else {
        println!("this processor has no VAES with AVX-512");
        return;
    };
    let nonce = [1; 12];
    compare("text of zeros / random text", &mut sequence, |is_random, sequence| {
        let mut text = chosen::<1200>(sequence, is_random);
        timed(|| _ = black_box(key.seal(&nonce, b"header", black_box(&mut text), &[])))
    });
    compare("key of zeros / random key", &mut sequence, |is_random, sequence| {
        let key = Key::new(&chosen::<16>(sequence, is_random)).expect("the other key exists");
        let mut text = sequence.bytes::<1200>();
        timed(|| _ = black_box(key.seal(&nonce, b"header", black_box(&mut text), &[])))
    });
    compare("control that must be found, 1,200 bytes / 1,232 bytes", &mut sequence, |is_longer, _| {
        let mut text = [0; 1232];
        let len = if is_longer { 1232 } else { 1200 };
        timed(|| _ = black_box(key.seal(&nonce, b"header", black_box(&mut text[..len]), &[])))
    });
    let mut sealed = [7; 64];
    let tag = key.seal(&nonce, b"header", &mut sealed, &[]);
    compare("forged in the first byte of the tag / in the last one", &mut sequence, |is_last, _| {
        let mut forged = tag;
        forged[if is_last { 15 } else { 0 }] ^= 1;
        let mut text = sealed;
        timed(|| _ = black_box(key.open(&nonce, b"header", black_box(&mut text), black_box(&forged))))
    });
}
