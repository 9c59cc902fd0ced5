//! Close of connections. A program that ends before its last packets are sent keeps the server waiting for the idle timeout.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use h3_quic::Code;
use tiderace::Endpoint;
use tokio::{sync::watch, task::JoinSet};

/// Time for which an endpoint stays to repeat a lost CONNECTION_CLOSE. RFC 9000 §10.2 has three probe timeouts for that, and lets go
/// earlier, whichever side closes the socket. A connection over TCP has as long to send GOAWAY (RFC 9113 §6.8) and the end of TLS.
const PATIENCE: Duration = Duration::from_millis(100);

/// The connections that are not over yet.
#[derive(Debug)]
pub(crate) struct ClosingConnections {
    open: Mutex<JoinSet<()>>,
    end: watch::Sender<bool>,
}

impl Default for ClosingConnections {
    fn default() -> Self {
        Self { open: Mutex::default(), end: watch::Sender::new(false) }
    }
}

impl ClosingConnections {
    /// Keeps an endpoint with a connection until it has none.
    pub(crate) fn await_of(&self, endpoint: Arc<Endpoint>) {
        let mut end = self.end.subscribe();
        self.spawn(async move {
            tokio::select! {
                () = endpoint.wait_idle() => return,
                // Gone is as good as told.
                _ = end.wait_for(|ended| *ended) => endpoint.close(Code::NO_ERROR.0, b""),
            }
            let _ = tokio::time::timeout(PATIENCE, endpoint.wait_idle()).await;
        });
    }

    /// Drives a connection over TCP until it ends, which it does when no requests can be sent any more and the exchanges are
    /// over.
    pub(crate) fn await_driver<E: std::fmt::Display + Send>(
        &self,
        driver: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let mut end = self.end.subscribe();
        self.spawn(async move {
            let mut driver = std::pin::pin!(driver);
            let ended = tokio::select! {
                ended = &mut driver => Some(ended),
                _ = end.wait_for(|ended| *ended) => None,
            };
            let ended = match ended {
                Some(ended) => ended,
                None => tokio::time::timeout(PATIENCE, driver).await.unwrap_or(Ok(())),
            };
            if let Err(error) = ended {
                tracing::debug!("a connection over TCP has ended: {error}");
            }
        });
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while open.try_join_next().is_some() {}
        open.spawn(task);
    }

    /// Closes all open connections, and waits until the closes were sent.
    pub(crate) async fn say(&self) {
        self.end.send_replace(true);
        let mut open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        while open.join_next().await.is_some() {}
    }
}
