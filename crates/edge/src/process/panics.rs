//! Hand-over to a new process when a worker has panicked ([`crate::worker_panics`]).

use std::sync::Arc;

use super::Process;
use crate::upgrade::UpgradeError;

impl Process {
    /// Hands over to a new process when a worker has panicked. Must be called within a tokio runtime.
    pub(super) fn watch_workers(self: &Arc<Self>) {
        let (process, panics) = (Arc::downgrade(self), self.shared.panics.clone());
        tokio::spawn(async move {
            panics.replaced().await;
            let Some(process) = process.upgrade() else { return };
            match Self::upgrade(&process, None).await {
                // By an operator's order meanwhile.
                Ok(_) | Err(UpgradeError::HandedOver) => {}
                Err(error) => {
                    tracing::error!("no new process takes over ({error}): the process ends, to be started again");
                    std::process::abort();
                }
            }
        });
    }
}
