//! Back ends by name: each address of a name is a back end, and the name is looked up periodically.
//!
//! An address that stays keeps its connections and its health. A failed look-up changes nothing: the last good answer stays valid.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
    vec,
};

use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tiderace::ProcessBudget;
use tokio::{runtime::Handle, sync::watch};
use tower_service::Service;

use super::{BackEnd, back_end::Host};
use crate::{
    config::{Route, back_end_name},
    metrics::{Metrics, NameResult},
    resolve::Resolve,
    trust::Trust,
};

/// Addresses of a name that become back ends.
const ADDRESSES: usize = 64;
/// Time limit of a look-up.
const PATIENCE: Duration = Duration::from_secs(5);
/// A name that has never been resolved is looked up again so soon.
const SOON: Duration = Duration::from_secs(1);

/// The back ends of a route at the moment.
pub(super) type BackEnds = Arc<Vec<Arc<BackEnd>>>;

/// Addresses to which a pool connects: those of the system's resolver, or a fixed one.
#[derive(Clone)]
pub(crate) enum Resolver {
    System(GaiResolver),
    Known(IpAddr),
}

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        match self {
            Self::System(resolver) => {
                let found = resolver.call(name);
                Box::pin(async move { Ok(found.await?.collect::<Vec<_>>().into_iter()) })
            }
            // The port is that of the URL.
            Self::Known(address) => {
                let found = vec![SocketAddr::new(*address, 0)].into_iter();
                Box::pin(std::future::ready(Ok(found)))
            }
        }
    }
}

/// The parts that back ends of a route are made of.
pub(super) struct Source {
    pub(super) route: Route,
    pub(super) trust: Trust,
    pub(super) workers: Vec<Handle>,
    pub(super) resolver: Arc<dyn Resolve>,
    /// Budget of connections over QUIC.
    pub(super) memory: ProcessBudget,
    pub(super) metrics: Arc<Metrics>,
}

impl Source {
    /// Back end at `host`, reused from `known` if it is there.
    pub(super) fn back_end(
        &self,
        to: &str,
        host: Host,
        known: &[Arc<BackEnd>],
    ) -> Result<Arc<BackEnd>, crate::trust::RootsError> {
        let same = |back_end: &&Arc<BackEnd>| back_end.is_for(to, host, &self.route, &self.trust);
        match known.iter().find(same) {
            Some(back_end) => Ok(back_end.clone()),
            None => BackEnd::new(to, host, self),
        }
    }
}

/// Looks up the names of a route as long as its back ends are in use.
pub(super) async fn refresh(source: Source, every: Duration, current: Weak<watch::Sender<BackEnds>>) {
    loop {
        let mut wait = every;
        let mut found = Vec::new();
        for to in &source.route.to.0 {
            let addresses = match back_end_name(to) {
                None => None,
                Some((name, port)) => Some(look_up(&*source.resolver, &name, port).await),
            };
            let Some(current) = current.upgrade() else { return };
            let known = current.borrow().clone();
            let before = known.iter().filter(|back_end| back_end.is_of(to)).cloned();
            match addresses {
                // An address, or a name that is not resolved at the moment.
                None => found.extend(before),
                Some(Err(error)) => {
                    count(&source.metrics, to, "failed");
                    tracing::warn!("the back end {to} cannot be looked up, the last answer stays: {error}");
                    let before: Vec<_> = before.collect();
                    if before.is_empty() {
                        wait = wait.min(SOON);
                    }
                    found.extend(before);
                }
                Some(Ok(addresses)) => {
                    count(&source.metrics, to, "found");
                    for address in addresses {
                        match source.back_end(to, Host::Address(address), &known) {
                            Ok(back_end) => found.push(back_end),
                            Err(error) => tracing::warn!("the back end {to} at {address} cannot be used: {error}"),
                        }
                    }
                }
            }
        }
        {
            let Some(current) = current.upgrade() else { return };
            current.send_if_modified(|known| {
                let is_same = |(one, other)| Arc::ptr_eq(one, other);
                let changed = known.len() != found.len() || !known.iter().zip(&found).all(is_same);
                if changed {
                    let names: Vec<_> = found.iter().map(|back_end| back_end.name()).collect();
                    tracing::info!("back ends of {}: {}", source.route.name(), names.join(", "));
                    *known = Arc::new(found);
                }
                changed
            });
        }
        tokio::time::sleep(wait).await;
    }
}

fn count(metrics: &Metrics, name: &str, result: &'static str) {
    let labels = NameResult { back_end: name.to_owned(), result };
    metrics.back_ends.look_ups.get_or_create(&labels).inc();
}

