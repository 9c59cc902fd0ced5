//! Runtime of commands.

use tokio::runtime::{Builder, Runtime};

use crate::{address, failure::Failure};

/// Starts a runtime with one thread: at the low rates of a command, switching between threads costs more than packets.
///
/// # Errors
/// When the system gives no descriptors for it.
pub(crate) fn start() -> Result<Runtime, Failure> {
    built(Builder::new_current_thread().enable_all().build())
}

/// Starts a runtime with two threads, for a command whose measurements must not wait for its own load.
///
/// # Errors
/// When the system gives no descriptors or threads for it.
pub(crate) fn start_parallel() -> Result<Runtime, Failure> {
    built(Builder::new_multi_thread().worker_threads(2).enable_all().build())
}

fn built(runtime: std::io::Result<Runtime>) -> Result<Runtime, Failure> {
    runtime.map_err(|error| Failure::new(format_args!("cannot start: {}", address::plain(&error))))
}
