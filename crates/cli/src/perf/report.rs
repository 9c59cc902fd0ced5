//! Result of a client's run: as a table, and as JSON, with the unit in each name.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use serde::Serialize;

use super::{
    datagrams::Datagrams,
    fec,
    interval::{self, Interval},
    per_gib,
    progress::{mbit_per_s, rate},
    protocol::SenderReport,
    requests,
    samples::{Samples, Summary},
    tcp,
    transfer::Delivered,
};
use crate::meter::soak::Soak;

/// Report of a client.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) tiderace_version: &'static str,
    /// Ctrl-C has ended the run: the report has the measurements until then.
    pub(super) partial: bool,
    /// `quic` or `tcp`.
    pub(super) transport: &'static str,
    pub(super) server: String,
    /// Congestion control of what the client sends.
    pub(super) client_congestion_control: String,
    /// Largest UDP payload that the client sends; `None` over TCP.
    pub(super) client_udp_payload_bytes: Option<u16>,
    pub(super) connections: Connections,
    pub(super) streams_per_connection: u32,
    pub(super) handshake: Option<Summary>,
    /// Connections for one request each, by their kind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) handshakes: Vec<requests::Connections>,
    pub(super) download: Option<Goodput>,
    pub(super) upload: Option<Goodput>,
    pub(super) sender: Option<Sender>,
    /// Directions in which packets were protected.
    pub(super) fec: Vec<fec::Direction>,
    /// Datagrams of each direction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) datagrams: Vec<Datagrams>,
    /// Statistics of the kernel, for each direction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tcp: Vec<tcp::Direction>,
    pub(super) cpu: Option<Cpu>,
    /// CPU time of the server's process during the transfer, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_cpu: Option<Cpu>,
    /// Lines of `--interval`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) intervals: Vec<Interval>,
    /// Figures and memory over time, of `--soak`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) soak: Option<Soak>,
    /// Errors, with counts.
    pub(super) errors: BTreeMap<String, u32>,
}

/// Outcome of the connections.
#[derive(Debug, Default, Serialize)]
pub(super) struct Connections {
    pub(super) attempted: u32,
    /// Handshake complete.
    pub(super) established: u32,
    /// … and everything done that they were for.
    pub(super) completed: u32,
    pub(super) success_share: f64,
}

/// Bytes of the application, each counted once however often it was sent.
#[derive(Debug, Serialize)]
pub(super) struct Goodput {
    pub(super) bytes: u64,
    pub(super) elapsed_s: f64,
    pub(super) goodput_mbit_per_s: f64,
    #[serde(skip)]
    elapsed: Duration,
}

impl From<Delivered> for Goodput {
    fn from(Delivered { bytes, elapsed }: Delivered) -> Self {
        Self { bytes, elapsed_s: elapsed.as_secs_f64(), goodput_mbit_per_s: mbit_per_s(bytes, elapsed), elapsed }
    }
}

/// Path statistics of the ends that sent data.
#[derive(Debug, Serialize)]
pub(super) struct Sender {
    /// `the server`, `the client` or `both ends`.
    pub(super) end: &'static str,
    pub(super) packets_sent: u64,
    /// `None` over TCP, which counts retransmissions instead.
    pub(super) packets_lost: Option<u64>,
    /// `None` over QUIC, which sends data again and not packets.
    pub(super) packets_retransmitted: Option<u64>,
    /// Bytes sent again, of all that were sent: of streams, over TCP of TLS records.
    pub(super) retransmitted_share: Option<f64>,
    /// Congestion windows at the end, together.
    pub(super) cwnd_bytes: Option<u64>,
    /// Round trips without the peer's delay of acknowledgements; over TCP readings of the smoothed RTT, every 10 ms.
    pub(super) rtt: Option<Summary>,
}

impl Sender {
    pub(super) fn new(end: &'static str, report: &SenderReport) -> Self {
        Self {
            end,
            packets_sent: report.packets_sent,
            packets_lost: Some(report.packets_lost),
            packets_retransmitted: None,
            retransmitted_share: share(report.stream_bytes_retransmitted, report.stream_bytes_sent),
            cwnd_bytes: Some(report.window),
            rtt: report.rtt.summary(),
        }
    }
}

