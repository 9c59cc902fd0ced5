//! `perf client`: opens connections, transfers, and says what it found.
//!
//! In order: the first connection, without which there is no run; handshakes alone, if asked for; the other connections
//! of the transfer; the transfer on all of them at once; what the server knows of it; the report.

use std::{collections::BTreeMap, num::NonZeroU32, process::ExitCode, sync::Arc, time::Duration};

use clap::Parser;
use tiderace::{
    ClientConfig, Connection, Endpoint, Stats,
    transport::fec::FecPolicy,
    units::{DataSize, duration_text},
};
use tokio::{task::JoinSet, time::Instant};

use super::{
    EndArgs,
    cpu::process_time,
    fec::{self, Counts},
    interval::{CSV_HEADER, Form, Interval, Intervals, Snapshot},
    missing_qlog,
    progress::{Goal, Moved, Progress},
    protocol::SenderReport,
    reach::Peer,
    report::{Connections, Cpu, Report, Sender, share, summary},
    samples::RttSamples,
    transfer::{self, Delivered, End, TransferError},
    trust::{self, TrustArgs},
};
use crate::{
    address,
    failure::{Failure, UNSOUND},
    printable::printable,
    stdout::{write_json_line, write_out},
};

/// Measure connections to a `tiderace perf server`.
///
/// Goodput counts bytes of the application once, at the end that receives them. RTT and loss are those of the end that
/// sends. Percentiles need enough samples: 60 for p95, 300 for p99.
///
/// With --interval a line for each direction says what this interval has moved: bytes received, or bytes sent without those sent
/// again. RTT stands there when it was measured in the interval; cwnd and losses are known of what the client sends (--upload).
///
/// Exit code 0: everything that was asked for was done. 1: some connections failed, and the report says how. 2: an
/// option is wrong or the server cannot be reached, and nothing is reported.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  tiderace perf client 192.0.2.1:4433 --pin FINGERPRINT
  tiderace perf client localhost:4433 --insecure --bytes '1 GB' --upload --streams 4
  tiderace perf client localhost:4433 --insecure --upload --interval '1 s' --csv
  tiderace perf client localhost:4433 --insecure --handshakes 1000 --json")]
pub(super) struct Args {
    /// The server
    #[arg(value_name = "HOST:PORT")]
    server: String,
    /// Transfer so many bytes in each direction, over all connections and streams together
    #[arg(long, value_name = "SIZE", conflicts_with = "duration")]
    bytes: Option<DataSize>,
    /// Transfer for so long [default: 10 s, unless --bytes or --handshakes is given]
    #[arg(long, value_name = "TIME", value_parser = duration_text::parse)]
    duration: Option<Duration>,
    /// Send to the server; with --download too, both at once
    #[arg(long)]
    upload: bool,
    /// Receive from the server; this is the default
    #[arg(long)]
    download: bool,
    /// Connections that transfer at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Streams of each connection, in each direction
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=500))]
    streams: u32,
    /// Complete so many handshakes, one after another, before the transfer
    #[arg(long, value_name = "N")]
    handshakes: Option<NonZeroU32>,
    /// Time that a handshake may take
    #[arg(long, value_name = "TIME", default_value = "5 s", value_parser = duration_text::parse)]
    timeout: Duration,
    /// Name that the server's certificate has to be for [default: HOST]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    /// Print a line each so often while the transfer runs, such as '1 s'
    #[arg(short, long, value_name = "TIME", value_parser = duration_text::parse)]
    interval: Option<Duration>,
    /// Print comma-separated values: a header, a row for each interval and direction, and a row for each whole direction
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print the result as JSON, with the lines of --interval in `intervals`
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    end: EndArgs,
}

/// Shortest interval: lines would cost more than the transfer.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// Longest time that may be given.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Amount of data.
#[derive(Clone, Copy)]
enum Volume {
    /// So many bytes in each direction.
    Bytes(u64),
    /// As many as there is time for.
    For(Duration),
}

impl Args {
    /// Amount of data; `None` without a transfer.
    fn volume(&self) -> Option<Volume> {
        match (self.bytes, self.duration) {
            (Some(bytes), _) => Some(Volume::Bytes(bytes.as_bytes())),
            (None, Some(span)) => Some(Volume::For(span)),
            (None, None) => self.handshakes.is_none().then_some(Volume::For(Duration::from_secs(10))),
        }
    }

    /// Form of the output.
    fn form(&self) -> Form {
        match (self.json, self.csv) {
            (true, _) => Form::Json,
            (_, true) => Form::Csv,
            _ => Form::Text,
        }
    }

