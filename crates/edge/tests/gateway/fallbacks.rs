//! Clients that come over TCP although they know of QUIC: what the gateway finds out about the reason, and counts.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::site::{BackEnd, Error, Site, full, get};
use http::Response;
use http_body_util::BodyExt;
use tiderace::{ClientConfig, Connection, Endpoint, Profile, RustlsClient};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, UdpSocket},
};

/// A client is known by its address: each case has one of its own.
fn host(last: u8) -> SocketAddr {
    (Ipv4Addr::new(127, 0, 0, last), 0).into()
}

/// A QUIC connection from an address, to the gateway or to what stands before it.
async fn quic(site: &Site, from: SocketAddr, to: SocketAddr, alpn: &[u8]) -> Result<(Endpoint, Connection), Error> {
    let tls = RustlsClient::builder().roots([site.certificate.clone()]).alpn(alpn).build()?;
    let config = ClientConfig::new(Arc::new(tls), Arc::new(Profile::default()));
    let endpoint = Endpoint::open(from, tiderace::EndpointOptions::default())?;
    let connection = endpoint.connect(&config, to, "localhost")?.await?;
    Ok((endpoint, connection))
}

/// A TCP connection with TLS from an address.
async fn tcp(site: &Site, from: SocketAddr) -> Result<(), Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(site.certificate.clone().into())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let socket = TcpSocket::new_v4()?;
    socket.bind(from)?;
    let stream = socket.connect(site.address).await?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect("localhost".try_into()?, stream).await?;
    // The gateway has seen the end of the handshake when it answers.
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    // TLS keeps what was written when the task's turn has ended in the middle of it.
    stream.flush().await?;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer).await;
    assert!(!answer.is_empty(), "{from}: {read:?}");
    Ok(())
}

/// UDP on the way to the gateway, under another address.
struct Relay {
    at: SocketAddr,
    up: Arc<AtomicBool>,
    down: Arc<AtomicBool>,
    /// The gateway has answered something.
    answered: Arc<AtomicBool>,
}

impl Relay {
    async fn start(site: &Site, from: SocketAddr) -> Self {
        let (front, back) = (UdpSocket::bind(host(1)).await.unwrap(), UdpSocket::bind(from).await.unwrap());
        back.connect(site.address).await.unwrap();
        let this = Self {
            at: front.local_addr().unwrap(),
            up: Arc::default(),
            down: Arc::default(),
            answered: Arc::default(),
        };
        let (up, down, answered) = (this.up.clone(), this.down.clone(), this.answered.clone());
        tokio::spawn(async move {
            let (mut a, mut b) = (vec![0; 65_536], vec![0; 65_536]);
            let mut client = None;
            loop {
                tokio::select! {
                    Ok((length, from)) = front.recv_from(&mut a) => {
                        client = Some(from);
                        if up.load(Ordering::Relaxed) {
                            let _ = back.send(&a[..length]).await;
                        }
                    }
                    Ok(length) = back.recv(&mut b) => {
                        answered.store(true, Ordering::Relaxed);
                        if let (Some(client), true) = (client, down.load(Ordering::Relaxed)) {
                            let _ = front.send_to(&b[..length], client).await;
                        }
                    }
                }
            }
        });
        this
    }

    fn carry(&self, up: bool, down: bool) {
        self.up.store(up, Ordering::Relaxed);
        self.down.store(down, Ordering::Relaxed);
    }
}

fn count(site: &Site, reason: &str, client: &str) -> f64 {
    site.figure(&format!("tiderace_edge_fallbacks_total{{reason=\"{reason}\",client=\"{client}\"}}"))
}

