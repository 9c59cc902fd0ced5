//! Two ends of QMux under random commands, beside a model of what each reader must get, and peers that break rules.

#![no_main]

// The same check that the tests of `qmux` run on the corpus.
#[allow(dead_code, reason = "the tests look at how far a program has come")]
#[path = "../../crates/qmux/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    checks::qmux(data);
});
