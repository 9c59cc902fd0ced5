//! Thousands of requests over all versions of HTTP, given up at random by clients, back ends and the gateway: the books balance to the
//! last one, and what clients give up is no error of the site.
//!
//! `BOOKS_REQUESTS=100000` makes it as many, and `BOOKS_FIGURES=PATH` writes the metrics after clients' aborts alone there.

mod site;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use http_body_util::{BodyExt, channel::Channel};
use serde_json::Value;
use site::{
    Site,
    actor::Actor,
    books::Ledger,
    client::{Client, VERSIONS},
    full,
};

/// Workers of each version.
const EACH: u64 = 8;

fn requests() -> u64 {
    std::env::var("BOOKS_REQUESTS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000)
}

/// Numbers that are the same for the same seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Outcome of a request as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Saw {
    /// An answer with this status, whole.
    Whole(u16),
    /// An answer with this status that broke off, or that it gave up.
    Part(u16),
    /// No answer. The back end had seen the request, so it had begun.
    Nothing,
    /// No answer, and perhaps nobody has seen the request.
    Unknown,
}

/// Treatment of a request by its client.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    /// Goes through, as far as the client is concerned.
    Read,
    /// Given up as soon as the back end has seen it.
    BeforeHead,
    /// Given up at once.
    AtOnce,
    /// Given up in the middle of the answer.
    InAnswer,
    /// Given up in the middle of its own content.
    InContent,
}

/// A request by lot: the first segment of its path, and what the client does with it.
fn draw(random: &mut Random, only_clients: bool) -> (&'static str, Act) {
    let by_client = [
        ("ok", Act::Read),
        ("ok", Act::Read),
        ("big", Act::Read),
        ("trailers", Act::Read),
        ("hang", Act::BeforeHead),
        ("ok", Act::AtOnce),
        ("stall", Act::InAnswer),
        ("big", Act::InAnswer),
        ("upload", Act::InContent),
        ("upload", Act::Read),
    ];
    let by_others = [
        ("close", Act::Read),
        ("cut", Act::Read),
        ("gone", Act::Read),
        ("error", Act::Read),
        // Nobody answers for the path, and nobody for such a path.
        ("nowhere", Act::Read),
        ("%zz", Act::Read),
        // No more than one at a time, and no place to wait.
        ("ok-one", Act::Read),
        ("hang", Act::BeforeHead),
    ];
    let all = by_client.len() + if only_clients { 0 } else { by_others.len() };
    let at = random.below(all as u64) as usize;
    by_client.into_iter().chain(by_others).nth(at).unwrap()
}

/// Does one request; whether the connection can be used again.
async fn act(client: &mut Client, actor: &Actor, path: &str, act: Act) -> (Saw, bool) {
    let is_upload = path.starts_with("/upload");
    let (mut sender, body) = Channel::<Bytes, site::Error>::new(1);
    let method = if is_upload { http::Method::POST } else { http::Method::GET };
    let body = if act == Act::InContent { body.boxed_unsync() } else { full(if is_upload { "content" } else { "" }) };
    let request = client.request(method, path, body);
    if act == Act::InContent {
        sender.send_data(Bytes::from_static(b"something")).await.unwrap();
    }
    let goes_on = client.is_shared();
    let answer = match act {
        Act::Read | Act::InAnswer => client.send(request).await,
        Act::BeforeHead | Act::InContent => {
            tokio::select! {
                biased;
                answer = client.send(request) => answer,
                () = actor.seen.wait(path) => {
                    // Its end without a word would make the content whole.
                    sender.abort("given up".into());
                    return (Saw::Nothing, goes_on);
                }
            }
        }
        Act::AtOnce => {
            tokio::select! {
                biased;
                answer = client.send(request) => answer,
                () = tokio::task::yield_now() => return (Saw::Unknown, goes_on),
            }
        }
    };
    let Ok(answer) = answer else { return (Saw::Unknown, goes_on) };
    let status = answer.status().as_u16();
    let mut content = answer.into_body();
    if act == Act::InAnswer {
        let _ = content.frame().await;
        return (Saw::Part(status), goes_on);
    }
    match content.collect().await {
        Ok(_) => (Saw::Whole(status), true),
        Err(_) => (Saw::Part(status), goes_on),
    }
}

