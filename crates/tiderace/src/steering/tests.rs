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
        let first = Endpoint::open("127.0.0.1:0".parse().unwrap(), this.options(0, KernelSteering::Load)).unwrap();
        if let Some(fault) = first.steering_fault() {
            // With the privilege, a refusal is a fault of the program.
            assert!(fault.contains("CAP_BPF"), "{fault}");
            println!("skipped: {fault}");
            return None;
        }
        this.endpoints.push(serve(first, 0));
        Some(this)
    }

    fn options(&self, number: u8, steering: KernelSteering) -> EndpointOptions {
        EndpointOptions {
            server: Some(self.server.clone()),
            generation: Some(IdGeneration { number, key: [9; 16] }),
            ring: Some(KeyRing::single([7; 32])),
            shards: Shards::new(NonZeroU8::new(self.workers).unwrap()),
            steering,
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

    /// The same, by an endpoint that steers like this.
    fn take_over_by(&mut self, steering: KernelSteering) {
        let number = u8::try_from(self.endpoints.len()).unwrap();
        let old = self.last().clone();
        let sockets = old.sockets().iter().map(|socket| socket.try_clone().unwrap()).collect();
        let new = Endpoint::take_over(sockets, self.options(number, steering)).unwrap();
        self.siblings.push(Arc::new(Sibling { generation: number - 1, shards: old.open_inbox().unwrap() }));
        old.steer_own(true).unwrap();
        old.set_reading(false);
        old.set_server_config(None);
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
