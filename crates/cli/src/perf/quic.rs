//! Client over QUIC: connections, transfers on their streams, and the statistics of both ends.

use std::{sync::Arc, time::Duration};

use tiderace::{ClientConfig, Connection, Endpoint, EndpointOptions, Stats, transport::fec::FecPolicy};
use tokio::{task::JoinSet, time::Instant};

use super::{
    client::Ran,
    cpu::process_time,
    fec::{self, Counts},
    interval::{CSV_HEADER, Intervals, Snapshot},
    live::{Live, Together},
    options::{Args, Volume},
    outcome::{Outcome, Tally},
    progress::{Goal, Moved, Progress},
    protocol::{ALPN, SenderReport},
    reach::{Peer, Reached},
    report::{Cpu, Sender},
    requests::{self, Kind},
    samples::RttSamples,
    transfer::{self, Delivered, End, Limit, TransferError, part},
};
use crate::{
    address,
    failure::Failure,
    stdout::write_out,
    stop::Stop,
    trust::{self, Sessions},
};

/// A connection on which data is transferred.
pub(super) struct Line {
    pub(super) connection: Connection,
    pub(super) rtt: RttSamples,
}

impl Line {
    fn new(connection: Connection) -> Self {
        let rtt = RttSamples::new();
        connection.set_observer(Box::new(rtt.clone()));
        Self { connection, rtt }
    }
}

/// Runs the client over QUIC.
pub(super) async fn run(args: &Args, together: Option<&Together>) -> Result<Ran, Failure> {
    let mut profile = args.end.profile()?;
    profile.handshake_timeout = args.timeout;
    let congestion = profile.congestion.name().to_owned();
    let profile = Arc::new(profile);
    let target = address::resolve(&args.server)?;
    let watched = args.end.watch()?;
    let name = args.server_name.clone().unwrap_or(target.host);
    let exchanges = args.key_exchanges();
    let peer = |sessions| {
        let (tls, tickets) = trust::client(&args.trust, ALPN, sessions, &exchanges, watched.keys())?;
        let mut config = ClientConfig::new(Arc::new(tls), profile.clone());
        config.observe = watched.observer();
        Ok::<_, Failure>(Peer { address: target.address, name: name.clone(), config, tickets })
    };
    let peers = [peer(Sessions::New)?, peer(Sessions::Resumed)?, peer(Sessions::EarlyData)?];
    // The system chooses address and port.
    let any: std::net::SocketAddr =
        if target.address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let endpoint = watched
        .endpoint(any, EndpointOptions::default())
        .map_err(|error| Failure::new(format_args!("cannot open a socket: {}", address::plain(&error))))?;
    let mut run = Run { args, together, peers, endpoint, tally: Tally::default(), stop: Stop::default() };
    let outcome = run.all().await?;
    let Run { endpoint, tally, .. } = run;
    endpoint.close(0, b"done");
    // CONNECTION_CLOSE is sent at once; the rest of the wait is for packets that come late.
    let _ = tokio::time::timeout(Duration::from_millis(100), endpoint.wait_idle()).await;
    watched.finish();
    Ok(Ran { transport: "quic", server: target.address, congestion, tally, outcome })
}

/// A client's run over QUIC.
pub(super) struct Run<'a> {
    pub(super) args: &'a Args,
    /// The other runs beside which this is one.
    together: Option<&'a Together>,
    /// For connections of each kind: new, resumed, with early data.
    peers: [Peer; 3],
    endpoint: Endpoint,
    pub(super) tally: Tally,
    pub(super) stop: Stop,
}

