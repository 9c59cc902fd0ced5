//! Job of one run: the work of a mode with its amounts, as command line arguments that every contender understands.

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::mode::Mode;

/// Bytes of a request.
pub const REQUEST: usize = 100;
/// Bytes of the answer to it.
pub const RESPONSE: usize = 1_024;
/// Requests in progress at the same time, unless others are asked for.
pub const CONCURRENT: usize = 100;
/// Bytes of a datagram of the application.
pub const DATAGRAM: usize = 1_200;
/// Handshakes before the clock starts: caches are warm, and a client that resumes has its first ticket.
pub const HANDSHAKES_BEFORE: u64 = 20;
/// Connections before the memory of idle ones is measured.
pub const IDLE_BEFORE: u64 = 50;

/// The work of one run. Both sides must be given the same.
#[derive(Args, Clone, Copy, Debug, Serialize)]
pub struct Job {
    /// Mode of the work
    #[arg(long, default_value = "bulk")]
    pub mode: Mode,
    /// Amount of work: bytes, handshakes, requests, datagrams or connections
    #[arg(long, default_value_t = 1 << 30)]
    pub amount: u64,
    /// Requests in progress at the same time
    #[arg(long, default_value_t = CONCURRENT)]
    pub in_flight: usize,
}

impl Job {
    /// Connections of a bulk transfer.
    pub fn connections(&self) -> u64 {
        if self.mode == Mode::BulkConnections { 50 } else { 1 }
    }

    /// Streams of each connection of a bulk transfer.
    pub fn streams(&self) -> u64 {
        if self.mode == Mode::BulkStreams { 100 } else { 1 }
    }

    /// Bytes of each stream of a bulk transfer.
    pub fn bytes_per_stream(&self) -> Result<u64> {
        let streams = self.connections() * self.streams();
        ensure!(self.amount >= streams, "{} bytes are too few for {streams} streams", self.amount);
        Ok(self.amount / streams)
    }

    /// Returns whether connections after the first resume its session.
    pub fn resumes(&self) -> bool {
        self.mode == Mode::Resumed
    }

    /// The arguments that make this job on a contender's command line.
    pub fn arguments(&self) -> Vec<String> {
        let mut all =
            vec!["--mode".to_owned(), self.mode.name().to_owned(), "--amount".to_owned(), self.amount.to_string()];
        if self.in_flight != CONCURRENT {
            all.extend(["--in-flight".to_owned(), self.in_flight.to_string()]);
        }
        all
    }
}
