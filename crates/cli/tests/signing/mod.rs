//! Signers, and gateways and clients beside them.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    io::{BufRead, BufReader, Lines, Read, Write},
    net::SocketAddr,
    path::PathBuf,
    process::{ChildStdout, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::{
    HandshakeKind,
    pki_types::{CertificateDer, ServerName},
};
use serde_json::Value;
use tiderace::{ClientConfig, Endpoint, Profile, RustlsClient};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::{
    gateway::Gateway,
    scratch::{Program, Scratch},
};

/// Time limit for a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// An authority of certificates between gateways and signers.
pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate with its key in files of this name.
    pub(crate) fn issue(&self, folder: &Scratch, name: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["signer.test".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(folder.0.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.0.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

/// `tiderace edge signer` at work.
pub(crate) struct Signer {
    pub(crate) program: Program,
    pub(crate) address: SocketAddr,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Signer {
    /// Starts it with the key of the site in a file.
    pub(crate) fn start(folder: &Scratch, listen: &str) -> Self {
        let identity = "[[identity]]\ncertificate = \"keys/cert.pem\"\nkey = \"keys/key.pem\"\n";
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiderace"));
        command.args(["edge", "signer"]).arg(configure_signer(folder, listen, identity));
        Self::started(command)
    }

    /// Starts it with a command of its own, and waits until it signs.
    pub(crate) fn started(mut command: Command) -> Self {
        command.env_remove("RUST_LOG").stdin(Stdio::null());
        let mut program = Program(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let address = line.strip_prefix("signing at ").unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
        Self { program, address, lines }
    }

    pub(crate) fn status(&mut self) -> Value {
        signal(self.program.0.id(), "USR1");
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }

    pub(crate) fn signed(&mut self) -> u64 {
        self.status()["signatures"]["signed"].as_u64().unwrap()
    }

    /// Waits until it has signed so often.
    pub(crate) async fn wait_for(&mut self, signed: u64) {
        let begun = Instant::now();
        while self.signed() < signed {
            assert!(begun.elapsed() < LIMIT, "{}", self.status());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Writes the configuration of a signer, with `rest` behind what is common.
pub(crate) fn configure_signer(folder: &Scratch, listen: &str, rest: &str) -> PathBuf {
    let file = folder.0.join("signer.toml");
    let text = format!(
        "listen = \"{listen}\"\ncertificate = \"signer.pem\"\nkey = \"signer.key\"\nclients = \"ca.pem\"\n{rest}"
    );
    std::fs::write(&file, text).unwrap();
    file
}

/// A folder with everything but the private key of the site, which is in `keys`.
pub(crate) struct Place {
    pub(crate) folder: Scratch,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) authority: Authority,
}

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let folder = Scratch::new(&format!("signer-{name}"));
        std::fs::create_dir_all(folder.0.join("keys")).unwrap();
        std::fs::create_dir_all(folder.0.join("www")).unwrap();
        std::fs::write(folder.0.join("www/small"), "small").unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        for file in ["cert.pem", "keys/cert.pem"] {
            std::fs::write(folder.0.join(file), made.cert.pem()).unwrap();
        }
        std::fs::write(folder.0.join("keys/key.pem"), made.signing_key.serialize_pem()).unwrap();
        let authority = Authority::new();
        std::fs::write(folder.0.join("ca.pem"), &authority.pem).unwrap();
        authority.issue(&folder, "signer");
        authority.issue(&folder, "gateway");
        Self { folder, certificate: made.cert.der().clone(), authority }
    }

    /// Writes the configuration of a gateway, with `top` before and `extra` behind what is common.
    pub(crate) fn configure(&self, signer: SocketAddr, top: &str, extra: &str) -> PathBuf {
        let file = self.folder.0.join("edge.toml");
        let metrics = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let text = format!(
            "listen = \"127.0.0.1:0\"\ncertificate = \"cert.pem\"\n{top}\nworkers = 1\n[metrics]\nlisten = \"{metrics}\"\n\
             [limits]\nhandshake-timeout = \"100 s\"\n\
             [signer]\naddress = \"{signer}\"\nname = \"signer.test\"\nroots = \"ca.pem\"\ncertificate = \"gateway.pem\"\n\
             key = \"gateway.key\"\n{extra}\n[[route]]\nfiles = \"www\"\n"
        );
        std::fs::write(&file, text).unwrap();
        std::fs::write(self.folder.0.join("metrics"), metrics.to_string()).unwrap();
        file
    }

    /// Value of a metric, 0 where it is not there.
    pub(crate) fn metric(&self, line: &str) -> f64 {
        let address = std::fs::read_to_string(self.folder.0.join("metrics")).unwrap();
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let found = text.lines().find_map(|other| other.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or(0.0)
    }

    pub(crate) async fn wait_for_metric(&self, line: &str, value: f64) {
        let begun = Instant::now();
        while (self.metric(line) - value).abs() > 0.1 {
            assert!(begun.elapsed() < LIMIT, "{line} is {}", self.metric(line));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn client(&self, gateway: &Gateway) -> Client {
        let tls = RustlsClient::builder().roots([self.certificate.to_vec()]).alpn("h3").build().unwrap();
        let profile = Profile { handshake_timeout: LIMIT, ..Profile::default() };
        let quic = ClientConfig::new(Arc::new(tls), Arc::new(profile));
        Client { address: gateway.address, quic, tcp: self.tcp(&[&rustls::version::TLS13]) }
    }

    pub(crate) fn tcp(&self, versions: &[&'static rustls::SupportedProtocolVersion]) -> Arc<rustls::ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}

/// A client that resumes its sessions.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) quic: ClientConfig,
    pub(crate) tcp: Arc<rustls::ClientConfig>,
}

pub(crate) type H2 = hyper::client::conn::http2::SendRequest<Empty<Bytes>>;

pub(crate) fn get() -> Request<Empty<Bytes>> {
    Request::get("https://localhost/small").body(Empty::new()).unwrap()
}

impl Client {
    pub(crate) async fn h3(&self) -> Result<(Endpoint, h3_quic::client::SendRequest), String> {
        let endpoint = Endpoint::client_for(self.address).unwrap();
        let connecting = endpoint.connect(&self.quic, self.address, "localhost").unwrap();
        let connection = connecting.await.map_err(|error| error.to_string())?;
        let h3 = h3_quic::client::begin(connection).await.map_err(|error| error.to_string())?;
        Ok((endpoint, h3))
    }

    pub(crate) async fn h2(&self) -> Result<(H2, HandshakeKind), String> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(self.tcp.clone()).connect(name, stream).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let kind = stream.get_ref().1.handshake_kind().unwrap();
        let io = TokioIo::new(stream);
        let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        Ok((sender, kind))
    }

    /// A request on each kind of a new connection; the kind of the handshake over TCP.
    pub(crate) async fn both(&self) -> HandshakeKind {
        let (_endpoint, mut h3) = self.h3().await.unwrap();
        ask3(&mut h3).await;
        let (mut h2, kind) = self.h2().await.unwrap();
        ask2(&mut h2).await;
        kind
    }
}

pub(crate) async fn ask3(h3: &mut h3_quic::client::SendRequest) {
    let response = h3.send(get()).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "small");
}

pub(crate) async fn ask2(h2: &mut H2) {
    let response = h2.send_request(get()).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "small");
}
