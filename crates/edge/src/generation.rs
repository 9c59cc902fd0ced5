//! Generation: the state that one reading of the configuration decides.

use std::{
    hash::RandomState,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

use tiderace::{
    KeyRing,
    transport::ring::{RingKey, StrikeRegister},
};
use tokio::sync::Semaphore;

use crate::{
    acme::Challenges,
    admission::Admission,
    capture::Captures,
    config::{Config, Route},
    ending::Cause,
    fallback::Fallbacks,
    files::{Files, Store},
    keys::{self, Strikes},
    masque::{Clients, Listeners, Proxy},
    memory::Memory,
    metrics::Metrics,
    observe::{AccessLog, Books, Logs},
    offers::Offers,
    path,
    policy::{Policies, arms::Arms},
    profile::profile,
    route::Routes,
    setup::SetupError,
    site::{Redirect, Site},
    stream_target::StreamTarget,
    tls::{self, Tls},
    upstream::{BackEnd, Upstream},
    worker::Workers,
};

/// A configuration at work.
pub(crate) struct Generation {
    pub(crate) number: u64,
    pub(crate) config: Config,
    pub(crate) tls: Tls,
    pub(crate) routes: Routes<Arc<Target>>,
    /// The proxy that takes plain CONNECT requests.
    pub(crate) connect: Option<Arc<Target>>,
    pub(crate) streams: Vec<Arc<StreamTarget>>,
    pub(crate) back_ends: Vec<Arc<BackEnd>>,
    pub(crate) log: AccessLog,
    pub(crate) policies: Policies,
    pub(crate) captures: Arc<Captures>,
    /// The ring of keys, when it comes from a file.
    keys: Option<Vec<RingKey>>,
    /// The register of early data, when it is not the one before.
    register: Option<Arc<dyn StrikeRegister>>,
}

/// Handler of a route.
pub(crate) struct Target {
    pub(crate) route: Route,
    /// Name in logs and metrics.
    pub(crate) name: String,
    pub(crate) handler: RouteHandler,
    pub(crate) site: Site,
}

/// A back end, a directory, another URL, or a proxy to targets that clients name.
pub(crate) enum RouteHandler {
    Upstream(Upstream),
    Files(Files),
    Redirect(Redirect),
    Proxy(Box<Proxy>),
}

/// State that all generations share.
pub(crate) struct Shared {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) persistent: PersistentState,
    pub(crate) memory: Arc<Memory>,
    pub(crate) arms: Arms,
    pub(crate) offers: Offers,
    pub(crate) fallbacks: Arc<Fallbacks>,
    /// Cause of requests that end with the process.
    pub(crate) cause: Cause,
    /// Compression of HTTP/3 field sections, counted.
    pub(crate) compression: Arc<h3_quic::Compression>,
    current: RwLock<Arc<Generation>>,
}

/// State that outlives reloads: clients resume their sessions after any reload.
#[derive(Clone)]
pub(crate) struct PersistentState {
    pub(crate) ring: KeyRing,
    pub(crate) strikes: Arc<Strikes>,
    /// Draws which connections get a policy that only a share gets.
    pub(crate) lots: RandomState,
    pub(crate) captures: Arc<Captures>,
    pub(crate) challenges: Arc<Challenges>,
    pub(crate) files: Arc<Store>,
    pub(crate) logs: Logs,
    pub(crate) proxy_clients: Arc<Clients>,
    pub(crate) listeners: Arc<Listeners>,
}

impl PersistentState {
    pub(crate) fn new() -> Result<Self, keys::KeysError> {
        let ring = keys::own_ring()?;
        Ok(Self {
            ring,
            strikes: Arc::new(Strikes::new()),
            lots: RandomState::new(),
            captures: Arc::default(),
            challenges: Arc::default(),
            files: Arc::default(),
            logs: Logs::default(),
            proxy_clients: Arc::default(),
            listeners: Arc::default(),
        })
    }

    fn tls(&self) -> tls::Shared<'_> {
        tls::Shared { ring: &self.ring, strikes: &self.strikes, captures: &self.captures, challenges: &self.challenges }
    }
}

