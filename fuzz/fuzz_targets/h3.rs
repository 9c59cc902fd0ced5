//! Streams of HTTP/3 as a peer may write them: frames, settings, capsules, field sections and the messages in them.

#![no_main]

// The same check that the tests of `h3` run on the corpus.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    h3_quic::fuzzing::run(data);
});
