//! The other end of an IP tunnel (RFC 9484): capsules about addresses and routes, packets, requests and templates.

#![no_main]

// The same check that the tests of `h3` run on the corpus.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    h3_quic::connect_ip::fuzzing::run(data);
});
