use std::{num::NonZeroU8, sync::atomic::Ordering, time::Duration};

use tokio::time::timeout;
use transport::{
    ClientConfig, Profile, ServerConfig, SiblingShard,
    ring::KeyRing,
    tls::rustls_backend::{Identity, RustlsClient, RustlsServer},
};

use super::*;
use crate::{Connection, Endpoint, EndpointOptions, Shards, Sibling, SocketStats};

const LIMIT: Duration = Duration::from_secs(60);

/// Endpoints that have taken over from each other, the newest last.
struct Chain {
    server: ServerConfig,
    client: ClientConfig,
    workers: u8,
    endpoints: Vec<Arc<Endpoint>>,
    siblings: Vec<Arc<Sibling>>,
    /// The sockets with which clients began, kept open.
    ports: Mutex<Vec<UdpSocket>>,
}

impl Chain {
    /// `None` where the system does not permit steering.
    fn start(workers: u8) -> Option<Self> {
        let this = Self::start_with(workers, KernelSteering::Load);
        if let Some(fault) = this.last().steering_fault() {
            // With the privilege, a refusal is a fault of the program.
            assert!(fault.contains("CAP_BPF"), "{fault}");
            println!("skipped: {fault}");
            return None;
        }
        Some(this)
    }

    /// The same with, or without, steering.
    fn start_with(workers: u8, steering: KernelSteering) -> Self {
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let cert = certified.cert.der().to_vec();
        let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der()).unwrap();
        let server = RustlsServer::builder().identity(identity).alpn("test").build().unwrap();
        let client = RustlsClient::builder().roots([cert]).alpn("test").build().unwrap();
        let profile = Arc::new(Profile { handshake_timeout: LIMIT, ..Profile::default() });
        let server = ServerConfig::new(Arc::new(server), profile.clone());
        let client = ClientConfig::new(Arc::new(client), profile);
        let mut this =
            Self { server, client, workers, endpoints: Vec::new(), siblings: Vec::new(), ports: Mutex::default() };
        let first = Endpoint::open("127.0.0.1:0".parse().unwrap(), this.options(0, steering)).unwrap();
        this.endpoints.push(serve(first, 0));
        this
    }

    fn options(&self, number: u8, steering: KernelSteering) -> EndpointOptions {
        EndpointOptions {
            server: Some(self.server.clone()),
            generation: Some(IdGeneration { number, key: [9; 16] }),
            ring: Some(KeyRing::single([7; 32])),
            shards: Shards::new(NonZeroU8::new(self.workers).unwrap()),
            steering,
            is_among_others: self.endpoints.last().is_some_and(|old| old.is_among_others()),
            ..EndpointOptions::default()
        }
    }

    fn last(&self) -> &Arc<Endpoint> {
        self.endpoints.last().unwrap()
    }

    /// Another endpoint takes over.
    fn take_over(&mut self) {
        self.take_over_with(0);
    }

    /// The same, with the sockets of the older one `off` places of generations too far.
    fn take_over_with(&mut self, off: u8) {
        let old = self.last();
        let table = old.steering_table().unwrap().try_clone_to_owned().unwrap();
        old.steering.table.as_ref().unwrap().off.store(off, Ordering::Relaxed);
        self.take_over_by(KernelSteering::Adopt(table));
    }

    /// An endpoint that steers like this, on the sockets of the last one.
    fn next(&self, steering: KernelSteering) -> io::Result<Endpoint> {
        let sockets = self.last().sockets().map(|socket| socket.try_clone().unwrap()).collect();
        Endpoint::take_over(sockets, self.options(u8::try_from(self.endpoints.len()).unwrap(), steering))
    }

    /// An endpoint that goes on with the steering of the last one.
    fn successor(&self) -> Endpoint {
        let table = self.last().steering_table().map(|table| table.try_clone_to_owned().unwrap());
        self.next(table.map_or(KernelSteering::Off, KernelSteering::Adopt)).unwrap()
    }

    /// Another endpoint takes over, which steers like this.
    fn take_over_by(&mut self, steering: KernelSteering) {
        let new = self.next(steering).unwrap();
        self.continue_with(new);
    }

    fn continue_with(&mut self, new: Endpoint) {
        let number = u8::try_from(self.endpoints.len()).unwrap();
        let old = self.last().clone();
        self.siblings.push(Arc::new(Sibling { generation: number - 1, shards: old.open_inbox().unwrap() }));
        old.steer_own(true).unwrap();
        old.set_reading(false);
        old.set_server_config(None);
        new.open_missing().unwrap();
        let known = old.handshakes(100).into_iter();
        new.set_siblings(&self.siblings, known.map(|(id, shard)| (id, SiblingShard { generation: number - 1, shard })));
        new.set_reading(true);
        self.endpoints.push(serve(new, number));
    }

    async fn connect(&self) -> (Endpoint, Connection) {
        let to = self.endpoints[0].local_addr();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Another client could be given the port of a closed socket, and would reset what the server sends to the old address.
        self.ports.lock().unwrap().push(socket.try_clone().unwrap());
        let endpoint = Endpoint::on_socket(socket, EndpointOptions::default()).unwrap();
        let connecting = endpoint.connect(&self.client, to, "localhost").unwrap();
        let connection = timeout(LIMIT, connecting).await.expect("a handshake").unwrap();
        (endpoint, connection)
    }

    /// Lets clients come until each shard of the last endpoint has a connection.
    async fn fill(&self, connections: &mut Vec<(u8, (Endpoint, Connection))>) {
        let number = u8::try_from(self.endpoints.len() - 1).unwrap();
        let last = self.last();
        for _ in 0..200 {
            connections.push((number, self.connect().await));
            if (0..last.shards()).all(|shard| last.shard_stats(shard).0.connections > 0) {
                return;
            }
        }
        let of_each: Vec<u64> = (0..last.shards()).map(|shard| last.shard_stats(shard).0.connections).collect();
        panic!("clients reach some shards only: {of_each:?}");
    }

    fn resets(&self) -> u64 {
        self.endpoints.iter().map(|endpoint| endpoint.stats().resets).sum()
    }
}

