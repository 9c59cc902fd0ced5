//! The contenders, and the command line by which the driver plays them.
//!
//! A contender is one module. Those with an asynchronous interface implement [`stack::Stack`](crate::stack) and get the workloads
//! from there; the others have two functions for every mode:
//!
//! - `serve(job, listen, announce)` binds, calls `announce` once with its address and what the client must trust, does the
//!   server's part of the job while checking what arrives, and returns its report;
//! - `run(job, to, trust)` connects, does the client's part, and returns its report.
//!
//! The driver sees only the processes: `bench peer NAME … server` prints the announcement as one JSON line and later its
//! report as another; `bench peer NAME … client` prints its report.

mod floor;
#[cfg(feature = "noq")]
mod noq;
mod quic_go;
#[cfg(feature = "quiche")]
mod quiche;
mod quinn;
#[cfg(feature = "s2n")]
mod s2n;
mod tcp_rustls;
mod tiderace;
mod tiderace_service;
mod udp;

use std::{net::SocketAddr, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use self::{
    floor::{Sending, packet::Protection},
    udp::SendMode,
};
use crate::{identity, job::Job, meter::SideReport, mode::Mode, sys, workload};

/// Answer of a stream's receiver once it has everything: eight bytes.
pub const ANSWER: &[u8; 8] = b"received";

/// The contenders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// Kernel UDP with GSO and GRO plus AES-128-GCM: what any QUIC has to pay
    Floor,
    /// The floor with packets that are authenticated and not encrypted (bulk only; when asked for)
    FloorIntegrity,
    /// The floor whose sender asks the kernel not to copy (MSG_ZEROCOPY; bulk only; when asked for)
    FloorZerocopy,
    /// Raw UDP with GSO and GRO (datagrams only)
    UdpGso,
    /// Raw UDP with a system call per datagram (datagrams only)
    Udp,
    /// Kernel TCP with TLS 1.3 by rustls
    TcpRustls,
    /// Ours, on tokio's current-thread runtime
    Tiderace,
    /// Ours with the TLS work of servers on the task that drives the socket, not on threads of its own (handshakes only)
    TideraceInPlace,
    /// Ours with answers made in the pass that drives the socket, not by tasks (requests only)
    TideraceService,
    /// quinn 0.11 on tokio's current-thread runtime
    Quinn,
    /// noq 1.4 on tokio's current-thread runtime (`--features noq`)
    Noq,
    /// s2n-quic 1.91 on tokio's current-thread runtime (`--features s2n`)
    S2nQuic,
    /// quiche 0.30 with a driver of ours on tokio's current-thread runtime (`--features quiche`)
    Quiche,
    /// quic-go 0.65, built when it is asked for; needs Go
    QuicGo,
}

impl Peer {
    /// The name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::FloorIntegrity => "floor-integrity",
            Self::FloorZerocopy => "floor-zerocopy",
            Self::UdpGso => "udp-gso",
            Self::Udp => "udp",
            Self::TcpRustls => "tcp-rustls",
            Self::Tiderace => "tiderace",
            Self::TideraceInPlace => "tiderace-in-place",
            Self::TideraceService => "tiderace-service",
            Self::Quinn => "quinn",
            Self::Noq => "noq",
            Self::S2nQuic => "s2n-quic",
            Self::Quiche => "quiche",
            Self::QuicGo => "quic-go",
        }
    }

    /// Returns whether this build has it.
    pub fn is_built(self) -> bool {
        const ABSENT: &[Peer] = &[
            #[cfg(not(feature = "noq"))]
            Peer::Noq,
            #[cfg(not(feature = "s2n"))]
            Peer::S2nQuic,
            #[cfg(not(feature = "quiche"))]
            Peer::Quiche,
        ];
        !ABSENT.contains(&self)
    }

    /// Returns whether it runs when no contenders are named: what this build has, without what has to be built by another tool, is no
    /// protocol that anybody should use, or answers one question.
    pub fn is_default(self) -> bool {
        self.is_built() && !matches!(self, Self::QuicGo | Self::FloorIntegrity | Self::FloorZerocopy)
    }

    /// Makes it ready, or says what is missing.
    pub fn prepare(self) -> Result<()> {
        if !self.is_built() {
            let name = self.name();
            let feature = if self == Self::S2nQuic { "s2n" } else { name };
            bail!("this build has no {name}\nhint: cargo run --release --features {feature} -- …");
        }
        if self == Self::QuicGo { quic_go::build() } else { Ok(()) }
    }

    /// Returns whether it can do this at all.
    pub fn can(self, mode: Mode) -> bool {
        match self {
            Self::Floor => mode.moves_bytes() || mode == Mode::Datagrams,
            Self::FloorIntegrity | Self::FloorZerocopy => mode.moves_bytes(),
            Self::UdpGso | Self::Udp => mode == Mode::Datagrams,
            Self::TcpRustls => !matches!(mode, Mode::BulkStreams | Mode::Requests | Mode::Datagrams | Mode::Latency),
            Self::TideraceInPlace => matches!(mode, Mode::Handshake | Mode::Resumed | Mode::PostQuantum),
            Self::TideraceService => mode == Mode::Requests,
            Self::S2nQuic => !matches!(mode, Mode::Resumed | Mode::PostQuantum),
            Self::QuicGo => !matches!(mode, Mode::Latency | Mode::PostQuantum),
            Self::Quiche => mode != Mode::PostQuantum,
            Self::Tiderace | Self::Quinn | Self::Noq => true,
        }
    }
}

/// Announcement of a server that can be reached.
#[derive(Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// Address that it listens on.
    pub address: SocketAddr,
    /// The authority's certificate as hexadecimal DER; empty where there is no TLS.
    pub trust: String,
}

