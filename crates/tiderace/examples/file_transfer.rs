//! File transfer: a server that offers one file, and a client that fetches it.
//!
//! ```text
//! cargo run --release -p tiderace --example file_transfer -- serve FILE CERTIFICATE [ADDRESS:PORT]
//! cargo run --release -p tiderace --example file_transfer -- fetch ADDRESS:PORT CERTIFICATE TARGET
//! ```
//!
//! `serve` makes a certificate and writes it to the file CERTIFICATE (DER); `fetch` trusts that one and no other. On
//! another machine, copy it there first. The default address is 127.0.0.1:4433.
//!
//! It shows streams as files: a unidirectional stream for each client, whose end says that the file is complete. A
//! stream whose sender fails is reset instead, so that half a file is never taken for a whole one; the client writes
//! under another name until it has everything.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Instant};

use anyhow::{Context, Result, bail};
use bytes::BytesMut;
use tiderace::{ClientConfig, Connection, Endpoint, Identity, Profile, RustlsClient, RustlsServer, ServerConfig};
use tokio::{
    fs,
    io::{AsyncReadExt, AsyncWriteExt},
};

const ALPN: &str = "file-transfer-example";
/// Bytes that are read from the disk at a time.
const CHUNK: usize = 256 * 1024;
/// Code with which the client closes a connection that has served its purpose.
const DONE: u64 = 0;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", file, certificate] => serve(file, certificate, "127.0.0.1:4433").await,
        ["serve", file, certificate, address] => serve(file, certificate, address).await,
        ["fetch", address, certificate, target] => fetch(address, certificate, target).await,
        _ => bail!("say `serve FILE CERTIFICATE [ADDRESS:PORT]` or `fetch ADDRESS:PORT CERTIFICATE TARGET`"),
    }
}

async fn serve(file: &str, certificate: &str, address: &str) -> Result<()> {
    let address: SocketAddr = address.parse().context("the address to listen on, such as 127.0.0.1:4433")?;
    fs::File::open(file).await.with_context(|| format!("cannot read {file}"))?;
    let certified = rcgen::generate_simple_self_signed(vec!["file-transfer".to_owned()])?;
    let der = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![der.clone()], certified.signing_key.serialize_der())?;
    let tls = RustlsServer::builder().identity(identity).alpn(ALPN).build()?;
    let config = ServerConfig::new(Arc::new(tls), Arc::new(Profile::default()));
    let endpoint = Endpoint::server(address, config).with_context(|| format!("cannot listen on {address}"))?;
    fs::write(certificate, der).await.with_context(|| format!("cannot write {certificate}"))?;
    println!("{file} is at {}, certificate in {certificate}", endpoint.local_addr());

    while let Some(connection) = endpoint.accept().await {
        let file = file.to_owned();
        tokio::spawn(async move {
            match send_file(&connection, Path::new(&file)).await {
                Ok(bytes) => println!("{bytes} bytes to {:?}", connection.remote_address()),
                Err(error) => eprintln!("{:?}: {error:#}", connection.remote_address()),
            }
        });
    }
    Ok(())
}

/// Sends the file on a stream of its own. If this fails half-way, the stream is dropped unfinished, which resets it.
async fn send_file(connection: &Connection, path: &Path) -> Result<u64> {
    let mut file = fs::File::open(path).await?;
    let mut stream = connection.open_uni().await?;
    let mut sent = 0;
    loop {
        // What is read here is what is sent: the stream takes over the memory until the peer has the bytes.
        let mut buffer = BytesMut::with_capacity(CHUNK);
        if file.read_buf(&mut buffer).await? == 0 {
            break;
        }
        sent += buffer.len() as u64;
        stream.write_chunk(buffer.freeze()).await?;
    }
    stream.finish()?;
    // Delivery continues in the background as long as the connection is open, so it is kept until the client is done.
    stream.finished().await?;
    connection.closed().await;
    Ok(sent)
}

async fn fetch(address: &str, certificate: &str, target: &str) -> Result<()> {
    let address: SocketAddr = address.parse().context("the server's address, such as 127.0.0.1:4433")?;
    let certificate = fs::read(certificate).await.with_context(|| format!("cannot read {certificate}"))?;
    let tls = RustlsClient::builder().roots([certificate]).alpn(ALPN).build()?;
    let endpoint = Endpoint::client_for(address)?;
    let config = ClientConfig::new(Arc::new(tls), Arc::new(Profile::default()));
    let connection = endpoint.connect(&config, address, "file-transfer")?.await.context("cannot connect")?;

    let started = Instant::now();
    let partial = format!("{target}.partial");
    let received = match receive_file(&connection, &partial).await {
        Ok(received) => received,
        Err(error) => {
            // It may not be there yet; what counts is the error that came first.
            let _ = fs::remove_file(&partial).await;
            return Err(error);
        }
    };
    fs::rename(&partial, target).await.with_context(|| format!("cannot write {target}"))?;
    let seconds = started.elapsed().as_secs_f64();
    println!("{received} bytes in {seconds:.3} s, round trip {:?}", connection.rtt());
    connection.close(DONE, b"");
    endpoint.wait_idle().await;
    Ok(())
}

/// Writes what the server's stream brings. The end of the stream is the end of the file: anything else is an error.
async fn receive_file(connection: &Connection, path: &str) -> Result<u64> {
    let mut file = fs::File::create(path).await.with_context(|| format!("cannot write {path}"))?;
    let mut stream = connection.accept_uni().await?;
    let mut received = 0;
    while let Some(chunk) = stream.read_chunk(CHUNK).await? {
        file.write_all(&chunk).await?;
        received += chunk.len() as u64;
    }
    file.flush().await?;
    Ok(received)
}
