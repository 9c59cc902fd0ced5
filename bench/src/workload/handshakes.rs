//! Handshakes one after the other: connect, ask one byte, read one byte, close.
//!
//! In the resumed mode the request goes as early data where the stack sends some. Certificates, tickets and the confirmation of
//! the handshake are in the cost of both.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use bytes::Bytes;
use tokio::task::JoinSet;

use super::{answer, ask};
use crate::{
    identity::Operations,
    job::{HANDSHAKES_BEFORE, Job},
    meter::{Meter, Role, SideReport},
    stack::{Connection, Stack},
};

const REQUEST: &[u8] = b"?";
const ANSWER: &[u8] = b"!";

/// Accepts and answers.
pub async fn serve<S: Stack>(stack: &mut S, job: Job) -> Result<SideReport> {
    let mut closing = JoinSet::new();
    let mut meter = Meter::start();
    let mut before = Operations::read();
    for number in 0..HANDSHAKES_BEFORE + job.amount {
        if number == HANDSHAKES_BEFORE {
            meter = Meter::start();
            before = Operations::read();
        }
        let connection = stack.accept().await?;
        answer(&connection, REQUEST, Bytes::from_static(ANSWER)).await?;
        // The client closes, when it has read the answer.
        closing.spawn(async move { connection.closed().await });
        while let Some(closed) = closing.try_join_next() {
            closed?;
        }
    }
    closing.join_all().await;
    meter.stop();
    let operations = Operations::read().since(before);
    Ok(counted(meter.report(Role::Server, job.amount), operations, S::COUNTS_OPERATIONS))
}

/// Counts of this process, if the stack does its asymmetric operations where they are counted.
fn counted(report: SideReport, operations: Operations, counts: bool) -> SideReport {
    SideReport {
        signatures: counts.then_some(operations.signatures),
        key_agreements: counts.then_some(operations.key_agreements),
        ..report
    }
}

/// Connects, asks and closes.
pub async fn connect<S: Stack>(stack: &S, job: Job, to: SocketAddr) -> Result<SideReport> {
    let mut meter = Meter::start();
    let mut before = Operations::read();
    let mut early = 0;
    let mut offers = false;
    let mut resumed = None;
    for number in 0..HANDSHAKES_BEFORE + job.amount {
        if number == HANDSHAKES_BEFORE {
            meter = Meter::start();
            before = Operations::read();
            early = 0;
            resumed = None;
        }
        let (connection, verdict) = stack.connect(to).await?;
        let answered = ask(&connection, Bytes::from_static(REQUEST)).await?;
        ensure!(answered == ANSWER, "the server's answer is wrong");
        if let Some(verdict) = verdict {
            offers = true;
            early += u64::from(verdict.await);
        }
        if let Some(is_resumed) = connection.is_resumed() {
            *resumed.get_or_insert(0) += u64::from(is_resumed);
        }
        connection.close();
    }
    meter.stop();
    let operations = Operations::read().since(before);
    let report = counted(meter.report(Role::Client, job.amount), operations, S::COUNTS_OPERATIONS);
    // A client signs nothing.
    Ok(SideReport { signatures: None, resumed, early: offers.then_some(early), ..report })
}
