//! Report for people, within 80 columns, and for programs.

use serde_json::{Value, json};

use super::{
    diagnosis::{Diagnosis, Figure, Judgement, Outcome, Verdict, median},
    evidence::{Discovery, Evidence, Exchange, Transport},
};
use crate::printable::printable;

/// Width of a line.
const WIDTH: usize = 80;

/// The report as JSON.
pub(super) fn json(evidence: &Evidence, diagnosis: Option<&Diagnosis>, url: &str) -> Value {
    let partial = diagnosis.is_none() || evidence.ended_early.is_some();
    json!({"url": url, "partial": partial, "diagnosis": diagnosis, "evidence": evidence})
}

/// The report as text.
pub(super) fn text(evidence: &Evidence, diagnosis: &Diagnosis, url: &str) -> String {
    let mut text = wrap("", &format!("{}: {} of the object", printable(url), bytes(evidence.wanted)));
    text += &wrap("", &format!("HTTP/3 at {}", found(&evidence.discovery)));
    if let Some(why) = &evidence.ended_early {
        text += &wrap("", &format!("PARTIAL: {}", printable(why)));
    }
    text += &table(evidence);
    text += "\n";
    text += &judgement("Complete", &diagnosis.completion);
    if let Some(response) = &diagnosis.response {
        text += &judgement("Small requests beside it", response);
    }
    for note in &diagnosis.notes {
        text += &wrap("note: ", note);
    }
    text
}

/// Ways by which HTTP/3 was found.
pub(super) fn found(discovery: &Discovery) -> String {
    let address = discovery.address.map_or_else(|| "no address".to_owned(), |address| address.to_string());
    let record = match discovery.record {
        Some(true) => "offered",
        Some(false) => "not offered",
        None => "not asked for",
    };
    let alt_svc = discovery.alt_svc.as_deref().map_or_else(|| "none".to_owned(), |text| printable(text).into_owned());
    format!("{address}; HTTPS record: {record}; alt-svc: {alt_svc}")
}

fn bytes(count: u64) -> String {
    indicatif::DecimalBytes(count).to_string()
}

fn table(evidence: &Evidence) -> String {
    let mut text =
        format!("\n{:<26}{:>12}{:>12}\n", format!("medians of {} rounds", rounds(evidence)), "HTTP/3", "HTTP/2");
    let wanted = evidence.wanted;
    // What was cut is not there: its time follows from its mean speed.
    let is_cut = evidence.exchanges.iter().any(|exchange| exchange.cut.is_some());
    let complete = if is_cut { "complete at its rate, ms" } else { "complete, ms" };
    let mut row = |name: &str, digits: usize, of: &dyn Fn(&Exchange) -> Option<f64>| {
        let compared = |transport| evidence.of(transport).filter(|exchange| exchange.is_comparable());
        let cells = Transport::BOTH.map(|transport| {
            median(compared(transport).filter_map(of)).map_or_else(|| "–".to_owned(), |value| cell(value, digits))
        });
        text += &format!("{name:<26}{:>12}{:>12}\n", cells[0], cells[1]);
    };
    row("handshake, ms", 1, &|exchange| exchange.handshake_ms);
    row("first byte, ms", 1, &|exchange| exchange.first_byte_ms);
    row(complete, 0, &|exchange| Some(exchange.seconds_for(wanted) * 1e3));
    row("goodput, Mbit/s", 2, &|exchange| exchange.goodput().map(|rate| rate / 1e6));
    row("small request, ms", 1, &|exchange| median(exchange.loaded_ms.iter().copied()));
    row("smallest RTT, ms", 1, &|exchange| match (&exchange.quic, exchange.tcp) {
        (Some(quic), _) => quic.rtt_min_ms,
        (_, tcp) => tcp?.rtt_min_ms,
    });
    row("RTT of the transfer, ms", 1, &|exchange| match (&exchange.quic, exchange.tcp) {
        (Some(quic), _) => quic.rtt_median_ms,
        (_, tcp) => tcp?.rtt_median_ms,
    });
    text
}

fn cell(value: f64, digits: usize) -> String {
    if value.is_infinite() { "never".to_owned() } else { format!("{value:.digits$}") }
}

fn rounds(evidence: &Evidence) -> usize {
    evidence.of(Transport::H3).count()
}

fn judgement(title: &str, judgement: &Judgement) -> String {
    let ratio = judgement.comparison.and_then(|comparison| comparison.ratio);
    let ratio = |swap: bool| {
        ratio.map_or_else(String::new, |ratio| {
            let (value, low, high) = if swap {
                (1.0 / ratio.value, 1.0 / ratio.high, 1.0 / ratio.low)
            } else {
                (ratio.value, ratio.low, ratio.high)
            };
            if low.is_finite() && low > 0.0 && high.is_finite() {
                format!(", {value:.2} times the other [{low:.2}, {high:.2}]")
            } else if value.is_finite() {
                format!(", {value:.2} times the other")
            } else {
                String::new()
            }
        })
    };
    let head = match judgement.outcome {
        Outcome::Equivalent => format!("{title}: no difference that matters{}.", ratio(false)),
        Outcome::Undecided => format!("{title}: the data do not suffice{}.", ratio(false)),
        Outcome::Slower(Transport::H3) => format!("{title}: HTTP/3 is slower{}.", ratio(false)),
        Outcome::Slower(Transport::H2) => format!("{title}: HTTP/2 is slower{}.", ratio(true)),
    };
    let mut text = wrap("", &head);
    for (place, verdict) in judgement.causes.iter().enumerate() {
        text += &cause(place, verdict);
    }
    for missing in &judgement.missing {
        text += &wrap("  needed: ", missing);
    }
    text
}

fn cause(place: usize, verdict: &Verdict) -> String {
    let [shown, rounds] = verdict.shown;
    let head = format!("{}: {}, in {shown} of {rounds} rounds", verdict.cause.title(), verdict.confidence.name());
    let mut text = wrap(if place == 0 { "  cause: " } else { "  also: " }, &head);
    let figures: Vec<String> = verdict.figures.iter().map(figure).collect();
    text += &wrap("    ", &figures.join("; "));
    text + &wrap("    try: ", verdict.cause.advice())
}

fn figure(figure: &Figure) -> String {
    let value = figure.value;
    let digits = if value >= 100.0 || value.fract() == 0.0 { 0 } else { 2 };
    let space = if figure.unit.is_empty() { "" } else { " " };
    format!("{} {value:.digits$}{space}{}", figure.name, figure.unit)
}

/// Breaks lines at spaces; further lines begin below the first letter.
fn wrap(lead: &str, text: &str) -> String {
    let indent = lead.chars().count();
    let (mut out, mut line, mut used) = (String::new(), lead.to_owned(), indent);
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > indent && used + 1 + length > WIDTH {
            out += line.trim_end();
            out.push('\n');
            line = " ".repeat(indent.max(2));
            used = indent.max(2);
        } else if used > indent {
            line.push(' ');
            used += 1;
        }
        line += word;
        used += length;
    }
    out + line.trim_end() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit() {
        let long = "word ".repeat(60);
        let text = wrap("  cause: ", long.trim());
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH) && text.lines().count() > 3, "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("         word")), "{text}");
        assert_eq!(wrap("", "short"), "short\n");
    }
}
