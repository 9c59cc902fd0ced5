//! Everything that one reading of the configuration decides.

use std::sync::{Arc, PoisonError, RwLock};

use crate::{
    admission::Admission,
    config::{Config, Route},
    files::Files,
    metrics::Metrics,
    observe::AccessLog,
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
        let log = match before {
            Some(before) if before.config.log == config.log => before.log.clone(),
            _ => AccessLog::open(&config.log.access)
                .map_err(|error| format!("cannot open the access log {}: {error}", config.log.access))?,
        };
        let mut known = before.map(|before| before.back_ends.clone()).unwrap_or_default();
        let targets: Vec<_> = config
            .routes
            .iter()
            .map(|route| {
                let answers = if route.files.is_empty() {
                    Answers::Upstream(Upstream::new(route, &mut known, workers, metrics))
                } else {
                    Answers::Files(Files::new(&route.files, &route.path))
                };
                let host = route.host.0.first().map_or("*", String::as_str);
                (
                    route.clone(),
                    Arc::new(Target { route: route.clone(), name: format!("{host}{}", route.path), answers }),
                )
            })
            .collect();
        let in_use = |back_end: &Arc<BackEnd>| {
            targets.iter().any(|(_, target)| match &target.answers {
                Answers::Upstream(upstream) => upstream.back_ends().iter().any(|other| Arc::ptr_eq(other, back_end)),
                Answers::Files(_) => false,
            })
        };
        let back_ends = known.into_iter().filter(in_use).collect();
        let streams = config.streams.iter().map(|stream| Arc::new(stream::Target::new(stream))).collect();
        Ok(Self { number, tls, routes: Routes::new(targets), streams, back_ends, log, config })
    }
}

impl Shared {
    pub(crate) fn new(first: Generation, metrics: Arc<Metrics>, keeping: Keeping) -> Self {
        metrics.generation.set(first.number.cast_signed());
        Self { metrics, admission: Arc::default(), keeping, current: RwLock::new(Arc::new(first)) }
    }

    /// The generation that is in use.
    pub(crate) fn current(&self) -> Arc<Generation> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From here on, everything new is under `next`.
    pub(crate) fn replace(&self, next: Generation) -> Arc<Generation> {
        let next = Arc::new(next);
        self.metrics.generation.set(next.number.cast_signed());
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next.clone();
        next
    }
}
