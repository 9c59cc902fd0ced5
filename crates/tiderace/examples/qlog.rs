//! A qlog file for each end of a connection: what docs/guides/qlog.md quotes. The server echoes a megabyte.
//!
//! ```text
//! cargo run -p tiderace --example qlog -- FOLDER
//! tiderace qlog show FOLDER
//! ```

use std::{net::SocketAddr, path::Path, sync::Arc};

use anyhow::{Context, Result};
use tiderace::{ClientConfig, Endpoint, Identity, Profile, QlogDir, RustlsClient, RustlsServer, ServerConfig};

/// Bytes that the client sends.
const CONTENT: usize = 1_000_000;

#[tokio::main]
async fn main() -> Result<()> {
    let folder = std::env::args().nth(1).context("say where: `qlog FOLDER`")?;
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let certificate = made.cert.der().to_vec();
    let identity = Identity::from_der(vec![certificate.clone()], made.signing_key.serialize_der())?;
    let server_tls = RustlsServer::builder().identity(identity).alpn("qlog-example").build()?;
    let client_tls = RustlsClient::builder().roots([certificate]).alpn("qlog-example").build()?;
    let profile = Arc::new(Profile::default());
    let mut server = ServerConfig::new(Arc::new(server_tls), profile.clone());
    let mut client = ClientConfig::new(Arc::new(client_tls), profile);
    observe(&mut client, &mut server, Path::new(&folder))?;
    exchange(client, server).await?;
    println!("tiderace qlog show {folder}");
    Ok(())
}

// guide begins
/// Writes a file for each connection of these ends into a folder.
fn observe(client: &mut ClientConfig, server: &mut ServerConfig, folder: &Path) -> Result<()> {
    let files = Arc::new(QlogDir::new(folder)?.with_limit(100));
    client.observe = Some(files.clone());
    server.observe = Some(files);
    Ok(())
}
// guide ends

/// Sends content to a server in this process, which sends it back.
async fn exchange(client: ClientConfig, server: ServerConfig) -> Result<()> {
    let server = Endpoint::server(SocketAddr::from(([127, 0, 0, 1], 0)), server)?;
    let address = server.local_addr();
    let serving = tokio::spawn(async move {
        let connection = server.accept().await.context("the endpoint was closed")?;
        let (mut send, mut recv) = connection.accept_bi().await?;
        while let Some(chunk) = recv.read_chunk(64 * 1024).await? {
            send.write_chunk(chunk).await?;
        }
        send.finish()?;
        connection.closed().await;
        anyhow::Ok(())
    });
    let endpoint = Endpoint::client_for(address)?;
    let connection = endpoint.connect(&client, address, "localhost")?.await?;
    let (mut send, mut recv) = connection.open_bi().await?;
    // Both directions at once: a peer that is not read from stops reading.
    let sending = async {
        send.write_all(&vec![0; CONTENT]).await?;
        send.finish()?;
        anyhow::Ok(())
    };
    let receiving = async { anyhow::Ok(recv.read_to_end(CONTENT).await?) };
    let ((), content) = tokio::try_join!(sending, receiving)?;
    anyhow::ensure!(content.len() == CONTENT, "{} bytes came back", content.len());
    connection.close(0, b"");
    endpoint.wait_idle().await;
    serving.await?
}
