//! Diagnosis: from evidence to verdicts. Pure functions: the same evidence gives the same verdicts.
//!
//! Two questions are asked, each with the pairs of the rounds: is one transport slower to complete the object, and is one slower to
//! answer beside it? Only for a slower transport are causes looked for. [`completion`], [`stops`] and [`response`] have the rules, one
//! function for each cause; a cause counts by the share of the rounds that show its sign.

mod completion;
mod response;
mod sign;
mod stops;
#[cfg(test)]
mod tests;

use lab::stats::compare::{Better, Comparison, Pair, Rule, Scale, Tolerance, Verdict as Compared, compare};
use serde::Serialize;

pub(in crate::why) use self::sign::median;
use super::evidence::{Evidence, Exchange, Transport};

/// Causes that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Cause {
    /// The sender's congestion control answers losses, and the path carries more.
    CongestionControl,
    /// The receiver's flow control window is used up.
    FlowControl,
    /// Packets of this transport have a bottleneck of their own.
    Shaped,
    /// UDP does not pass, or not after the handshake.
    UdpBlocked,
    /// Large datagrams vanish.
    MtuBlackHole,
    /// The server sends less than the path carries, without a sign of the path.
    SendPace,
    /// CPU of this client is used up.
    ClientCpu,
    /// The handshake takes longer.
    Handshake,
    /// Packets that are late are taken for lost.
    Reordering,
    /// Acknowledgements are rare, or are lost on their way.
    FewAcks,
    /// The transfer fills a queue, in which others wait.
    Bufferbloat,
    /// Answers wait for the data before them.
    HeadOfLine,
}

impl Cause {
    /// The cause in a few words.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::CongestionControl => "congestion control of the server",
            Self::FlowControl => "flow control window of this client",
            Self::Shaped => "shaped: a bottleneck for this transport only",
            Self::UdpBlocked => "UDP is blocked",
            Self::MtuBlackHole => "MTU black hole: large datagrams vanish",
            Self::SendPace => "pace of the server",
            Self::ClientCpu => "CPU of this client",
            Self::Handshake => "handshake",
            Self::Reordering => "reordering taken for loss",
            Self::FewAcks => "too few acknowledgements reach the server",
            Self::Bufferbloat => "bufferbloat: the transfer fills a queue",
            Self::HeadOfLine => "head-of-line blocking",
        }
    }

    /// Advice: a remedy, or a proof.
    pub(super) const fn advice(self) -> &'static str {
        match self {
            Self::CongestionControl => "another controller on the server (bbr3, auto), or less loss on the path",
            Self::FlowControl => "larger receive windows in the client; they should follow the rate",
            Self::Shaped => "ask the network's operator; `tiderace probe` measures the shaper",
            Self::UdpBlocked => "a firewall or a network without UDP; clients fall back to TCP",
            Self::MtuBlackHole => "smaller datagrams or MTU discovery on the server (RFC 8899)",
            Self::SendPace => "look at the server: CPU, pacing, socket buffers, disk; qlog of its side",
            Self::ClientCpu => "a faster or less busy client",
            Self::Handshake => "0-RTT, no Retry in normal operation, a shorter certificate chain",
            Self::Reordering => "a larger reordering threshold on the server",
            Self::FewAcks => "more frequent acknowledgements, or less loss on the way to the server",
            Self::Bufferbloat => "active queue management, or a controller that keeps queues short",
            Self::HeadOfLine => "HTTP/3, or a smaller send buffer on the server (TCP_NOTSENT_LOWAT)",
        }
    }
}

/// Confidence in a verdict: the share of the rounds that show the sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Confidence {
    /// A quarter of the rounds.
    Possible,
    /// Half of them.
    Likely,
    /// Four of five.
    Strong,
}

impl Confidence {
    fn of(shown: usize, rounds: usize) -> Option<Self> {
        match (shown * 20).checked_div(rounds)? {
            16.. => Some(Self::Strong),
            10.. => Some(Self::Likely),
            5.. => Some(Self::Possible),
            _ => None,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Possible => "possible",
            Self::Likely => "likely",
            Self::Strong => "strong",
        }
    }
}