impl Announcement {
    /// Of a server at `address` whose certificate was signed by `trust`.
    pub fn new(address: SocketAddr, trust: &[u8]) -> Self {
        Self { address, trust: identity::to_hex(trust) }
    }
}

/// One side of one contender.
#[derive(Args)]
pub struct Arguments {
    /// The contender
    peer: Peer,
    #[command(flatten)]
    job: Job,
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
    /// Listen; receive and check
    Server {
        /// Address to listen on
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

impl Side {
    /// As it is written on the command line.
    fn arguments(&self) -> Vec<String> {
        match self {
            Self::Server { listen } => vec!["server".to_owned(), "--listen".to_owned(), listen.to_string()],
            Self::Client { to, trust } => {
                ["client", "--to", &to.to_string(), "--trust", trust].map(str::to_owned).to_vec()
            }
        }
    }
}

/// A line at a time: the standard output of a pipe is flushed at the end of each line.
fn announce(announcement: &Announcement) -> Result<()> {
    println!("{}", serde_json::to_string(announcement)?);
    Ok(())
}

fn serve(peer: Peer, job: Job, listen: SocketAddr) -> Result<SideReport> {
    match (peer, job.mode) {
        (Peer::Floor, Mode::Datagrams) => udp::serve(SendMode::Sealed, job, listen, announce),
        (Peer::Floor | Peer::FloorZerocopy, _) => floor::serve(Protection::Sealed, job, listen, announce),
        (Peer::FloorIntegrity, _) => floor::serve(Protection::Integrity, job, listen, announce),
        (Peer::UdpGso, _) => udp::serve(SendMode::Batched, job, listen, announce),
        (Peer::Udp, _) => udp::serve(SendMode::Single, job, listen, announce),
        (Peer::TcpRustls, _) => tcp_rustls::serve(job, listen, announce),
        (Peer::Tiderace, _) => workload::serve::<tiderace::Tiderace<true>>(job, listen, announce),
        (Peer::TideraceInPlace, _) => workload::serve::<tiderace::Tiderace<false>>(job, listen, announce),
        (Peer::TideraceService, _) => tiderace_service::serve(job, listen, announce),
        (Peer::Quinn, _) => workload::serve::<quinn::Quinn>(job, listen, announce),
        #[cfg(feature = "noq")]
        (Peer::Noq, _) => workload::serve::<noq::Noq>(job, listen, announce),
        #[cfg(feature = "s2n")]
        (Peer::S2nQuic, _) => workload::serve::<s2n::S2n>(job, listen, announce),
        #[cfg(feature = "quiche")]
        (Peer::Quiche, _) => workload::serve::<quiche::Quiche>(job, listen, announce),
        #[allow(unreachable_patterns, reason = "reached where a contender is not built")]
        _ => bail!("this build has no {}", peer.name()),
    }
}

fn run(peer: Peer, job: Job, to: SocketAddr, trust: &[u8]) -> Result<SideReport> {
    match (peer, job.mode) {
        (Peer::Floor, Mode::Datagrams) => udp::run(SendMode::Sealed, job, to),
        (Peer::Floor, _) => floor::run(Protection::Sealed, Sending::Copied, job, to),
        (Peer::FloorIntegrity, _) => floor::run(Protection::Integrity, Sending::Copied, job, to),
        (Peer::FloorZerocopy, _) => floor::run(Protection::Sealed, Sending::Shared, job, to),
        (Peer::UdpGso, _) => udp::run(SendMode::Batched, job, to),
        (Peer::Udp, _) => udp::run(SendMode::Single, job, to),
        (Peer::TcpRustls, _) => tcp_rustls::run(job, to, trust),
        (Peer::Tiderace, _) => workload::run::<tiderace::Tiderace<true>>(job, to, trust),
        (Peer::TideraceInPlace, _) => workload::run::<tiderace::Tiderace<false>>(job, to, trust),
        (Peer::TideraceService, _) => workload::run::<tiderace::Tiderace<true>>(job, to, trust),
        (Peer::Quinn, _) => workload::run::<quinn::Quinn>(job, to, trust),
        #[cfg(feature = "noq")]
        (Peer::Noq, _) => workload::run::<noq::Noq>(job, to, trust),
        #[cfg(feature = "s2n")]
        (Peer::S2nQuic, _) => workload::run::<s2n::S2n>(job, to, trust),
        #[cfg(feature = "quiche")]
        (Peer::Quiche, _) => workload::run::<quiche::Quiche>(job, to, trust),
        #[allow(unreachable_patterns, reason = "reached where a contender is not built")]
        _ => bail!("this build has no {}", peer.name()),
    }
}

/// Plays one side and prints its JSON lines.
pub fn execute(arguments: &Arguments) -> Result<ExitCode> {
    let (peer, job) = (arguments.peer, arguments.job);
    if !peer.can(job.mode) {
        bail!("{} cannot do {}", peer.name(), job.mode.name());
    }
    if job.mode == Mode::PostQuantum {
        identity::prefer_post_quantum();
    }
    sys::end_after(arguments.time_limit);
    if let Some(cpu) = arguments.cpu {
        sys::pin_to_cpu(cpu).with_context(|| format!("cannot run on CPU {cpu}"))?;
    }
    if peer == Peer::QuicGo {
        // Another program, which takes this one's place with its CPU and its output.
        return Err(quic_go::become_it(job, arguments.time_limit, &arguments.side.arguments()));
    }
    let report = match &arguments.side {
        Side::Server { listen } => serve(peer, job, *listen),
        Side::Client { to, trust } => run(peer, job, *to, &identity::from_hex(trust)?),
    }?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(ExitCode::SUCCESS)
}
