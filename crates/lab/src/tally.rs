//! Counters of an application at one end of a connection, from which figures are computed.

use serde::{Deserialize, Serialize};
use units::{Duration, Instant};

use crate::host::DatagramFate;

/// Datagrams that were due and did not arrive, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Sent in time, and lost in the network.
    pub network: u64,
    /// Never sent: they left a full queue, fitted into no packet, or the connection was over or refused them.
    pub dropped: u64,
    /// Never sent: they were worthless before.
    pub expired: u64,
    /// Still waiting at the sender when the run ended, or sent too late to arrive before.
    pub late: u64,
}

impl Missing {
    /// Adds a datagram that did not arrive. `fate` is what its sender knows of it: nothing as long as it waits. What is sent from
    /// `too_late` on does not arrive before the run ends.
    pub(crate) fn add(&mut self, fate: Option<DatagramFate>, too_late: Instant) {
        let column = match fate {
            None => &mut self.late,
            Some(DatagramFate::Sent(at)) if at >= too_late => &mut self.late,
            Some(DatagramFate::Sent(_)) => &mut self.network,
            Some(DatagramFate::Dropped) => &mut self.dropped,
            Some(DatagramFate::Expired) => &mut self.expired,
        };
        *column += 1;
    }

    /// All of them.
    pub const fn sum(&self) -> u64 {
        self.network + self.dropped + self.expired + self.late
    }
}

/// Experience of a video's viewer, at the client.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VideoTally {
    /// Time at which it began to play, whether that counts or not.
    pub began: Option<Instant>,
    /// Time since it began, as far as it counts.
    pub watched: Duration,
    /// The part of it in which the picture stood still.
    pub stalled: Duration,
    /// Number of stalls.
    pub stalls: u64,
    /// Changes of the bitrate.
    pub switches: u64,
    /// Segments that arrived …
    pub segments: u64,
    /// … and their bits.
    pub bits: f64,
}

/// Live broadcast at one end of a connection. What is due was captured while figures counted, and early enough to arrive before the run
/// ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BroadcastTally {
    /// Pictures that were due, at the sender.
    pub pictures_due: u64,
    /// Groups that were due as a whole, at the sender …
    pub groups_due: u64,
    /// … and those of them that were reset. `None` for a stack that cannot reset a stream.
    pub groups_reset: Option<u64>,
    /// Bytes of these groups that left in packets, each counted once.
    pub group_bytes: u64,
    /// Audio datagrams that were due, at the sender.
    pub audio_due: u64,
    /// From the capture of each due picture to its last byte, at the receiver.
    pub latencies: Vec<Duration>,
    /// Pictures among them within the latency budget.
    pub pictures_in_time: u64,
    /// Bytes of those whose group was due as a whole.
    pub useful_bytes: u64,
    /// Due audio datagrams that arrived within the latency budget, at the receiver.
    pub audio_in_time: u64,
}

impl BroadcastTally {
    /// Counters of one broadcast: those of its sender from `self`, the others from `receiver`.
    pub(crate) fn with_receiver(&self, receiver: &Self) -> Self {
        Self {
            latencies: receiver.latencies.clone(),
            pictures_in_time: receiver.pictures_in_time,
            useful_bytes: receiver.useful_bytes,
            audio_in_time: receiver.audio_in_time,
            ..self.clone()
        }
    }
}

/// Experience of a feed's reader, at the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedTally {
    /// Images that were complete before they were scrolled away …
    pub seen: u64,
    /// … and their bytes.
    pub image_bytes: u64,
    /// Cancelled images.
    pub missed: u64,
    /// Bytes of images that arrived and were cancelled.
    pub wasted_bytes: u64,
}
