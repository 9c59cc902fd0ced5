//! Gateways without private keys: another process signs their handshakes, over QUIC and TCP. Slow, gone and wrong signers.
#![cfg(target_os = "linux")]

mod gateway;
mod scratch;
mod signing;

use std::{
    io::{BufRead, BufReader, Lines},
    net::SocketAddr,
    process::{Child, ChildStderr, Stdio},
    time::{Duration, Instant},
};

use rustls::HandshakeKind;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
};

use gateway::{Gateway, edge};
use scratch::Program;
use signing::{Authority, Client, LIMIT, Place, Signer, ask2, ask3, signal};

/// Listens in front of a signer. What a gateway says goes on as it comes; `answers` carries what the signer says on each connection.
async fn way_to(
    signer: SocketAddr,
    answers: impl Fn(OwnedReadHalf, OwnedWriteHalf) + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(signer).await.unwrap();
            let ((mut near_read, near_write), (far_read, mut far_write)) = (near.into_split(), far.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut near_read, &mut far_write).await });
            answers(far_read, near_write);
        }
    });
    (address, task)
}

/// The way to a signer: what it answers is held back until it is let go.
struct Gate {
    address: SocketAddr,
    open: watch::Sender<bool>,
    _task: JoinHandle<()>,
}

impl Gate {
    async fn before(signer: SocketAddr) -> Self {
        let (open, is_open) = watch::channel(true);
        let (address, task) = way_to(signer, move |mut answers, mut near| {
            let mut is_open = is_open.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 65_536];
                while let Ok(len) = answers.read(&mut buffer).await {
                    is_open.wait_for(|open| *open).await.unwrap();
                    if len == 0 || near.write_all(&buffer[..len]).await.is_err() {
                        return;
                    }
                }
            });
        })
        .await;
        Self { address, open, _task: task }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_of_a_gateway_without_keys_are_signed_elsewhere() {
    let place = Place::new("elsewhere");
    let mut signer = Signer::start(&place.folder, "127.0.0.1:0");
    let gateway = Gateway::start(&place.configure(signer.address, "", ""));
    let client = place.client(&gateway);
    assert_eq!(client.both().await, HandshakeKind::Full);
    assert_eq!(signer.signed(), 2, "one over QUIC, one over TCP");
    let old = Client { tcp: place.tcp(&[&rustls::version::TLS12]), ..client.clone() };
    let (mut h2, _) = old.h2().await.unwrap();
    ask2(&mut h2).await;
    assert_eq!(signer.signed(), 3, "TLS 1.2 is signed, too");
    assert_eq!(client.both().await, HandshakeKind::Resumed);
    assert_eq!(signer.signed(), 3, "sessions are resumed without it");
    assert_eq!(place.metric("tiderace_edge_signer_up"), 1.0);
    assert_eq!(place.metric("tiderace_edge_signatures_total{reason=\"signed\",by=\"signer\"}"), 3.0);
    let status = signer.status();
    assert_eq!((&status["gateways"]["open"], &status["signatures"]["refused"]), (&1.into(), &0.into()), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_signer_delays_full_handshakes_and_nothing_else() {
    const WAITING: usize = 24;
    let place = Place::new("slow");
    let mut signer = Signer::start(&place.folder, "127.0.0.1:0");
    let gate = Gate::before(signer.address).await;
    let gateway = Gateway::start(&place.configure(gate.address, "", "time-limit = \"100 s\""));
    let client = place.client(&gateway);
    let (_endpoint, mut h3) = client.h3().await.unwrap();
    ask3(&mut h3).await;
    let (mut h2, _) = client.h2().await.unwrap();
    ask2(&mut h2).await;
    gate.open.send_replace(false);
    // More than the threads that a gateway has for handshakes, each with a store of its own.
    let of_quic: Vec<_> = (0..WAITING).map(|_| place.client(&gateway)).collect();
    let of_tcp: Vec<_> = (0..WAITING).map(|_| place.client(&gateway)).collect();
    let quic: Vec<_> = of_quic.into_iter().map(|client| tokio::spawn(async move { client.h3().await })).collect();
    let tcp: Vec<_> = of_tcp.into_iter().map(|client| tokio::spawn(async move { client.h2().await })).collect();
    // All of them are signed, and nobody knows.
    signer.wait_for(2 + 2 * WAITING as u64).await;
    for _ in 0..20 {
        ask3(&mut h3).await;
        ask2(&mut h2).await;
    }
    assert_eq!(client.both().await, HandshakeKind::Resumed, "sessions are resumed meanwhile");
    assert!(quic.iter().all(|task| !task.is_finished()) && tcp.iter().all(|task| !task.is_finished()));
    gate.open.send_replace(true);
    for task in quic {
        ask3(&mut task.await.unwrap().unwrap().1).await;
    }
    for task in tcp {
        ask2(&mut task.await.unwrap().unwrap().0).await;
    }
}

/// The way to a signer that is far away: each of its answers arrives later by a delay that changes.
struct Distance {
    address: SocketAddr,
    delay: watch::Sender<Duration>,
    _task: JoinHandle<()>,
}

impl Distance {
    async fn before(signer: SocketAddr) -> Self {
        let (delay, delays) = watch::channel(Duration::ZERO);
        let (address, task) = way_to(signer, move |mut answers, mut near| {
            // Answers are under way side by side, as on a long line.
            let (send, mut under_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
            let delays = delays.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 65_536];
                while let Ok(len @ 1..) = answers.read(&mut buffer).await {
                    let due = Instant::now() + *delays.borrow();
                    send.send((due, buffer[..len].to_vec())).unwrap();
                }
            });
            tokio::spawn(async move {
                while let Some((due, bytes)) = under_way.recv().await {
                    tokio::time::sleep_until(due.into()).await;
                    near.write_all(&bytes).await.unwrap();
                }
            });
        })
        .await;
        Self { address, delay, _task: task }
    }
}

