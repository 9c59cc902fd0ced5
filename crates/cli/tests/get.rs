//! `tiderace get` as a server sees it.

mod program;
mod scratch;

use std::{
    convert::Infallible,
    net::SocketAddr,
    process::{Command, Output, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tiderace::{CloseReason, Endpoint, Identity, Profile, RustlsServer, ServerConfig};

use scratch::Scratch;

/// Longer than any test may take: a connection that ends earlier was closed.
const IDLE: Duration = Duration::from_secs(600);
/// Time limit for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A server over HTTP/3 alone, and a file with its certificate.
fn server(name: &str) -> (Endpoint, Scratch) {
    let folder = Scratch::new(&format!("get-{name}"));
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(folder.0.join("cert.pem"), made.cert.pem()).unwrap();
    let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der()).unwrap();
    let tls = RustlsServer::builder().identity(identity).alpn(h3_quic::ALPN).early_data(true).build().unwrap();
    let profile = Profile { idle_timeout: IDLE, ..Profile::default() };
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    (Endpoint::server(any, ServerConfig::new(Arc::new(tls), Arc::new(profile))).unwrap(), folder)
}

/// Asks with the program, whose output goes to `stdout`; gives how it ended, and how its connection did.
async fn ask(name: &str, size: usize, stdout: Stdio) -> (Output, CloseReason) {
    let (endpoint, folder) = server(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command.args(["get", "--only", "quic", "--ca"]).arg(folder.0.join("cert.pem"));
    command.arg(format!("https://{}/", endpoint.local_addr())).env_remove("RUST_LOG").stdin(Stdio::null());
    let child = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
    let asked = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let connection = tokio::time::timeout(LIMIT, endpoint.accept()).await.unwrap().unwrap();
    let service = move |_: Request<h3_quic::RequestBody>| async move {
        Response::new(Full::new(Bytes::from(vec![b'x'; size])).map_err(|never: Infallible| match never {}))
    };
    let options = h3_quic::server::Options::default();
    let serving = h3_quic::server::serve(connection.clone(), options, std::future::pending(), service);
    let reason = tokio::time::timeout(LIMIT, async { tokio::join!(serving, connection.closed()).1 }).await;
    (asked.await.unwrap(), reason.expect("the server is told"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_is_told_when_the_program_ends() {
    let (output, reason) = ask("told", 10_000, Stdio::piped()).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout.len(), 10_000);
    let no_error = h3_quic::Code::NO_ERROR.0;
    assert!(matches!(reason, CloseReason::PeerApplication { code, .. } if code == no_error), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_is_told_when_nobody_reads_the_answer() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (output, reason) = ask("unread", 4 << 20, writer.into()).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let no_error = h3_quic::Code::NO_ERROR.0;
    assert!(matches!(reason, CloseReason::PeerApplication { code, .. } if code == no_error), "{reason}");
}

/// Serves `count` connections that may begin with early data; the first request that comes so is too early.
async fn serve_early(endpoint: &Endpoint, count: usize) {
    let too_early = Arc::new(std::sync::atomic::AtomicBool::new(true));
    for _ in 0..count {
        let connection = tokio::time::timeout(LIMIT, endpoint.accept_early()).await.unwrap().unwrap();
        let (quic, too_early) = (connection.clone(), too_early.clone());
        let service = move |_: Request<h3_quic::RequestBody>| {
            let refuse = !quic.is_established() && too_early.swap(false, std::sync::atomic::Ordering::SeqCst);
            async move {
                let mut response =
                    Response::new(Full::new(Bytes::from_static(b"x")).map_err(|never: Infallible| match never {}));
                *response.status_mut() = if refuse { http::StatusCode::TOO_EARLY } else { http::StatusCode::OK };
                response
            }
        };
        let options = h3_quic::server::Options::default();
        tokio::spawn(h3_quic::server::serve(connection, options, std::future::pending(), service));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_urls_share_a_connection_or_resume_with_early_data() {
    let (endpoint, folder) = server("several");
    let url = format!("https://{}/", endpoint.local_addr());
    let ask = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
        command.args(["get", "--json", "--only", "quic"]).args(more).arg("--ca").arg(folder.0.join("cert.pem"));
        command.args([&url, &url, &url]).env_remove("RUST_LOG").stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        tokio::task::spawn_blocking(move || child.wait_with_output().unwrap())
    };
    let lines = |output: Output| -> Vec<serde_json::Value> {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let asked = ask(&[]);
    serve_early(&endpoint, 1).await;
    let shared = lines(asked.await.unwrap());
    assert_eq!(shared.iter().map(|line| line["reused"].as_bool().unwrap()).collect::<Vec<_>>(), [false, true, true]);
    let took: Vec<_> = shared.iter().map(|line| line["handshake_ms"].as_f64()).collect();
    assert!(took[0].is_some_and(|took| took > 0.0) && took[1..] == [None, None], "{took:?}");
    let asked = ask(&["--fresh"]);
    serve_early(&endpoint, 3).await;
    let fresh = lines(asked.await.unwrap());
    let early: Vec<_> =
        fresh.iter().map(|line| (line["early_data"].as_str().unwrap(), line["too_early"].as_bool().unwrap())).collect();
    // The handshake may be over before the server looks at the request: then nothing was too early.
    assert_eq!(
        early.iter().map(|(early, _)| *early).collect::<Vec<_>>(),
        ["none", "accepted", "accepted"],
        "{fresh:?}"
    );
    assert!(fresh.iter().all(|line| line["status"] == 200), "{fresh:?}");
    let asked = ask(&["--fresh", "--no-early-data"]);
    serve_early(&endpoint, 3).await;
    let late = lines(asked.await.unwrap());
    assert!(late.iter().all(|line| line["early_data"] == "none"), "{late:?}");
}

#[cfg(not(feature = "boringssl"))]
#[test]
fn a_build_that_cannot_keep_tickets_says_so() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    let output = command.args(["get", "--tickets", "/tmp/x", "https://127.0.0.1:1/"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("cannot write tickets") && said.contains("--features boringssl"), "{said}");
}

/// Two processes: the second resumes with the ticket that the first has left in the file.
#[cfg(feature = "boringssl")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_process_resumes_with_a_ticket_of_the_file() {
    let (endpoint, folder) = server("file");
    let url = format!("https://{}/", endpoint.local_addr());
    for expected in ["none", "accepted"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
        command.args(["get", "--json", "--only", "quic", "--tickets"]).arg(folder.0.join("tickets"));
        command.arg("--ca").arg(folder.0.join("cert.pem")).arg(&url).env_remove("RUST_LOG").stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let asked = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
        serve_early(&endpoint, 1).await;
        let output = asked.await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((line["early_data"].as_str(), line["status"].as_u64()), (Some(expected), Some(200)), "{line}");
    }
}

/// Asks for these URLs over QUIC.
fn asks(certificate: &std::path::Path, urls: &[String]) -> tokio::task::JoinHandle<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command.args(["get", "--only", "quic", "--ca"]).arg(certificate).args(urls);
    command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    tokio::task::spawn_blocking(move || child.wait_with_output().unwrap())
}

/// Answers every request on every connection with these bytes after `:status: 200`.
fn serve_raw(endpoint: Endpoint, rest: &'static [u8]) {
    tokio::spawn(async move {
        while let Some(connection) = endpoint.accept().await {
            tokio::spawn(async move {
                let mut control = connection.open_uni().await.unwrap();
                control.write_all(&[0x00, 0x04, 0x00]).await.unwrap();
                while let Ok((mut send, _recv)) = connection.accept_bi().await {
                    send.write_all(rest).await.unwrap();
                    send.finish().unwrap();
                    send.stopped().await;
                }
            });
        }
    });
}

/// Words of a server are one line without control characters, an answer that breaks off is no wrong request, and the next URL is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_server_gets_no_hold_of_the_terminal_nor_of_the_next_url() {
    let (hostile, folder) = server("hostile");
    let bad = format!("https://{}/", hostile.local_addr());
    tokio::spawn(async move {
        while let Some(connection) = hostile.accept().await {
            connection.close(0x100, "\x1b[2J\x1b]0;mine\x07\nhint: run this\r\u{9b}31m\u{202e}".as_bytes());
        }
    });
    let output = asks(&folder.0.join("cert.pem"), &[bad.clone(), bad]).await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.lines().all(|line| line.starts_with("error: ")) && said.lines().count() == 2, "{said:?}");
    assert!(!said.contains(|letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}'), "{said:?}");

    // HEADERS with a length of 10, DATA of 5 bytes.
    let (short, folder) = server("short");
    let url = format!("https://{}/", short.local_addr());
    serve_raw(short, b"\x01\x07\x00\x00\xd9\x54\x0210\x00\x05hello");
    let output = asks(&folder.0.join("cert.pem"), &[url.clone(), url]).await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b"hellohello"[..]), "{said}");
    assert_eq!(said.matches("the answer broke off after 5 bytes").count(), 2, "{said}");
}

/// Redirects are not followed, and names that a server says become no files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_goes_to_the_standard_output_and_nowhere_else() {
    let (endpoint, folder) = server("redirect");
    let url = format!("https://{}/", endpoint.local_addr());
    let empty = folder.0.join("empty");
    std::fs::create_dir(&empty).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command
        .args(["get", "--only", "quic", "--ca"])
        .arg(folder.0.join("cert.pem"))
        .arg(format!("{url}../../x"))
        .arg(&url);
    command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.current_dir(&empty).spawn().unwrap();
    let asked = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let connection = tokio::time::timeout(LIMIT, endpoint.accept()).await.unwrap().unwrap();
    let requests = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counts = requests.clone();
    let service = move |_: Request<h3_quic::RequestBody>| {
        counts.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let body = Full::new(Bytes::from_static(b"x")).map_err(|never: Infallible| match never {});
        let response = Response::builder().status(302).header("location", "/again");
        let response = response.header("content-disposition", "attachment; filename=\"../../../tmp/x\"").body(body);
        async move { response.unwrap() }
    };
    let options = h3_quic::server::Options::default();
    tokio::spawn(h3_quic::server::serve(connection, options, std::future::pending(), service));
    let output = asked.await.unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"xx"[..]));
    assert_eq!(requests.load(std::sync::atomic::Ordering::SeqCst), 2);
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
}

