//! Table of all figures, for reports, comparisons, gates and files.
//!
//! A row has the unit of the figure, its better direction, the method of comparison, the meaning of zero and of a missing value, the figure
//! on which it depends, its workloads, and the smallest difference that matters.

use super::{Figure, Unit};
use crate::{
    kind::{Workload, Workloads},
    stats::compare::{Better, Rule, Scale, Tolerance},
};

/// Known facts of a figure.
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// Figure that is declared.
    pub figure: Figure,
    /// Key in records, JSON, CSV and on the command line.
    pub key: &'static str,
    /// Name in reports.
    pub label: &'static str,
    /// Unit of its values.
    pub unit: Unit,
    /// Direction of improvement; `None` when neither more nor less is better.
    pub better: Option<Better>,
    /// Scale of comparisons.
    pub scale: Scale,
    /// Meaning of the value 0.
    pub zero: Zero,
    /// Meaning of a run without data for the figure.
    pub missing: Missing,
    /// Figure that this one depends on: a delay of arrived datagrams says nothing about missing ones.
    pub presupposes: Option<Figure>,
    /// The workloads whose runs have it.
    pub workloads: Workloads,
    /// Needs of a scenario to have it.
    pub needs: Needs,
    /// The differences that do not matter, and that a gate lets pass.
    pub tolerance: Tolerance,
    /// Place among the headlines of workloads, from 0.
    pub headline: &'static [(Workloads, u8)],
    /// Reports show it even if no contender reports it.
    pub always: bool,
    /// Definition.
    pub meaning: &'static str,
}

/// Meaning of the value 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zero {
    /// Zero is the worst value: no work was done.
    Worst,
    /// Zero is the best value: nothing unwanted occurred.
    Best,
    /// A value between others.
    Value,
    /// Cannot be: time passes.
    Impossible,
}

/// Meaning of a run without data for the figure. Too few samples, and figures that a stack does not report, are unknown for every figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Never happened: a time that is longer than any other.
    Never,
    /// Missing samples rank above every value. Without any sample, the value is unknown.
    Ranked,
    /// Unknown: a comparison must hold for any value.
    Unknown,
}

/// Needs of a scenario beside the workload for runs to have a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// Several connections.
    Connections,
    /// Rivals that share the path.
    Rivals,
    /// A run in real time.
    RealTime,
}

impl Declaration {
    const fn new(figure: Figure, key: &'static str, label: &'static str, unit: Unit, meaning: &'static str) -> Self {
        Self {
            figure,
            key,
            label,
            unit,
            better: Some(Better::Lower),
            scale: Scale::Ratio,
            zero: Zero::Value,
            missing: Missing::Unknown,
            presupposes: None,
            workloads: Workloads::ALL,
            needs: Needs::Nothing,
            tolerance: Tolerance { relative: 0.03, absolute: 0.0 },
            headline: &[],
            always: false,
            meaning,
        }
    }

    /// A duration. Differences below 0.1 ms do not matter.
    const fn time(figure: Figure, key: &'static str, label: &'static str, meaning: &'static str) -> Self {
        let tolerance = Tolerance { relative: 0.03, absolute: 1e-4 };
        Self {
            zero: Zero::Impossible,
            missing: Missing::Ranked,
            tolerance,
            ..Self::new(figure, key, label, Unit::Seconds, meaning)
        }
    }

    /// A duration computed from samples; unknown without any.
    const fn sampled(figure: Figure, key: &'static str, label: &'static str, meaning: &'static str) -> Self {
        Self { zero: Zero::Value, missing: Missing::Unknown, ..Self::time(figure, key, label, meaning) }
    }

    /// A response time: infinite without a response.
    const fn answer(figure: Figure, key: &'static str, label: &'static str, meaning: &'static str) -> Self {
        let time = Self::time(figure, key, label, meaning).presupposes(Figure::RequestRate).only(TIMED);
        Self { missing: Missing::Never, ..time }
    }

