//! `perf --beside-tcp`: transfers over QUIC and over the kernel's TCP in turns, and their figures side by side.
//!
//! In every second round TCP is the first, so that drift of the path or the machine affects both alike.

use std::process::ExitCode;

use serde::Serialize;

use super::{
    client::report,
    live::Live,
    options::{Args, Volume},
    quic,
    report::Report,
    tcp,
};
use crate::{
    failure::{Failure, UNSOUND},
    stdout::{write_json_line, write_out},
    stop::Stop,
};

/// Report on both.
#[derive(Debug, Serialize)]
struct Both {
    tiderace_version: &'static str,
    /// Not all rounds are complete.
    partial: bool,
    server: String,
    /// Rounds in which both have run to their end.
    rounds: usize,
    /// Congestion control of the data's senders; `None` where the client does not know it.
    quic_congestion_control: Option<String>,
    tcp_congestion_control: Option<String>,
    figures: Vec<Row>,
    /// All transfers, in the order in which they were made.
    runs: Vec<Report>,
}

/// One figure of both transports.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    figure: &'static str,
    unit: &'static str,
    /// `None` for what the transport does not report.
    quic: Option<Spread>,
    tcp: Option<Spread>,
    /// Median over the rounds of QUIC's value over TCP's.
    quic_over_tcp: Option<f64>,
}

/// Values over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let median = lab::stats::quantile::median(&values)?;
        Some(Self { median, min: *values.first()?, max: *values.last()? })
    }
}

/// A figure of a transfer: name, unit, decimals, and its value in a report.
type Figure = (&'static str, &'static str, usize, fn(&Report) -> Option<f64>);

/// The figures, in the order of the table.
#[expect(clippy::cast_precision_loss, reason = "figures for a report")]
const FIGURES: [Figure; 11] = [
    ("download", "Mbit/s", 1, |run| Some(run.download.as_ref()?.goodput_mbit_per_s)),
    ("upload", "Mbit/s", 1, |run| Some(run.upload.as_ref()?.goodput_mbit_per_s)),
    ("client CPU", "s/GiB", 2, |run| run.cpu.as_ref()?.cpu_s_per_gib),
    ("server CPU", "s/GiB", 2, |run| run.server_cpu.as_ref()?.cpu_s_per_gib),
    ("handshake", "ms", 3, |run| Some(run.handshake.as_ref()?.p50_ms)),
    ("RTT p50", "ms", 3, |run| Some(run.sender.as_ref()?.rtt.as_ref()?.p50_ms)),
    ("RTT min", "ms", 3, |run| match run.tcp.iter().filter_map(|of| of.min_rtt_ms).reduce(f64::min) {
        Some(least) => Some(least),
        None if run.transport == "tcp" => None,
        None => Some(run.sender.as_ref()?.rtt.as_ref()?.min_ms),
    }),
    ("cwnd at the end", "kB", 1, |run| Some(run.sender.as_ref()?.cwnd_bytes? as f64 / 1e3)),
    ("bytes sent again", "%", 3, |run| Some(run.sender.as_ref()?.retransmitted_share? * 100.0)),
    ("packets lost", "", 0, |run| Some(run.sender.as_ref()?.packets_lost? as f64)),
    ("packets sent again", "", 0, |run| Some(run.sender.as_ref()?.packets_retransmitted? as f64)),
];