/// A certificate that is refused: which one it is, by whose fault, and not that the path is bad.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_is_refused_is_named() {
    let (endpoint, folder) = server("certificate");
    let (other, elsewhere) = server("certificate-other");
    let port = endpoint.local_addr().port();
    tokio::spawn(async move { while endpoint.accept().await.is_some() {} });
    drop(other);
    for (roots, host, why) in [
        // Both sign themselves, and as the same: the signature tells them apart.
        (elsewhere.0.join("cert.pem"), "127.0.0.1", "BadSignature"),
        (folder.0.join("cert.pem"), "localhost", "not valid for name"),
    ] {
        let output = asks(&roots, &[format!("https://{host}:{port}/")]).await.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("certificate") && said.contains(why), "{said}");
        assert!(said.contains("hint: `--ca FILE`"), "{said}");
    }
}

/// A path of 300 ms to the server, for QUIC alone.
fn slow_path(to: SocketAddr) -> program::Service {
    let path = std::env::temp_dir().join(format!("tiderace-get-slow-{}-{}.toml", std::process::id(), to.port()));
    std::fs::write(&path, SLOW_PATH).unwrap();
    let arguments = ["relay", "--path", path.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let relay = program::Service::start(&[&arguments[..], &["--to", &to.to_string(), "--json"]].concat());
    std::fs::remove_file(&path).unwrap();
    relay
}

const SLOW_PATH: &str = r#"
name = "slow"
title = "For a test"
about = "20 Mbit/s, 300 ms"

[path.down]
rate = "20M"
queue = "1M"
delay = "150 ms"

[traffic]
workload = "bulk"
connections = 1

[run]
duration = "1 s"
"#;

/// The round trip is longer than the silence after which TCP takes part: the connection is the same all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reuse_and_handshake_are_told_at_a_long_round_trip() {
    let (endpoint, folder) = server("far");
    let to = endpoint.local_addr();
    let relay = tokio::task::spawn_blocking(move || slow_path(to)).await.unwrap();
    let url = format!("https://{to}/");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command.args(["get", "--json", "--only", "quic", "--udp", relay.address(), "--ca"]).arg(folder.0.join("cert.pem"));
    command.args([&url, &url, &url]).env_remove("RUST_LOG").stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let asked = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    serve_early(&endpoint, 1).await;
    let output = asked.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<serde_json::Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["reused"].as_bool().unwrap()).collect::<Vec<_>>(), [false, true, true]);
    let took: Vec<_> = lines.iter().map(|line| line["handshake_ms"].as_f64()).collect();
    // One round trip at least.
    assert!(took[0].is_some_and(|took| took >= 300.0) && took[1..] == [None, None], "{lines:?}");
}

