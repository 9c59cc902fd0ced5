//! A question on a stream of its own, and the answer: what README.md quotes, with a server beside it that answers.
//!
//! ```text
//! cargo run -p tiderace --example ask
//! ```

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result};
use tiderace::{ClientConfig, Endpoint, Identity, Profile, RustlsClient, RustlsServer, ServerConfig};

// README begins
async fn ask(server: SocketAddr, trusted_pem: &[u8], question: &[u8]) -> Result<Vec<u8>> {
    let tls = RustlsClient::builder().roots_pem(trusted_pem)?.alpn("echo").build()?;
    let config = ClientConfig::new(Arc::new(tls), Arc::new(Profile::default()));
    let endpoint = Endpoint::client_for(server)?;
    let connection = endpoint.connect(&config, server, "localhost")?.await?;
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(question).await?;
    send.finish()?;
    Ok(recv.read_to_end(64 * 1024).await?)
}
// README ends

#[tokio::main]
async fn main() -> Result<()> {
    println!("{}", demonstrate("how long is a round trip?").await?);
    Ok(())
}

/// Asks a server in this process, which sends back what it is asked.
pub(crate) async fn demonstrate(question: &str) -> Result<String> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der())?;
    let tls = RustlsServer::builder().identity(identity).alpn("echo").build()?;
    let config = ServerConfig::new(Arc::new(tls), Arc::new(Profile::default()));
    let endpoint = Endpoint::server(SocketAddr::from(([127, 0, 0, 1], 0)), config)?;
    let address = endpoint.local_addr();
    let serving = tokio::spawn(async move {
        let connection = endpoint.accept().await.context("the endpoint was closed")?;
        let (mut send, mut recv) = connection.accept_bi().await?;
        send.write_all(&recv.read_to_end(64 * 1024).await?).await?;
        send.finish()?;
        // Until the client has what it asked for and goes.
        connection.closed().await;
        anyhow::Ok(())
    });
    let answer = ask(address, made.cert.pem().as_bytes(), question.as_bytes()).await?;
    serving.await??;
    Ok(String::from_utf8(answer)?)
}
