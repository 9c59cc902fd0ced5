//! Settings of a relay.

use std::{net::SocketAddr, sync::Arc};

use capture::PacketFile;
use netem::{LinkConfig, NatConfig};
use units::{DataSize, Duration, Seed};

/// Settings of a relay.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Address that clients send to. Port 0 takes any free one (see `Relay::address`). An IPv6 address takes IPv6 only.
    pub listen: SocketAddr,
    /// The server.
    pub to: SocketAddr,
    /// From clients to the server, shared by all clients.
    pub up: LinkConfig,
    /// From the server to clients, shared by all clients.
    pub down: LinkConfig,
    /// Address translation between the clients and the links. Its times count from the first packet, like those of the links. Other
    /// addresses (and not only other ports) need a server on an IPv4 loopback address.
    pub nat: Option<NatConfig>,
    /// The same seed gives the n-th packet the same luck.
    pub seed: Seed,
    /// Concurrent client addresses. Each has its own socket towards the server; behind a NAT as many sockets again are kept for old
    /// mappings. Packets of further clients are dropped, unless another one has been silent for [`Self::client_idle`].
    pub max_clients: usize,
    /// A client silent for this long may lose its place to a new one.
    pub client_idle: Duration,
    /// Limit on the bytes of waiting packets. Packets beyond it are dropped and counted as `overflowed`.
    pub max_held: DataSize,
    /// File for the packets that clients have sent and that are sent to them: what a capture at the clients would have. Writing it takes
    /// time of the relay's thread.
    pub packets: Option<Arc<PacketFile>>,
}

impl RelayConfig {
    /// A relay that passes everything on at once; set `up` and `down` for the rest.
    pub fn new(listen: SocketAddr, to: SocketAddr) -> Self {
        Self {
            listen,
            to,
            up: LinkConfig::default(),
            down: LinkConfig::default(),
            nat: None,
            seed: Seed::from_number(1),
            max_clients: 512,
            client_idle: Duration::from_secs(30),
            max_held: DataSize::from_bytes(256 << 20),
            packets: None,
        }
    }
}