/// Answers each stream with the number of the endpoint in front of what it said.
fn serve(endpoint: Endpoint, number: u8) -> Arc<Endpoint> {
    let endpoint = Arc::new(endpoint);
    let serving = endpoint.clone();
    tokio::spawn(async move {
        while let Some(connection) = serving.accept().await {
            tokio::spawn(async move {
                while let Ok((mut send, mut recv)) = connection.accept_bi().await {
                    let Ok(data) = recv.read_to_end(1_000_000).await else { break };
                    send.write_all(&[&[number], &data[..]].concat()).await.unwrap();
                    send.finish().unwrap();
                }
            });
        }
    });
    endpoint
}

/// The number of the endpoint that answers.
async fn ask(connection: &Connection) -> u8 {
    let asking = async {
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        send.write_all(&[7; 200_000]).await.unwrap();
        send.finish().unwrap();
        recv.read_to_end(1_000_000).await.unwrap()
    };
    let answer = timeout(LIMIT, asking).await.expect("an answer");
    assert_eq!(answer.len(), 200_001);
    answer[0]
}

#[tokio::test]
async fn the_kernel_passes_each_packet_to_its_process() {
    for workers in [1, 3] {
        let Some(mut chain) = Chain::start(workers) else { return };
        let mut connections = Vec::new();
        for number in 0..3 {
            if number > 0 {
                chain.take_over();
            }
            for _ in 0..2 {
                connections.push((number, chain.connect().await));
            }
        }
        // With a handshake that is confirmed: packets with long headers, which a slow machine repeats, are forwarded.
        for (of, (_, connection)) in &connections {
            assert_eq!(ask(connection).await, *of);
        }
        let before: Vec<SocketStats> = chain.endpoints.iter().map(|endpoint| endpoint.socket_stats()).collect();
        for (of, (endpoint, connection)) in &connections {
            assert_eq!(ask(connection).await, *of);
            // From another address, too.
            endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
            assert_eq!(ask(connection).await, *of);
        }
        for (number, before) in before.iter().enumerate() {
            let after = chain.endpoints[number].socket_stats();
            assert_eq!(after.sibling_sent - before.sibling_sent, 0, "{workers} workers, {number}: {after:?}");
            assert_eq!(after.forwards_dropped + after.misdirected, 0, "{after:?}");
            assert_eq!(after.steered > before.steered, number < 2, "{workers} workers, {number}: {after:?}");
        }
        // A client that reads its old socket late, when the server has retired the ID, resets; the answers to that are no faults.
        if connections.iter().all(|(_, (client, _))| client.stats().resets == 0) {
            assert_eq!(chain.resets(), 0);
        }
        // The endpoint that serves goes on with the shared sockets after an upgrade that has failed.
        let last = chain.last().clone();
        let (_endpoint, connection) = chain.connect().await;
        last.steer_own(true).unwrap();
        last.set_reading(false);
        last.steer_own(false).unwrap();
        last.set_reading(true);
        assert_eq!(ask(&connection).await, 2);
    }
}

