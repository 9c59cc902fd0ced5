//! Unreliable datagrams from client to server as fast as the stack lets them go.
//!
//! A stream says when all were sent. What has arrived by then counts; what was lost or dropped on the way does not.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;

use super::{connect, read_all};
use crate::{
    content::Source,
    job::{DATAGRAM, Job},
    meter::{Meter, Role, SideReport},
    stack::{Connection, SendStream, Stack},
};

/// Time for the last datagrams to leave the sender's queue, which is no part of the measurement: a datagram that leaves
/// later is not counted.
const TO_DRAIN: Duration = Duration::from_millis(100);

/// Counts what arrives.
pub async fn serve<S: Stack>(stack: &mut S, job: Job) -> Result<SideReport> {
    let connection = stack.accept().await?;
    let arrived = Arc::new(AtomicU64::new(0));
    let began = Arc::new(OnceLock::new());
    let source = Source::new();
    let receiving = tokio::spawn({
        let (connection, arrived, began) = (connection.clone(), arrived.clone(), began.clone());
        async move {
            // Ends with the connection, or because a datagram is wrong, which then shows in the count.
            while let Ok(data) = connection.read_datagram().await {
                began.get_or_init(Meter::start);
                if data.len() != DATAGRAM || data[8..40] != source.at(8, 32)[..] {
                    break;
                }
                arrived.fetch_add(1, Relaxed);
            }
        }
    });
    let (mut send, mut recv) = connection.accept().await?;
    let sent = read_all(&mut recv, 8).await?;
    let mut meter: Meter = *began.get().context("no datagram arrived")?;
    meter.stop();
    let count = arrived.load(Relaxed);
    let datagrams = stack.counts(std::slice::from_ref(&connection));
    ensure!(sent[..] == job.amount.to_be_bytes()[..], "the client says that it sent another number");
    ensure!(!receiving.is_finished(), "a datagram with wrong content came after {count}");
    send.write(Bytes::copy_from_slice(&count.to_be_bytes())).await?;
    send.finish()?;
    connection.closed().await;
    receiving.await?;
    Ok(SideReport { content_samples: count, datagrams, ..meter.report(Role::Server, count) })
}

/// Sends them all.
pub async fn send<S: Stack>(stack: &S, job: Job, to: SocketAddr) -> Result<SideReport> {
    let connection = connect(stack, to).await?;
    let payload = Source::new().bytes_at(0, DATAGRAM);
    // The confirmation of the handshake is no part of the measurement.
    tokio::time::sleep(TO_DRAIN).await;
    let mut meter = Meter::start();
    for _ in 0..job.amount {
        connection.send_datagram(payload.clone()).await?;
    }
    tokio::time::sleep(TO_DRAIN).await;
    meter.stop();
    let datagrams = stack.counts(std::slice::from_ref(&connection));
    let (mut send, mut recv) = connection.open().await?;
    send.write(Bytes::copy_from_slice(&job.amount.to_be_bytes())).await?;
    send.finish()?;
    let arrived = read_all(&mut recv, 8).await?;
    let arrived = u64::from_be_bytes(arrived[..].try_into().context("the server's count is wrong")?);
    connection.close();
    ensure!(arrived <= job.amount, "{arrived} of {} datagrams arrived", job.amount);
    Ok(SideReport { datagrams, ..meter.report(Role::Client, job.amount) })
}
