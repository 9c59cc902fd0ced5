//! Output of the driver: tables for people, one JSON document for programs.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::{
    environment::Environment,
    mode::{Mode, Quantity},
    peers::Peer,
    run::{Plan, Run},
    statistics::{Cost, Ratio, Summary, median},
    workload::latency::Latency,
};

/// The form of the document.
pub const SCHEMA: &str = "tiderace-bench/2";

/// Saved measurement that another continues from.
#[derive(Debug, Deserialize)]
pub struct Saved {
    /// The form of the document.
    pub schema: String,
    /// Amount of each run of a mode.
    pub amounts: Vec<(Mode, u64)>,
    /// Runs.
    pub runs: Vec<Run>,
    /// Failed runs.
    pub failures: Vec<String>,
}

/// Results of all measurements, as one document.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    /// The form of this document.
    pub schema: &'static str,
    /// Environment.
    pub environment: &'a Environment,
    /// Plan.
    pub plan: Plan,
    /// Amount of each run of a mode.
    pub amounts: Vec<(Mode, u64)>,
    /// Each run, in the order it was made.
    pub runs: &'a [Run],
    /// Runs that failed, each with its reason.
    pub failures: &'a [String],
    /// The figures of each contender in each mode.
    pub summary: &'a [Summary],
}

/// Picks one side's cost from a summary.
type Pick = fn(&Summary) -> Option<&Cost>;

/// Mark for a missing figure.
const NONE: &str = "–";

/// A ratio with its spread over the rounds.
pub fn ratio_text(ratio: Option<Ratio>) -> String {
    match ratio {
        None => NONE.to_owned(),
        Some(Ratio { median, rounds: 1, .. }) => format!("{median:.2}"),
        Some(Ratio { median, min, max, .. }) => format!("{median:.2} [{min:.2}, {max:.2}]"),
    }
}

/// A figure in the unit of its mode.
pub fn figure_text(mode: Mode, value: f64) -> String {
    match mode.quantity() {
        Quantity::Cost { scale, .. } => format!("{:.3}", value * scale),
        Quantity::Rate => format!("{:.0}", 1e6 / value),
        Quantity::Memory => format!("{:.1}", value / 1024.0),
    }
}

/// A ratio of rates is the inverse of the ratio of costs.
fn shown(mode: Mode, ratio: Option<Ratio>) -> Option<Ratio> {
    let inverse =
        |Ratio { median, min, max, rounds }| Ratio { median: 1.0 / median, min: 1.0 / max, max: 1.0 / min, rounds };
    if mode.quantity() == Quantity::Rate { ratio.map(inverse) } else { ratio }
}

fn throughput_heading(mode: Mode) -> Option<&'static str> {
    match mode {
        Mode::Bulk | Mode::BulkStreams | Mode::BulkConnections => Some("Gbit/s"),
        Mode::Handshake | Mode::Resumed | Mode::PostQuantum | Mode::Requests => Some("per second"),
        Mode::Datagrams => Some("arrived"),
        Mode::Idle | Mode::Latency => None,
    }
}

fn throughput(summary: &Summary) -> String {
    match (summary.mode, summary.delivered) {
        (_, Some(part)) => format!("{:.1} %", part * 100.0),
        (mode, _) if mode.moves_bytes() => format!("{:.2}", summary.per_second * 8.0 / 1e9),
        _ => format!("{:.0}", summary.per_second),
    }
}

