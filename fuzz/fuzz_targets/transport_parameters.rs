//! The extension of the TLS handshake, as transport parameters of either side.

#![no_main]

// The same checks that the tests of `wire` run on the corpus.
#[allow(dead_code, reason = "each target runs one of the checks")]
#[path = "../../crates/wire/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::transport_parameters(data));
