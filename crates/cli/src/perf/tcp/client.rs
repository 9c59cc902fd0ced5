//! Client over TCP: connections, transfers on them, and the statistics of both kernels.

use std::{sync::Arc, time::Duration};

use rustls::pki_types::ServerName;
use tokio::{task::JoinSet, time::Instant};

use super::{
    connect::{Link, Peer},
    io::{self, TcpError, Trailer},
    report::{Direction, TcpReport, sender},
    watch::{Info, Watch},
};
use crate::{
    address,
    failure::Failure,
    perf::{
        client::Ran,
        cpu::process_time,
        interval::{CSV_HEADER, Intervals, Snapshot},
        live::{Live, Together},
        options::{Args, Volume},
        outcome::{Outcome, Tally},
        progress::{Goal, Moved, Progress},
        report::Cpu,
        requests::{self, Kind},
        transfer::{Delivered, End, Limit, part},
    },
    stdout::write_out,
    stop::Stop,
    trust::Sessions,
};

/// Runs the client over TCP.
pub(crate) async fn run(args: &Args, together: Option<&Together>) -> Result<Ran, Failure> {
    if let Some(name) = args.kernel_congestion() {
        super::check_congestion(name)?;
    }
    let target = address::resolve(&args.server)?;
    let name = args.server_name.clone().unwrap_or(target.host);
    let name = ServerName::try_from(name).map_err(|error| {
        Failure::new(format_args!("no certificate can be for this server: {error}"))
            .hint("the name in the certificate is set with `--server-name`")
    })?;
    let peer = |sessions| {
        Ok::<_, Failure>(Peer {
            address: target.address,
            name: name.clone(),
            tls: super::tls::client(&args.trust, sessions)?,
            congestion: args.kernel_congestion().map(str::to_owned),
            patience: args.timeout,
        })
    };
    let peers = [peer(Sessions::New)?, peer(Sessions::Resumed)?];
    let mut run =
        Run { args, together, peers, congestion: String::new(), tally: Tally::default(), stop: Stop::default() };
    let outcome = run.all().await?;
    Ok(Ran { transport: "tcp", server: target.address, congestion: run.congestion, tally: run.tally, outcome })
}

/// A client's run over TCP.
struct Run<'a> {
    args: &'a Args,
    /// The other runs beside which this is one.
    together: Option<&'a Together>,
    /// For connections of each kind: new, resumed.
    peers: [Peer; 2],
    /// Congestion control that the kernel reports.
    congestion: String,
    tally: Tally,
    stop: Stop,
}

/// One direction of one connection that has ended.
struct Ended {
    /// Place among the connections.
    place: usize,
    up: bool,
    delivered: Result<Delivered, TcpError>,
    /// Statistics of the sending end.
    report: Option<TcpReport>,
}

