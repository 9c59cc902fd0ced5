//! Certificates from files, chosen by server name, and the two TLS configurations that present them.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use rustls::{
    ServerConfig,
    server::{Acceptor, ClientHello, ResolvesServerCert, StoresServerSessions},
    sign::CertifiedKey,
};
use tiderace::{KeyRing, RustlsServer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor, server::TlsStream};

use crate::{
    acme::{self, Challenges},
    capture::{CaptureKeyLog, Captures},
    certificate::{CertificateError, end, provider, read, read_chain},
    client_certificate::{ClientRing, ClientVerification},
    config::Config,
    keys::{self, Strikes},
    remote_signer::{Link, RemoteKey},
    session_route,
    setup::SetupError,
};

/// Certificates by server name.
#[derive(Debug, Default)]
struct Names {
    exact: HashMap<String, Arc<CertifiedKey>>,
    /// Names of `*.` certificates without these two letters.
    wild: HashMap<String, Arc<CertifiedKey>>,
    otherwise: Option<Arc<CertifiedKey>>,
    challenges: Arc<Challenges>,
}

impl Names {
    fn find(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let exact = name.and_then(|name| {
            // A wildcard is for one label (RFC 9525 §6.3).
            let wild = || name.split_once('.').and_then(|(_, parent)| self.wild.get(parent));
            self.exact.get(name).or_else(wild)
        });
        exact.or(self.otherwise.as_ref()).cloned()
    }
}

impl ResolvesServerCert for Names {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if Challenges::is_look(&hello) {
            return self.challenges.answer(&hello);
        }
        self.find(hello.server_name())
    }
}

/// State behind both configurations, which outlives them.
pub(crate) struct Shared<'a> {
    pub(crate) ring: &'a KeyRing,
    pub(crate) strikes: &'a Arc<Strikes>,
    pub(crate) captures: &'a Arc<Captures>,
    pub(crate) challenges: &'a Arc<Challenges>,
    pub(crate) client_ring: &'a ClientRing,
}

/// Both configurations of a generation.
pub(crate) struct Tls {
    pub(crate) tcp: Arc<ServerConfig>,
    /// For the looks of an authority, which has no certificate of a client.
    look: Option<Arc<ServerConfig>>,
    pub(crate) clients: Option<ClientVerification>,
    pub(crate) quic: RustlsServer,
    /// Ends of the certificates, in seconds since 1970, by file or `acme`.
    pub(crate) ends: BTreeMap<String, i64>,
    /// A handshake may wait for a signature of another machine.
    pub(crate) signs_remotely: bool,
}

/// Certificate of a file with its key, or with one that a signer has.
fn identity(
    chain: &str,
    key: &str,
    config: &Config,
    signer: Option<&Arc<Link>>,
) -> Result<CertifiedKey, CertificateError> {
    let (chain, key_file) = (Path::new(chain), Path::new(key));
    let Some(link) = signer else { return read(chain, key_file) };
    if key.is_empty() {
        let certificates = read_chain(chain)?;
        let remote = RemoteKey::new(&certificates[0], link, None)?;
        return Ok(CertifiedKey::new(certificates, Arc::new(remote)));
    }
    let own = read(chain, key_file)?;
    if !config.signer.as_ref().is_some_and(|signer| signer.fall_back) {
        return Ok(own);
    }
    let remote = RemoteKey::new(&own.cert[0], link, Some(own.key.clone()))?;
    Ok(CertifiedKey::new(own.cert, Arc::new(remote)))
}

/// No session is kept: tickets have it all.
#[derive(Debug)]
struct NoSessionStorage;

