//! Verdicts through the relay: real sockets, real TLS, and for UDP the very links of the laboratory, in real time. TCP passes
//! through a forwarder that takes half a round trip each way, and a whole one more at the start for the handshake that the kernel has
//! made at once; its losses are modelled there, as the timeouts that they cost (first 1 s, then 200 ms or two round trips).

mod site;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use emu::{Relay, RelayConfig};
use netem::{LinkConfig, Loss, Queue};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use site::{Site, read};
use tiderace_client::{Client, Leg, Route, Settings, Trust, Verdict};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Semaphore, mpsc},
    time::Instant,
};
use units::{Bitrate, DataSize, Probability, Seed};

/// Runs of each case.
fn runs() -> u64 {
    std::env::var("CLIENT_RELAY_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

/// Runs at a time.
fn at_once() -> usize {
    std::env::var("CLIENT_RELAY_AT_ONCE").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

/// The head start of QUIC: what clients have where figures are taken, and more than a machine with much else to do delays it else.
fn head_start() -> Duration {
    let own = Settings::default().head_start;
    if std::env::var_os("CLIENT_RELAY_RUNS").is_some() { own } else { own * 10 }
}

/// Delay of TCP by its losses: each is repeated after a timeout, which doubles.
fn late(random: &mut ChaCha8Rng, loss: f64, packets: usize, first_timeout: Duration) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..packets {
        let (mut late, mut timeout) = (Duration::ZERO, first_timeout);
        while f64::from(random.next_u32()) < loss * f64::from(u32::MAX) {
            late += timeout;
            timeout = (timeout * 2).min(Duration::from_secs(4));
        }
        slowest = slowest.max(late);
    }
    slowest
}

/// Hands on what it reads after a delay.
async fn delayed(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    path: Path,
    mut random: ChaCha8Rng,
) {
    let (enter, mut leave) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reads = async move {
        let mut buffer = vec![0; 16_384];
        let timeout = (path.rtt * 2).max(Duration::from_millis(200));
        loop {
            let length = from.read(&mut buffer).await.unwrap_or(0);
            let delay = path.rtt / 2 + late(&mut random, path.tcp_loss, length.div_ceil(1_400), timeout);
            if enter.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() || length == 0 {
                return;
            }
        }
    };
    let writes = async move {
        while let Some((at, data)) = leave.recv().await {
            tokio::time::sleep_until(at).await;
            if data.is_empty() || to.write_all(&data).await.is_err() {
                let _ = to.shutdown().await;
                return;
            }
        }
    };
    tokio::join!(reads, writes);
}

/// TCP to `server` with half of `rtt` each way, after a whole one at the start.
async fn tcp_path(server: SocketAddr, path: Path, seed: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let connect = path.rtt + late(&mut random, path.tcp_loss, 2, Duration::from_secs(1));
            let mut ways = [random.next_u64(), random.next_u64()].map(ChaCha8Rng::seed_from_u64).into_iter();
            let (up, down) = (ways.next().unwrap(), ways.next().unwrap());
            tokio::spawn(async move {
                tokio::time::sleep(connect).await;
                let Ok(far) = TcpStream::connect(server).await else { return };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                tokio::join!(delayed(near_read, far_write, path, up), delayed(far_read, near_write, path, down));
            });
        }
    });
    address
}

/// Hands datagrams of one client on to `server` until it is cut.
async fn cuttable(server: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let outside = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let inside = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    inside.connect(server).await.unwrap();
    let address = outside.local_addr().unwrap();
    let cut = Arc::new(AtomicBool::new(false));
    let state = cut.clone();
    tokio::spawn(async move {
        let (mut out, mut back) = (vec![0; 65_536], vec![0; 65_536]);
        let mut client = None;
        loop {
            let cut = state.load(Ordering::SeqCst);
            tokio::select! {
                Ok((length, from)) = outside.recv_from(&mut out) => {
                    client = Some(from);
                    if !cut {
                        let _ = inside.send(&out[..length]).await;
                    }
                }
                Ok(length) = inside.recv(&mut back) => {
                    if let Some(to) = client.filter(|_| !cut) {
                        let _ = outside.send_to(&back[..length], to).await;
                    }
                }
            }
        }
    });
    (address, cut)
}

#[derive(Clone, Copy)]
struct Path {
    rtt: Duration,
    loss: f64,
    /// Of TCP's packets.
    tcp_loss: f64,
    rate: Option<Bitrate>,
    /// UDP is cut after the first exchange.
    cut: bool,
}

const GOOD: Path = Path { rtt: Duration::from_millis(60), loss: 0.0, tcp_loss: 0.0, rate: None, cut: false };

