//! Options of `perf client`, and their combinations.

use std::{net::SocketAddr, num::NonZeroU32, time::Duration};

use clap::{Parser, ValueEnum};
use tiderace::{
    transport::tls::rustls_backend::KeyExchange,
    units::{Bitrate, DataSize, duration_text},
};

use super::{
    EndArgs,
    datagrams::{Plan, SMALLEST},
    interval::Form,
    requests::Kind,
};
use crate::{failure::Failure, trust::TrustArgs};

/// Measure connections to a `tiderace perf server`.
///
/// Goodput counts bytes of the application once, at the end that receives them. RTT and loss are those of the end that
/// sends. Percentiles need enough samples: 60 for p95, 300 for p99.
///
/// With --interval a line for each direction and interval has the bytes received, or the bytes sent without retransmissions. RTT is shown
/// if it was sampled in the interval; cwnd and losses are known of uploads only.
///
/// With --beside-tcp, transfers over QUIC and over the kernel's TCP with TLS 1.3 take turns. The report has the median of each figure over
/// the rounds, with the smallest and the largest value, and the median of the ratio. What a transport does not report is a dash.
///
/// Ctrl-C ends the run early. The report then has the figures up to that moment, and is marked as partial.
///
/// Exit code 0: complete. 1: some connections failed or the run was interrupted; the report has the reason. 2: an option is wrong or the
/// server cannot be reached, and there is no report.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  tiderace perf client 192.0.2.1:4433 --pin FINGERPRINT
  tiderace perf client localhost:4433 --insecure --bytes '1 GB' --upload --streams 4
  tiderace perf client localhost:4433 --insecure --upload --interval '1 s' --csv
  tiderace perf client localhost:4433 --insecure --handshakes 1000 --kinds new,resumed,0-rtt
  tiderace perf client localhost:4433 --insecure --handshakes 300 --key-exchange x25519
  tiderace perf client localhost:4433 --insecure --datagrams --rate 20M --size 1100 --upload --download
  tiderace perf client localhost:4433 --insecure --prometheus > /var/lib/node_exporter/perf.prom
  tiderace perf client localhost:4433 --insecure --connections 4 --duration '1 min' --screen
  tiderace perf client localhost:4433 --insecure --upload --live --prometheus=127.0.0.1:9465
  tiderace perf client localhost:4433 --insecure --soak '6 h' --json > soak.json
  tiderace perf client 192.0.2.1:4433 --pin FINGERPRINT --tcp --cc bbr --upload -i '1 s'
  tiderace perf client 192.0.2.1:4433 --pin FINGERPRINT --beside-tcp --rounds 6 --duration '5 s'")]
