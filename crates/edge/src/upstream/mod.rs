//! Back ends: choice, health, and reaction to failures.
//!
//! `back_end` is a back end with its pools of connections; `quic` reaches those that speak HTTP/3; `send_error` has the cause of a failed
//! request; `names` finds addresses; `sticky` keeps a client at one back end; `health` checks them; `switch` processes requests that switch
//! to another protocol, and `tunnel` carries it; `interim` passes interim responses on.

mod back_end;
mod health;
mod interim;
pub(crate) mod names;
mod quic;
mod read_ahead;
mod send_error;
mod sticky;
pub(crate) mod switch;
pub(crate) mod tunnel;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Method, Request, Response, header};
use http_body::Body as _;
use tiderace::{KeyRing, ProcessBudget, transport::memory::ProcessCharge};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

pub(crate) use self::{back_end::BackEnd, quic::SessionDialer};
use self::{
    back_end::Host,
    names::{BackEnds, Source},
    send_error::SendError,
    sticky::Sticky,
};
use crate::{
    body::{AnyBody, full, with_fate},
    config::{Balance, Route, back_end_name},
    ending::Ending,
    metrics::Metrics,
    resolve::Resolve,
    setup::SetupError,
    trust::Trust,
    worker::Workers,
};

/// The back ends of a route.
pub(crate) struct Upstream {
    back_ends: Arc<watch::Sender<BackEnds>>,
    balance: Balance,
    sticky: Option<Sticky>,
    next: AtomicUsize,
    timeout: Duration,
    connect_timeout: Duration,
    queue_timeout: Duration,
    retries: u32,
    /// Places for requests with all back ends together.
    places: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

/// State of the process that back ends need.
pub(crate) struct Surroundings<'a> {
    pub(crate) workers: &'a Workers,
    /// Places for requests with all back ends together.
    pub(crate) places: &'a Arc<Semaphore>,
    /// Keys of the cookies of sticky sessions.
    pub(crate) ring: &'a KeyRing,
    pub(crate) resolver: &'a Arc<dyn Resolve>,
    /// Memory that requests, responses, and connections over QUIC are charged to.
    pub(crate) memory: &'a ProcessBudget,
    pub(crate) metrics: &'a Arc<Metrics>,
}

/// Place of a request, among all requests and among those of its back end.
#[derive(Debug)]
pub(crate) struct Place {
    _all: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    _memory: ProcessCharge,
}

/// Failure of a route: no back end has answered.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) ending: Ending,
    pub(crate) reason: String,
    /// The back end that was asked last, and how often one was.
    pub(crate) back_end: Option<String>,
    pub(crate) tries: u32,
}

/// An answer, and how it was come by.
pub(crate) struct Answer {
    pub(crate) response: Response<AnyBody>,
    /// Place of the request, which it keeps until its response has ended.
    pub(crate) place: Place,
    pub(crate) back_end: String,
    pub(crate) tries: u32,
}

impl Upstream {
    /// Back ends of `route`; those of `known` with equal settings are reused, with their connections and health.
    ///
    /// # Errors
    /// When the certificates that back ends over TLS are verified by cannot be used.
    pub(crate) fn new(
        route: &Route,
        known: &mut Vec<Arc<BackEnd>>,
        surroundings: &Surroundings<'_>,
    ) -> Result<Self, SetupError> {
        let Surroundings { workers, places, ring, resolver, memory, metrics } = *surroundings;
        let trust = if route.tls.verify { Trust::read(&route.tls.roots)? } else { Trust::Anybody };
        let source = Source {
            route: route.clone(),
            trust,
            workers: workers.handles().to_vec(),
            resolver: resolver.clone(),
            memory: memory.clone(),
            metrics: metrics.clone(),
        };
        let mut back_ends: Vec<Arc<BackEnd>> = Vec::new();
        let mut has_names = false;
        for to in &route.to.0 {
            if route.refresh.is_some() && back_end_name(to).is_some() {
                has_names = true;
                // The addresses that it had, until it has been looked up again.
                let had = |back_end: &&Arc<BackEnd>| back_end.is_address_for(to, route, &source.trust);
                back_ends.extend(known.iter().filter(had).cloned());
                continue;
            }
            let failed = |source| SetupError::BackEnd { route: route.name(), to: to.clone(), source: Box::new(source) };
            let back_end = source.back_end(to, Host::Url, known).map_err(failed)?;
            if !known.iter().any(|other| Arc::ptr_eq(other, &back_end)) {
                known.push(back_end.clone());
            }
            back_ends.push(back_end);
        }
        let back_ends = Arc::new(watch::Sender::new(Arc::new(back_ends)));
        if let Some(every) = route.refresh.filter(|_| has_names) {
            workers.handles()[0].spawn(names::refresh(source, every.0, Arc::downgrade(&back_ends)));
        }
        Ok(Self {
            back_ends,
            balance: route.balance,
            sticky: route.sticky.as_ref().map(|sticky| Sticky::new(sticky, route, ring)),
            next: AtomicUsize::new(0),
            timeout: route.timeout.0,
            connect_timeout: route.connect_timeout.0,
            queue_timeout: route.queue_timeout.0,
            places: places.clone(),
            retries: route.retries.into(),
            metrics: metrics.clone(),
        })
    }

    /// The back ends at the moment.
    pub(crate) fn back_ends(&self) -> BackEnds {
        self.back_ends.borrow().clone()
    }

    /// The back ends, once the first of their names is resolved.
    async fn resolved(&self) -> BackEnds {
        let known = self.back_ends();
        if !known.is_empty() {
            return known;
        }
        let mut back_ends = self.back_ends.subscribe();
        let found = back_ends.wait_for(|back_ends| !back_ends.is_empty());
        match tokio::time::timeout(self.connect_timeout, found).await {
            Ok(Ok(found)) => found.clone(),
            _ => known,
        }
    }

