//! Everything that one reading of the configuration decides.

use std::{
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

use tiderace::transport::ring::{RingKey, StrikeRegister};
use tokio::sync::Semaphore;

use crate::{
    admission::Admission,
    capture::Captures,
    config::{Config, Route},
    fallback::Fallbacks,
    files::Files,
    keys, listen,
    memory::Memory,
    metrics::Metrics,
    observe::{AccessLog, Cause},
    offers::Offers,
    path,
    policy::{Policies, arms::Arms},
    route::Routes,
    stream,
    tls::{Keeping, Tls},
    upstream::{BackEnd, Upstream},
    worker::Workers,
};

/// A configuration at work.
pub(crate) struct Generation {
    pub(crate) number: u64,
    pub(crate) config: Config,
    pub(crate) tls: Tls,
    pub(crate) routes: Routes<Arc<Target>>,
    pub(crate) streams: Vec<Arc<stream::Target>>,
    pub(crate) back_ends: Vec<Arc<BackEnd>>,
    pub(crate) log: AccessLog,
    pub(crate) policies: Policies,
    pub(crate) captures: Arc<Captures>,
    /// The ring of keys, when it comes from a file.
    keys: Option<Vec<RingKey>>,
    /// The register of early data, when it is not the one before.
    register: Option<Arc<dyn StrikeRegister>>,
}

/// Who answers for a route.
pub(crate) struct Target {
    pub(crate) route: Route,
    /// Its name in logs and figures.
    pub(crate) name: String,
    pub(crate) answers: Answers,
}

/// A back end, or a directory.
pub(crate) enum Answers {
    Upstream(Upstream),
    Files(Files),
}

/// What goes on across generations.
pub(crate) struct Shared {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) keeping: Keeping,
    pub(crate) memory: Arc<Memory>,
    pub(crate) arms: Arms,
    pub(crate) offers: Offers,
    pub(crate) fallbacks: Arc<Fallbacks>,
    /// Why requests end that nothing else ends: the stop of the process.
    pub(crate) cause: Cause,
    /// What compression does to the fields of HTTP/3.
    pub(crate) compression: Arc<h3_quic::Compression>,
    current: RwLock<Arc<Generation>>,
}

impl Generation {
    /// Makes everything that `config` asks for, and takes over from `before` what is the same.
    pub(crate) fn build(
        config: Config,
        number: u64,
        before: Option<&Self>,
        keeping: &Keeping,
        workers: &Workers,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, String> {
        let tls = Tls::load(&config, keeping).map_err(|error| error.to_string())?;
        let file = Path::new(&config.keys.file);
        let keys = if config.keys.file.is_empty() { None } else { Some(keys::read(file)?) };
        let same = before.is_some_and(|before| before.config.keys.strikes == config.keys.strikes);
        let register = if same { None } else { Some(keys::register(&config.keys.strikes)?) };
        let log = match before {
            Some(before) if before.config.log == config.log => before.log.clone(),
            _ => AccessLog::open(&config.log.access, &keeping.logs)
                .map_err(|error| format!("cannot open the access log {}: {error}", config.log.access))?,
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
                let answers = if route.files.is_empty() {
                    Answers::Upstream(Upstream::new(route, &mut known, workers, &places, metrics)?)
                } else {
                    Answers::Files(Files::new(route, keeping.files.clone()))
                };
                Ok((route.clone(), Arc::new(Target { route: route.clone(), name, answers })))
            })
            .collect::<Result<_, String>>()?;
        let in_use = |back_end: &Arc<BackEnd>| {
            targets.iter().any(|(_, target)| match &target.answers {
                Answers::Upstream(upstream) => upstream.back_ends().iter().any(|other| Arc::ptr_eq(other, back_end)),
                Answers::Files(_) => false,
            })
        };
        let back_ends = known.into_iter().filter(in_use).collect();
        let streams = config.streams.iter().map(|stream| Arc::new(stream::Target::new(stream, &places))).collect();
        let policies = Policies::new(&config.policies, &listen::profile(&config), &keeping.lots);
        Ok(Self {
            number,
            tls,
            routes: Routes::new(targets),
            streams,
            back_ends,
            log,
            policies,
            captures: keeping.captures.clone(),
            keys,
            register,
            config,
        })
    }
}

impl Generation {
    /// Gives what outlives it to who keeps it, from then on in use.
    fn hand_over(&self, keeping: &Keeping) {
        if let Some(keys) = &self.keys {
            // They made a ring when they were read.
            if let Err(error) = keeping.ring.replace(keys.clone()) {
                tracing::error!("the ring of keys stays what it was: {error}");
            }
        }
        if let Some(register) = &self.register {
            keeping.strikes.replace(register.clone());
        }
        keeping.files.set_capacity(self.config.files.memory.0);
    }
}

impl Shared {
    pub(crate) fn new(first: Generation, metrics: Arc<Metrics>, keeping: Keeping) -> Self {
        metrics.generation.set(first.number.cast_signed());
        first.hand_over(&keeping);
        Self {
            metrics,
            admission: Arc::default(),
            memory: Memory::new(first.config.limits.memory.0),
            keeping,
            arms: Arms::default(),
            offers: Offers::default(),
            fallbacks: Arc::default(),
            cause: Cause::default(),
            compression: Arc::default(),
            current: RwLock::new(Arc::new(first)),
        }
    }

    /// The generation that is in use.
    pub(crate) fn current(&self) -> Arc<Generation> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From here on, everything new is under `next`.
    pub(crate) fn replace(&self, next: Generation) -> Arc<Generation> {
        next.hand_over(&self.keeping);
        let next = Arc::new(next);
        self.metrics.generation.set(next.number.cast_signed());
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next.clone();
        next
    }
}