/// The table of one mode, in Markdown: a line for each of `peers`, and `–` where there is nothing.
pub fn table(mode: Mode, summaries: &[Summary], peers: &[Peer]) -> String {
    let unit = match mode.quantity() {
        Quantity::Cost { unit, .. } => unit,
        Quantity::Rate => "k/s",
        Quantity::Memory => "KiB",
    };
    let (client, server) = mode.sides();
    let of_mode = |peer: Peer| summaries.iter().find(|summary| summary.mode == mode && summary.peer == peer);
    let any = |pick: Pick| summaries.iter().any(|s| s.mode == mode && pick(s).is_some());
    let mut sides: Vec<(&str, Pick)> = Vec::new();
    if any(|summary| summary.client.as_ref()) {
        sides.push((client, |summary| summary.client.as_ref()));
    }
    sides.push((server, |summary| Some(&summary.server)));
    // Of rates there is no sum.
    if any(|summary| summary.sum.as_ref()) && mode.quantity() != Quantity::Rate {
        sides.push(("sum", |summary| summary.sum.as_ref()));
    }
    let ran: Vec<Peer> = mode.yardsticks().iter().copied().filter(|&peer| of_mode(peer).is_some()).collect();
    let single = sides.iter().any(|(_, pick)| {
        summaries.iter().any(|s| s.mode == mode && pick(s).is_some_and(|cost| cost.to_single.is_some()))
    });

    let mut header = vec!["peer".to_owned()];
    for (name, _) in &sides {
        header.push(format!("{name} ({unit})"));
        header.extend(ran.iter().map(|peer| format!("× {}", peer.name())));
        if single {
            header.push("× own single stream".to_owned());
        }
    }
    header.extend(throughput_heading(mode).map(str::to_owned));
    header.push("runs".to_owned());
    let mut rows = vec![header];
    for &peer in peers {
        let mut row = vec![peer.name().to_owned()];
        let summary = of_mode(peer);
        for (_, pick) in &sides {
            let cost = summary.and_then(|summary| pick(summary));
            row.push(cost.map_or_else(|| NONE.to_owned(), |cost| figure_text(mode, cost.median)));
            row.extend(ran.iter().map(|yardstick| {
                let found = cost.and_then(|cost| cost.ratios.iter().find(|(peer, _)| peer == yardstick));
                ratio_text(shown(mode, found.and_then(|(_, ratio)| *ratio)))
            }));
            if single {
                row.push(ratio_text(cost.and_then(|cost| cost.to_single)));
            }
        }
        if throughput_heading(mode).is_some() {
            row.push(summary.map_or_else(|| NONE.to_owned(), throughput));
        }
        row.push(summary.map_or_else(|| NONE.to_owned(), |summary| summary.runs.to_string()));
        rows.push(row);
    }
    markdown(&rows)
}

/// Rows as a table whose columns line up; the first row is the heading.
fn markdown(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            // A String takes everything.
            let _ = write!(text, "| {cell:width$} ");
        }
        text.push_str("|\n");
        if number == 0 {
            for width in &widths {
                let _ = write!(text, "|{}", "-".repeat(width + 2));
            }
            text.push_str("|\n");
        }
    }
    text
}

/// Legend of a mode's table.
pub fn legend(mode: Mode) -> &'static str {
    if mode == Mode::Latency {
        return "CPU time of the server per request, over all conditions. Below: p50, p99 and p99.9 of the time from when a request \
                was due to its answer, medians over the rounds, at shares of the contender's own capacity, and at 1,000 requests per \
                second beside a transfer.";
    }
    match mode.quantity() {
        Quantity::Cost { .. } => {
            "CPU time, user and system, per unit: median over the rounds. ×: median over the rounds of the ratio to that \
             peer in the same round, with the smallest and the largest."
        }
        Quantity::Rate => {
            "Thousands of datagrams per CPU second of the sending and of the receiving process: median over the rounds. \
             ×: median over the rounds of the ratio to that peer in the same round, with the smallest and the largest. \
             Only what arrived counts for the receiver; `arrived` is the least part of a run."
        }
        Quantity::Memory => {
            "Growth of the server's resident memory per connection: median over the rounds. The sockets of TCP are in the \
             kernel, and not in it."
        }
    }
}

/// Latencies of a contender in each condition: medians over its runs.
fn latencies(runs: &[Run], peer: Peer) -> Vec<String> {
    let own: Vec<&Run> = runs.iter().filter(|run| run.mode == Mode::Latency && run.peer == peer).collect();
    let of = |place: usize| own.iter().filter_map(move |run| run.client.latencies.as_ref()?.get(place));
    let conditions = own.first().and_then(|run| run.client.latencies.as_ref()).map_or(0, Vec::len);
    let line = |place: usize| {
        let middle = |pick: fn(&Latency) -> f64| median(of(place).map(pick));
        let condition = &of(place).next()?.condition;
        Some(format!(
            "{}, {condition} ({:.0} per second): {:.0}, {:.0}, {:.0} µs",
            peer.name(),
            middle(|latency| latency.offered)?,
            middle(|latency| latency.p50_us)?,
            middle(|latency| latency.p99_us)?,
            middle(|latency| latency.p999_us)?,
        ))
    };
    (0..conditions).filter_map(line).collect()
}

