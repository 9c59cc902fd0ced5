//! A relay whose source fails: the client reads what the source has sent, and then the error.
//!
//! ```text
//! cargo run -p tiderace --example reset_at
//! ```

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result};
use tiderace::{
    ClientConfig, Endpoint, Identity, Profile, ReadError, RustlsClient, RustlsServer, ServerConfig,
    transport::streams::StreamsConfig,
};

/// Application error code: the source of the relay has failed.
const SOURCE_FAILED: u64 = 7;

#[tokio::main]
async fn main() -> Result<()> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der())?;
    let tls = RustlsServer::builder().identity(identity).alpn("relay").build()?;
    let config = ServerConfig::new(Arc::new(tls), Arc::new(Profile::default()));
    let endpoint = Endpoint::server(SocketAddr::from(([127, 0, 0, 1], 0)), config)?;
    let address = endpoint.local_addr();
    tokio::spawn(async move {
        let connection = endpoint.accept().await.context("the endpoint was closed")?;
        let mut send = connection.open_uni().await?;
        let mut passed = 0;
        for part in ["what the source ", "has sent so far"] {
            send.write_all(part.as_bytes()).await?;
            passed += part.len() as u64;
        }
        send.reset_at(SOURCE_FAILED, passed)?;
        connection.closed().await;
        anyhow::Ok(())
    });

    // The one who reads has to accept the frame.
    let streams = StreamsConfig { reset_stream_at: true, ..StreamsConfig::default() };
    let profile = Profile { streams, ..Profile::default() };
    let tls = RustlsClient::builder().roots_pem(made.cert.pem().as_bytes())?.alpn("relay").build()?;
    let config = ClientConfig::new(Arc::new(tls), Arc::new(profile));
    let endpoint = Endpoint::client_for(address)?;
    let connection = endpoint.connect(&config, address, "localhost")?.await?;
    let mut recv = connection.accept_uni().await?;
    loop {
        match recv.read_chunk(1024).await {
            Ok(Some(data)) => print!("{}", String::from_utf8_lossy(&data)),
            Ok(None) => anyhow::bail!("a clean end"),
            Err(ReadError::Reset(SOURCE_FAILED)) => break println!(" … and then the source failed"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
