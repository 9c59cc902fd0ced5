//! Ready-made networks: dumbbell and single pair.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use netem::{LinkConfig, NatConfig};
use rand_core::RngCore;
use units::{Duration, Instant, Seed};

use crate::{Access, LinkId, Network, Node, SimError, Simulation};

/// A node with its name and its way to the bottleneck.
#[derive(Clone, Debug)]
pub struct Host<N> {
    /// Name in errors and in the explanation of a stall.
    pub name: String,
    /// The node.
    pub node: N,
    /// The way to the bottleneck.
    pub access: Access,
    /// Time at which it is called for the first time.
    pub start: Instant,
}

impl<N> Host<N> {
    /// A host directly at the bottleneck that starts at the origin of time.
    pub fn new(name: impl Into<String>, node: N) -> Self {
        Self { name: name.into(), node, access: Access::default(), start: Instant::ZERO }
    }
}

/// Clients on one side, servers on the other, and between them one link in each direction that all of them share.
///
/// ```text
/// client 0 ─┐                       ┌─ server 0
/// client 1 ─┤── up ──▶  ◀── down ── ├─ server 1
/// client 2 ─┘                       └─ …
/// ```
#[derive(Clone, Debug, Default)]
pub struct Dumbbell {
    /// From the clients to the servers.
    pub up: LinkConfig,
    /// From the servers to the clients.
    pub down: LinkConfig,
    /// Address translation between the clients and the links.
    pub nat: Option<NatConfig>,
    /// Jitter of the start: each client starts later than its host by a uniform random time up to this.
    pub start_jitter: Duration,
}

impl Dumbbell {
    /// The link from the clients to the servers.
    pub const UP: LinkId = LinkId(0);
    /// The link from the servers to the clients.
    pub const DOWN: LinkId = LinkId(1);

    /// Builds the network with its nodes. Client `i` is node `i` and has the address [`client_address`]`(i)`; server `i`
    /// is node `clients + i` and has [`server_address`]`(i)`.
    ///
    /// The packets of client `i` and those sent to it have flow number `i` on both links.
    ///
    /// # Errors
    /// When the settings of a link contradict themselves.
    pub fn build<N: Node>(
        &self,
        seed: Seed,
        clients: impl IntoIterator<Item = Host<N>>,
        servers: impl IntoIterator<Item = Host<N>>,
    ) -> Result<Simulation<N>, SimError> {
        let mut network = Network::new(seed);
        let (left, right) = (network.zone(), network.zone());
        network.connect(left, right, "up", &self.up)?;
        network.connect(right, left, "down", &self.down)?;
        if let Some(nat) = &self.nat {
            network.translate(left, nat);
        }
        let mut simulation = Simulation::new(network);
        let span = u64::try_from(self.start_jitter.as_nanos()).unwrap_or(u64::MAX);
        for (index, mut host) in (0..).zip(clients) {
            let draw = seed.child("start", u64::from(index)).stream("start").next_u64();
            let later = (u128::from(draw) * (u128::from(span) + 1)) >> 64;
            host.start += Duration::from_nanos(u64::try_from(later).unwrap_or(span));
            let node = simulation.add(host.name, host.node, host.start);
            simulation.attach(node, client_address(index).ip(), left, host.access)?;
        }
        for (index, host) in (0..).zip(servers) {
            let node = simulation.add(host.name, host.node, host.start);
            simulation.attach(node, server_address(index).ip(), right, host.access)?;
        }
        Ok(simulation)
    }
}

/// One client (node 0, at [`client_address`]`(0)`) and one server (node 1, at [`server_address`]`(0)`).
///
/// # Errors
/// When the settings of a link contradict themselves.
pub fn point_to_point<N: Node>(
    seed: Seed,
    up: &LinkConfig,
    down: &LinkConfig,
    client: N,
    server: N,
) -> Result<Simulation<N>, SimError> {
    let dumbbell = Dumbbell { up: up.clone(), down: down.clone(), ..Dumbbell::default() };
    dumbbell.build(seed, [Host::new("client", client)], [Host::new("server", server)])
}

/// The address of a client in a [`Dumbbell`].
pub const fn client_address(index: u16) -> SocketAddr {
    address(1, index, 50_000)
}

/// The address of a server in a [`Dumbbell`].
pub const fn server_address(index: u16) -> SocketAddr {
    address(2, index, 443)
}

/// 10.`side`.x.y, so that both sides have room for 65,536.
const fn address(side: u8, index: u16, port: u16) -> SocketAddr {
    let [high, low] = index.to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, side, high, low)), port)
}
