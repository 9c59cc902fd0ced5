//! The gateway as a whole: starts, reloads, drains.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use sd_notify::NotifyState;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};

use crate::{
    acme, admin,
    capture::{CaptureRequest, CaptureTarget},
    config::{self, Config, ConfigError, address},
    ending::Ending,
    generation::{Generation, PersistentState, Shared},
    keys::KeysError,
    listen::{Listener, PlainListener, check_unshared},
    memory,
    metrics::{CertificateLabel, FormLabels, LimitLabel, Metrics, ReasonLabel, SourceLabel},
    observe::Logs,
    services::Services,
    setup::SetupError,
    tls,
    upgrade::{HandOver, Siblings, TakenOver, UpgradeError, describe},
    worker::Workers,
};

/// Interval between checks of certificates and the ring of keys for changes.
const LOOK: Duration = Duration::from_secs(2);

/// The gateway cannot start, or cannot take a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The configuration is not valid.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// An address cannot be served.
    #[error("cannot listen at {address}: {why}")]
    Listen {
        /// The address.
        address: String,
        /// Error of the system.
        #[source]
        why: io::Error,
    },
    /// The threads of the workers cannot be started.
    #[error("{0}")]
    Workers(#[source] io::Error),
    /// Keys of this process cannot be made.
    #[error("{0}")]
    Keys(#[from] KeysError),
    /// The admin socket cannot be opened.
    #[error("cannot open the admin socket {}: {source}", path.display())]
    AdminSocket {
        /// The socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The task that read the configuration did not end.
    #[error("{0}")]
    Interrupted(#[source] tokio::task::JoinError),
    /// Another part of the configuration cannot be set up.
    #[error("{0}")]
    Setup(#[from] SetupError),
    /// Connection IDs would have another form, and nobody would find those that there are.
    #[error("the connection IDs of `[load-balancer]` stay what they were at the start")]
    Routable,
    /// The process cannot take over from another one, or has handed over itself.
    #[error("{0}")]
    Upgrade(#[from] UpgradeError),
}

impl ProcessError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Config(error) => error.hint.clone(),
            Self::Listen { why, .. } => match why.kind() {
                io::ErrorKind::PermissionDenied => Some(
                    "ports below 1024 need a privilege: AmbientCapabilities=CAP_NET_BIND_SERVICE with systemd"
                        .to_owned(),
                ),
                io::ErrorKind::AddrInUse => Some(
                    "another program serves there; `tiderace edge reload` gives a gateway that runs a new configuration".to_owned(),
                ),
                _ => None,
            },
            Self::Upgrade(error) => error.hint(),
            Self::Routable => {
                Some("drain this machine at the load balancers, restart its service, and let it serve again".to_owned())
            }
            Self::Workers(_) | Self::Keys(_) | Self::AdminSocket { .. } | Self::Interrupted(_) | Self::Setup(_) => None,
        }
    }
}

/// A gateway that runs.
pub struct Process {
    pub(crate) file: PathBuf,
    /// The program that runs.
    pub(crate) program: PathBuf,
    /// Number of processes that have served, each an upgrade of the one before.
    pub(crate) number: u64,
    pub(crate) shared: Arc<Shared>,
    listeners: Mutex<HashMap<SocketAddr, Listener>>,
    /// Addresses of plain HTTP, by how they are written in the configuration.
    plain: Mutex<HashMap<SocketAddr, PlainListener>>,
    /// Listeners that are not configured any more, read for older processes that have connections there.
    pub(crate) retained: Mutex<HashMap<SocketAddr, Listener>>,
    pub(crate) services: Services,
    pub(crate) siblings: Siblings,
    pub(crate) handed_over: watch::Sender<HandOver>,
    pub(crate) reloading: tokio::sync::Mutex<()>,
    started: Instant,
    /// The last to go but for `_written`: everything above has tasks on them.
    pub(crate) workers: Workers,
    _written: Written,
}

/// Waits, when it is dropped, until the lines of all requests are in the access log.
struct Written(Logs);

impl Drop for Written {
    fn drop(&mut self) {
        self.0.sync();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // What the workers still have in hand is cut off by their end.
        self.shared.cause.note(Ending::Drained);
    }
}

impl Process {
    /// Starts the gateway of the configuration in `file`. Must be called within a tokio runtime, which then serves the admin
    /// socket and the metrics.
    ///
    /// # Errors
    /// When the configuration is wrong, or something that it asks for does not work.
    pub fn start(file: &Path) -> Result<Arc<Self>, ProcessError> {
        let this = Self::build(file, None)?;
        this.services.serve(&this);
        notify(&[NotifyState::Ready]);
        Ok(this)
    }

    /// Makes everything, on the sockets of another process where it offers them. These accept nothing before
    /// [`commence`](Self::commence), and what is used of them is taken out of `taken`.
    pub(crate) fn build(file: &Path, mut taken: Option<&mut TakenOver>) -> Result<Arc<Self>, ProcessError> {
        // The program may have another place when it is to be started again.
        let program = std::env::current_exe().unwrap_or_default();
        let config = config::load(file)?;
        for warning in config::certificates(&config) {
            tracing::warn!("{}", warning.message);
        }
        let workers = Workers::start(taken.as_ref().map_or(config.workers, |taken| taken.workers));
        let workers = workers.map_err(ProcessError::Workers)?;
        let metrics = Arc::new(Metrics::default());
        let memory = config.limits.memory.0;
        let routable = config.load_balancer.routable().map_err(SetupError::from)?;
        if let Some(taken) = &taken
            && taken.routable != describe(routable.as_ref())
        {
            return Err(ProcessError::Routable);
        }
        let mut persistent = match &taken {
            Some(taken) => PersistentState::with(taken.ring.clone(), taken.id_generation, memory),
            None => PersistentState::new(memory),
        }?;
        persistent.routable = routable;
        let (number, configuration) = taken.as_ref().map_or((1, 1), |taken| (taken.process, taken.configuration));
        metrics.upgrade.process.set(number.cast_signed());
        let first = Generation::build(config, configuration, None, &persistent, &workers, &metrics)?;
        let config = first.config.clone();
        let shared = Arc::new(Shared::new(first, metrics, persistent));
        tokio::spawn(memory::watch(Arc::downgrade(&shared.memory), shared.admission.clone(), shared.metrics.clone()));
        let mut listeners = HashMap::new();
        let mut plain = HashMap::new();
        if let Some(taken) = &mut taken {
            let failed = |address: SocketAddr| move |why| ProcessError::Listen { address: address.to_string(), why };
            let current = shared.current();
            for address in addresses(&config) {
                if let Some(sockets) = taken.addresses.remove(&address) {
                    let listener = Listener::take_over(sockets, &current, &shared, &workers);
                    listeners.insert(address, listener.map_err(failed(address))?);
                }
            }
            let port = redirected_port(&config, &listeners);
            for address in plain_addresses(&config) {
                if let Some(socket) = taken.plain.remove(&address) {
                    let listener = PlainListener::take_over(socket, port, &shared);
                    plain.insert(address, listener.map_err(failed(address))?);
                }
            }
        }
        let opened = open(&config, &listeners, &shared.current(), &shared, &workers)?;
        listeners.extend(opened);
        let opened = open_plain(&config, &plain, &listeners, &shared)?;
        plain.extend(opened);
        let services = Services::open(&config, taken)?;
        let logs = shared.persistent.logs.clone();
        let this = Arc::new(Self {
            file: file.to_owned(),
            program,
            number,
            shared,
            listeners: Mutex::new(listeners),
            retained: Mutex::default(),
            plain: Mutex::new(plain),
            services,
            siblings: Siblings::default(),
            handed_over: watch::Sender::new(HandOver::Serving),
            reloading: tokio::sync::Mutex::new(()),
            started: Instant::now(),
            workers,
            _written: Written(logs),
        });
        this.note_listeners(&this.listeners(), &this.plain());
        Ok(this)
    }

    /// Serves on the sockets that were taken over: the process before has stopped.
    pub(crate) fn commence(self: &Arc<Self>) {
        self.tell_siblings();
        let generation = self.shared.current();
        self.listeners().values().for_each(|listener| listener.set_accepting(true, &generation));
        self.plain().values().for_each(|listener| listener.set_accepting(true));
        self.services.serve(self);
        self.siblings.follow(self);
    }

    /// Tells the proxies where this gateway listens.
    fn note_listeners(&self, listeners: &HashMap<SocketAddr, Listener>, plain: &HashMap<SocketAddr, PlainListener>) {
        let addresses = listeners.values().map(Listener::local).chain(plain.values().map(PlainListener::local));
        self.shared.persistent.listeners.set(addresses.chain(self.metrics_address()).collect());
    }

    /// Reads the configuration again and goes on under it; returns its number. What goes on does not notice. When anything is
    /// wrong, everything stays as it was.
    ///
    /// The number of workers, the admin socket and the address of the figures stay what they were at the start.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn reload(&self) -> Result<u64, ProcessError> {
        let result = self.try_reload().await;
        let reason = if result.is_ok() { "completed" } else { "refused" };
        self.shared.metrics.reloads.get_or_create(&ReasonLabel { reason }).inc();
        result
    }

    async fn try_reload(&self) -> Result<u64, ProcessError> {
        let _one_at_a_time = self.reloading.lock().await;
        let file = self.file.clone();
        let config =
            tokio::task::spawn_blocking(move || config::load(&file)).await.map_err(ProcessError::Interrupted)??;
        self.apply(config)
    }

    fn apply(&self, config: Config) -> Result<u64, ProcessError> {
        if self.has_handed_over() {
            return Err(UpgradeError::HandedOver.into());
        }
        let before = self.shared.current();
        let persistent = &self.shared.persistent;
        if config.load_balancer.routable().map_err(SetupError::from)? != persistent.routable {
            return Err(ProcessError::Routable);
        }
        let next = Generation::build(
            config,
            before.number + 1,
            Some(&before),
            persistent,
            &self.workers,
            &self.shared.metrics,
        )?;
        // What can fail comes first: addresses are opened before anything is changed.
        let (mut listeners, mut plain) = (self.listeners(), self.plain());
        let opened = open(&next.config, &listeners, &next, &self.shared, &self.workers)
            .and_then(|opened| Ok((open_plain(&next.config, &plain, &opened, &self.shared)?, opened)));
        let (opened_plain, opened) = opened.inspect_err(|_| self.note_listeners(&listeners, &plain))?;
        let next = self.shared.replace(next);
        listeners.extend(opened);
        plain.extend(opened_plain);
        let redirecting = plain_addresses(&next.config);
        plain.retain(|address, _| redirecting.contains(address));
        let wanted: Vec<SocketAddr> = addresses(&next.config);
        for (address, listener) in std::mem::take(&mut *listeners) {
            if wanted.contains(&address) {
                listener.adopt(&next);
                listeners.insert(address, listener);
                continue;
            }
            listener.drain(&next);
            if self.siblings.need(&address) {
                self.retained().insert(address, listener);
            }
        }
        self.note_listeners(&listeners, &plain);
        tracing::info!("configuration {} is in use", next.number);
        Ok(next.number)
    }

    /// The addresses that are served, with the ports that they have got.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let mut all: Vec<SocketAddr> = self.listeners().values().map(Listener::local).collect();
        all.sort();
        all
    }

    /// The addresses of plain HTTP that redirect, with the ports that they have got.
    pub fn redirecting(&self) -> Vec<SocketAddr> {
        let mut all: Vec<SocketAddr> = self.plain().values().map(PlainListener::local).collect();
        all.sort();
        all
    }

    /// The records to publish in DNS so that clients come over HTTP/3 at once (RFC 9460), for the names in the routes.
    pub fn https_records(&self) -> Vec<String> {
        let generation = self.shared.current();
        let ports: Vec<u16> = self.addresses().iter().map(SocketAddr::port).collect();
        https_records(&generation.config, &ports)
    }

    /// Status of the gateway, as JSON.
    pub fn status(&self) -> Value {
        let generation = self.shared.current();
        let back_ends: Vec<Value> = generation
            .back_ends()
            .iter()
            .map(|back_end| {
                json!({
                    "to": back_end.name(),
                    "well": back_end.is_well(),
                    "requests": back_end.in_flight(),
                    "protocol": back_end.protocol(),
                    "tls": back_end.is_tls(),
                })
            })
            .collect();
        let certificates: Vec<Value> = generation
            .tls
            .ends
            .iter()
            .map(|(certificate, end)| {
                let days = (*end - crate::keys::now().cast_signed()) as f64 / 86_400.0;
                json!({"certificate": certificate, "days": (days * 10.0).round() / 10.0})
            })
            .collect();
        json!({
            "generation": generation.number,
            "process": self.number,
            "processes": self.siblings.to_json()
                .chain([json!({
                    "process": self.number,
                    "pid": std::process::id(),
                    "serving": !self.has_handed_over(),
                    "connections": self.open_connections(),
                })])
                .collect::<Vec<_>>(),
            "config": self.file.display().to_string(),
            "uptime_s": self.started.elapsed().as_secs(),
            "listen": self.addresses().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "metrics": self.metrics_address().map(|address| address.to_string()),
            "redirect_from": self.redirecting().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "workers": self.workers.count(),
            "connections": self.shared.admission.total(),
            "version": env!("CARGO_PKG_VERSION"),
            "requests": self.shared.metrics.requests.open(),
            "memory": {"held": self.shared.memory.process().held(), "limit": self.shared.memory.process().limit()},
            "certificates": certificates,
            "back_ends": back_ends,
            // Numbers and times, and no secret.
            "keys": self.shared.persistent.ring.keys().iter()
                .map(|key| json!({"id": key.id, "from": key.from, "until": key.until}))
                .collect::<Vec<_>>(),
        })
    }

    /// The QUIC connections that there are, as JSON.
    pub fn connections(&self) -> Value {
        self.shared.persistent.captures.list()
    }

    /// Captures what the connections of a client (`client`), or the one with an ID (`cid`), do for so many `seconds`, or until
    /// `stop` is ready; gives what came of it as JSON, with `error` and `hint` when nothing did.
    async fn capture(&self, order: &Value, stop: impl Future<Output = ()>) -> Value {
        let text = |name: &str| order[name].as_str();
        let who = match (text("client"), text("cid")) {
            (Some(client), None) => CaptureTarget::client(client),
            (None, Some(id)) => CaptureTarget::id(id),
            _ => Err("expected either a client or a connection ID".to_owned()),
        };
        let seconds = order["seconds"].as_f64().filter(|seconds| *seconds > 0.0);
        let time = Duration::try_from_secs_f64(seconds.unwrap_or(10.0)).unwrap_or(Duration::MAX);
        let config = self.shared.current().config.capture.clone();
        let done = match who {
            Err(wrong) => Err((wrong, "")),
            Ok(who) => self.shared.persistent.captures.run(&config, CaptureRequest { who, time }, stop).await,
        };
        done.unwrap_or_else(|(error, hint)| json!({"error": error, "hint": (!hint.is_empty()).then_some(hint)}))
    }

    /// Samples of connections, by policy and by whether they got it, for a comparison of the two.
    pub fn arms(&self) -> Value {
        json!({"arms": self.shared.arms.to_json()})
    }

    /// The metrics, which outlive the gateway: its books can be looked at when everything has ended.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.shared.metrics.clone()
    }

    /// The figures, in Prometheus' text format.
    pub fn figures(&self) -> String {
        let metrics = &self.shared.metrics;
        self.shared.fallbacks.count(Instant::now(), &metrics.fallbacks);
        let mut sum = tiderace::transport::EndpointStats::default();
        for listener in self.listeners().values() {
            sum += listener.endpoint().stats();
        }
        let counts = [
            ("dropped", sum.dropped),
            ("version_negotiations", sum.version_negotiations),
            ("retries", sum.retries),
            ("resets", sum.resets),
            ("refused", sum.refused),
            ("overloaded", sum.overloaded),
            ("forwarded", sum.forwarded),
            ("connections", sum.connections),
            ("tokens_invalid", sum.tokens_invalid),
            ("tokens_unjudged", sum.tokens_unjudged),
            ("refused_for_memory", sum.refused_for_memory),
            ("closed_over_budget", sum.closed_over_budget),
            ("closed_for_process", sum.closed_for_process),
        ];
        self.count_siblings();
        for (reason, count) in counts {
            metrics.quic.endpoint.get_or_create(&ReasonLabel { reason }).set(count as f64);
        }
        let answers = &self.shared.persistent.strikes.answers;
        for (reason, count) in [("first", &answers.first), ("again", &answers.again), ("none", &answers.none)] {
            let count = count.load(std::sync::atomic::Ordering::Relaxed);
            metrics.quic.early_data_register.get_or_create(&ReasonLabel { reason }).set(count as f64);
        }
        let compression = &self.shared.compression;
        for (direction, volume) in [("in", &compression.received), ("out", &compression.sent)] {
            for (form, bytes) in [("plain", volume.plain()), ("compressed", volume.compressed())] {
                metrics.field_bytes.get_or_create(&FormLabels { direction, form }).set(bytes as f64);
            }
        }
        let files = &self.shared.persistent.files;
        for (source, bytes) in [("memory", &files.sources.memory), ("system", &files.sources.system)] {
            let bytes = bytes.load(std::sync::atomic::Ordering::Relaxed);
            metrics.file_bytes.get_or_create(&SourceLabel { source }).set(bytes as f64);
        }
        metrics.file_memory.set(files.held() as f64);
        let memory = self.shared.memory.process();
        for (reason, bytes) in [("held", memory.held()), ("limit", memory.limit())] {
            metrics.memory.bytes.get_or_create(&ReasonLabel { reason }).set(bytes as f64);
        }
        metrics.process.refresh();
        let generation = self.shared.current();
        metrics.certificate_days.clear();
        for (certificate, end) in &generation.tls.ends {
            let days = (*end - crate::keys::now().cast_signed()) as f64 / 86_400.0;
            metrics.certificate_days.get_or_create(&CertificateLabel { certificate: certificate.clone() }).set(days);
        }
        metrics.requests.rate_limit_clients.clear();
        for (key, limit) in &generation.rates {
            let clients = i64::try_from(limit.clients()).unwrap_or(i64::MAX);
            metrics.requests.rate_limit_clients.get_or_create(&LimitLabel { limit: key.label() }).set(clients);
        }
        let newest = self.shared.persistent.ring.keys().iter().map(|key| key.id).max().unwrap_or(0);
        metrics.ring_key.set(newest.into());
        metrics.render()
    }

    /// Renews certificates and the key ring until `stop` is ready; then drains, for as long as the configuration says.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let watching = async {
            let mut seen = tls::changed(&self.shared.current().config);
            loop {
                tokio::time::sleep(LOOK).await;
                let now = tls::changed(&self.shared.current().config);
                if now != seen {
                    seen = now;
                    self.reload_certificates().await;
                }
            }
        };
        let challenges = &self.shared.persistent.challenges;
        let certificates = acme::keep(|| self.shared.current().config.acme.clone(), challenges, &self.shared.metrics);
        let mut stop = pin!(stop);
        let mut handed_over = self.handed_over.subscribe();
        let is_handed_over = tokio::select! {
            () = watching => false,
            () = certificates => false,
            () = stop.as_mut() => false,
            _ = handed_over.wait_for(|state| *state == HandOver::Done) => true,
        };
        if is_handed_over {
            tokio::select! {
                () = self.idle_after_hand_over() => {}
                () = stop => {}
            }
        }
        self.drain().await;
    }

    /// Waits until the connections of a process that has handed over have ended, or had their time.
    async fn idle_after_hand_over(&self) {
        let patience = self.config().upgrade.drain.0;
        let all_gone = async {
            while self.open_connections() > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(patience, all_gone).await.is_err() {
            tracing::info!("`upgrade.drain` is over: {} connections drain", self.open_connections());
        }
    }

    /// Reloads certificates only: the configuration stays the one in use, not that of the file.
    async fn reload_certificates(&self) {
        let _one_at_a_time = self.reloading.lock().await;
        let config = self.shared.current().config.clone();
        match self.apply(config) {
            Ok(_) => tracing::info!("certificates or keys have changed, and the new ones are in use"),
            Err(error) => tracing::warn!("certificates or keys have changed, and the old ones stay in use: {error}"),
        }
    }

    /// Takes no connection more, and waits until those that exist have ended.
    pub async fn drain(&self) {
        if !self.has_handed_over() {
            notify(&[NotifyState::Stopping]);
        }
        let generation = self.shared.current();
        for listener in self.listeners().values() {
            listener.drain(&generation);
        }
        self.plain().clear();
        let all_gone = async {
            while self.shared.admission.total() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let patience = generation.config.drain.0 + Duration::from_secs(3);
        if tokio::time::timeout(patience, all_gone).await.is_err() {
            self.shared.cause.note(Ending::Drained);
            tracing::warn!("{} connections were cut off by the stop", self.shared.admission.total());
        }
        self.shared.persistent.logs.sync();
        // A process without connections ends as soon as an upgrade is done, and the operator has yet to hear of it.
        self.services.all_answered().await;
        self.services.remove();
    }

    pub(crate) fn plain(&self) -> MutexGuard<'_, HashMap<SocketAddr, PlainListener>> {
        self.plain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn listeners(&self) -> MutexGuard<'_, HashMap<SocketAddr, Listener>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl admin::Operated for Process {
    async fn answer(self: &Arc<Self>, command: &str, order: &str, gone: impl Future<Output = ()> + Send) -> Value {
        match command {
            "status" => self.status(),
            "arms" => self.arms(),
            "connections" => self.connections(),
            "capture" => match serde_json::from_str(order) {
                // Whoever hangs up has seen enough.
                Ok(order) => self.capture(&order, gone).await,
                Err(error) => json!({"error": format!("the order cannot be read: {error}")}),
            },
            "upgrade" => self.ordered_upgrade(order).await,
            "reload" => match self.reload().await {
                Ok(generation) => json!({"generation": generation}),
                Err(error) => json!({"error": error.to_string(), "hint": error.hint()}),
            },
            other => {
                let hint = "there are status, connections, capture, arms, reload and upgrade";
                json!({"error": format!("there is no command `{other}`"), "hint": hint})
            }
        }
    }
}

/// Tells the service manager about the process, where there is one.
pub(crate) fn notify(news: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(news) {
        tracing::warn!("cannot tell the service manager: {error}");
    }
}

/// The records of `config` for a service at these ports: one for each name and port.
pub fn https_records(config: &Config, ports: &[u16]) -> Vec<String> {
    let exact = |name: &&String| !name.starts_with('*');
    let mut names: Vec<&String> = config.routes.iter().flat_map(|route| &route.host.0).filter(exact).collect();
    names.sort();
    names.dedup();
    let alpn = if config.http3.enabled { "h3,h2" } else { "h2" };
    let record = |name: &str, port: u16| match port {
        443 => format!("{name}. 3600 IN HTTPS 1 . alpn=\"{alpn}\""),
        _ => format!("_{port}._https.{name}. 3600 IN HTTPS 1 {name}. alpn=\"{alpn}\" port={port}"),
    };
    let mut ports = ports.to_vec();
    ports.sort_unstable();
    ports.dedup();
    ports.iter().flat_map(|port| names.iter().map(|name| record(name, *port)).collect::<Vec<_>>()).collect()
}

fn addresses(config: &Config) -> Vec<SocketAddr> {
    config.listen.0.iter().filter_map(|text| address(text).ok()).collect()
}

/// Opens the addresses of `config` that are not open yet.
fn open(
    config: &Config,
    known: &HashMap<SocketAddr, Listener>,
    generation: &Generation,
    shared: &Arc<Shared>,
    workers: &Workers,
) -> Result<HashMap<SocketAddr, Listener>, ProcessError> {
    let mut opened = HashMap::new();
    for address in addresses(config).into_iter().filter(|address| !known.contains_key(address)) {
        let failed = |why| ProcessError::Listen { address: address.to_string(), why };
        // An address of this process, such as the same port of one interface, may be shared with itself.
        if !known.keys().chain(opened.keys()).any(|other: &SocketAddr| other.port() == address.port()) {
            check_unshared(address).map_err(failed)?;
        }
        let listener = Listener::open(address, generation, shared, workers).map_err(failed)?;
        opened.insert(address, listener);
    }
    Ok(opened)
}

fn plain_addresses(config: &Config) -> Vec<SocketAddr> {
    config.redirect_from.0.iter().filter_map(|text| address(text).ok()).collect()
}

/// The port of the first address with TLS, to which plain HTTP redirects.
fn redirected_port(config: &Config, listeners: &HashMap<SocketAddr, Listener>) -> u16 {
    let first = addresses(config).first().copied();
    first.map_or(443, |first| listeners.get(&first).map_or(first, Listener::local).port())
}

/// Opens the addresses of plain HTTP of `config` that are not open yet. They redirect to the first address with TLS, one of `listeners` when
/// its port was left to the system.
fn open_plain(
    config: &Config,
    known: &HashMap<SocketAddr, PlainListener>,
    listeners: &HashMap<SocketAddr, Listener>,
    shared: &Arc<Shared>,
) -> Result<HashMap<SocketAddr, PlainListener>, ProcessError> {
    let port = redirected_port(config, listeners);
    let mut opened = HashMap::new();
    for address in plain_addresses(config).into_iter().filter(|address| !known.contains_key(address)) {
        let listener = PlainListener::open(address, port, shared)
            .map_err(|why| ProcessError::Listen { address: address.to_string(), why })?;
        // Clients may come at once.
        shared.persistent.listeners.add(listener.local());
        opened.insert(address, listener);
    }
    Ok(opened)
}

pub(crate) async fn serve_metrics(listener: TcpListener, process: Arc<Process>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let process = process.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let process = process.clone();
                async move {
                    let (status, text) = match request.uri().path() {
                        "/metrics" => (200, process.figures()),
                        _ => (404, "the figures are at /metrics\n".to_owned()),
                    };
                    let response = Response::builder()
                        .status(status)
                        .header("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8");
                    Ok::<_, Infallible>(response.body(Full::new(bytes::Bytes::from(text))).expect("all parts are good"))
                }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(10));
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
