//! One address, several sockets: connections stay with their shard when the client's address changes.

use std::{net::SocketAddr, num::NonZeroU8, sync::Arc};

use tiderace::{
    ClientConfig, Connection, Endpoint, EndpointOptions, Identity, Profile, RustlsClient, RustlsServer, ServerConfig,
    Shards,
};
use tokio::{net::UdpSocket, sync::mpsc};

/// Number of clients, so large that not all of them meet the same fate by chance.
const CLIENTS: usize = 24;
const REBINDINGS: usize = 2;

fn configs() -> (ServerConfig, ClientConfig) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der()).unwrap();
    let server = RustlsServer::builder().identity(identity).alpn("test").build().unwrap();
    let client = RustlsClient::builder().roots([cert]).alpn("test").build().unwrap();
    let profile = Arc::new(Profile::default());
    (ServerConfig::new(Arc::new(server), profile.clone()), ClientConfig::new(Arc::new(client), profile))
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A NAT between one client and the server: it gives the client another port whenever it is told to.
struct Nat {
    address: SocketAddr,
    rebind: mpsc::Sender<()>,
}

impl Nat {
    async fn before(server: SocketAddr) -> Self {
        let inside = UdpSocket::bind(any()).await.unwrap();
        let mut outside = UdpSocket::bind(any()).await.unwrap();
        let address = inside.local_addr().unwrap();
        let (rebind, mut wishes) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut client = None;
            let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
            loop {
                tokio::select! {
                    Ok((len, from)) = inside.recv_from(&mut up) => {
                        client = Some(from);
                        let _ = outside.send_to(&up[..len], server).await;
                    }
                    Ok((len, _)) = outside.recv_from(&mut down) => {
                        if let Some(client) = client {
                            let _ = inside.send_to(&down[..len], client).await;
                        }
                    }
                    wish = wishes.recv() => match wish {
                        // The port before is taken until the new one is bound, so that they differ.
                        Some(()) => outside = UdpSocket::bind(any()).await.unwrap(),
                        None => return,
                    }
                }
            }
        });
        Self { address, rebind }
    }
}

async fn echo(connection: Connection) -> usize {
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        let Ok(data) = recv.read_to_end(100_000).await else { break };
        send.write_all(&data).await.unwrap();
        send.finish().unwrap();
    }
    connection.shard()
}

async fn ask(connection: &Connection) {
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&[7; 5_000]).await.unwrap();
    send.finish().unwrap();
    assert_eq!(recv.read_to_end(100_000).await.unwrap(), [7; 5_000]);
}

/// Clients behind NATs that rebind, and a server of two shards; returns the server when all are gone, and how many
/// connections each shard had.
async fn rebind(shards: Shards) -> (Endpoint, [usize; 2]) {
    let (server_config, client_config) = configs();
    let options = EndpointOptions { server: Some(server_config), shards, ..EndpointOptions::default() };
    let server = Arc::new(Endpoint::open(any(), options).unwrap());
    let accepting = tokio::spawn({
        let server = server.clone();
        async move {
            let mut echoes = Vec::new();
            for _ in 0..CLIENTS {
                echoes.push(tokio::spawn(echo(server.accept().await.unwrap())));
            }
            let mut had = [0; 2];
            for echo in echoes {
                had[echo.await.unwrap()] += 1;
            }
            had
        }
    });
    for _ in 0..CLIENTS {
        let nat = Nat::before(server.local_addr()).await;
        let client = Endpoint::client_for(nat.address).unwrap();
        let connection = client.connect(&client_config, nat.address, "localhost").unwrap().await.unwrap();
        ask(&connection).await;
        for _ in 0..REBINDINGS {
            nat.rebind.send(()).await.unwrap();
            ask(&connection).await;
        }
        connection.close(0, b"");
        client.wait_idle().await;
    }
    let had = accepting.await.unwrap();
    server.wait_idle().await;
    (Arc::into_inner(server).unwrap(), had)
}

fn two() -> Shards {
    Shards::new(NonZeroU8::new(2).unwrap())
}

#[tokio::test]
async fn the_kernel_finds_the_shard_of_a_client_that_has_another_port() {
    let (server, had) = rebind(two()).await;
    assert!(had.iter().all(|&n| n > 0), "new connections are spread: {had:?}");
    let stats = server.stats();
    assert_eq!(stats.connections, CLIENTS as u64);
    assert_eq!(stats.forwarded, 0, "no shard got what belongs to another");
    for shard in 0..2 {
        let (_, socket) = server.shard_stats(shard);
        assert!(socket.receive_calls > 0 && socket.send_calls > 0);
    }
}

#[tokio::test]
async fn without_steering_shards_hand_over_what_is_not_theirs() {
    let (server, had) = rebind(two().without_steering()).await;
    assert_eq!(had.iter().sum::<usize>(), CLIENTS);
    assert!(server.stats().forwarded > 0);
    assert_eq!(server.socket_stats().forwards_dropped, 0);
}

#[tokio::test]
async fn a_client_may_have_shards_too() {
    let (server_config, client_config) = configs();
    let server = Endpoint::server(any(), server_config).unwrap();
    let client = Endpoint::open(any(), EndpointOptions { shards: two(), ..EndpointOptions::default() }).unwrap();
    for shard in 0..2 {
        let connecting = client.connect(&client_config, server.local_addr(), "localhost").unwrap();
        let (connected, accepted) = tokio::join!(connecting, server.accept());
        let connected = connected.unwrap();
        assert_eq!(connected.shard(), shard);
        let echoing = tokio::spawn(echo(accepted.unwrap()));
        ask(&connected).await;
        drop(connected);
        echoing.await.unwrap();
    }
    assert_eq!(client.stats().forwarded, 0);
}

#[tokio::test]
async fn two_endpoints_never_share_an_address() {
    let (server, _) = configs();
    let options = || EndpointOptions { server: Some(server.clone()), shards: two(), ..EndpointOptions::default() };
    let first = Endpoint::open(any(), options()).unwrap();
    // The kernel would let sockets of the same user join, and each endpoint would get a share of all clients.
    let Err(error) = Endpoint::open(first.local_addr(), options()) else { panic!("the address has two endpoints") };
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    first.close(0, b"");
    first.wait_idle().await;
}