/// An open connection is silent for a round trip after each request, which is no reason to ask over TCP as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_connection_with_a_long_round_trip_is_no_silent_one() {
    // The same port for both: that of UDP may be somebody else's for TCP.
    let (endpoint, folder, to, listener) = loop {
        let (endpoint, folder) = server("patient");
        let to = endpoint.local_addr();
        if let Ok(listener) = tokio::net::TcpListener::bind(to).await {
            break (endpoint, folder, to, listener);
        }
    };
    // Whoever comes is accepted and hears nothing.
    let accepted = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok(Ok((stream, _))) = tokio::time::timeout(Duration::from_secs(4), listener.accept()).await {
            open.push(stream);
        }
        open.len()
    });
    let relay = tokio::task::spawn_blocking(move || slow_path(to)).await.unwrap();
    let url = format!("https://{to}/");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command.args(["get", "--json", "--udp", relay.address(), "--ca"]).arg(folder.0.join("cert.pem"));
    command.args([&url, &url, &url, &url]).env_remove("RUST_LOG").stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let asked = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    serve_early(&endpoint, 1).await;
    let output = asked.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines.matches("\"reused\":true").count(), 3, "{lines}");
    // The head start of the first race is shorter than the handshake.
    assert_eq!(accepted.await.unwrap(), 1, "{lines}");
}

