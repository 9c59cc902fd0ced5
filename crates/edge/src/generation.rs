//! Generation: the state that one reading of the configuration decides.

use std::{
    collections::HashMap,
    hash::RandomState,
    net::IpAddr,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

use http::Uri;
use tiderace::{
    IdGeneration, KeyRing, LoadBalancers, ProcessBudget,
    transport::ring::{RingKey, StrikeRegister},
};
use tokio::sync::{Semaphore, watch};

use crate::{
    acme::Challenges,
    admission::Admission,
    capture::Captures,
    client_certificate::{ClientCertificate, ClientRing, Refused},
    config::{self, Config, Route},
    ending::Cause,
    fallback::Fallbacks,
    files::{Files, Store},
    forwarded::TrustedProxies,
    id_rotation::IdRotation,
    keys::{self, Strikes},
    machines::Machines,
    masque::{Clients, IpProxy, IpShared, Listeners, Proxy, TunDevices},
    memory::Memory,
    metrics::{Metrics, ReasonLabel},
    network::Network,
    observe::{AccessLog, Books, Logs},
    offers::Offers,
    password::{BasicAuth, Hashing},
    path,
    policy::{Policies, arms::Arms},
    profile::profile,
    rate::{RateKey, RateLimit},
    remote_signer::{Link, Waiting},
    resolve::{Resolve, SystemResolver},
    route::Routes,
    session_route::{self, SessionRoute},
    setup::SetupError,
    site::{Redirect, Site},
    stream_target::StreamTarget,
    tls::{self, Tls},
    trial::{Trials, Withholding},
    upstream::{BackEnd, Surroundings, Upstream},
    worker::Workers,
    worker_panics::WorkerPanics,
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
    /// Settings of connections that may have sessions, if a route has some.
    pub(crate) sessions: Option<webtransport::Config>,
    /// Handlers of all routes.
    targets: Vec<Arc<Target>>,
    pub(crate) log: AccessLog,
    pub(crate) policies: Policies,
    /// Policies that withhold HTTP/3.
    pub(crate) withholding: Withholding,
    pub(crate) trusted: TrustedProxies,
    /// Networks of the load balancers.
    load_balancers: Vec<Network>,
    /// Limits for the requests of each client.
    pub(crate) rates: HashMap<RateKey, Arc<RateLimit>>,
    pub(crate) captures: Arc<Captures>,
    /// The ring of keys, when it comes from a file.
    keys: Option<Vec<RingKey>>,
    /// The register of early data, when it is not the one before.
    register: Option<Arc<dyn StrikeRegister>>,
    /// Connection to the signer that has the keys of the certificates.
    signer: Option<Arc<Link>>,
}

/// Handler of a route.
pub(crate) struct Target {
    pub(crate) route: Route,
    /// Name in logs and metrics.
    pub(crate) name: String,
    pub(crate) handler: RouteHandler,
    pub(crate) site: Site,
    /// Limit for the requests of each client.
    pub(crate) rate: Option<Arc<RateLimit>>,
    pub(crate) auth: Option<BasicAuth>,
}

impl Target {
    /// Changes the path of a request into the one that a back end is asked for.
    pub(crate) fn direct(&self, uri: &mut Uri) {
        if (self.route.strip || !self.route.rewrite.is_empty())
            && let Some(replaced) = path::replaced(uri, &self.route.path, &self.route.rewrite)
        {
            *uri = replaced;
        }
    }
}

/// A back end, a directory, another URL, a proxy to targets that clients name or for IP packets, or sessions of WebTransport.
pub(crate) enum RouteHandler {
    Upstream(Upstream),
    Files(Files),
    Redirect(Redirect),
    Proxy(Box<Proxy>),
    IpProxy(Box<IpProxy>),
    Sessions(Box<SessionRoute>),
}

/// State that all generations share.
pub(crate) struct Shared {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) persistent: PersistentState,
    pub(crate) memory: Arc<Memory>,
    pub(crate) arms: Arms,
    pub(crate) trials: Arc<Trials>,
    pub(crate) offers: Offers,
    pub(crate) fallbacks: Arc<Fallbacks>,
    /// Panics of workers, which the process acts upon.
    pub(crate) panics: Arc<WorkerPanics>,
    /// Cause of requests that end with the process.
    pub(crate) cause: Cause,
    /// Compression of HTTP/3 field sections, counted.
    pub(crate) compression: Arc<h3_quic::Compression>,
    current: RwLock<Arc<Generation>>,
    /// Number of the current generation.
    generations: watch::Sender<u64>,
}

