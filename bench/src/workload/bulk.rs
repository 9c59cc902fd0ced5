//! Streams of bulk data from client to server, over one connection or many.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use tokio::task::JoinSet;

use super::{connect, read_all};
use crate::{
    content::{Check, Source},
    job::Job,
    meter::{Meter, Role, SideReport},
    peers::ANSWER,
    stack::{Connection, RecvStream, SendStream, Stack},
};

/// Receives all streams, checks them, and then answers on each.
pub async fn serve<S: Stack>(stack: &mut S, job: Job) -> Result<SideReport> {
    let per_stream = job.bytes_per_stream()?;
    let expected = Check::block();
    let began = Arc::new(OnceLock::new());
    let mut connections = Vec::new();
    let mut accepting = JoinSet::new();
    for _ in 0..job.connections() {
        let connection = stack.accept().await?;
        connections.push(connection.clone());
        let (expected, began) = (expected.clone(), began.clone());
        accepting.spawn(async move {
            let mut receiving = JoinSet::new();
            for _ in 0..job.streams() {
                let (answer, stream) = connection.accept().await?;
                receiving.spawn(receive(answer, stream, Check::new(expected.clone()), began.clone()));
            }
            Ok::<_, anyhow::Error>(receiving)
        });
    }
    let mut receiving = Vec::new();
    while let Some(more) = accepting.join_next().await {
        receiving.push(more??);
    }
    let mut samples = 0;
    let mut answers = Vec::new();
    for mut streams in receiving {
        while let Some(received) = streams.join_next().await {
            let (check, answer) = received??;
            samples += check.finish(per_stream)?;
            answers.push(answer);
        }
    }
    let mut meter: Meter = *began.get().context("nothing to receive")?;
    meter.stop();
    let datagrams = stack.counts(&connections);
    for answer in &mut answers {
        answer.write(Bytes::from_static(ANSWER)).await?;
        answer.finish()?;
    }
    for connection in connections {
        connection.closed().await;
    }
    let units = per_stream * job.streams() * job.connections();
    Ok(SideReport { content_samples: samples, datagrams, ..meter.report(Role::Server, units) })
}

/// Reads one stream to its end; the first byte of all starts the clock.
async fn receive<W: SendStream, R: RecvStream>(
    answer: W,
    mut stream: R,
    mut check: Check,
    began: Arc<OnceLock<Meter>>,
) -> Result<(Check, W)> {
    while let Some(data) = stream.read().await? {
        began.get_or_init(Meter::start);
        check.take(&data)?;
    }
    Ok((check, answer))
}

/// Sends all streams and waits for all answers.
pub async fn send<S: Stack>(stack: &S, job: Job, to: SocketAddr) -> Result<SideReport> {
    let per_stream = job.bytes_per_stream()?;
    let mut connections = Vec::new();
    for _ in 0..job.connections() {
        connections.push(connect(stack, to).await?);
    }
    let source = Arc::new(Source::new());
    let mut sending = JoinSet::new();
    let mut meter = Meter::start();
    for connection in &connections {
        for _ in 0..job.streams() {
            sending.spawn(send_stream(connection.clone(), source.clone(), per_stream));
        }
    }
    while let Some(sent) = sending.join_next().await {
        sent??;
    }
    meter.stop();
    let datagrams = stack.counts(&connections);
    for connection in &connections {
        connection.close();
    }
    let units = per_stream * job.streams() * job.connections();
    Ok(SideReport { datagrams, ..meter.report(Role::Client, units) })
}

async fn send_stream<C: Connection>(connection: C, source: Arc<Source>, bytes: u64) -> Result<()> {
    let (mut stream, mut answer) = connection.open().await?;
    let mut sent = 0;
    while sent < bytes {
        let len = Source::write_len(sent, bytes);
        stream.write(source.bytes_at(sent, len)).await?;
        sent += len as u64;
    }
    stream.finish()?;
    let answered = read_all(&mut answer, ANSWER.len()).await?;
    ensure!(answered[..] == ANSWER[..], "the server's answer is wrong");
    Ok(())
}
