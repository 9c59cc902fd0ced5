//! Faults of the machine: what a gateway loses, and what it does not.
#![cfg(target_os = "linux")]

#[path = "upgrade/clients.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod clients;
#[path = "upgrade/fleet.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod fleet;
mod gateway;
mod scratch;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clients::{Site, content, get};
use fleet::LIMIT;
use gateway::{Gateway, edge};
use scratch::Scratch;

/// A site with a small file, and its configuration.
fn site(name: &str, extra: &str) -> (Scratch, PathBuf, Vec<u8>) {
    let folder = Scratch::new(&format!("faults-{name}"));
    std::fs::create_dir_all(folder.0.join("www")).unwrap();
    std::fs::write(folder.0.join("www/small"), "small").unwrap();
    let certificate = folder.certificate("localhost").cert.der().to_vec();
    let file = folder.0.join("edge.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 2\n\
         [admin]\nsocket = \"edge.sock\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n{extra}\
         [[route]]\npath = \"/moved\"\nredirect = \"https://localhost/small\"\n[[route]]\nfiles = \"www\"\n"
    );
    std::fs::write(&file, text).unwrap();
    (folder, file, certificate)
}

/// A figure of the gateway's metrics.
fn metric(file: &std::path::Path, name: &str) -> f64 {
    let status = edge("status", file).arg("--json").output().unwrap().stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    let address: SocketAddr = status["metrics"].as_str().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_costs_lines_of_the_log_which_are_counted_and_no_request() {
    // Every write to this device fails as on a full disk.
    let (_folder, file, certificate) = site("disk", "[log]\naccess = \"/dev/full\"\n");
    let gateway = Gateway::start(&file);
    let (_endpoint, mut h3) = Site::new(gateway.address, &certificate).h3().await;
    for _ in 0..20 {
        assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
    }
    let begun = Instant::now();
    while metric(&file, "tiderace_edge_log_lines_dropped_total") != 20.0 {
        assert!(begun.elapsed() < LIMIT, "lines are lost and not counted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_free_descriptors_quic_continues_and_tcp_waits() {
    const DESCRIPTORS: usize = 96;
    let (_folder, file, certificate) = site("descriptors", "");
    let gateway = Gateway::start_after(&format!("ulimit -n {DESCRIPTORS}"), &file);
    let site = Site::new(gateway.address, &certificate);
    let (_endpoint, mut h3) = site.h3().await;
    assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
    // Clients that connect and say nothing hold a descriptor each until `handshake-timeout`, if there are that many.
    let held: Vec<TcpStream> = (0..2 * DESCRIPTORS).map(|_| TcpStream::connect(gateway.address).unwrap()).collect();
    let open = || std::fs::read_dir(format!("/proc/{}/fd", gateway.id())).unwrap().count();
    let begun = Instant::now();
    while open() < DESCRIPTORS {
        assert!(begun.elapsed() < LIMIT, "{} descriptors", open());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A connection of QUIC takes no descriptor, old or new. A file does.
    let (_second, mut new) = site.h3().await;
    for h3 in [&mut h3, &mut new] {
        assert_eq!(h3.send(get("moved")).await.unwrap().status(), 308);
        assert_eq!(h3.send(get("small")).await.unwrap().status(), 503, "no cache keeps that the file is not there");
    }
    drop(held);
    // Everything is as before when descriptors are free again.
    let mut h2 = tokio::time::timeout(LIMIT, site.h2()).await.expect("TCP is accepted again");
    // The system still hands over clients that have gone: each takes a descriptor until it is noticed, so that a file
    // may have to wait.
    let freed = Instant::now();
    loop {
        let (over_tcp, over_quic) =
            (h2.send_request(get("small")).await.unwrap(), new.send(get("small")).await.unwrap());
        if over_tcp.status() != 503 && over_quic.status() != 503 {
            assert_eq!(content(over_tcp).await, "small");
            assert_eq!(content(over_quic).await, "small");
            break;
        }
        assert!(freed.elapsed() < LIMIT, "{} descriptors of {DESCRIPTORS}", open());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_and_started_again_resets_the_connections_it_had() {
    let (folder, file, certificate) = site("killed", "[keys]\nfile = \"ring\"\n");
    let keys = std::process::Command::new(env!("CARGO_BIN_EXE_tiderace"))
        .args(["edge", "keys", "--file"])
        .arg(folder.0.join("ring"))
        .output();
    assert!(keys.unwrap().status.success());
    let gateway = Gateway::start(&file);
    let address = gateway.address;
    let (_endpoint, connection) = Site::new(address, &certificate).quic().await;
    let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
    assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
    // With a signal that the process does not see.
    drop(gateway);
    let text = std::fs::read_to_string(&file).unwrap().replace("127.0.0.1:0\"\ncert", &format!("{address}\"\ncert"));
    std::fs::write(&file, text).unwrap();
    let _again = Gateway::start(&file);
    let begun = Instant::now();
    while connection.close_reason().is_none() {
        assert!(begun.elapsed() < LIMIT, "no stateless reset");
        let _ = connection.open_uni().await.map(|mut stream| stream.finish());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("measured time to a stateless reset, ms: {}", begun.elapsed().as_millis());
    assert!(format!("{:?}", connection.close_reason()).contains("Reset"));
}

/// Library that gives a program another wall clock, where it is installed (Debian: libfaketime).
fn other_clock() -> Option<PathBuf> {
    let folders =
        ["x86_64-linux-gnu", "aarch64-linux-gnu"].map(|name| format!("/usr/lib/{name}/faketime/libfaketimeMT.so.1"));
    folders.into_iter().map(PathBuf::from).find(|path| path.exists())
}

/// Kind of the handshake of a new connection over TCP that makes a request.
fn handshake(address: SocketAddr, config: &Arc<rustls::ClientConfig>) -> rustls::HandshakeKind {
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let connection = rustls::ClientConnection::new(config.clone(), name).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, TcpStream::connect(address).unwrap());
    stream.write_all(b"GET /small HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("small"), "{text}");
    stream.conn.handshake_kind().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_ends_no_connection_and_refuses_no_client() {
    let Some(library) = other_clock() else {
        println!("skipped: libfaketime is not installed; hint: apt-get install libfaketime");
        return;
    };
    let (folder, file, certificate) = site("clock", "[keys]\nfile = \"ring\"\n");
    let keys = std::process::Command::new(env!("CARGO_BIN_EXE_tiderace"))
        .args(["edge", "keys", "--file"])
        .arg(folder.0.join("ring"))
        .output();
    assert!(keys.unwrap().status.success());
    let offset = folder.0.join("offset");
    let jump = |text: &str| std::fs::write(&offset, text).unwrap();
    jump("+0");
    let gateway = Gateway::start_in(
        &[
            ("LD_PRELOAD", library.to_str().unwrap()),
            ("FAKETIME_TIMESTAMP_FILE", offset.to_str().unwrap()),
            // The file is read at each look at the clock; the monotonic clock stays what it is.
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ],
        &file,
    );
    let days = || {
        let status = edge("status", &file).arg("--json").output().unwrap().stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
        status["certificates"][0]["days"].as_f64().unwrap()
    };
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone().into()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let tls = Arc::new(tls.with_root_certificates(roots).with_no_client_auth());
    let site = Site::new(gateway.address, &certificate);
    let (_endpoint, mut h3) = site.h3().await;
    let mut h2 = site.h2().await;
    assert_eq!(handshake(gateway.address, &tls), rustls::HandshakeKind::Full);
    assert_eq!(handshake(gateway.address, &tls), rustls::HandshakeKind::Resumed);
    let before = days();
    for (text, moved) in [("+400d", 400.0), ("-30d", -30.0), ("+0", 0.0)] {
        jump(text);
        assert!((before - days() - moved).abs() < 1.0, "{text}: {} days in place of {before}", days());
        // Longer than a probe timeout: a deadline that follows the wall clock would end the connection, or never come.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        for _ in 0..3 {
            assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small", "{text}");
            assert_eq!(content(h2.send_request(get("small")).await.unwrap()).await, "small", "{text}");
        }
        let (_new_endpoint, mut new) = site.h3().await;
        assert_eq!(content(new.send(get("small")).await.unwrap()).await, "small", "{text}");
        let (first, second) = (handshake(gateway.address, &tls), handshake(gateway.address, &tls));
        println!("measured handshakes over TCP after {text}: {first:?}, then {second:?}");
        assert_eq!(second, rustls::HandshakeKind::Resumed, "{text}: tickets of the new time are good");
    }
}
