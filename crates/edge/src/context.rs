//! State that a listener gives to a connection: address, shared state, drain signal.

use std::{net::SocketAddr, sync::Arc};

use http::HeaderValue;
use tokio::sync::watch;

use crate::{config::Config, generation::Shared};

/// Listener of a connection: address, shared state, drain signal.
#[derive(Clone)]
pub(crate) struct ListenerContext {
    pub(crate) shared: Arc<Shared>,
    pub(crate) local: SocketAddr,
    pub(crate) draining: watch::Receiver<Draining>,
}

/// Drain state of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Draining {
    No,
    /// Another process takes new connections: connections that can move without a loss drain.
    HandedOver,
    /// All end.
    Yes,
}

impl ListenerContext {
    /// Waits until connections shall end.
    pub(crate) fn drain(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut draining = self.draining.clone();
        async move {
            // An error says that the listener is gone, which means the same.
            let _ = draining.wait_for(|draining| *draining == Draining::Yes).await;
        }
    }

    /// Returns whether another process takes new connections.
    pub(crate) fn is_handed_over(&self) -> bool {
        *self.draining.borrow() == Draining::HandedOver
    }

    /// Waits until connections that can move without a loss have to drain: those of HTTP/2, whose client learns which requests were not
    /// processed.
    pub(crate) fn hand_over(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut draining = self.draining.clone();
        async move {
            let _ = draining.wait_for(|draining| *draining != Draining::No).await;
        }
    }

    /// Value of the `alt-svc` field for clients over TCP.
    pub(crate) fn alt_svc(&self, config: &Config) -> Option<HeaderValue> {
        let http3 = config.http3.enabled && !config.http3.shed;
        let age = config.http3.alt_svc_max_age.0.as_secs();
        // Who does not know the parameter passes it over (RFC 7838 §3).
        let asks = if config.http3.fallback_reports { "; fallback-reports=1" } else { "" };
        let text = format!("h3=\":{}\"; ma={age}{asks}", self.local.port());
        http3.then(|| HeaderValue::from_str(&text).expect("numbers and tokens"))
    }
}