    /// Back end of a sticky session, or the next healthy one by `balance`; any next one if none is healthy. Not `failed`, if there is
    /// another. `None` without back ends.
    fn choose(
        &self,
        all: &[Arc<BackEnd>],
        sticky: Option<&Arc<BackEnd>>,
        failed: Option<&Arc<BackEnd>>,
    ) -> Option<Arc<BackEnd>> {
        let other = |back_end: &&Arc<BackEnd>| failed.is_none_or(|failed| !Arc::ptr_eq(failed, back_end));
        if let Some(own) = sticky.filter(|own| own.is_well()).filter(other) {
            return Some(own.clone());
        }
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let count = all.len().max(1);
        let in_turn = || (0..all.len()).map(|at| &all[(first + at) % count]);
        let well = || in_turn().filter(|back_end| back_end.is_well()).filter(other);
        let best = match self.balance {
            Balance::RoundRobin => well().next(),
            // Of equal ones the next in turn.
            Balance::LeastConnections => well().min_by_key(|back_end| back_end.in_flight()),
        };
        best.or_else(|| in_turn().find(other)).or_else(|| in_turn().next()).cloned()
    }

    /// Waits for a place with a back end; `None` when there is none in time.
    async fn enter(&self, back_end: &BackEnd) -> Option<Place> {
        let waiting = async {
            // The own one first: whoever waits for a slow back end takes no place from requests for others.
            let own = back_end.places().acquire_owned().await.ok()?;
            let all = self.places.clone().acquire_owned().await.ok()?;
            Some(Place { _own: own, _all: all, _memory: back_end.charge() })
        };
        tokio::time::timeout(self.queue_timeout, waiting).await.ok()?
    }

    /// Sends a request, whose fields are ready for the way, to a back end.
    pub(crate) async fn send(&self, request: Request<AnyBody>) -> Result<Answer, Failure> {
        let (head, body) = request.into_parts();
        let (body, fate) = with_fate(body);
        let no_content = body.is_end_stream();
        let idempotent = matches!(
            head.method,
            Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE | Method::TRACE
        );
        let mut body = Some(body);
        let mut failed: Option<Arc<BackEnd>> = None;
        let mut tries = 0;
        let all = self.resolved().await;
        let sticky = self.sticky.as_ref().and_then(|sticky| sticky.find(&head.headers, &all));
        loop {
            tries += 1;
            let Some(back_end) = self.choose(&all, sticky.as_ref(), failed.as_ref()) else {
                let reason = format!("no name of a back end was resolved within {:?}", self.connect_timeout);
                return Err(Failure { ending: Ending::Unreachable, reason, back_end: None, tries });
            };
            let mut attempt = Attempt::new(&back_end);
            let Some(place) = self.enter(&back_end).await else {
                attempt.result = "queued";
                let reason = format!("{}: no place for the request within {:?}", back_end.name(), self.queue_timeout);
                return Err(failure(&back_end, Ending::Queued, reason, tries));
            };
            let body = body.take().unwrap_or_else(|| full(""));
            let request = Request::from_parts(head.clone(), body);
            // In its place: a future that is moved into the timeout would take its room twice.
            let (timeout, queue) = (self.timeout, self.queue_timeout);
            let mut unseen = false;
            let (result, failed_by) = match tokio::time::timeout(timeout, back_end.send(request, queue)).await {
                Ok(Ok(mut response)) => {
                    if let Some(new) = &self.sticky
                        && !sticky.as_ref().is_some_and(|own| Arc::ptr_eq(own, &back_end))
                    {
                        response.headers_mut().extend(new.field(&back_end).map(|field| (header::SET_COOKIE, field)));
                    }
                    back_end.succeeded();
                    attempt.result = back_end::ANSWERED;
                    return Ok(Answer { response, place, back_end: back_end.name().to_owned(), tries });
                }
                // RFC 9112 §6.3: a body that is malformed or breaks off is the client's fault, and says nothing of the back end.
                Ok(Err(error)) if let Some(ending) = fate.get() => {
                    let reason = format!("the content of the request: {}", chain(&error));
                    (CANCELLED, failure(&back_end, ending, reason, tries))
                }
                Ok(Err(error)) => {
                    unseen = error.is_unprocessed();
                    if error.is_connect() {
                        back_end.failed();
                    }
                    let reason = format!("{}: {}", back_end.name(), chain(&error));
                    let (result, ending) = error.outcome();
                    (result, failure(&back_end, ending, reason, tries))
                }
                Err(_) => {
                    let reason = format!("{}: no answer within {:?}", back_end.name(), self.timeout);
                    ("timeout", failure(&back_end, Ending::Timeout, reason, tries))
                }
            };
            attempt.result = result;
            drop((place, attempt));
            if tries > self.retries || !no_content || !(unseen || idempotent && result == "broken") {
                return Err(failed_by);
            }
            self.metrics.back_ends.retries.inc();
            failed = Some(back_end);
        }
    }
}

fn failure(back_end: &BackEnd, ending: Ending, reason: String, tries: u32) -> Failure {
    Failure { ending, reason, back_end: Some(back_end.name().to_owned()), tries }
}

/// The result of an attempt that the client has ended, one way or another.
const CANCELLED: &str = "cancelled";

/// A request that is for a back end. Dropped, it is counted by its result.
struct Attempt {
    back_end: Arc<BackEnd>,
    result: &'static str,
}

impl Attempt {
    fn new(back_end: &Arc<BackEnd>) -> Self {
        // Until something else is known: dropped before, it was given up.
        Self { back_end: back_end.clone(), result: CANCELLED }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.back_end.count(self.result);
    }
}

/// An error with everything that led to it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
