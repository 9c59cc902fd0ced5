//! Rules for the transport that takes longer to complete the object. The order matters: a cause that explains the signs of those
//! below it stands above them.

use super::{
    Cause, Verdict,
    sign::{Sign, count, figure, judge_all, median, of_quic, percent, quic, reaches, share},
    stops::{blocked, mtu, silent},
};
use crate::why::evidence::{Evidence, Exchange, QuicFacts, Transport};

/// Share of the receiving thread's time from which the CPU holds a transfer back.
const BUSY: f64 = 0.85;
/// Share of the transfer without credit.
const BLOCKED: f64 = 0.25;
/// Share of packets that come after three later ones.
const LATE: f64 = 0.003;
/// Part of them whose data is sent again.
const TWICE: f64 = 0.3;
/// Share of packets lost from which congestion control is at work.
const LOST: f64 = 0.001;
/// … and from which a policer is.
const POLICED: f64 = 0.004;
/// Excess of short gaps between losses over independent losses.
const TOGETHER: f64 = 0.2;
/// Mean rate over the highest: a shaper is always at its limit, and a window that follows losses is not.
const FLAT: f64 = 0.75;
/// Factor by which the other transport exceeds the highest rate.
const FASTER: f64 = 1.3;
/// Factor by which the RTT of the transfer exceeds the smallest: packets wait in a queue.
const QUEUED: f64 = 1.4;
/// Share of the transfer in silences that neither the path nor this end explains.
const PAUSED: f64 = 0.2;
/// Share of this end's packets lost on their way.
const ACKS_LOST: f64 = 0.1;
/// Packets for each acknowledgement.
const PACKETS_PER_ACK: f64 = 8.0;
/// Part of the difference that the handshakes explain.
const EXPLAINS: f64 = 0.6;

/// Causes for this transport.
pub(super) fn causes(evidence: &Evidence, slower: Transport) -> Vec<Verdict> {
    let other = Other::of(evidence, slower.other());
    match slower {
        Transport::H3 => {
            if let Some(alone) = blocked(evidence).or_else(|| silent(evidence)) {
                return vec![alone];
            }
            let mut signs = vec![handshake(evidence, &other), cpu(), mtu(), flow_control(), reordering()];
            signs.extend([few_acks(), paused(), shaped(&other), congestion(&other)]);
            let found = judge_all(&signs, evidence, slower);
            if found.is_empty() { judge_all(&[pace()], evidence, slower) } else { found }
        }
        Transport::H2 => {
            let signs = [handshake(evidence, &other), cpu(), tcp_window(), tcp_congestion()];
            let found = judge_all(&signs, evidence, slower);
            if found.is_empty() { judge_all(&[tcp_shaped(&other)], evidence, slower) } else { found }
        }
    }
}

/// Medians of the faster transport, as far as they were measured.
struct Other {
    goodput: Option<f64>,
    handshake_ms: Option<f64>,
    seconds: Option<f64>,
}

impl Other {
    fn of(evidence: &Evidence, transport: Transport) -> Self {
        let compared = || evidence.of(transport).filter(|exchange| exchange.is_comparable());
        Self {
            goodput: median(compared().filter_map(Exchange::goodput)),
            handshake_ms: median(compared().filter_map(|exchange| exchange.handshake_ms)),
            seconds: median(compared().map(|exchange| exchange.seconds_for(evidence.wanted))),
        }
    }
}

fn handshake<'a>(evidence: &'a Evidence, other: &Other) -> Sign<'a> {
    let (other_ms, other_seconds) = (other.handshake_ms, other.seconds);
    let longer = move |exchange: &Exchange| Some(exchange.handshake_ms? - other_ms?);
    let explains = move |exchange: &Exchange| {
        let whole = (exchange.seconds_for(evidence.wanted) - other_seconds?) * 1e3;
        Some(longer(exchange)? / whole).filter(|_| whole > 0.0)
    };
    Sign {
        cause: Cause::Handshake,
        shows: Box::new(move |exchange| reaches(explains(exchange), EXPLAINS)),
        figures: vec![
            figure("handshake", "ms", |exchange| exchange.handshake_ms),
            figure("longer than the other", "ms", longer),
            figure("part of the difference", "%", move |exchange| percent(explains(exchange))),
        ],
    }
}

fn cpu<'a>() -> Sign<'a> {
    Sign {
        cause: Cause::ClientCpu,
        shows: Box::new(|exchange| exchange.cpu.is_some_and(|cpu| cpu.ran + cpu.waited >= BUSY)),
        figures: vec![
            figure("thread ran", "%", |exchange| Some(exchange.cpu?.ran * 100.0)),
            figure("thread waited for a CPU", "%", |exchange| Some(exchange.cpu?.waited * 100.0)),
        ],
    }
}

