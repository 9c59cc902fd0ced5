//! A connection past its handshake, whose peer has the keys and says what the program wants: both roles, streams, datagrams, forward
//! error correction, acknowledgements, connection IDs and paths, in virtual time.

#![no_main]

// The same checks that the tests of the transport run on the corpus.
#[allow(dead_code, reason = "each target runs one of the checks")]
#[path = "../../crates/transport/tests/checks/mod.rs"]
mod checks;
#[allow(dead_code, reason = "the tests look at how far a program has come")]
#[path = "../../crates/transport/tests/checks/connected.rs"]
mod connected;
#[path = "../../crates/transport/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    connected::connected(data);
});
