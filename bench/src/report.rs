//! What the driver prints: the table for people, one JSON document for programs.

use std::{fmt::Write, fs};

use serde::Serialize;

use crate::{
    run::{Plan, Run},
    statistics::{Cost, Summary},
};

/// Where the measurement was made.
#[derive(Debug, Serialize)]
pub struct Environment {
    /// The processor's name.
    pub processor: String,
    /// The kernel's release.
    pub kernel: String,
    /// The congestion control that kernel TCP uses.
    pub tcp_congestion_control: String,
    /// `GLIBC_TUNABLES`, which contenders inherit: it can change what a copy costs (see the README).
    pub glibc_tunables: Option<String>,
}

/// Everything one `bulk` measured.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    /// What was measured.
    pub test: &'static str,
    /// Where.
    pub environment: Environment,
    /// How.
    pub plan: Plan,
    /// Each run, in the order it was made.
    pub runs: &'a [Run],
    /// Runs that failed, each with its reason.
    pub failures: &'a [String],
    /// Each contender's figures.
    pub summary: &'a [Summary],
}

impl Environment {
    /// Asks the kernel; what it does not say is "unknown".
    pub fn read() -> Self {
        let read = |path| fs::read_to_string(path).map(|text| text.trim().to_owned());
        let unknown = || "unknown".to_owned();
        let processor = read("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        Self {
            processor: processor.unwrap_or_else(unknown),
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_else(|_| unknown()),
            tcp_congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_else(|_| unknown()),
            glibc_tunables: std::env::var("GLIBC_TUNABLES").ok().filter(|value| !value.is_empty()),
        }
    }
}

fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
}

fn cells(cost: &Cost) -> String {
    let (floor, quinn) = (ratio(cost.to_floor), ratio(cost.to_quinn));
    format!("{:.3} / {:.3} / {floor} / {quinn}", cost.min, cost.median)
}

/// The table, in Markdown.
pub fn table(summaries: &[Summary]) -> String {
    let header = ["peer", "sender", "receiver", "sum", "Gbit/s", "runs", "foreign"];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(summaries.iter().map(|summary| {
        [
            summary.peer.name().to_owned(),
            cells(&summary.sender),
            cells(&summary.receiver),
            cells(&summary.sum),
            format!("{:.2}", summary.gbit_per_s),
            summary.runs.to_string(),
            format!("{:.2}", summary.foreign_cores_max),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(widths) {
            // A String takes everything.
            let _ = write!(text, "| {cell:width$} ");
        }
        text.push_str("|\n");
        if number == 0 {
            for width in widths {
                let _ = write!(text, "|{}", "-".repeat(width + 2));
            }
            text.push_str("|\n");
        }
    }
    text
}

/// The lines under the table that say how to read it.
pub const LEGEND: &str = "\
sender, receiver, sum: CPU seconds per GiB (user + system, first byte to last): min / median / x floor / x quinn.
x floor, x quinn: median over rounds of the ratio to that peer in the same round. Compare these, not the seconds.
foreign: most CPUs that other processes used during one of the runs.
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        peers::Peer,
        statistics::{summarise, tests::run},
    };

    #[test]
    fn the_table_lines_up() {
        let runs = [run(Peer::Floor, 1, 400, 300), run(Peer::TcpRustls, 1, 200, 300)];
        let text = table(&summarise(&runs, &[Peer::Floor, Peer::TcpRustls]));
        assert_eq!(
            text,
            "\
| peer       | sender                   | receiver                 | sum                      | Gbit/s | runs | foreign |
|------------|--------------------------|--------------------------|--------------------------|--------|------|---------|
| floor      | 0.400 / 0.400 / 1.00 / – | 0.300 / 0.300 / 1.00 / – | 0.700 / 0.700 / 1.00 / – | 8.00   | 1    | 0.01    |
| tcp-rustls | 0.200 / 0.200 / 0.50 / – | 0.300 / 0.300 / 1.00 / – | 0.500 / 0.500 / 0.71 / – | 8.00   | 1    | 0.01    |
"
        );
    }
}
