//! Figures of reports. [`declaration`] has their properties.

pub mod declaration;

pub use declaration::{Declaration, Missing, Needs, TABLE, Zero};

pub use crate::kind::Workloads;
use crate::stats::compare::Better;

/// A figure of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Figure {
    /// Application bytes per second; see [`Figure::meaning`], as for all others.
    Goodput,
    /// Median of RTT.
    RttP50,
    /// 95th percentile of RTT.
    RttP95,
    /// 99th percentile of RTT.
    RttP99,
    /// p95 − p50 of RTT.
    Jitter,
    /// Mean over minimum of RTT, minus one.
    Bufferbloat,
    /// Share of packets dropped by the link.
    LinkLoss,
    /// Share of stream bytes sent again.
    Retransmitted,
    /// Jain's index.
    Jain,
    /// Share of packets dropped by the queue.
    QueueLoss,
    /// 99th percentile of the wait in the queue.
    QueueDelayP99,
    /// Time of the handshake.
    Handshake,
    /// Requests answered per second.
    RequestRate,
    /// Median time of a request.
    RequestP50,
    /// 95th percentile of the time of a request.
    RequestP95,
    /// 99th percentile of the time of a request.
    RequestP99,
    /// Loss that the application sees.
    ResidualLoss,
    /// Median delay of a datagram.
    DelayP50,
    /// 95th percentile of the delay of a datagram.
    DelayP95,
    /// 99th percentile of the delay of a datagram.
    DelayP99,
    /// Median delay of the datagrams that arrived.
    ArrivedP50,
    /// 95th percentile of the delay of the datagrams that arrived.
    ArrivedP95,
    /// 99th percentile of the delay of the datagrams that arrived.
    ArrivedP99,
    /// Share of the wire that is not goodput.
    Overhead,
    /// The part of it that was sent again.
    OverheadResent,
    /// The part of it that was lost or is not stream data: headers, handshakes, repair.
    OverheadRest,
    /// Bytes of the other direction.
    Reverse,
    /// Median time of a flow.
    FlowP50,
    /// 95th percentile of the time of a flow.
    FlowP95,
    /// 99th percentile of the time of a flow.
    FlowP99,
    /// Flows that were not complete.
    FlowsUnfinished,
    /// Time that a video takes to begin.
    VideoStart,
    /// Share of the time in which a video stands still.
    VideoStalled,
    /// Number of stalls.
    VideoStalls,
    /// Number of bitrate changes.
    VideoSwitches,
    /// Bitrate.
    VideoRate,
    /// Images of a feed that were seen.
    FeedSeen,
    /// Bytes of images that were of no use.
    FeedWasted,
    /// Pictures of a live broadcast that arrived in time.
    PicturesInTime,
    /// Median latency of a picture.
    PictureP50,
    /// 95th percentile of the latency of a picture.
    PictureP95,
    /// 99th percentile of the latency of a picture.
    PictureP99,
    /// Groups of pictures that were reset.
    GroupsReset,
    /// Bytes of pictures that were sent and of no use.
    PicturesWasted,
    /// Audio datagrams that arrived in time.
    AudioInTime,
    /// Packets of a connection that its sender declared lost.
    InnerLost,
    /// The same of the other end.
    InnerLostBack,
    /// Packets of the tunnel around it that the sender of the data declared lost.
    OuterLost,
    /// The same of the other end.
    OuterLostBack,
    /// Packets that the tunnel dropped before they were sent.
    TunnelDropped,
    /// Connections that lost a packet in set-up.
    LossSetup,
    /// Connections that lost a packet after it.
    LossAfter,
    /// Median delay that a loss costs.
    LossDelayP50,
    /// 95th percentile of the delay that a loss costs.
    LossDelayP95,
    /// 99th percentile of the delay that a loss costs.
    LossDelayP99,
    /// Share of the first of two rivals.
    Share,
    /// Goodput that the first of two rivals loses.
    HarmFirst,
    /// Goodput that the second of two rivals loses.
    HarmSecond,
    /// By how much the RTT of the first of two rivals is longer.
    HarmDelayFirst,
    /// By how much the RTT of the second of two rivals is longer.
    HarmDelaySecond,
    /// Share of the wire that is repair.
    Repair,
    /// Share of lost packets that repair rebuilt.
    Recovered,
    /// Time that recovery took.
    RecoveryDelay,
    /// Share of repair that was not needed.
    RepairSpurious,
    /// Share of repair that came too late.
    RepairLate,
    /// Memory of a connection.
    Memory,
    /// The part of residual loss that the network lost.
    ResidualNetwork,
    /// The part of it that the sender dropped.
    ResidualDropped,
    /// The part of it that expired at the sender.
    ResidualExpired,
    /// The part of it that was not there yet.
    ResidualLate,
    /// CPU time per megabyte, in real time.
    Cpu,
    /// The sender's smoothed RTT, in real time.
    SmoothedRtt,
    /// The sender's delivery rate, in real time.
    DeliveryRate,
    /// Connections of TCP that sent a packet again, in real time.
    Resent,
    /// Connections that did so in set-up.
    ResentSetup,
    /// Connections that did so after it.
    ResentAfter,
}

