//! A download through the relay in real time whose NAT changes the client's mapping twice: real sockets, our client, our server, and
//! neither is told.
//!
//! ```text
//! client – NAT – 20 Mbit/s, 40 ms – server
//! ```

#![cfg(target_os = "linux")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use emu::{Relay, RelayConfig};
use netem::{LinkConfig, NatConfig, Queue, Rebinding};
use tiderace::{ClientConfig, Endpoint, Identity, Profile, RustlsClient, RustlsServer, ServerConfig, Stats};
use units::{Bitrate, DataSize, Seed};

const MBPS: u64 = 20;

/// A test may take a slow machine's first handshake for a rebinding in the middle of it, which no connection survives (RFC 9000 §9):
/// the moments and the download are as many times later and longer as this says.
#[derive(Clone, Copy)]
struct Scale(u32);

/// Observations of a download.
struct Download {
    /// Time at which data arrived.
    moments: Vec<Instant>,
    /// The client's figures at the end.
    stats: Stats,
    /// Three probe timeouts and a second, by the longest round trip seen.
    limit: Duration,
    relay: emu::Statistics,
}

/// Sleeps of one thread after the other, and how late each ended: the delay that the machine adds to timers.
struct Sleeper {
    ended: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
    late: Arc<Mutex<Vec<(Instant, Duration)>>>,
}

impl Sleeper {
    fn start() -> Self {
        const NAP: Duration = Duration::from_millis(2);
        let (ended, late) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (end, found) = (ended.clone(), late.clone());
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(NAP);
                let over = begun.elapsed().saturating_sub(NAP);
                if over > NAP {
                    found.lock().unwrap().push((Instant::now(), over));
                }
            }
        });
        Self { ended, thread, late }
    }

    /// Lateness of sleeps between two moments, all together.
    fn lateness(&self, from: Instant, to: Instant) -> Duration {
        self.late.lock().unwrap().iter().filter(|(at, _)| (from..=to).contains(at)).map(|(_, late)| *late).sum()
    }

    fn stop(self) {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn configs() -> (ServerConfig, ClientConfig) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der()).unwrap();
    let server = RustlsServer::builder().identity(identity).alpn("test").build().unwrap();
    let client = RustlsClient::builder().roots([cert]).alpn("test").build().unwrap();
    let profile = Arc::new(Profile::default());
    (ServerConfig::new(Arc::new(server), profile.clone()), ClientConfig::new(Arc::new(client), profile))
}

/// Moments of the two changes, in milliseconds from the first packet.
fn moments(seed: u64, Scale(scale): Scale) -> [u64; 2] {
    // Anywhere between two acknowledgements, and not at the same place twice.
    let spread = seed.wrapping_mul(2_654_435_761) % 400;
    [700 + spread, 2_700 + 2 * spread].map(|at| at * u64::from(scale))
}

