//! A signer: it has the private keys, and signs the handshakes of gateways that show a certificate.

use std::{
    collections::HashMap,
    fmt::Write as _,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustls::{ServerConfig, SignatureScheme, server::WebPkiClientVerifier, sign::CertifiedKey};
use serde_json::{Value, json};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    sync::{Semaphore, mpsc},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    config::{self, Resolved},
    error::SignerStartError,
};
use crate::{
    certificate::{self, CertificateError, provider},
    metrics::service,
    remote_signer::{
        key_id,
        protocol::{ALPN, Answer, KeyId, Keys, MAX_FRAME, Request, is_handshake, next_frame},
    },
    trust::{RootsError, store},
};

/// Time for a gateway's TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A silent gateway is asked whether it is there after this time.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Requests that one task signs one after the other.
const BATCH: usize = 8;

/// Counters of a signer.
#[derive(Debug, Default)]
struct Counters {
    signed: AtomicU64,
    unknown_key: AtomicU64,
    refused: AtomicU64,
    /// Connections that were accepted with their TLS.
    gateways: AtomicU64,
    /// Connections without a certificate that is accepted, or without TLS.
    not_admitted: AtomicU64,
    over_limit: AtomicU64,
    malformed: AtomicU64,
}

/// State of a signer.
struct Shared {
    /// Keys by their names, and TLS of new connections.
    current: RwLock<Arc<Current>>,
    counters: Counters,
    open: AtomicUsize,
}

struct Current {
    keys: HashMap<KeyId, Arc<CertifiedKey>>,
    tls: TlsAcceptor,
    connections: usize,
    waiting: usize,
}

impl Shared {
    fn current(&self) -> Arc<Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Current {
    fn build(config: &Resolved) -> Result<Self, SignerStartError> {
        let mut keys = HashMap::new();
        for (chain, key) in &config.identities {
            let certified = certificate::read(chain, key)?;
            let id = certified.cert.first().and_then(|certificate| key_id(certificate));
            let id = id.ok_or_else(|| CertificateError::NoCertificate(chain.clone()))?;
            keys.insert(id, Arc::new(certified));
        }
        let own = certificate::read(&config.certificate, &config.key)?;
        let file = || config.clients.clone();
        let pem = std::fs::read(&config.clients).map_err(|source| RootsError::Unreadable { file: file(), source })?;
        let roots = Arc::new(store(&pem).map_err(|fault| fault.within(&config.clients))?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider().clone()).build();
        let verifier = verifier.map_err(|source| RootsError::NoVerifier { file: file(), source })?;
        let builder = ServerConfig::builder_with_provider(provider().clone());
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]);
        let builder = builder.map_err(CertificateError::Refused)?.with_client_cert_verifier(verifier);
        let mut tls = builder.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(own)));
        tls.alpn_protocols = vec![ALPN.to_vec()];
        // A certificate that is not accepted any more shall not live on in a session.
        tls.send_tls13_tickets = 0;
        let Resolved { connections, waiting, .. } = *config;
        Ok(Self { keys, tls: TlsAcceptor::from(Arc::new(tls)), connections, waiting })
    }
}

/// A signer that runs; it ends when it is dropped.
pub struct SignerServer {
    file: PathBuf,
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    metrics: Option<SocketAddr>,
    start: (Vec<SocketAddr>, Option<SocketAddr>, u8),
    runtime: Option<Runtime>,
}

impl Drop for SignerServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn fixed(config: &Resolved) -> (Vec<SocketAddr>, Option<SocketAddr>, u8) {
    (config.listen.clone(), config.metrics, config.workers)
}

