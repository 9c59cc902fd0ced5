//! A datagram, as packet headers; its first byte is the length of connection IDs in short headers.

#![no_main]

// The same checks that the tests of `wire` run on the corpus.
#[allow(dead_code, reason = "each target runs one of the checks")]
#[path = "../../crates/wire/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::headers(data));