    /// An unwanted share.
    const fn share(figure: Figure, key: &'static str, label: &'static str, meaning: &'static str) -> Self {
        let tolerance = Tolerance { relative: 0.03, absolute: 0.001 };
        Self { scale: Scale::Both, zero: Zero::Best, tolerance, ..Self::new(figure, key, label, Unit::Share, meaning) }
    }

    /// Figure of which more is better.
    const fn gain(figure: Figure, key: &'static str, label: &'static str, unit: Unit, meaning: &'static str) -> Self {
        Self { better: Some(Better::Higher), zero: Zero::Worst, ..Self::new(figure, key, label, unit, meaning) }
    }

    /// A value that may lie below zero or has a bound above, compared by differences.
    const fn by_difference(self, absolute: f64) -> Self {
        Self { scale: Scale::Difference, tolerance: Tolerance { relative: 0.0, absolute }, ..self }
    }

    const fn tolerance(self, relative: f64, absolute: f64) -> Self {
        Self { tolerance: Tolerance { relative, absolute }, ..self }
    }

    const fn zero(self, zero: Zero) -> Self {
        Self { zero, ..self }
    }

    const fn neither(self) -> Self {
        Self { better: None, ..self }
    }

    const fn presupposes(self, other: Figure) -> Self {
        Self { presupposes: Some(other), ..self }
    }

    const fn only(self, workloads: Workloads) -> Self {
        Self { workloads, ..self }
    }

    const fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    const fn headline(self, headline: &'static [(Workloads, u8)]) -> Self {
        Self { headline, ..self }
    }

    const fn always(self) -> Self {
        Self { always: true, ..self }
    }

    /// Rule for comparing its values.
    pub const fn rule(&self) -> Rule {
        Rule { better: self.better, scale: self.scale, tolerance: self.tolerance }
    }

    /// Place among the headlines of a workload.
    pub fn place(&self, workload: Workload) -> Option<u8> {
        self.headline.iter().find(|(workloads, _)| workloads.contains(workload)).map(|(_, place)| *place)
    }
}

const BULK: Workloads = Workloads::of(&[Workload::Bulk]);
const REQUESTS: Workloads = Workloads::of(&[Workload::Requests]);
const FEED: Workloads = Workloads::of(&[Workload::Feed]);
const TIMED: Workloads = Workloads::of(&[Workload::Requests, Workload::Feed, Workload::Flows]);
const FLOWS: Workloads = Workloads::of(&[Workload::Flows]);
const FETCHED: Workloads = Workloads::of(&[Workload::Flows, Workload::Page]);
const DATAGRAMS: Workloads = Workloads::of(&[Workload::Datagrams, Workload::Messages]);
const VIDEO: Workloads = Workloads::of(&[Workload::Video]);
const LIVE: Workloads = Workloads::of(&[Workload::Webtransport]);
const TUNNEL: Workloads = Workloads::of(&[Workload::Tunnel]);
const ALL: Workloads = Workloads::ALL;

use Figure as F;
use Unit::{BitsPerSecond, Bytes, Index, PerSecond, Seconds, Share};

