//! Threads where handshakes wait for a signature, so that nothing else does.
//!
//! TLS asks for a signature in a call that has to return it. Handshakes of QUIC are made on the threads of the TLS pool, which starts
//! another thread in the place of one that waits. Handshakes of TCP are made on a runtime of their own, whose threads do the same.

use std::{
    io,
    sync::{Mutex, PoisonError},
};

use tokio::{
    runtime::{Builder, Handle, Runtime, RuntimeFlavor},
    task::JoinHandle,
};

/// Handshakes over TCP that wait at a time. Others wait for one of them.
const MOST: usize = 512;

/// Runtime of handshakes over TCP. Started with the first one.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<Option<Runtime>>);

impl Waiting {
    /// The runtime.
    ///
    /// # Errors
    /// When its threads cannot be started.
    fn handle(&self) -> io::Result<Handle> {
        let mut runtime = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = match &mut *runtime {
            Some(runtime) => runtime,
            empty => {
                let mut builder = Builder::new_multi_thread();
                builder.worker_threads(2).max_blocking_threads(MOST).thread_name("tls-tcp").enable_all();
                empty.insert(builder.build()?)
            }
        };
        Ok(runtime.handle().clone())
    }

    /// Runs a handshake where it may wait. It ends when the returned future is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        handshake: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let mut task = AbortOnDrop(self.handle()?.spawn(handshake));
        (&mut task.0).await.map_err(io::Error::other)?
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // What waits there is nobody's any more; a runtime may not block in another one.
        if let Some(runtime) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            runtime.shutdown_background();
        }
    }
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs what blocks. Another thread takes the place of the calling one meanwhile, where that is one for handshakes.
pub(super) fn wait<T>(blocking: impl FnOnce() -> T) -> T {
    let is_ours = Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_ours { tokio::task::block_in_place(blocking) } else { tiderace::wait_outside(blocking) }
}
