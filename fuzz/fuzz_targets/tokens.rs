//! Retry and NEW_TOKEN tokens, genuine and not, before a server that wants every address proven.

#![no_main]

// The same checks that the tests of the transport run on the corpus.
#[allow(dead_code, reason = "each target runs one of the checks")]
#[path = "../../crates/transport/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    checks::tokens::tokens(data);
});
