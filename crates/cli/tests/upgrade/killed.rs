//! A process of two is killed: how soon its clients are served again, and how often what may happen once only reaches the back end.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use client::{Client, KnownAddresses, Leg, Route, Settings, Trust};
use emu::{Relay, RelayConfig};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use netem::LinkConfig;
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    clients::Site,
    fleet::{Fleet, LIMIT, signal},
    load::{Load, hold},
    mix::Kind,
    number,
};

/// One-way delay of the path.
const DELAY: Duration = Duration::from_millis(10);
/// Time that the back end takes for an answer: some requests are in progress there at any time.
const WORK: Duration = Duration::from_millis(20);
/// Time after which a client gives up a request whose process is gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// Header field with the number of a request.
const NUMBER: &str = "x-number";

/// Back end that counts how often each request arrives.
#[derive(Clone, Default)]
struct BackEnd(Arc<Mutex<HashMap<u64, u32>>>);

impl BackEnd {
    async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let this = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let this = this.clone();
                let answer = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                    let number = request.headers()[NUMBER].to_str().unwrap().parse().unwrap();
                    *this.0.lock().unwrap().entry(number).or_default() += 1;
                    async {
                        tokio::time::sleep(WORK).await;
                        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
                    }
                });
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        address
    }

    /// Requests that arrived, and those that arrived more than once.
    fn counts(&self) -> (usize, usize) {
        let seen = self.0.lock().unwrap();
        (seen.len(), seen.values().filter(|times| **times > 1).count())
    }
}

/// Client over QUIC, as a program has it.
struct Visitor {
    client: Client,
    route: Route,
    host: String,
    /// Requests without an answer, and new connections: why, and after what time.
    seen: Mutex<Vec<String>>,
}

impl Visitor {
    fn new(fleet: &Fleet, relay: SocketAddr) -> Self {
        let port = fleet.address.port();
        let client = Client::with(&Settings {
            trust: Trust::Pem(std::fs::read(fleet.folder.0.join("cert.pem")).unwrap()),
            addresses: vec![KnownAddresses { host: "localhost".to_owned(), port, addresses: vec![fleet.address.ip()] }],
            ..Settings::default()
        });
        let route = Route { only: Some(Leg::Quic), udp: Some(relay), fresh: false };
        Self { client: client.unwrap(), route, host: format!("https://localhost:{port}"), seen: Mutex::default() }
    }

    /// Whether the answer came over a new connection; `None` when there was none.
    async fn ask(&self, method: Method, path: &str, number: u64) -> Option<bool> {
        let request = Request::builder().method(method).uri(format!("{}/{path}", self.host)).header(NUMBER, number);
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let begun = Instant::now();
        let note = |what: String| self.seen.lock().unwrap().push(format!("{path}, {:?}: {what}", begun.elapsed()));
        let sent = tokio::time::timeout(PATIENCE, self.client.send(request, &self.route)).await;
        let fetched = sent.inspect_err(|_| note("no answer".to_owned())).ok()?;
        let fetched = fetched.inspect_err(|error| note(error.to_string())).ok()?;
        if !fetched.reused {
            note("a new connection".to_owned());
        }
        assert_eq!(fetched.response.status(), 200, "{path}");
        fetched.response.into_body().collect().await.ok()?;
        Some(!fetched.reused)
    }

    /// Asks for a file until it comes over a new connection, which is at the process that lives. Returns the time of that.
    async fn is_served_again(&self) -> Instant {
        let begun = Instant::now();
        while self.ask(Method::GET, "small", 0).await != Some(true) {
            assert!(begun.elapsed() < LIMIT, "a client is not served again");
        }
        Instant::now()
    }

