//! The decoder of erasure codes: a seeded run against the rank oracle, then symbols straight from the input.

#![no_main]

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../crates/fec/tests/support/mod.rs"]
mod support;

use fec::{Decoder, Kernel, Repair};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((seed, mut rest)) = data.split_first_chunk::<8>() else { return };
    support::run(u64::from_le_bytes(*seed));
    let mut decoder = Decoder::new(Kernel::best(), 192 + u64::from(seed[0]));
    while let Some((head, tail)) = rest.split_first_chunk::<8>() {
        let [kind, id @ .., count, stride, row, len] = *head;
        let (content, tail) = tail.split_at(tail.len().min(len.into()));
        rest = tail;
        let first = u64::from_le_bytes([id[0], id[1], id[2], 0, 0, 0, 0, 0]) << (kind >> 3);
        let outcome = if kind & 1 == 0 {
            decoder.on_source(first, content).map(|_| ())
        } else {
            let repair = Repair { first, count, stride, row };
            repair.check().map_or(Ok(()), |()| decoder.on_repair(&repair, content).map(|_| ()))
        };
        while decoder.next_recovered().is_some() {}
        assert!(decoder.memory() < 4 << 20);
        if outcome.is_err() {
            return;
        }
    }
});