#[tokio::test]
async fn a_socket_at_the_wrong_place_costs_no_connection() {
    let Some(mut chain) = Chain::start(2) else { return };
    let (_first, of_first) = chain.connect().await;
    // The first endpoint enters its sockets where those of the second one belong.
    chain.take_over_with(1);
    let (_second, of_second) = chain.connect().await;
    assert_eq!(ask(&of_second).await, 1);
    assert_eq!(ask(&of_first).await, 0);
    assert_eq!(ask(&of_second).await, 1);
    let (first, second) = (chain.endpoints[0].socket_stats(), chain.last().socket_stats());
    assert!(first.misdirected > 0, "{first:?}");
    assert!(second.sibling_sent > 0 && second.sibling_dropped == 0, "{second:?}");
    assert_eq!(chain.resets(), 0);
    assert!(of_first.close_reason().is_none() && of_second.close_reason().is_none());
}

/// A program without steering hands no table on; the one after it meets the program and the sockets of the first.
#[tokio::test]
async fn a_program_without_steering_in_between_costs_no_connection() {
    for workers in [1, 3] {
        let Some(mut chain) = Chain::start(workers) else { return };
        let mut connections = Vec::new();
        let join = async |chain: &Chain, connections: &mut Vec<_>| {
            for _ in 0..2 {
                connections.push((u8::try_from(chain.endpoints.len() - 1).unwrap(), chain.connect().await));
            }
            for (of, (endpoint, connection)) in connections {
                assert_eq!(ask(connection).await, *of);
                endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
                assert_eq!(ask(connection).await, *of);
            }
        };
        join(&chain, &mut connections).await;
        for steering in [KernelSteering::Off, KernelSteering::Load, KernelSteering::Load] {
            chain.take_over_by(steering);
            join(&chain, &mut connections).await;
        }
        let fault = chain.last().steering_fault().map(str::to_owned);
        println!("measured steering after the chain, {workers} workers: {fault:?}");
        // A socket is in one table, and that of the first program lives as long as its sockets.
        assert!(fault.is_some_and(|fault| fault.contains("the system does not take it")));
        assert!(chain.endpoints[0].socket_stats().steered > 0, "the first program goes on");
        let of_last = chain.last().socket_stats();
        assert!(of_last.sibling_sent > 0 && of_last.sibling_dropped == 0, "{of_last:?}");
        assert!(connections.iter().all(|(_, (_, connection))| connection.close_reason().is_none()));
    }
}

/// Steering of a chain by each way that the system permits.
fn ways() -> impl Iterator<Item = KernelSteering> {
    let may_load = Chain::start(1).is_some();
    [KernelSteering::Off, KernelSteering::Load].into_iter().take(1 + usize::from(may_load))
}

/// Number of UDP sockets at a port of IPv4 (proc_net_udp(5)).
fn sockets_at(port: u16) -> usize {
    let local = format!(":{port:04X} ");
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    table.lines().filter(|line| line.split_once(": ").is_some_and(|(_, rest)| rest[8..].starts_with(&local))).count()
}

/// Sends so many datagrams of clients, and returns how many wait in the shared sockets of an endpoint, which nobody reads.
fn waiting(endpoint: &Endpoint, count: usize) -> usize {
    // A long header of no version.
    let datagram = [&[0xc0, 9, 9, 9, 9, 8][..], &[7; 50]].concat();
    for _ in 0..count {
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&datagram, endpoint.local_addr()).unwrap();
    }
    let (mut buffer, mut found) = ([0; 2_000], 0);
    for socket in endpoint.sockets() {
        while let Ok(len) = socket.recv(&mut buffer) {
            // Packets of other clients are sent again.
            found += usize::from(buffer[..len] == datagram);
        }
    }
    found
}

