//! Connections that nobody uses: translators that forget them, and hosts that move.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tiderace::{Endpoint, Identity, Profile, RustlsServer, ServerConfig};
use tiderace_client::{Client, LocalAddress, Route, Settings, Trust};
use tokio::net::UdpSocket;

/// Time limit for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A server that says from where it was asked, without an idle timeout of its own.
fn server() -> (SocketAddr, Trust) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der()).unwrap();
    let tls = RustlsServer::builder().identity(identity).alpn(h3_quic::ALPN).build().unwrap();
    let profile = Profile { idle_timeout: Duration::ZERO, ..Profile::default() };
    let any = "127.0.0.1:0".parse().unwrap();
    let endpoint = Endpoint::server(any, ServerConfig::new(Arc::new(tls), Arc::new(profile))).unwrap();
    let address = endpoint.local_addr();
    tokio::spawn(async move {
        while let Some(connection) = endpoint.accept().await {
            let quic = connection.clone();
            let service = move |_: Request<h3_quic::RequestBody>| {
                let from = quic.remote_address().unwrap().ip().to_string();
                async move { Response::new(Full::new(Bytes::from(from)).map_err(|never: Infallible| match never {})) }
            };
            let options = h3_quic::server::Options::default();
            tokio::spawn(h3_quic::server::serve(connection, options, std::future::pending(), service));
        }
    });
    (address, Trust::Pem(made.cert.pem().into_bytes()))
}

/// A translator that forgets a mapping after `timeout` without a packet; counts the mappings.
async fn translator(server: SocketAddr, timeout: Duration) -> (SocketAddr, Arc<AtomicU32>) {
    let outside = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let address = outside.local_addr().unwrap();
    let mappings = Arc::new(AtomicU32::new(0));
    let counted = mappings.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 65_536];
        let mut mapping: Option<(Arc<UdpSocket>, tokio::task::AbortHandle)> = None;
        let last = Arc::new(std::sync::Mutex::new(Instant::now()));
        while let Ok((length, from)) = outside.recv_from(&mut buffer).await {
            let idle = std::mem::replace(&mut *last.lock().unwrap(), Instant::now()).elapsed();
            if idle > timeout
                && let Some((_, task)) = mapping.take()
            {
                task.abort();
            }
            if mapping.is_none() {
                counted.fetch_add(1, Ordering::SeqCst);
                let inside = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
                inside.connect(server).await.unwrap();
                let (back, to, last) = (inside.clone(), outside.clone(), last.clone());
                let task = tokio::spawn(async move {
                    let mut buffer = [0; 65_536];
                    while let Ok(length) = back.recv(&mut buffer).await {
                        *last.lock().unwrap() = Instant::now();
                        let _ = to.send_to(&buffer[..length], from).await;
                    }
                });
                mapping = Some((inside, task.abort_handle()));
            }
            if let Some((inside, _)) = &mapping {
                let _ = inside.send(&buffer[..length]).await;
            }
        }
    });
    (address, mappings)
}

async fn ask(client: &Client, server: SocketAddr, route: &Route) -> (bool, String) {
    let fetched = client.get_by(&format!("https://{server}/"), route).await.unwrap();
    assert_eq!(fetched.protocol, "h3");
    let text = fetched.response.into_body().collect().await.unwrap().to_bytes();
    (fetched.reused, String::from_utf8(text.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keep_alive_finds_out_how_soon_a_mapping_is_forgotten() {
    let (server, trust) = server();
    let (nat, mappings) = translator(server, Duration::from_millis(900)).await;
    let first = Some(Duration::from_millis(300));
    let settings = Settings { trust, keep_alive: first, idle_timeout: LIMIT, head_start: LIMIT, ..Settings::default() };
    // An answer that is late on a busy machine looks like a mapping that is gone, and the estimate is too short. Not every time.
    for attempt in 1.. {
        let client = Client::with(&settings).unwrap();
        let route = Route { udp: Some(nat), ..Route::default() };
        ask(&client, server, &route).await;
        let mapping = measured(&client).await;
        let gone = mapping.forgotten.unwrap();
        assert!(mapping.kept < gone, "{mapping:?}");
        println!("measured mapping: kept {:?}, forgotten {gone:?}, translator 900 ms", mapping.kept);
        let (before, silence) = (mappings.load(Ordering::SeqCst), mapping.next(Duration::from_secs(30)));
        assert!(silence < gone, "{mapping:?}");
        // The connection is the same all the while.
        assert!(ask(&client, server, &route).await.0);
        client.close().await;
        // The translator counts from the last packet that it saw, which is a little earlier or later.
        if gone >= Duration::from_millis(700) {
            assert!(before >= 2, "{before} mappings, {mapping:?}");
            return;
        }
        assert!(attempt < 10, "{mapping:?}");
    }
}

/// Waits for longer and longer silences, until one was too long; then between.
async fn measured(client: &Client) -> tiderace_client::keep_alive::Mapping {
    let begun = Instant::now();
    let mut found = Vec::new();
    while begun.elapsed() < LIMIT {
        tokio::time::sleep(Duration::from_millis(100)).await;
        found = client.measured_mappings();
        if let Some(mapping) = found.iter().find(|mapping| mapping.is_known()) {
            return *mapping;
        }
    }
    panic!("{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_move_with_their_host() {
    let (server, trust) = server();
    let moved = Arc::new(AtomicBool::new(false));
    let looks = moved.clone();
    let address = move |_: SocketAddr| -> Option<IpAddr> {
        Some(if looks.load(Ordering::SeqCst) { [127, 0, 0, 9].into() } else { [127, 0, 0, 1].into() })
    };
    let settings =
        Settings { trust, local_address: LocalAddress::new(address), head_start: LIMIT, ..Settings::default() };
    let client = Client::with(&settings).unwrap();
    let route = Route::default();
    assert_eq!(ask(&client, server, &route).await, (false, "127.0.0.1".to_owned()));
    moved.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    loop {
        let (reused, from) = ask(&client, server, &route).await;
        assert!(reused, "the connection goes on");
        if from == "127.0.0.9" {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "the server still sees {from}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    client.close().await;
}
