//! Small requests over one connection, each on a stream of its own, a fixed number in progress at a time.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use tokio::task::JoinSet;

use super::{answer, ask, connect};
use crate::{
    content::Source,
    job::{Job, REQUEST, RESPONSE},
    meter::{Meter, Role, SideReport},
    stack::{Connection, Stack},
};

/// Answers in the order in which streams are accepted, in one task: what is measured is the stack, and not how fast tasks
/// can be started.
pub async fn serve<S: Stack>(stack: &mut S, job: Job) -> Result<SideReport> {
    let source = Source::new();
    let (request, response) = (source.bytes_at(0, REQUEST), source.bytes_at(0, RESPONSE));
    let connection = stack.accept().await?;
    let mut meter = None;
    for _ in 0..job.amount {
        answer(&connection, &request, response.clone()).await?;
        meter.get_or_insert_with(Meter::start);
    }
    // The last answers are still to be sent and acknowledged.
    connection.closed().await;
    let mut meter = meter.unwrap_or_else(Meter::start);
    meter.stop();
    let datagrams = stack.counts(&[connection]);
    // Each request was compared in full.
    Ok(SideReport { content_samples: job.amount, datagrams, ..meter.report(Role::Server, job.amount) })
}

/// Asks, from as many tasks as requests are in progress.
pub async fn ask_all<S: Stack>(stack: &S, job: Job, to: SocketAddr) -> Result<SideReport> {
    let source = Source::new();
    let (request, response) = (source.bytes_at(0, REQUEST), source.bytes_at(0, RESPONSE));
    let connection = connect(stack, to).await?;
    let mut meter = Meter::start();
    in_progress(&connection, (job.amount, job.in_flight), &request, &response).await?;
    meter.stop();
    let datagrams = stack.counts(std::slice::from_ref(&connection));
    connection.close();
    Ok(SideReport { content_samples: job.amount, datagrams, ..meter.report(Role::Client, job.amount) })
}

/// Asks `amount` times, with `in_flight` requests in progress.
async fn in_progress<C: Connection>(
    connection: &C,
    (amount, in_flight): (u64, usize),
    request: &Bytes,
    response: &Bytes,
) -> Result<()> {
    let started = Arc::new(AtomicU64::new(0));
    let mut asking = JoinSet::new();
    for _ in 0..in_flight {
        let (connection, started) = (connection.clone(), started.clone());
        let (request, response) = (request.clone(), response.clone());
        asking.spawn(async move {
            while started.fetch_add(1, Relaxed) < amount {
                let answered = ask(&connection, request.clone()).await?;
                ensure!(answered == response, "the server's answer is wrong");
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked??;
    }
    Ok(())
}
