//! Set-up of a connection over TCP: the time that its first request has waited for.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Time that the set-up of a connection has taken. It counts for the first request, which has waited for it.
#[derive(Debug, Default)]
pub(crate) struct SetupTime(AtomicU64);

impl SetupTime {
    pub(crate) fn new(time: Duration) -> Self {
        Self(AtomicU64::new(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Takes it, so that it counts once.
    pub(crate) fn take(&self) -> Duration {
        Duration::from_nanos(self.0.swap(0, Relaxed))
    }
}
