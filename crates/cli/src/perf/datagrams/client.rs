//! Client's side of a measurement with datagrams.

use std::time::Duration;

use tiderace::{Connection, RecvStream};
use tokio::time::timeout;

use super::{Datagrams, Plan, READY, Sent, TOO_LARGE, fits, receive::Received, receive::receive, send::send};
use crate::{
    failure::Failure,
    perf::{
        cpu::process_time,
        interval::{CSV_HEADER, Intervals},
        live::Live,
        options::Volume,
        outcome::Outcome,
        progress::{Goal, Moved, Progress},
        protocol::{Request, read_exact},
        quic::{Line, Run, look},
        report::Cpu,
        transfer::{ANSWER_TIME, Delivered, TransferError},
    },
    stdout::write_out,
};

/// Reason for a direction without a result.
enum DatagramsError {
    /// Datagrams are larger than what fits.
    TooLarge {
        most: u64,
    },
    Transfer(TransferError),
}

impl<E: Into<TransferError>> From<E> for DatagramsError {
    fn from(error: E) -> Self {
        Self::Transfer(error.into())
    }
}

/// Result of a direction.
type Outcomes = Result<(Datagrams, Delivered), DatagramsError>;

impl Run<'_> {
    /// Datagrams by the plan, in each direction that is asked for.
    pub(in crate::perf) async fn datagrams(&mut self, plan: Plan, line: Line) -> Result<Outcome, Failure> {
        let (upload, download) = self.args.directions();
        if upload {
            fits(&line.connection, plan.size).await.map_err(|most| too_large(&plan, most))?;
        }
        let (moved, cpu_before) = (Moved::default(), process_time());
        let [received, sent] = [moved.part(), moved.part()];
        let mut live = Live::start(self.args, Volume::For(plan.span), &self.stop)?;
        live.follow_moved(moved.clone(), &line.connection, &line.rtt);
        let shows = self.args.interval.is_some() || live.shows();
        let bar = (!shows).then(|| Progress::start(Goal::After(plan.span), moved.clone()));
        if self.args.csv {
            write_out(CSV_HEADER)?;
        }
        let intervals = self.args.interval.map(|period| {
            let watched = [(line.connection.clone(), line.rtt.clone())];
            let received = download.then(|| received.clone());
            Intervals::start(period, self.args.form(), "quic", move || {
                look(&watched, received.as_ref(), upload, |stats| stats.datagram_bytes_sent)
            })
        });
        let (up, down) = tokio::join!(
            async {
                match upload {
                    true => Some(self.upload(&line.connection, &plan, &sent).await),
                    false => None,
                }
            },
            async {
                match download {
                    true => Some(self.download(&line.connection, &plan, &received).await),
                    false => None,
                }
            }
        );
        drop(bar);
        live.finish().await;
        let is_partial = self.stop.is_asked();
        let cpu = cpu_before.zip(process_time()).map(|(before, after)| after.saturating_sub(before));
        let intervals = match intervals {
            Some(intervals) => intervals.finish().await?,
            None => Vec::new(),
        };
        let (mut failed, mut datagrams, mut delivered) = ([None], Vec::new(), [None; 2]);
        for (place, of) in [down, up].into_iter().enumerate() {
            match of {
                Some(Ok((report, data))) => {
                    datagrams.push(report);
                    delivered[place] = Some(data);
                }
                Some(Err(DatagramsError::TooLarge { most })) => return Err(too_large(&plan, most)),
                Some(Err(DatagramsError::Transfer(error))) => failed[0] = Some(error),
                None => {}
            }
        }
        let (sender, fec) = self.ask(upload, download, std::slice::from_ref(&line), &mut failed).await;
        match &failed[0] {
            None => self.tally.completed += 1,
            Some(error) => self.tally.error(error),
        }
        let [down, up] = delivered;
        let bytes = down.map_or(0, |down| down.bytes) + up.map_or(0, |up| up.bytes);
        Ok(Outcome {
            download: down,
            upload: up,
            datagrams,
            sender,
            fec,
            cpu: cpu.map(|cpu| Cpu::new(cpu, bytes)),
            intervals,
            is_partial,
            ..Outcome::default()
        })
    }

    /// Datagrams to the server.
    async fn upload(&self, connection: &Connection, plan: &Plan, moved: &Moved) -> Outcomes {
        let (mut stream, mut recv) = connection.open_bi().await?;
        stream.write_all(&Request::DatagramsUp.encode()).await?;
        timeout(ANSWER_TIME, ready(&mut recv)).await.map_err(|_| TransferError::Silence)??;
        let sent = send(connection, plan, self.stop.wait(), moved).await?;
        stream.write_all(&sent.encode()).await?;
        stream.finish()?;
        let answer = async {
            recv.read_to_end(Received::MAX_LEN).await.map_err(|error| match error {
                tiderace::ReadToEndError::Read(error) => error.into(),
                _ => TransferError::Answer,
            })
        };
        let answer = timeout(ANSWER_TIME, answer).await.map_err(|_| TransferError::Silence)??;
        let received = Received::decode(&answer).ok_or(TransferError::Answer)?;
        Ok((Datagrams::new("upload", plan, &sent, &received), Datagrams::delivered(&sent, &received)))
    }

    /// Datagrams from the server.
    async fn download(&self, connection: &Connection, plan: &Plan, moved: &Moved) -> Outcomes {
        let (mut stream, mut recv) = connection.open_bi().await?;
        stream.write_all(&Request::DatagramsDown(*plan).encode()).await?;
        // The server waits for discovery of the path's MTU, too.
        timeout(ANSWER_TIME, ready(&mut recv)).await.map_err(|_| TransferError::Silence)??;
        let stop = async {
            self.stop.wait().await;
            // The server ends with its account.
            let _ = stream.finish();
            tokio::time::sleep(ANSWER_TIME).await;
        };
        let account = async {
            tokio::select! {
                account = read_exact::<{ Sent::LEN }>(&mut recv) => {
                    account?.map(Sent::decode).ok_or(TransferError::Answer)
                }
                () = stop => Err(TransferError::Silence),
            }
        };
        let (sent, received) = receive(connection, account, moved).await?;
        Ok((Datagrams::new("download", plan, &sent, &received), Datagrams::delivered(&sent, &received)))
    }
}

/// Waits for the server's readiness.
async fn ready(recv: &mut RecvStream) -> Result<(), DatagramsError> {
    match read_exact::<1>(recv).await? {
        Some([READY]) => Ok(()),
        Some([TOO_LARGE]) => {
            let most = read_exact::<8>(recv).await?.ok_or(TransferError::Answer)?;
            Err(DatagramsError::TooLarge { most: u64::from_be_bytes(most) })
        }
        _ => Err(TransferError::Answer.into()),
    }
}

/// The size is more than what fits into packets of the path.
fn too_large(plan: &Plan, most: u64) -> Failure {
    if most == 0 {
        return Failure::new("the server takes no datagrams").hint("is it `tiderace perf server`?");
    }
    Failure::new(format_args!(
        "a datagram of {} bytes does not fit into packets of this path: at most {most} do",
        plan.size
    ))
    .hint(format_args!("give `--size {most}` or less; a larger `--mtu` of both ends may find more"))
}

impl Plan {
    /// Longest time that a server sends for.
    pub(super) const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
}
