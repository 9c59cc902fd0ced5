//! A client and a server under random actions and a random network, beside a model of what each reader must get.

#![no_main]

// The same checks that the tests of the transport run on the corpus.
#[allow(dead_code, reason = "each target runs one of the checks")]
#[path = "../../crates/transport/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    checks::endpoints::endpoints(data);
});