impl Run<'_> {
    /// Runs all measurements that were asked for, in order.
    async fn all(&mut self) -> Result<Outcome, Failure> {
        let first = self.peers[0].reach().await?;
        self.congestion = first.watch.congestion();
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
        let links = self.connect_others(first).await;
        Ok(Outcome { requests, ..self.transfer(volume, links).await? })
    }

    /// Connections for one request each, if they are asked for. `first` is one that there is already.
    async fn requests(&mut self, first: Option<Link>) -> Vec<requests::Connections> {
        let Some(count) = self.args.handshakes else { return Vec::new() };
        let first = match first {
            Some(first) if self.args.kinds.contains(&Kind::New) => Some(first.exchange().await),
            _ => None,
        };
        let requester = Connections(&self.peers);
        requests::measure(&requester, &self.args.kinds, count.get(), first, &mut self.tally, &self.stop).await
    }

    /// Each direction has connections of its own.
    async fn connect_others(&mut self, first: Link) -> Vec<Link> {
        let mut links = vec![first];
        let (upload, download) = self.args.directions();
        let count = self.args.connections * (u32::from(upload) + u32::from(download));
        let others = (1..count).map(|_| {
            let peer = self.peers[0].clone();
            async move { peer.connect().await }
        });
        let mut others: JoinSet<_> = others.collect();
        while let Some(joined) = others.join_next().await {
            match joined.expect("connecting does not panic, and nobody cancels it") {
                Ok(link) => {
                    self.tally.established(link.handshake);
                    links.push(link);
                }
                Err(error) => {
                    self.tally.attempted += 1;
                    self.tally.error(&error);
                }
            }
        }
        links
    }

    /// Connections for the CPU time of the server before and after the transfer, of a run beside others. Both are there before it: a
    /// handshake is no part of the transfer.
    async fn controls(&self) -> Option<(Link, Link)> {
        self.together?;
        Some((self.peers[0].connect().await.ok()?, self.peers[0].connect().await.ok()?))
    }

    /// The transfer, on all connections at the same time.
    async fn transfer(&mut self, volume: Volume, links: Vec<Link>) -> Result<Outcome, Failure> {
        let (upload, download) = self.args.directions();
        let (before, after) = self.controls().await.unzip();
        let server_before = server_cpu(before).await;
        let (moved, cpu_before) = (Moved::default(), process_time());
        let [received, sent] = [moved.part(), moved.part()];
        let goal = match volume {
            Volume::Bytes(bytes) => Goal::Bytes(bytes.saturating_mul(u64::from(upload) + u64::from(download))),
            Volume::For(span) => Goal::After(span),
        };
        let mut live = match self.together {
            Some(together) => Live::within(together),
            None => Live::start(self.args, volume, &self.stop)?,
        };
        // Lines of intervals show the progress themselves.
        let bar = (self.args.interval.is_none() && !live.shows()).then(|| Progress::start(goal, moved.clone()));
        if self.args.csv {
            write_out(CSV_HEADER)?;
        }
        // Every second connection uploads, when both directions are wanted.
        let is_upload = |place: usize| if upload && download { place % 2 == 1 } else { upload };
        let numbers: Vec<u64> = (0..links.len())
            .map(|place| (0..place).filter(|other| is_upload(*other) == is_upload(place)).count() as u64)
            .collect();
        let count = |up: bool| (0..links.len()).filter(|place| is_upload(*place) == up).count() as u64;
        let totals = [count(false), count(true)];
        let senders = links.iter().enumerate().filter(|(place, _)| is_upload(*place));
        let watched: Vec<_> = senders.map(|(_, link)| link.watch.clone()).collect();
        let counted = (download.then(|| received.clone()), upload.then(|| sent.clone()));
        let (seen, counts) = (watched.clone(), counted.clone());
        live.follow_tcp(move || look(&seen, counts.0.as_ref(), counts.1.as_ref()));
        let intervals = self.args.interval.map(|period| {
            let (received, sent) = counted;
            Intervals::start(period, self.args.form(), "tcp", move || look(&watched, received.as_ref(), sent.as_ref()))
        });
        let now = Instant::now();
        let (mut tasks, mut unused) = (JoinSet::new(), Vec::new());
        let mut failed: Vec<Option<TcpError>> = links.iter().map(|_| None).collect();
        for (place, link) in links.into_iter().enumerate() {
            let up = is_upload(place);
            let limit = match volume {
                Volume::Bytes(bytes) => Limit::Bytes(part(bytes, numbers[place], totals[usize::from(up)])),
                Volume::For(span) => Limit::At(now + span),
            };
            if matches!(limit, Limit::Bytes(0)) {
                unused.push(link);
                continue;
            }
            let end = End { limit, stop: self.stop.clone() };
            let moved = if up { &sent } else { &received }.clone();
            tasks.spawn(async move { on_link(link, place, up, &end, &moved).await });
        }
        let (mut sums, mut reports) = ([Delivered::default(); 2], [Vec::new(), Vec::new()]);
        while let Some(joined) = tasks.join_next().await {
            let Ended { place, up, delivered, report } =
                joined.expect("transfers do not panic, and nobody cancels them");
            match delivered {
                Ok(delivered) => sums[usize::from(up)] = sums[usize::from(up)].with(delivered),
                Err(error) => failed[place] = Some(error),
            }
            reports[usize::from(up)].extend(report);
        }
        drop((bar, unused));
        let soak = live.finish().await;
        let is_partial = self.stop.is_asked();
        let cpu = cpu_before.zip(process_time()).map(|(before, after)| after.saturating_sub(before));
        let server_after = server_cpu(after).await;
        let server_cpu = server_before.zip(server_after).map(|(before, after)| after.saturating_sub(before));
        let intervals = match intervals {
            Some(intervals) => intervals.finish().await?,
            None => Vec::new(),
        };
        for error in &failed {
            match error {
                None => self.tally.completed += 1,
                Some(error) => self.tally.error(error),
            }
        }
        let [down, up] = reports;
        let directions: Vec<_> =
            [Direction::new("download", &down), Direction::new("upload", &up)].into_iter().flatten().collect();
        Ok(Outcome {
            download: download.then_some(sums[0]),
            upload: upload.then_some(sums[1]),
            sender: sender(&directions),
            tcp: directions,
            cpu: cpu.map(|cpu| Cpu::new(cpu, sums[0].bytes + sums[1].bytes)),
            server_cpu: server_cpu.map(|cpu| Cpu::new(cpu, sums[0].bytes + sums[1].bytes)),
            intervals,
            soak,
            is_partial,
            ..Outcome::default()
        })
    }
}

