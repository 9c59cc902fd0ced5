//! Lines that a server prints about itself and about connections that have ended.

use std::{net::SocketAddr, time::Duration};

use serde_json::json;
use tiderace::Endpoint;

use super::samples::Samples;
use crate::{
    failure::Failure,
    stdout::{write_json_line, write_out},
    trust::Fingerprint,
};

/// Prints the connections of each shard, and the datagrams that reached it for another one.
pub(super) fn say_shards(endpoint: &Endpoint, json: bool) -> Result<(), Failure> {
    for shard in 0..endpoint.shards() {
        let (stats, _) = endpoint.shard_stats(shard);
        if json {
            write_json_line(&json!({
                "event": "shard", "shard": shard, "connections": stats.connections, "forwarded": stats.forwarded,
            }))?;
        } else {
            let (connections, forwarded) = (stats.connections, stats.forwarded);
            write_out(&format!("shard {shard}: {connections} connections, {forwarded} datagrams forwarded\n"))?;
        }
    }
    Ok(())
}

/// Transports of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Quic,
    Tcp,
    Both,
}

impl Over {
    /// Name in JSON, and the option of a client.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Quic => ("quic", ""),
            Self::Tcp => ("tcp", " --tcp"),
            Self::Both => ("quic+tcp", " --beside-tcp"),
        }
    }
}

/// Prints the address of the server, and how clients trust it.
pub(super) fn say_listening(
    address: SocketAddr,
    fingerprint: Fingerprint,
    over: Over,
    json: bool,
) -> Result<(), Failure> {
    let (transport, option) = over.names();
    if json {
        return write_json_line(&json!({
            "event": "listening", "address": address.to_string(),
            "certificate_sha256": fingerprint.to_string(), "transport": transport,
        }));
    }
    eprintln!("listening on {address}, Ctrl-C ends");
    eprintln!("certificate SHA-256 {fingerprint}");
    eprintln!("clients trust it with: tiderace perf client HOST:{} --pin {fingerprint}{option}", address.port());
    Ok(())
}

/// A connection that has ended.
pub(super) struct Line {
    pub(super) peer: String,
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) duration: Duration,
    pub(super) rtt: Samples,
    pub(super) reason: String,
}

impl Line {
    pub(super) fn json(&self) -> serde_json::Value {
        json!({
            "event": "connection", "peer": self.peer, "received_bytes": self.received, "sent_bytes": self.sent,
            "duration_s": self.duration.as_secs_f64(), "rtt": self.rtt.summary(), "closed": self.reason,
        })
    }

    pub(super) fn text(&self) -> String {
        let rtt = self.rtt.summary().map_or("–".to_owned(), |rtt| format!("{:.3} ms", rtt.p50_ms));
        format!(
            "{}: {} received, {} sent in {:.2} s, RTT p50 {rtt}; {}\n",
            self.peer,
            indicatif::DecimalBytes(self.received),
            indicatif::DecimalBytes(self.sent),
            self.duration.as_secs_f64(),
            self.reason
        )
    }
}