pub(super) struct Args {
    /// Server to measure with
    #[arg(value_name = "HOST:PORT")]
    pub(super) server: String,
    /// Transfer this many bytes in each direction, over all connections and streams together
    #[arg(long, value_name = "SIZE", conflicts_with = "duration")]
    pub(super) bytes: Option<DataSize>,
    /// Transfer for this time [default: 10 s, unless --bytes or --handshakes is given]
    #[arg(long, value_name = "TIME", value_parser = duration_text::parse)]
    pub(super) duration: Option<Duration>,
    /// Send to the server; with --download, both directions at once
    #[arg(long)]
    pub(super) upload: bool,
    /// Receive from the server (the default)
    #[arg(long)]
    pub(super) download: bool,
    /// Connections that transfer at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) connections: u32,
    /// Streams of each connection, in each direction
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(super) streams: u32,
    /// Open this many connections of each kind for one request each, one after another, before the transfer
    #[arg(long, value_name = "N")]
    pub(super) handshakes: Option<NonZeroU32>,
    /// Kinds of these connections: full handshakes, sessions that are resumed, requests as early data
    #[arg(
        long,
        value_name = "KIND",
        value_enum,
        value_delimiter = ',',
        default_value = "new",
        requires = "handshakes"
    )]
    pub(super) kinds: Vec<Kind>,
    /// Key exchanges that the client offers, the preferred one first [default: all, in this order]
    #[arg(long, value_name = "NAME,...", value_enum, value_delimiter = ',')]
    key_exchange: Vec<Exchange>,
    /// Use the kernel's TCP with TLS 1.3 in place of QUIC; the server needs this option too. Each direction has its own connections
    #[arg(long, conflicts_with_all = ["streams", "datagrams", "mtu", "fec", "ack_frequency", "loss_tolerance", "key_exchange", "qlog", "pcapng"])]
    pub(super) tcp: bool,
    /// Measure QUIC and the kernel's TCP in turns, and print both side by side, with the CPU time of both ends; the server needs this option too
    #[arg(long, conflicts_with_all = ["tcp", "streams", "datagrams", "handshakes", "key_exchange", "interval", "csv", "soak", "qlog", "pcapng"])]
    pub(super) beside_tcp: bool,
    /// With --beside-tcp: transfers of each; QUIC is the first of every second pair
    #[arg(long, value_name = "N", default_value_t = 3, requires = "beside_tcp", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) rounds: u32,
    /// With --beside-tcp: the kernel's congestion control of what this end sends [default: the kernel's]
    #[arg(long, value_name = "NAME", requires = "beside_tcp")]
    pub(super) tcp_cc: Option<String>,
    /// Send unreliable datagrams (RFC 9221) at a fixed rate in place of streams; measures loss, reordering, delay and jitter
    #[arg(long, requires = "pace", conflicts_with_all = ["bytes", "connections", "streams"])]
    pub(super) datagrams: bool,
    /// Rate of the payload of datagrams, such as 20M, in bit/s
    #[arg(long, value_name = "RATE", requires = "datagrams", group = "pace")]
    pub(super) rate: Option<Bitrate>,
    /// Datagrams per second and direction, in place of --rate
    #[arg(long, value_name = "N", requires = "datagrams", group = "pace")]
    pub(super) packet_rate: Option<u32>,
    /// Payload of each datagram, 16 bytes or more
    #[arg(long, value_name = "SIZE", default_value = "1000", requires = "datagrams")]
    pub(super) size: DataSize,
    /// Wait for a handshake for at most this time
    #[arg(long, value_name = "TIME", default_value = "5 s", value_parser = duration_text::parse)]
    pub(super) timeout: Duration,
    /// Verify the server's certificate for this name [default: HOST]
    #[arg(long, value_name = "NAME")]
    pub(super) server_name: Option<String>,
    /// Print a line for each interval of this length during the transfer, such as '1 s'
    #[arg(short, long, value_name = "TIME", value_parser = duration_text::parse)]
    pub(super) interval: Option<Duration>,
    /// Print comma-separated values: a header, a row for each interval and direction, and a row for each whole direction
    #[arg(long, conflicts_with = "json")]
    pub(super) csv: bool,
    /// Print the result as JSON, with the lines of --interval in `intervals`
    #[arg(long)]
    pub(super) json: bool,
    /// Print the result as metrics for Prometheus, such as a file for node_exporter's textfile collector; with =ADDRESS:PORT serve metrics
    /// there while the transfer runs
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, require_equals = true)]
    pub(super) prometheus: Option<Option<SocketAddr>>,
    /// Print goodput, RTT, window, losses, repair and state of each connection every 5 s, to the standard error
    #[arg(long, conflicts_with_all = ["interval", "csv"])]
    pub(super) live: bool,
    /// Show the same on a screen of its own during the transfer, with charts; the last line has the keys. Without a terminal, or with --json,
    /// lines as with --live
    #[arg(long, conflicts_with_all = ["live", "interval", "csv"])]
    pub(super) screen: bool,
    /// Transfer for so long, such as '6 h', with figures and memory over time, and say whether the memory of this end grows
    #[arg(long, value_name = "TIME", value_parser = duration_text::parse, conflicts_with_all = ["bytes", "duration", "datagrams"])]
    pub(super) soak: Option<Duration>,
    #[command(flatten)]
    pub(super) trust: TrustArgs,
    #[command(flatten)]
    pub(super) end: EndArgs,
}

/// Shortest interval: lines would cost more than the transfer.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// Longest time that may be given.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Amount of data.
#[derive(Clone, Copy)]
pub(super) enum Volume {
    /// Number of bytes in each direction.
    Bytes(u64),
    /// As many as there is time for.
    For(Duration),
}

/// Name of a key exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Exchange {
    /// X25519 and ML-KEM-768, safe against quantum computers; the ClientHello takes two datagrams
    #[value(name = "x25519mlkem768")]
    Hybrid,
    /// X25519
    #[value(name = "x25519")]
    X25519,
    /// NIST P-256
    #[value(name = "secp256r1")]
    P256,
    /// NIST P-384
    #[value(name = "secp384r1")]
    P384,
}

impl Exchange {
    fn of_tls(self) -> KeyExchange {
        match self {
            Self::Hybrid => KeyExchange::X25519MlKem768,
            Self::X25519 => KeyExchange::X25519,
            Self::P256 => KeyExchange::Secp256r1,
            Self::P384 => KeyExchange::Secp384r1,
        }
    }
}

impl Args {
    /// Amount of data; `None` without a transfer.
    pub(super) fn volume(&self) -> Option<Volume> {
        match (self.bytes, self.soak.or(self.duration)) {
            (Some(bytes), _) => Some(Volume::Bytes(bytes.as_bytes())),
            (None, Some(span)) => Some(Volume::For(span)),
            (None, None) => {
                (self.handshakes.is_none() || self.datagrams).then_some(Volume::For(Duration::from_secs(10)))
            }
        }
    }

    /// Congestion control of the kernel for what this end sends.
    pub(super) fn kernel_congestion(&self) -> Option<&str> {
        if self.beside_tcp { self.tcp_cc.as_deref() } else { self.end.cc.as_deref() }
    }