/// Measures both in turns, and prints the report.
pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let turns = args.rounds * 2;
    let volume = match args.volume() {
        Some(Volume::Bytes(bytes)) => Volume::Bytes(bytes.saturating_mul(turns.into())),
        Some(Volume::For(span)) => Volume::For(span.saturating_mul(turns)),
        None => return Err(Failure::new("`--beside-tcp` is about a transfer").hint("add `--duration '10 s'`")),
    };
    let stop = Stop::on_interrupt()?;
    let live = Live::start(args, volume, &stop)?;
    let together = live.together(&stop);
    let (mut runs, mut failure) = (Vec::new(), None);
    for turn in 0..turns {
        if stop.is_asked() {
            break;
        }
        let ran = match over_tcp(turn) {
            true => tcp::run(args, Some(&together)).await,
            false => quic::run(args, Some(&together)).await,
        };
        match ran {
            Ok(ran) => runs.push(report(args, ran)),
            // What was measured before is worth its report.
            Err(error) if !runs.is_empty() => {
                failure = Some(error);
                break;
            }
            Err(error) => return Err(error),
        }
    }
    live.finish().await;
    if let Some(failure) = &failure {
        eprintln!("error: {}", failure.message());
    }
    let both = Both::new(runs, usize::try_from(turns).unwrap_or(usize::MAX));
    if args.json {
        write_json_line(&serde_json::to_value(&both).expect("every map has text keys, and no number is infinite"))?;
    } else {
        write_out(&both.text())?;
    }
    let is_sound = !both.partial && both.runs.iter().all(Report::is_sound);
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}

/// Returns whether a turn is TCP's: QUIC, TCP, TCP, QUIC, …
const fn over_tcp(turn: u32) -> bool {
    matches!(turn % 4, 1 | 2)
}

impl Both {
    /// Report on these transfers, of so many that were planned.
    fn new(runs: Vec<Report>, planned: usize) -> Self {
        let of = |transport: &str| runs.iter().find(|run| run.transport == transport);
        let controller = |transport| of(transport).and_then(sending);
        // Rounds of which both transfers are complete: only these compare like with like.
        let rounds: Vec<[&Report; 2]> = runs
            .chunks_exact(2)
            .filter(|pair| pair.iter().all(|run| !run.partial))
            .map(|pair| if pair[0].transport == "quic" { [&pair[0], &pair[1]] } else { [&pair[1], &pair[0]] })
            .collect();
        let row = |(figure, unit, _, value): Figure| {
            let values = |side: usize| rounds.iter().filter_map(|round| value(round[side])).collect();
            let ratios = rounds.iter().filter_map(|[quic, tcp]| Some(value(quic)? / value(tcp)?));
            let ratio = Spread::of(ratios.filter(|ratio| ratio.is_finite()).collect());
            let (quic, tcp) = (Spread::of(values(0)), Spread::of(values(1)));
            Row { figure, unit, quic, tcp, quic_over_tcp: ratio.map(|ratio| ratio.median) }
        };
        let figures = FIGURES.into_iter().map(row).filter(|row| row.quic.is_some() || row.tcp.is_some()).collect();
        Self {
            tiderace_version: env!("CARGO_PKG_VERSION"),
            partial: runs.len() < planned || runs.iter().any(|run| run.partial),
            server: runs.first().map_or_else(String::new, |run| run.server.clone()),
            rounds: rounds.len(),
            quic_congestion_control: controller("quic"),
            tcp_congestion_control: controller("tcp"),
            figures,
            runs,
        }
    }

    /// The table, and the errors of each transport.
    fn text(&self) -> String {
        let mut out = String::new();
        if self.partial {
            out += "partial: not all transfers are complete; the table is of the rounds that are\n";
        }
        let rounds = if self.rounds == 1 { "1 round".to_owned() } else { format!("{} rounds", self.rounds) };
        let head = |name: &str, controller: &Option<String>| match controller {
            Some(controller) => format!("{name} ({controller})"),
            None => name.to_owned(),
        };
        let heads = [head("QUIC", &self.quic_congestion_control), head("TCP", &self.tcp_congestion_control)];
        out += &format!("{}, {rounds} in turns: median [least, most]\n", self.server);
        out += &format!("{:<24}{:>30}{:>30}{:>11}\n", "", heads[0], heads[1], "QUIC/TCP");
        for row in &self.figures {
            let digits = FIGURES.iter().find(|(name, ..)| *name == row.figure).map_or(1, |(_, _, digits, _)| *digits);
            let entry = |spread: Option<Spread>| match spread {
                Some(Spread { median, min, max }) => format!("{median:.digits$} [{min:.digits$}, {max:.digits$}]"),
                None => "–".to_owned(),
            };
            let name =
                if row.unit.is_empty() { row.figure.to_owned() } else { format!("{} ({})", row.figure, row.unit) };
            let ratio = row.quic_over_tcp.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
            out += &format!("{name:<24}{:>30}{:>30}{ratio:>11}\n", entry(row.quic), entry(row.tcp));
        }
        for run in &self.runs {
            for (message, count) in &run.errors {
                out += &format!("error over {}: {count} × {}\n", run.transport, crate::printable::printable(message));
            }
        }
        out
    }
}