/// Unit of a figure. Values are kept in the base unit and scaled for people when printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bits per second; printed as Mbit/s.
    BitsPerSecond,
    /// Seconds; printed as milliseconds.
    Seconds,
    /// A share; printed in percent.
    Share,
    /// An index without a unit.
    Index,
    /// Per second.
    PerSecond,
    /// Bytes; printed as KiB.
    Bytes,
}

impl Unit {
    /// The base unit, as in records.
    pub const fn base(self) -> &'static str {
        match self {
            Self::BitsPerSecond => "bit/s",
            Self::Seconds => "s",
            Self::Share | Self::Index => "1",
            Self::PerSecond => "1/s",
            Self::Bytes => "B",
        }
    }

    /// Printed unit, and the factor from the base unit.
    pub const fn printed(self) -> (&'static str, f64) {
        match self {
            Self::BitsPerSecond => ("Mbit/s", 1e-6),
            Self::Seconds => ("ms", 1e3),
            Self::Share => ("%", 100.0),
            Self::Index => ("", 1.0),
            Self::PerSecond => ("1/s", 1.0),
            Self::Bytes => ("KiB", 1.0 / 1024.0),
        }
    }
}

impl Figure {
    /// Number of figures.
    pub const COUNT: usize = TABLE.len();

    /// All figures, in the order of reports.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.figure)
    }

    /// Figures that every report shows, even if no contender reports them.
    pub fn always() -> impl Iterator<Item = Self> {
        TABLE.iter().filter(|row| row.always).map(|row| row.figure)
    }

    /// Declaration of the figure.
    pub fn declaration(self) -> &'static Declaration {
        // The table is in the order of the enum; a test holds it to that.
        &TABLE[self as usize]
    }

    /// The key in records.
    pub fn key(self) -> &'static str {
        self.declaration().key
    }

    /// The name in reports.
    pub fn label(self) -> &'static str {
        self.declaration().label
    }

    /// Unit of its values.
    pub fn unit(self) -> Unit {
        self.declaration().unit
    }

    /// Direction of improvement; `None` when neither more nor less of it is better.
    pub fn better(self) -> Option<Better> {
        self.declaration().better
    }

    /// Definition.
    pub fn meaning(self) -> &'static str {
        self.declaration().meaning
    }

    /// The figure with this key.
    pub fn from_key(key: &str) -> Option<Self> {
        Self::all().find(|figure| figure.key() == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_keys_are_unique() {
        for (index, figure) in Figure::all().enumerate() {
            assert_eq!(figure as usize, index);
            assert_eq!(Figure::from_key(figure.key()), Some(figure));
            assert!(!figure.meaning().is_empty());
        }
        assert_eq!(Figure::from_key("speed"), None);
    }
}