/// The figures in the order of reports, which is that of [`Figure`].
#[rustfmt::skip]
pub const TABLE: [Declaration; 76] = [
    Declaration::gain(F::Goodput, "goodput", "goodput", BitsPerSecond,
        "unique application bytes delivered to the receiving application per second, all connections together")
        .tolerance(0.03, 1_000.0).headline(&[(BULK, 3), (TUNNEL, 3), (DATAGRAMS, 6)]).always(),
    Declaration::sampled(F::RttP50, "rtt_p50", "RTT p50",
        "median of the RTT samples that acknowledgements gave the sender of the data, less the reported delay of the \
         acknowledgement, all connections together").headline(&[(TUNNEL, 4)]).always(),
    Declaration::sampled(F::RttP95, "rtt_p95", "RTT p95", "95th percentile of the same samples")
        .headline(&[(BULK, 4), (TUNNEL, 5)]).always(),
    Declaration::sampled(F::RttP99, "rtt_p99", "RTT p99", "99th percentile of the same samples; needs 300 samples").always(),
    Declaration::sampled(F::Jitter, "jitter", "jitter", "p95 - p50 of RTT").tolerance(0.03, 1e-3).always(),
    Declaration::new(F::Bufferbloat, "bufferbloat", "bufferbloat", Index, "mean RTT under load / minimum RTT - 1")
        .by_difference(0.03).always(),
    Declaration::share(F::LinkLoss, "link_loss", "link loss",
        "packets that the loaded link dropped, by its queue or by its loss model, of all that were offered to it")
        .headline(&[(BULK, 5)]).always(),
    Declaration::share(F::Retransmitted, "retransmitted", "retransmitted", "stream bytes sent again, of all stream bytes sent")
        .always(),
    Declaration::gain(F::Jain, "jain", "Jain's index", Index,
        "Jain's index of the connections' goodputs: 1 when all got the same, 1/n when one got everything")
        .by_difference(0.02).presupposes(F::Goodput).needs(Needs::Connections).headline(&[(BULK, 6)]).always(),
    Declaration::share(F::QueueLoss, "queue_loss", "queue loss", "the part of link loss that the full queue caused"),
    Declaration::sampled(F::QueueDelayP99, "queue_delay_p99", "queue delay p99",
        "99th percentile of the time that packets waited in the loaded link's queue; needs 300 packets")
        .tolerance(0.03, 1e-3),
    Declaration::time(F::Handshake, "handshake", "handshake p50",
        "median over the connections of the time from the first packet to the established connection, at the client"),
    Declaration::gain(F::RequestRate, "request_rate", "requests", PerSecond, "responses completed per second")
        .only(TIMED).headline(&[(REQUESTS, 6)]),
    Declaration::answer(F::RequestP50, "request_p50", "request p50",
        "median time from sending a request to the last byte of its response")
        .headline(&[(REQUESTS, 5), (FEED, 4)]),
    Declaration::answer(F::RequestP95, "request_p95", "request p95", "95th percentile of the same times; needs 60")
        .headline(&[(REQUESTS, 4), (FEED, 3)]),
    Declaration::answer(F::RequestP99, "request_p99", "request p99", "99th percentile of the same times; needs 300")
        .headline(&[(REQUESTS, 3)]),
    Declaration::share(F::ResidualLoss, "residual_loss", "residual loss",
        "datagrams that the receiving application still misses, of those that were due to arrive")
        .only(DATAGRAMS).headline(&[(DATAGRAMS, 3)]),
    Declaration::time(F::DelayP50, "delay_p50", "delay p50",
        "median time from handing a datagram to the sender's stack to getting it from the receiver's; one that never came \
         counts as longer than any other").only(DATAGRAMS),
    Declaration::time(F::DelayP95, "delay_p95", "delay p95", "95th percentile of the same times; needs 60")
        .only(DATAGRAMS).headline(&[(DATAGRAMS, 5)]),
    Declaration::time(F::DelayP99, "delay_p99", "delay p99", "99th percentile of the same times; needs 300")
        .only(DATAGRAMS).headline(&[(DATAGRAMS, 4)]),
    Declaration::sampled(F::ArrivedP50, "arrived_p50", "p50 of arrived", "the same of the datagrams that arrived, and of no other")
        .presupposes(F::ResidualLoss).only(DATAGRAMS),
    Declaration::sampled(F::ArrivedP95, "arrived_p95", "p95 of arrived", "95th percentile of these; needs 60")
        .presupposes(F::ResidualLoss).only(DATAGRAMS),
    Declaration::sampled(F::ArrivedP99, "arrived_p99", "p99 of arrived", "99th percentile of these; needs 300")
        .presupposes(F::ResidualLoss).only(DATAGRAMS),
    Declaration::share(F::Overhead, "overhead", "overhead",
        "bytes of IP packets that were offered to the loaded link and are not goodput, of all of them")
        .zero(Zero::Value).by_difference(0.003).headline(&[(ALL, 9)]),
    Declaration::share(F::OverheadResent, "overhead_resent", "  resent",
        "the part of the overhead that is stream data sent again").by_difference(0.003),
    Declaration::share(F::OverheadRest, "overhead_rest", "  headers, rest",
        "the rest of the overhead: headers, acknowledgements, handshakes, probes, repair, and data that did not arrive in time")
        .zero(Zero::Value).by_difference(0.003),
    Declaration::share(F::Reverse, "reverse", "reverse bytes",
        "bytes of IP packets that went the other way (acknowledgements, requests), of those of the loaded link"),
    Declaration::time(F::FlowP50, "flow_p50", "flow p50",
        "median time of a short flow from the first packet of its handshake to the last byte of its response, or of a page \
         to the last byte of its last object; one that was not complete counts as longer than any other")
        .only(FETCHED).headline(&[(FETCHED, 5)]),
    Declaration::time(F::FlowP95, "flow_p95", "flow p95", "95th percentile of the same times; needs 60")
        .only(FETCHED).headline(&[(FETCHED, 4)]),
    Declaration::time(F::FlowP99, "flow_p99", "flow p99", "99th percentile of the same times; needs 300")
        .only(FETCHED).headline(&[(FLOWS, 3)]),
    Declaration::share(F::FlowsUnfinished, "flows_unfinished", "unfinished flows", "flows that were not complete when the run ended")
        .only(FETCHED).headline(&[(FETCHED, 6)]),
    Declaration::time(F::VideoStart, "video_start", "video start p50",
        "median over the connections of the time from the first packet of the handshake to the first picture; a video \
         that never began counts as longer than any other")
        .only(VIDEO).headline(&[(VIDEO, 5)]),
    Declaration::share(F::VideoStalled, "video_stalled", "video stalled",
        "time in which the picture stood still because nothing had arrived, of the time since it began")
        .only(VIDEO).headline(&[(VIDEO, 3)]),
    Declaration::new(F::VideoStalls, "video_stalls", "video stalls", PerSecond,
        "how often the picture came to stand still, per second of that time")
        .zero(Zero::Best).tolerance(0.03, 0.001).only(VIDEO),
    Declaration::new(F::VideoSwitches, "video_switches", "video switches", PerSecond,
        "changes of the bitrate, per second of that time")
        .zero(Zero::Best).tolerance(0.03, 0.005).presupposes(F::VideoStalled).only(VIDEO).headline(&[(VIDEO, 6)]),
    Declaration::gain(F::VideoRate, "video_rate", "video bitrate", BitsPerSecond,
        "mean bitrate of the segments that arrived, each as long as it is played")
        .presupposes(F::VideoStalled).only(VIDEO).headline(&[(VIDEO, 4)]),
    Declaration::gain(F::FeedSeen, "feed_seen", "feed images seen", Share,
        "images that were complete before they were scrolled away, of all that were asked for")
        .by_difference(0.01).only(FEED).headline(&[(FEED, 5)]),
    Declaration::share(F::FeedWasted, "feed_wasted", "feed bytes wasted",
        "bytes of images that arrived and were scrolled away incomplete, of all bytes of images")
        .presupposes(F::FeedSeen).only(FEED).headline(&[(FEED, 6)]),
    Declaration::gain(F::PicturesInTime, "pictures_in_time", "pictures in time", Share,
        "pictures of a live broadcast that were complete within the latency budget after their capture, of all that were due")
        .by_difference(0.01).only(LIVE).headline(&[(LIVE, 3)]),
    Declaration::time(F::PictureP50, "picture_p50", "picture p50",
        "median time from the capture of a picture to its last byte at the receiver; one that never came counts as longer than any \
         other").only(LIVE),
    Declaration::time(F::PictureP95, "picture_p95", "picture p95", "95th percentile of the same times; needs 60")
        .only(LIVE).headline(&[(LIVE, 4)]),
    Declaration::time(F::PictureP99, "picture_p99", "picture p99", "99th percentile of the same times; needs 300").only(LIVE),
    Declaration::share(F::GroupsReset, "groups_reset", "groups reset",
        "groups of pictures that the sender reset because a picture had not left within the latency budget, of all that were due")
        .presupposes(F::PicturesInTime).only(LIVE).headline(&[(LIVE, 6)]),
    Declaration::share(F::PicturesWasted, "pictures_wasted", "picture bytes wasted",
        "bytes of groups of pictures that left in packets and did not become a picture in time, of all that left, each counted once")
        .presupposes(F::PicturesInTime).only(LIVE).headline(&[(LIVE, 7)]),
    Declaration::gain(F::AudioInTime, "audio_in_time", "audio in time", Share,
        "audio datagrams that arrived within the latency budget, of all that were due")
        .by_difference(0.01).only(LIVE).headline(&[(LIVE, 5)]),
    Declaration::share(F::InnerLost, "inner_lost", "inner packets lost",
        "packets that the sender of the data declared lost, of those it sent: of the connection itself, inside the tunnel if there is one")
        .only(TUNNEL).headline(&[(TUNNEL, 6)]),
    Declaration::share(F::InnerLostBack, "inner_lost_back", "  other end", "the same of the other end of the connection").only(TUNNEL),
    Declaration::share(F::OuterLost, "outer_lost", "outer packets lost",
        "packets of the tunnel's own connection that the end with the sender of the data declared lost, of those it sent")
        .only(TUNNEL).headline(&[(TUNNEL, 7)]),
    Declaration::share(F::OuterLostBack, "outer_lost_back", "  other end", "the same of the other end of the tunnel").only(TUNNEL),
    Declaration::share(F::TunnelDropped, "tunnel_dropped", "dropped by tunnel",
        "packets of the inner connection that the tunnel dropped before they were sent, because its queue was full or no packet held \
         them, of those that the sender of the data gave to it").only(TUNNEL).headline(&[(TUNNEL, 8)]),
    Declaration::share(F::LossSetup, "loss_setup", "lost in set-up",
        "connections of which a link dropped a packet, in either direction, before their handshake was complete; warm-up included")
        .neither().by_difference(0.05),
    Declaration::share(F::LossAfter, "loss_after", "lost after set-up",
        "connections of which a link dropped a packet after that; warm-up included")
        .neither().by_difference(0.05),
    Declaration::sampled(F::LossDelayP50, "loss_delay_p50", "loss costs p50",
        "median time from sending a packet to declaring it lost: what it carried goes out again that much later")
        .presupposes(F::LinkLoss).tolerance(0.03, 1e-3),
    Declaration::sampled(F::LossDelayP95, "loss_delay_p95", "loss costs p95", "95th percentile of the same times; needs 60")
        .presupposes(F::LinkLoss).tolerance(0.03, 1e-3),
    Declaration::sampled(F::LossDelayP99, "loss_delay_p99", "loss costs p99", "99th percentile of the same times; needs 300")
        .presupposes(F::LinkLoss).tolerance(0.03, 1e-3),
    Declaration::share(F::Share, "share", "share of the first",
        "of two rivals on one path: the part of their goodput that the connections of the first got")
        .neither().by_difference(0.02).zero(Zero::Value).needs(Needs::Rivals).headline(&[(ALL, 0)]),
    Declaration::share(F::HarmFirst, "harm_first", "harm to the first",
        "1 - goodput of the first rival's connections / their goodput with the same seed when the second is silent (Ware et al., \
         HotNets 2019)")
        .by_difference(0.02).zero(Zero::Value).needs(Needs::Rivals).headline(&[(ALL, 1)]),
    Declaration::share(F::HarmSecond, "harm_second", "harm to the second", "the same of the second")
        .by_difference(0.02).zero(Zero::Value).needs(Needs::Rivals).headline(&[(ALL, 2)]),
    Declaration::share(F::HarmDelayFirst, "harm_delay_first", "delay harm, first",
        "1 - RTT p50 of the first rival's connections when the second is silent / their RTT p50 beside it")
        .by_difference(0.02).zero(Zero::Value).needs(Needs::Rivals),
    Declaration::share(F::HarmDelaySecond, "harm_delay_second", "delay harm, second", "the same of the second")
        .by_difference(0.02).zero(Zero::Value).needs(Needs::Rivals),
    Declaration::share(F::Repair, "repair", "repair",
        "bytes of packets with repair symbols, with their headers and padding, and of what repair adds to other packets, of all \
         bytes of IP packets that were offered to the loaded link"),
    Declaration::gain(F::Recovered, "recovered", "recovered", Share,
        "protected packets that were lost and rebuilt at the receiver, of those that were lost; without those that were rebuilt and \
         arrived after all").by_difference(0.01),
    Declaration::sampled(F::RecoveryDelay, "recovery_delay", "recovery delay",
        "mean time from missing a packet to having rebuilt it").presupposes(F::Recovered).tolerance(0.03, 1e-3),
    Declaration::share(F::RepairSpurious, "repair_spurious", "repair spurious",
        "repair symbols that told nothing new, because nothing was missing, of those that arrived")
        .presupposes(F::Repair).by_difference(0.01),
    Declaration::share(F::RepairLate, "repair_late", "repair late",
        "repair symbols that came when what they combine was forgotten, of those that arrived")
        .presupposes(F::Repair).by_difference(0.01),
    Declaration::new(F::Memory, "memory", "memory", Bytes,
        "mean over the connections of what the sender of the data holds at the end of the run: state, records of packets, and data that \
         was sent and is not acknowledged; without what the application has written ahead, and without its TLS library")
        .tolerance(0.05, 1_024.0),
    Declaration::share(F::ResidualNetwork, "residual_network", "  lost",
        "the part of residual loss that was sent in time and lost on the way").only(DATAGRAMS),
    Declaration::share(F::ResidualDropped, "residual_dropped", "  dropped",
        "the part of residual loss that the sender dropped, because its queue overflowed (1 MiB by default), no packet could hold \
         the datagram, or the connection was over").only(DATAGRAMS),
    Declaration::share(F::ResidualExpired, "residual_expired", "  expired",
        "the part of residual loss that was worthless before the sender could send it").only(DATAGRAMS),
    Declaration::share(F::ResidualLate, "residual_late", "  late",
        "the part of residual loss that waited at the sender when the run ended, or was sent too late to arrive before")
        .only(DATAGRAMS),
    Declaration::new(F::Cpu, "cpu", "CPU per MB", Seconds,
        "in real time: CPU time of both ends and of the kernel under them, per 1,000,000 bytes that the receiving applications got; \
         handshakes and warm-up included, the emulator's own work left out")
        .zero(Zero::Impossible).tolerance(0.1, 0.0).needs(Needs::RealTime),
    Declaration::sampled(F::SmoothedRtt, "smoothed_rtt", "smoothed RTT p50",
        "in real time: median of the sender's smoothed RTT, read every 10 ms (TCP_INFO for the kernel's TCP); delayed acknowledgements \
         are part of it").tolerance(0.03, 1e-3).needs(Needs::RealTime),
    Declaration::gain(F::DeliveryRate, "delivery_rate", "delivery rate", BitsPerSecond,
        "in real time: sum of the senders' own estimates at the end (TCP_INFO for the kernel's TCP)")
        .neither().zero(Zero::Value).needs(Needs::RealTime),
    Declaration::share(F::Resent, "resent", "sent again",
        "in real time, of the kernel's TCP: connections of which either end sent a packet again (TCP_INFO), SYN included, lost or not; warm-up \
         included").neither().by_difference(0.05).needs(Needs::RealTime),
    Declaration::share(F::ResentSetup, "resent_setup", "  in set-up",
        "the same before the end's TLS handshake was complete; all of a connection that was never established")
        .neither().by_difference(0.05).needs(Needs::RealTime),
    Declaration::share(F::ResentAfter, "resent_after", "  after set-up", "the same after that")
        .neither().by_difference(0.05).needs(Needs::RealTime),
];
