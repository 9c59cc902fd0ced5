//! A signer: it has the private keys, and signs the handshakes of gateways that show a certificate.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
};

use super::{
    config::{self, Resolved},
    counters::Counters,
    error::SignerStartError,
    requests::serve,
    state::{Current, Shared},
};
use crate::{metrics::service, remote_signer::protocol::ALPN};

/// Time for a gateway's TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A silent gateway is asked whether it is there after this time.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

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
        let counters = Counters::default();
        let current = RwLock::new(Arc::new(Current::build(&config, None, &counters.logins)?));
        let shared = Arc::new(Shared { current, counters });
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
            runtime.spawn(service::serve(listener, move || shared.counters.text()));
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
        let next = Arc::new(Current::build(&config, Some(&self.shared.current()), &self.shared.counters.logins)?);
        *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// Keys and counters, as JSON.
    pub fn status(&self) -> Value {
        let mut keys: Vec<String> = self.shared.current().keys.keys().map(ToString::to_string).collect();
        keys.sort();
        self.shared.counters.status(&keys)
    }
}

/// Reads and checks a configuration; returns the number of its keys.
///
/// # Errors
/// When the configuration is wrong.
pub fn check(file: &Path) -> Result<usize, SignerStartError> {
    Ok(Current::build(&config::load(file)?, None, &Arc::default())?.keys.len())
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
    let is_full = counters.open.fetch_add(1, Ordering::Relaxed) >= current.connections;
    let _place = Place(&counters.open);
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
