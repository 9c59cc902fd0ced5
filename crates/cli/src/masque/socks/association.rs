//! Datagrams of one program (UDP ASSOCIATE, RFC 1928 §7): a port of their own, and one tunnel for all targets with an IP address, or a tunnel for
//! each target.
//!
//! Datagrams are taken from the address of the program's connection, and from one port: the one that the program announced, or the one of its
//! first datagram. A program that sends to ever new targets holds `--max-tunnels` tunnels, as many that are closing, and a bounded number of bytes
//! that wait for them.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use client::masque::BoundTunnel;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    sync::Semaphore,
    task::JoinSet,
};

use super::{
    Server,
    bound::{BoundFlow, BoundUdp, Versions},
    codec::{self, Address, CodecError, Host, ReplyCode},
    handshake,
};
use crate::masque::{
    Tunnels,
    flow::{self, Counts, Flow, MAX_PAYLOAD, MAX_WAITING, Queue},
};

/// Datagrams that were not taken, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drops {
    /// From another address or port.
    foreign: u64,
    fragments: u64,
    /// Without a header that can be read, or to port 0.
    malformed: u64,
    /// For which there was no room.
    full: u64,
    /// Tunnels that ended for another one.
    evicted: u64,
}

impl Drops {
    pub(super) fn json(&self) -> Value {
        let Self { foreign, fragments, malformed, full, evicted } = self;
        json!({
            "foreign": foreign, "fragments": fragments, "malformed": malformed, "full": full,
            "evicted_tunnels": evicted,
        })
    }

    pub(super) fn text(&self) -> String {
        let counts = [
            (self.foreign, "datagrams of others"),
            (self.fragments, "fragments"),
            (self.malformed, "malformed"),
            (self.full, "without room"),
            (self.evicted, "tunnels evicted"),
        ];
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(", {count} {what}")).collect()
    }
}

/// A tunnel, and its last use.
struct Used {
    queue: Queue,
    at: u64,
}

/// The port of a program's datagrams.
pub(super) struct Association {
    socket: Arc<UdpSocket>,
    /// Address of the program.
    ip: IpAddr,
    /// Port of the program, once it is known.
    port: Option<u16>,
    tunnels: Arc<Tunnels>,
    bound: Arc<BoundUdp>,
    /// The tunnel for all targets, until the first datagram.
    first: Option<BoundTunnel>,
    /// IP versions of the tunnel for all targets; `None` if there is none.
    versions: Option<Versions>,
    /// Way into the tunnel for all targets.
    all: Option<Queue>,
    total: Arc<Counts>,
    idle: Duration,
    max_tunnels: usize,
    flows: HashMap<Address, Used>,
    tasks: JoinSet<()>,
    room: Arc<Semaphore>,
    /// Uses so far.
    clock: u64,
    drops: Drops,
}

impl Association {
    /// Opens a port at the address that the program has connected to, and tells the program.
    pub(super) async fn open(
        server: &Server,
        stream: &mut TcpStream,
        peer: SocketAddr,
        announced: u16,
    ) -> io::Result<Self> {
        let local = stream.local_addr()?.ip().to_canonical();
        let socket = match UdpSocket::bind((local, 0)).await {
            Ok(socket) => socket,
            Err(error) => {
                handshake::reply(stream, ReplyCode::GeneralFailure).await?;
                return Err(error);
            }
        };
        // Before the program sends: a refusal leads to a tunnel for each target, and what it was is reported there.
        let first = server.bound.open(peer).await.ok().flatten();
        let versions = first.as_ref().map(|tunnel| Versions::of(tunnel.public_addresses()));
        stream.write_all(&codec::reply(ReplyCode::Succeeded, socket.local_addr()?)).await?;
        Ok(Self {
            socket: Arc::new(socket),
            ip: peer.ip().to_canonical(),
            port: (announced != 0).then_some(announced),
            tunnels: server.tunnels.clone(),
            bound: server.bound.clone(),
            first,
            versions,
            all: None,
            total: server.counts.clone(),
            idle: server.idle,
            max_tunnels: server.max_tunnels,
            flows: HashMap::new(),
            tasks: JoinSet::new(),
            room: Arc::new(Semaphore::new(MAX_WAITING)),
            clock: 0,
            drops: Drops::default(),
        })
    }