/// Evidence of a mode's runs beside their cost: asymmetric operations, early data.
#[expect(clippy::cast_precision_loss, reason = "counts of a few thousand")]
pub fn evidence(mode: Mode, runs: &[Run], peers: &[Peer]) -> Vec<String> {
    if mode == Mode::Latency {
        return peers.iter().flat_map(|&peer| latencies(runs, peer)).collect();
    }
    if !matches!(mode, Mode::Handshake | Mode::Resumed | Mode::PostQuantum) {
        return Vec::new();
    }
    let line = |&peer: &Peer| {
        let own = || runs.iter().filter(move |run| run.mode == mode && run.peer == peer);
        own().next()?;
        let per_unit = |pick: &dyn Fn(&Run) -> Option<u64>| {
            let value = median(own().filter_map(|run| Some(pick(run)? as f64 / run.server.units as f64)));
            value.map_or_else(|| NONE.to_owned(), |value| format!("{value}"))
        };
        let mut text = format!(
            "{}: {} signatures and {} key agreements per handshake at the server",
            peer.name(),
            per_unit(&|run| run.server.signatures),
            per_unit(&|run| run.server.key_agreements),
        );
        if mode == Mode::Resumed {
            let _ = write!(text, "; {} of the requests were accepted as 0-RTT", per_unit(&|run| run.client.early));
        }
        Some(text)
    };
    peers.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{summarise, tests::run};

    #[test]
    fn the_table_lines_up_and_says_what_is_missing() {
        let runs = [run(Mode::Bulk, Peer::Floor, 1, 400, 300), run(Mode::Bulk, Peer::Tiderace, 1, 200, 300)];
        let peers = [Peer::Floor, Peer::Tiderace, Peer::Noq];
        let text = table(Mode::Bulk, &summarise(&runs, Mode::Bulk, &peers), &peers);
        assert_eq!(
            text,
            "\
| peer     | sender (s/GiB) | × floor | receiver (s/GiB) | × floor | sum (s/GiB) | × floor | Gbit/s | runs |
|----------|----------------|---------|------------------|---------|-------------|---------|--------|------|
| floor    | 0.400          | 1.00    | 0.300            | 1.00    | 0.700       | 1.00    | 8.00   | 1    |
| tiderace | 0.200          | 0.50    | 0.300            | 1.00    | 0.500       | 0.71    | 8.00   | 1    |
| noq      | –              | –       | –                | –       | –           | –       | –      | –    |
"
        );
    }

    #[test]
    fn spreads_and_rates_read_well() {
        let ratio = Ratio { median: 2.0, min: 1.0, max: 4.0, rounds: 3 };
        assert_eq!(ratio_text(Some(ratio)), "2.00 [1.00, 4.00]");
        assert_eq!(ratio_text(shown(Mode::Datagrams, Some(ratio))), "0.50 [0.25, 1.00]");
        assert_eq!(ratio_text(None), "–");
        // 500 ns each: two million per CPU second.
        assert_eq!(figure_text(Mode::Datagrams, 500.0), "2000");
        assert_eq!(figure_text(Mode::Idle, 2_048.0), "2.0");
        assert_eq!(figure_text(Mode::Requests, 900.0), "0.900");
    }

    #[test]
    fn evidence_is_per_handshake() {
        let mut resumed = run(Mode::Resumed, Peer::Quinn, 1, 1, 1);
        resumed.server.units = 1_000;
        resumed.server.signatures = Some(0);
        resumed.server.key_agreements = Some(1_000);
        resumed.client.early = Some(1_000);
        assert_eq!(
            evidence(Mode::Resumed, &[resumed], &[Peer::Quinn]),
            [
                "quinn: 0 signatures and 1 key agreements per handshake at the server; 1 of the requests were accepted as 0-RTT"
            ]
        );
    }
}
