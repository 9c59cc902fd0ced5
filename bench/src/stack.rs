//! Interface that the workloads ask of an asynchronous QUIC stack.
//!
//! Each stack has a file in `peers` that maps these calls to its own, one to one, so that the workloads are written once
//! and every stack does the same work.

use std::{future::Future, net::SocketAddr, pin::Pin, time::Duration};

use anyhow::Result;
use bytes::Bytes;

use crate::{identity::ServerIdentity, job::Job, meter::Datagrams, mode::Mode};

/// The settings that all stacks are given.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bidirectional streams that the peer may have open at the same time.
    pub streams: u32,
    /// Sessions are resumed, and early data sent where the stack can.
    pub resume: bool,
}

impl Settings {
    /// UDP payload of a full packet, in bytes.
    pub const UDP_PAYLOAD: u16 = 1452;
    /// Socket buffer asked for, in bytes; the kernel counts twice that.
    pub const SOCKET_BUFFER: u32 = 8 << 20;
    /// Flow control window of one stream, in bytes.
    pub const STREAM_WINDOW: u32 = 16 << 20;
    /// Flow control window of one connection, in bytes.
    pub const CONNECTION_WINDOW: u32 = 64 << 20;
    /// Bytes of datagrams that may wait, each way.
    pub const DATAGRAM_QUEUE: u32 = 1 << 20;
    /// A connection ends after this much silence.
    pub const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

    /// Settings that a job needs.
    pub fn of(job: &Job) -> Self {
        // Some stacks set up state for each stream that they allow; an idle connection is given the customary number.
        Self { streams: if job.mode == Mode::Idle { 100 } else { 1_000 }, resume: job.resumes() }
    }
}

/// Verdict on early data, known once the handshake is complete.
pub type EarlyVerdict = Pin<Box<dyn Future<Output = bool> + Send>>;

/// An endpoint of a stack: a server or a client.
pub trait Stack: Sized + Send + Sync + 'static {
    /// Connections.
    type Connection: Connection;
    /// Counting of its asymmetric operations by [`identity`](crate::identity).
    const COUNTS_OPERATIONS: bool;

    /// Opens a server at `listen`. Called within a tokio runtime.
    fn serve(listen: SocketAddr, settings: Settings, identity: ServerIdentity) -> Result<Self>;

    /// Opens a client that trusts the authority `trust`. Called within a tokio runtime.
    fn client(trust: &[u8], settings: Settings) -> Result<Self>;

    /// Address that it listens on.
    fn address(&self) -> Result<SocketAddr>;

    /// The receive buffer that the kernel granted, in bytes of its own count, where that is known.
    fn socket_buffer(&self) -> Option<u64>;

    /// The next connection whose handshake is complete. Early data waits until then, so that the tickets leave before the
    /// answer to it: a client that closes on the answer has them.
    fn accept(&mut self) -> impl Future<Output = Result<Self::Connection>> + Send;

    /// A connection whose handshake is complete, or that can send early data, which then comes with a verdict.
    fn connect(&self, to: SocketAddr) -> impl Future<Output = Result<(Self::Connection, Option<EarlyVerdict>)>> + Send;

    /// Waits until every connection is over and its CONNECTION_CLOSE is sent.
    fn wait_idle(&mut self) -> impl Future<Output = ()> + Send;

    /// Datagrams that `connections`, all that there were, have sent and received, where the stack counts it.
    fn counts(&self, connections: &[Self::Connection]) -> Option<Datagrams>;
}

/// A connection. Clones refer to the same one.
pub trait Connection: Clone + Send + Sync + 'static {
    /// The sending half of its streams.
    type Send: SendStream;
    /// The receiving half of its streams.
    type Recv: RecvStream;

    /// Opens a bidirectional stream, as soon as that is allowed.
    fn open(&self) -> impl Future<Output = Result<(Self::Send, Self::Recv)>> + Send;

    /// The next bidirectional stream that the peer opened.
    fn accept(&self) -> impl Future<Output = Result<(Self::Send, Self::Recv)>> + Send;

    /// Sends a datagram, as soon as the queue has room for it.
    fn send_datagram(&self, data: Bytes) -> impl Future<Output = Result<()>> + Send;

    /// The next datagram.
    fn read_datagram(&self) -> impl Future<Output = Result<Bytes>> + Send;

    /// Returns whether its session was resumed, where that is not told by the count of asymmetric operations; known when the
    /// handshake is complete.
    fn is_resumed(&self) -> Option<bool> {
        None
    }

    /// Closes the connection at once, without an error.
    fn close(&self);

    /// Waits until the connection has ended.
    fn closed(&self) -> impl Future<Output = ()> + Send;
}

/// The sending half of a stream.
pub trait SendStream: Send + 'static {
    /// Queues all of `data`, as there is room.
    fn write(&mut self, data: Bytes) -> impl Future<Output = Result<()>> + Send;

    /// Ends the stream.
    fn finish(&mut self) -> Result<()>;

    /// Queues all of `data`, as there is room, and ends the stream: in one call where the stack has it.
    fn write_last(mut self, data: Bytes) -> impl Future<Output = Result<()>> + Send
    where
        Self: Sized,
    {
        async move {
            self.write(data).await?;
            self.finish()
        }
    }
}

/// The receiving half of a stream.
pub trait RecvStream: Send + 'static {
    /// The next bytes in order; `None` at the end of the stream.
    fn read(&mut self) -> impl Future<Output = Result<Option<Bytes>>> + Send;
}