/// Answers over two different paths are not compared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_paths_give_no_verdict() {
    let (endpoint, folder) = server("paths");
    let to = endpoint.local_addr();
    let relay = tokio::task::spawn_blocking(move || slow_path(to)).await.unwrap();
    let url = format!("https://{to}/");
    let ask = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
        command.args(["get", "--udp", relay.address(), "--ca"]).arg(folder.0.join("cert.pem")).args(more).arg(&url);
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        tokio::task::spawn_blocking(move || child.wait_with_output().unwrap())
    };
    let asked = ask(&["--json"]);
    serve_early(&endpoint, 1).await;
    let output = asked.await.unwrap();
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["same_path"], &line["verdict"]), (&false.into(), &serde_json::Value::Null), "{line}");
    assert_eq!(line["udp"], relay.address());
    let asked = ask(&[]);
    serve_early(&endpoint, 1).await;
    let said = String::from_utf8(asked.await.unwrap().stderr).unwrap();
    assert!(said.contains("paths were not the same") && said.contains(relay.address()), "{said}");
    for verdict in ["QUIC works", "TCP was"] {
        assert!(!said.contains(verdict), "{said}");
    }
    // With one way alone there is nothing to compare, and no second path.
    let asked = ask(&["--json", "--only", "quic"]);
    serve_early(&endpoint, 1).await;
    let line: serde_json::Value = serde_json::from_slice(&asked.await.unwrap().stdout).unwrap();
    assert_eq!(line["same_path"], true, "{line}");
}
