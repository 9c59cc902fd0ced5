//! Echo: a server that sends back whatever a stream brings, and a client that asks it. Both in one process, over real
//! UDP sockets on loopback.
//!
//! ```text
//! cargo run -p tiderace --example echo -- some words
//! ```
//!
//! It shows the parts of every program: TLS with an application protocol (ALPN) for each side, an [`Endpoint`] for each
//! socket, a bidirectional stream, and who closes what. The certificate is made on the spot, and the client trusts
//! exactly this one.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result};
use tiderace::{
    ClientConfig, CloseReason, Connection, Endpoint, Identity, Profile, RecvStream, RustlsClient, RustlsServer,
    SendStream, ServerConfig,
};

/// Both sides have to name the same application protocol.
const ALPN: &str = "echo-example";

#[tokio::main]
async fn main() -> Result<()> {
    let words = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let words = if words.is_empty() { "hello".to_owned() } else { words };

    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let certificate = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![certificate.clone()], certified.signing_key.serialize_der())?;
    let server_tls = RustlsServer::builder().identity(identity).alpn(ALPN).build()?;
    let client_tls = RustlsClient::builder().roots([certificate]).alpn(ALPN).build()?;
    // Congestion control, windows, timeouts: the defaults are for the Internet.
    let profile = Arc::new(Profile::default());

    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Endpoint::server(any_port, ServerConfig::new(Arc::new(server_tls), profile.clone()))?;
    let address = server.local_addr();
    let serving = tokio::spawn(serve(server));

    let client = Endpoint::client_for(address)?;
    let connection = client.connect(&ClientConfig::new(Arc::new(client_tls), profile), address, "localhost")?.await?;
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(words.as_bytes()).await?;
    // The end of the stream. Without it the server would wait for more.
    send.finish()?;
    let answer = recv.read_to_end(1024 * 1024).await?;
    println!("{address} says: {}", String::from_utf8_lossy(&answer));
    println!("round trip: {:?}", connection.rtt());

    connection.close(0, b"thanks");
    // So that CONNECTION_CLOSE is sent before the program ends.
    client.wait_idle().await;
    serving.await?
}

/// Accepts one connection and serves it until the client closes it. A real server would continue accepting.
async fn serve(endpoint: Endpoint) -> Result<()> {
    let connection = endpoint.accept().await.context("the endpoint was closed")?;
    let reason = echo_streams(&connection).await;
    println!("the server's connection ended: {reason}");
    Ok(())
}

/// A task for each stream: none of them waits for another.
async fn echo_streams(connection: &Connection) -> CloseReason {
    loop {
        match connection.accept_bi().await {
            Ok((send, recv)) => {
                tokio::spawn(async move {
                    if let Err(error) = echo(send, recv).await {
                        eprintln!("a stream ended early: {error}");
                    }
                });
            }
            Err(reason) => return reason,
        }
    }
}

/// Sends back what comes, as it comes: a client that does not read stops being read from.
async fn echo(mut send: SendStream, mut recv: RecvStream) -> Result<()> {
    while let Some(chunk) = recv.read_chunk(64 * 1024).await? {
        send.write_chunk(chunk).await?;
    }
    send.finish()?;
    Ok(())
}