impl Generation {
    /// Makes the parts that `config` asks for, and takes over from `before` those that are the same.
    pub(crate) fn build(
        config: Config,
        number: u64,
        before: Option<&Self>,
        persistent: &PersistentState,
        workers: &Workers,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, SetupError> {
        let tls = Tls::load(&config, &persistent.tls())?;
        let file = Path::new(&config.keys.file);
        let keys = if config.keys.file.is_empty() { None } else { Some(keys::read(file)?) };
        let same = before.is_some_and(|before| before.config.keys.strikes == config.keys.strikes);
        let register = if same { None } else { Some(keys::register(&config.keys.strikes)?) };
        let log = match before {
            // The standard output is the same, whatever happens to files.
            Some(before) if before.config.log == config.log && config.log.access == "-" => before.log.clone(),
            _ => AccessLog::open(&config.log, &persistent.logs)
                .map_err(|source| SetupError::AccessLog { path: config.log.access.clone(), source })?,
        };
        let mut known = before.map(|before| before.back_ends.clone()).unwrap_or_default();
        let places = Arc::new(Semaphore::new(config.limits.back_end_requests.min(Semaphore::MAX_PERMITS)));
        let targets: Vec<_> = config
            .routes
            .iter()
            .map(|route| {
                let name = route.name();
                // What is compared with the paths of requests has their form.
                let path = path::normal(&route.path).map_or(route.path.clone(), |normal| normal.path.into_owned());
                let route = &Route { path, ..route.clone() };
                let handler = if let Some(proxy) = &route.proxy {
                    let PersistentState { proxy_clients, listeners, .. } = persistent;
                    RouteHandler::Proxy(Box::new(Proxy::new(route, proxy, proxy_clients, listeners, metrics)?))
                } else if !route.redirect.is_empty() {
                    RouteHandler::Redirect(Redirect::new(route))
                } else if route.files.is_empty() {
                    RouteHandler::Upstream(Upstream::new(route, &mut known, workers, &places, metrics)?)
                } else {
                    RouteHandler::Files(Files::new(route, persistent.files.clone()))
                };
                let site = Site::new(route)?;
                Ok((route.clone(), Arc::new(Target { route: route.clone(), name, handler, site })))
            })
            .collect::<Result<_, SetupError>>()?;
        let in_use = |back_end: &Arc<BackEnd>| {
            targets.iter().any(|(_, target)| match &target.handler {
                RouteHandler::Upstream(upstream) => {
                    upstream.back_ends().iter().any(|other| Arc::ptr_eq(other, back_end))
                }
                RouteHandler::Files(_) | RouteHandler::Redirect(_) | RouteHandler::Proxy(_) => false,
            })
        };
        let connect = targets.iter().map(|(_, target)| target).find(|target| match &target.handler {
            RouteHandler::Proxy(proxy) => proxy.carries_tcp(),
            _ => false,
        });
        let connect = connect.cloned();
        let back_ends = known.into_iter().filter(in_use).collect();
        let streams = config.streams.iter().map(|stream| Arc::new(StreamTarget::new(stream, &places))).collect();
        let policies = Policies::new(&config.policies, &profile(&config), &persistent.lots);
        Ok(Self {
            number,
            tls,
            routes: Routes::new(targets),
            connect,
            streams,
            back_ends,
            log,
            policies,
            captures: persistent.captures.clone(),
            keys,
            register,
            config,
        })
    }
}

impl Generation {
    /// Hands the parts that outlive the generation to their owner, from then on in use.
    fn hand_over(&self, persistent: &PersistentState) {
        if let Some(keys) = &self.keys {
            // They made a ring when they were read.
            if let Err(error) = persistent.ring.replace(keys.clone()) {
                tracing::error!("the ring of keys stays what it was: {error}");
            }
        }
        if let Some(register) = &self.register {
            persistent.strikes.replace(register.clone());
        }
        persistent.files.set_capacity(self.config.files.memory.0);
    }
}

impl Shared {
    pub(crate) fn new(first: Generation, metrics: Arc<Metrics>, persistent: PersistentState) -> Self {
        metrics.generation.set(first.number.cast_signed());
        first.hand_over(&persistent);
        Self {
            metrics,
            admission: Arc::default(),
            memory: Memory::new(first.config.limits.memory.0),
            persistent,
            arms: Arms::default(),
            offers: Offers::default(),
            fallbacks: Arc::default(),
            cause: Cause::default(),
            compression: Arc::default(),
            current: RwLock::new(Arc::new(first)),
        }
    }

    /// Books in which requests are entered.
    pub(crate) fn books(&self) -> Books<'_> {
        Books { metrics: &self.metrics, process: &self.cause }
    }

    /// The generation that is in use.
    pub(crate) fn current(&self) -> Arc<Generation> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From here on, everything new is under `next`.
    pub(crate) fn replace(&self, next: Generation) -> Arc<Generation> {
        next.hand_over(&self.persistent);
        let next = Arc::new(next);
        self.metrics.generation.set(next.number.cast_signed());
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next.clone();
        next
    }
}