#[tokio::test]
async fn sockets_join_and_stay_when_the_number_of_shards_changes() {
    for steering in ways() {
        let name = format!("{steering:?}");
        let mut chain = Chain::start_with(1, steering);
        let mut connections = Vec::new();
        chain.fill(&mut connections).await;
        for (wanted, sockets) in [(3, 3), (2, 3), (4, 4)] {
            chain.workers = wanted;
            let new = chain.successor();
            chain.continue_with(new);
            assert_eq!((chain.last().shards(), chain.last().sockets().count()), (sockets, sockets), "{name}");
            chain.fill(&mut connections).await;
            // With a handshake that is confirmed, packets have short headers.
            for (of, (_, connection)) in &connections {
                assert_eq!(ask(connection).await, *of, "{name}, {wanted} shards");
            }
            let before = chain.last().stats().forwarded;
            for (of, (endpoint, connection)) in &connections {
                endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
                assert_eq!(ask(connection).await, *of, "{name}, {wanted} shards, from another address");
            }
            assert_eq!(chain.last().stats().forwarded, before, "{name}: the kernel has not found the shard");
        }
        assert!(connections.iter().all(|(_, (_, connection))| connection.close_reason().is_none()), "{name}");
        let sums: Vec<SocketStats> = chain.endpoints.iter().map(|endpoint| endpoint.socket_stats()).collect();
        assert!(sums.iter().all(|sum| sum.sibling_dropped + sum.misdirected == 0), "{name}: {sums:?}");
        assert_eq!(sums[0].steered > 0, chain.last().steering_table().is_some(), "{name}: {sums:?}");
    }
}

#[tokio::test]
async fn sockets_that_have_joined_and_are_gone_leave_all_packets_to_the_others() {
    for steering in ways() {
        let name = format!("{steering:?}");
        let mut chain = Chain::start_with(2, steering);
        let mut connections = Vec::new();
        chain.fill(&mut connections).await;
        // An older process is there.
        let new = chain.successor();
        chain.continue_with(new);
        chain.fill(&mut connections).await;
        let (old, port) = (chain.last().clone(), chain.endpoints[0].local_addr().port());
        let before = sockets_at(port);
        chain.workers = 7;
        let new = chain.successor();
        old.steer_own(true).unwrap();
        old.set_reading(false);
        new.open_missing().unwrap();
        assert!(sockets_at(port) >= before + 5, "{name}");
        // Nobody has read yet.
        new.steering.spread(new.sockets().next().unwrap()).unwrap();
        drop(new);
        let begun = std::time::Instant::now();
        while sockets_at(port) > before + 2 {
            assert!(begun.elapsed() < LIMIT, "{name}: the sockets stay open");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(waiting(&old, 40), 40, "{name}");
        old.set_reading(true);
        old.steer_own(false).unwrap();
        for _ in 0..30 {
            connections.push((1, chain.connect().await));
        }
        for (of, (endpoint, connection)) in &connections {
            endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
            assert_eq!(ask(connection).await, *of, "{name}");
        }
        let sums: Vec<SocketStats> = chain.endpoints.iter().map(|endpoint| endpoint.socket_stats()).collect();
        assert!(sums.iter().all(|sum| sum.misdirected == 0), "{name}: {sums:?}");
        assert!(old.stats().forwarded == 0, "{name}: {:?}", old.stats());
    }
}

#[tokio::test]
async fn sockets_do_not_join_those_of_older_processes_without_their_table() {
    let Some(mut chain) = Chain::start(2) else { return };
    chain.take_over_by(KernelSteering::Off);
    assert!(chain.last().is_among_others());
    chain.workers = 3;
    for steering in [KernelSteering::Off, KernelSteering::Load] {
        let error = chain.next(steering).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
    }
    chain.workers = 1;
    chain.take_over_by(KernelSteering::Off);
    assert_eq!(chain.last().shards(), 2);
}