impl SignerServer {
    /// Starts the signer of the configuration in `file`.
    ///
    /// # Errors
    /// When the configuration is wrong, or an address cannot be served.
    pub fn start(file: &Path) -> Result<Self, SignerStartError> {
        let config = config::load(file)?;
        let current = RwLock::new(Arc::new(Current::build(&config)?));
        let shared = Arc::new(Shared { current, counters: Counters::default(), open: AtomicUsize::new(0) });
        let mut builder = Builder::new_multi_thread();
        if config.workers > 0 {
            builder.worker_threads(config.workers.into());
        }
        let first = config.listen[0];
        let failed = |why| SignerStartError::Listen { address: first, why };
        let runtime = builder.thread_name("signer").enable_all().build().map_err(failed)?;
        let bind = |address| {
            let socket = std::net::TcpListener::bind(address)?;
            socket.set_nonblocking(true)?;
            let local = socket.local_addr()?;
            let _inside = runtime.enter();
            Ok((local, TcpListener::from_std(socket)?))
        };
        let bind = |address| bind(address).map_err(|why: io::Error| SignerStartError::Listen { address, why });
        let mut addresses = Vec::new();
        for address in &config.listen {
            let (local, listener) = bind(*address)?;
            addresses.push(local);
            runtime.spawn(accept(listener, shared.clone()));
        }
        let mut metrics = None;
        if let Some(address) = config.metrics {
            let (local, listener) = bind(address)?;
            metrics = Some(local);
            let shared = shared.clone();
            runtime.spawn(service::serve(listener, move || text(&shared)));
        }
        let start = fixed(&config);
        Ok(Self { file: file.to_owned(), shared, addresses, metrics, start, runtime: Some(runtime) })
    }

    /// Addresses for gateways, with the ports that they have got.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Address that serves the metrics, with the port that it has got.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Reads the configuration and its keys again, and goes on under it. Connections stay, with the new keys.
    ///
    /// # Errors
    /// When the configuration is wrong, or changes what stays the same; then everything stays as it was.
    pub fn reload(&self) -> Result<(), SignerStartError> {
        let config = config::load(&self.file)?;
        let (listen, metrics, workers) = fixed(&config);
        let settings = [
            ("listen", listen != self.start.0),
            ("metrics", metrics != self.start.1),
            ("workers", workers != self.start.2),
        ];
        if let Some((name, _)) = settings.into_iter().find(|(_, differs)| *differs) {
            return Err(SignerStartError::Fixed(name));
        }
        let next = Arc::new(Current::build(&config)?);
        *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// Keys and counters, as JSON.
    pub fn status(&self) -> Value {
        let Counters { signed, unknown_key, refused, gateways, not_admitted, over_limit, malformed } =
            &self.shared.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut keys: Vec<String> = self.shared.current().keys.keys().map(ToString::to_string).collect();
        keys.sort();
        json!({
            "keys": keys,
            "gateways": {
                "open": self.shared.open.load(Ordering::Relaxed),
                "accepted": get(gateways),
                "not_admitted": get(not_admitted),
                "over_limit": get(over_limit),
            },
            "signatures": {
                "signed": get(signed),
                "unknown_key": get(unknown_key),
                "refused": get(refused),
                "malformed": get(malformed),
            },
        })
    }
}

/// Reads and checks a configuration; returns the number of its keys.
///
/// # Errors
/// When the configuration is wrong.
pub fn check(file: &Path) -> Result<usize, SignerStartError> {
    Ok(Current::build(&config::load(file)?)?.keys.len())
}

/// The metrics, in the text format of OpenMetrics.
fn text(shared: &Shared) -> String {
    let Counters { signed, unknown_key, refused, gateways, not_admitted, over_limit, malformed } = &shared.counters;
    let mut page = String::new();
    let _ = write!(
        page,
        "# HELP tiderace_signer_gateways_open Connections of gateways.\n# TYPE tiderace_signer_gateways_open gauge\n"
    );
    let _ = writeln!(page, "tiderace_signer_gateways_open {}", shared.open.load(Ordering::Relaxed));
    type Series<'a> = &'a [(&'a str, &'a AtomicU64)];
    let families: [(&str, &str, Series<'_>); 2] = [
        (
            "tiderace_signer_gateways",
            "Connections, by what came of them",
            &[("accepted", gateways), ("not_admitted", not_admitted), ("over_limit", over_limit)],
        ),
        (
            "tiderace_signer_requests",
            "Requests for signatures, by outcome",
            &[("signed", signed), ("unknown_key", unknown_key), ("refused", refused), ("malformed", malformed)],
        ),
    ];
    for (name, help, samples) in families {
        let _ = write!(page, "# HELP {name} {help}.\n# TYPE {name} counter\n");
        for (result, count) in samples {
            let _ = writeln!(page, "{name}_total{{result=\"{result}\"}} {}", count.load(Ordering::Relaxed));
        }
    }
    page.push_str("# EOF\n");
    page
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, gateway)) => {
                let shared = shared.clone();
                tokio::spawn(async move { connection(stream, gateway, &shared).await });
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Place of a connection, given back when dropped.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn connection(stream: TcpStream, gateway: SocketAddr, shared: &Arc<Shared>) {
    let current = shared.current();
    let counters = &shared.counters;
    let is_full = shared.open.fetch_add(1, Ordering::Relaxed) >= current.connections;
    let _place = Place(&shared.open);
    if is_full {
        counters.over_limit.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("a gateway at {gateway} is refused: `connections` are {}", current.connections);
        return;
    }
    let _ = stream.set_nodelay(true);
    let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE / 3);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keep_alive);
    let why = match tokio::time::timeout(HANDSHAKE, current.tls.accept(stream)).await {
        Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(ALPN) => {
            counters.gateways.fetch_add(1, Ordering::Relaxed);
            tracing::info!("a gateway at {gateway} is connected");
            if let Err(error) = serve(stream, &current, shared).await {
                tracing::info!("a gateway at {gateway} is gone: {error}");
            }
            return;
        }
        Ok(Ok(_)) => "it speaks another protocol".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "its handshake takes too long".to_owned(),
    };
    counters.not_admitted.fetch_add(1, Ordering::Relaxed);
    tracing::warn!("a gateway at {gateway} is refused: {why}");
}

