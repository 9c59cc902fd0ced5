//! The books of a gateway, looked at in the end of each test: every request that began has ended once or is in flight, and when the
//! gateway has gone, all have ended, each with its line.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use tiderace_edge::{Process, metrics::Metrics};

use super::{LIMIT, read};

/// Requests of a protocol, or streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub begun: u64,
    pub ended: u64,
    pub open: u64,
}

/// Metrics by protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    pub requests: BTreeMap<String, Account>,
    pub streams: BTreeMap<String, Account>,
    pub lines_dropped: u64,
}

impl Ledger {
    pub fn read(figures: &str) -> Self {
        let mut this = Self::default();
        for line in figures.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let value = value as u64;
            let (name, labels) = name.split_once('{').unwrap_or((name, ""));
            let protocol = labels.split_once("protocol=\"").and_then(|(_, rest)| rest.split_once('"'));
            let protocol = protocol.map_or(String::new(), |(protocol, _)| protocol.to_owned());
            match name {
                "tiderace_edge_requests_begun_total" => this.requests.entry(protocol).or_default().begun += value,
                "tiderace_edge_requests_total" => this.requests.entry(protocol).or_default().ended += value,
                "tiderace_edge_requests_in_flight" => this.requests.entry(protocol).or_default().open += value,
                "tiderace_edge_streams_begun_total" => this.streams.entry(protocol).or_default().begun += value,
                "tiderace_edge_streams_total" => this.streams.entry(protocol).or_default().ended += value,
                "tiderace_edge_streams_in_flight" => this.streams.entry(protocol).or_default().open += value,
                "tiderace_edge_log_lines_dropped_total" => this.lines_dropped += value,
                _ => {}
            }
        }
        this
    }

    fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.requests.values().chain(self.streams.values())
    }

    pub fn is_balanced(&self) -> bool {
        self.accounts().all(|account| account.begun == account.ended + account.open)
    }

    /// Requests and streams in flight.
    pub fn open(&self) -> u64 {
        self.accounts().map(|account| account.open).sum()
    }

    /// Requests that have ended.
    pub fn ended(&self) -> u64 {
        self.requests.values().map(|account| account.ended).sum()
    }
}

/// Looks at the books when it is dropped.
pub struct Books {
    metrics: Arc<Metrics>,
    process: Weak<Process>,
    /// The access log, where it has been on all the time.
    log: Option<PathBuf>,
}

impl Books {
    pub fn of(process: &Arc<Process>, log: Option<PathBuf>) -> Self {
        Self { metrics: process.metrics(), process: Arc::downgrade(process), log }
    }

    pub fn ledger(&self) -> Ledger {
        Ledger::read(&self.metrics.render())
    }

    /// Returns the first fault, if there is one by now.
    fn fault(&self) -> Option<String> {
        let ledger = self.ledger();
        let is_gone = self.process.strong_count() == 0;
        if !ledger.is_balanced() || is_gone && ledger.open() > 0 {
            return Some(format!(
                "the books do not balance, the gateway {}: {ledger:?}",
                if is_gone { "gone" } else { "at work" }
            ));
        }
        let log = self.log.as_ref().filter(|_| is_gone)?;
        let lines = read(log).lines().count() as u64;
        (lines + ledger.lines_dropped != ledger.ended())
            .then(|| format!("{lines} lines in the access log, and {} requests have ended: {ledger:?}", ledger.ended()))
    }
}

impl Drop for Books {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Counts are made one after the other: what is between two of them is not wrong yet.
        let begun = Instant::now();
        while let Some(fault) = self.fault() {
            assert!(begun.elapsed() < LIMIT, "{fault}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
