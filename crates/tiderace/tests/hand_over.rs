//! Sockets of one endpoint that another one takes over, as between two processes: each packet finds its connection, from the second
//! datagram of a ClientHello on.
#![cfg(target_os = "linux")]

use std::{
    net::SocketAddr,
    num::NonZeroU8,
    os::unix::net::UnixDatagram,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tiderace::{
    ClientConfig, Connection, Endpoint, EndpointOptions, IdGeneration, Identity, KeyRing, Profile, RetryPolicy,
    RustlsClient, RustlsServer, ServerConfig, Shards, Sibling, transport::SiblingShard,
};
use tokio::{net::UdpSocket, sync::Notify, time::timeout};

const LIMIT: Duration = Duration::from_secs(60);

fn configs() -> (ServerConfig, ClientConfig) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der()).unwrap();
    let server = RustlsServer::builder().identity(identity).alpn("test").build().unwrap();
    let client = RustlsClient::builder().roots([cert]).alpn("test").build().unwrap();
    let profile = Arc::new(Profile { handshake_timeout: LIMIT, ..Profile::default() });
    (ServerConfig::new(Arc::new(server), profile.clone()), ClientConfig::new(Arc::new(client), profile))
}

fn options(server: ServerConfig, number: u8, ring: &KeyRing) -> EndpointOptions {
    EndpointOptions {
        server: Some(server),
        generation: Some(IdGeneration { number, key: [9; 16] }),
        ring: Some(ring.clone()),
        shards: Shards::new(NonZeroU8::new(2).unwrap()),
        ..EndpointOptions::default()
    }
}

/// An address that no other chain of this process has had: the tests run side by side with the same keys, and a packet for a chain that is gone
/// would be reset by one that got its port.
fn own_address() -> SocketAddr {
    static CHAINS: AtomicU8 = AtomicU8::new(1);
    SocketAddr::from(([127, 0, 8, CHAINS.fetch_add(1, Ordering::Relaxed)], 0))
}

/// The chain of endpoints, the newest last; what a gateway does with processes.
struct Chain {
    config: ServerConfig,
    ring: KeyRing,
    endpoints: Vec<Arc<Endpoint>>,
    siblings: Vec<Arc<Sibling>>,
}

impl Chain {
    fn start(config: ServerConfig) -> Self {
        let ring = KeyRing::single([7; 32]);
        let first = Endpoint::open(own_address(), options(config.clone(), 0, &ring)).unwrap();
        Self { config, ring, endpoints: vec![serve(first, 0)], siblings: Vec::new() }
    }

    fn address(&self) -> SocketAddr {
        self.endpoints[0].local_addr()
    }

    fn last(&self) -> &Arc<Endpoint> {
        self.endpoints.last().unwrap()
    }

    /// Another endpoint takes over; returns how many connection IDs of handshakes it was told.
    fn take_over(&mut self) -> usize {
        let number = u8::try_from(self.endpoints.len()).unwrap();
        let old = self.last().clone();
        let sockets = old.sockets().map(|socket| socket.try_clone().unwrap()).collect();
        let new = Endpoint::take_over(sockets, options(self.config.clone(), number, &self.ring)).unwrap();
        let new = serve(new, number);
        self.siblings.push(Arc::new(Sibling { generation: number - 1, shards: old.open_inbox().unwrap() }));
        old.set_reading(false);
        old.set_server_config(None);
        let handshakes = old.handshakes(100);
        let told = handshakes.len();
        let known = handshakes.into_iter().map(|(id, shard)| (id, SiblingShard { generation: number - 1, shard }));
        new.set_siblings(&self.siblings, known);
        new.set_reading(true);
        self.endpoints.push(new);
        told
    }

    fn connections(&self) -> Vec<u64> {
        self.endpoints.iter().map(|endpoint| endpoint.stats().connections).collect()
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
                    let Ok(data) = recv.read_to_end(100_000).await else { break };
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
        send.write_all(&[7; 20_000]).await.unwrap();
        send.finish().unwrap();
        recv.read_to_end(100_000).await.unwrap()
    };
    let answer = timeout(LIMIT, asking).await.expect("an answer");
    assert_eq!(answer.len(), 20_001);
    answer[0]
}

/// Passes datagrams between one client and the server; those of the client stop behind the first `passing` of them until the gate is
/// open.
struct Gate {
    address: SocketAddr,
    open: Arc<Notify>,
    seen: Arc<AtomicUsize>,
}

impl Gate {
    async fn before(server: SocketAddr, passing: usize) -> Self {
        let inside = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let outside = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = inside.local_addr().unwrap();
        let (open, seen) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (opened, count) = (open.clone(), seen.clone());
        tokio::spawn(async move {
            let (mut client, mut waiting, mut is_open) = (None, Vec::new(), false);
            let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
            loop {
                tokio::select! {
                    Ok((len, from)) = inside.recv_from(&mut up) => {
                        client = Some(from);
                        if is_open || count.fetch_add(1, Ordering::SeqCst) < passing {
                            outside.send_to(&up[..len], server).await.unwrap();
                        } else {
                            waiting.push(up[..len].to_vec());
                        }
                    }
                    Ok((len, _)) = outside.recv_from(&mut down) => {
                        let Some(client) = client else { continue };
                        // It may be gone.
                        let _ = inside.send_to(&down[..len], client).await;
                    }
                    () = opened.notified() => {
                        is_open = true;
                        for datagram in waiting.drain(..) {
                            outside.send_to(&datagram, server).await.unwrap();
                        }
                    }
                }
            }
        });
        Self { address, open, seen }
    }

