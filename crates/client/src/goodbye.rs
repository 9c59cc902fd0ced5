//! The goodbye of QUIC connections. A program that ends before its last packets have left keeps the server waiting for the idle
//! timeout.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use h3_quic::Code;
use tiderace::Endpoint;
use tokio::{sync::watch, task::JoinSet};

/// How long an endpoint stays to repeat a goodbye that was lost. RFC 9000 §10.2 has three probe timeouts for that, and lets go
/// earlier whoever closes the socket.
const PATIENCE: Duration = Duration::from_millis(100);

/// The endpoints whose connections are not over yet.
#[derive(Debug)]
pub(crate) struct Goodbyes {
    open: Mutex<JoinSet<()>>,
    end: watch::Sender<bool>,
}

impl Default for Goodbyes {
    fn default() -> Self {
        Self { open: Mutex::default(), end: watch::Sender::new(false) }
    }
}

impl Goodbyes {
    /// Keeps an endpoint, which has a connection by now, until it has none.
    pub(crate) fn await_of(&self, endpoint: Arc<Endpoint>) {
        let mut end = self.end.subscribe();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while open.try_join_next().is_some() {}
        open.spawn(async move {
            tokio::select! {
                () = endpoint.wait_idle() => return,
                // Gone is as good as told.
                _ = end.wait_for(|ended| *ended) => endpoint.close(Code::NO_ERROR.0, b""),
            }
            let _ = tokio::time::timeout(PATIENCE, endpoint.wait_idle()).await;
        });
    }

    /// Closes what is open, and waits until the goodbyes have left.
    pub(crate) async fn say(&self) {
        self.end.send_replace(true);
        let mut open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        while open.join_next().await.is_some() {}
    }
}