/// State that outlives reloads: clients resume their sessions after any reload.
#[derive(Clone)]
pub(crate) struct PersistentState {
    /// Generation of the process, in its connection IDs.
    pub(crate) id_generation: IdGeneration,
    /// Random name of the process: records with the same name are of the same process.
    pub(crate) instance: u128,
    /// Connection IDs by which load balancers find this machine.
    pub(crate) routable: Arc<IdRotation>,
    /// Load balancers that are believed.
    pub(crate) load_balancers: LoadBalancers,
    /// The other machines that serve the same address.
    pub(crate) machines: Arc<Machines>,
    pub(crate) ring: KeyRing,
    pub(crate) strikes: Arc<Strikes>,
    /// Draws which connections get a policy that only a share gets.
    pub(crate) lots: RandomState,
    pub(crate) captures: Arc<Captures>,
    pub(crate) challenges: Arc<Challenges>,
    pub(crate) files: Arc<Store>,
    pub(crate) logs: Logs,
    pub(crate) proxy_clients: Arc<Clients>,
    /// Clients of sessions.
    pub(crate) session_clients: Arc<Clients>,
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) devices: Arc<TunDevices>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) client_ring: Arc<ClientRing>,
    /// Resolver of the names of back ends.
    pub(crate) resolver: Arc<dyn Resolve>,
    /// Verifications of passwords.
    pub(crate) hashing: Arc<Hashing>,
    /// Handshakes over TCP that wait for a signature of another machine.
    pub(crate) waiting: Arc<Waiting>,
}

impl PersistentState {
    /// State of a process whose clients may hold this number of bytes.
    pub(crate) fn new(memory: u64) -> Result<Self, keys::KeysError> {
        Self::with(keys::own_ring()?, IdGeneration { number: 0, key: keys::random()? }, memory)
    }

    /// State with the keys of a process that this one takes over from.
    pub(crate) fn with(ring: KeyRing, id_generation: IdGeneration, memory: u64) -> Result<Self, keys::KeysError> {
        let memory = Memory::new(memory);
        let hashing = Hashing::new(memory.process()).ok_or(keys::KeysError::NoRandomness)?;
        Ok(Self {
            id_generation,
            instance: u128::from_ne_bytes(keys::random()?),
            routable: Arc::default(),
            load_balancers: LoadBalancers::default(),
            machines: Arc::default(),
            ring,
            strikes: Arc::new(Strikes::new()),
            lots: RandomState::new(),
            captures: Arc::default(),
            challenges: Arc::default(),
            files: Arc::default(),
            logs: Logs::default(),
            proxy_clients: Arc::default(),
            session_clients: Arc::default(),
            listeners: Arc::default(),
            devices: Arc::default(),
            memory,
            client_ring: Arc::default(),
            resolver: Arc::new(SystemResolver::default()),
            hashing: Arc::new(hashing),
            waiting: Arc::default(),
        })
    }

    fn tls(&self) -> tls::Shared<'_> {
        tls::Shared {
            ring: &self.ring,
            strikes: &self.strikes,
            captures: &self.captures,
            challenges: &self.challenges,
            client_ring: &self.client_ring,
        }
    }
}