/// A figure that supports a verdict: the median over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) value: f64,
}

/// A cause, and what supports it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Verdict {
    pub(super) cause: Cause,
    pub(super) confidence: Confidence,
    /// Rounds that show the sign, and all of the transport.
    pub(super) shown: [usize; 2],
    pub(super) figures: Vec<Figure>,
}

/// Result of one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    /// Neither is slower.
    Equivalent,
    /// The rounds do not decide.
    Undecided,
    Slower(Transport),
}

/// Answer to one of the questions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Judgement {
    pub(super) outcome: Outcome,
    /// HTTP/3 against HTTP/2, in seconds; without one where a transport never gave a value.
    pub(super) comparison: Option<Comparison>,
    /// The most probable first.
    pub(super) causes: Vec<Verdict>,
    /// Data that would decide, or show the cause.
    pub(super) missing: Vec<String>,
}

/// Answers to both questions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Diagnosis {
    /// Time until the object is complete.
    pub(super) completion: Judgement,
    /// Time until an answer to a small request beside it.
    pub(super) response: Option<Judgement>,
    /// Facts about HTTP/3 that cost time without being measured by the comparison.
    pub(super) notes: Vec<String>,
}

/// Differences that do not matter to a user: 15 %, and 10 ms.
const COMPLETION: Rule =
    Rule { better: Some(Better::Lower), scale: Scale::Ratio, tolerance: Tolerance { relative: 0.15, absolute: 0.01 } };
/// Small requests vary more.
const RESPONSE: Rule =
    Rule { better: Some(Better::Lower), scale: Scale::Ratio, tolerance: Tolerance { relative: 0.3, absolute: 0.02 } };

/// Judges the evidence.
pub(super) fn diagnose(evidence: &Evidence) -> Diagnosis {
    let completion = judge(evidence, &COMPLETION, |exchange| Some(exchange.seconds_for(evidence.wanted)));
    let completion = completion.map_or_else(nothing, |(outcome, comparison)| {
        let causes = match outcome {
            Outcome::Slower(slower) => completion::causes(evidence, slower),
            _ => Vec::new(),
        };
        conclude(outcome, comparison, causes, evidence)
    });
    let waits = |exchange: &Exchange| Some(sign::median(exchange.loaded_ms.iter().copied())? / 1e3);
    let response = judge(evidence, &RESPONSE, waits).map(|(outcome, comparison)| {
        let causes = match outcome {
            Outcome::Slower(slower) => response::causes(evidence, slower),
            _ => Vec::new(),
        };
        conclude(outcome, comparison, causes, evidence)
    });
    Diagnosis { completion, response, notes: notes(evidence) }
}

/// Compares HTTP/3 with HTTP/2 round by round, without rounds in which the server refused. `None` without a pair of values.
fn judge(evidence: &Evidence, rule: &Rule, value: impl Fn(&Exchange) -> Option<f64>) -> Option<(Outcome, Comparison)> {
    let rounds = evidence.exchanges.iter().map(|exchange| exchange.round).max()? + 1;
    let find = |round, transport| evidence.of(transport).find(|exchange| exchange.round == round);
    let pairs: Vec<Pair> = (0..rounds)
        .filter_map(|round| {
            let (h3, h2) = (find(round, Transport::H3)?, find(round, Transport::H2)?);
            // A refusal is an answer to another question.
            if !h3.is_comparable() || !h2.is_comparable() {
                return None;
            }
            Some((Some(value(h3)?), Some(value(h2)?)))
        })
        .collect();
    let comparison = compare(&pairs, rule)?;
    // A transport that never completes is slower, however few the rounds.
    let fails = |of: fn(&Pair) -> Option<f64>| pairs.iter().all(|pair| of(pair).is_some_and(f64::is_infinite));
    let outcome = match (fails(|pair| pair.0), fails(|pair| pair.1)) {
        (true, false) => Outcome::Slower(Transport::H3),
        (false, true) => Outcome::Slower(Transport::H2),
        _ => match comparison.verdict {
            Compared::Worse => Outcome::Slower(Transport::H3),
            Compared::Better => Outcome::Slower(Transport::H2),
            Compared::Equivalent => Outcome::Equivalent,
            Compared::Undecided | Compared::Different => Outcome::Undecided,
        },
    };
    // A difference that is sure and too small to matter is none.
    let outcome = match outcome {
        Outcome::Slower(_) if within(&comparison, rule) => Outcome::Equivalent,
        other => other,
    };
    Some((outcome, comparison))
}

