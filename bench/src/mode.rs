//! The modes: what each does, what its figures mean, and what they are compared with.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::peers::Peer;

/// A test of the contenders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// One stream
    Bulk,
    /// 100 streams of one connection
    #[value(name = "bulk-streams")]
    BulkStreams,
    /// 50 connections with one stream each
    #[value(name = "bulk-connections")]
    BulkConnections,
    /// Full handshakes, one after the other, each with a request of one byte
    #[value(name = "hs")]
    #[serde(rename = "hs")]
    Handshake,
    /// The same resumed, with 0-RTT where the stack has it
    #[value(name = "hsr")]
    #[serde(rename = "hsr")]
    Resumed,
    /// Full handshakes with the key exchange that most clients prefer, X25519MLKEM768
    #[value(name = "hs-ml-kem")]
    #[serde(rename = "hs-ml-kem")]
    PostQuantum,
    /// 100 B for 1 KiB on 100 streams at a time
    #[value(name = "rr")]
    #[serde(rename = "rr")]
    Requests,
    /// Unreliable datagrams of 1,200 B
    #[value(name = "dgram")]
    #[serde(rename = "dgram")]
    Datagrams,
    /// The memory of idle connections
    Idle,
    /// Latency of requests at 50, 80 and 95 % of the capacity, and beside a transfer
    Latency,
}

/// Form in which the cost of a unit of work is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantity {
    /// CPU time per unit, multiplied to this scale.
    Cost {
        /// From nanoseconds per unit to what is shown.
        scale: f64,
        /// Name.
        unit: &'static str,
    },
    /// Units per CPU second, in thousands.
    Rate,
    /// Bytes of memory, shown in KiB.
    Memory,
}

impl Mode {
    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::BulkStreams => "bulk-streams",
            Self::BulkConnections => "bulk-connections",
            Self::Handshake => "hs",
            Self::Resumed => "hsr",
            Self::PostQuantum => "hs-ml-kem",
            Self::Requests => "rr",
            Self::Datagrams => "dgram",
            Self::Idle => "idle",
            Self::Latency => "latency",
        }
    }

    /// The heading in the report.
    pub fn title(self) -> &'static str {
        match self {
            Self::Bulk => "Bulk: one stream",
            Self::BulkStreams => "Bulk: 100 streams of one connection",
            Self::BulkConnections => "Bulk: 50 connections with one stream each",
            Self::Handshake => "Full handshakes",
            Self::Resumed => "Resumed handshakes",
            Self::PostQuantum => "Full handshakes with X25519MLKEM768",
            Self::Requests => "Requests of 100 B, answers of 1 KiB, 100 at a time",
            Self::Datagrams => "Datagrams of 1,200 B",
            Self::Idle => "Memory of an idle connection",
            Self::Latency => "Latency of requests under load",
        }
    }

    /// Names of client and server in the table.
    pub fn sides(self) -> (&'static str, &'static str) {
        match self {
            Self::Bulk | Self::BulkStreams | Self::BulkConnections => ("sender", "receiver"),
            Self::Datagrams => ("sending", "receiving"),
            _ => ("client", "server"),
        }
    }

    /// Form of the figures.
    pub fn quantity(self) -> Quantity {
        match self {
            Self::Bulk | Self::BulkStreams | Self::BulkConnections => {
                Quantity::Cost { scale: 1_073_741_824.0 / 1e9, unit: "s/GiB" }
            }
            Self::Handshake | Self::Resumed | Self::PostQuantum => Quantity::Cost { scale: 1e-6, unit: "ms" },
            Self::Requests | Self::Latency => Quantity::Cost { scale: 1e-3, unit: "µs" },
            Self::Datagrams => Quantity::Rate,
            Self::Idle => Quantity::Memory,
        }
    }

    /// The contenders that others are compared with, each in the same round.
    pub fn yardsticks(self) -> &'static [Peer] {
        match self {
            Self::Bulk | Self::BulkStreams | Self::BulkConnections => &[Peer::Floor, Peer::Quinn, Peer::TcpRustls],
            Self::Handshake | Self::Resumed | Self::PostQuantum => &[Peer::TcpRustls, Peer::Quinn],
            Self::Requests | Self::Idle | Self::Latency => &[Peer::Quinn],
            Self::Datagrams => &[Peer::UdpGso, Peer::Udp, Peer::Quinn],
        }
    }

    /// Returns whether the amount is a number of bytes.
    pub fn moves_bytes(self) -> bool {
        matches!(self, Self::Bulk | Self::BulkStreams | Self::BulkConnections)
    }

    /// Amount of a run: `bytes` where bytes are moved, otherwise what takes a second or two, times `scale`.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
    pub fn amount(self, bytes: u64, scale: f64) -> u64 {
        let amount = match self {
            Self::Bulk | Self::BulkStreams | Self::BulkConnections => return bytes,
            Self::Handshake | Self::Resumed | Self::PostQuantum => 1_000.0,
            Self::Requests | Self::Latency => 200_000.0,
            Self::Datagrams => 1_000_000.0,
            Self::Idle => 2_000.0,
        };
        ((amount * scale) as u64).max(1)
    }
}
