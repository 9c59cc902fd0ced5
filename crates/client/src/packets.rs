//! Packets and keys of connections in a pcapng file.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock},
};

use capture::{Packet, PacketFile, key_line};
use rustls::KeyLog;
use tiderace::{Tap, Tapped, transport::Ecn};
use units::Instant;

use crate::local;

/// Tap that writes what passes the sockets of one endpoint into a [`PacketFile`].
#[derive(Debug)]
pub struct PacketTap {
    file: Arc<PacketFile>,
    bound: OnceLock<SocketAddr>,
    address: OnceLock<IpAddr>,
}

impl PacketTap {
    /// A tap that writes into `file`.
    pub const fn new(file: Arc<PacketFile>) -> Self {
        Self { file, bound: OnceLock::new(), address: OnceLock::new() }
    }

    /// Sets the address that the endpoint is bound to, which packets carry.
    pub fn bind(&self, address: SocketAddr) {
        let _ = self.bound.set(address);
    }

    /// Address of this end; for an endpoint that is bound to all addresses, the one that leads to its first peer.
    fn local(&self, tapped: &Tapped<'_>) -> SocketAddr {
        let bound = self.bound.get().copied().unwrap_or_else(|| local::any(tapped.remote));
        if !bound.ip().is_unspecified() {
            return bound;
        }
        let found = || tapped.local.or_else(|| local::local_address(tapped.remote)).unwrap_or(bound.ip());
        SocketAddr::new(*self.address.get_or_init(found), bound.port())
    }
}

impl Tap for PacketTap {
    fn is_open(&self) -> bool {
        true
    }

    fn pass(&self, tapped: &Tapped<'_>) {
        let (local, remote) = (self.local(tapped), tapped.remote);
        let (from, to) = if tapped.sent { (local, remote) } else { (remote, local) };
        let ecn = tapped.ecn.map_or(0, Ecn::bits);
        for payload in tapped.datagrams() {
            self.file.packet(&Packet { at: tapped.at - Instant::ZERO, from, to, ecn, payload });
        }
    }
}

/// Key log that writes into a [`PacketFile`], and into another log where there is one.
#[derive(Debug)]
pub struct PacketKeys {
    file: Arc<PacketFile>,
    other: Option<Arc<dyn KeyLog>>,
}

impl PacketKeys {
    /// A key log that writes into `file` and `other`.
    pub const fn new(file: Arc<PacketFile>, other: Option<Arc<dyn KeyLog>>) -> Self {
        Self { file, other }
    }
}

impl KeyLog for PacketKeys {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        self.file.keys(&key_line(label, client_random, secret));
        if let Some(other) = &self.other {
            other.log(label, client_random, secret);
        }
    }
}
