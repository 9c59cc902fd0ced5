//! Requests to end: Ctrl-C, or SIGTERM.

use std::io;

use crate::failure::Failure;

/// Listens for the request to end, from when it is made: one that comes before [`Interrupt::wait`] is not missed.
pub(crate) struct Interrupt {
    #[cfg(unix)]
    signals: [tokio::signal::unix::Signal; 2],
}

impl Interrupt {
    /// Must be called within a tokio runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Self::register().map_err(|error| Failure::new(format_args!("cannot listen for signals: {error}")))
    }

    #[cfg(unix)]
    fn register() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { signals: [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?] })
    }

    #[cfg(not(unix))]
    fn register() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Waits until the program is asked to end.
    #[cfg(unix)]
    pub(crate) async fn wait(&mut self) {
        let [interrupt, terminate] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }

    /// Waits until the program is asked to end.
    #[cfg(not(unix))]
    pub(crate) async fn wait(&mut self) {
        // Where signals cannot be listened to, the system ends the program.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