/// Sends requests by lot; gives what was seen of each by its path.
async fn drive(
    site: Arc<Site>,
    actor: Arc<Actor>,
    phase: &'static str,
    count: u64,
) -> HashMap<String, (&'static str, Saw)> {
    let next = Arc::new(AtomicU64::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..EACH * VERSIONS.len() as u64 {
        let version = VERSIONS[number as usize % VERSIONS.len()];
        let (site, actor, next) = (site.clone(), actor.clone(), next.clone());
        workers.spawn(async move {
            let mut random = Random(number + if phase == "clients" { 1_000 } else { 2_000 });
            let mut seen = HashMap::new();
            let mut client = Client::new(&site, version).await;
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count {
                    return seen;
                }
                let (kind, does) = draw(&mut random, phase == "clients");
                let path = format!("/{kind}/{phase}-{at}");
                let (saw, goes_on) = act(&mut client, &actor, &path, does).await;
                seen.insert(path, (version, saw));
                // A connection that has ended, and some that are not.
                if !goes_on || random.below(200) == 0 {
                    client = Client::new(&site, version).await;
                }
            }
        });
    }
    let mut all = HashMap::new();
    while let Some(seen) = workers.join_next().await {
        all.extend(seen.unwrap());
    }
    all
}

/// The sum of a metric's values over the labels that fit.
fn sum(figures: &str, fits: impl Fn(&str) -> bool) -> f64 {
    let lines = figures.lines().filter_map(|line| line.strip_prefix("tiderace_edge_requests_total{")?.rsplit_once(' '));
    lines.filter(|(labels, _)| fits(labels)).fold(0.0, |sum, (_, value)| sum + value.parse::<f64>().unwrap())
}

