//! The runtime on which commands do their work.

use tokio::runtime::{Builder, Runtime};

use crate::{address, failure::Failure};

/// Starts a runtime with one thread, which is what a command needs: at low rates switches between threads cost more than packets.
///
/// # Errors
/// When the system gives no descriptors for it.
pub(crate) fn start() -> Result<Runtime, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(format_args!("cannot start: {}", address::plain(&error))))
}
