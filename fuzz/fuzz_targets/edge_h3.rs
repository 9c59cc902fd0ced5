//! The gateway with a back end, all in this process, and a client of HTTP/3 with keys that says what the program wants.

#![no_main]

use std::cell::OnceCell;

// The same checks that the tests of the gateway run on the corpus.
#[allow(dead_code, reason = "the tests look at what has stayed")]
#[path = "../../crates/edge/tests/checks/bench.rs"]
mod bench;
#[allow(dead_code, reason = "the tests look at how far a program has come")]
#[path = "../../crates/edge/tests/checks/client.rs"]
mod client;
#[path = "../../crates/qmux/tests/checks/heap.rs"]
mod heap;
#[path = "../../crates/edge/tests/site/mod.rs"]
mod site;

thread_local! {
    static BENCH: OnceCell<bench::Bench> = const { OnceCell::new() };
}

/// Rust's runtime does this before `main`, which is libFuzzer's here: a back end's connection that is closed is an error, and no signal.
fn ignore_broken_pipes() {
    // SAFETY: no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

libfuzzer_sys::fuzz_target!(init: ignore_broken_pipes(), |data: &[u8]| {
    BENCH.with(|bench| {
        bench.get_or_init(|| bench::Bench::new(&heap::live)).run(data, &heap::live);
    });
});
