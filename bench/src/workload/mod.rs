//! The work of each mode, written once for every asynchronous stack.

mod bulk;
mod datagrams;
mod handshakes;
mod idle;
pub mod latency;
mod requests;

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};

use crate::{
    identity::ServerIdentity,
    job::Job,
    meter::SideReport,
    mode::Mode,
    peers::Announcement,
    stack::{Connection, RecvStream, SendStream, Settings, Stack},
};

/// Runs on tokio's current-thread runtime, as a task like any other: what is given to `block_on` directly is polled
/// more rarely.
pub fn on_runtime(work: impl Future<Output = Result<SideReport>> + Send + 'static) -> Result<SideReport> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { tokio::spawn(work).await })?
}

/// Plays the server.
pub fn serve<S: Stack>(
    job: Job,
    listen: SocketAddr,
    announce: impl FnOnce(&Announcement) -> Result<()> + Send + 'static,
) -> Result<SideReport> {
    on_runtime(async move {
        let identity = ServerIdentity::generate()?;
        let trust = identity.authority.clone();
        let mut stack = S::serve(listen, Settings::of(&job), identity)?;
        announce(&Announcement::new(stack.address()?, &trust))?;
        let report = match job.mode {
            Mode::Bulk | Mode::BulkStreams | Mode::BulkConnections => bulk::serve(&mut stack, job).await,
            Mode::Handshake | Mode::Resumed | Mode::PostQuantum => handshakes::serve(&mut stack, job).await,
            Mode::Requests => requests::serve(&mut stack, job).await,
            Mode::Datagrams => datagrams::serve(&mut stack, job).await,
            Mode::Idle => idle::serve(&mut stack, job).await,
            Mode::Latency => latency::serve(&mut stack, job).await,
        }?;
        stack.wait_idle().await;
        Ok(SideReport { socket_buffer: stack.socket_buffer(), ..report })
    })
}

/// Plays the client.
pub fn run<S: Stack>(job: Job, to: SocketAddr, trust: &[u8]) -> Result<SideReport> {
    let trust = trust.to_vec();
    on_runtime(async move {
        let mut stack = S::client(&trust, Settings::of(&job))?;
        let report = match job.mode {
            Mode::Bulk | Mode::BulkStreams | Mode::BulkConnections => bulk::send(&stack, job, to).await,
            Mode::Handshake | Mode::Resumed | Mode::PostQuantum => handshakes::connect(&stack, job, to).await,
            Mode::Requests => requests::ask_all(&stack, job, to).await,
            Mode::Datagrams => datagrams::send(&stack, job, to).await,
            Mode::Idle => idle::connect(&stack, job, to).await,
            Mode::Latency => latency::ask_all(&stack, job, to).await,
        }?;
        stack.wait_idle().await;
        Ok(SideReport { socket_buffer: stack.socket_buffer(), ..report })
    })
}

/// A connection to the server with a complete handshake.
async fn connect<S: Stack>(stack: &S, to: SocketAddr) -> Result<S::Connection> {
    Ok(stack.connect(to).await.context("cannot connect")?.0)
}

/// Sends `request` on a new stream and reads the answer to its end.
async fn ask<C: Connection>(connection: &C, request: Bytes) -> Result<Bytes> {
    let (send, mut recv) = connection.open().await?;
    send.write_last(request).await?;
    read_all(&mut recv, 64 * 1024).await
}

/// Reads a request from the next stream, and answers it.
async fn answer<C: Connection>(connection: &C, request: &[u8], answer: Bytes) -> Result<()> {
    let (send, mut recv) = connection.accept().await?;
    let asked = read_all(&mut recv, 64 * 1024).await?;
    ensure!(asked == request, "the client's request is wrong");
    send.write_last(answer).await
}

/// Reads a short stream to its end; without a copy when it comes in one piece.
async fn read_all(recv: &mut impl RecvStream, limit: usize) -> Result<Bytes> {
    let Some(first) = recv.read().await? else { return Ok(Bytes::new()) };
    let mut rest = BytesMut::new();
    while let Some(more) = recv.read().await? {
        if rest.is_empty() {
            rest.extend_from_slice(&first);
        }
        rest.extend_from_slice(&more);
        ensure!(rest.len() <= limit, "a message of more than {limit} bytes");
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}
