//! Rules for transfers that stop: UDP that is blocked, a server that is silent, large datagrams that vanish.

use super::{
    Cause, Confidence, Verdict,
    sign::{Sign, count, figure, of_quic, percent, quic, reaches, share},
};
use crate::why::evidence::{Cut, Evidence, Exchange, Fault, HandshakeFacts, Transport};

/// Share of the time without data, from which a server or a path is silent.
const SILENT: f64 = 0.7;
/// Packets that are missing at the end of what came, from which the path has lost them.
const MISSING: usize = 3;
/// Share of the packets of a handshake from which their loss is the reason that it does not complete.
const LOST: f64 = 0.3;
/// Share of the transfer in stalls after which datagrams are smaller.
const STALLED: f64 = 0.1;

/// Share of an exchange without data of the object.
fn silence(exchange: &Exchange) -> f64 {
    let data = exchange.quic.as_ref().and_then(|quic| quic.data_ms).unwrap_or(0.0);
    1.0 - data / 1e3 / exchange.seconds.max(1e-9)
}

/// Share of the packets of a handshake that were lost.
fn loss(packets: &HandshakeFacts) -> Option<f64> {
    share(packets.lost(), packets.packets())
}

/// Returns whether packets of a handshake were lost until it was given up.
fn perishes(packets: &HandshakeFacts) -> bool {
    packets.lost() >= MISSING as u64 && reaches(loss(packets), LOST)
}

/// Returns whether a few datagrams passed in an exchange, and then none, or only smaller ones between losses, for most of the time.
fn starves(exchange: &Exchange) -> bool {
    let Some(quic) = &exchange.quic else { return false };
    match exchange.fault {
        Some(Fault::Status | Fault::Refused | Fault::Other) => return false,
        // A server that begins a handshake and does not complete it has a path, if packets arrive.
        Some(Fault::Silence) if !quic.connected => {
            return quic.datagrams == 0 || quic.handshake.is_some_and(|packets| perishes(&packets));
        }
        None if exchange.cut != Some(Cut::Time) => return false,
        Some(Fault::Silence) | None => {}
    }
    // What the server was asked last was neither answered nor acknowledged, also for the whole idle timeout.
    let unheard = exchange.path_answers == Some(false) || exchange.cut.is_none();
    silence(exchange) > SILENT && (unheard || quic.tail.missing >= MISSING)
}

/// UDP is blocked when it carries nothing in nearly all rounds although the server announces HTTP/3, or has completed a handshake.
pub(super) fn blocked(evidence: &Evidence) -> Option<Verdict> {
    let speaks = |exchange: &Exchange| of_quic(exchange, |quic| quic.connected);
    if !evidence.discovery.is_announced() && !evidence.of(Transport::H3).any(speaks) {
        return None;
    }
    let sign = Sign {
        cause: Cause::UdpBlocked,
        shows: Box::new(|exchange| !is_black_hole(exchange) && starves(exchange)),
        figures: vec![
            quic("datagrams that came", "", |facts| count(facts.datagrams)),
            quic("packets of the handshake lost", "%", |facts| percent(loss(facts.handshake.as_ref()?))),
            figure("bytes of the object", "B", |exchange| count(exchange.bytes)),
        ],
    };
    sign.judge(evidence, Transport::H3).filter(|verdict| verdict.confidence >= Confidence::Likely)
}

/// A server that sends nothing more, although the path answers and has lost nothing.
pub(super) fn silent(evidence: &Evidence) -> Option<Verdict> {
    let shows = |exchange: &Exchange| {
        exchange.path_answers == Some(true)
            && silence(exchange) > SILENT
            && of_quic(exchange, |quic| quic.tail.missing < MISSING)
    };
    let sign = Sign {
        cause: Cause::SendPace,
        shows: Box::new(shows),
        figures: vec![
            figure("time without data", "%", |exchange| Some(silence(exchange) * 100.0)),
            figure("bytes of the object", "B", |exchange| count(exchange.bytes)),
            quic("packets missing at the end", "", |facts| count(facts.tail.missing as u64)),
        ],
    };
    sign.judge(evidence, Transport::H3).filter(|verdict| verdict.confidence >= Confidence::Likely)
}

/// Time in stalls in which only small packets come, or which end with smaller packets than they began.
fn stalled(exchange: &Exchange) -> f64 {
    let Some(quic) = &exchange.quic else { return 0.0 };
    let shrinks = quic.stalls.iter().filter(|stall| stall.missing >= 2 && stall.before > stall.after + 30);
    let ended: f64 = shrinks.map(|stall| stall.ms).sum();
    let tail = quic.tail;
    let is_small = tail.packets > 0 && tail.missing >= 3 && (tail.largest as u64) + 30 < quic.largest_datagram;
    let silent = exchange.first_byte_ms.zip(quic.data_ms).map(|(first, data)| exchange.seconds * 1e3 - first - data);
    match silent {
        Some(silent) if exchange.cut == Some(Cut::Time) && is_small => ended + silent.max(0.0),
        _ => ended,
    }
}

fn is_black_hole(exchange: &Exchange) -> bool {
    stalled(exchange) > STALLED * exchange.seconds * 1e3
}

pub(super) fn mtu<'a>() -> Sign<'a> {
    Sign {
        cause: Cause::MtuBlackHole,
        shows: Box::new(is_black_hole),
        figures: vec![
            figure("stalls without large datagrams", "ms", |exchange| Some(stalled(exchange))),
            quic("largest datagram", "B", |facts| {
                Some(facts.largest_datagram).filter(|size| *size > 0).and_then(count)
            }),
        ],
    }
}
