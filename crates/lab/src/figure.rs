//! Every figure that a report can show: its name, unit, direction and definition, once.

use crate::stats::compare::Better;

/// A figure of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Figure {
    /// See [`Figure::meaning`], as for all others.
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
    /// What the application misses.
    ResidualLoss,
    /// Median delay of a datagram.
    DelayP50,
    /// 95th percentile of the delay of a datagram.
    DelayP95,
    /// 99th percentile of the delay of a datagram.
    DelayP99,
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
    /// How long a video takes to begin.
    VideoStart,
    /// Share of the time in which a video stands still.
    VideoStalled,
    /// How often it comes to stand still.
    VideoStalls,
    /// How often its bitrate changes.
    VideoSwitches,
    /// Its bitrate.
    VideoRate,
    /// Images of a feed that were seen.
    FeedSeen,
    /// Bytes of images that were of no use.
    FeedWasted,
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
    /// What the first of two rivals gets.
    Share,
    /// What the first of two rivals loses of its goodput.
    HarmFirst,
    /// What the second of two rivals loses of its goodput.
    HarmSecond,
    /// By how much the RTT of the first of two rivals is longer.
    HarmDelayFirst,
    /// By how much the RTT of the second of two rivals is longer.
    HarmDelaySecond,
    /// Share of the wire that is repair.
    Repair,
    /// Share of lost packets that repair rebuilt.
    Recovered,
    /// How long that took.
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
}

/// What a figure is measured in. Values are kept in the base unit and scaled for people when printed.
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

    /// The unit that people read, and what a value in the base unit is multiplied by.
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

