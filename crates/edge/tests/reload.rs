//! A gateway that gets new configurations while it is at work loses nothing, and a wrong one changes nothing.

mod site;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;
use site::{BackEnd, Site, full, get, get1, text};
use tokio::{io::AsyncReadExt, net::TcpListener, sync::Semaphore};

/// Reloads: many when asked for, some otherwise.
fn reloads() -> u64 {
    std::env::var("EDGE_RELOADS").ok().and_then(|text| text.parse().ok()).unwrap_or(40)
}

/// Connections of each kind.
fn each() -> usize {
    std::env::var("EDGE_CONNECTIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

async fn echo_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    address.to_string()
}

fn config(back_end: &str, echo: &str, number: u64) -> String {
    // Each differs from the one before in what can be changed.
    let congestion = ["cubic", "bbr3", "newreno"][number as usize % 3];
    format!(
        "[transport]\ncongestion = \"{congestion}\"\n[limits]\nconnections = {}\nconnections-per-address = 5000\n\
         [[route]]\nto = \"{back_end}\"\ntimeout = \"{} s\"\n[[route]]\npath = \"/extra-{number}\"\nto = \"{back_end}\"\n\
         [[stream]]\nalpn = \"echo\"\nto = \"tcp://{echo}\"\n",
        10_000 + number,
        30 + number % 7
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_lose_nothing() {
    let back_end = BackEnd::start(|_| async { Response::new(full("x".repeat(2_000))) }).await.url_and_keep();
    let echo = echo_server().await;
    let site = Arc::new(Site::start("reload", &config(&back_end.0, &echo, 0)));
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..each() {
        let (a, stopped, count) = (site.clone(), stop.clone(), done.clone());
        clients.spawn(async move {
            let (_endpoint, mut h3) = a.h3().await;
            while !stopped.load(Ordering::Relaxed) {
                let response = h3.send(get("https://localhost/")).await.unwrap();
                assert_eq!(response.status(), 200);
                assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 2_000);
                count.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let (b, stopped, count) = (site.clone(), stop.clone(), done.clone());
        clients.spawn(async move {
            let mut h2 = b.h2().await;
            while !stopped.load(Ordering::Relaxed) {
                let response = h2.send_request(get("https://localhost/")).await.unwrap();
                assert_eq!(text(response).await.len(), 2_000);
                count.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let (c, stopped, count) = (site.clone(), stop.clone(), done.clone());
        clients.spawn(async move {
            let (_endpoint, connection) = c.quic(b"echo").await;
            let (mut send, mut recv) = connection.open_bi().await.unwrap();
            while !stopped.load(Ordering::Relaxed) {
                send.write_all(&[7; 500]).await.unwrap();
                let mut back = [0; 500];
                recv.read_exact(&mut back).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
    // And new ones come all the time: no first packet goes unanswered. X25519MLKEM768 makes each ClientHello two datagrams.
    let (d, stopped, count) = (site.clone(), stop.clone(), done.clone());
    clients.spawn(async move {
        let mut handshakes = Vec::new();
        let mut opened = 0;
        while !stopped.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let (_endpoint, mut h3) = d.h3().await;
            handshakes.push(begun.elapsed());
            assert_eq!(h3.send(get("https://localhost/")).await.unwrap().status(), 200);
            let mut h1 = d.h1().await;
            assert_eq!(h1.send_request(get1("/")).await.unwrap().status(), 200);
            count.fetch_add(2, Ordering::Relaxed);
            opened += 2;
        }
        println!("measured connections opened under reloads: {opened}");
        handshakes.sort();
        let ms = |time: Option<&Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
        println!("measured slowest handshake under reloads, ms: {}", ms(handshakes.last()));
        println!("measured median handshake under reloads, ms: {}", ms(handshakes.get(handshakes.len() / 2)));
    });
    // One client's address changes repeatedly, as behind a NAT that forgets.
    let (e, stopped, count) = (site.clone(), stop.clone(), done.clone());
    clients.spawn(async move {
        let (endpoint, mut h3) = e.h3().await;
        while !stopped.load(Ordering::Relaxed) {
            assert_eq!(text(h3.send(get("https://localhost/")).await.unwrap()).await.len(), 2_000);
            endpoint.rebind(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
            count.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = Instant::now();
    for number in 1..=reloads() {
        site.configure(&config(&back_end.0, &echo, number));
        assert_eq!(site.process.reload().await.unwrap(), number + 1);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let seconds = begun.elapsed().as_secs_f64();
    tokio::time::sleep(Duration::from_millis(200)).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let turned_away: f64 = ["overloaded", "refused", "retries"]
        .map(|reason| site.figure(&format!("tiderace_edge_quic_endpoint{{reason=\"{reason}\"}}")))
        .iter()
        .sum();
    println!("measured first packets turned away: {turned_away}");
    assert_eq!(turned_away, 0.0);
    println!("measured reloads: {}", reloads());
    println!("measured connections held: {}", each() * 3 + 1);
    println!("measured requests and exchanges: {}", done.load(Ordering::Relaxed));
    println!("measured seconds: {seconds}");
    assert!(done.load(Ordering::Relaxed) > reloads());
}

trait Keep {
    fn url_and_keep(self) -> (String, BackEnd);
}

impl Keep for BackEnd {
    fn url_and_keep(self) -> (String, BackEnd) {
        (self.url(), self)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_configuration_changes_nothing() {
    let back_end = BackEnd::start(|_| async { Response::new(full("ok")) }).await;
    let good = format!("[[route]]\nto = \"{}\"\n", back_end.url());
    let site = Site::start("rollback", &good);
    let (_endpoint, mut h3) = site.h3().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let file = site.directory.0.join("edge.toml");
    let text_of = |rest: &str| format!("{}{rest}", site::TOP);
    for (bad, says) in [
        ("this is no TOML".to_owned(), "edge.toml:1"),
        (text_of("[[route]]\nto = \"nonsense\"\n"), "edge.toml:7: route[1].to: expected `http://host:port`"),
        (text_of(&good).replace("cert.pem", "gone.pem"), "edge.toml:2: certificate: cannot read"),
        (
            text_of(&good).replace("127.0.0.1:0", &taken.local_addr().unwrap().to_string()),
            "cannot listen at 127.0.0.1:",
        ),
        (text_of(&format!("[log]\naccess = \"/nonexistent/log\"\n{good}")), "cannot open the access log"),
    ] {
        std::fs::write(&file, &bad).unwrap();
        let error = site.process.reload().await.unwrap_err().to_string();
        assert!(error.contains(says), "{error}\n{bad}");
        assert_eq!(text(h3.send(get("https://localhost/")).await.unwrap()).await, "ok");
        let (_other, mut new) = site.h3().await;
        assert_eq!(text(new.send(get("https://localhost/")).await.unwrap()).await, "ok");
        assert_eq!(site.process.status()["generation"], 1);
    }
    site.configure(&good);
    assert_eq!(site.process.reload().await.unwrap(), 2);
    assert_eq!(site.figure("tiderace_edge_reloads_total{reason=\"refused\"}"), 5.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_come_and_go_and_certificates_change() {
    let (come, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (coming, may_go) = (come.clone(), go.clone());
    let back_end = BackEnd::start(move |_| {
        coming.add_permits(1);
        let may_go = may_go.clone();
        async move {
            let _permit = may_go.acquire().await.unwrap();
            Response::new(full("ok"))
        }
    })
    .await;
    let good = format!("[[route]]\nto = \"{}\"\n", back_end.url());
    let mut site = Site::start("addresses", &good);
    let (_endpoint, mut h3) = site.h3().await;
    let mut h2 = site.h2().await;
    let first = site.address;
    let file = site.directory.0.join("edge.toml");
    let top = site::TOP.replace("127.0.0.1:0", "127.0.0.2:0");
    // What is in progress at an address that goes is answered.
    let under_way = tokio::spawn(async move {
        let (a, b) = tokio::join!(h3.send(get("https://localhost/")), h2.send_request(get("https://localhost/")));
        (text(a.unwrap()).await, text(b.unwrap()).await)
    });
    site::within(come.acquire_many(2)).await.unwrap().forget();
    std::fs::write(&file, format!("{top}{good}[log]\naccess = \"access.log\"\n")).unwrap();
    site.process.reload().await.unwrap();
    go.add_permits(1);
    assert_eq!(under_way.await.unwrap(), ("ok".to_owned(), "ok".to_owned()));
    site.address = site.process.addresses()[0];
    assert_ne!(site.address, first);
    let (_endpoint, mut h3) = site.h3().await;
    assert_eq!(text(h3.send(get("https://localhost/")).await.unwrap()).await, "ok");
    // Meanwhile another test may have got the port, and goes some time.
    site::within(async {
        while tokio::net::TcpStream::connect(first).await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await;
    // Another certificate: new handshakes see it, old connections continue.
    let other = site::write_certificate(&site.directory, "localhost");
    site.process.reload().await.unwrap();
    assert!(site.try_quic(b"h3").await.is_err());
    site.certificate = other;
    let (_other, mut new) = site.h3().await;
    assert_eq!(text(new.send(get("https://localhost/")).await.unwrap()).await, "ok");
    assert_eq!(text(h3.send(get("https://localhost/")).await.unwrap()).await, "ok");
    site.h1().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shedding_sends_clients_to_tcp_in_one_round_trip() {
    let back_end = BackEnd::start(|_| async { Response::new(full("ok")) }).await;
    let route = format!("[[route]]\nto = \"{}\"\n", back_end.url());
    let site = Site::start("shed", &route);
    let (_endpoint, mut h3) = site.h3().await;
    site.configure(&format!("[http3]\nshed = true\n{route}"));
    site.process.reload().await.unwrap();
    // Only a Version Negotiation packet says so, and that is what the gateway answers the first packet with.
    let error = site.try_quic(b"h3").await.map(drop).unwrap_err().to_string();
    assert!(error.contains("no version in common"), "{error}");
    // Those that are in stay; those over TCP are not sent over.
    assert_eq!(text(h3.send(get("https://localhost/")).await.unwrap()).await, "ok");
    let response = site.h1().await.send_request(get1("/")).await.unwrap();
    assert!(!response.headers().contains_key("alt-svc"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_answers_what_is_under_way() {
    let (come, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (coming, may_go) = (come.clone(), go.clone());
    let back_end = BackEnd::start(move |_| {
        coming.add_permits(1);
        let may_go = may_go.clone();
        async move {
            let _permit = may_go.acquire().await.unwrap();
            Response::new(full(vec![7; 3_000_000]))
        }
    })
    .await;
    let echo = echo_server().await;
    let site = Site::start(
        "stop",
        &format!("[[route]]\nto = \"{}\"\n[[stream]]\nalpn = \"echo\"\nto = \"tcp://{echo}\"\n", back_end.url()),
    );
    // Patient: what ends, ends because it is done.
    let file = site.directory.0.join("edge.toml");
    std::fs::write(&file, site::read(&file).replace("drain = \"5 s\"", "drain = \"1 h\"")).unwrap();
    site.process.reload().await.unwrap();
    let (_e1, mut h3) = site.h3().await;
    let (mut h2, mut h1) = (site.h2().await, site.h1().await);
    let (_e2, quic) = site.quic(b"echo").await;
    let (mut send, mut recv) = quic.open_bi().await.unwrap();
    send.write_all(b"one").await.unwrap();
    AsyncReadExt::read_exact(&mut recv, &mut [0; 3]).await.unwrap();
    let under_way = tokio::spawn(async move {
        let (a, b, c) = tokio::join!(
            async { h3.send(get("https://localhost/")).await.unwrap().into_body().collect().await.unwrap().to_bytes() },
            async {
                h2.send_request(get("https://localhost/"))
                    .await
                    .unwrap()
                    .into_body()
                    .collect()
                    .await
                    .unwrap()
                    .to_bytes()
            },
            async { h1.send_request(get1("/")).await.unwrap().into_body().collect().await.unwrap().to_bytes() },
        );
        (a.len(), b.len(), c.len())
    });
    site::within(come.acquire_many(3)).await.unwrap().forget();
    let process = site.process.clone();
    let stopping = tokio::spawn(async move { process.drain().await });
    while tokio::net::TcpStream::connect(site.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    // A stream that is open continues until it ends.
    send.write_all(b"two").await.unwrap();
    send.finish().unwrap();
    let mut all = Vec::new();
    AsyncReadExt::read_to_end(&mut recv, &mut all).await.unwrap();
    assert_eq!(Bytes::from(all), "two");
    go.add_permits(1);
    assert_eq!(under_way.await.unwrap(), (3_000_000, 3_000_000, 3_000_000));
    site::within(stopping).await.unwrap();
}
