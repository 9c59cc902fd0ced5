//! Certificates of clients (mutual TLS), over TCP and QUIC.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use rustls::{
    HandshakeKind,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
};
use serde_json::Value;
use tiderace::RustlsClient;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::{
    access::{lines, with},
    site::{BackEnd, Body, Directory, Error, Site, get, get1, mirror},
};

/// An authority for certificates of clients.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// The configuration of a client with a certificate.
    fn client(&self, site: &Site, name: &str) -> rustls::ClientConfig {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        config(site, Some((certificate, key)))
    }
}

fn config(site: &Site, own: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from(site.certificate.clone())).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    match own {
        Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
        None => builder.with_no_client_auth(),
    }
}

const VERSIONS: [&str; 3] = ["http/1.1", "h2", "h3"];

/// Answer to a request.
#[derive(Debug)]
struct Answered {
    status: u16,
    said: Value,
    is_resumed: bool,
    is_early: bool,
}

/// Sends a request on a connection of its own.
async fn ask(site: &Site, version: &str, config: &rustls::ClientConfig, path: &str) -> Result<Answered, Error> {
    let spoof = [("x-client-cert-subject", "CN=root"), ("x_client_cert_fingerprint", "00"), ("client-cert", ":AA==:")];
    let spoofed = |request| with(request, &spoof);
    let mut config = config.clone();
    config.alpn_protocols = vec![version.as_bytes().to_vec()];
    if version == "h3" {
        let tls = Arc::new(RustlsClient::from_config(config)?);
        return ask_h3(site, &tls, spoofed(get(&format!("https://localhost{path}")))).await;
    }
    let stream = TcpStream::connect(site.address).await?;
    let stream = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost")?, stream).await?;
    let is_resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
    let io = TokioIo::new(stream);
    let response = if version == "h2" {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io).await?;
        let connection = tokio::spawn(connection);
        or_ended(sender.send_request(spoofed(get(&format!("https://localhost{path}")))), connection).await?
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
        let connection = tokio::spawn(connection);
        or_ended(sender.send_request(spoofed(get1(path))), connection).await?
    };
    let status = response.status().as_u16();
    let content = response.into_body().collect().await?.to_bytes();
    Ok(Answered { status, said: serde_json::from_slice(&content).unwrap_or_default(), is_resumed, is_early: false })
}

/// A response, or the error that the connection has ended without it. hyper's client can leave a request without any word
/// if the connection fails while the request is queued.
async fn or_ended<T, C>(
    response: impl Future<Output = hyper::Result<T>>,
    connection: tokio::task::JoinHandle<C>,
) -> Result<T, Error> {
    tokio::select! {
        // A response that came before the end counts.
        biased;
        response = response => Ok(response?),
        _ = connection => Err("the connection ended without a response".into()),
    }
}

async fn ask_h3(site: &Site, tls: &Arc<RustlsClient>, request: http::Request<Body>) -> Result<Answered, Error> {
    let (_endpoint, connection, is_early) = site.returning(tls).await?;
    let mut h3 = h3_quic::client::begin(connection.clone()).await?;
    let response = h3.send(request).await?;
    let status = response.status().as_u16();
    let content = response.into_body().collect().await?.to_bytes();
    connection.established().await?;
    // The ticket for the next time.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let is_resumed = connection.stats().is_some_and(|stats| stats.resumed > 0);
    Ok(Answered { status, said: serde_json::from_slice(&content).unwrap_or_default(), is_resumed, is_early })
}

