//! CPU time of a server whose connections all do nothing.
//!
//! ```sh
//! cargo run --profile dist -p tiderace --example rest              # 10,000 connections, 15 seconds
//! cargo run --profile dist -p tiderace --example rest -- 2000 5
//! ```
//!
//! Server and client run on a thread each, over loopback, with the default profile. Each connection asks once; then all of them stay open.
//! Eight seconds later the CPU time of the server's thread is counted, as the kernel keeps it (`/proc/thread-self/schedstat`). The length
//! of the count ends before the idle timeout of the first connection.

use std::{
    fs,
    net::SocketAddr,
    sync::{Arc, mpsc},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use tiderace::{
    ClientConfig, Endpoint, EndpointOptions, Identity, Profile, RustlsClient, RustlsServer, ServerConfig, SocketStats,
};

/// After the last connection: what a handshake leaves to do is done by then.
const SETTLE: Duration = Duration::from_secs(8);
/// Connections that open at the same time.
const AT_A_TIME: usize = 32;
/// So that no connection ends meanwhile.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse::<u64>());
    let hint = "hint: the number of connections, and seconds";
    let (connections, seconds) = (number(10_000).context(hint)?, number(15).context(hint)?);
    ensure!(connections > 0 && seconds > 0, "nothing to count\n{hint}");
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der())?;
    let profile = Arc::new(Profile { idle_timeout: IDLE_TIMEOUT, ..Profile::default() });
    let server = RustlsServer::builder().identity(identity).alpn("test").build()?;
    let server = ServerConfig::new(Arc::new(server), profile.clone());
    let client = RustlsClient::builder().roots([cert]).alpn("test").without_resumption().build()?;
    let client = ClientConfig::new(Arc::new(client), profile);
    let (tell, told) = mpsc::channel();
    let length = Duration::from_secs(seconds);
    let serving = std::thread::spawn(move || runtime()?.block_on(serve(connections, length, server, &tell)));
    let address = told.recv().context("the server did not start")?;
    let asking = std::thread::spawn(move || runtime()?.block_on(ask(connections, client, address)));
    let (cpu, before, after) = serving.join().map_err(|_| anyhow::anyhow!("the server failed"))??;
    asking.join().map_err(|_| anyhow::anyhow!("the client failed"))??;
    println!(
        "{{\"connections\":{connections},\"seconds\":{seconds},\"cpu_percent\":{:.4},\"send_calls\":{},\"receive_calls\":{}}}",
        100.0 * cpu.as_secs_f64() / length.as_secs_f64(),
        after.send_calls - before.send_calls,
        after.receive_calls - before.receive_calls,
    );
    Ok(())
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// CPU time of the calling thread so far.
fn cpu() -> Result<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").context("cannot read the thread's CPU time")?;
    let nanoseconds = text.split_whitespace().next().context("the kernel keeps no CPU time of threads")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
}

/// Accepts all connections, waits, and counts.
async fn serve(
    connections: u64,
    length: Duration,
    config: ServerConfig,
    tell: &mpsc::Sender<SocketAddr>,
) -> Result<(Duration, SocketStats, SocketStats)> {
    let options = EndpointOptions { server: Some(config), ..Default::default() };
    let endpoint = Endpoint::open("127.0.0.1:0".parse()?, options)?;
    tell.send(endpoint.local_addr())?;
    let mut open = Vec::new();
    for _ in 0..connections {
        let connection = endpoint.accept().await.context("the endpoint closed")?;
        let (send, mut recv) = connection.accept_bi().await?;
        recv.read_to_end(1).await?;
        send.write_last(Bytes::from_static(b"!")).await?;
        open.push(connection);
    }
    tokio::time::sleep(SETTLE).await;
    let (started, before) = (cpu()?, endpoint.socket_stats());
    tokio::time::sleep(length).await;
    let (ended, after) = (cpu()?, endpoint.socket_stats());
    ensure!(open.iter().all(|connection| connection.close_reason().is_none()), "connections have ended");
    for connection in &open {
        connection.close(0, b"");
    }
    endpoint.wait_idle().await;
    Ok((ended - started, before, after))
}

/// Opens all connections and keeps them until the server closes them.
async fn ask(connections: u64, config: ClientConfig, server: SocketAddr) -> Result<()> {
    let endpoint = Endpoint::client_for(server)?;
    let permits = Arc::new(tokio::sync::Semaphore::new(AT_A_TIME));
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let permit = permits.clone().acquire_owned().await?;
        let connecting = endpoint.connect(&config, server, "localhost")?;
        asking.spawn(async move {
            let connection = connecting.await?;
            let (send, mut recv) = connection.open_bi().await?;
            send.write_last(Bytes::from_static(b"?")).await?;
            recv.read_to_end(1).await?;
            drop(permit);
            connection.closed().await;
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked??;
    }
    endpoint.wait_idle().await;
    Ok(())
}