impl StoresServerSessions for NoSessionStorage {
    fn put(&self, _: Vec<u8>, _: Vec<u8>) -> bool {
        false
    }
    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
    fn take(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
    fn can_cache(&self) -> bool {
        false
    }
}

impl Tls {
    /// Reads all certificates of a configuration.
    pub(crate) fn load(config: &Config, shared: &Shared<'_>, signer: Option<&Arc<Link>>) -> Result<Self, SetupError> {
        let mut names = Names { challenges: shared.challenges.clone(), ..Names::default() };
        let mut ends = BTreeMap::new();
        let mut note = |name: &str, key: &CertifiedKey| ends.extend(end(&key.cert).map(|end| (name.to_owned(), end)));
        if !config.certificate.is_empty() {
            let key = Arc::new(identity(&config.certificate, &config.key, config, signer)?);
            note(&config.certificate, &key);
            names.otherwise = Some(key);
        }
        for certificate in &config.certificates {
            let key = Arc::new(identity(&certificate.certificate, &certificate.key, config, signer)?);
            note(&certificate.certificate, &key);
            for name in &certificate.name.0 {
                match name.strip_prefix("*.") {
                    Some(parent) => names.wild.insert(parent.to_ascii_lowercase(), key.clone()),
                    None => names.exact.insert(name.to_ascii_lowercase(), key.clone()),
                };
            }
        }
        if let Some(key) = shared.challenges.certificate(&config.acme) {
            note("acme", &key);
            for name in &config.acme.names.0 {
                // Somebody who names a file for it means that.
                names.exact.entry(name.to_ascii_lowercase()).or_insert_with(|| key.clone());
            }
            names.otherwise.get_or_insert(key);
        }
        let names = Arc::new(names);
        let builder = ServerConfig::builder_with_provider(provider().clone())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(CertificateError::Refused)?;
        let clients = config.client_certificates.as_ref();
        let clients = clients.map(|section| ClientVerification::load(&section.roots, section.required)).transpose()?;
        let mut look = None;
        let mut tcp = match &clients {
            None => builder.with_no_client_auth().with_cert_resolver(names.clone()),
            Some(clients) => {
                if !config.acme.names.0.is_empty() {
                    let mut alone = builder.clone().with_no_client_auth().with_cert_resolver(names.clone());
                    alone.alpn_protocols = vec![acme::ALPN.to_vec()];
                    alone.session_storage = Arc::new(NoSessionStorage);
                    alone.send_tls13_tickets = 0;
                    look = Some(Arc::new(alone));
                }
                builder.with_client_cert_verifier(clients.verifier.clone()).with_cert_resolver(names.clone())
            }
        };
        // A session without a certificate, or under other roots, is not resumed.
        let ring = match &clients {
            None => shared.ring.clone(),
            Some(clients) => shared.client_ring.of(clients)?,
        };
        tcp.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let qmux = config.streams.iter().flat_map(|stream| &stream.qmux.0);
        tcp.alpn_protocols.extend(qmux.map(|alpn| alpn.as_bytes().to_vec()));
        if !config.acme.names.0.is_empty() {
            tcp.alpn_protocols.push(acme::ALPN.to_vec());
        }
        tcp.ticketer = Arc::new(keys::TcpTickets(ring.clone()));
        tcp.session_storage = Arc::new(NoSessionStorage);
        let sessions = session_route::support(config).map(|settings| settings.support_with(true));
        let settings = h3_quic::server::Options { max_fields: config.limits.fields.0, sessions, ..Default::default() };
        let mut quic = RustlsServer::builder()
            .certificates(names)
            .ring(ring)
            .strike_register(shared.strikes.clone())
            .early_data(config.transport.early_data)
            .early_data_state(h3_quic::server::early_data_state(&settings));
        if let Some(clients) = &clients {
            quic = quic.client_roots(clients.roots.clone(), clients.is_required);
        }
        if config.capture.enabled {
            quic = quic.key_log(Arc::new(CaptureKeyLog(shared.captures.clone())));
        }
        // TLS of QUIC needs a protocol, even where every connection is turned away before.
        if config.http3.enabled && !config.routes.is_empty() || config.streams.is_empty() {
            quic = quic.alpn(h3_quic::ALPN);
        }
        for alpn in config.streams.iter().flat_map(|stream| &stream.alpn.0) {
            quic = quic.alpn(alpn.as_bytes());
        }
        let quic = quic.build().map_err(CertificateError::Quic)?;
        Ok(Self { tcp: Arc::new(tcp), look, clients, quic, ends, signs_remotely: signer.is_some() })
    }
}

impl Tls {
    /// Accepts a connection over TCP.
    pub(crate) async fn accept<IO: AsyncRead + AsyncWrite + Unpin>(&self, stream: IO) -> io::Result<TlsStream<IO>> {
        let Some(look) = &self.look else { return TlsAcceptor::from(self.tcp.clone()).accept(stream).await };
        let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let config = if Challenges::is_look(&begun.client_hello()) { look } else { &self.tcp };
        begun.into_stream(config.clone()).await
    }
}

/// Modification times of a configuration's files, the ring of keys and users included, to notice later changes.
pub(crate) fn changed(config: &Config) -> Vec<Option<SystemTime>> {
    let own = [config.certificate.as_str(), config.key.as_str(), config.keys.file.as_str()];
    let others = config.certificates.iter().flat_map(|c| [c.certificate.as_str(), c.key.as_str()]);
    let users = config.routes.iter().filter_map(|route| Some(route.basic_auth.as_ref()?.users.as_str()));
    let roots = config.client_certificates.as_ref().map(|clients| clients.roots.as_str());
    let signer = config.signer.iter().flat_map(|signer| [&signer.roots, &signer.certificate, &signer.key]);
    let others = others.chain(users).chain(roots).chain(signer.map(String::as_str));
    let time = |path: &str| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let stored = acme::file(&config.acme).map(|file| file.to_string_lossy().into_owned());
    let mut times: Vec<_> = own.into_iter().chain(others).filter(|path| !path.is_empty()).map(time).collect();
    times.extend(stored.as_deref().map(time));
    times
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::PrivateKeyDer;

    use super::*;

    fn certified(name: &str) -> Arc<CertifiedKey> {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        Arc::new(CertifiedKey::from_der(vec![made.cert.der().clone()], key, provider()).unwrap())
    }

    #[test]
    fn the_closest_name_wins() {
        let [exact, wild, otherwise] = ["www.example.org", "*.example.org", "other"].map(certified);
        let names = Names {
            exact: [("www.example.org".to_owned(), exact.clone())].into(),
            wild: [("example.org".to_owned(), wild.clone())].into(),
            otherwise: Some(otherwise.clone()),
            ..Names::default()
        };
        for (name, expected) in [
            (Some("www.example.org"), &exact),
            (Some("api.example.org"), &wild),
            (Some("a.b.example.org"), &otherwise),
            (Some("example.org"), &otherwise),
            (None, &otherwise),
        ] {
            assert!(Arc::ptr_eq(&names.find(name).unwrap(), expected), "{name:?}");
        }
    }
}
