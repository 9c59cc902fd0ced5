//! Early end of a client's run: Ctrl-C ends the transfers, and the report has the measurements until then.

use tokio_util::sync::CancellationToken;

use crate::{failure::Failure, interrupt::Interrupt};

/// Exit code of a program that Ctrl-C ends, as shells give it.
const INTERRUPTED: i32 = 130;

/// Request to end early. Clones stand for the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct Stop(CancellationToken);

impl Stop {
    /// A request that comes with Ctrl-C or SIGTERM; a second one ends the program at once.
    ///
    /// # Errors
    /// When the system does not let the program listen for signals.
    pub(super) fn on_interrupt() -> Result<Self, Failure> {
        let (mut interrupt, stop) = (Interrupt::listen()?, Self::default());
        let token = stop.0.clone();
        tokio::spawn(async move {
            interrupt.wait().await;
            eprintln!("interrupted: the report has what was measured until now; Ctrl-C again ends at once");
            token.cancel();
            interrupt.wait().await;
            std::process::exit(INTERRUPTED);
        });
        Ok(stop)
    }

    /// Waits for the request.
    pub(super) async fn wait(&self) {
        self.0.cancelled().await;
    }

    /// Returns whether it has come.
    pub(super) fn is_asked(&self) -> bool {
        self.0.is_cancelled()
    }
}
