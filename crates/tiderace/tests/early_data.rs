//! Early data over real sockets on loopback.

use std::{net::SocketAddr, sync::Arc};

use tiderace::{
    ClientConfig, Connection, EarlyData, Endpoint, Identity, Profile, RustlsClient, RustlsServer, ServerConfig,
};

struct Pair {
    server: Endpoint,
    client: Endpoint,
    config: ClientConfig,
}

impl Pair {
    fn new(accept: bool) -> Self {
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = certified.cert.der().to_vec();
        let identity = Identity::from_der(vec![certificate.clone()], certified.signing_key.serialize_der()).unwrap();
        let server = RustlsServer::builder().identity(identity).alpn("test").early_data(accept).build().unwrap();
        let client = RustlsClient::builder().roots([certificate]).alpn("test").early_data(true).build().unwrap();
        let profile = Arc::new(Profile::default());
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server = Endpoint::server(any, ServerConfig::new(Arc::new(server), profile.clone())).unwrap();
        let client_endpoint = Endpoint::client_for(server.local_addr()).unwrap();
        Self { server, client: client_endpoint, config: ClientConfig::new(Arc::new(client), profile) }
    }

    fn connect(&self) -> tiderace::Connecting {
        self.client.connect(&self.config, self.server.local_addr(), "localhost").unwrap()
    }

    /// A connection without early data; an exchange on it, after which the tickets are there.
    async fn visit(&self) {
        let (accepted, connected) = tokio::join!(self.server.accept(), self.connect());
        let (accepted, connected) = (accepted.unwrap(), connected.unwrap());
        ask(&connected, &accepted).await;
        connected.close(0, b"");
        accepted.closed().await;
    }
}

/// A request and its answer on an early stream, if it can be one.
async fn ask(client: &Connection, server: &Connection) {
    let (mut send, mut recv) = client.open_bi_early().await.unwrap();
    send.write_all(b"question").await.unwrap();
    send.finish().unwrap();
    answer(server).await;
    assert_eq!(recv.read_to_end(100).await.unwrap(), b"question");
}

async fn answer(server: &Connection) {
    let (mut send, mut recv) = server.accept_bi().await.unwrap();
    let question = recv.read_to_end(100).await.unwrap();
    send.write_all(&question).await.unwrap();
    send.finish().unwrap();
}

#[tokio::test]
async fn a_returning_client_asks_before_the_handshake_is_complete() {
    let pair = Pair::new(true);
    assert!(pair.connect().into_early().is_err(), "there is nothing to resume");
    pair.visit().await;
    let client = pair.connect().into_early().unwrap();
    assert_eq!(client.early_data(), EarlyData::Offered);
    let (mut send, mut recv) = client.open_bi_early().await.unwrap();
    send.write_all(b"question").await.unwrap();
    send.finish().unwrap();
    let server = loop {
        // The connection that was given up above may come first.
        let server = pair.server.accept_early().await.unwrap();
        if server.early_data() == EarlyData::Accepted {
            break server;
        }
    };
    answer(&server).await;
    assert_eq!(recv.read_to_end(100).await.unwrap(), b"question");
    client.established().await.unwrap();
    server.established().await.unwrap();
    assert_eq!(client.early_data(), EarlyData::Accepted);
    assert!(client.stats().unwrap().early_packets_sent > 0);
    assert!(server.stats().unwrap().early_bytes_received > 8);
}

#[tokio::test]
async fn a_server_that_only_accepts_complete_handshakes_gets_the_request_as_well() {
    let pair = Pair::new(true);
    pair.visit().await;
    let client = pair.connect().into_early().unwrap();
    let asking = async {
        let (mut send, mut recv) = client.open_bi_early().await.unwrap();
        send.write_all(b"question").await.unwrap();
        send.finish().unwrap();
        recv.read_to_end(100).await.unwrap()
    };
    let serving = async {
        let server = pair.server.accept().await.unwrap();
        answer(&server).await;
        server
    };
    let (answer, server) = tokio::join!(asking, serving);
    assert_eq!(answer, b"question");
    server.established().await.unwrap();
}