/// Answers the requests of a connection until the gateway closes it.
async fn serve(stream: TlsStream<TcpStream>, current: &Current, shared: &Arc<Shared>) -> io::Result<()> {
    let (reader, writer) = tokio::io::split(stream);
    let mut hello = Vec::new();
    Keys(current.keys.keys().copied().collect()).encode(&mut hello);
    // Bounded by the permits of requests: each answer has that of its request.
    let (answers, written) = mpsc::unbounded_channel();
    let permits = Arc::new(Semaphore::new(current.waiting));
    let writing = tokio::spawn(write(writer, hello, written));
    let read = read(reader, shared, &permits, &answers).await;
    drop(answers);
    if read.is_ok() {
        // What was asked before the gateway closed is answered.
        let _ = writing.await;
    } else {
        writing.abort();
    }
    read
}

/// Answers of a batch, and the permits of its requests.
type Answers = (Vec<u8>, tokio::sync::OwnedSemaphorePermit);

async fn read(
    mut reader: ReadHalf<TlsStream<TcpStream>>,
    shared: &Arc<Shared>,
    permits: &Arc<Semaphore>,
    answers: &mpsc::UnboundedSender<Answers>,
) -> io::Result<()> {
    let mut input = Vec::new();
    let most = BATCH.min(permits.available_permits());
    loop {
        if reader.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        let malformed = |error| {
            shared.counters.malformed.fetch_add(1, Ordering::Relaxed);
            io::Error::other(error)
        };
        let (mut taken, mut batch) = (0, Vec::new());
        loop {
            let frame = next_frame(&input[taken..], MAX_FRAME).map_err(malformed)?;
            if let Some((content, len)) = frame {
                batch.push(Request::decode(content).map_err(malformed)?);
                taken += len;
            }
            let is_last = frame.is_none();
            if batch.len() == most || is_last && !batch.is_empty() {
                let requests = std::mem::take(&mut batch);
                let count = u32::try_from(requests.len()).unwrap_or(u32::MAX);
                let Ok(permit) = permits.clone().acquire_many_owned(count).await else { return Ok(()) };
                let (shared, answers) = (shared.clone(), answers.clone());
                tokio::spawn(async move {
                    let out = sign_all(&requests, &shared);
                    // The connection may be gone.
                    let _ = answers.send((out, permit));
                });
            }
            if is_last {
                break;
            }
        }
        input.drain(..taken);
    }
}

