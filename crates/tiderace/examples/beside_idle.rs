//! Requests over one connection, beside others that do nothing.
//!
//! ```sh
//! cargo run --profile dist -p tiderace --example beside_idle -- 300      # beside 300 idle connections
//! cargo xtask instructions --only idle                                   # in instructions, over those beside none
//! ```
//!
//! A server and a client, each an endpoint with its driver, share one thread and its loopback. All work of the requests is done inside the
//! function `busy`, so that callgrind counts it with `--toggle-collect=beside_idle::busy`. What a driver does for each of its connections in
//! each pass shows in the ratio to the same requests beside none.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use tiderace::{
    ClientConfig, Connection, Endpoint, EndpointOptions, Identity, Profile, RustlsClient, RustlsServer, ServerConfig,
};

const REQUESTS: u64 = 400;
/// After the last handshake: MTU discovery and acknowledgements of the idle connections are over by then, also under callgrind.
const SETTLE: Duration = Duration::from_secs(3);
/// So that no connection ends meanwhile: callgrind takes fifty times as long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

fn main() -> Result<()> {
    let idle = std::env::args().nth(1).map_or(Ok(300), |text| text.parse::<u64>());
    let idle = idle.context("hint: the number of idle connections")?;
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der())?;
    let profile = Arc::new(Profile { idle_timeout: IDLE_TIMEOUT, ..Profile::default() });
    let server = RustlsServer::builder().identity(identity).alpn("test").build()?;
    let server = ServerConfig::new(Arc::new(server), Arc::clone(&profile));
    let client = RustlsClient::builder().roots([cert]).alpn("test").without_resumption().build()?;
    let client = ClientConfig::new(Arc::new(client), profile);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let connections = runtime.block_on(open(idle, server, &client))?;
    busy(&runtime, &connections)?;
    let still = connections.iter().all(|connection| connection.close_reason().is_none());
    ensure!(still, "connections have ended");
    println!("{{\"units\":{REQUESTS},\"unit\":\"request\"}}");
    Ok(())
}

/// Opens the connections; the server answers whatever is asked.
async fn open(idle: u64, server: ServerConfig, client: &ClientConfig) -> Result<Vec<Connection>> {
    let options = EndpointOptions { server: Some(server), ..Default::default() };
    let listening = Endpoint::open("127.0.0.1:0".parse()?, options)?;
    let address = listening.local_addr();
    tokio::spawn(async move {
        while let Some(connection) = listening.accept().await {
            tokio::spawn(async move {
                while let Ok((send, mut recv)) = connection.accept_bi().await {
                    recv.read_to_end(1).await?;
                    send.write_last(Bytes::from_static(b"!")).await?;
                }
                Ok::<_, anyhow::Error>(())
            });
        }
    });
    let endpoint = Endpoint::client_for(address)?;
    let mut connections = Vec::new();
    for _ in 0..=idle {
        let connection = endpoint.connect(client, address, "localhost")?.await?;
        ask(&connection).await?;
        connections.push(connection);
    }
    tokio::time::sleep(SETTLE).await;
    Ok(connections)
}

async fn ask(connection: &Connection) -> Result<()> {
    let (send, mut recv) = connection.open_bi().await?;
    send.write_last(Bytes::from_static(b"?")).await?;
    ensure!(recv.read_to_end(1).await?.len() == 1, "no answer");
    Ok(())
}

/// Makes the requests, one after another, over the connection that was opened last.
#[inline(never)]
fn busy(runtime: &tokio::runtime::Runtime, connections: &[Connection]) -> Result<()> {
    let last = connections.last().context("there is a connection")?;
    runtime.block_on(async {
        for _ in 0..REQUESTS {
            ask(last).await?;
        }
        Ok(())
    })
}