/// The numerator of `tiderace_edge:errors:ratio5m` in deploy/prometheus/rules.yml.
fn errors(figures: &str) -> f64 {
    sum(figures, |labels| labels.contains("status=\"5xx\"") && !labels.contains("ended_by=\"client\""))
        + sum(figures, |labels| !labels.contains("status=\"5xx\"") && labels.contains("ended_by=\"back_end\""))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_books_balance_to_the_last_request() {
    let count = requests();
    let (actor, h2c) = (Arc::new(Actor::start(false).await), Actor::start(true).await);
    let mut routes = "[limits]\ncancelled-requests = 1000000\nconnections-per-address = 100000\n".to_owned();
    for path in ["ok", "big", "upload", "hang", "stall", "close", "cut", "error"] {
        routes += &format!("[[route]]\npath = \"/{path}\"\nto = \"{}\"\n", actor.url);
    }
    routes += &format!("[[route]]\npath = \"/trailers\"\nto = \"{}\"\n", h2c.url);
    routes += "[[route]]\npath = \"/gone\"\nto = \"http://127.0.0.1:1\"\n";
    routes +=
        &format!("[[route]]\npath = \"/ok-one\"\nto = \"{}\"\nrequests = 1\nqueue-timeout = \"1 ms\"\n", actor.url);
    let site = Arc::new(Site::start("balance", &routes));
    let mut seen = drive(site.clone(), actor.clone(), "clients", count / 2).await;
    // What is given up is noticed by and by.
    let figures = || site.process.figures();
    site::until(|| Ledger::read(&figures()).open(), 0).await;
    let by_clients = figures();
    assert_eq!(errors(&by_clients), 0.0, "clients' aborts are no errors of the site: {by_clients}");
    let given_up = sum(&by_clients, |labels| labels.contains("ended_by=\"client\""));
    assert!(given_up > count as f64 / 10.0, "{given_up} requests were given up");
    if let Ok(path) = std::env::var("BOOKS_FIGURES") {
        std::fs::write(path, &by_clients).unwrap();
    }
    seen.extend(drive(site.clone(), actor.clone(), "all", count - count / 2).await);
    site::until(|| Ledger::read(&figures()).open(), 0).await;
    let ledger = Ledger::read(&figures());
    let all = figures();
    let Ok(site) = Arc::try_unwrap(site) else { panic!("nobody else has the site") };
    let Site { process, books, directory, .. } = site;
    drop(process);
    drop(books);
    let text = site::read(&directory.0.join("access.log"));
    let mut lines: HashMap<&str, Vec<Value>> = HashMap::new();
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        let path = line.split_once("\"path\":\"").unwrap().1.split_once('"').unwrap().0;
        lines.entry(path).or_default().push(value);
    }
    // Requests over HTTP/2 whose connection went before the gateway was given them have a line without a path.
    let nameless = lines.remove("-").unwrap_or_default();
    let is_nameless = |line: &Value| line["protocol"] == "h2" && line["reason"] == "cancelled" && line["method"] == "-";
    assert!(nameless.iter().all(is_nameless), "{nameless:#?}");
    let mut unseen = 0;
    let mut differences = Vec::new();
    for (path, (version, saw)) in &seen {
        let of = lines.remove(path.as_str()).unwrap_or_default();
        let right = match (&of[..], saw) {
            ([], Saw::Unknown) => {
                unseen += 1;
                true
            }
            ([line], _) => {
                let (status, by, whole) =
                    (line["status"].as_u64().unwrap(), line["ended_by"].as_str().unwrap(), &line["complete"]);
                let is_right = match *saw {
                    Saw::Whole(seen) => status == u64::from(seen) && *whole == true && by == doing(path, seen),
                    // It may have been handed on as a whole before the client gave it up.
                    Saw::Part(seen) => status == u64::from(seen) && (*whole == true || by == doing(path, 0)),
                    Saw::Nothing => status == 499 && by == "client",
                    Saw::Unknown => true,
                };
                is_right && line["protocol"] == *version
            }
            _ => false,
        };
        if !right {
            differences.push(format!("{version} {path} {saw:?}: {of:?}"));
        }
    }
    differences.extend(lines.iter().map(|(path, lines)| format!("nobody has asked for {path}: {lines:?}")));
    assert!(nameless.len() <= unseen, "{} lines without a path, {unseen} requests without a line", nameless.len());
    let ended = ledger.ended();
    let written = text.lines().count() as u64 + ledger.lines_dropped;
    println!("measured requests sent: {}", seen.len());
    println!("measured requests begun: {}", ledger.requests.values().map(|account| account.begun).sum::<u64>());
    println!("measured requests ended: {ended}");
    println!("measured lines written or counted as dropped: {written}");
    println!("measured differences between clients and books: {}", differences.len());
    println!("measured errors in clients' aborts: {}", errors(&by_clients));
    for by in ["answer", "client", "back_end", "gateway", "limit"] {
        println!("measured ended by {by}: {}", sum(&all, |labels| labels.contains(&format!("ended_by=\"{by}\""))));
    }
    assert!(
        differences.is_empty(),
        "{} differences: {:#?}",
        differences.len(),
        &differences[..differences.len().min(20)]
    );
    assert_eq!((ended, seen.len() as u64), (written, count));
}

/// Party that ended a request, by its path and its status; status 0: broken off.
fn doing(path: &str, status: u16) -> &'static str {
    let kind = path.split('/').nth(1).unwrap_or_default();
    match (kind, status) {
        ("close" | "gone", 502) | ("cut", _) => "back_end",
        ("nowhere", 404) => "gateway",
        ("%zz", 400) => "client",
        ("ok-one", 503) => "limit",
        (_, 0) => "client",
        _ => "answer",
    }
}