/// All that was counted.
fn total(site: &Site) -> f64 {
    let text = site.process.figures();
    let lines = text.lines().filter(|line| line.starts_with("tiderace_edge_fallbacks_total{"));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

async fn until(site: &Site, expected: &[(&str, &str)]) {
    for _ in 0..600 {
        if expected.iter().all(|(reason, client)| count(site, reason, client) == 1.0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("expected {expected:?}, found\n{}", site.process.figures());
}

const SHORT: &str = "[transport]\nidle-timeout = \"3 s\"\n[limits]\nhandshake-timeout = \"3 s\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_reason_shows() {
    let back_end = BackEnd::start(|_| async { Response::new(full(vec![1; 2_000_000])) }).await;
    let site = Site::start("fallbacks", &format!("{SHORT}[[route]]\nto = \"{}\"\n", back_end.url()));
    let silent = async {
        let relay = Relay::start(&site, host(2)).await;
        relay.carry(true, false);
        let trying = quic(&site, host(1), relay.at, b"h3");
        tokio::select! {
            tried = trying => panic!("it hears nothing, and says {:?}", tried.map(drop)),
            () = crate::site::until(|| relay.answered.load(Ordering::Relaxed), true) => {}
        }
        tcp(&site, host(2)).await.unwrap();
    };
    let nothing = async {
        let (_endpoint, connection) = quic(&site, host(3), site.address, b"h3").await.unwrap();
        let reason = connection.closed().await;
        assert_eq!(reason, tiderace::CloseReason::IdleTimeout);
        // The gateway's own timer may be later. No other client is there yet.
        let open = || site.figure("tiderace_edge_connections{protocol=\"h3\"}");
        crate::site::until(|| open() == 0.0, true).await;
        tcp(&site, host(3)).await.unwrap();
    };
    let left = async {
        let (endpoint, connection) = quic(&site, host(4), site.address, b"h3").await.unwrap();
        // The answer shows that the handshake is complete at the gateway, too: who closes before that has given it up.
        let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
        h3.send(get("https://localhost/")).await.unwrap().into_body().collect().await.unwrap();
        connection.close(0x100, b"");
        endpoint.wait_idle().await;
        tcp(&site, host(4)).await.unwrap();
    };
    let failed = async {
        assert!(quic(&site, host(5), site.address, b"unknown").await.is_err());
        tcp(&site, host(5)).await.unwrap();
    };
    let lost = async {
        let relay = Relay::start(&site, host(6)).await;
        relay.carry(true, true);
        let (_endpoint, connection) = quic(&site, host(1), relay.at, b"h3").await.unwrap();
        let mut h3 = h3_quic::client::begin(connection).await.unwrap();
        let answer = h3.send(get("https://localhost/")).await.unwrap();
        relay.carry(false, false);
        tcp(&site, host(6)).await.unwrap();
        assert!(answer.into_body().collect().await.is_err());
    };
    let both = async {
        tcp(&site, host(7)).await.unwrap();
        let (endpoint, mut h3) = {
            let (endpoint, connection) = quic(&site, host(7), site.address, b"h3").await.unwrap();
            (endpoint, h3_quic::client::begin(connection).await.unwrap())
        };
        tcp(&site, host(7)).await.unwrap();
        for _ in 0..20 {
            assert_eq!(h3.send(get("https://localhost/")).await.unwrap().status(), 200);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        // Whose connection ends before the last look at it has fallen back.
        (endpoint, h3)
    };
    nothing.await;
    let (.., _kept) = tokio::join!(silent, left, failed, lost, both);
    let expected = [
        ("silent", "attempted"),
        ("no-packets", "used"),
        ("closed", "used"),
        ("handshake-failed", "attempted"),
        ("timed-out", "used"),
    ];
    until(&site, &expected).await;
    assert_eq!(total(&site), expected.len() as f64, "who uses both has not fallen back\n{}", site.process.figures());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_shed_was_refused() {
    let back_end = BackEnd::start(|_| async { Response::new(full("ok")) }).await;
    let site = Site::start(
        "fallbacks-shed",
        &format!("{SHORT}[http3]\nshed = true\n[[route]]\nto = \"{}\"\n", back_end.url()),
    );
    assert!(quic(&site, host(8), site.address, b"h3").await.is_err());
    tcp(&site, host(8)).await.unwrap();
    until(&site, &[("refused", "attempted")]).await;
    // Once in a while is enough, and who has tried nothing is not counted at all.
    tcp(&site, host(8)).await.unwrap();
    tcp(&site, host(9)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(total(&site), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_say_why_where_they_are_asked() {
    let back_end = BackEnd::start(crate::site::mirror).await;
    for (asks, name) in [(true, "fallbacks-asks"), (false, "fallbacks-silent")] {
        let site =
            Site::start(name, &format!("[http3]\nfallback-reports = {asks}\n[[route]]\nto = \"{}\"\n", back_end.url()));
        let mut h2 = site.h2().await;
        for word in ["blocked", "blocked", "bad-path", "my mood"] {
            let mut request = get("https://localhost/");
            request.headers_mut().insert("quic-fallback", word.parse().unwrap());
            let answer = h2.send_request(request).await.unwrap();
            let said = answer.headers()["alt-svc"].to_str().unwrap().to_owned();
            assert_eq!(said.contains("; fallback-reports=1"), asks, "{said}");
            let seen = crate::site::text(answer).await;
            assert!(!seen.contains("quic-fallback"), "back ends have no use for it: {seen}");
        }
        let reported =
            |reason: &str| site.figure(&format!("tiderace_edge_fallbacks_reported_total{{reason=\"{reason}\"}}"));
        let expected = if asks { [2.0, 1.0, 1.0] } else { [0.0; 3] };
        assert_eq!(["blocked", "bad-path", "other"].map(reported), expected);
    }
}