/// Connections for one request each.
struct Connections<'a>(&'a [Peer; 2]);

impl requests::Requester for Connections<'_> {
    async fn exchange(&self, kind: Kind) -> Result<requests::Exchange, String> {
        let peer = &self.0[usize::from(kind != Kind::New)];
        let link = peer.connect().await.map_err(|error| error.to_string())?;
        let is_resumed = link.is_resumed();
        // The tickets of the next connection come with the answer.
        let exchange = link.exchange().await?;
        if kind != Kind::New && !is_resumed {
            return Err("the server did not resume the session".to_owned());
        }
        Ok(exchange)
    }
}

/// CPU time of the server's process so far.
async fn server_cpu(control: Option<Link>) -> Option<Duration> {
    io::cpu_time(control?.tls).await.ok()?
}

/// Transfers on a connection.
async fn on_link(link: Link, place: usize, up: bool, end: &End, moved: &Moved) -> Ended {
    if up {
        let delivered = io::upload(link.tls, end, moved).await;
        return Ended { place, up, delivered, report: link.watch.report() };
    }
    match io::download(link.tls, end, moved).await {
        Ok((delivered, Trailer { report, .. })) => Ended { place, up, delivered: Ok(delivered), report },
        Err(error) => Ended { place, up, delivered: Err(error), report: None },
    }
}

/// Counters of these connections at the moment: `watched` upload.
fn look(watched: &[Arc<Watch>], received: Option<&Moved>, sent: Option<&Moved>) -> Snapshot {
    let infos: Vec<Info> = watched.iter().filter_map(|watch| watch.info()).collect();
    let sum = |of: fn(&Info) -> u64| (!infos.is_empty()).then(|| infos.iter().map(of).sum::<u64>());
    let rtts = infos.iter().map(|info| Duration::from_nanos(info.smoothed_rtt)).sum::<Duration>();
    Snapshot {
        received: received.map(Moved::get),
        // What waits in the kernel has not been sent.
        sent: sum(|info| info.bytes_sent.saturating_sub(info.bytes_resent)).or(sent.map(Moved::get)),
        rtt_samples: watched.iter().map(|watch| watch.seen()).sum(),
        rtt: rtts.checked_div(u32::try_from(infos.len()).unwrap_or(u32::MAX)),
        cwnd: sum(|info| info.window),
        lost: None,
        retransmitted: sum(|info| info.packets_resent),
    }
}