/// Returns whether the estimate itself lies within the tolerance.
fn within(comparison: &Comparison, rule: &Rule) -> bool {
    let ratio = comparison.ratio.map_or(f64::INFINITY, |ratio| ratio.value.max(1.0 / ratio.value));
    ratio <= 1.0 + rule.tolerance.relative || comparison.difference.value.abs() <= rule.tolerance.absolute
}

fn conclude(outcome: Outcome, comparison: Comparison, causes: Vec<Verdict>, evidence: &Evidence) -> Judgement {
    let mut missing = Vec::new();
    match outcome {
        Outcome::Undecided => missing.push(comparison.pairs_needed.map_or_else(
            || "more rounds: `--rounds N`".to_owned(),
            |pairs| format!("about {} rounds would decide: `--rounds {}`", pairs.max(6), pairs.max(6)),
        )),
        Outcome::Slower(slower) if causes.is_empty() => {
            if evidence.wanted < 200_000 {
                missing.push("an object of some megabytes: this one ends before a rate shows".to_owned());
            }
            missing.push(format!("qlog of the server's side: no sign of a cause reaches this end ({})", slower.name()));
        }
        _ => {}
    }
    Judgement { outcome, comparison: Some(comparison), causes, missing }
}

fn nothing() -> Judgement {
    Judgement {
        outcome: Outcome::Undecided,
        comparison: None,
        causes: Vec::new(),
        missing: vec!["a round in which both transports were tried".to_owned()],
    }
}

fn notes(evidence: &Evidence) -> Vec<String> {
    let mut notes = Vec::new();
    for transport in Transport::BOTH {
        let refused = evidence.of(transport).filter(|exchange| !exchange.is_comparable());
        if let Some(error) = refused.clone().find_map(|exchange| exchange.error.as_ref()) {
            let (count, all, name) = (refused.count(), evidence.of(transport).count(), transport.name());
            notes.push(format!("{name} was refused in {count} of {all} rounds, which are not compared: {error}."));
        }
    }
    let whole = |transport| {
        let whole = evidence.of(transport).filter(|exchange| exchange.error.is_none() && exchange.cut.is_none());
        whole.map(|exchange| exchange.bytes).max()
    };
    if let (Some(h3), Some(h2)) = (whole(Transport::H3), whole(Transport::H2))
        && h3 != h2
    {
        notes.push(format!("The objects are not the same: {h3} bytes over HTTP/3, {h2} over HTTP/2."));
    }
    let quic = || evidence.of(Transport::H3).filter_map(|exchange| exchange.quic.as_ref());
    if quic().any(|facts| facts.retry) {
        notes.push("The server asks for a token first (Retry): a round trip more for new clients.".to_owned());
    }
    if quic().any(|facts| facts.version_negotiation) {
        notes.push("The server did not support the first version: a round trip more.".to_owned());
    }
    if evidence.discovery.record == Some(false) {
        notes.push("No HTTPS record offers HTTP/3: first requests go over TCP.".to_owned());
    }
    if let Some(resumption) = evidence.resumption
        && resumption.early_data != "accepted"
    {
        notes.push(format!("Early data (0-RTT) of a resumed session: {}.", resumption.early_data));
    }
    notes
}