/// `None` when the connection did not survive.
async fn download(seed: u64, scale: Scale) -> Option<Download> {
    // Longer than the second change is late: four seconds of the path's rate.
    let bytes = 4_000 * u64::from(scale.0) * MBPS * 1_000 / 8;
    let (server_config, client_config) = configs();
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), server_config).unwrap();
    let link = LinkConfig {
        rate: Some(Bitrate::from_mbps(MBPS)),
        queue: Queue::DropTail { bytes: DataSize::from_bytes(100_000) },
        delay: Duration::from_millis(20),
        ..LinkConfig::default()
    };
    let rebind = moments(seed, scale).map(|at| Rebinding { at: Duration::from_millis(at), address: seed % 2 == 1 });
    let config = RelayConfig {
        up: link.clone(),
        down: link,
        nat: Some(NatConfig { rebind: rebind.into(), ..NatConfig::default() }),
        seed: Seed::from_number(seed),
        ..RelayConfig::new("127.0.0.1:0".parse().unwrap(), server.local_addr())
    };
    let relay = Relay::start(&config).unwrap();
    let client = Endpoint::client_for(relay.address()).unwrap();
    let serving = tokio::spawn(async move {
        let connection = server.accept().await?;
        let mut stream = connection.open_uni().await.ok()?;
        let piece = Bytes::from(vec![7; 64 * 1024]);
        let mut left = bytes as usize;
        while left > 0 {
            let piece = piece.slice(..left.min(piece.len()));
            left -= piece.len();
            stream.write_chunk(piece).await.ok()?;
        }
        stream.finish().ok()?;
        // Until the client is gone.
        connection.closed().await;
        Some(())
    });
    let received = async {
        let connection = client.connect(&client_config, relay.address(), "localhost").unwrap().await.ok()?;
        let mut stream = connection.accept_uni().await.ok()?;
        let (mut moments, mut got, mut limit) = (Vec::new(), 0, Duration::ZERO);
        while let Some(chunk) = stream.read_chunk(usize::MAX).await.ok()? {
            assert!(chunk.iter().all(|byte| *byte == 7));
            got += chunk.len() as u64;
            moments.push(Instant::now());
            limit = limit.max(patience(&connection.stats()?));
        }
        assert_eq!(got, bytes);
        let stats = connection.stats()?;
        connection.close(0, b"");
        Some((moments, stats, limit))
    };
    let received = received.await;
    drop(client);
    let _ = serving.await;
    let relay = relay.stop().unwrap();
    received.map(|(moments, stats, limit)| Download { moments, stats, limit, relay })
}

/// Three probe timeouts and a second.
fn patience(stats: &Stats) -> Duration {
    let max_ack_delay = Duration::from_millis(25);
    let variation = Duration::from_nanos(4 * stats.rtt_variation).max(Duration::from_millis(1));
    3 * (Duration::from_nanos(stats.smoothed_rtt) + variation + max_ack_delay) + Duration::from_secs(1)
}

/// The download ends, and the server's datagrams came to as many mappings as the NAT made. How long it took is another question:
/// see [`stalls`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_outlives_two_changes_of_its_mapping() {
    let scales = [1, 2, 4, 8].map(Scale);
    for scale in scales {
        let Some(download) = download(1, scale).await else { continue };
        // One, when the client was silent from one change to the next.
        assert!((1..=2).contains(&download.relay.rebindings), "{}", download.relay);
        assert_eq!(download.relay.clients, 1);
        return;
    }
    panic!("no download has survived its changes");
}

/// Time that downloads stood still, beside what is permitted: three probe timeouts and a second, and what sleeps on this machine were
/// late in that time. Prints a line that `cargo xtask shows hardening` reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures time: needs a machine for itself"]
async fn stalls() {
    let seeds: u64 = std::env::var("REBINDING_RELAY_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let sleeper = Sleeper::start();
    let (mut stalled, mut ended, mut changes) = (0, 0, 0);
    let (mut longest, mut allowed, mut explained, mut pings) = (Duration::ZERO, Duration::ZERO, Duration::ZERO, 0);
    for seed in 1..=seeds {
        let Some(download) = download(seed, Scale(1)).await else { continue };
        ended += 1;
        changes += download.relay.rebindings;
        pings += download.stats.silence_pings;
        let late = download.relay.lateness.quantile_duration(1.0).unwrap_or_default();
        for pair in download.moments.windows(2) {
            let gap = pair[1] - pair[0];
            let lateness = sleeper.lateness(pair[0], pair[1]) + late;
            stalled += u64::from(gap > download.limit + lateness);
            if gap > longest {
                (longest, explained) = (gap, lateness);
            }
        }
        allowed = allowed.max(download.limit);
    }
    sleeper.stop();
    println!(
        "rebinding: seeds {seeds} | stalled {} | longest {} ms | limit {} ms | pings {pings} | relay in real time, {changes} changes, \
         {} ms of the longest explained by this machine",
        stalled + seeds - ended,
        longest.as_millis(),
        allowed.as_millis(),
        explained.as_millis()
    );
    assert_eq!(ended, seeds, "downloads that did not survive");
}
