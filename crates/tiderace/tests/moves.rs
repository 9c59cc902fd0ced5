//! Clients that move to another socket once the path from it is validated.
#![cfg(target_os = "linux")]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tiderace::{
    ClientConfig, Connection, Endpoint, Identity, Profile, RecvStream, RustlsClient, RustlsServer, SendStream,
    ServerConfig,
};

/// Second address of this host.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Between clients and a server. Packets from [`OTHER`] are dropped while it is dead.
struct Relay {
    address: SocketAddr,
    is_dead: Arc<AtomicBool>,
}

impl Relay {
    async fn before(server: SocketAddr) -> Self {
        let near = Arc::new(tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let address = near.local_addr().unwrap();
        let is_dead = Arc::new(AtomicBool::new(false));
        let dead = is_dead.clone();
        tokio::spawn(async move {
            let mut ways: Vec<(SocketAddr, Arc<tokio::net::UdpSocket>)> = Vec::new();
            let mut buffer = vec![0; 65_536];
            while let Ok((len, from)) = near.recv_from(&mut buffer).await {
                if from.ip() == OTHER && dead.load(Ordering::SeqCst) {
                    continue;
                }
                let known = ways.iter().find(|(client, _)| *client == from).map(|(_, way)| way.clone());
                let way = match known {
                    Some(way) => way,
                    None => {
                        let way = Arc::new(tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap());
                        way.connect(server).await.unwrap();
                        let (back, near) = (way.clone(), near.clone());
                        tokio::spawn(async move {
                            let mut buffer = vec![0; 65_536];
                            while let Ok(len) = back.recv(&mut buffer).await {
                                let _ = near.send_to(&buffer[..len], from).await;
                            }
                        });
                        ways.push((from, way.clone()));
                        way
                    }
                };
                let _ = way.send(&buffer[..len]).await;
            }
        });
        Self { address, is_dead }
    }
}

/// A client before a server that echoes one stream.
struct Pair {
    relay: Relay,
    client: Endpoint,
    connected: Connection,
    halves: (SendStream, RecvStream),
    _server: Endpoint,
}

impl Pair {
    async fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = made.cert.der().to_vec();
        let identity = Identity::from_der(vec![certificate.clone()], made.signing_key.serialize_der()).unwrap();
        let server = RustlsServer::builder().identity(identity).alpn("test").build().unwrap();
        let client = RustlsClient::builder().roots([certificate]).alpn("test").build().unwrap();
        let profile = Arc::new(Profile::default());
        let server = ServerConfig::new(Arc::new(server), profile.clone());
        let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), server).unwrap();
        let relay = Relay::before(server.local_addr()).await;
        let endpoint = Endpoint::client_for(relay.address).unwrap();
        let client = ClientConfig::new(Arc::new(client), profile);
        let connecting = endpoint.connect(&client, relay.address, "localhost").unwrap();
        let (accepted, connected) = tokio::join!(server.accept(), connecting);
        let (accepted, connected) = (accepted.unwrap(), connected.unwrap());
        tokio::spawn(async move {
            let (mut send, mut recv) = accepted.accept_bi().await.unwrap();
            while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX).await {
                send.write_chunk(chunk).await.unwrap();
            }
        });
        let halves = connected.open_bi().await.unwrap();
        let mut this = Self { relay, client: endpoint, connected, halves, _server: server };
        // After that the handshake is confirmed, and the server has given out connection IDs.
        while this.connected.may_migrate().is_err() {
            this.echo().await;
        }
        this
    }

    async fn echo(&mut self) {
        let (send, recv) = &mut self.halves;
        echo(send, recv).await;
    }

    fn paths(&self) -> u64 {
        self.connected.stats().unwrap().path_changes
    }
}

async fn echo(send: &mut SendStream, recv: &mut RecvStream) {
    send.write_all(b"question").await.unwrap();
    let mut len = 0;
    while len < 8 {
        len += recv.read_chunk(8).await.unwrap().unwrap().len();
    }
}

fn other_socket() -> UdpSocket {
    UdpSocket::bind((OTHER, 0)).unwrap()
}

#[tokio::test]
async fn a_client_moves_when_the_new_path_is_validated() {
    let mut pair = Pair::new().await;
    let before = pair.client.local_addr();
    assert!(pair.client.migrate(other_socket(), None).await.unwrap());
    assert_eq!((pair.client.local_addr().ip(), pair.paths()), (IpAddr::V4(OTHER), 1));
    assert_ne!(pair.client.local_addr(), before);
    // Both sockets are read for a while, and the second one alone later.
    let begun = std::time::Instant::now();
    while begun.elapsed() < std::time::Duration::from_millis(1_200) {
        pair.echo().await;
    }
    // Its network has become the one that carries the connection: when it dies, so does the connection.
    pair.relay.is_dead.store(true, Ordering::SeqCst);
    let (send, recv) = &mut pair.halves;
    let answer = tokio::time::timeout(std::time::Duration::from_millis(500), echo(send, recv)).await;
    assert!(answer.is_err(), "the client still sends from its first socket");
}

#[tokio::test]
async fn a_client_stays_where_it_is_when_the_new_path_is_dead() {
    let mut pair = Pair::new().await;
    let before = pair.client.local_addr();
    pair.relay.is_dead.store(true, Ordering::SeqCst);
    let mut echoes = 0;
    let has_moved = {
        let Pair { client, halves: (send, recv), .. } = &mut pair;
        let mut moving = std::pin::pin!(client.migrate(other_socket(), None));
        loop {
            tokio::select! {
                outcome = &mut moving => break outcome.unwrap(),
                () = echo(send, recv) => echoes += 1,
            }
        }
    };
    assert!(!has_moved && echoes > 10, "{echoes} answers while the path was validated");
    assert_eq!((pair.client.local_addr(), pair.paths()), (before, 0));
    // A network that works later is taken.
    pair.relay.is_dead.store(false, Ordering::SeqCst);
    while pair.connected.may_migrate().is_err() {
        pair.echo().await;
    }
    assert!(pair.client.migrate(other_socket(), None).await.unwrap());
    pair.echo().await;
    assert_eq!((pair.client.local_addr().ip(), pair.paths()), (IpAddr::V4(OTHER), 1));
}

#[tokio::test]
async fn a_socket_without_an_address_is_no_place_to_move_to() {
    let pair = Pair::new().await;
    let error = pair.client.migrate(UdpSocket::bind("0.0.0.0:0").unwrap(), None).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}
