//! Rules for the transport that takes longer to complete the object. The order matters: a cause that explains the signs of those
//! below it stands above them.

use super::{
    Cause, Verdict,
    sign::{Sign, figure, judge_all, median, quic, share},
};
use crate::why::evidence::{Cut, Evidence, Exchange, QuicFacts, Transport};

/// Share of the receiving thread's time from which the CPU holds a transfer back.
const BUSY: f64 = 0.85;
/// Share of the transfer without credit.
const BLOCKED: f64 = 0.25;
/// Share of the transfer in stalls after which datagrams are smaller.
const STALLED: f64 = 0.1;
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
            if let Some(blocked) = blocked(evidence) {
                return vec![blocked];
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

/// Medians of the faster transport.
struct Other {
    goodput: f64,
    handshake_ms: f64,
    seconds: f64,
}

impl Other {
    fn of(evidence: &Evidence, transport: Transport) -> Self {
        let of = |value: fn(&Exchange) -> Option<f64>| median(evidence.of(transport).filter_map(value)).unwrap_or(0.0);
        let seconds = median(evidence.of(transport).map(|exchange| exchange.seconds_for(evidence.wanted)));
        Self {
            goodput: of(Exchange::goodput),
            handshake_ms: of(|exchange| exchange.handshake_ms),
            seconds: seconds.unwrap_or(0.0),
        }
    }
}

fn of_quic(exchange: &Exchange, is: impl Fn(&QuicFacts) -> bool) -> bool {
    exchange.quic.as_ref().is_some_and(is)
}

/// Returns whether an exchange ended because nothing more came.
fn died(exchange: &Exchange) -> bool {
    exchange.error.is_some() || exchange.bytes == 0
}

/// UDP is blocked when HTTP/3 dies in nearly all rounds although the server announces it, or has completed a handshake.
fn blocked(evidence: &Evidence) -> Option<Verdict> {
    let speaks = |exchange: &Exchange| of_quic(exchange, |quic| quic.connected);
    if !evidence.discovery.is_announced() && !evidence.of(Transport::H3).any(speaks) {
        return None;
    }
    let is_starved = |exchange: &Exchange| {
        // A few packets pass, and then none for most of the time.
        let silence = exchange.seconds - exchange.quic.as_ref().map_or(0.0, |quic| quic.data_ms / 1e3);
        died(exchange) || (exchange.cut.is_some() && !is_black_hole(exchange) && silence > 0.7 * exchange.seconds)
    };
    let sign = Sign {
        cause: Cause::UdpBlocked,
        shows: Box::new(is_starved),
        figures: vec![
            quic("datagrams that came", "", |facts| share(facts.datagrams, 1)),
            figure("bytes of the object", "B", |exchange| Some(share(exchange.bytes, 1))),
        ],
    };
    sign.judge(evidence, Transport::H3).filter(|verdict| verdict.confidence >= super::Confidence::Likely)
}

fn handshake<'a>(evidence: &'a Evidence, other: &Other) -> Sign<'a> {
    let (other_ms, other_seconds) = (other.handshake_ms, other.seconds);
    let longer = move |exchange: &Exchange| Some(exchange.handshake_ms? - other_ms);
    let explains = move |exchange: &Exchange| {
        let whole = (exchange.seconds_for(evidence.wanted) - other_seconds) * 1e3;
        Some(longer(exchange)? / whole).filter(|_| whole > 0.0)
    };
    Sign {
        cause: Cause::Handshake,
        shows: Box::new(move |exchange| explains(exchange).is_some_and(|part| part >= EXPLAINS)),
        figures: vec![
            figure("handshake", "ms", |exchange| exchange.handshake_ms),
            figure("longer than the other", "ms", longer),
            figure("part of the difference", "%", move |exchange| Some(explains(exchange)? * 100.0)),
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
    let share_of = |quic: &QuicFacts| if quic.data_ms > 0.0 { quic.blocked_ms / quic.data_ms } else { 0.0 };
    Sign {
        cause: Cause::FlowControl,
        shows: Box::new(move |exchange| of_quic(exchange, |quic| share_of(quic) >= BLOCKED)),
        figures: vec![
            quic("time without credit", "%", move |facts| share_of(facts) * 100.0),
            quic("DATA_BLOCKED frames", "", |facts| share(facts.blocked_frames, 1)),
        ],
    }
}

/// Time in stalls in which only small packets come, or which end with smaller packets than they began.
fn stalled(exchange: &Exchange) -> f64 {
    let Some(quic) = &exchange.quic else { return 0.0 };
    let shrinks = quic.stalls.iter().filter(|stall| stall.missing >= 2 && stall.before > stall.after + 30);
    let ended: f64 = shrinks.map(|stall| stall.ms).sum();
    let tail = quic.tail;
    let is_small = tail.packets > 0 && tail.missing >= 3 && (tail.largest as u64) + 30 < quic.largest_datagram;
    let silent = (exchange.seconds - exchange.first_byte_ms.unwrap_or(0.0) / 1e3) * 1e3 - quic.data_ms;
    if exchange.cut == Some(Cut::Time) && is_small { ended + silent.max(0.0) } else { ended }
}

fn is_black_hole(exchange: &Exchange) -> bool {
    stalled(exchange) > STALLED * exchange.seconds * 1e3
}

fn mtu<'a>() -> Sign<'a> {
    Sign {
        cause: Cause::MtuBlackHole,
        shows: Box::new(is_black_hole),
        figures: vec![
            figure("stalls without large datagrams", "ms", |exchange| Some(stalled(exchange))),
            quic("largest datagram", "B", |facts| share(facts.largest_datagram, 1)),
        ],
    }
}

fn reordering<'a>() -> Sign<'a> {
    let shows = |quic: &QuicFacts| {
        // What was taken for lost comes twice: late, and sent again.
        let twice = share(quic.stream_bytes_again, quic.stream_bytes) * share(quic.numbers, 1);
        share(quic.late_by_three, quic.numbers) >= LATE
            && 2 * quic.late_by_three > quic.lost
            && twice >= TWICE * share(quic.late_by_three, 1)
    };
    Sign {
        cause: Cause::Reordering,
        shows: Box::new(move |exchange| of_quic(exchange, shows)),
        figures: vec![
            quic("packets late by three or more", "%", |facts| share(facts.late_by_three, facts.numbers) * 100.0),
            quic("data received twice", "%", |facts| share(facts.stream_bytes_again, facts.stream_bytes) * 100.0),
            quic("packets lost", "%", |facts| share(facts.lost, facts.numbers) * 100.0),
        ],
    }
}

fn few_acks<'a>() -> Sign<'a> {
    let per_ack = |quic: &QuicFacts| share(quic.eliciting_received, quic.acks_sent);
    let shows = move |quic: &QuicFacts| {
        let asked = quic.ack_threshold.is_some_and(|packets| packets >= 8) && per_ack(quic) >= PACKETS_PER_ACK;
        asked || (quic.sent_lost >= 3 && share(quic.sent_lost, quic.eliciting_sent) >= ACKS_LOST)
    };
    Sign {
        cause: Cause::FewAcks,
        shows: Box::new(move |exchange| of_quic(exchange, shows)),
        figures: vec![
            quic("packets for each acknowledgement", "", per_ack),
            quic("packets of this end lost", "%", |facts| share(facts.sent_lost, facts.eliciting_sent) * 100.0),
        ],
    }
}

/// Factor by which packets wait.
fn queued(quic: &QuicFacts) -> f64 {
    match (quic.rtt_min_ms, quic.rtt_median_ms) {
        (Some(least), Some(median)) if least > 0.0 && median - least >= 3.0 => median / least,
        _ => 1.0,
    }
}

/// Short gaps between losses beyond those of independent losses.
fn clustered(quic: &QuicFacts) -> f64 {
    let loss = share(quic.lost, quic.numbers);
    quic.lost_together.map_or(0.0, |together| together - (1.0 - (1.0 - loss).powi(10)))
}

/// A sender that had credit, and lost nothing, was silent for longer than a round trip. It answers late as well, and sends in bursts that
/// overflow queues: neither is the path's doing.
fn pauses(quic: &QuicFacts) -> bool {
    quic.pauses_ms - quic.blocked_ms >= PAUSED * quic.data_ms.max(1.0)
}

fn is_shaped(quic: &QuicFacts, other: f64) -> bool {
    let policed = share(quic.lost, quic.numbers) >= POLICED && clustered(quic) >= TOGETHER;
    let is_flat = quic.arrivals.mean >= FLAT * quic.arrivals.peak;
    (policed || queued(quic) >= QUEUED) && is_flat && !pauses(quic) && other >= FASTER * quic.arrivals.mean
}

fn shaped<'a>(other: &Other) -> Sign<'a> {
    let goodput = other.goodput;
    Sign {
        cause: Cause::Shaped,
        shows: Box::new(move |exchange| of_quic(exchange, |quic| is_shaped(quic, goodput))),
        figures: vec![
            quic("rate", "Mbit/s", |facts| facts.arrivals.mean / 1e6),
            figure("rate of the other", "Mbit/s", move |_| Some(goodput / 1e6)),
            quic("packets lost", "%", |facts| share(facts.lost, facts.numbers) * 100.0),
            quic("losses beside one another, beyond chance", "%", |facts| clustered(facts) * 100.0),
            quic("mean rate over the highest", "%", |facts| facts.arrivals.mean / facts.arrivals.peak.max(1.0) * 100.0),
            quic("RTT of the transfer over the smallest", "", queued),
        ],
    }
}

fn congestion<'a>(other: &Other) -> Sign<'a> {
    let goodput = other.goodput;
    let shows = move |quic: &QuicFacts| {
        let loses = quic.lost >= 3 && share(quic.lost, quic.numbers) >= LOST;
        loses && !is_shaped(quic, goodput) && !pauses(quic)
    };
    Sign {
        cause: Cause::CongestionControl,
        shows: Box::new(move |exchange| of_quic(exchange, shows)),
        figures: vec![
            quic("packets lost", "%", |facts| share(facts.lost, facts.numbers) * 100.0),
            quic("losses beside one another, beyond chance", "%", |facts| clustered(facts) * 100.0),
            quic("rate", "Mbit/s", |facts| facts.arrivals.mean / 1e6),
            figure("rate of the other", "Mbit/s", move |_| Some(goodput / 1e6)),
        ],
    }
}

fn paused<'a>() -> Sign<'a> {
    Sign { shows: Box::new(|exchange| of_quic(exchange, pauses)), ..pace() }
}

/// Only where nothing else shows: it is what is left.
fn pace<'a>() -> Sign<'a> {
    let shows = |quic: &QuicFacts| {
        share(quic.lost, quic.numbers) < LOST && queued(quic) < QUEUED && quic.data_ms > 0.0 && quic.numbers > 100
    };
    Sign {
        cause: Cause::SendPace,
        shows: Box::new(move |exchange| of_quic(exchange, shows)),
        figures: vec![
            quic("rate", "Mbit/s", |facts| facts.arrivals.mean / 1e6),
            quic("packets lost", "%", |facts| share(facts.lost, facts.numbers) * 100.0),
            quic("RTT of the transfer over the smallest", "", queued),
            quic("silent for longer than a round trip", "%", |facts| facts.pauses_ms / facts.data_ms.max(1.0) * 100.0),
        ],
    }
}

/// Window of a stream that this client gives over HTTP/2, in bytes.
const H2_WINDOW: f64 = 2_097_152.0;

fn tcp_window<'a>() -> Sign<'a> {
    let used = |exchange: &Exchange| {
        // In shorter transfers no window is ever used up.
        let rtt = exchange.tcp?.rtt_min_ms.filter(|_| share(exchange.bytes, 1) > H2_WINDOW)?;
        Some(exchange.goodput()? / 8.0 * rtt / 1e3 / H2_WINDOW)
    };
    Sign {
        cause: Cause::FlowControl,
        shows: Box::new(move |exchange| used(exchange).is_some_and(|used| used >= 0.8)),
        figures: vec![figure("window used in a round trip", "%", move |exchange| Some(used(exchange)? * 100.0))],
    }
}

fn out_of_order(exchange: &Exchange) -> Option<f64> {
    let tcp = exchange.tcp?;
    Some(share(tcp.out_of_order.into(), tcp.packets.into()))
}

fn tcp_congestion<'a>() -> Sign<'a> {
    Sign {
        cause: Cause::CongestionControl,
        shows: Box::new(|exchange| out_of_order(exchange).is_some_and(|part| part >= 5.0 * LOST)),
        figures: vec![
            figure("packets beyond a gap", "%", |exchange| Some(out_of_order(exchange)? * 100.0)),
            figure("rate", "Mbit/s", |exchange| Some(exchange.goodput()? / 1e6)),
        ],
    }
}

fn tcp_shaped<'a>(other: &Other) -> Sign<'a> {
    let goodput = other.goodput;
    let queued = |exchange: &Exchange| Some(exchange.tcp?.rtt_median_ms? / exchange.tcp?.rtt_min_ms?);
    let shows = move |exchange: &Exchange| {
        queued(exchange).is_some_and(|times| times >= QUEUED)
            && exchange.goodput().is_some_and(|own| goodput >= FASTER * own)
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
