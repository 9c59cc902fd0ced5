//! Early end of a measurement: Ctrl-C ends it, and the report has the measurements until then.

use tokio_util::sync::CancellationToken;

use crate::{failure::Failure, interrupt::Interrupt, screen};

/// Exit code of a program that Ctrl-C ends, as shells give it.
const INTERRUPTED: i32 = 130;

/// Request to end early. Clones stand for the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(CancellationToken);

impl Stop {
    /// A request that comes with Ctrl-C or SIGTERM; a second one ends the program at once.
    ///
    /// # Errors
    /// When the system does not let the program listen for signals.
    pub(crate) fn on_interrupt() -> Result<Self, Failure> {
        let (mut interrupt, stop) = (Interrupt::listen()?, Self::default());
        let asked = stop.clone();
        tokio::spawn(async move {
            loop {
                interrupt.wait().await;
                asked.ask();
            }
        });
        Ok(stop)
    }

    /// Asks. The second request ends the program at once.
    pub(crate) fn ask(&self) {
        if self.is_asked() {
            screen::leave();
            std::process::exit(INTERRUPTED);
        }
        // A screen shows it by itself.
        if !screen::is_shown() {
            eprintln!("interrupted: the report has what was measured until now; Ctrl-C again ends at once");
        }
        self.0.cancel();
    }

    /// Waits for the request.
    pub(crate) async fn wait(&self) {
        self.0.cancelled().await;
    }

    /// Returns whether it has come.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.is_cancelled()
    }
}