    /// Plan of datagrams, if they are to be sent.
    pub(super) fn plan(&self) -> Option<Plan> {
        let (Some(rate), Some(Volume::For(span)), true) = (self.payload_rate(), self.volume(), self.datagrams) else {
            return None;
        };
        Some(Plan { rate, size: self.size.as_bytes(), span })
    }

    /// Key exchanges to offer, the preferred one first.
    pub(super) fn key_exchanges(&self) -> Vec<KeyExchange> {
        match self.key_exchange.as_slice() {
            [] => KeyExchange::ALL.to_vec(),
            chosen => chosen.iter().map(|exchange| exchange.of_tls()).collect(),
        }
    }

    /// Rate of the payload of datagrams in bit/s.
    fn payload_rate(&self) -> Option<u64> {
        let by_packets = |rate| u64::from(rate).saturating_mul(self.size.as_bytes()).saturating_mul(8);
        self.rate.map(Bitrate::as_bps).or_else(|| self.packet_rate.map(by_packets))
    }

    /// Directions of the transfer: to the server, and from it.
    pub(super) fn directions(&self) -> (bool, bool) {
        (self.upload, self.download || !self.upload)
    }

    /// Form of the output.
    pub(super) fn form(&self) -> Form {
        match (self.json, self.csv, self.prometheus == Some(None)) {
            (true, ..) => Form::Json,
            (_, true, _) => Form::Csv,
            (.., true) => Form::Prometheus,
            _ => Form::Text,
        }
    }

    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.bytes.is_some_and(|bytes| bytes.as_bytes() == 0) || self.duration.is_some_and(|span| span.is_zero()) {
            return Err(Failure::new("a transfer of nothing").hint("give `--bytes` or `--duration` more than 0"));
        }
        if self.prometheus == Some(None) && (self.json || self.csv || self.interval.is_some()) {
            return Err(Failure::new(
                "`--prometheus` alone is a form of the output, and `--json`, `--csv` and `--interval` are others",
            )
            .hint("`--prometheus=ADDRESS:PORT` serves metrics meanwhile, beside any form"));
        }
        if self.beside_tcp && self.prometheus == Some(None) {
            return Err(Failure::new("`--prometheus` alone prints one transfer, and `--beside-tcp` has several")
                .hint("`--prometheus=ADDRESS:PORT` serves metrics meanwhile; `--json` prints all of them"));
        }
        if self.soak.is_some_and(|span| span < Duration::from_secs(1)) {
            return Err(Failure::new("`--soak` is shorter than a second").hint("give for example `--soak '6 h'`"));
        }
        if self.timeout.is_zero() {
            return Err(Failure::new("no handshake is complete within no time").hint("give `--timeout` more than 0"));
        }
        if self.interval.is_some_and(|span| span < SHORTEST_INTERVAL) {
            return Err(Failure::new("`--interval` is shorter than 10 ms").hint("give for example `--interval '1 s'`"));
        }
        if self.interval.is_some() && self.volume().is_none() {
            return Err(Failure::new("`--interval` is about a transfer, and `--handshakes` alone has none")
                .hint("add `--duration '10 s'` or `--bytes SIZE`"));
        }
        if self.rate.is_some_and(|rate| rate.as_bps() == 0) || self.packet_rate == Some(0) {
            return Err(Failure::new("datagrams at a rate of 0 are none")
                .hint("give for example `--rate 20M` or `--packet-rate 500`"));
        }
        if self.datagrams && !(SMALLEST..=self.end.mtu.into()).contains(&self.size.as_bytes()) {
            return Err(Failure::new(format_args!(
                "a datagram of {} bytes has no room for its number and time, or none in a packet of {} bytes",
                self.size.as_bytes(),
                self.end.mtu
            ))
            .hint(format_args!(
                "give `--size` at least {SMALLEST}, and no more than packets carry: 1000 fit on every path"
            )));
        }
        if self.tcp && self.kinds.contains(&Kind::EarlyData) {
            return Err(Failure::new("`--tcp` has no early data: its kinds are `new` and `resumed`")
                .hint("measure 0-RTT without `--tcp`"));
        }
        let spans = [
            ("--duration", self.duration),
            ("--soak", self.soak),
            ("--timeout", Some(self.timeout)),
            ("--interval", self.interval),
        ];
        for (option, span) in spans {
            if span.is_some_and(|span| span > LONGEST) {
                let message = format_args!("`{option}` is longer than 30 days").to_string();
                return Err(Failure::new(message).hint("a time has a unit, such as `10 s` or `500 ms`"));
            }
        }
        if self.end.cc.is_some() && !self.upload {
            eprintln!("note: --cc is for what the client sends, which is next to nothing without --upload;");
            eprintln!("note: a download goes by the server's: `tiderace perf server --cc …`");
        }
        Ok(())
    }
}
