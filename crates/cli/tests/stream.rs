//! `tiderace stream` as a server of a private protocol sees it.

mod program;
mod scratch;

use std::{
    io::Write,
    net::SocketAddr,
    process::{Command, Output, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use program::refused;
use scratch::Scratch;
use tiderace::{CloseReason, Endpoint, Identity, Profile, RustlsServer, ServerConfig};

/// Time limit for a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A server of the protocol `shout/1`, and a folder with its certificate.
fn server(name: &str) -> (Arc<Endpoint>, Scratch) {
    let folder = Scratch::new(&format!("stream-{name}"));
    let made = folder.certificate("127.0.0.1");
    let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der()).unwrap();
    let tls = RustlsServer::builder().identity(identity).alpn("shout/1").build().unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let endpoint = Endpoint::server(any, ServerConfig::new(Arc::new(tls), Arc::new(Profile::default()))).unwrap();
    (Arc::new(endpoint), folder)
}

/// Runs the program with this input, which ends.
fn run(endpoint: &Endpoint, more: &[&str], input: Vec<u8>) -> tokio::task::JoinHandle<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    command.args(["stream", &endpoint.local_addr().to_string(), "--alpn"]).args(more).env_remove("RUST_LOG");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    tokio::task::spawn_blocking(move || {
        let mut stdin = child.stdin.take().unwrap();
        // A program that has ended reads no more.
        let writing = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        writing.join().unwrap();
        output
    })
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_goes_in_and_the_answer_comes_out() {
    let (endpoint, folder) = server("echo");
    let ca = folder.0.join("cert.pem");
    let input: Vec<u8> = (0..300_000u32).map(|place| b'a' + (place % 26) as u8).collect();
    let asked = run(&endpoint, &["shout/1", "--ca", ca.to_str().unwrap(), "-v"], input.clone());
    let connection = tokio::time::timeout(LIMIT, endpoint.accept()).await.unwrap().unwrap();
    let (mut send, mut recv) = tokio::time::timeout(LIMIT, connection.accept_bi()).await.unwrap().unwrap();
    // The end of the input ends the client's half, and the answer comes after that.
    let question = tokio::time::timeout(LIMIT, recv.read_to_end(1 << 20)).await.unwrap().unwrap();
    assert_eq!(question, input);
    send.write_chunk(Bytes::from(question.to_ascii_uppercase())).await.unwrap();
    send.finish().unwrap();
    let reason = tokio::time::timeout(LIMIT, connection.closed()).await.unwrap();
    assert!(matches!(reason, CloseReason::PeerApplication { code: 0, .. }), "{reason}");
    let output = asked.await.unwrap();
    assert_eq!(
        (output.status.code(), output.stdout == input.to_ascii_uppercase()),
        (Some(0), true),
        "{}",
        said(&output)
    );
    assert!(said(&output).contains("300000 bytes sent, 300000 received"), "{}", said(&output));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_breaks_off_is_a_failure() {
    let (endpoint, _folder) = server("reset");
    let asked = run(&endpoint, &["shout/1", "-k"], b"hello".to_vec());
    let connection = tokio::time::timeout(LIMIT, endpoint.accept()).await.unwrap().unwrap();
    let (mut send, _recv) = tokio::time::timeout(LIMIT, connection.accept_bi()).await.unwrap().unwrap();
    send.reset(77).unwrap();
    let output = tokio::time::timeout(LIMIT, asked).await.unwrap().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(said(&output).contains("code 77") && said(&output).contains("WARNING: --insecure"), "{}", said(&output));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_not_trusted_or_speak_something_else() {
    let (endpoint, folder) = server("refused");
    let ca = folder.0.join("cert.pem");
    let accepting = endpoint.clone();
    let accepted = tokio::spawn(async move { while accepting.accept().await.is_some() {} });
    for (more, expected) in
        [(&["shout/1"][..], "certificate"), (&["sing/1", "--ca", ca.to_str().unwrap()], "known protocol")]
    {
        let output = tokio::time::timeout(LIMIT, run(&endpoint, more, Vec::new())).await.unwrap().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{}", said(&output));
        assert!(said(&output).contains(expected), "{}", said(&output));
    }
    accepted.abort();
}

#[test]
fn wrong_requests_are_told() {
    for (arguments, expected) in [
        (&["stream", "localhost", "--alpn", "x"][..], "localhost:4433"),
        (&["stream", "localhost:1", "--alpn", ""], "--alpn NAME"),
        (&["stream", "localhost:1", "--alpn", "x", "--ca", "/nowhere.pem"], "PEM"),
    ] {
        let (error, hint) = refused(arguments);
        assert!(hint.contains(expected), "{error} {hint}");
    }
}
