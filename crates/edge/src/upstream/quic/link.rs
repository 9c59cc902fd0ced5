//! A connection in use: its requests, and its end when it has none.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use h3_quic::client::SendRequest;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;

use super::{QuicPool, REQUESTS};

/// A connection to a back end.
pub(super) struct Link {
    requests: SendRequest,
    in_use: Mutex<Use>,
    /// A response came on it.
    answered: AtomicBool,
    /// Number of connections to the back end.
    count: Gauge,
}

struct Use {
    requests: u64,
    /// Time of the last change.
    since: Instant,
}

/// A request's place on a connection, which it keeps until its response has ended.
pub(super) struct Busy(Arc<Link>);

impl Link {
    pub(super) fn new(requests: SendRequest, count: Gauge) -> Self {
        count.inc();
        let in_use = Mutex::new(Use { requests: 0, since: Instant::now() });
        Self { requests, in_use, answered: AtomicBool::new(false), count }
    }

    fn in_use(&self) -> MutexGuard<'_, Use> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn requests(&self) -> &SendRequest {
        &self.requests
    }

    pub(super) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// A place for a request, if there is one.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Busy> {
        let mut in_use = self.in_use();
        if in_use.requests == REQUESTS {
            return None;
        }
        in_use.requests += 1;
        Some(Busy(self.clone()))
    }

    /// Time until the connection has been idle for `kept`.
    fn kept_for(&self, kept: Duration) -> Duration {
        let in_use = self.in_use();
        if in_use.requests > 0 { kept } else { kept.saturating_sub(in_use.since.elapsed()) }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.count.dec();
    }
}

impl Busy {
    /// Notes that a response has come.
    pub(super) fn answered(&self) {
        self.0.answered.store(true, Ordering::Relaxed);
    }

    pub(super) fn requests(&self) -> &SendRequest {
        self.0.requests()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut in_use = self.0.in_use();
        *in_use = Use { requests: in_use.requests - 1, since: Instant::now() };
    }
}

/// Removes a connection from its pool when it has ended, or was idle for long enough.
pub(super) async fn retire(pool: Weak<QuicPool>, number: usize, link: Weak<Link>) {
    // As a handle it keeps the connection; the last handle of requests closes it.
    let Some(connection) = link.upgrade().map(|link| link.requests.connection().clone()) else { return };
    let Some(kept) = pool.upgrade().map(|pool| pool.kept) else { return };
    loop {
        let Some(kept_for) = link.upgrade().map(|link| link.kept_for(kept)) else { return };
        let has_ended = tokio::select! {
            _ = connection.closed() => true,
            () = tokio::time::sleep(kept_for) => false,
        };
        let (Some(pool), Some(link)) = (pool.upgrade(), link.upgrade()) else { return };
        if has_ended || link.kept_for(kept).is_zero() {
            return pool.remove(number, &link);
        }
    }
}
