//! Connections that have done one exchange and then nothing: by how much the server's resident memory grows with them.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};
use bytes::Bytes;

use super::{ask, connect as connect_one, read_all};
use crate::{
    job::{IDLE_BEFORE, Job},
    meter::{Meter, Role, SideReport, resident_bytes},
    stack::{Connection, SendStream, Stack},
};

const REQUEST: &[u8] = b"?";
const ANSWER: &[u8] = b"!";
/// Before memory is read: what is only needed for a handshake has been freed by then.
const SETTLE: Duration = Duration::from_millis(1_500);

/// Accepts and keeps connections.
pub async fn serve<S: Stack>(stack: &mut S, job: Job) -> Result<SideReport> {
    let mut connections = Vec::with_capacity(usize::try_from(IDLE_BEFORE + job.amount)?);
    let mut before = 0;
    let mut after = 0;
    let mut meter = Meter::start();
    for number in 1..=IDLE_BEFORE + job.amount {
        let connection = stack.accept().await?;
        let (mut send, mut recv) = connection.accept().await?;
        ensure!(read_all(&mut recv, REQUEST.len()).await? == REQUEST, "the client's request is wrong");
        drop(recv);
        // The client waits for the answer before it continues, so nothing happens meanwhile.
        if number == IDLE_BEFORE {
            tokio::time::sleep(SETTLE).await;
            before = resident_bytes()?;
            meter = Meter::start();
        } else if number == IDLE_BEFORE + job.amount {
            tokio::time::sleep(SETTLE).await;
            meter.stop();
            after = resident_bytes()?;
        }
        send.write(Bytes::from_static(ANSWER)).await?;
        send.finish()?;
        drop(send);
        connections.push(connection);
    }
    for connection in &connections {
        connection.closed().await;
    }
    let memory_growth = Some(after.saturating_sub(before));
    Ok(SideReport { memory_growth, ..meter.report(Role::Server, job.amount) })
}

/// Opens connections and keeps them until all are open.
pub async fn connect<S: Stack>(stack: &S, job: Job, to: SocketAddr) -> Result<SideReport> {
    let mut connections = Vec::new();
    let mut meter = Meter::start();
    for number in 0..IDLE_BEFORE + job.amount {
        if number == IDLE_BEFORE {
            meter = Meter::start();
        }
        let connection = connect_one(stack, to).await?;
        let answered = ask(&connection, Bytes::from_static(REQUEST)).await?;
        ensure!(answered == ANSWER, "the server's answer is wrong");
        connections.push(connection);
    }
    meter.stop();
    for connection in &connections {
        connection.close();
    }
    Ok(meter.report(Role::Client, job.amount))
}