    /// Waits until so many datagrams of the client have come, or no more come for a while.
    async fn wait_for(&self, count: usize) {
        let waiting = async {
            while self.seen.load(Ordering::SeqCst) < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = timeout(Duration::from_secs(2), waiting).await;
        // What was passed on has been read.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn connect(config: &ClientConfig, to: SocketAddr) -> (Endpoint, Connection) {
    let endpoint = Endpoint::client_for(to).unwrap();
    let connecting = endpoint.connect(config, to, "localhost").unwrap();
    let connection = timeout(LIMIT, connecting).await.expect("a handshake").unwrap();
    (endpoint, connection)
}

#[tokio::test]
async fn each_connection_stays_where_it_began() {
    let (server, client) = configs();
    let mut chain = Chain::start(server);
    let mut connections = vec![connect(&client, chain.address()).await];
    for number in 1..=3 {
        chain.take_over();
        connections.push(connect(&client, chain.address()).await);
        for (of, (endpoint, connection)) in connections.iter().enumerate() {
            assert_eq!(usize::from(ask(connection).await), of);
            // From another address, too.
            endpoint.rebind(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
            assert_eq!(usize::from(ask(connection).await), of, "after {number} hand-overs");
        }
    }
    assert_eq!((chain.connections(), chain.resets()), (vec![1; 4], 0));
    let sums = chain.last().socket_stats();
    assert!(sums.sibling_sent > 0 && sums.sibling_dropped == 0, "{sums:?}");
}

#[tokio::test]
async fn a_handshake_meets_one_endpoint_wherever_it_is_interrupted() {
    // The ClientHello takes two datagrams; after them come Finished, and acknowledgements.
    for passing in 0..5 {
        for retry in [RetryPolicy::Never, RetryPolicy::Always] {
            let (server, client) = configs();
            let mut chain = Chain::start(ServerConfig { retry, ..server });
            let gate = Gate::before(chain.address(), passing).await;
            let endpoint = Endpoint::client_for(gate.address).unwrap();
            let connecting = endpoint.connect(&client, gate.address, "localhost").unwrap();
            gate.wait_for(passing + 1).await;
            let told = chain.take_over();
            gate.open.notify_one();
            let connection = timeout(LIMIT, connecting).await.expect("a handshake").unwrap();
            let of = ask(&connection).await;
            let at = format!("{passing} datagrams passed, {retry:?}, {told} IDs told, {:?}", chain.connections());
            // One connection in all: no endpoint has begun a second one.
            assert_eq!(chain.connections().iter().sum::<u64>(), 1, "{at}");
            assert_eq!(chain.connections()[usize::from(of)], 1, "{at}");
            assert_eq!(chain.resets(), 0, "{at}");
            if passing == 1 && retry == RetryPolicy::Never {
                assert!(of == 0 && told > 0, "{at}");
            }
            if passing == 0 {
                assert_eq!((of, told), (1, 0), "{at}");
            }
            connection.close(0, b"");
        }
    }
}

#[tokio::test]
async fn an_endpoint_that_is_gone_is_reset_and_one_that_is_there_is_not() {
    let (server, client) = configs();
    let mut chain = Chain::start(server);
    let (_endpoint, connection) = connect(&client, chain.address()).await;
    chain.take_over();
    assert_eq!(ask(&connection).await, 0);
    // A process that lives and does not read: nothing is said of its connections.
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..2).map(|_| UnixDatagram::pair().unwrap()).unzip();
    chain.last().set_siblings(&[Arc::new(Sibling { generation: 0, shards: senders })], []);
    let before = chain.last().socket_stats().sibling_sent;
    let (mut send, _recv) = connection.open_bi().await.unwrap();
    send.write_all(b"x").await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((chain.resets(), connection.close_reason().is_none()), (0, true));
    assert!(chain.last().socket_stats().sibling_sent > before, "{:?}", chain.last().socket_stats());
    // One that is gone, or has lost the shard, which is noticed with the next packet.
    drop(receivers);
    let reason = timeout(LIMIT, connection.closed()).await.expect("a stateless reset");
    assert!(format!("{reason:?}").contains("Reset"), "{reason:?}");
    assert!(chain.resets() > 0 && chain.last().socket_stats().sibling_gone > 0);
}

#[tokio::test]
async fn connections_of_an_endpoint_that_is_forgotten_are_reset() {
    let (server, client) = configs();
    let mut chain = Chain::start(server);
    let (_endpoint, connection) = connect(&client, chain.address()).await;
    chain.take_over();
    assert_eq!(ask(&connection).await, 0);
    chain.last().set_siblings(&[], []);
    let (mut send, _recv) = connection.open_bi().await.unwrap();
    send.write_all(b"x").await.unwrap();
    let reason = timeout(LIMIT, connection.closed()).await.expect("a stateless reset");
    assert!(format!("{reason:?}").contains("Reset"), "{reason:?}");
}

#[tokio::test]
async fn made_up_ids_cost_other_processes_nothing() {
    let (server, client) = configs();
    let mut chain = Chain::start(server);
    let (_endpoint, connection) = connect(&client, chain.address()).await;
    chain.take_over();
    assert_eq!(ask(&connection).await, 0);
    let before = chain.last().socket_stats().sibling_sent;
    let flood = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut packet = [0x40; 100];
    for number in 0..2_000u16 {
        // Shard and generation of the older process; the rest is made up.
        packet[1..3].copy_from_slice(&[0, 0]);
        packet[3..5].copy_from_slice(&number.to_be_bytes());
        flood.send_to(&packet, chain.address()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    // One in 65,536 passes the check.
    let sent = chain.last().socket_stats().sibling_sent - before;
    assert!(sent <= 3, "{sent} of 2,000 were handed over");
    assert_eq!(ask(&connection).await, 0);
}
