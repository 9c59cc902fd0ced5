//! Processor time of packets that arrive at the socket of another shard, beside that of packets which do not.
//!
//! ```sh
//! cargo run --profile dist -p tiderace --example other_shard             # 25 rounds of 800 MB
//! cargo run --profile dist -p tiderace --example other_shard -- 5 200000000
//! ```
//!
//! A server has two shards, each on a thread of its own, and leaves the choice of the socket to the kernel's hash, as systems without steering
//! do. A client uploads over one connection; between uploads it takes other ports, until its packets come to the shard that has the
//! connection, or to the other one, which forwards them. Counted is the time of the server's threads, as the kernel keeps it.

use std::{
    fs,
    net::{SocketAddr, UdpSocket},
    num::NonZeroU8,
    sync::{Arc, mpsc},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tiderace::{
    ClientConfig, Connection, Endpoint, EndpointOptions, Identity, Profile, RustlsClient, RustlsServer, ServerConfig,
    Shards,
};

/// Ports that are tried: each has the wrong hash with a probability of one half.
const PORTS: u32 = 64;
/// Packets that the kernel joins to one read (UDP GRO), at most.
const MOST_OF_A_READ: u64 = 64;
/// Bytes with which a port is tried, and the window opens again.
const TRY: u64 = 20_000_000;

/// Socket at which the packets of an upload arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    OwnShard,
    OtherShard,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse::<u64>());
    let hint = "hint: the number of rounds, and bytes of an upload";
    let (rounds, bytes) = (number(25).context(hint)?, number(800_000_000).context(hint)?);
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der())?;
    let profile = Arc::new(Profile::default());
    let server = RustlsServer::builder().identity(identity).alpn("test").build()?;
    let server = ServerConfig::new(Arc::new(server), Arc::clone(&profile));
    let client = RustlsClient::builder().roots([cert]).alpn("test").build()?;
    let client = ClientConfig::new(Arc::new(client), profile);
    let (tell, told) = mpsc::channel();
    // Ends with the process.
    std::thread::spawn(move || serve(server, &tell));
    let listening = told.recv().context("the server did not start")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(upload_all(rounds, bytes, &client, &listening))
}

/// Takes connections, and reads whatever comes.
fn serve(config: ServerConfig, tell: &mpsc::Sender<Arc<Endpoint>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let shards = Shards::new(NonZeroU8::new(2).context("two")?).without_steering();
        let options = EndpointOptions { server: Some(config), shards, ..Default::default() };
        let endpoint = Arc::new(Endpoint::open("127.0.0.1:0".parse()?, options)?);
        tell.send(Arc::clone(&endpoint))?;
        while let Some(connection) = endpoint.accept().await {
            tokio::spawn(async move {
                while let Ok((mut send, mut recv)) = connection.accept_bi().await {
                    while recv.read_chunk(1 << 20).await?.is_some() {}
                    send.finish()?;
                }
                Ok::<_, anyhow::Error>(())
            });
        }
        Ok(())
    })
}

/// Processor time of the server's threads so far, in nanoseconds: of all but the first thread of the process, which is the client.
fn server_time() -> Result<u64> {
    let (mut sum, client) = (0, std::process::id().to_string());
    for task in fs::read_dir("/proc/self/task").context("the kernel lists no threads")? {
        let task = task?;
        if *task.file_name() != *client {
            let text =
                fs::read_to_string(task.path().join("schedstat")).context("the kernel keeps no processor time")?;
            sum += text.split_whitespace().next().context("no processor time")?.parse::<u64>()?;
        }
    }
    Ok(sum)
}

/// Arrival of packets of which so many reads were forwarded: none, or all. `None` where it was both, as in a change of the port.
fn arrival(packets: u64, forwarded: u64) -> Option<Arrival> {
    match forwarded {
        0 => Some(Arrival::OwnShard),
        forwarded if forwarded * MOST_OF_A_READ >= packets => Some(Arrival::OtherShard),
        _ => None,
    }
}

/// Uploads so many bytes; the packets that it took, and the reads among them that were forwarded.
async fn upload(connection: &Connection, bytes: u64, server: &Endpoint) -> Result<(u64, u64)> {
    let sent = || connection.stats().context("the connection is over").map(|stats| stats.packets_sent);
    let (packets, forwarded) = (sent()?, server.stats().forwarded);
    let (mut send, mut recv) = connection.open_bi().await?;
    let piece = vec![7; 1 << 16];
    let mut left = bytes;
    while left > 0 {
        let len = left.min(piece.len() as u64);
        send.write_all(&piece[..usize::try_from(len)?]).await?;
        left -= len;
    }
    send.finish()?;
    ensure!(recv.read_to_end(1).await?.is_empty(), "an answer that nobody sent");
    Ok((sent()? - packets, server.stats().forwarded - forwarded))
}

/// Takes other ports until packets arrive where they are wanted.
async fn arrive(wanted: Arrival, endpoint: &Endpoint, connection: &Connection, server: &Endpoint) -> Result<()> {
    for _ in 0..PORTS {
        let (packets, forwarded) = upload(connection, TRY, server).await?;
        if arrival(packets, forwarded) == Some(wanted) {
            return Ok(());
        }
        endpoint.rebind(UdpSocket::bind("127.0.0.1:0")?)?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    anyhow::bail!("{PORTS} ports, and none whose packets arrive at {wanted:?}")
}

async fn upload_all(rounds: u64, bytes: u64, config: &ClientConfig, server: &Endpoint) -> Result<()> {
    let address: SocketAddr = server.local_addr();
    for round in 0..rounds {
        let endpoint = Endpoint::client_for(address)?;
        let connection = endpoint.connect(config, address, "localhost")?.await?;
        let mut order = [Arrival::OwnShard, Arrival::OtherShard];
        // So that a machine that gets slower favours none.
        if round % 2 == 1 {
            order.reverse();
        }
        let mut cost = [0.0; 2];
        for wanted in order {
            arrive(wanted, &endpoint, &connection, server).await?;
            let begun = server_time()?;
            let (packets, forwarded) = upload(&connection, bytes, server).await?;
            let spent = server_time()? - begun;
            ensure!(arrival(packets, forwarded) == Some(wanted), "{forwarded} reads of {packets} packets forwarded");
            cost[usize::from(wanted == Arrival::OtherShard)] = spent as f64 / packets as f64;
        }
        println!("{{\"own_ns\":{:.1},\"other_ns\":{:.1},\"ratio\":{:.4}}}", cost[0], cost[1], cost[1] / cost[0]);
        connection.close(0, b"");
        endpoint.wait_idle().await;
    }
    Ok(())
}