    fn check(&self) -> Result<(), Failure> {
        if self.bytes.is_some_and(|bytes| bytes.as_bytes() == 0) || self.duration.is_some_and(|span| span.is_zero()) {
            return Err(Failure::new("a transfer of nothing").hint("give `--bytes` or `--duration` more than 0"));
        }
        if self.timeout.is_zero() {
            return Err(Failure::new("no handshake is complete within no time").hint("give `--timeout` more than 0"));
        }
        if self.interval.is_some_and(|span| span < SHORTEST_INTERVAL) {
            return Err(Failure::new("`--interval` is shorter than 10 ms").hint("give for example `--interval '1 s'`"));
        }
        if (self.interval.is_some() || self.csv) && self.volume().is_none() {
            return Err(Failure::new(
                "`--interval` and `--csv` are about a transfer, and `--handshakes` alone has none",
            )
            .hint("add `--duration '10 s'` or `--bytes SIZE`"));
        }
        let spans = [("--duration", self.duration), ("--timeout", Some(self.timeout)), ("--interval", self.interval)];
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

/// Runs the client.
pub(super) async fn run(args: Args) -> Result<ExitCode, Failure> {
    let mut profile = args.end.profile()?;
    args.check()?;
    profile.handshake_timeout = args.timeout;
    let congestion = profile.congestion.name();
    let target = address::resolve(&args.server)?;
    let tls = trust::client(&args.trust)?;
    let qlog = args.end.qlog()?;
    let mut config = ClientConfig::new(Arc::new(tls), Arc::new(profile));
    config.observe = qlog.clone().map(|directory| directory as _);
    let peer = Peer { address: target.address, name: args.server_name.clone().unwrap_or(target.host), config };
    let endpoint = Endpoint::client_for(peer.address)
        .map_err(|error| Failure::new(format_args!("cannot open a socket: {}", address::plain(&error))))?;

    let mut run = Run { args: &args, peer, endpoint, tally: Tally::default() };
    let outcome = run.all().await?;
    let Run { endpoint, tally, peer, .. } = run;
    endpoint.close(0, b"done");
    // The goodbye is sent at once; the rest of the wait is for packets that come late.
    let _ = tokio::time::timeout(Duration::from_millis(100), endpoint.wait_idle()).await;
    missing_qlog(qlog.as_deref());

    let success_share = share(tally.completed.into(), tally.attempted.into()).unwrap_or_default();
    let sound = tally.errors.is_empty();
    let report = Report {
        tiderace_version: env!("CARGO_PKG_VERSION"),
        server: peer.address.to_string(),
        client_congestion_control: congestion,
        client_udp_payload_bytes: args.end.mtu,
        connections: Connections {
            attempted: tally.attempted,
            established: tally.established,
            completed: tally.completed,
            success_share,
        },
        streams_per_connection: args.streams,
        handshake: summary(&tally.handshakes),
        download: outcome.download.map(Into::into),
        upload: outcome.upload.map(Into::into),
        sender: outcome.sender,
        fec: outcome.fec,
        cpu: outcome.cpu,
        intervals: outcome.intervals,
        errors: tally.errors,
    };
    match args.form() {
        Form::Json => write_json_line(&report.json())?,
        Form::Text => write_out(&report.text())?,
        Form::Csv => {
            write_out(&report.csv())?;
            for (message, count) in &report.errors {
                eprintln!("error: {count} × {}", printable(message));
            }
        }
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}

/// Outcome of the connections so far.
#[derive(Default)]
struct Tally {
    attempted: u32,
    established: u32,
    completed: u32,
    handshakes: Vec<Duration>,
    errors: BTreeMap<String, u32>,
}

impl Tally {
    fn established(&mut self, handshake: Duration) {
        self.attempted += 1;
        self.established += 1;
        self.handshakes.push(handshake);
    }

    fn error(&mut self, error: &impl ToString) {
        *self.errors.entry(error.to_string()).or_default() += 1;
    }
}

/// Result of the transfer.
#[derive(Default)]
struct Outcome {
    download: Option<Delivered>,
    upload: Option<Delivered>,
    sender: Option<Sender>,
    fec: Vec<fec::Direction>,
    cpu: Option<Cpu>,
    intervals: Vec<Interval>,
}

/// A connection on which data is transferred.
struct Line {
    connection: Connection,
    rtt: RttSamples,
}

impl Line {
    fn new(connection: Connection) -> Self {
        let rtt = RttSamples::new();
        connection.set_observer(Box::new(rtt.clone()));
        Self { connection, rtt }
    }
}

struct Run<'a> {
    args: &'a Args,
    peer: Peer,
    endpoint: Endpoint,
    tally: Tally,
}

impl Run<'_> {
    async fn all(&mut self) -> Result<Outcome, Failure> {
        let (first, handshake) = self.peer.reach(&self.endpoint).await?;
        self.tally.established(handshake);
        let volume = self.args.volume();
        if let Some(count) = self.args.handshakes {
            // The first one counts, unless it is needed for the transfer.
            let done = u32::from(volume.is_none());
            if volume.is_none() {
                self.confirm(&first).await;
            }
            self.handshakes(count.get() - done).await;
        }
        match volume {
            Some(volume) => {
                let lines = self.connect_others(Line::new(first)).await;
                self.transfer(volume, lines).await
            }
            None => Ok(Outcome::default()),
        }
    }

    /// Connections that are for nothing but their handshake.
    async fn handshakes(&mut self, count: u32) {
        let made = Moved::default();
        let bar = Progress::start(Goal::Handshakes(count), made.clone());
        for _ in 0..count {
            match self.peer.connect(&self.endpoint).await {
                Ok((connection, handshake)) => {
                    self.tally.established(handshake);
                    self.confirm(&connection).await;
                    connection.close(0, b"");
                }
                Err(error) => {
                    self.tally.attempted += 1;
                    self.tally.error(&error);
                }
            }
            made.add(1);
        }
        drop(bar);
    }

    /// Finds out whether the connection is good for anything: a client's handshake is complete before the server's is.
    async fn confirm(&mut self, connection: &Connection) {
        match transfer::nothing(connection).await {
            Ok(()) => self.tally.completed += 1,
            Err(error) => self.tally.error(&error),
        }
    }

    async fn connect_others(&mut self, first: Line) -> Vec<Line> {
        let mut lines = vec![first];
        let others = (1..self.args.connections).map(|_| {
            let connecting = self.endpoint.connect(&self.peer.config, self.peer.address, &self.peer.name);
            let started = Instant::now();
            async move { Ok::<_, tiderace::ConnectError>((connecting?.await?, started.elapsed())) }
        });
        let mut others: JoinSet<_> = others.collect();
        while let Some(joined) = others.join_next().await {
            match joined.expect("connecting does not panic, and nobody cancels it") {
                Ok((connection, handshake)) => {
                    self.tally.established(handshake);
                    lines.push(Line::new(connection));
                }
                Err(error) => {
                    self.tally.attempted += 1;
                    self.tally.error(&error);
                }
            }
        }
        lines
    }

    /// The transfer, on all connections at the same time.
    async fn transfer(&mut self, volume: Volume, lines: Vec<Line>) -> Result<Outcome, Failure> {
        let (upload, download) = (self.args.upload, self.args.download || !self.args.upload);
        let per_direction = lines.len() as u64 * u64::from(self.args.streams);
        let goal = match volume {
            Volume::Bytes(bytes) => Goal::Bytes(bytes.saturating_mul(u64::from(upload) + u64::from(download))),
            Volume::For(span) => Goal::After(span),
        };
        let (moved, cpu_before) = (Moved::default(), process_time());
        let [received, sent] = [moved.part(), moved.part()];
        // Lines of intervals show the progress themselves.
        let bar = self.args.interval.is_none().then(|| Progress::start(goal, moved.clone()));
        if self.args.csv {
            write_out(CSV_HEADER)?;
        }
        let intervals = self.args.interval.map(|period| {
            let watched = lines.iter().map(|line| (line.connection.clone(), line.rtt.clone())).collect::<Vec<_>>();
            let received = download.then(|| received.clone());
            Intervals::start(period, self.args.form(), "quic", move || look(&watched, received.as_ref(), upload))
        });
        let now = Instant::now();
        let mut tasks = JoinSet::new();
        for (place, line) in lines.iter().enumerate() {
            for stream in 0..self.args.streams {
                let number = place as u64 * u64::from(self.args.streams) + u64::from(stream);
                let end = match volume {
                    Volume::Bytes(bytes) => End::Bytes(part(bytes, number, per_direction)),
                    Volume::For(span) => End::At(now + span),
                };
                if matches!(end, End::Bytes(0)) {
                    continue;
                }
                for up in [true, false] {
                    if if up { upload } else { download } {
                        let (connection, moved) = (line.connection.clone(), if up { &sent } else { &received }.clone());
                        tasks.spawn(async move {
                            let delivered = if up {
                                transfer::upload(&connection, end, &moved).await
                            } else {
                                transfer::download(&connection, end, &moved).await
                            };
                            (place, up, delivered)
                        });
                    }
                }
            }
        }
        let (mut failed, mut sums) = (vec![None; lines.len()], [Delivered::default(); 2]);
        while let Some(joined) = tasks.join_next().await {
            let (place, up, delivered) = joined.expect("transfers do not panic, and nobody cancels them");
            match delivered {
                Ok(delivered) => sums[usize::from(up)] = sums[usize::from(up)].with(delivered),
                Err(error) => failed[place] = failed[place].take().or(Some(error)),
            }
        }
        drop(bar);
        let cpu = cpu_before.zip(process_time()).map(|(before, after)| after.saturating_sub(before));
        let intervals = match intervals {
            Some(intervals) => intervals.finish().await?,
            None => Vec::new(),
        };

        let (sender, fec) = self.ask(upload, download, &lines, &mut failed).await;
        for error in &failed {
            match error {
                None => self.tally.completed += 1,
                Some(error) => self.tally.error(error),
            }
        }
        Ok(Outcome {
            download: download.then_some(sums[0]),
            upload: upload.then_some(sums[1]),
            sender,
            fec,
            cpu: cpu.map(|cpu| Cpu::new(cpu, sums[0].bytes + sums[1].bytes)),
            intervals,
        })
    }

    /// Asks the sending ends for their counters.
    async fn ask(
        &self,
        upload: bool,
        download: bool,
        lines: &[Line],
        failed: &mut [Option<TransferError>],
    ) -> (Option<Sender>, Vec<fec::Direction>) {
        let mut sum: Option<SenderReport> = None;
        let mut add = |report: SenderReport| match &mut sum {
            Some(sum) => sum.merge(report),
            none => *none = Some(report),
        };
        let (mut here, mut there) = (Counts::default(), Counts::default());
        for (line, failed) in lines.iter().zip(failed) {
            let protected = line.connection.fec() != FecPolicy::Off;
            if let Some(stats) = line.connection.stats() {
                here.merge(&Counts::new(&stats));
                if upload {
                    add(SenderReport::new(&stats, line.rtt.get()));
                }
            }
            if (download || protected) && failed.is_none() {
                match transfer::report(&line.connection).await {
                    Ok(report) => {
                        there.merge(&report.fec);
                        if download {
                            add(report);
                        }
                    }
                    Err(error) => *failed = Some(error),
                }
            }
        }
        let directions = [("download", &there, &here), ("upload", &here, &there)];
        let wanted = directions.into_iter().filter(|(name, ..)| if *name == "upload" { upload } else { download });
        let fec = wanted.filter_map(|(name, from, to)| fec::Direction::new(name, from, to)).collect();
        let end = match (upload, download) {
            (true, true) => "both ends",
            (true, false) => "the client",
            _ => "the server",
        };
        (sum.map(|sum| Sender::new(end, &sum)), fec)
    }
}

/// Counters of these connections at the moment.
fn look(lines: &[(Connection, RttSamples)], received: Option<&Moved>, upload: bool) -> Snapshot {
    let stats: Vec<_> = lines.iter().filter_map(|(connection, _)| connection.stats()).collect();
    let sum = |of: fn(&Stats) -> u64| upload.then(|| stats.iter().map(of).sum());
    let count = u32::try_from(stats.len()).unwrap_or(u32::MAX);
    let rtts = stats.iter().map(|stats| Duration::from_nanos(stats.smoothed_rtt)).sum::<Duration>();
    Snapshot {
        received: received.map(Moved::get),
        sent: sum(|stats| stats.stream_bytes_sent.saturating_sub(stats.stream_bytes_retransmitted)),
        rtt_samples: lines.iter().map(|(_, rtt)| rtt.seen()).sum(),
        rtt: rtts.checked_div(count),
        cwnd: sum(|stats| stats.congestion_window),
        lost: sum(|stats| stats.packets_lost),
    }
}

/// The share of one of `parts` streams in `bytes`: they differ by one at most, and add up.
fn part(bytes: u64, number: u64, parts: u64) -> u64 {
    bytes / parts + u64::from(number < bytes % parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up() {
        for (bytes, parts) in [(10, 3), (2, 5), (1_000_000, 7), (0, 1)] {
            let shares: Vec<u64> = (0..parts).map(|number| part(bytes, number, parts)).collect();
            assert_eq!(shares.iter().sum::<u64>(), bytes);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }
}
