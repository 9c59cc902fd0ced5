//! `tiderace get` as a server sees it.

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
/// What a machine with much else to do may need.
const LIMIT: Duration = Duration::from_secs(60);

/// A server over HTTP/3 alone, and a file with its certificate.
fn server(name: &str) -> (Endpoint, Scratch) {
    let folder = Scratch::new(&format!("get-{name}"));
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(folder.0.join("cert.pem"), made.cert.pem()).unwrap();
    let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der()).unwrap();
    let tls = RustlsServer::builder().identity(identity).alpn(h3_quic::ALPN).build().unwrap();
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
