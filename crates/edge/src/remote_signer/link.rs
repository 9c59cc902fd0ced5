//! Connection of a gateway to its signer: one at a time, on a thread of its own, made again when it breaks. Requests that were under way
//! are sent again on the next one, since a signature may be made twice.

use std::{
    collections::HashMap,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use rustls::{ClientConfig, pki_types::ServerName, sign::SingleCertAndKey};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    SignerError, SignerLinkError,
    protocol::{ALPN, Answer, KeyId, Keys, MAX_FRAME, MAX_KEYS_FRAME, Request, next_frame},
};
use crate::{
    certificate::{self, provider},
    metrics::{LinkState, SignatureMetrics},
    trust::{Trust, store},
};

/// First pause after no address has given a connection; it doubles up to the last one. Requests fail at once meanwhile.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// Time for a connection with its TLS, at least.
const CONNECT: Duration = Duration::from_secs(2);
/// Requests that are taken together.
const BATCH: usize = 64;
/// A silent peer is asked whether it is there after this time.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Times the time limit without a byte, after which a signer is taken for gone.
const SILENCE: u32 = 3;

/// Configuration of a link: where the signers are, and the files by which both sides know each other.
pub(crate) struct LinkConfig<'a> {
    /// Host and port of each signer, with the name in its certificate.
    pub(crate) signers: Vec<(&'a str, ServerName<'static>)>,
    /// File with the roots of the signers' certificates.
    pub(crate) roots: &'a str,
    /// File with the certificate chain of this side.
    pub(crate) certificate: &'a Path,
    pub(crate) key: &'a Path,
    pub(crate) time_limit: Duration,
    /// Signatures under way at a time.
    pub(crate) waiting: usize,
}

/// Settings of the connection, with its files read.
#[derive(Clone)]
struct Settings {
    addresses: Vec<String>,
    names: Vec<ServerName<'static>>,
    tls: Arc<ClientConfig>,
    time_limit: Duration,
}

impl Settings {
    fn read(config: &LinkConfig<'_>) -> Result<Self, SignerLinkError> {
        let own = certificate::read(config.certificate, config.key)?;
        let Trust::Roots(pem) = Trust::read(config.roots)? else { return Err(SignerLinkError::NoRoots) };
        let builder = ClientConfig::builder_with_provider(provider().clone());
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13])?;
        let roots = store(&pem).map_err(|fault| fault.within(config.roots))?;
        let own = Arc::new(SingleCertAndKey::from(own));
        let mut tls = builder.with_root_certificates(roots).with_client_cert_resolver(own);
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let (addresses, names) =
            config.signers.iter().map(|(address, name)| ((*address).to_owned(), name.clone())).unzip();
        Ok(Self { addresses, names, tls: Arc::new(tls), time_limit: config.time_limit })
    }
}

/// Request on its way.
struct Job {
    key: KeyId,
    scheme: u16,
    message: Vec<u8>,
    reply: SyncSender<Result<Vec<u8>, SignerError>>,
    due: Instant,
}

impl Job {
    fn answer(self, result: Result<Vec<u8>, SignerError>) {
        // The handshake may be gone.
        let _ = self.reply.send(result);
    }
}

/// Connection to a signer. With the last holder it is closed.
#[derive(Debug)]
pub(crate) struct Link {
    jobs: mpsc::UnboundedSender<Job>,
    time_limit: Duration,
    /// Signatures under way, and how many may be.
    open: AtomicUsize,
    most: usize,
    metrics: SignatureMetrics,
    state: Arc<LinkState>,
}

impl Link {
    /// Begins to connect.
    ///
    /// # Errors
    /// When a file cannot be used, or no thread can be started.
    pub(crate) fn start(config: &LinkConfig<'_>, metrics: &SignatureMetrics) -> Result<Arc<Self>, SignerLinkError> {
        let settings = Settings::read(config)?;
        let (jobs, received) = mpsc::unbounded_channel();
        let time_limit = settings.time_limit;
        let state = metrics.link_state();
        let of_thread = Connection { settings, state: state.clone(), told: None };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(SignerLinkError::Thread)?;
        let thread = std::thread::Builder::new().name("signer".to_owned());
        thread.spawn(move || runtime.block_on(of_thread.run(received))).map_err(SignerLinkError::Thread)?;
        let (open, most, metrics) = (AtomicUsize::new(0), config.waiting, metrics.clone());
        Ok(Arc::new(Self { jobs, time_limit, open, most, metrics, state }))
    }

    pub(crate) fn metrics(&self) -> &SignatureMetrics {
        &self.metrics
    }

    /// Notes whether new handshakes use the link, which is the one that `signer_up` is about.
    pub(crate) fn set_in_use(&self, is_in_use: bool) {
        self.state.set_in_use(is_in_use);
    }