fn start(name: &str, settings: &str, authority: &Authority, back_end: &BackEnd) -> Site {
    let write = |directory: &Directory| drop(directory.write("ca.pem", &authority.pem));
    let settings = settings.replace("TO", &back_end.url());
    Site::start_with(name, &settings, write)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_required_certificate_is_required_in_all_versions() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let back_end = BackEnd::start(mirror).await;
    let site =
        start("mtls", "client-certificates = { roots = \"ca.pem\" }\n[[route]]\nto = \"TO\"\n", &ours, &back_end);
    let good = ours.client(&site, "alice, of ours");
    for version in VERSIONS {
        let answered = ask(&site, version, &good, "/").await.unwrap();
        let fields = &answered.said["fields"];
        assert_eq!(
            (answered.status, &fields["x-client-cert-subject"]),
            (200, &"CN=alice\\, of ours".into()),
            "{version}"
        );
        assert_eq!(fields["x-client-cert-fingerprint"].as_str().unwrap().len(), 64, "{version}");
        assert_eq!((&fields["x_client_cert_fingerprint"], &fields["client-cert"]), (&Value::Null, &Value::Null));
        ask(&site, version, &config(&site, None), "/").await.expect_err(version);
        ask(&site, version, &theirs.client(&site, "alice, of ours"), "/").await.expect_err(version);
    }
    let lines = lines(&site, 3).await;
    let print = lines[0]["certificate"].as_str().unwrap();
    assert!(print.len() == 64 && lines.iter().all(|line| line["certificate"] == print), "{lines:?}");
    assert_eq!(site.figure("tiderace_edge_client_certificates_total{reason=\"verified\"}"), 3.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_optional_certificate_is_a_matter_of_routes() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let back_end = BackEnd::start(mirror).await;
    let site = start(
        "mtls-optional",
        "client-certificates = { roots = \"ca.pem\", required = false }\n[[route]]\nto = \"TO\"\n\
         [[route]]\npath = \"/admin\"\nto = \"TO\"\nclient-certificate = true\n",
        &ours,
        &back_end,
    );
    for version in VERSIONS {
        let anybody = config(&site, None);
        let open = ask(&site, version, &anybody, "/").await.unwrap();
        assert_eq!((open.status, &open.said["fields"]["x-client-cert-subject"]), (200, &Value::Null), "{version}");
        assert_eq!(ask(&site, version, &anybody, "/admin").await.unwrap().status, 403, "{version}");
        let alice = ours.client(&site, "alice");
        assert_eq!(ask(&site, version, &alice, "/admin/x").await.unwrap().status, 200, "{version}");
        ask(&site, version, &theirs.client(&site, "alice"), "/").await.expect_err(version);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_session_is_good_as_long_as_its_certificate() {
    let (ours, next) = (Authority::new("ours"), Authority::new("next"));
    let back_end = BackEnd::start(mirror).await;
    let settings = "client-certificates = { roots = \"ca.pem\", required = REQUIRED }\n[[route]]\nto = \"TO\"\n";
    let optional = settings.replace("REQUIRED", "false");
    let site = start("mtls-resumed", &optional, &ours, &back_end);
    let (alice, anybody) = (ours.client(&site, "alice"), config(&site, None));
    for version in VERSIONS {
        for config in [&alice, &anybody] {
            // The first handshake of each brings a ticket.
            let mut is_resumed = false;
            for _ in 0..40 {
                let answered = ask(&site, version, config, "/").await.unwrap();
                let subject = &answered.said["fields"]["x-client-cert-subject"];
                assert_eq!(subject.as_str(), std::ptr::eq(config, &alice).then_some("CN=alice"), "{version}");
                is_resumed |= answered.is_resumed;
                if is_resumed {
                    break;
                }
            }
            assert!(is_resumed, "{version}");
        }
    }
    // From here on a certificate is required: a session that began without one does not get around it.
    site.configure(&settings.replace("REQUIRED", "true").replace("TO", &back_end.url()));
    site.process.reload().await.unwrap();
    for version in VERSIONS {
        ask(&site, version, &anybody, "/").await.expect_err(version);
        let answered = ask(&site, version, &alice, "/").await.unwrap();
        // All versions have one store of tickets: only the first of them has an old one.
        let is_first = version == VERSIONS[0];
        assert!(answered.status == 200 && !(is_first && answered.is_resumed), "{version}: {answered:?}");
        assert!(ask(&site, version, &alice, "/").await.unwrap().is_resumed, "{version}");
    }
    // Other roots: no session continues.
    site.directory.write("ca.pem", &next.pem);
    site.process.reload().await.unwrap();
    for version in VERSIONS {
        ask(&site, version, &alice, "/").await.expect_err(version);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_data_waits_where_a_certificate_is_needed() {
    let ours = Authority::new("ours");
    let back_end = BackEnd::start(mirror).await;
    let site = start(
        "mtls-early",
        "client-certificates = { roots = \"ca.pem\", required = false }\ntransport = { early-data = true }\n\
         [[route]]\nto = \"TO\"\nearly-data = true\n\
         [[route]]\npath = \"/admin\"\nto = \"TO\"\nearly-data = true\nclient-certificate = true\n",
        &ours,
        &back_end,
    );
    let mut alice = ours.client(&site, "alice");
    alice.enable_early_data = true;
    alice.alpn_protocols = vec![b"h3".to_vec()];
    let tls = Arc::new(RustlsClient::from_config(alice).unwrap());
    let mut seen = [false; 2];
    for _ in 0..40 {
        for (number, path) in ["/", "/admin"].into_iter().enumerate() {
            let answered = ask_h3(&site, &tls, get(&format!("https://localhost{path}"))).await.unwrap();
            assert_eq!(answered.status, 200);
            assert_eq!(answered.said["fields"]["x-client-cert-subject"], "CN=alice");
            let is_early = answered.said["fields"]["early-data"] == "1";
            assert!(!is_early || path == "/", "a request for {path} was served early");
            seen[number] |= answered.is_early && (is_early || path == "/admin");
        }
        if seen == [true; 2] {
            break;
        }
    }
    assert_eq!(seen, [true; 2]);
}
