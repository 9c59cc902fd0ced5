//! Arguments of a peer, contents of streams and datagrams, and what a peer reports. README.md has all of it in words.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::LazyLock};

use anyhow::Result;
use clap::{Parser, Subcommand};
use serde::Serialize;
use tokio::io::AsyncReadExt;

/// Streams of each kind that each end opens.
pub const STREAMS: u32 = 25;
/// Datagrams that the client sends.
pub const DATAGRAMS: u32 = 1_000;
/// Bytes of a stream at most.
pub const MAX: usize = 1_000_000;
/// Close by the client, of the session that carries everything.
pub const CLOSE_OF_CLIENT: (u32, &str) = (4, "the client is done");
/// Close by the server, of the session that asks for it.
pub const CLOSE_OF_SERVER: (u32, &str) = (7, "the server is done");
/// Application protocols that a client offers, the preferred one first.
pub const OFFERED: [&str; 2] = ["sessions-2", "sessions-1"];
/// The one of them that servers have.
pub const PROTOCOL: &str = "sessions-1";
/// Path of the session that carries everything.
pub const STREAMS_PATH: &str = "/streams";
/// Path of the session that the server closes.
pub const CLOSE_PATH: &str = "/close";

/// Kind of a stream's direction, its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Bidirectional stream of the client.
    Ask = 1,
    /// Answer of the server on it.
    Answer = 2,
    /// Bidirectional stream of the server.
    ServerAsk = 3,
    /// Answer of the client on it.
    ClientAnswer = 4,
    /// Unidirectional stream of the client.
    Up = 5,
    /// Unidirectional stream of the server.
    Down = 6,
    /// Unidirectional stream of the server, once it has everything.
    Complete = 7,
    /// Unidirectional stream of the client that asks the server to close the session.
    PleaseClose = 8,
}

const PERIOD: usize = 65_521;

/// Pseudorandom bytes, twice over so that a period begins anywhere.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345) & 0x7fff_ffff;
        (state >> 16) as u8
    };
    let once: Vec<u8> = (0..PERIOD).map(|_| next()).collect();
    once.repeat(2)
});

/// Bytes of the pattern that begin at a place that depends on `kind` and `index`.
fn pattern(kind: u32, index: u32, len: usize) -> impl Iterator<Item = u8> {
    let begin = (kind as usize * 7_919 + index as usize * 1_009) % PERIOD;
    let pattern = &PATTERN[begin..begin + PERIOD];
    pattern.iter().copied().cycle().take(len)
}

/// Content of a direction of a stream: its kind, its number, and bytes that differ from stream to stream and from place to place.
pub fn content(kind: Kind, index: u32) -> Vec<u8> {
    let len = match (kind, index) {
        (Kind::Complete | Kind::PleaseClose, _) => 0,
        (_, index) if index == STREAMS - 1 => 500_000,
        (_, index) => index as usize * index as usize * 97,
    };
    let header = [kind as u8].into_iter().chain(index.to_be_bytes());
    header.chain(pattern(kind as u32, index, len)).collect()
}

/// Payload of a datagram: its number, and up to a thousand bytes.
pub fn datagram(index: u32) -> Vec<u8> {
    index.to_be_bytes().into_iter().chain(pattern(9, index, index as usize % 1_000)).collect()
}

/// Command line of a peer.
#[derive(Parser)]
pub struct Command {
    /// Role of the peer.
    #[command(subcommand)]
    pub role: Role,
}

/// Role of a peer.
#[derive(Subcommand)]
pub enum Role {
    /// Serve sessions until standard input ends.
    Server {
        /// Address to listen on.
        #[arg(long)]
        listen: SocketAddr,
        /// Certificate, PEM.
        #[arg(long)]
        cert: PathBuf,
        /// Key of the certificate, PEM.
        #[arg(long)]
        key: PathBuf,
    },
    /// Begin both sessions at a server.
    Client {
        /// Address of the server.
        #[arg(long)]
        connect: SocketAddr,
        /// Certificate that is trusted, PEM.
        #[arg(long)]
        ca: PathBuf,
    },
}

/// End of a session, as a peer sees it.
#[derive(Debug, Default, Serialize)]
pub struct Close {
    /// Code of the application; none when the end has none.
    pub code: Option<u32>,
    /// Message of the application.
    pub reason: String,
    /// Wording of the stack for the end.
    pub how: String,
}

/// Report of a peer on a session, one line each.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Path of the session.
    pub path: String,
    /// Directions of streams that came complete, with the right bytes.
    pub streams: u32,
    /// Bytes of them.
    pub bytes: u64,
    /// Datagrams that came with the right bytes, each number once.
    pub datagrams: u32,
    /// Datagrams that were sent again.
    pub resent: u32,
    /// End of the session. The end that closes it reports what it gave.
    pub close: Close,
    /// Variant of the protocol, where the stack says it.
    pub draft: Option<String>,
    /// Application protocol that was agreed on, where the stack has any.
    pub protocol: Option<String>,
    /// First thing that was wrong.
    pub error: Option<String>,
}

impl Report {
    /// Prints the line.
    pub fn print(&self) {
        println!("{}", serde_json::to_string(self).expect("a report is text"));
    }
}

/// Serves until whoever started this peer closes its standard input.
pub async fn serve(accept: impl Future<Output = ()>) {
    let (mut stdin, mut ignored) = (tokio::io::stdin(), vec![]);
    tokio::select! {
        () = accept => {}
        _ = stdin.read_to_end(&mut ignored) => {}
    }
}

/// Says on standard output where the server listens.
pub fn ready(address: SocketAddr) {
    println!("{}", serde_json::json!({ "ready": true, "address": address.to_string() }));
}

/// Runs a peer to its end.
pub fn conclude(run: impl Future<Output = Result<()>>) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match runtime.block_on(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