/// Congestion control of the data's sender. The client does not know that of a server over QUIC.
fn sending(run: &Report) -> Option<String> {
    match (run.transport, run.tcp.first(), &run.upload) {
        ("tcp", Some(direction), _) => Some(direction.congestion_control.clone()),
        (_, _, Some(_)) => Some(run.client_congestion_control.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use super::*;
    use crate::perf::{
        report::{Connections, Cpu, Sender},
        transfer::Delivered,
    };

    fn run(transport: &'static str, mbytes: u64, partial: bool) -> Report {
        let is_quic = transport == "quic";
        Report {
            tiderace_version: "1",
            partial,
            transport,
            server: "192.0.2.1:4433".to_owned(),
            client_congestion_control: "cubic".to_owned(),
            client_udp_payload_bytes: None,
            connections: Connections::default(),
            streams_per_connection: 1,
            handshake: None,
            handshakes: Vec::new(),
            download: Some(Delivered { bytes: mbytes * 1_000_000, elapsed: Duration::from_secs(8) }.into()),
            upload: None,
            sender: Some(Sender {
                end: "the server",
                packets_sent: 10,
                packets_lost: is_quic.then_some(2),
                packets_retransmitted: (!is_quic).then_some(3),
                retransmitted_share: Some(0.0),
                cwnd_bytes: Some(30_000),
                rtt: None,
            }),
            fec: Vec::new(),
            datagrams: Vec::new(),
            tcp: Vec::new(),
            cpu: Some(Cpu::new(Duration::from_secs(1), 1 << 30)),
            server_cpu: None,
            intervals: Vec::new(),
            soak: None,
            errors: BTreeMap::new(),
        }
    }

    #[test]
    fn both_take_turns_in_going_first() {
        let turns: Vec<bool> = (0..6).map(over_tcp).collect();
        assert_eq!(turns, [false, true, true, false, false, true]);
    }

    #[test]
    fn figures_stand_side_by_side_and_what_is_unknown_is_a_dash() {
        let runs = vec![
            run("quic", 100, false),
            run("tcp", 50, false),
            run("tcp", 100, false),
            run("quic", 300, false),
            run("quic", 500, false),
            run("tcp", 100, false),
        ];
        let both = Both::new(runs, 6);
        assert!(!both.partial);
        insta::assert_snapshot!(both.text(), @r"
        192.0.2.1:4433, 3 rounds in turns: median [least, most]
                                                          QUIC                           TCP   QUIC/TCP
        download (Mbit/s)                 300.0 [100.0, 500.0]           100.0 [50.0, 100.0]       3.00
        client CPU (s/GiB)                   1.00 [1.00, 1.00]             1.00 [1.00, 1.00]       1.00
        cwnd at the end (kB)                 30.0 [30.0, 30.0]             30.0 [30.0, 30.0]       1.00
        bytes sent again (%)              0.000 [0.000, 0.000]          0.000 [0.000, 0.000]          –
        packets lost                                  2 [2, 2]                             –          –
        packets sent again                                   –                      3 [3, 3]          –
        ");
    }

    #[test]
    fn a_round_that_is_not_complete_is_in_no_figure() {
        let runs = vec![run("quic", 100, false), run("tcp", 50, false), run("tcp", 7, true)];
        let both = Both::new(runs, 6);
        assert_eq!((both.partial, both.rounds, both.runs.len()), (true, 1, 3));
        assert_eq!(both.figures[0].tcp.unwrap().median, 50.0);
        assert!(both.text().starts_with("partial: "));
        let alone = Both::new(vec![run("quic", 100, true)], 2);
        assert!(alone.figures.is_empty() && alone.partial);
    }
}
