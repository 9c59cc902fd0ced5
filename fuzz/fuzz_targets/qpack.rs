//! An encoder and a decoder of QPACK under random commands, beside a model of what must come out, and peers that break rules.

#![no_main]

// The same check that the tests of `qpack` run on the corpus.
#[allow(dead_code, reason = "the tests look at how far a program has come")]
#[path = "../../crates/qpack/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    checks::qpack(data);
});