    /// Asks for a signature, and blocks until it is there.
    ///
    /// # Errors
    /// When the signer gives none, or not within the time limit.
    pub(super) fn sign(&self, key: KeyId, scheme: u16, message: &[u8]) -> Result<Vec<u8>, SignerError> {
        let _place = Place::take(&self.open, self.most)?;
        let (reply, answer) = sync_channel(1);
        let due = Instant::now() + self.time_limit;
        let job = Job { key, scheme, message: message.to_vec(), reply, due };
        self.jobs.send(job).map_err(|_| SignerError::TimeLimit)?;
        answer.recv_timeout(self.time_limit).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected => Err(SignerError::TimeLimit),
        })
    }
}

/// Place among the signatures under way.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(open: &'a AtomicUsize, most: usize) -> Result<Self, SignerError> {
        let place = Self(open);
        // Dropped, a place that is too many is given back, too.
        if open.fetch_add(1, Ordering::Relaxed) >= most { Err(SignerError::Busy) } else { Ok(place) }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Keys of the signers at all addresses, or why there are none.
///
/// # Errors
/// When a file cannot be used.
pub(crate) async fn probe(
    config: &LinkConfig<'_>,
    patience: Duration,
) -> Result<Vec<(String, Result<Vec<KeyId>, SignerError>)>, SignerLinkError> {
    let settings = Settings::read(config)?;
    let mut all = Vec::new();
    for at in 0..settings.addresses.len() {
        let opened = open(&settings, at, patience).await;
        all.push((settings.addresses[at].clone(), opened.map(|(_, keys)| keys.0)));
    }
    Ok(all)
}

/// Opens a connection, and takes the keys that the signer has.
async fn open(settings: &Settings, at: usize, patience: Duration) -> Result<(TlsStream<TcpStream>, Keys), SignerError> {
    let address = &settings.addresses[at];
    let opening = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE / 3);
        SockRef::from(&stream).set_tcp_keepalive(&keep_alive)?;
        let connector = TlsConnector::from(settings.tls.clone());
        let mut stream = connector.connect(settings.names[at].clone(), stream).await?;
        // A certificate that is not accepted is known with the first read.
        let mut input = Vec::new();
        loop {
            if stream.read_buf(&mut input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let frame = next_frame(&input, MAX_KEYS_FRAME).map_err(io::Error::other)?;
            if let Some((content, len)) = frame {
                let keys = Keys::decode(content).map_err(io::Error::other)?;
                // It says nothing more until it is asked.
                return if len == input.len() { Ok((stream, keys)) } else { Err(io::Error::other("more than keys")) };
            }
        }
    };
    let opened = timeout(patience, opening).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    opened.map_err(|error| cause(address, error))
}

/// Cause of a failed connection.
fn cause(address: &str, error: io::Error) -> SignerError {
    let address = address.to_owned();
    let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(why)) => SignerError::NotTrusted { address, why: why.to_string() },
        Some(rustls::Error::AlertReceived(alert)) if *alert == rustls::AlertDescription::NoApplicationProtocol => {
            SignerError::Protocol { address, why: "it speaks another protocol".to_owned() }
        }
        Some(rustls::Error::AlertReceived(alert)) => SignerError::NotAdmitted { address, why: format!("{alert:?}") },
        Some(error) => SignerError::Protocol { address, why: error.to_string() },
        // The end of a connection has no words of its own.
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            let why = Arc::new(io::Error::new(error.kind(), "the connection was closed"));
            SignerError::Unreachable { address, why }
        }
        None if error.get_ref().is_some() => SignerError::Protocol { address, why: error.to_string() },
        None => SignerError::Unreachable { address, why: Arc::new(error) },
    }
}

/// Task that keeps the connection.
struct Connection {
    settings: Settings,
    state: Arc<LinkState>,
    /// Error that the log has, so that each is there once.
    told: Option<String>,
}

impl Connection {
    /// Works until nobody asks any more.
    async fn run(mut self, mut jobs: mpsc::UnboundedReceiver<Job>) {
        let mut waiting: Vec<Job> = Vec::new();
        let (mut at, mut pause) = (0, FIRST_PAUSE);
        // Addresses in a row that gave no connection.
        let mut failures = 0;
        loop {
            let patience = self.settings.time_limit.max(CONNECT);
            let error = match open(&self.settings, at, patience).await {
                Ok((stream, _)) => {
                    (pause, failures) = (FIRST_PAUSE, 0);
                    self.tell_up(at);
                    let Some((error, unanswered)) =
                        self.serve(at, stream, std::mem::take(&mut waiting), &mut jobs).await
                    else {
                        return;
                    };
                    waiting = unanswered;
                    error
                }
                Err(error) => {
                    failures += 1;
                    error
                }
            };
            self.tell(&error);
            at = (at + 1) % self.settings.addresses.len();
            if failures < self.settings.addresses.len() {
                continue;
            }
            waiting.drain(..).for_each(|job| job.answer(Err(error.clone())));
            if !refuse_for(pause, &error, &mut jobs).await {
                return;
            }
            (pause, failures) = ((pause * 2).min(LAST_PAUSE), 0);
        }
    }

