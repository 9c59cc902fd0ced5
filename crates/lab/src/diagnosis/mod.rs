//! Diagnosis of one end of a connection from its qlog file: timeline, losses, stalls, and limits of the sender.
//!
//! The events read are those of draft-ietf-quic-qlog-quic-events in JSON text sequences. The event `sender:limited`, which is ours, has the
//! limit of the sender. Without it the diagnosis leaves out the limits.

mod read;
mod text;

use std::{collections::BTreeMap, io::BufRead};

use serde::Serialize;

/// Parts of a timeline.
const PARTS: usize = 20;
/// Losses that are not further apart than this, in seconds, are one burst.
const BURST: f64 = 0.01;
/// A sender with data is stalled when it sends nothing for this many round trips.
const STALL_RTTS: f64 = 2.0;
/// Minimum duration of a stall in seconds.
const STALL_LEAST: f64 = 0.02;
/// Bursts and stalls that are kept: the largest.
const KEPT: usize = 1_000;

/// Diagnosis of one file. Times are in seconds since its reference.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Diagnosis {
    /// The title.
    pub title: String,
    /// The ID that the client addressed first.
    pub id: String,
    /// Vantage point: `client` or `server`.
    pub vantage: String,
    /// Reference time, as RFC 3339 writes it.
    pub reference: Option<String>,
    /// The first event.
    pub begin_s: f64,
    /// The last event.
    pub end_s: f64,
    /// Milestones of the connection, in order.
    pub milestones: Vec<Milestone>,
    /// Sums over the whole time.
    pub totals: Totals,
    /// The smallest RTT, in milliseconds.
    pub min_rtt_ms: Option<f64>,
    /// The median of the RTT samples, in milliseconds.
    pub median_rtt_ms: Option<f64>,
    /// 95 % of the RTT samples are smaller, in milliseconds.
    pub p95_rtt_ms: Option<f64>,
    /// Seconds for which each limit held the sender; absent if the file does not have them.
    pub limited_s: Option<BTreeMap<String, f64>>,
    /// Losses that belong together.
    pub losses: Vec<Burst>,
    /// Times in which the sender had data and sent nothing.
    pub stalls: Vec<Stall>,
    /// The time in equal parts.
    pub timeline: Vec<Part>,
}

/// Event that happens once or rarely.
#[derive(Clone, Debug, Serialize)]
pub struct Milestone {
    /// Time.
    pub at_s: f64,
    /// Event, in words.
    pub what: String,
}

/// Totals. Packets are QUIC packets, bytes include headers and tags.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    /// Packets sent.
    pub packets_sent: u64,
    /// Bytes of them.
    pub bytes_sent: u64,
    /// Packets received.
    pub packets_received: u64,
    /// Bytes of them.
    pub bytes_received: u64,
    /// Packets declared lost, without MTU probes.
    pub packets_lost: u64,
    /// Received packets that were not processed.
    pub packets_dropped: u64,
    /// Times that a probe timeout expired.
    pub probe_timeouts: u64,
}

/// Losses that belong together.
#[derive(Clone, Debug, Serialize)]
pub struct Burst {
    /// The first of them was declared lost.
    pub at_s: f64,
    /// Packets.
    pub packets: u64,
    /// Triggers of the losses, with numbers of packets.
    pub triggers: BTreeMap<String, u64>,
}

/// A time in which the sender had data and sent no packet with data.
#[derive(Clone, Debug, Serialize)]
pub struct Stall {
    /// Begin.
    pub at_s: f64,
    /// Duration.
    pub seconds: f64,
    /// Limit in force for the longest part.
    pub limit: String,
    /// Probe timeouts that expired meanwhile.
    pub probe_timeouts: u64,
}

/// A part of the time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Part {
    /// Begin.
    pub from_s: f64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// The last smoothed RTT in it, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// The last congestion window in it, in bytes.
    pub window: Option<u64>,
    /// Seconds that each limit held the sender in it.
    pub limited_s: BTreeMap<String, f64>,
}

impl Diagnosis {
    /// Reads a qlog file.
    ///
    /// # Errors
    /// When it cannot be read, or is no such file.
    pub fn read(file: impl BufRead) -> std::io::Result<Self> {
        read::read(file)
    }

    /// The seconds from the first event to the last.
    pub fn seconds(&self) -> f64 {
        self.end_s - self.begin_s
    }
}
