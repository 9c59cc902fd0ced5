//! Kinds of traffic, which load a path in a scenario and determine the figures of a run.

use serde::{Deserialize, Serialize};

/// The kinds of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Streams that always have data to send.
    Bulk,
    /// Requests and responses, the next request when the response to the last one is complete.
    Requests,
    /// Unreliable datagrams at a constant rate (RFC 9221).
    Datagrams,
    /// As `datagrams`, but one after the other on one stream: each waits for those before it, and none is missed in the end.
    Messages,
    /// Short flows: each connection fetches one response and is done. What counts is the time from the first packet of its
    /// handshake to the last byte.
    Flows,
    /// Video in segments, with a bitrate that follows the path: how long the picture stands still, how often the quality
    /// changes.
    Video,
    /// One web page for each connection: the time from the first packet of its handshake to the last object.
    Page,
    /// A scrolled feed: API responses and images with priorities; images scrolled out of view are cancelled.
    Feed,
    /// A live broadcast over WebTransport: a stream for each group of pictures, audio in datagrams. Groups that are late are reset.
    Webtransport,
    /// As `bulk`, with the losses of a tunnel and of the connection inside it. Contenders say through which tunnels they run.
    Tunnel,
}

/// Workloads, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workloads(u16);

impl Workloads {
    /// Every workload.
    pub const ALL: Self = Self(u16::MAX);

    /// Set of these workloads.
    pub const fn of(workloads: &[Workload]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < workloads.len() {
            bits |= 1 << workloads[index] as u16;
            index += 1;
        }
        Self(bits)
    }

    /// Returns whether a workload is among them.
    pub const fn contains(self, workload: Workload) -> bool {
        self.0 & (1 << workload as u16) != 0
    }
}