impl Generation {
    /// Builds the parts of `config`, and reuses unchanged ones of `before`.
    pub(crate) fn build(
        config: Config,
        number: u64,
        before: Option<&Self>,
        persistent: &PersistentState,
        workers: &Workers,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, SetupError> {
        let signer = config.signer.as_ref();
        let signer = signer.map(|signer| Link::start(&signer.link()?, &metrics.signatures)).transpose()?;
        let tls = Tls::load(&config, &persistent.tls(), signer.as_ref())?;
        let file = Path::new(&config.keys.file);
        let keys = if config.keys.file.is_empty() { None } else { Some(keys::read(file)?) };
        let same = before.is_some_and(|before| before.config.keys.strikes == config.keys.strikes);
        let register = if same { None } else { Some(keys::register(&config.keys.strikes)?) };
        let log = match before {
            // The standard output is the same, whatever happens to files.
            Some(before) if before.config.log == config.log && config.log.access == "-" => before.log.clone(),
            _ => AccessLog::open(&config.log, &persistent.logs, &metrics.log_lines_dropped)
                .map_err(|source| SetupError::AccessLog { path: config.log.access.clone(), source })?,
        };
        let mut known = before.map(Self::back_ends).unwrap_or_default();
        let places = Arc::new(Semaphore::new(config.limits.back_end_requests.min(Semaphore::MAX_PERMITS)));
        let surroundings = Surroundings {
            workers,
            places: &places,
            ring: &persistent.ring,
            resolver: &persistent.resolver,
            memory: persistent.memory.process(),
            metrics,
        };
        let rates = rates(&config, before, persistent.memory.process());
        let targets: Vec<_> = config
            .routes
            .iter()
            .enumerate()
            .map(|(index, route)| {
                let name = route.name();
                // What is compared with the paths of requests has their form.
                let path = path::normal(&route.path).map_or(route.path.clone(), |normal| normal.path.into_owned());
                let route = &Route { path, ..route.clone() };
                let handler = if let Some(proxy) = &route.proxy {
                    let PersistentState { proxy_clients, listeners, .. } = persistent;
                    RouteHandler::Proxy(Box::new(Proxy::new(route, proxy, proxy_clients, listeners, metrics)?))
                } else if let Some(proxy) = &route.ip_proxy {
                    let PersistentState { proxy_clients, listeners, devices, .. } = persistent;
                    let shared = IpShared { clients: proxy_clients, listeners, devices, metrics };
                    RouteHandler::IpProxy(Box::new(IpProxy::new((index, route), proxy, &shared)?))
                } else if let Some(section) = &route.webtransport {
                    let clients = &persistent.session_clients;
                    let sessions = SessionRoute::new((route, section), &config.limits, clients, &surroundings)?;
                    RouteHandler::Sessions(Box::new(sessions))
                } else if !route.redirect.is_empty() {
                    RouteHandler::Redirect(Redirect::new(route))
                } else if route.files.is_empty() {
                    RouteHandler::Upstream(Upstream::new(route, &mut known, &surroundings)?)
                } else {
                    RouteHandler::Files(Files::new(route, persistent.files.clone()))
                };
                let site = Site::new(route)?;
                let rate = rates.get(&RateKey::Route(name.clone())).cloned();
                let attempts = rates.get(&RateKey::Passwords(name.clone()));
                let auth = match (&route.basic_auth, attempts) {
                    (Some(auth), Some(attempts)) => {
                        Some(BasicAuth::new(auth, attempts.clone(), persistent.hashing.clone())?)
                    }
                    _ => None,
                };
                Ok((route.clone(), Arc::new(Target { route: route.clone(), name, handler, site, rate, auth })))
            })
            .collect::<Result<_, SetupError>>()?;
        let connect = targets.iter().map(|(_, target)| target).find(|target| match &target.handler {
            RouteHandler::Proxy(proxy) => proxy.carries_tcp(),
            _ => false,
        });
        let connect = connect.cloned();
        let streams = config.streams.iter().map(|stream| Arc::new(StreamTarget::new(stream, &places))).collect();
        let policies = Policies::new(&config.policies, &profile(&config), &persistent.lots);
        Ok(Self {
            number,
            tls,
            targets: targets.iter().map(|(_, target)| target.clone()).collect(),
            routes: Routes::new(targets),
            connect,
            streams,
            sessions: session_route::support(&config),
            log,
            policies,
            withholding: Withholding::new(&config),
            rates,
            trusted: TrustedProxies::new(&config.trusted_proxies),
            load_balancers: Network::all(&config.load_balancer.networks.0),
            captures: persistent.captures.clone(),
            keys,
            register,
            signer,
            config,
        })
    }
}

/// Rate limits of clients. Unchanged ones of `before` keep their state.
fn rates(config: &Config, before: Option<&Generation>, budget: &ProcessBudget) -> HashMap<RateKey, Arc<RateLimit>> {
    let of_routes = config.routes.iter().flat_map(|route| {
        let attempts = route.basic_auth.as_ref().map(|auth| &auth.attempts);
        let attempts = attempts.map(|attempts| (RateKey::Passwords(route.name()), attempts));
        let requests = route.rate_limit.as_ref().map(|limit| (RateKey::Route(route.name()), limit));
        [requests, attempts].into_iter().flatten()
    });
    let all = of_routes.chain(config.rate_limit.as_ref().map(|limit| (RateKey::All, limit)));
    let limit = |(key, limit): (RateKey, &config::RateLimit)| {
        let known = before.and_then(|before| before.rates.get(&key)).filter(|known| known.is_for(limit));
        let rate = known.cloned().unwrap_or_else(|| Arc::new(RateLimit::new(limit, budget)));
        (key, rate)
    };
    all.map(limit).collect()
}

impl Generation {
    /// The back ends of all routes, each once.
    pub(crate) fn back_ends(&self) -> Vec<Arc<BackEnd>> {
        let mut all: Vec<Arc<BackEnd>> = Vec::new();
        for target in &self.targets {
            let RouteHandler::Upstream(upstream) = &target.handler else { continue };
            for back_end in upstream.back_ends().iter() {
                if !all.iter().any(|other| Arc::ptr_eq(other, back_end)) {
                    all.push(back_end.clone());
                }
            }
        }
        all
    }