impl Run<'_> {
    /// Runs all measurements that were asked for, in order.
    async fn all(&mut self) -> Result<Outcome, Failure> {
        let first = self.peers[0].reach(&self.endpoint).await?;
        // Before this there is nothing to report, and Ctrl-C ends the program.
        self.stop = match self.together {
            Some(together) => together.stop.clone(),
            None => Stop::on_interrupt()?,
        };
        let Some(volume) = self.args.volume() else {
            let requests = self.requests(Some(first)).await;
            return Ok(Outcome { requests, is_partial: self.stop.is_asked(), ..Outcome::default() });
        };
        self.tally.established(first.handshake);
        let requests = self.requests(None).await;
        let first = Line::new(first.connection);
        if let Some(plan) = self.args.plan() {
            return Ok(Outcome { requests, ..self.datagrams(plan, first).await? });
        }
        let lines = self.connect_others(first).await;
        Ok(Outcome { requests, ..self.transfer(volume, lines).await? })
    }

    /// Connections for one request each, if they are asked for. `first` is one that there is already.
    async fn requests(&mut self, first: Option<Reached>) -> Vec<requests::Connections> {
        let Some(count) = self.args.handshakes else { return Vec::new() };
        let first = match first {
            Some(first) if self.args.kinds.contains(&Kind::New) => {
                Some(first.exchange(&self.peers[0], Kind::New).await)
            }
            _ => None,
        };
        let connections = Connections { peers: &self.peers, endpoint: &self.endpoint };
        requests::measure(&connections, &self.args.kinds, count.get(), first, &mut self.tally, &self.stop).await
    }

    async fn connect_others(&mut self, first: Line) -> Vec<Line> {
        let mut lines = vec![first];
        let others = (1..self.args.connections).map(|_| {
            let peer = &self.peers[0];
            let connecting = self.endpoint.connect(&peer.config, peer.address, &peer.name);
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
        let (upload, download) = self.args.directions();
        let per_direction = lines.len() as u64 * u64::from(self.args.streams);
        let goal = match volume {
            Volume::Bytes(bytes) => Goal::Bytes(bytes.saturating_mul(u64::from(upload) + u64::from(download))),
            Volume::For(span) => Goal::After(span),
        };
        let mut live = match self.together {
            Some(together) => Live::within(together),
            None => Live::start(self.args, volume, &self.stop)?,
        };
        let server_before = self.server_cpu(&lines).await;
        let (moved, cpu_before) = (Moved::default(), process_time());
        let [received, sent] = [moved.part(), moved.part()];
        live.follow(upload, lines.iter().map(|line| (&line.connection, &line.rtt)));
        // Lines of intervals show the progress themselves.
        let bar = (self.args.interval.is_none() && !live.shows()).then(|| Progress::start(goal, moved.clone()));
        if self.args.csv {
            write_out(CSV_HEADER)?;
        }
        let intervals = self.args.interval.map(|period| {
            let watched = lines.iter().map(|line| (line.connection.clone(), line.rtt.clone())).collect::<Vec<_>>();
            let received = download.then(|| received.clone());
            Intervals::start(period, self.args.form(), "quic", move || {
                look(&watched, received.as_ref(), upload, new_bytes)
            })
        });
        let now = Instant::now();
        let mut tasks = JoinSet::new();
        for (place, line) in lines.iter().enumerate() {
            for stream in 0..self.args.streams {
                let number = place as u64 * u64::from(self.args.streams) + u64::from(stream);
                let limit = match volume {
                    Volume::Bytes(bytes) => Limit::Bytes(part(bytes, number, per_direction)),
                    Volume::For(span) => Limit::At(now + span),
                };
                if matches!(limit, Limit::Bytes(0)) {
                    continue;
                }
                for up in [true, false] {
                    if if up { upload } else { download } {
                        let (connection, moved) = (line.connection.clone(), if up { &sent } else { &received }.clone());
                        let end = End { limit, stop: self.stop.clone() };
                        tasks.spawn(async move {
                            let delivered = if up {
                                transfer::upload(&connection, &end, &moved).await
                            } else {
                                transfer::download(&connection, &end, &moved).await
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
        let soak = live.finish().await;
        let is_partial = self.stop.is_asked();
        let cpu = cpu_before.zip(process_time()).map(|(before, after)| after.saturating_sub(before));
        let server_after = self.server_cpu(&lines).await;
        let server_cpu = server_before.zip(server_after).map(|(before, after)| after.saturating_sub(before));
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
            server_cpu: server_cpu.map(|cpu| Cpu::new(cpu, sums[0].bytes + sums[1].bytes)),
            intervals,
            soak,
            is_partial,
            ..Outcome::default()
        })
    }

    /// CPU time of the server's process so far, of a run beside others.
    async fn server_cpu(&self, lines: &[Line]) -> Option<Duration> {
        self.together?;
        transfer::cpu_time(&lines.first()?.connection).await.ok()?
    }

    /// Asks the sending ends for their counters.
    pub(super) async fn ask(
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

/// Connections for one request each.
struct Connections<'a> {
    peers: &'a [Peer; 3],
    endpoint: &'a Endpoint,
}

impl requests::Requester for Connections<'_> {
    async fn exchange(&self, kind: Kind) -> Result<requests::Exchange, String> {
        let peer = match kind {
            Kind::New => &self.peers[0],
            Kind::Resumed => &self.peers[1],
            Kind::EarlyData => &self.peers[2],
        };
        match kind {
            Kind::New | Kind::Resumed => {
                let reached = peer.connect(self.endpoint).await.map_err(|error| error.to_string())?;
                reached.exchange(peer, kind).await
            }
            Kind::EarlyData => peer.exchange_early(self.endpoint).await,
        }
    }
}

/// Bytes of streams that were sent, each counted once.
fn new_bytes(stats: &Stats) -> u64 {
    stats.stream_bytes_sent.saturating_sub(stats.stream_bytes_retransmitted)
}

/// Counters of these connections at the moment; `sent` is what an upload counts.
pub(super) fn look(
    lines: &[(Connection, RttSamples)],
    received: Option<&Moved>,
    upload: bool,
    sent: fn(&Stats) -> u64,
) -> Snapshot {
    let stats: Vec<_> = lines.iter().filter_map(|(connection, _)| connection.stats()).collect();
    let sum = |of: fn(&Stats) -> u64| upload.then(|| stats.iter().map(of).sum());
    let count = u32::try_from(stats.len()).unwrap_or(u32::MAX);
    let rtts = stats.iter().map(|stats| Duration::from_nanos(stats.smoothed_rtt)).sum::<Duration>();
    Snapshot {
        received: received.map(Moved::get),
        sent: sum(sent),
        rtt_samples: lines.iter().map(|(_, rtt)| rtt.seen()).sum(),
        rtt: rtts.checked_div(count),
        cwnd: sum(|stats| stats.congestion_window),
        lost: sum(|stats| stats.packets_lost),
        retransmitted: None,
    }
}