fn flow_control<'a>() -> Sign<'a> {
    let share_of = |quic: &QuicFacts| Some(quic.blocked_ms? / quic.data_ms.filter(|data| *data > 0.0)?);
    Sign {
        cause: Cause::FlowControl,
        shows: Box::new(move |exchange| of_quic(exchange, |quic| reaches(share_of(quic), BLOCKED))),
        figures: vec![
            quic("time without credit", "%", move |facts| percent(share_of(facts))),
            quic("DATA_BLOCKED frames", "", |facts| count(facts.blocked_frames)),
        ],
    }
}

/// Share of packets lost.
fn lost(quic: &QuicFacts) -> Option<f64> {
    share(quic.lost, quic.numbers)
}

fn reordering<'a>() -> Sign<'a> {
    let late = |quic: &QuicFacts| share(quic.late_by_three, quic.numbers);
    let again = |quic: &QuicFacts| share(quic.stream_bytes_again, quic.stream_bytes);
    let shows = move |quic: &QuicFacts| {
        // What was taken for lost comes twice: late, and sent again.
        let twice = again(quic).zip(late(quic)).is_some_and(|(again, late)| again >= TWICE * late);
        reaches(late(quic), LATE) && 2 * quic.late_by_three > quic.lost && twice
    };
    Sign {
        cause: Cause::Reordering,
        shows: Box::new(move |exchange| of_quic(exchange, shows)),
        figures: vec![
            quic("packets late by three or more", "%", move |facts| percent(late(facts))),
            quic("data received twice", "%", move |facts| percent(again(facts))),
            quic("packets lost", "%", |facts| percent(lost(facts))),
        ],
    }
}

fn few_acks<'a>() -> Sign<'a> {
    let per_ack = |quic: &QuicFacts| share(quic.eliciting_received, quic.acks_sent);
    let lost = |quic: &QuicFacts| share(quic.sent_lost, quic.eliciting_sent);
    let shows = move |quic: &QuicFacts| {
        let is_rare = reaches(per_ack(quic), PACKETS_PER_ACK);
        let asked = quic.ack_threshold.is_some_and(|packets| packets >= 8) && is_rare;
        asked || (quic.sent_lost >= 3 && reaches(lost(quic), ACKS_LOST))
    };
    Sign {
        cause: Cause::FewAcks,
        shows: Box::new(move |exchange| of_quic(exchange, shows)),
        figures: vec![
            quic("packets for each acknowledgement", "", per_ack),
            quic("packets of this end lost", "%", move |facts| percent(lost(facts))),
        ],
    }
}

/// Factor by which packets wait.
fn wait(quic: &QuicFacts) -> Option<f64> {
    let (least, median) = (quic.rtt_min_ms?, quic.rtt_median_ms?);
    (least > 0.0).then(|| median / least)
}

/// Returns whether packets wait in a queue: by a factor, and by more than the clocks of ends vary.
fn is_queued(quic: &QuicFacts) -> bool {
    let longer = quic.rtt_median_ms.zip(quic.rtt_min_ms).map(|(median, least)| median - least);
    reaches(wait(quic), QUEUED) && reaches(longer, 3.0)
}

/// Short gaps between losses beyond those of independent losses.
fn clustered(quic: &QuicFacts) -> Option<f64> {
    Some(quic.lost_together? - (1.0 - (1.0 - lost(quic)?).powi(10)))
}

/// A sender that had credit, and lost nothing, was silent for longer than a round trip. It answers late as well, and sends in bursts that
/// overflow queues: neither is the path's doing.
fn pauses(quic: &QuicFacts) -> bool {
    let unexplained = quic.pauses_ms.zip(quic.blocked_ms).map(|(pauses, blocked)| pauses - blocked);
    unexplained.zip(quic.data_ms).is_some_and(|(pauses, data)| pauses >= PAUSED * data.max(1.0))
}

fn mean(quic: &QuicFacts) -> Option<f64> {
    quic.arrivals.map(|arrivals| arrivals.mean)
}

/// Mean rate over the highest.
fn flatness(quic: &QuicFacts) -> Option<f64> {
    let arrivals = quic.arrivals?;
    Some(arrivals.mean / arrivals.peak.filter(|peak| *peak > 0.0)?)
}

fn is_shaped(quic: &QuicFacts, other: Option<f64>) -> bool {
    let policed = reaches(lost(quic), POLICED) && reaches(clustered(quic), TOGETHER);
    let is_faster = other.zip(mean(quic)).is_some_and(|(other, mean)| other >= FASTER * mean);
    (policed || is_queued(quic)) && reaches(flatness(quic), FLAT) && !pauses(quic) && is_faster
}

