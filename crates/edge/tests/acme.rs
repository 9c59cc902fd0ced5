//! Certificates from an authority: a real one, Pebble, that runs beside the test. `cargo xtask shows edge --only acme` builds it and
//! says where it is.

mod site;

use std::{
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::pki_types::{CertificateDer, ServerName};
use site::Directory;
use tiderace_edge::Process;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Seconds that Pebble's certificates are good: they are replaced when a third of it is left.
const LIFE: u64 = 45;
/// Time limit for an order on a busy machine; an order takes seconds.
const LIMIT: Duration = Duration::from_secs(120);

struct Pebble(Child);

impl Drop for Pebble {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn pebble(program: &str, directory: &Directory, port: u16, looks_at: u16) -> Pebble {
    let config = serde_json::json!({"pebble": {
        "listenAddress": format!("127.0.0.1:{port}"),
        "managementListenAddress": format!("127.0.0.1:{}", free_port()),
        "certificate": directory.0.join("pebble-cert.pem"),
        "privateKey": directory.0.join("pebble-key.pem"),
        "httpPort": 1,
        "tlsPort": looks_at,
        "ocspResponderURL": "",
        "externalAccountBindingRequired": false,
        "retryAfter": {"authz": 1, "order": 1},
        "profiles": {"default": {"description": "short", "validityPeriod": LIFE}},
    }});
    let file = directory.write("pebble.json", config.to_string());
    let mut command = Command::new(program);
    command.arg("-config").arg(file).env("PEBBLE_VA_NOSLEEP", "1").stdin(Stdio::null());
    let log = std::fs::File::create(directory.0.join("pebble.log")).unwrap();
    command.stdout(log.try_clone().unwrap()).stderr(log);
    let pebble = Pebble(command.spawn().unwrap());
    // A gateway whose authority is not there asks again after a minute, which is not what is measured.
    let begun = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < LIMIT, "Pebble does not listen");
        std::thread::sleep(Duration::from_millis(50));
    }
    pebble
}

/// Certificate that the gateway presents for `localhost`, of any issuer.
async fn shown(port: u16) -> Option<CertificateDer<'static>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let verifier = Arc::new(Any(provider));
    let config = builder.unwrap().dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
    Some(stream.get_ref().1.peer_certificates()?.first()?.clone().into_owned())
}

/// Takes every certificate: which one it is, is what the test asks.
#[derive(Debug)]
struct Any(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Waits for a certificate that is not `other`; how long it took.
async fn another(port: u16, other: Option<&CertificateDer<'static>>) -> (CertificateDer<'static>, Duration) {
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        if let Some(certificate) = shown(port).await.filter(|certificate| Some(certificate) != other) {
            return (certificate, begun.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("no certificate within {LIMIT:?}");
}

fn figure(process: &Process, line: &str) -> f64 {
    let text = process.figures();
    text.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(' ')).map_or(0.0, |value| value.parse().unwrap())
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Pebble: `cargo xtask shows edge --only acme` builds and runs it"]
async fn certificates_come_are_renewed_and_outlive_failures() {
    let program = std::env::var("PEBBLE").expect("PEBBLE says where Pebble is");
    let directory = Directory::new("acme");
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    directory.write("pebble-cert.pem", made.cert.pem());
    directory.write("pebble-key.pem", made.signing_key.serialize_pem());
    directory.write("www/index.html", "here");
    let (authority, port) = (free_port(), free_port());
    let config = format!(
        "listen = \"127.0.0.1:{port}\"\nworkers = 2\n[acme]\nnames = \"localhost\"\nterms-agreed = true\n\
         directory = \"https://127.0.0.1:{authority}/dir\"\nroots = \"pebble-cert.pem\"\n[[route]]\nfiles = \"www\"\n"
    );
    let file = directory.write("edge.toml", config);
    let running = pebble(&program, &directory, authority, port);
    let process = Process::start(&file).unwrap_or_else(|error| panic!("{error}"));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = {
        let process = process.clone();
        tokio::spawn(async move { process.run(async { stopped.await.unwrap_or(()) }).await })
    };
    // Nothing to show yet, and nobody is told otherwise.
    let (first, took) = another(port, None).await;
    println!("measured seconds to the first certificate: {:.1}", took.as_secs_f64());
    let folder = directory.0.join("acme");
    assert_eq!(
        (mode(&folder), mode(&folder.join("localhost.pem")), mode(&folder.join("account.json"))),
        (0o700, 0o600, 0o600)
    );
    let kept = std::fs::read(folder.join("account.json")).unwrap();

    let (second, took) = another(port, Some(&first)).await;
    println!("measured seconds to its successor: {:.1}", took.as_secs_f64());
    assert!(took < Duration::from_secs(LIFE), "it came before the first had ended");
    assert_eq!(std::fs::read(folder.join("account.json")).unwrap(), kept, "the account is used again");
    assert!(figure(&process, "tiderace_edge_acme_orders_total{reason=\"completed\"}") >= 2.0);

    // The authority is gone: orders fail, and what there is stays, in the file and on the wire.
    drop(running);
    let failed = "tiderace_edge_acme_orders_total{reason=\"failed\"}";
    let begun = Instant::now();
    while figure(&process, failed) == 0.0 {
        assert!(begun.elapsed() < LIMIT, "no order has failed");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let now = shown(port).await.expect("a certificate is shown");
    assert!(now == second || now != first, "an older one has come back");
    // A file that somebody has spoilt does not take it away either.
    std::fs::write(folder.join("localhost.pem"), "nonsense").unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(shown(port).await, Some(now), "a file that cannot be read has replaced a certificate");
    println!("measured certificates replaced by a failure: 0");
    let _ = stop.send(());
    served.await.unwrap();
}
