//! Cost of protecting one packet on this machine: nanoseconds per call, best of many short rounds.
//!
//! `cargo run --profile dist -p tiderace-transport --example packet_cost`

#![expect(clippy::disallowed_methods, reason = "a measurement of real time needs a clock")]

use std::hint::black_box;
use std::time::Instant;

use transport::PathId;
use transport::crypto::{CipherSuite, HeaderKey, Labels, PacketKey, Secret, TAG_LEN};
use transport::keys::Keys;

/// Best of many short rounds, so that other processes do not show, in nanoseconds per call.
fn measure(mut call: impl FnMut()) -> f64 {
    const CALLS: u32 = 200;
    let round = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    (0..1000).map(|_| round(&mut call)).fold(f64::INFINITY, f64::min)
}

fn main() {
    let labels = Labels::of(wire::version::V1).expect("version 1 is supported");
    println!(
        "{:<18} {:>8} {:>10} {:>10} {:>10} {:>10}",
        "ns per call", "mask", "seal 40", "seal 1452", "open 1452", "new keys"
    );
    for suite in [CipherSuite::Aes128Gcm, CipherSuite::Aes256Gcm, CipherSuite::ChaCha20Poly1305] {
        let secret = Secret::new(&vec![7; suite.secret_len()]).expect("a secret of the right length");
        let header_key = HeaderKey::new(suite, &secret, labels);
        let packet_key = PacketKey::new(suite, &secret, labels);
        let header = [0x43, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

        let sample = [9; 16];
        let mask = measure(|| _ = black_box(header_key.mask(black_box(&sample))));
        let mut pn = 0;
        let mut small = [0; 40 + TAG_LEN];
        let seal_small = measure(|| {
            pn += 1;
            packet_key.seal(pn, PathId(0), black_box(&header), black_box(&mut small));
        });
        let mut packet = [0; 1452 - 13];
        let seal = measure(|| {
            pn += 1;
            packet_key.seal(pn, PathId(0), black_box(&header), black_box(&mut packet));
        });
        packet_key.seal(1, PathId(0), &header, &mut packet);
        let sealed = packet;
        let copy = measure(|| black_box(&mut packet).copy_from_slice(black_box(&sealed)));
        let open = measure(|| {
            packet.copy_from_slice(&sealed);
            packet_key.open(1, PathId(0), black_box(&header), black_box(&mut packet)).expect("it is authentic");
        });
        let keys = measure(|| drop(black_box(PacketKey::new(suite, black_box(&secret), labels))));
        println!(
            "{:<18} {mask:>8.1} {seal_small:>10.1} {seal:>10.1} {:>10.1} {keys:>10.1}",
            format!("{suite:?}"),
            open - copy
        );
    }
    println!("a connection's keys without those on the heap: {} bytes", size_of::<Keys>());
}