    /// Posts without content, which nothing but the method keeps from being sent twice. Returns how many had no answer.
    async fn post(&self, numbers: &AtomicU64, stop: &AtomicBool) -> u64 {
        let mut unanswered = 0;
        while !stop.load(Ordering::Relaxed) {
            let number = numbers.fetch_add(1, Ordering::Relaxed);
            unanswered += u64::from(self.ask(Method::POST, "post", number).await.is_none());
        }
        unanswered
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_process_that_is_killed_are_served_again_and_no_post_arrives_twice() {
    let (rounds, each) = (number("EDGE_KILLS", 1), number("EDGE_KILLED_CLIENTS", 4));
    let back_end = BackEnd::default();
    let to = back_end.start().await;
    let (numbers, mut unanswered, mut times) = (Arc::new(AtomicU64::new(0)), 0, Vec::new());
    for _ in 0..rounds {
        let mut fleet = Fleet::with("killed-clients", "", "");
        let text = std::fs::read_to_string(&fleet.file).unwrap();
        let route = format!("[[route]]\npath = \"/post\"\nto = [\"http://{to}\"]\n[[route]]");
        std::fs::write(&fleet.file, text.replace("[[route]]", &route)).unwrap();
        assert!(crate::gateway::edge("reload", &fleet.file).status().unwrap().success());
        let link = LinkConfig { delay: DELAY, ..LinkConfig::default() };
        let relay = RelayConfig {
            up: link.clone(),
            down: link,
            ..RelayConfig::new("127.0.0.1:0".parse().unwrap(), fleet.address)
        };
        let relay = Relay::start(&relay).unwrap();
        let visitors: Vec<_> = (0..2 * each).map(|_| Arc::new(Visitor::new(&fleet, relay.address()))).collect();
        for visitor in &visitors {
            assert_eq!(visitor.ask(Method::GET, "small", 0).await, Some(true));
        }
        fleet.upgrade();
        let pause = Duration::from_millis(2);
        let (load, stop) = (Load::new(pause), Arc::new(AtomicBool::new(false)));
        // A client of the process that lives.
        let other = tokio::spawn(hold(load.clone(), Site::of(&fleet), Kind::Http3, u64::MAX, pause));
        let (readers, writers) = visitors.split_at(each as usize);
        let mut posts = JoinSet::new();
        for visitor in writers {
            let (visitor, numbers, stop) = (visitor.clone(), numbers.clone(), stop.clone());
            posts.spawn(async move { visitor.post(&numbers, &stop).await });
        }
        let mut served = JoinSet::new();
        for visitor in readers {
            let visitor = visitor.clone();
            served.spawn(async move { visitor.is_served_again().await });
        }
        // Any longer pause has the same effect: all have their connection at the old process.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let seen = || readers.iter().map(|visitor| visitor.seen.lock().unwrap().clone()).collect::<Vec<_>>();
        assert!(served.try_join_next().is_none(), "a client has left the old process before its end: {:?}", seen());
        let (posted, killed) = (numbers.load(Ordering::Relaxed), Instant::now());
        signal(fleet.first_id(), "KILL");
        while let Some(at) = served.join_next().await {
            times.push(at.unwrap() - killed);
        }
        // The writers are served again, too.
        while numbers.load(Ordering::Relaxed) < posted + 4 * each {
            assert!(killed.elapsed() < LIMIT, "no further POST");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.store(true, Ordering::Relaxed);
        load.end();
        while let Some(lost) = posts.join_next().await {
            unanswered += lost.unwrap();
        }
        other.await.unwrap();
        load.check();
    }
    times.sort();
    let (arrived, twice) = back_end.counts();
    for time in &times {
        println!("measured time until a client is served again, ms: {:.1}", time.as_secs_f64() * 1e3);
    }
    println!("measured RTT, ms: {}", 2 * DELAY.as_millis());
    println!("measured POST requests: {}", numbers.load(Ordering::Relaxed));
    println!("measured POST requests without an answer: {unanswered}");
    println!("measured POST requests that arrived twice: {twice}");
    assert_eq!(twice, 0, "of {arrived}");
    assert!(unanswered > 0, "no POST was in progress");
    assert!(
        arrived as u64 + unanswered >= numbers.load(Ordering::Relaxed),
        "{arrived} arrived, {unanswered} without an answer"
    );
}
