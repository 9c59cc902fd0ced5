//! Latency of small requests under load: at shares of what the stack can do, and beside a transfer.
//!
//! Requests leave by the clock, whether or not earlier ones are answered, and a latency counts from the time at which the request was due:
//! so a stall shows in every request that it has held up.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::{ask, connect};
use crate::{
    content::Source,
    job::{Job, REQUEST, RESPONSE},
    meter::{Meter, Role, SideReport},
    stack::{Connection, RecvStream, SendStream, Stack},
};

/// Shares of the capacity at which requests are made.
const SHARES: [(f64, &str); 3] = [(0.5, "50 %"), (0.8, "80 %"), (0.95, "95 %")];
/// Requests per second beside a transfer.
const BESIDE_TRANSFER: f64 = 1_000.0;
/// A transfer writes this much at a time.
const WRITE: usize = 64 * 1024;

/// Latency of the requests in one condition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Condition: share of the capacity, or where the transfer runs.
    pub condition: String,
    /// Requests per second that were due.
    pub offered: f64,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 are below, in microseconds.
    pub p99_us: f64,
    /// 999 of 1,000 are below, in microseconds.
    pub p999_us: f64,
}

impl Latency {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "places in a list of some hundred thousand"
    )]
    fn of(condition: &str, offered: f64, mut latencies: Vec<Duration>) -> Result<Self> {
        ensure!(!latencies.is_empty(), "no request was answered, {condition}");
        latencies.sort_unstable();
        // The smallest value that at least this share does not exceed.
        let at = |share: f64| {
            let rank = (share * latencies.len() as f64).ceil() as usize;
            latencies[rank.clamp(1, latencies.len()) - 1].as_secs_f64() * 1e6
        };
        let condition = condition.to_owned();
        Ok(Self { condition, offered, p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999) })
    }
}

/// Answers requests, each in a task, and takes transfers in.
pub async fn serve<S: Stack>(stack: &mut S, job: Job) -> Result<SideReport> {
    let source = Source::new();
    let (request, response) = (source.bytes_at(0, REQUEST), source.bytes_at(0, RESPONSE));
    let mut meter = Meter::start();
    let mut connections = JoinSet::new();
    for _ in 0..2 {
        let connection = stack.accept().await?;
        let (request, response) = (request.clone(), response.clone());
        connections.spawn(async move {
            // Until the client closes the connection.
            while let Ok((send, recv)) = connection.accept().await {
                tokio::spawn(answer(send, recv, request.clone(), response.clone()));
            }
        });
    }
    while connections.join_next().await.is_some() {}
    meter.stop();
    Ok(SideReport { content_samples: job.amount, ..meter.report(Role::Server, job.amount) })
}

/// Answers a request; the answer to anything else is empty.
async fn answer(send: impl SendStream, mut recv: impl RecvStream, request: Bytes, response: Bytes) -> Result<()> {
    let mut first = None;
    let mut len = 0;
    while let Some(data) = recv.read().await? {
        len += data.len();
        first.get_or_insert(data);
    }
    let is_request = len == request.len() && first.is_some_and(|first| request.starts_with(&first));
    send.write_last(if is_request { response } else { Bytes::new() }).await
}

