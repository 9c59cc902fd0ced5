//! Transfers over QUIC: connections, their streams, and what both ends say of them.

use std::time::Duration;

use tiderace::{Connection, Endpoint, Stats, transport::fec::FecPolicy};
use tokio::{task::JoinSet, time::Instant};

use super::{
    cpu::process_time,
    fec::{self, Counts},
    interval::{CSV_HEADER, Intervals, Snapshot},
    options::{Args, Volume},
    outcome::{Outcome, Tally},
    progress::{Goal, Moved, Progress},
    protocol::SenderReport,
    reach::Peer,
    report::{Cpu, Sender},
    samples::RttSamples,
    stop::Stop,
    transfer::{self, Delivered, End, Limit, TransferError},
};
use crate::{failure::Failure, stdout::write_out};

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

/// A client's run over QUIC.
pub(super) struct Run<'a> {
    pub(super) args: &'a Args,
    pub(super) peer: Peer,
    pub(super) endpoint: Endpoint,
    pub(super) tally: Tally,
    pub(super) stop: Stop,
}

impl Run<'_> {
    /// Everything that was asked for, in order.
    pub(super) async fn all(&mut self) -> Result<Outcome, Failure> {
        let (first, handshake) = self.peer.reach(&self.endpoint).await?;
        self.tally.established(handshake);
        // Before this there is nothing to report, and Ctrl-C ends the program.
        self.stop = Stop::on_interrupt()?;
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
            None => Ok(Outcome { is_partial: self.stop.is_asked(), ..Outcome::default() }),
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
        let is_partial = self.stop.is_asked();
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
            is_partial,
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