    /// Returns whether there is a route with these settings.
    pub(crate) fn has_route(&self, route: &Route) -> bool {
        self.targets.iter().any(|target| target.route == *route)
    }

    /// Returns whether a load balancer is at this address.
    pub(crate) fn is_load_balancer(&self, address: IpAddr) -> bool {
        self.load_balancers.iter().any(|network| network.has(address))
    }

    /// Connections at a time of this address. A trusted proxy brings those of many clients.
    pub(crate) fn connections_of(&self, address: IpAddr) -> usize {
        if self.trusted.trusts(address) { usize::MAX } else { self.config.limits.connections_per_address }
    }

    /// Makes the metrics those of this generation's signer, which takes the place of the one `before`.
    fn note_signer(&self, before: Option<&Self>, metrics: &Metrics) {
        if let Some(link) = before.and_then(|before| before.signer.as_ref()) {
            link.set_in_use(false);
        }
        match &self.signer {
            Some(link) => link.set_in_use(true),
            None => metrics.signatures.set_none(),
        }
    }

    /// Hands the parts that outlive the generation to their owner, from then on in use.
    fn hand_over(&self, persistent: &PersistentState) {
        if let Some(keys) = &self.keys {
            // They made a ring when they were read.
            if let Err(error) = persistent.ring.replace(keys.clone()) {
                tracing::error!("the ring of keys stays what it was: {error}");
            }
        }
        if let Some(register) = &self.register {
            persistent.strikes.replace(register.clone(), self.config.keys.strikes.is_empty());
        }
        persistent.files.set_capacity(self.config.files.memory.0);
        let networks = self.load_balancers.clone();
        // Other machines name clients in datagrams, and have no connections of TCP for this one.
        let machines: Vec<IpAddr> = self.config.load_balancer.others().map(|(_, address)| address.ip()).collect();
        let trusts = move |ip| networks.iter().any(|network| network.has(ip)) || machines.contains(&ip);
        persistent.load_balancers.set_trust(Arc::new(trusts));
        persistent.machines.set(&self.config.load_balancer);
    }
}

impl Shared {
    pub(crate) fn new(
        first: Generation,
        metrics: Arc<Metrics>,
        persistent: PersistentState,
        panics: WorkerPanics,
    ) -> Self {
        metrics.generation.set(first.number.cast_signed());
        first.hand_over(&persistent);
        first.note_signer(None, &metrics);
        let generations = watch::Sender::new(first.number);
        Self {
            metrics,
            admission: Arc::default(),
            memory: persistent.memory.clone(),
            trials: Trials::new(persistent.memory.process()),
            persistent,
            arms: Arms::default(),
            offers: Offers::default(),
            fallbacks: Arc::default(),
            panics: Arc::new(panics),
            cause: Cause::default(),
            compression: Arc::default(),
            current: RwLock::new(Arc::new(first)),
            generations,
        }
    }

    /// Verifies the certificates of a connection.
    ///
    /// # Errors
    /// When they do not let the client in.
    pub(crate) fn verify_client(
        &self,
        generation: &Generation,
        chain: &[&[u8]],
    ) -> Result<Option<Arc<ClientCertificate>>, Refused> {
        let Some(clients) = &generation.tls.clients else { return Ok(None) };
        let checked = clients.check(chain);
        let reason = match &checked {
            Ok(Some(_)) => "verified",
            Ok(None) => "none",
            Err(refused) => refused.word(),
        };
        self.metrics.client_certificates.get_or_create(&ReasonLabel { reason }).inc();
        checked
    }

    /// Books in which requests are entered.
    pub(crate) fn books(&self) -> Books<'_> {
        Books { metrics: &self.metrics, process: &self.cause }
    }

    /// The generation that is in use.
    pub(crate) fn current(&self) -> Arc<Generation> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Numbers of generations as they come into use.
    pub(crate) fn generations(&self) -> watch::Receiver<u64> {
        self.generations.subscribe()
    }

    /// From here on, everything new is under `next`.
    pub(crate) fn replace(&self, next: Generation) -> Arc<Generation> {
        next.hand_over(&self.persistent);
        next.note_signer(Some(&self.current()), &self.metrics);
        self.trials.retain(&next.withholding);
        let next = Arc::new(next);
        self.metrics.generation.set(next.number.cast_signed());
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next.clone();
        self.generations.send_replace(next.number);
        next
    }
}