/// Time to the first byte over TCP alone, and over the race; and the verdict.
async fn one(
    server: SocketAddr,
    trust: Trust,
    path: Path,
    seed: u64,
) -> (Duration, Duration, Option<Verdict>, &'static str) {
    let (behind, cut) = cuttable(server).await;
    let udp = if path.cut { behind } else { server };
    let link = LinkConfig {
        delay: path.rtt / 2,
        rate: path.rate,
        queue: match path.rate {
            Some(_) => Queue::DropTail { bytes: DataSize::from_bytes(1 << 20) },
            None => Queue::Unlimited,
        },
        loss: Loss::Iid { p: Probability::new(path.loss).unwrap() },
        ..LinkConfig::default()
    };
    let config = RelayConfig {
        up: link.clone(),
        down: link,
        seed: Seed::from_number(seed),
        ..RelayConfig::new("127.0.0.1:0".parse().unwrap(), udp)
    };
    let relay = Relay::start(&config).unwrap();
    let url = format!("https://{}/", tcp_path(server, path, seed).await);
    let client = Client::with(&Settings { trust: trust.clone(), ..Settings::default() }).unwrap();
    let alone = client.get(&url, Some(Leg::Tcp), None).await.unwrap();
    let alone_took = alone.first_byte;
    read(alone).await;
    client.close().await;
    let client = Client::with(&Settings { trust, head_start: head_start(), ..Settings::default() }).unwrap();
    let route = Route { udp: Some(relay.address()), ..Route::default() };
    if path.cut {
        let before = client.get_by(&url, &route).await.unwrap();
        assert_eq!(before.protocol, "h3");
        read(before).await;
        cut.store(true, Ordering::SeqCst);
    }
    let fetched = client.get_by(&url, &route).await.unwrap();
    let (took, protocol) = (fetched.first_byte, fetched.protocol);
    let verdict = read(fetched).await.1;
    client.close().await;
    let _ = relay.stop();
    (alone_took, took, verdict, protocol)
}

fn p99(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[(times.len() * 99).div_ceil(100) - 1].as_secs_f64() * 1e3
}

/// Runs a case. The time bound is what `shows` judges: a machine with much else to do may not keep it.
async fn case(name: &str, extra: &str, path: Path, right: impl Fn(Option<Verdict>, &str) -> bool) {
    let site = Site::new(&format!("relay-{}", name.replace([' ', '%'], "-")), extra);
    let server = site.process.addresses()[0];
    let places = Arc::new(Semaphore::new(at_once()));
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 1..=runs() {
        let (places, trust) = (places.clone(), site.trust.clone());
        tasks.spawn(async move {
            let _place = places.acquire().await.unwrap();
            one(server, trust, path, seed).await
        });
    }
    let (mut good, mut alone, mut raced, mut wrong) = (0_u64, Vec::new(), Vec::new(), BTreeMap::new());
    while let Some(ran) = tasks.join_next().await {
        let (alone_took, took, verdict, protocol) = ran.unwrap();
        alone.push(alone_took);
        raced.push(took);
        if right(verdict, protocol) {
            good += 1;
        } else {
            *wrong.entry(format!("{verdict:?} over {protocol}")).or_insert(0) += 1;
        }
    }
    let share = good as f64 / runs() as f64;
    println!("measured share of right verdicts, {name}: {share}");
    println!("measured p99 in ms, {name}, raced: {:.1}", p99(raced));
    println!("measured p99 in ms, {name}, TCP alone: {:.1}", p99(alone));
    assert!(share >= 0.99, "{name}: {share}, wrong: {wrong:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_path() {
    case("good path", "", GOOD, |verdict, protocol| verdict == Some(Verdict::Works) && protocol == "h3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn udp_is_cut_at_the_start() {
    let right = |verdict, protocol: &str| matches!(verdict, Some(Verdict::Blocked { .. })) && protocol == "h2";
    case("UDP cut at start", "", Path { loss: 1.0, ..GOOD }, right).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn udp_is_cut_in_the_middle() {
    let right = |verdict, protocol: &str| matches!(verdict, Some(Verdict::Blocked { .. })) && protocol == "h2";
    case("UDP cut in the middle", "", Path { cut: true, ..GOOD }, right).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_loses_thirty_percent() {
    // Whoever wins: UDP is not blocked, and nobody refuses.
    let right = |verdict, _: &str| matches!(verdict, Some(Verdict::Works | Verdict::Slower { .. } | Verdict::BadPath));
    // In one of a thousand runs TLS alone takes longer than the gateway waits by itself, and there is no time to compare with.
    let patient = "[limits]\nhandshake-timeout = \"2 min\"\n";
    case("30 % loss", patient, Path { loss: 0.3, tcp_loss: 0.3, ..GOOD }, right).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_is_slow() {
    let slow = Path { rtt: Duration::from_millis(600), rate: Some(Bitrate::from_bps(128_000)), ..GOOD };
    let right = |verdict, _: &str| matches!(verdict, Some(Verdict::Works | Verdict::Slower { .. }));
    case("slow path", "", slow, right).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_sheds() {
    let right = |verdict, protocol: &str| verdict == Some(Verdict::Refused) && protocol == "h2";
    case("server that sheds", "[http3]\nshed = true\n", GOOD, right).await;
}