/// CPU time of this process during the transfer: user and system, all threads.
#[derive(Debug, Serialize)]
pub(super) struct Cpu {
    pub(super) cpu_s: f64,
    pub(super) cpu_s_per_gib: Option<f64>,
}

impl Cpu {
    pub(super) fn new(time: Duration, bytes: u64) -> Self {
        Self { cpu_s: time.as_secs_f64(), cpu_s_per_gib: per_gib(time, bytes) }
    }
}

/// `part` of `whole`; `None` of nothing.
#[expect(clippy::cast_precision_loss, reason = "a figure for a report")]
pub(super) fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Handshake times as a set.
pub(super) fn summary(times: &[Duration]) -> Option<Summary> {
    let mut samples = Samples::new();
    times.iter().for_each(|&time| samples.record(time));
    samples.summary()
}

impl Report {
    /// Returns whether everything was done, and done to its end.
    pub(super) fn is_sound(&self) -> bool {
        self.errors.is_empty() && !self.partial
    }

    /// Table. `–` stands for values that cannot be reported, for example a percentile of too few samples.
    pub(super) fn text(&self) -> String {
        let Connections { attempted, established, completed, success_share } = self.connections;
        let mut out = String::new();
        let mut line = |name: &str, text: String| {
            // Writing into a string cannot fail.
            let _ = writeln!(out, "{name:<13} {text}");
        };
        if self.partial {
            line("partial", "interrupted: what was measured until then".to_owned());
        }
        line("server", self.server.clone());
        line(
            "connections",
            format!(
                "{:.1} % successful: {attempted} attempted, {established} established, {completed} completed",
                success_share * 100.0
            ),
        );
        if let Some(handshake) = &self.handshake {
            line("handshake", times(handshake));
        }
        for (name, goodput) in [("download", &self.download), ("upload", &self.upload)] {
            if let Some(goodput) = goodput {
                let size = indicatif::DecimalBytes(goodput.bytes);
                let rate = rate(goodput.bytes, goodput.elapsed);
                line(name, format!("{rate}: {size} in {:.2} s", goodput.elapsed_s));
            }
        }
        for (name, text) in self.datagrams.iter().flat_map(Datagrams::lines) {
            line(name, text);
        }
        if let Some(sender) = &self.sender {
            let rtt = sender.rtt.as_ref().map_or("–".to_owned(), times);
            line("rtt", format!("{rtt}, seen by {}", sender.end));
            let resent = sender.retransmitted_share.map_or("–".to_owned(), |share| format!("{:.3} %", share * 100.0));
            let what = if self.transport == "tcp" { "bytes" } else { "stream bytes" };
            let counts = [(sender.packets_lost, "lost"), (sender.packets_retransmitted, "sent again")];
            let counts = counts.into_iter().filter_map(|(count, fate)| Some((count?, fate)));
            let counts: String =
                counts.map(|(count, fate)| format!("; {count} of {} packets {fate}", sender.packets_sent)).collect();
            line("sent again", format!("{resent} of the {what}{counts}"));
        }
        for direction in &self.fec {
            line("fec", direction.text());
        }
        for direction in &self.tcp {
            line("tcp", direction.text());
        }
        if let Some(Cpu { cpu_s, cpu_s_per_gib }) = self.cpu {
            let each = cpu_s_per_gib.map_or("–".to_owned(), |each| format!("{each:.2} s"));
            line("cpu", format!("{each} per GiB ({cpu_s:.2} s of this process)"));
        }
        if let Some(soak) = &self.soak {
            line("memory", soak.text());
        }
        for (message, count) in &self.errors {
            line("error", format!("{count} × {message}"));
        }
        if !self.handshakes.is_empty() {
            out += &format!("\n{}", requests::Connections::header());
            self.handshakes.iter().for_each(|kind| out += &kind.row());
        }
        out
    }

