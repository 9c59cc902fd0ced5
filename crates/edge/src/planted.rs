//! Panics that a test plants, in debug builds only: the variable `TIDERACE_PLANTED_PANIC` of the environment has a text, at whose end in a
//! datagram the task panics that drives the socket, and at whose end in the path of a request the task of the request.

use std::sync::LazyLock;

/// Text at which to panic.
static TEXT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("TIDERACE_PLANTED_PANIC").ok());

/// Returns whether a panic is planted.
pub(crate) fn is_planted() -> bool {
    TEXT.as_ref().is_some_and(|text| !text.is_empty())
}

/// Panics when `bytes` end with the text.
pub(crate) fn check(bytes: &[u8]) {
    let is_it = is_planted() && TEXT.as_ref().is_some_and(|text| bytes.ends_with(text.as_bytes()));
    assert!(!is_it, "the planted panic");
}