fn shaped<'a>(other: &Other) -> Sign<'a> {
    let goodput = other.goodput;
    Sign {
        cause: Cause::Shaped,
        shows: Box::new(move |exchange| of_quic(exchange, |quic| is_shaped(quic, goodput))),
        figures: vec![
            quic("rate", "Mbit/s", |facts| mean(facts).map(|rate| rate / 1e6)),
            figure("rate of the other", "Mbit/s", move |_| goodput.map(|rate| rate / 1e6)),
            quic("packets lost", "%", |facts| percent(lost(facts))),
            quic("losses beside one another, beyond chance", "%", |facts| percent(clustered(facts))),
            quic("mean rate over the highest", "%", |facts| percent(flatness(facts))),
            quic("RTT of the transfer over the smallest", "", wait),
        ],
    }
}

fn congestion<'a>(other: &Other) -> Sign<'a> {
    let goodput = other.goodput;
    let shows = move |quic: &QuicFacts| {
        let loses = quic.lost >= 3 && reaches(lost(quic), LOST);
        loses && !is_shaped(quic, goodput) && !pauses(quic)
    };
    Sign {
        cause: Cause::CongestionControl,
        shows: Box::new(move |exchange| of_quic(exchange, shows)),
        figures: vec![
            quic("packets lost", "%", |facts| percent(lost(facts))),
            quic("losses beside one another, beyond chance", "%", |facts| percent(clustered(facts))),
            quic("rate", "Mbit/s", |facts| mean(facts).map(|rate| rate / 1e6)),
            figure("rate of the other", "Mbit/s", move |_| goodput.map(|rate| rate / 1e6)),
        ],
    }
}

fn paused<'a>() -> Sign<'a> {
    Sign { shows: Box::new(|exchange| of_quic(exchange, pauses)), ..pace() }
}

/// Only where nothing else shows: it is what is left.
fn pace<'a>() -> Sign<'a> {
    let shows = |quic: &QuicFacts| {
        let is_clean = lost(quic).is_some_and(|lost| lost < LOST) && wait(quic).is_some() && !is_queued(quic);
        is_clean && quic.data_ms.is_some_and(|data| data > 0.0) && quic.numbers > 100
    };
    let paused = |quic: &QuicFacts| Some(quic.pauses_ms? / quic.data_ms.filter(|data| *data > 0.0)?);
    Sign {
        cause: Cause::SendPace,
        shows: Box::new(move |exchange| of_quic(exchange, shows)),
        figures: vec![
            quic("rate", "Mbit/s", |facts| mean(facts).map(|rate| rate / 1e6)),
            quic("packets lost", "%", |facts| percent(lost(facts))),
            quic("RTT of the transfer over the smallest", "", wait),
            quic("silent for longer than a round trip", "%", move |facts| percent(paused(facts))),
        ],
    }
}

/// Window of a stream that this client gives over HTTP/2, in bytes.
const H2_WINDOW: f64 = 2_097_152.0;

fn tcp_window<'a>() -> Sign<'a> {
    let used = |exchange: &Exchange| {
        // In shorter transfers no window is ever used up.
        let rtt = exchange.tcp?.rtt_min_ms.filter(|_| reaches(count(exchange.bytes), H2_WINDOW))?;
        Some(exchange.goodput()? / 8.0 * rtt / 1e3 / H2_WINDOW)
    };
    Sign {
        cause: Cause::FlowControl,
        shows: Box::new(move |exchange| reaches(used(exchange), 0.8)),
        figures: vec![figure("window used in a round trip", "%", move |exchange| percent(used(exchange)))],
    }
}

fn out_of_order(exchange: &Exchange) -> Option<f64> {
    let tcp = exchange.tcp?;
    share(tcp.out_of_order.into(), tcp.packets.into())
}

fn tcp_congestion<'a>() -> Sign<'a> {
    Sign {
        cause: Cause::CongestionControl,
        shows: Box::new(|exchange| reaches(out_of_order(exchange), 5.0 * LOST)),
        figures: vec![
            figure("packets beyond a gap", "%", |exchange| percent(out_of_order(exchange))),
            figure("rate", "Mbit/s", |exchange| Some(exchange.goodput()? / 1e6)),
        ],
    }
}

fn tcp_shaped<'a>(other: &Other) -> Sign<'a> {
    let goodput = other.goodput;
    let queued = |exchange: &Exchange| {
        let (loaded, least) = (exchange.tcp?.rtt_median_ms?, exchange.tcp?.rtt_min_ms?);
        // Less is the noise of clocks.
        (loaded - least >= 3.0 && least > 0.0).then(|| loaded / least)
    };
    let shows = move |exchange: &Exchange| {
        let is_faster = goodput.zip(exchange.goodput()).is_some_and(|(other, own)| other >= FASTER * own);
        reaches(queued(exchange), QUEUED) && is_faster
    };
    Sign {
        cause: Cause::Shaped,
        shows: Box::new(shows),
        figures: vec![
            figure("RTT of the transfer over the smallest", "", queued),
            figure("rate", "Mbit/s", |exchange| Some(exchange.goodput()? / 1e6)),
        ],
    }
}
