//! Samples and records of a connection, taken by its observer.

use std::{
    io::Write,
    sync::{Arc, Mutex, PoisonError},
};

use transport::{
    observe::{Both, LossEvent, Observer, ObserverFactory, Start},
    qlog::{QlogWriter, Vantage},
};
use units::{Duration, Instant};

/// Observer of the connection from its first packet on.
pub(super) struct Watch {
    pub(super) samples: Samples,
    pub(super) vantage: Vantage,
    pub(super) title: String,
    /// Destination of qlog, when it is wanted; handed over to the connection.
    pub(super) log: Mutex<Option<Box<dyn Write + Send>>>,
}

impl ObserverFactory for Watch {
    fn observe(&self, _now: Instant, start: &Start) -> Option<Box<dyn Observer>> {
        let samples = Box::new(self.samples.clone());
        let Some(log) = self.log.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Some(samples) };
        let log = QlogWriter::new(log, self.vantage, self.title.clone(), start.original_dcid, Instant::ZERO);
        Some(Box::new(Both(samples, Box::new(log))))
    }
}

/// Samples passed from the connection to the laboratory. One thread runs a simulation, so the lock is never contended.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Arc<Mutex<Taken>>);

/// Samples since they were last taken.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) rtt: Vec<Duration>,
    /// Time that after a packet was sent it was declared lost.
    pub(super) losses: Vec<Duration>,
}

impl Samples {
    pub(super) fn with(&self, act: impl FnOnce(&mut Taken)) {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Observer for Samples {
    fn rtt_sample(&mut self, _now: Instant, _latest: Duration, adjusted: Duration) {
        self.with(|taken| taken.rtt.push(adjusted));
    }

    fn packet_lost(&mut self, _now: Instant, lost: &LossEvent) {
        if !lost.mtu_probe {
            self.with(|taken| taken.losses.push(lost.after));
        }
    }
}