    /// Takes datagrams until the program closes its connection. Returns the reason of the end.
    pub(super) async fn run(&mut self, stream: &mut TcpStream) -> &'static str {
        let socket = self.socket.clone();
        let mut buffer = vec![0; MAX_PAYLOAD];
        let mut ignored = [0; 256];
        loop {
            tokio::select! {
                // RFC 1928 §7: the association ends with the connection. Nothing is expected on it.
                read = stream.read(&mut ignored) => if matches!(read, Ok(0) | Err(_)) {
                    return "the program has left";
                },
                // An error is a report about what was sent before.
                received = socket.recv_from(&mut buffer) => if let Ok((length, from)) = received {
                    self.take(&buffer[..length], from);
                },
                Some(_) = self.tasks.join_next() => self.flows.retain(|_, flow| !flow.queue.is_closed()),
            }
        }
    }

    /// Takes a datagram, or drops and counts it.
    fn take(&mut self, datagram: &[u8], from: SocketAddr) {
        // RFC 1928 §7 has the server drop datagrams of other addresses.
        if from.ip().to_canonical() != self.ip || self.port.is_some_and(|port| port != from.port()) {
            self.drops.foreign += 1;
            return;
        }
        let (address, payload) = match codec::read_datagram(datagram) {
            Ok((address, payload)) if address.port != 0 => (address, payload),
            Err(CodecError::Fragment) => {
                self.drops.fragments += 1;
                return;
            }
            Ok(_) | Err(_) => {
                self.drops.malformed += 1;
                return;
            }
        };
        self.port = Some(from.port());
        // Names are the proxy's to resolve, which takes a tunnel for each.
        if let Host::Ip(ip) = address.host
            && self.bound.is_offered()
            && self.versions.is_some_and(|versions| versions.has(ip.to_canonical()))
        {
            self.take_bound(SocketAddr::new(ip.to_canonical(), address.port), payload, from);
            return;
        }
        self.clock += 1;
        let at = self.clock;
        if let Some(flow) = self.flows.get_mut(&address).filter(|flow| !flow.queue.is_closed()) {
            flow.at = at;
        } else if self.make_room() {
            let (queue, waiting) = flow::queue(&self.room);
            let flow = Flow {
                peer: from,
                target: address.clone().into(),
                header: codec::datagram_header(&address),
                local: self.socket.clone(),
                tunnels: self.tunnels.clone(),
                total: self.total.clone(),
                idle: self.idle,
            };
            self.tasks.spawn(flow.run(None, waiting));
            self.flows.insert(address.clone(), Used { queue, at });
        }
        if !self.flows.get(&address).is_some_and(|flow| flow.queue.push(payload)) {
            self.drops.full += 1;
        }
    }

    /// Takes a datagram for the tunnel to all targets, which is opened again if it has ended.
    fn take_bound(&mut self, to: SocketAddr, payload: &[u8], from: SocketAddr) {
        if self.all.as_ref().is_none_or(Queue::is_closed) {
            let (queue, waiting) = flow::queue(&self.room);
            let flow = BoundFlow {
                program: from,
                local: self.socket.clone(),
                bound: self.bound.clone(),
                total: self.total.clone(),
                idle: self.idle,
            };
            self.tasks.spawn(flow.run(self.first.take(), waiting));
            self.all = Some(queue);
        }
        if !self.all.as_ref().is_some_and(|queue| queue.push_to(Some(to), payload)) {
            self.drops.full += 1;
        }
    }

    /// Makes room for one more tunnel. Returns false while too many are closing.
    fn make_room(&mut self) -> bool {
        while self.tasks.try_join_next().is_some() {}
        self.flows.retain(|_, flow| !flow.queue.is_closed());
        if self.tasks.len() >= 2 * self.max_tunnels {
            return false;
        }
        if self.flows.len() >= self.max_tunnels {
            let oldest = self.flows.iter().min_by_key(|(_, flow)| flow.at).map(|(address, _)| address.clone());
            if let Some(flow) = oldest.and_then(|address| self.flows.remove(&address)) {
                flow.queue.end("evicted");
                self.drops.evicted += 1;
            }
        }
        true
    }

    /// Ends all tunnels, and waits until each has reported what it carried.
    pub(super) async fn end(mut self, reason: &'static str) -> Drops {
        if let Some(queue) = self.all.take() {
            queue.end(reason);
        }
        for (_, flow) in self.flows.drain() {
            flow.queue.end(reason);
        }
        while self.tasks.join_next().await.is_some() {}
        self.drops
    }
}