    /// The rows of `--csv` about the whole transfer; without one the table of connections.
    pub(super) fn csv(&self) -> String {
        if self.download.is_none() && self.upload.is_none() {
            let rows = self.handshakes.iter().map(|kind| kind.csv(self.transport));
            return requests::Connections::CSV_HEADER.to_owned() + &rows.collect::<String>();
        }
        let rows =
            [("download", &self.download), ("upload", &self.upload)].into_iter().filter_map(|(direction, goodput)| {
                let goodput = goodput.as_ref()?;
                // RTT and losses are of the ends that sent: with both directions they belong to neither row alone.
                let sender = self.sender.as_ref().filter(|_| self.download.is_none() || self.upload.is_none());
                let total = Interval {
                    direction,
                    start_s: 0.0,
                    end_s: goodput.elapsed_s,
                    bytes: goodput.bytes,
                    mbit_per_s: goodput.goodput_mbit_per_s,
                    rtt_ms: sender.and_then(|sender| sender.rtt.as_ref()).map(|rtt| rtt.p50_ms),
                    cwnd_bytes: None,
                    packets_lost: sender.and_then(|sender| sender.packets_lost),
                    packets_retransmitted: sender.and_then(|sender| sender.packets_retransmitted),
                };
                let datagrams = self.datagrams.iter().find(|datagrams| datagrams.direction == direction);
                let kind = if self.partial { "partial" } else { "total" };
                Some(interval::row(kind, self.transport, &total, datagrams))
            });
        rows.collect()
    }

    /// One JSON object.
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("every map has text keys, and no number is infinite")
    }
}

/// A set of times on a line.
pub(super) fn times(set: &Summary) -> String {
    let time = |ms: Option<f64>| ms.map_or("–".to_owned(), |ms| format!("{ms:.3} ms"));
    let noun = if set.samples == 1 { "sample" } else { "samples" };
    format!(
        "p50 {}  p95 {}  p99 {}  min {}  ({} {noun})",
        time(Some(set.p50_ms)),
        time(set.p95_ms),
        time(set.p99_ms),
        time(Some(set.min_ms)),
        set.samples
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            tiderace_version: "1.2.3",
            partial: false,
            transport: "quic",
            server: "192.0.2.1:4433".to_owned(),
            client_congestion_control: "cubic".to_owned(),
            client_udp_payload_bytes: Some(1200),
            connections: Connections { attempted: 4, established: 3, completed: 3, success_share: 0.75 },
            streams_per_connection: 1,
            handshake: summary(&[Duration::from_micros(1500), Duration::from_micros(2500)]),
            download: Some(Delivered { bytes: 250_000_000, elapsed: Duration::from_secs(2) }.into()),
            upload: None,
            sender: Some(Sender {
                end: "the server",
                packets_sent: 1000,
                packets_lost: Some(5),
                packets_retransmitted: None,
                retransmitted_share: share(1, 200),
                cwnd_bytes: Some(30_000),
                rtt: summary(&[Duration::from_millis(50); 300]),
            }),
            handshakes: Vec::new(),
            fec: Vec::new(),
            datagrams: Vec::new(),
            tcp: Vec::new(),
            cpu: Some(Cpu::new(Duration::from_millis(500), 1 << 30)),
            server_cpu: None,
            intervals: Vec::new(),
            soak: None,
            errors: BTreeMap::from([("idle for too long".to_owned(), 1)]),
        }
    }

    #[test]
    fn the_table_says_what_it_can() {
        insta::assert_snapshot!(report().text(), @r"
        server        192.0.2.1:4433
        connections   75.0 % successful: 4 attempted, 3 established, 3 completed
        handshake     p50 1.500 ms  p95 –  p99 –  min 1.500 ms  (2 samples)
        download      1000 Mbit/s: 250.00 MB in 2.00 s
        rtt           p50 50.000 ms  p95 50.000 ms  p99 50.000 ms  min 50.000 ms  (300 samples), seen by the server
        sent again    0.500 % of the stream bytes; 5 of 1000 packets lost
        cpu           0.50 s per GiB (0.50 s of this process)
        error         1 × idle for too long
        ");
    }

    #[test]
    fn the_total_is_a_row() {
        assert_eq!(report().csv(), "total,quic,download,0.000000,2.000000,250000000,1000.000000,50.000000,,5,,,,,\n");
    }

    #[test]
    fn json_has_units_and_null_for_what_is_unknown() {
        let json = report().json();
        assert_eq!(json["download"]["goodput_mbit_per_s"], 1000.0);
        assert_eq!(json["handshake"]["p99_ms"], serde_json::Value::Null);
        assert_eq!(json["sender"]["rtt"]["p99_ms"], 50.0);
        assert_eq!(json["cpu"]["cpu_s_per_gib"], 0.5);
        assert_eq!(json["errors"]["idle for too long"], 1);
        assert_eq!(json["upload"], serde_json::Value::Null);
    }
}