/// Addresses of a name, in an order that is always the same.
async fn look_up(resolver: &dyn Resolve, name: &str, port: u16) -> io::Result<Vec<IpAddr>> {
    let found = tokio::time::timeout(PATIENCE, resolver.resolve(name, port)).await;
    let found =
        found.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {PATIENCE:?}")))??;
    let addresses: BTreeSet<IpAddr> = found.iter().map(|address| address.ip().to_canonical()).collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses.into_iter().take(ADDRESSES).collect())
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        sync::{Mutex, PoisonError},
        time::Instant,
    };

    use http::Request;
    use http_body_util::BodyExt;
    use hyper::{server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use tiderace::KeyRing;
    use tokio::{net::TcpListener, sync::Semaphore};

    use super::*;
    use crate::{
        body::full,
        config::{Many, Span},
        resolve::Lookup,
        upstream::{Surroundings, Upstream},
        worker::Workers,
    };

    /// Answers in turn, the last one for ever; `None` is a failure.
    struct Script(Mutex<VecDeque<Option<Vec<u8>>>>);

    impl Resolve for Script {
        fn resolve(&self, _: &str, port: u16) -> Lookup<'_> {
            let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
            Box::pin(async move {
                let lasts = answer.flatten().ok_or_else(|| io::Error::other("the server of names is gone"))?;
                // In another order each time, and each twice.
                let addresses =
                    lasts.iter().rev().chain(&lasts).map(|last| SocketAddr::from(([127, 0, 0, *last], port)));
                Ok(addresses.collect())
            })
        }
    }

    fn script(answers: &[Option<&[u8]>]) -> Arc<Script> {
        Arc::new(Script(Mutex::new(answers.iter().map(|answer| answer.map(<[u8]>::to_vec)).collect())))
    }

    /// The back ends of a name, of which the first is resolved with `answers`.
    fn upstream(port: u16, answers: &Arc<Script>, workers: &Workers, metrics: &Arc<Metrics>) -> Upstream {
        let route = Route {
            to: Many(vec![format!("http://app.internal:{port}")]),
            refresh: Some(Span(Duration::from_millis(20))),
            ..Route::default()
        };
        let (places, ring) = (Arc::new(Semaphore::new(100)), KeyRing::single([1; 32]));
        let resolver: Arc<dyn Resolve> = answers.clone();
        let memory = &ProcessBudget::default();
        let surroundings = Surroundings { workers, places: &places, ring: &ring, resolver: &resolver, memory, metrics };
        Upstream::new(&route, &mut Vec::new(), &surroundings).unwrap()
    }

    async fn until(upstream: &Upstream, expected: &[&str]) -> BackEnds {
        let begun = Instant::now();
        loop {
            let back_ends = upstream.back_ends();
            let names = back_ends.iter().filter_map(|back_end| back_end.name().rsplit_once(' ')).map(|(_, name)| name);
            if names.eq(expected.iter().copied()) {
                return back_ends;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{expected:?} does not come");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_address_that_stays_is_the_same_back_end_and_a_failure_changes_nothing() {
        let workers = Workers::start(1, None).unwrap();
        let metrics = Arc::new(Metrics::default());
        let mut answers = vec![Some(&[1, 2][..]); 20];
        answers.extend([Some(&[2, 3][..])].repeat(20));
        answers.extend([None].repeat(20));
        answers.push(Some(&[3][..]));
        let upstream = upstream(1, &script(&answers), &workers, &metrics);
        let first = until(&upstream, &["127.0.0.1", "127.0.0.2"]).await;
        let second = until(&upstream, &["127.0.0.2", "127.0.0.3"]).await;
        assert!(Arc::ptr_eq(&first[1], &second[0]));
        let labels = |result| NameResult { back_end: "http://app.internal:1".to_owned(), result };
        let failed = || metrics.back_ends.look_ups.get_or_create(&labels("failed")).get();
        while failed() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(Arc::ptr_eq(&second, &upstream.back_ends()), "the last good answer stands");
        let third = until(&upstream, &["127.0.0.3"]).await;
        assert!(Arc::ptr_eq(&second[1], &third[0]));
        // Nobody has it any more: it is gone from the metrics.
        drop((first, second));
        assert!(!metrics.render().contains("127.0.0.2"), "{}", metrics.render());
        let source = Arc::downgrade(&upstream.back_ends);
        drop(upstream);
        while source.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_first_request_waits_for_the_name_and_goes_to_its_address() {
        let listener = TcpListener::bind("127.0.0.5:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service_fn(|request: Request<hyper::body::Incoming>| async move {
                    let host = request.headers()["host"].to_str().unwrap_or_default().to_owned();
                    Ok::<_, std::convert::Infallible>(http::Response::new(full(host)))
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        let workers = Workers::start(1, None).unwrap();
        let metrics = Arc::new(Metrics::default());
        let late = upstream(port, &script(&[None, Some(&[5])]), &workers, &metrics);
        let request = || Request::get("/").header("host", "www.example.org").body(full("")).unwrap();
        let answer = late.send(request()).await.unwrap();
        assert_eq!(answer.back_end, format!("http://app.internal:{port} at 127.0.0.5"));
        let said = answer.response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(said, "www.example.org");
        let never = upstream(port, &script(&[None]), &workers, &metrics);
        let Err(failure) = never.send(request()).await else { panic!("it was answered") };
        assert!(failure.back_end.is_none() && failure.reason.contains("no name"), "{failure:?}");
    }
}