/// The table: key in records, label in reports, unit, which way is better, and what it means.
type Row = (Figure, &'static str, &'static str, Unit, Option<Better>, &'static str);

use Better::{Higher, Lower};
use Unit::{BitsPerSecond, Bytes, Index, PerSecond, Seconds, Share};

#[rustfmt::skip]
const TABLE: [Row; Figure::COUNT] = [
    (Figure::Goodput, "goodput", "goodput", BitsPerSecond, Some(Higher),
     "unique application bytes delivered to the receiving application per second, all connections together"),
    (Figure::RttP50, "rtt_p50", "RTT p50", Seconds, Some(Lower),
     "median of the RTT samples that acknowledgements gave the sender of the data, less the reported delay of the \
      acknowledgement, all connections together"),
    (Figure::RttP95, "rtt_p95", "RTT p95", Seconds, Some(Lower), "95th percentile of the same samples"),
    (Figure::RttP99, "rtt_p99", "RTT p99", Seconds, Some(Lower), "99th percentile of the same samples; needs 300 samples"),
    (Figure::Jitter, "jitter", "jitter", Seconds, Some(Lower), "p95 - p50 of RTT"),
    (Figure::Bufferbloat, "bufferbloat", "bufferbloat", Index, Some(Lower), "mean RTT under load / minimum RTT - 1"),
    (Figure::LinkLoss, "link_loss", "link loss", Share, None,
     "packets that the loaded link dropped, by its queue or by its loss model, of all that were offered to it"),
    (Figure::Retransmitted, "retransmitted", "retransmitted", Share, Some(Lower),
     "stream bytes sent again, of all stream bytes sent"),
    (Figure::Jain, "jain", "Jain's index", Index, Some(Higher),
     "Jain's index of the connections' goodputs: 1 when all got the same, 1/n when one got everything"),
    (Figure::QueueLoss, "queue_loss", "queue loss", Share, Some(Lower), "the part of link loss that the full queue caused"),
    (Figure::QueueDelayP99, "queue_delay_p99", "queue delay p99", Seconds, Some(Lower),
     "99th percentile of the time that packets waited in the loaded link's queue; needs 300 packets"),
    (Figure::Handshake, "handshake", "handshake p50", Seconds, Some(Lower),
     "median over the connections of the time from the first packet to the established connection, at the client"),
    (Figure::RequestRate, "request_rate", "requests", PerSecond, Some(Higher), "responses completed per second"),
    (Figure::RequestP50, "request_p50", "request p50", Seconds, Some(Lower),
     "median time from sending a request to the last byte of its response"),
    (Figure::RequestP95, "request_p95", "request p95", Seconds, Some(Lower), "95th percentile of the same times"),
    (Figure::RequestP99, "request_p99", "request p99", Seconds, Some(Lower), "99th percentile of the same times; needs 300"),
    (Figure::ResidualLoss, "residual_loss", "residual loss", Share, Some(Lower),
     "datagrams that the receiving application still misses, of those that were due to arrive"),
    (Figure::DelayP50, "delay_p50", "delay p50", Seconds, Some(Lower),
     "median time from handing a datagram to the sender's stack to getting it from the receiver's"),
    (Figure::DelayP95, "delay_p95", "delay p95", Seconds, Some(Lower), "95th percentile of the same times"),
    (Figure::DelayP99, "delay_p99", "delay p99", Seconds, Some(Lower), "99th percentile of the same times; needs 300"),
    (Figure::Overhead, "overhead", "overhead", Share, Some(Lower),
     "bytes of IP packets that were offered to the loaded link and are not goodput, of all of them"),
    (Figure::OverheadResent, "overhead_resent", "  resent", Share, Some(Lower),
     "the part of the overhead that is stream data sent again"),
    (Figure::OverheadRest, "overhead_rest", "  headers, rest", Share, Some(Lower),
     "the rest of the overhead: headers, acknowledgements, handshakes, probes, repair, and data that did not arrive in time"),
    (Figure::Reverse, "reverse", "reverse bytes", Share, Some(Lower),
     "bytes of IP packets that went the other way (acknowledgements, requests), of those of the loaded link"),
    (Figure::FlowP50, "flow_p50", "flow p50", Seconds, Some(Lower),
     "median time of a short flow from the first packet of its handshake to the last byte of its response, or of a page \
      to the last byte of its last object"),
    (Figure::FlowP95, "flow_p95", "flow p95", Seconds, Some(Lower), "95th percentile of the same times; needs 60"),
    (Figure::FlowP99, "flow_p99", "flow p99", Seconds, Some(Lower), "99th percentile of the same times; needs 300"),
    (Figure::FlowsUnfinished, "flows_unfinished", "unfinished flows", Share, Some(Lower),
     "flows that were not complete when the run ended; they are in no percentile"),
    (Figure::VideoStart, "video_start", "video start p50", Seconds, Some(Lower),
     "median over the connections of the time from the first packet of the handshake to the first picture"),
    (Figure::VideoStalled, "video_stalled", "video stalled", Share, Some(Lower),
     "time in which the picture stood still because nothing had arrived, of the time since it began"),
    (Figure::VideoStalls, "video_stalls", "video stalls", PerSecond, Some(Lower),
     "how often the picture came to stand still, per second of that time"),
    (Figure::VideoSwitches, "video_switches", "video switches", PerSecond, Some(Lower),
     "changes of the bitrate, per second of that time"),
    (Figure::VideoRate, "video_rate", "video bitrate", BitsPerSecond, Some(Higher),
     "mean bitrate of the segments that arrived, each as long as it is played"),
    (Figure::FeedSeen, "feed_seen", "feed images seen", Share, Some(Higher),
     "images that were complete before they were scrolled away, of all that were asked for"),
    (Figure::FeedWasted, "feed_wasted", "feed bytes wasted", Share, Some(Lower),
     "bytes of images that arrived and were scrolled away incomplete, of all bytes of images"),
    (Figure::LossSetup, "loss_setup", "lost in set-up", Share, None,
     "connections of which a link dropped a packet, in either direction, before their handshake was complete; warm-up included"),
    (Figure::LossAfter, "loss_after", "lost after set-up", Share, None,
     "connections of which a link dropped a packet after that; warm-up included"),
    (Figure::LossDelayP50, "loss_delay_p50", "loss costs p50", Seconds, Some(Lower),
     "median time from sending a packet to declaring it lost: what it carried goes out again that much later"),
    (Figure::LossDelayP95, "loss_delay_p95", "loss costs p95", Seconds, Some(Lower), "95th percentile of the same times; needs 60"),
    (Figure::LossDelayP99, "loss_delay_p99", "loss costs p99", Seconds, Some(Lower), "99th percentile of the same times; needs 300"),
    (Figure::Share, "share", "share of the first", Share, None,
     "of two rivals on one path: the part of their goodput that the connections of the first got"),
    (Figure::HarmFirst, "harm_first", "harm to the first", Share, Some(Lower),
     "1 - goodput of the first rival's connections / their goodput with the same seed when the second is silent (Ware et al., \
      HotNets 2019)"),
    (Figure::HarmSecond, "harm_second", "harm to the second", Share, Some(Lower), "the same of the second"),
    (Figure::HarmDelayFirst, "harm_delay_first", "delay harm, first", Share, Some(Lower),
     "1 - RTT p50 of the first rival's connections when the second is silent / their RTT p50 beside it"),
    (Figure::HarmDelaySecond, "harm_delay_second", "delay harm, second", Share, Some(Lower), "the same of the second"),
    (Figure::Repair, "repair", "repair", Share, Some(Lower),
     "bytes of packets with repair symbols, with their headers and padding, and of what repair adds to other packets, of all \
      bytes of IP packets that were offered to the loaded link"),
    (Figure::Recovered, "recovered", "recovered", Share, Some(Higher),
     "protected packets that were lost and rebuilt at the receiver, of those that were lost; without those that were rebuilt and \
      arrived after all"),
    (Figure::RecoveryDelay, "recovery_delay", "recovery delay", Seconds, Some(Lower),
     "mean time from missing a packet to having rebuilt it"),
    (Figure::RepairSpurious, "repair_spurious", "repair spurious", Share, Some(Lower),
     "repair symbols that told nothing new, because nothing was missing, of those that arrived"),
    (Figure::RepairLate, "repair_late", "repair late", Share, Some(Lower),
     "repair symbols that came when what they combine was forgotten, of those that arrived"),
    (Figure::Memory, "memory", "memory", Bytes, Some(Lower),
     "mean over the connections of what the sender of the data holds at the end of the run: state, records of packets, and data that \
      was sent and is not acknowledged; without what the application has written ahead, and without its TLS library"),
    (Figure::ResidualNetwork, "residual_network", "  lost", Share, Some(Lower),
     "the part of residual loss that was sent in time and lost on the way"),
    (Figure::ResidualDropped, "residual_dropped", "  dropped", Share, Some(Lower),
     "the part of residual loss that the sender dropped, because its queue overflowed (1 MiB by default), no packet could hold \
      the datagram, or the connection was over"),
    (Figure::ResidualExpired, "residual_expired", "  expired", Share, Some(Lower),
     "the part of residual loss that was worthless before the sender could send it"),
    (Figure::ResidualLate, "residual_late", "  late", Share, Some(Lower),
     "the part of residual loss that waited at the sender when the run ended, or was sent too late to arrive before"),
];

impl Figure {
    /// All figures, in the order of reports.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// How many figures there are.
    pub const COUNT: usize = 55;

    /// The figures that every report shows, even where nobody supports them.
    pub const ALWAYS: [Self; 9] = [
        Self::Goodput,
        Self::RttP50,
        Self::RttP95,
        Self::RttP99,
        Self::Jitter,
        Self::Bufferbloat,
        Self::LinkLoss,
        Self::Retransmitted,
        Self::Jain,
    ];

    fn row(self) -> &'static Row {
        // The table is in the order of the enum; a test holds it to that.
        &TABLE[self as usize]
    }

    /// The key in records.
    pub fn key(self) -> &'static str {
        self.row().1
    }

    /// The name in reports.
    pub fn label(self) -> &'static str {
        self.row().2
    }

    /// What it is measured in.
    pub fn unit(self) -> Unit {
        self.row().3
    }

    /// Which way it improves; `None` when it describes the network and not the contender.
    pub fn better(self) -> Option<Better> {
        self.row().4
    }

    /// Its definition.
    pub fn meaning(self) -> &'static str {
        self.row().5
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
