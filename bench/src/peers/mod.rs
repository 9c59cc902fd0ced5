//! The contenders, and the command line by which the driver plays them.
//!
//! A contender is one module with two functions:
//!
//! - `serve(listen, bytes, announce)` binds, calls `announce` once with its address and what the client must trust,
//!   receives `bytes` bytes of one stream while checking them, answers with `ANSWER`, and returns its report;
//! - `send(to, trust, bytes)` connects, sends the stream of `content::Source`, waits for the answer, returns its report.
//!
//! The driver sees only the processes: `bench peer NAME server …` prints the announcement as one JSON line and later its
//! report as another; `bench peer NAME client …` prints its report.

mod floor;
mod quinn;
mod tcp_rustls;
mod tiderace;

use std::{net::SocketAddr, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::{identity, meter::SideReport, sys};

/// What the receiver answers when it has everything: eight bytes.
pub const ANSWER: &[u8; 8] = b"received";
/// UDP payload of a full packet, in bytes.
pub const UDP_PAYLOAD: u16 = 1452;
/// Socket buffer asked for, in bytes; the kernel counts twice that.
pub const SOCKET_BUFFER: u32 = 8 << 20;
/// Flow control window of one stream, in bytes.
pub const STREAM_WINDOW: u32 = 16 << 20;
/// Flow control window of one connection, in bytes.
pub const CONNECTION_WINDOW: u32 = 64 << 20;

/// The contenders this build knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// Kernel UDP with GSO and GRO plus AES-128-GCM: what any QUIC has to pay
    Floor,
    /// Ours, on tokio's current-thread runtime
    Tiderace,
    /// quinn 0.11 on tokio's current-thread runtime
    Quinn,
    /// Kernel TCP with TLS 1.3 by rustls
    TcpRustls,
}

impl Peer {
    /// The name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Tiderace => "tiderace",
            Self::Quinn => "quinn",
            Self::TcpRustls => "tcp-rustls",
        }
    }
}

/// What a server announces when it can be reached.
#[derive(Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// Where it listens.
    pub address: SocketAddr,
    /// The authority's certificate as hexadecimal DER; empty where there is no TLS.
    pub trust: String,
}

impl Announcement {
    fn new(address: SocketAddr, trust: &[u8]) -> Self {
        Self { address, trust: identity::to_hex(trust) }
    }
}

/// One side of one contender.
#[derive(Args)]
pub struct Arguments {
    /// The contender
    peer: Peer,
    /// Size of the stream in bytes; both sides must be given the same
    #[arg(long, default_value_t = 1 << 30)]
    bytes: u64,
    /// Run on this CPU only
    #[arg(long)]
    cpu: Option<usize>,
    /// End by signal after this many seconds
    #[arg(long, default_value_t = 600)]
    time_limit: u32,
    #[command(subcommand)]
    side: Side,
}

#[derive(Subcommand)]
enum Side {
    /// Receive and check
    Server {
        /// Where to listen
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
    },
    /// Connect and send
    Client {
        /// The address the server announced
        #[arg(long)]
        to: SocketAddr,
        /// The certificate the server announced
        #[arg(long, default_value = "")]
        trust: String,
    },
}

/// Plays one side and prints its JSON lines.
pub fn execute(arguments: &Arguments) -> Result<ExitCode> {
    sys::end_after(arguments.time_limit);
    if let Some(cpu) = arguments.cpu {
        sys::pin_to_cpu(cpu).with_context(|| format!("cannot run on CPU {cpu}"))?;
    }
    let bytes = arguments.bytes;
    let report: SideReport = match &arguments.side {
        Side::Server { listen } => {
            let announce = |announcement: &Announcement| -> Result<()> {
                // A line at a time: the standard output of a pipe is flushed at the end of each line.
                println!("{}", serde_json::to_string(announcement)?);
                Ok(())
            };
            match arguments.peer {
                Peer::Floor => floor::serve(*listen, bytes, announce),
                Peer::Tiderace => tiderace::serve(*listen, bytes, announce),
                Peer::Quinn => quinn::serve(*listen, bytes, announce),
                Peer::TcpRustls => tcp_rustls::serve(*listen, bytes, announce),
            }?
        }
        Side::Client { to, trust } => {
            let trust = identity::from_hex(trust)?;
            match arguments.peer {
                Peer::Floor => floor::send(*to, bytes),
                Peer::Tiderace => tiderace::send(*to, &trust, bytes),
                Peer::Quinn => quinn::send(*to, &trust, bytes),
                Peer::TcpRustls => tcp_rustls::send(*to, &trust, bytes),
            }?
        }
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(ExitCode::SUCCESS)
}
