//! Rules for the transport on which a small request waits longer beside the transfer.

use super::{
    Cause, Verdict,
    sign::{Sign, figure, judge_all, median},
};
use crate::why::evidence::{Evidence, Exchange, Transport};

/// Factor and milliseconds by which the RTT of the transfer exceeds the smallest.
const QUEUED: (f64, f64) = (2.0, 15.0);
/// Part of the wait that the queue explains.
const EXPLAINS: f64 = 0.4;

/// Causes for this transport.
pub(super) fn causes(evidence: &Evidence, slower: Transport) -> Vec<Verdict> {
    let Some(other) = median(evidence.of(slower.other()).filter_map(waits)) else { return Vec::new() };
    let signs = match slower {
        Transport::H3 => vec![bufferbloat(other)],
        Transport::H2 => vec![bufferbloat(other), head_of_line(other)],
    };
    judge_all(&signs, evidence, slower)
}

fn waits(exchange: &Exchange) -> Option<f64> {
    median(exchange.loaded_ms.iter().copied())
}

/// Smallest RTT, and that of the transfer.
fn rtts(exchange: &Exchange) -> Option<(f64, f64)> {
    match (&exchange.quic, exchange.tcp) {
        (Some(quic), _) => Some((quic.rtt_min_ms?, quic.rtt_median_ms?)),
        (_, Some(tcp)) => Some((tcp.rtt_min_ms?, tcp.rtt_median_ms?)),
        _ => None,
    }
}

/// Time that packets of the transfer wait.
fn queue(exchange: &Exchange) -> Option<f64> {
    rtts(exchange).map(|(least, loaded)| loaded - least)
}

fn is_queued(exchange: &Exchange, other: f64) -> bool {
    let Some(longer) = waits(exchange).map(|waited| waited - other) else { return false };
    rtts(exchange).is_some_and(|(least, loaded)| {
        loaded >= QUEUED.0 * least && loaded - least >= QUEUED.1 && loaded - least >= EXPLAINS * longer
    })
}

fn bufferbloat<'a>(other: f64) -> Sign<'a> {
    Sign {
        cause: Cause::Bufferbloat,
        shows: Box::new(move |exchange| is_queued(exchange, other)),
        figures: vec![
            figure("smallest RTT", "ms", |exchange| Some(rtts(exchange)?.0)),
            figure("RTT of the transfer", "ms", |exchange| Some(rtts(exchange)?.1)),
            figure("answer to a small request", "ms", waits),
            figure("… of the other", "ms", move |_| Some(other)),
        ],
    }
}

fn head_of_line<'a>(other: f64) -> Sign<'a> {
    Sign {
        cause: Cause::HeadOfLine,
        shows: Box::new(move |exchange| {
            // The wait is longer than a round trip and its queue.
            let Some((_, trip)) = rtts(exchange) else { return false };
            !is_queued(exchange, other) && waits(exchange).is_some_and(|waited| waited >= 1.3 * trip.max(other))
        }),
        figures: vec![
            figure("answer to a small request", "ms", waits),
            figure("… of the other", "ms", move |_| Some(other)),
            figure("wait in queues of the path", "ms", queue),
            figure("packets beyond a gap", "", |exchange| Some(f64::from(exchange.tcp?.out_of_order))),
        ],
    }
}