/// Asks in every condition.
#[expect(clippy::cast_precision_loss, reason = "some hundred thousand requests")]
pub async fn ask_all<S: Stack>(stack: &S, job: Job, to: SocketAddr) -> Result<SideReport> {
    let source = Source::new();
    let (request, response) = (source.bytes_at(0, REQUEST), source.bytes_at(0, RESPONSE));
    let (connection, other) = (connect(stack, to).await?, connect(stack, to).await?);
    let part = (job.amount / 4).max(1);
    let mut meter = Meter::start();
    let started = Instant::now();
    requests(&connection, Pace::InProgress(job.in_flight), part, &request, &response).await?;
    let capacity = part as f64 / started.elapsed().as_secs_f64();
    let mut latencies = vec![];
    for (share, condition) in SHARES {
        let seen = requests(&connection, Pace::PerSecond(capacity * share), part, &request, &response).await?;
        latencies.push(Latency::of(condition, capacity * share, seen)?);
    }
    let few = (part / 25).max(1);
    for (condition, carrier) in [("transfer on the same connection", &connection), ("transfer on another", &other)] {
        let transfer = Transfer::start(carrier);
        let seen = requests(&connection, Pace::PerSecond(BESIDE_TRANSFER), few, &request, &response).await?;
        transfer.end().await?;
        latencies.push(Latency::of(condition, BESIDE_TRANSFER, seen)?);
    }
    meter.stop();
    connection.close();
    other.close();
    let report = meter.report(Role::Client, job.amount);
    Ok(SideReport { content_samples: job.amount, capacity: Some(capacity), latencies: Some(latencies), ..report })
}

/// Time at which a request is due.
#[derive(Clone, Copy)]
enum Pace {
    /// As soon as fewer than this many are in progress.
    InProgress(usize),
    /// By the clock, so many per second.
    PerSecond(f64),
}

/// Makes `amount` requests, each in a task, and returns their latencies. The capacity is measured with the same tasks and the same waiting as
/// the latencies: so it is what the client can offer, too.
#[expect(clippy::cast_precision_loss, reason = "some hundred thousand requests")]
async fn requests<C: Connection>(
    connection: &C,
    pace: Pace,
    amount: u64,
    request: &Bytes,
    response: &Bytes,
) -> Result<Vec<Duration>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let started = Instant::now();
    let mut asking: JoinSet<Result<()>> = JoinSet::new();
    for number in 0..amount {
        // The timer of the runtime counts milliseconds: this waits more exactly, on a processor of its own.
        let due = match pace {
            Pace::InProgress(most) => {
                while asking.len() >= most {
                    tokio::task::yield_now().await;
                    while let Some(asked) = asking.try_join_next() {
                        asked??;
                    }
                }
                Instant::now()
            }
            Pace::PerSecond(rate) => {
                let due = started + Duration::from_secs_f64(number as f64 / rate);
                while Instant::now() < due {
                    tokio::task::yield_now().await;
                }
                due
            }
        };
        let (connection, request, response, seen) =
            (connection.clone(), request.clone(), response.clone(), seen.clone());
        asking.spawn(async move {
            let answered = ask(&connection, request).await?;
            ensure!(answered == response, "the server's answer is wrong");
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(due.elapsed());
            Ok(())
        });
        while let Some(asked) = asking.try_join_next() {
            asked??;
        }
    }
    while let Some(asked) = asking.join_next().await {
        asked??;
    }
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(seen)
}

/// A transfer to the server that goes on until it is ended.
struct Transfer {
    is_over: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Transfer {
    fn start<C: Connection>(connection: &C) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (connection, over) = (connection.clone(), is_over.clone());
        let task = tokio::spawn(async move {
            let (mut send, mut recv) = connection.open().await?;
            let data = Bytes::from(vec![0; WRITE]);
            while !over.load(Relaxed) {
                send.write(data.clone()).await?;
            }
            send.finish()?;
            while recv.read().await?.is_some() {}
            Ok(())
        });
        Self { is_over, task }
    }

    async fn end(self) -> Result<()> {
        self.is_over.store(true, Relaxed);
        self.task.await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_list() {
        let latencies = (1..=1_000).rev().map(Duration::from_micros).collect();
        let latency = Latency::of("50 %", 10.0, latencies).unwrap();
        assert_eq!((latency.p50_us, latency.p99_us, latency.p999_us), (500.0, 990.0, 999.0));
        let one = Latency::of("50 %", 10.0, vec![Duration::from_micros(7)]).unwrap();
        assert_eq!((one.p50_us, one.p999_us), (7.0, 7.0));
        assert!(Latency::of("50 %", 10.0, vec![]).is_err());
    }
}