fn sign_all(requests: &[Request], shared: &Shared) -> Vec<u8> {
    let (current, counters) = (shared.current(), &shared.counters);
    let mut out = Vec::new();
    for request in requests {
        let answer = answer(request, &current);
        let counter = match answer {
            Answer::Signature(_) => &counters.signed,
            Answer::UnknownKey => &counters.unknown_key,
            Answer::Refused => &counters.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        answer.encode(request.number, &mut out);
    }
    out
}

fn answer(request: &Request, current: &Current) -> Answer {
    let Some(key) = current.keys.get(&request.key) else { return Answer::UnknownKey };
    if !is_handshake(&request.message) {
        return Answer::Refused;
    }
    let signer = key.key.choose_scheme(&[SignatureScheme::from(request.scheme)]);
    let signature = signer.and_then(|signer| signer.sign(&request.message).ok());
    signature.map_or(Answer::Refused, Answer::Signature)
}

/// Writes what is ready together.
async fn write(
    mut writer: WriteHalf<TlsStream<TcpStream>>,
    hello: Vec<u8>,
    mut answers: mpsc::UnboundedReceiver<Answers>,
) -> io::Result<()> {
    writer.write_all(&hello).await?;
    writer.flush().await?;
    while let Some((mut out, permit)) = answers.recv().await {
        let mut permits = vec![permit];
        while let Ok((more, permit)) = answers.try_recv() {
            out.extend(more);
            permits.push(permit);
        }
        writer.write_all(&out).await?;
        writer.flush().await?;
    }
    writer.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_handshakes_with_a_known_key_are_signed() {
        let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let certified = CertifiedKey::from_der(vec![made.cert.der().clone()], key, provider()).unwrap();
        let id = key_id(made.cert.der()).unwrap();
        let own = Arc::new(rustls::sign::SingleCertAndKey::from(certified.clone()));
        let tls =
            ServerConfig::builder_with_provider(provider().clone()).with_safe_default_protocol_versions().unwrap();
        let tls = TlsAcceptor::from(Arc::new(tls.with_no_client_auth().with_cert_resolver(own)));
        let keys = HashMap::from([(id, Arc::new(certified))]);
        let current = Current { keys, tls, connections: 1, waiting: 1 };
        let message = [&[b' '; 64][..], b"TLS 1.3, server CertificateVerify\0", &[7; 32]].concat();
        let good = Request { number: 1, key: id, scheme: SignatureScheme::ECDSA_NISTP256_SHA256.into(), message };
        let Answer::Signature(signature) = answer(&good, &current) else { panic!("not signed") };
        let verified = {
            use x509_parser::prelude::{FromDer, X509Certificate};
            let (_, parsed) = X509Certificate::from_der(made.cert.der()).unwrap();
            let point = parsed.public_key().subject_public_key.data.to_vec();
            aws_lc_rs::signature::UnparsedPublicKey::new(&aws_lc_rs::signature::ECDSA_P256_SHA256_ASN1, point)
                .verify(&good.message, &signature)
        };
        assert!(verified.is_ok());
        let other_key = Request { key: KeyId::of(b"other"), ..good.clone() };
        assert_eq!(answer(&other_key, &current), Answer::UnknownKey);
        for refused in [
            Request { message: b"a text".to_vec(), ..good.clone() },
            Request { scheme: SignatureScheme::RSA_PSS_SHA256.into(), ..good },
        ] {
            assert_eq!(answer(&refused, &current), Answer::Refused);
        }
    }
}
