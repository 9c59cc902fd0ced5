//! The only place where the clock is read.

use std::time::{Instant as SystemInstant, SystemTime};

use units::{Duration, Instant};

/// Maps the system's monotonic clock to instants whose origin is the Unix epoch, so that tokens outlive the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: SystemInstant,
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { started: SystemInstant::now(), origin: Instant::ZERO + since_epoch }
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.origin + self.started.elapsed()
    }

    /// System instant for an [`Instant`], to sleep until it.
    pub(crate) fn to_system(self, at: Instant) -> SystemInstant {
        self.started.checked_add(at - self.origin).unwrap_or_else(|| self.started + Duration::from_secs(86_400 * 365))
    }
}