/// Number in the environment, or another one.
fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Element below which 99 % are, in milliseconds.
fn p99(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[(times.len() * 99).div_ceil(100) - 1].as_secs_f64() * 1e3
}

/// Makes requests on open connections over HTTP/3 and HTTP/2 while full handshakes of others begin at a steady pace. Returns the times of the
/// requests, and those of the handshakes.
async fn beside_handshakes(place: &Place, gateway: &Gateway, requests: usize) -> (Vec<Duration>, Vec<Duration>) {
    const PACE: Duration = Duration::from_millis(40);
    let client = place.client(gateway);
    let (_endpoint, mut h3) = client.h3().await.unwrap();
    let (mut h2, _) = client.h2().await.unwrap();
    // No ticket is kept: each handshake needs a signature.
    let strangers: Vec<_> = (0..200).map(|_| place.client(gateway)).collect();
    let (end, mut ended) = watch::channel(false);
    let opening = tokio::spawn(async move {
        let mut handshakes = JoinSet::new();
        for (i, stranger) in strangers.into_iter().enumerate() {
            handshakes.spawn(async move {
                let begun = Instant::now();
                if i % 2 == 0 {
                    stranger.h3().await.map(drop).unwrap();
                } else {
                    stranger.h2().await.map(drop).unwrap();
                }
                begun.elapsed()
            });
            if tokio::time::timeout(PACE, ended.wait_for(|ended| *ended)).await.is_ok() {
                break;
            }
        }
        handshakes.join_all().await
    });
    let mut times = Vec::with_capacity(2 * requests);
    for _ in 0..requests {
        let begun = Instant::now();
        ask3(&mut h3).await;
        times.push(begun.elapsed());
        let begun = Instant::now();
        ask2(&mut h2).await;
        times.push(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    end.send_replace(true);
    (times, opening.await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_wait_for_a_signer_that_is_far_away() {
    let (rounds, requests) = (number("SIGNER_ROUNDS", 1), number("SIGNER_REQUESTS", 200));
    let place = Place::new("far");
    let signer = Signer::start(&place.folder, "127.0.0.1:0");
    let distance = Distance::before(signer.address).await;
    let gateway = Gateway::start(&place.configure(distance.address, "", "time-limit = \"100 s\""));
    // The first ones of a process take longer.
    beside_handshakes(&place, &gateway, requests / 2).await;
    for _ in 0..rounds {
        let mut near = f64::NAN;
        for delay in [0, 50, 5_000] {
            distance.delay.send_replace(Duration::from_millis(delay));
            let (times, handshakes) = beside_handshakes(&place, &gateway, requests).await;
            let soonest = *handshakes.iter().min().unwrap();
            assert!(soonest >= Duration::from_millis(delay), "a handshake without its signature: {soonest:?}");
            let times = p99(times);
            println!("measured handshakes with a signer at {delay} ms: {}", handshakes.len());
            println!("measured p99 of requests with a signer at {delay} ms, ms: {times:.3}");
            if delay == 0 {
                near = times;
            } else {
                println!("measured p99 of requests more with a signer at {delay} ms, ms: {:.3}", times - near);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_signer_sessions_are_resumed_and_what_fails_is_counted() {
    let place = Place::new("gone");
    let signer = Signer::start(&place.folder, "127.0.0.1:0");
    let address = signer.address;
    let gateway = Gateway::start(&place.configure(address, "", ""));
    let client = place.client(&gateway);
    client.both().await;
    drop(signer);
    place.wait_for_metric("tiderace_edge_signer_up", 0.0).await;
    assert_eq!(client.both().await, HandshakeKind::Resumed);
    let stranger = place.client(&gateway);
    assert!(stranger.h2().await.is_err() && stranger.h3().await.is_err());
    let failed = "tiderace_edge_signatures_total{reason=\"unreachable\",by=\"nobody\"}";
    assert!(place.metric(failed) >= 2.0, "{}", place.metric(failed));
    let _signer = Signer::start(&place.folder, &address.to_string());
    place.wait_for_metric("tiderace_edge_signer_up", 1.0).await;
    assert_eq!(stranger.both().await, HandshakeKind::Full, "it is found again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_here_sign_when_the_signer_does_not() {
    let place = Place::new("fall-back");
    let mut signer = Signer::start(&place.folder, "127.0.0.1:0");
    let gateway = Gateway::start(&place.configure(
        signer.address,
        "key = \"keys/key.pem\"",
        "fall-back = true\ntime-limit = \"30 s\"",
    ));
    place.client(&gateway).both().await;
    assert_eq!(signer.signed(), 2);
    drop(signer);
    place.wait_for_metric("tiderace_edge_signer_up", 0.0).await;
    assert_eq!(place.client(&gateway).both().await, HandshakeKind::Full);
    assert_eq!(place.metric("tiderace_edge_signatures_total{reason=\"unreachable\",by=\"here\"}"), 2.0);
}

/// Output of `tiderace edge check`, with its code.
fn check(file: &std::path::Path) -> (Option<i32>, String) {
    let output = edge("check", file).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn what_is_wrong_with_a_signer_is_said_once_and_clearly() {
    let place = Place::new("wrong");
    let signer = Signer::start(&place.folder, "127.0.0.1:0");
    let file = place.configure(signer.address, "", "");
    let (code, said) = check(&file);
    assert!(code == Some(0) && !said.contains("the signer"), "{said}");
    let other = Authority::new();
    let write = |name: &str, text: &str| std::fs::write(place.folder.0.join(name), text).unwrap();
    // An authority that the signer does not come from.
    write("ca.pem", &other.pem);
    for (says, hint, mend) in [
        ("shows a certificate that is not accepted", "`roots` of [signer]", "ca.pem"),
        ("does not accept this gateway's certificate", "`clients` of the signer's", "gateway.pem"),
    ] {
        if mend == "gateway.pem" {
            write("ca.pem", &place.authority.pem);
            other.issue(&place.folder, "gateway");
        }
        let (code, said) = check(&file);
        assert!(code == Some(0) && said.contains(says) && said.contains(hint), "{said}");
        // At work it says so once, however often it tries.
        let mut gateway = Running::start(&file);
        let line = gateway.errors.find(|line| line.as_ref().unwrap().contains(says)).unwrap().unwrap();
        assert!(line.contains("ERROR"), "{line}");
        gateway.let_try(&place);
        assert_eq!(gateway.end().iter().filter(|line| line.contains(says)).count(), 0);
    }
    place.authority.issue(&place.folder, "gateway");
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    write("cert.pem", &made.cert.pem());
    let (code, said) = check(&file);
    assert!(code == Some(0) && said.contains("has no key for this certificate"), "{said}");
    drop(signer);
    let (code, said) = check(&file);
    assert!(code == Some(0) && said.contains("cannot be reached"), "{said}");
    write("gateway.key", "nothing");
    let (code, said) = check(&file);
    assert!(code == Some(2) && said.contains("signer.key"), "{said}");
}

/// A gateway whose errors are read.
struct Running {
    program: Program,
    errors: Lines<BufReader<ChildStderr>>,
}

impl Running {
    fn start(file: &std::path::Path) -> Self {
        let mut program: Child = edge("run", file).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(program.stderr.take().unwrap()).lines();
        Self { program: Program(program), errors }
    }

    /// Lets it try for a while; longer has the same effect.
    fn let_try(&self, place: &Place) {
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(place.metric("tiderace_edge_signer_up"), 0.0);
        }
    }

    /// Ends it; the rest of what it has said.
    fn end(self) -> Vec<String> {
        let Self { mut program, errors } = self;
        signal(program.0.id(), "TERM");
        let rest = errors.map(Result::unwrap).collect();
        program.0.wait().unwrap();
        rest
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signer_that_is_lost_silently_is_left_for_the_next_one() {
    const TIME_LIMIT: Duration = Duration::from_secs(1);
    let place = Place::new("silent");
    let mut first = Signer::start(&place.folder, "127.0.0.1:0");
    let mut second = Signer::start(&place.folder, "127.0.0.1:0");
    let gate = Gate::before(first.address).await;
    let file = place.configure(gate.address, "", "time-limit = \"1 s\"\n");
    let text = std::fs::read_to_string(&file).unwrap();
    let both = format!("[\"{}\", \"{}\"]", gate.address, second.address);
    std::fs::write(&file, text.replace(&format!("\"{}\"", gate.address), &both)).unwrap();
    let gateway = Gateway::start(&file);
    // No ticket is kept: each handshake needs a signature.
    let fresh = || place.client(&gateway);
    fresh().h2().await.unwrap();
    assert_eq!((first.signed(), second.signed()), (1, 0));
    // Neither FIN nor RST, and no answer.
    gate.open.send(false).unwrap();
    let lost = Instant::now();
    let mut failed = 0;
    let after = loop {
        let begun = Instant::now();
        if fresh().h2().await.is_ok() {
            break lost.elapsed();
        }
        failed += 1;
        let took = begun.elapsed();
        assert!(took < TIME_LIMIT * 2 + Duration::from_secs(2), "a handshake fails after {took:?}");
        assert!(lost.elapsed() < LIMIT, "no handshake succeeds any more");
    };
    println!("measured seconds until the next signer signs: {}", after.as_secs_f64());
    assert!(failed > 0 && after > TIME_LIMIT, "{failed} handshakes failed, {after:?}");
    // Three times the limit, half of it between two looks, and the handshakes themselves.
    assert!(after < TIME_LIMIT * 6, "{after:?}");
    assert_eq!(second.signed(), 1);
    let (_endpoint, mut h3) = fresh().h3().await.unwrap();
    ask3(&mut h3).await;
}