    fn tell_up(&mut self, at: usize) {
        self.state.set_up(true);
        let address = &self.settings.addresses[at];
        if self.told.take().is_some() {
            tracing::warn!("the signer at {address} is there again");
        } else {
            tracing::info!("connected to the signer at {address}");
        }
    }

    fn tell(&mut self, error: &SignerError) {
        self.state.set_up(false);
        let text = error.to_string();
        if self.told.as_ref() != Some(&text) {
            tracing::error!("{text}\nhint: {}", error.hint());
            self.told = Some(text);
        }
    }

    /// Carries requests and answers until the connection breaks: why, and the requests without an answer. `None` when nobody asks any
    /// more.
    async fn serve(
        &self,
        at: usize,
        stream: TlsStream<TcpStream>,
        before: Vec<Job>,
        jobs: &mut mpsc::UnboundedReceiver<Job>,
    ) -> Option<(SignerError, Vec<Job>)> {
        let (reader, writer) = tokio::io::split(stream);
        let (out, batches) = mpsc::unbounded_channel();
        let writing = tokio::spawn(write(writer, batches));
        let mut pending = Pending { all: HashMap::new(), number: 0, silent_since: None };
        let ended = self.carry(reader, &out, before, jobs, &mut pending).await;
        writing.abort();
        let unanswered = pending.all.into_values().collect();
        ended.map(|error| (cause(&self.settings.addresses[at], error), unanswered))
    }

    async fn carry(
        &self,
        mut reader: ReadHalf<TlsStream<TcpStream>>,
        out: &mpsc::UnboundedSender<Vec<u8>>,
        before: Vec<Job>,
        jobs: &mut mpsc::UnboundedReceiver<Job>,
        pending: &mut Pending,
    ) -> Option<io::Error> {
        let (mut input, mut batch) = (Vec::new(), before);
        let mut look = tokio::time::interval(self.settings.time_limit / 2);
        loop {
            if !batch.is_empty() {
                // The writer is gone when the connection is, which the reader notices.
                let _ = out.send(pending.encode(&mut batch));
            }
            tokio::select! {
                count = jobs.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return None;
                    }
                }
                read = reader.read_buf(&mut input) => {
                    match read {
                        Ok(0) => return Some(io::ErrorKind::ConnectionReset.into()),
                        Ok(_) => {}
                        Err(error) => return Some(error),
                    }
                    if let Err(error) = pending.settle(&mut input) {
                        return Some(error);
                    }
                }
                _ = look.tick(), if !pending.all.is_empty() || pending.silent_since.is_some() => {
                    pending.forget_overdue();
                    if pending.silent_since.is_some_and(|since| since.elapsed() > self.settings.time_limit * SILENCE) {
                        return Some(io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
    }
}

/// Writes batches, each at once.
async fn write(mut writer: WriteHalf<TlsStream<TcpStream>>, mut batches: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(mut batch) = batches.recv().await {
        while let Ok(more) = batches.try_recv() {
            batch.extend(more);
        }
        if writer.write_all(&batch).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
}

/// Requests that wait for their answers.
struct Pending {
    all: HashMap<u32, Job>,
    number: u32,
    /// Time of the first request since the signer has said something.
    silent_since: Option<Instant>,
}

impl Pending {
    fn encode(&mut self, batch: &mut Vec<Job>) -> Vec<u8> {
        let mut out = Vec::new();
        for job in batch.drain(..) {
            if job.due <= Instant::now() {
                continue;
            }
            self.number = self.number.wrapping_add(1);
            let Job { key, scheme, message, .. } = &job;
            Request { number: self.number, key: *key, scheme: *scheme, message: message.clone() }.encode(&mut out);
            self.all.insert(self.number, job);
            self.silent_since.get_or_insert_with(Instant::now);
        }
        out
    }

    /// Takes whole answers from the front of `input`.
    fn settle(&mut self, input: &mut Vec<u8>) -> io::Result<()> {
        self.silent_since = None;
        let mut taken = 0;
        while let Some((content, len)) = next_frame(&input[taken..], MAX_FRAME).map_err(io::Error::other)? {
            let (number, answer) = Answer::decode(content).map_err(io::Error::other)?;
            taken += len;
            // One that comes too late is nobody's.
            let Some(job) = self.all.remove(&number) else { continue };
            job.answer(match answer {
                Answer::Signature(signature) => Ok(signature),
                Answer::UnknownKey => Err(SignerError::UnknownKey),
                Answer::Refused => Err(SignerError::Refused),
                Answer::Failed => Err(SignerError::Failed),
            });
        }
        input.drain(..taken);
        Ok(())
    }

    fn forget_overdue(&mut self) {
        let now = Instant::now();
        self.all.retain(|_, job| job.due > now);
    }
}

/// Answers requests with an error for so long. `false` when nobody asks any more.
async fn refuse_for(pause: Duration, error: &SignerError, jobs: &mut mpsc::UnboundedReceiver<Job>) -> bool {
    let until = tokio::time::Instant::now() + pause;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(until) => return true,
            job = jobs.recv() => match job {
                Some(job) => job.answer(Err(error.clone())),
                None => return false,
            }
        }
    }
}
