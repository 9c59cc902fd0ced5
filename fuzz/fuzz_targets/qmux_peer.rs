//! An end of QMux, past the exchange of parameters, whose peer says what the program wants: both roles, thousands of frames, with
//! every byte on the heap counted.

#![no_main]

// The same checks that the tests of `qmux` run on the corpus.
#[path = "../../crates/qmux/tests/checks/heap.rs"]
mod heap;
#[allow(dead_code, reason = "the tests look at how far a program has come")]
#[path = "../../crates/qmux/tests/checks/peer.rs"]
mod peer;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    peer::peer(data, &heap::live);
});
