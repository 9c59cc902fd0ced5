//! Queueing of packets that arrive above the rate.

use serde::{Deserialize, Serialize};
use units::{Bitrate, DataSize, Duration};

use super::short::{Short, short_form};

/// Queue for packets that come faster than the rate. In files a size means drop-tail: `queue = "125 kB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queue {
    /// No bound. Only for a link without a rate, where nothing ever waits.
    #[default]
    Unlimited,
    /// First in, first out. A packet that does not fit is dropped.
    DropTail {
        /// Room for packets that wait, in bytes of IP packets. The packet being sent is not in the queue.
        bytes: DataSize,
    },
    /// First in, first out; packets are dropped at the head when all of them have waited for too long (RFC 8289).
    Codel(Codel),
    /// A queue per flow, served in turn, CoDel in each (RFC 8290). Flows never share a queue here: the collisions of a hash
    /// are not modelled.
    FqCodel(FqCodel),
}

impl Queue {
    /// Room for packets that wait; `None` when there is no bound.
    pub const fn bytes(&self) -> Option<DataSize> {
        match self {
            Self::Unlimited => None,
            Self::DropTail { bytes } => Some(*bytes),
            Self::Codel(codel) => Some(codel.bytes),
            Self::FqCodel(fq) => Some(fq.codel.bytes),
        }
    }
}

/// The settings of CoDel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Codel {
    /// Room for packets that wait. What does not fit is dropped as in a drop-tail queue.
    pub bytes: DataSize,
    /// A wait that is acceptable (RFC 8289 §4.3: 5 ms).
    #[serde(with = "units::duration_text", default = "target")]
    pub target: Duration,
    /// For how long it may be exceeded; a round trip of most connections (RFC 8289 §4.3: 100 ms).
    #[serde(with = "units::duration_text", default = "interval")]
    pub interval: Duration,
    /// Mark packets that can be marked (ECT) and drop only the others.
    #[serde(default)]
    pub ecn: bool,
}

/// The settings of FQ-CoDel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "FqTable", into = "FqTable")]
pub struct FqCodel {
    /// The CoDel of each flow; its `bytes` is the room of all flows together.
    pub codel: Codel,
    /// Bytes that a flow may send in its turn (RFC 8290 §5.2.2: 1514).
    pub quantum: u32,
}

/// [`FqCodel`] as written in a file: one table.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FqTable {
    bytes: DataSize,
    #[serde(with = "units::duration_text", default = "target")]
    target: Duration,
    #[serde(with = "units::duration_text", default = "interval")]
    interval: Duration,
    #[serde(default)]
    ecn: bool,
    #[serde(default = "quantum")]
    quantum: u32,
}

impl From<FqTable> for FqCodel {
    fn from(FqTable { bytes, target, interval, ecn, quantum }: FqTable) -> Self {
        Self { codel: Codel { bytes, target, interval, ecn }, quantum }
    }
}

impl From<FqCodel> for FqTable {
    fn from(FqCodel { codel: Codel { bytes, target, interval, ecn }, quantum }: FqCodel) -> Self {
        Self { bytes, target, interval, ecn, quantum }
    }
}

const fn target() -> Duration {
    Duration::from_millis(5)
}

const fn interval() -> Duration {
    Duration::from_millis(100)
}

const fn quantum() -> u32 {
    1514
}

/// Packets above a rate are dropped at once: a bucket that fills with the rate and empties with the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policer {
    /// Rate at which the bucket fills, in bits of IP packets per second.
    pub rate: Bitrate,
    /// Size of the bucket. It is full at the start.
    pub burst: DataSize,
    /// Apply to UDP packets only, as some networks do: other packets pass and use no tokens.
    #[serde(default)]
    pub udp_only: bool,
}

/// The table behind the short form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) enum QueueTable {
    DropTail { bytes: DataSize },
    Codel(Codel),
    FqCodel(FqCodel),
}

impl From<QueueTable> for Queue {
    fn from(table: QueueTable) -> Self {
        match table {
            QueueTable::DropTail { bytes } => Self::DropTail { bytes },
            QueueTable::Codel(codel) => Self::Codel(codel),
            QueueTable::FqCodel(fq) => Self::FqCodel(fq),
        }
    }
}

impl Short<'_> for Queue {
    type Table = QueueTable;
    const EXPECTED: &'static str =
        "the size of a drop-tail queue such as \"125 kB\", or a table with one of `drop-tail`, `codel` and `fq-codel`";
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "unlimited" => Ok(Self::Unlimited),
            size => size.parse().map(|bytes| Self::DropTail { bytes }).map_err(|error| format!("{error}")),
        }
    }
}

short_form!(Queue);
