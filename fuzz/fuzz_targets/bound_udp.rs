//! The other end of a bound UDP tunnel (draft-ietf-masque-connect-udp-listen): capsules about context IDs, and datagrams.

#![no_main]

// The same check that the tests of `h3` run on the corpus.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    h3_quic::connect_udp::bound::fuzzing::run(data);
});
