//! Early data: a client that comes back sends its request with the first packets, and has the answer a round trip earlier.
//! Server and client in one process, over real UDP sockets on loopback.
//!
//! ```text
//! cargo run -p tiderace --example early_data
//! ```
//!
//! The request is one that may happen twice: an observer of early data can send copies of it, and the server's register of
//! used tickets knows only those that come to a server that shares it. So the client names the stream that may leave
//! early, and the server takes such connections with `accept_early`. What may happen only once goes over other streams,
//! or waits for `established`.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use anyhow::Result;
use tiderace::{
    ClientConfig, Connecting, Connection, EarlyData, Endpoint, EndpointOptions, Identity, KeyRing, Profile,
    RustlsClient, RustlsServer, ServerConfig,
};

const ALPN: &str = "early-data-example";

#[tokio::main]
async fn main() -> Result<()> {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let certificate = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![certificate.clone()], certified.signing_key.serialize_der())?;
    // In a file that all servers of the service read, and that is rotated: `KeyRing::parse`.
    let ring = KeyRing::single(rand_secret()?);
    let server_tls =
        RustlsServer::builder().identity(identity).alpn(ALPN).ring(ring.clone()).early_data(true).build()?;
    let client_tls = RustlsClient::builder().roots([certificate]).alpn(ALPN).early_data(true).build()?;
    let profile = Arc::new(Profile::default());

    let server = EndpointOptions {
        server: Some(ServerConfig::new(Arc::new(server_tls), profile.clone())),
        ring: Some(ring),
        ..EndpointOptions::default()
    };
    let server = Endpoint::open(SocketAddr::from(([127, 0, 0, 1], 0)), server)?;
    let address = server.local_addr();
    tokio::spawn(serve(server));

    let client = Endpoint::client_for(address)?;
    // One configuration for all connections: it holds the tickets.
    let config = ClientConfig::new(Arc::new(client_tls), profile);
    for round in ["first", "second"] {
        let started = Instant::now();
        let connection = ready(client.connect(&config, address, "localhost")?).await?;
        let (mut send, mut recv) = connection.open_bi_early().await?;
        send.write_all(b"what time is it?").await?;
        send.finish()?;
        let answer = recv.read_to_end(1024).await?;
        println!("{round} round: {:?} after {:?}", String::from_utf8_lossy(&answer), started.elapsed());
        connection.established().await?;
        println!("    early data: {:?}", connection.early_data());
        assert!(round == "first" || connection.early_data() == EarlyData::Accepted);
        // The tickets come after the handshake.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        connection.close(0, b"");
    }
    client.wait_idle().await;
    Ok(())
}

/// The connection as soon as a request can leave.
async fn ready(connecting: Connecting) -> Result<Connection> {
    match connecting.into_early() {
        Ok(early) => Ok(early),
        Err(connecting) => Ok(connecting.await?),
    }
}

async fn serve(endpoint: Endpoint) {
    while let Some(connection) = endpoint.accept_early().await {
        tokio::spawn(async move {
            while let Ok((mut send, mut recv)) = connection.accept_bi().await {
                if recv.read_to_end(1024).await.is_ok() && send.write_all(b"late").await.is_ok() {
                    let _ = send.finish();
                }
            }
        });
    }
}

/// 32 bytes that nobody can guess.
fn rand_secret() -> Result<[u8; 32]> {
    let mut secret = [0; 32];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut secret)?;
    Ok(secret)
}
