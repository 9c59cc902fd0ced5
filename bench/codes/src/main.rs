//! Encoding and decoding of packets, beside reed-solomon-erasure with its vector instructions, in one run.
//!
//! Rounds are interleaved, and the verdict is the median of the ratios of rounds, with the range of the middle half: times
//! of a shared machine mean little, ratios within a round more.
//!
//! `cargo run --release --manifest-path bench/codes/Cargo.toml`; with `--json` one line of JSON.

use std::{hint::black_box, time::Instant};

use fec::{Decoder, Encoder, Kernel, Repair};
use reed_solomon_erasure::galois_8::ReedSolomon;

const PACKET: usize = 1200;
const ROUNDS: usize = 61;
const BLOCKS: usize = 2_000;

/// Nanoseconds for each call.
fn time(mut f: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    (0..BLOCKS).for_each(&mut f);
    start.elapsed().as_secs_f64() * 1e9 / BLOCKS as f64
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|q| values[values.len() * q / 4])
}

fn packets(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| (0..PACKET).map(|j| (i * 131 + j * 17 + (j >> 3)) as u8).collect()).collect()
}

/// Times of one block (k + r) in ns: ours with each kernel, and theirs.
struct Block {
    sources: usize,
    repairs: usize,
    ours: Vec<(Kernel, Vec<f64>)>,
    theirs: Vec<f64>,
    decode: Vec<f64>,
    their_decode: Vec<f64>,
}

impl Block {
    fn measure(sources: usize, repairs: usize) -> Self {
        let kernels = Kernel::ALL.into_iter().filter(|kernel| kernel.is_available());
        let mut ours: Vec<_> = kernels.map(|kernel| (kernel, Vec::new())).collect();
        let (mut theirs, mut decode, mut their_decode) = (Vec::new(), Vec::new(), Vec::new());
        let packets = packets(sources);
        let rs = ReedSolomon::new(sources, repairs).expect("a possible code");
        let mut parity = vec![vec![0; PACKET]; repairs];
        let repair = |row| Repair { first: 0, count: sources as u8, stride: 1, row };
        for _ in 0..ROUNDS {
            for (kernel, times) in &mut ours {
                let mut encoder = Encoder::new(*kernel, sources);
                packets.iter().for_each(|packet| {
                    encoder.push(packet);
                });
                times.push(time(|_| {
                    (0..repairs).for_each(|row| {
                        let next = (row + 1 < repairs).then(|| repair(row as u8 + 1));
                        black_box(encoder.repair(&repair(row as u8), next.as_ref()));
                    });
                }));
            }
            theirs.push(time(|_| rs.encode_sep(&packets, &mut parity).expect("right sizes")));
            let mut encoder = Encoder::new(Kernel::best(), sources);
            packets.iter().for_each(|packet| {
                encoder.push(packet);
            });
            let values: Vec<_> =
                (0..repairs).map(|row| encoder.repair(&repair(row as u8), None).expect("held").to_vec()).collect();
            decode.push(time(|_| {
                let mut decoder = Decoder::new(Kernel::best(), sources as u64);
                for (i, packet) in packets.iter().enumerate().skip(repairs) {
                    decoder.on_source(i as u64, packet).expect("consistent");
                }
                for (row, value) in values.iter().enumerate() {
                    decoder.on_repair(&repair(row as u8), value).expect("consistent");
                }
                let mut rebuilt = 0;
                while decoder.next_recovered().is_some() {
                    rebuilt += 1;
                }
                assert_eq!(rebuilt, repairs);
            }));
            let mut shards: Vec<Option<Vec<u8>>> = packets.iter().chain(&parity).cloned().map(Some).collect();
            their_decode.push(time(|_| {
                shards[..repairs].iter_mut().for_each(|shard| *shard = None);
                rs.reconstruct_data(&mut shards).expect("enough");
            }));
        }
        Self { sources, repairs, ours, theirs, decode, their_decode }
    }

    fn ratio(theirs: &[f64], ours: &[f64]) -> [f64; 3] {
        quartiles(theirs.iter().zip(ours).map(|(theirs, ours)| theirs / ours).collect())
    }
}

fn main() {
    let json = std::env::args().any(|arg| arg == "--json");
    let mut lines = Vec::new();
    for (sources, repairs) in [(10, 1), (10, 2), (20, 4)] {
        let block = Block::measure(sources, repairs);
        let name = format!("{}+{}", block.sources, block.repairs);
        let theirs = quartiles(block.theirs.clone());
        if !json {
            println!("{name}, {PACKET} B: reed-solomon-erasure (simd-accel) {:.0} ns per block", theirs[1]);
        }
        for (kernel, times) in &block.ours {
            let (own, ratio) = (quartiles(times.clone()), Block::ratio(&block.theirs, times));
            if json {
                lines.push(format!(
                    r#"{{"code":"{name}","kernel":"{}","ns":{:.1},"ratio":{:.3},"low":{:.3},"high":{:.3}}}"#,
                    kernel.name(),
                    own[1],
                    ratio[1],
                    ratio[0],
                    ratio[2]
                ));
            } else {
                println!(
                    "  encode {:<9} {:>8.0} ns per block, {:>6.1} per packet, {:.2} times as fast ({:.2} to {:.2})",
                    kernel.name(),
                    own[1],
                    own[1] / block.sources as f64,
                    ratio[1],
                    ratio[0],
                    ratio[2]
                );
            }
        }
        let best = block.ours.last().map_or(&block.theirs, |(_, times)| times);
        let decode = quartiles(block.decode.clone());
        let their_decode = quartiles(block.their_decode.clone());
        if !json {
            println!(
                "  decode, {} lost, with taking in what arrived: {:.0} ns; theirs without: {:.0} ns",
                block.repairs, decode[1], their_decode[1]
            );
            let window = window(Kernel::best());
            println!(
                "  (a repair over a window of 40: {window:.0} ns; encoding 10+2 once: {:.0} ns)",
                quartiles(best.clone())[1]
            );
        }
    }
    if json {
        println!("[{}]", lines.join(","));
    }
}

/// Nanoseconds for a repair over 40 packets.
fn window(kernel: Kernel) -> f64 {
    let mut encoder = Encoder::new(kernel, 40);
    packets(40).iter().for_each(|packet| {
        encoder.push(packet);
    });
    let repair = Repair { first: 0, count: 40, stride: 1, row: 5 };
    let times = (0..ROUNDS).map(|_| {
        time(|_| {
            black_box(encoder.repair(&repair, None));
        })
    });
    quartiles(times.collect())[1]
}
