//! Every end that a request can come to has one line in the access log and one count, with whose doing it was, over each version of HTTP.

use crate::site::{
    Error, Site,
    actor::Actor,
    client::{Client, VERSIONS},
    full, get1, within,
};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, channel::Channel};
use serde_json::Value;
use tokio::io::AsyncWriteExt;

/// Lines of the access log, once there are `count`.
async fn lines(site: &Site, count: usize) -> Vec<Value> {
    let path = site.directory.0.join("access.log");
    crate::site::until(|| crate::site::read(&path).lines().count() >= count, true).await;
    crate::site::read(&path).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Status, whose doing the end was, why, and whether the answer was whole.
type End = (u64, &'static str, &'static str, bool);

/// Asserts that the newest of `count` lines says this of a request.
async fn ends(site: &Site, count: &mut usize, version: &str, path: &str, expected: End) {
    *count += 1;
    let lines = lines(site, *count).await;
    let line = lines.last().unwrap();
    let (status, by, why, complete) = expected;
    let said = (line["protocol"].as_str(), line["path"].as_str(), line["status"].as_u64());
    assert_eq!(said, (Some(version), Some(path), Some(status)), "{line}");
    let said = (line["ended_by"].as_str(), line["reason"].as_str(), line["complete"].as_bool());
    assert_eq!(said, (Some(by), Some(why), Some(complete)), "{line}");
    assert_eq!(lines.len(), *count, "{line}");
    assert_eq!(line["first_byte_ms"].is_null(), status == 499, "{line}");
}

/// Routes to a back end, to one that is not there, and with little patience.
fn routes(actor: &Actor, h2c: &Actor) -> String {
    let gone = "http://127.0.0.1:1";
    let to = &actor.url;
    let mut routes = String::new();
    for path in ["ok", "none", "same", "error", "big", "upload", "hang", "stall", "endless", "close", "cut", "switch"] {
        routes += &format!("[[route]]\npath = \"/{path}\"\nto = \"{to}\"\nretries = 0\n");
    }
    routes += &format!("[[route]]\npath = \"/trailers\"\nto = \"{}\"\n", h2c.url);
    routes += &format!("[[route]]\npath = \"/hang/late\"\nto = \"{to}\"\ntimeout = \"200 ms\"\n");
    routes += &format!("[[route]]\npath = \"/hang/full\"\nto = \"{to}\"\nrequests = 1\nqueue-timeout = \"100 ms\"\n");
    routes += &format!("[[route]]\npath = \"/stall/slow\"\nto = \"{to}\"\ncontent-timeout = \"200 ms\"\n");
    routes + &format!("[[route]]\npath = \"/gone\"\nto = \"{gone}\"\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_has_one_line_that_says_whose_doing_it_was() {
    let (actor, h2c) = (Actor::start(false).await, Actor::start(true).await);
    let site = Site::start("ends", &routes(&actor, &h2c));
    let mut count = 0;
    for (number, version) in VERSIONS.into_iter().enumerate() {
        // Answers that come whole, whoever gives them.
        for (path, method, expected) in [
            ("/ok", Method::GET, (200, "answer", "complete", true)),
            ("/ok", Method::HEAD, (200, "answer", "complete", true)),
            ("/big", Method::HEAD, (200, "answer", "complete", true)),
            ("/big", Method::GET, (200, "answer", "complete", true)),
            ("/none", Method::GET, (204, "answer", "complete", true)),
            ("/same", Method::GET, (304, "answer", "complete", true)),
            ("/trailers", Method::GET, (200, "answer", "complete", true)),
            ("/error", Method::GET, (500, "answer", "complete", true)),
            ("/close", Method::GET, (502, "back_end", "broken", true)),
            ("/gone", Method::GET, (502, "back_end", "unreachable", true)),
            ("/hang/late", Method::GET, (504, "back_end", "timeout", true)),
            ("/nowhere", Method::GET, (404, "gateway", "refused", true)),
            ("/ok", Method::TRACE, (405, "gateway", "refused", true)),
            ("/ok/%zz", Method::GET, (400, "client", "malformed", true)),
        ] {
            let mut client = Client::new(&site, version).await;
            let answer = client.send(client.request(method, path, full(""))).await.unwrap();
            assert_eq!(u64::from(answer.status().as_u16()), expected.0, "{version} {path}");
            answer.into_body().collect().await.unwrap();
            ends(&site, &mut count, version, path, expected).await;
        }
        // What breaks off in the middle.
        let mut client = Client::new(&site, version).await;
        if let Ok(answer) = client.get("/cut").await {
            assert!(answer.into_body().collect().await.is_err());
        }
        ends(&site, &mut count, version, "/cut", (200, "back_end", "broken", false)).await;
        let mut client = Client::new(&site, version).await;
        let answer = client.get("/stall/slow").await.unwrap();
        assert!(within(answer.into_body().collect()).await.is_err());
        ends(&site, &mut count, version, "/stall/slow", (200, "back_end", "timeout", false)).await;
        // The client gives up: before the head, in the content, in its own content.
        let path = format!("/hang/{number}");
        let mut client = Client::new(&site, version).await;
        tokio::select! {
            _ = client.get(&path) => panic!("there is no answer"),
            () = actor.seen.wait(&path) => {}
        }
        drop(client);
        ends(&site, &mut count, version, &path, (499, "client", "cancelled", false)).await;
        let mut client = Client::new(&site, version).await;
        let mut answer = client.get("/stall").await.unwrap().into_body();
        answer.frame().await.unwrap().unwrap();
        drop((answer, client));
        ends(&site, &mut count, version, "/stall", (200, "client", "cancelled", false)).await;
        for (kind, length) in [("chunked", None), ("sized", Some("1000"))] {
            let path = format!("/upload/{kind}-{number}");
            let (mut sender, body) = Channel::<Bytes, Error>::new(1);
            let mut client = Client::new(&site, version).await;
            let mut request = client.request(Method::POST, &path, body.boxed_unsync());
            if let Some(length) = length {
                request.headers_mut().insert("content-length", length.parse().unwrap());
            }
            sender.send_data(Bytes::from_static(b"something")).await.unwrap();
            tokio::select! {
                _ = client.send(request) => panic!("there is no answer"),
                () = actor.seen.wait(&path) => {}
            }
            drop(client);
            ends(&site, &mut count, version, &path, (499, "client", "cancelled", false)).await;
            drop(sender);
            assert!(!actor.seen.has(&format!("{path}#whole")), "what was cut off does not look whole");
        }
        // A place that another request has.
        let mut first = Client::new(&site, version).await;
        let holder = format!("/hang/full/{number}");
        let mut client = Client::new(&site, version).await;
        {
            let mut holding = std::pin::pin!(first.get(&holder));
            tokio::select! {
                _ = &mut holding => panic!("there is no answer"),
                () = actor.seen.wait(&holder) => {}
            }
            tokio::select! {
                _ = &mut holding => panic!("there is no answer"),
                refused = client.get("/hang/full/other") => {
                    let refused = refused.unwrap();
                    assert_eq!(refused.status(), 503);
                    refused.into_body().collect().await.unwrap();
                }
            }
            ends(&site, &mut count, version, "/hang/full/other", (503, "limit", "queued", true)).await;
        }
        drop(first);
        ends(&site, &mut count, version, &holder, (499, "client", "cancelled", false)).await;
    }
    let result = |result: &str| {
        let line = format!("tiderace_edge_back_end_requests_total{{back_end=\"{}\",result=\"{result}\"}}", actor.url);
        site.figure(&line)
    };
    // Given up: before the head, two uploads, and the one with the place, over each version.
    assert_eq!((result("cancelled"), result("broken"), result("timeout"), result("queued")), (12.0, 3.0, 3.0, 3.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_on_time_are_limits() {
    let (actor, h2c) = (Actor::start(false).await, Actor::start(true).await);
    let limits = "[limits]\ncontent-timeout = \"300 ms\"\nread-timeout = \"300 ms\"\n";
    let site = Site::start("ends-limits", &format!("{limits}{}", routes(&actor, &h2c)));
    let mut count = 0;
    for version in VERSIONS {
        let mut client = Client::new(&site, version).await;
        let (mut sender, body) = Channel::<Bytes, Error>::new(1);
        sender.send_data(Bytes::from_static(b"something")).await.unwrap();
        let answer = client.send(client.request(Method::POST, "/upload", body.boxed_unsync())).await;
        assert!(answer.is_ok_and(|answer| answer.status() == 408), "{version}");
        ends(&site, &mut count, version, "/upload", (408, "limit", "slow-content", true)).await;
        let mut client = Client::new(&site, version).await;
        let unread = client.get("/endless").await.unwrap();
        ends(&site, &mut count, version, "/endless", (200, "limit", "unread", false)).await;
        drop(unread);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_cuts_requests_off_says_so() {
    for waits in [true, false] {
        let (actor, h2c) = (Actor::start(false).await, Actor::start(true).await);
        let site = Site::start(&format!("ends-stop-{waits}"), &routes(&actor, &h2c));
        let file = site.directory.0.join("edge.toml");
        std::fs::write(&file, crate::site::read(&file).replace("drain = \"5 s\"", "drain = \"100 ms\"")).unwrap();
        site.process.reload().await.unwrap();
        let mut asking = tokio::task::JoinSet::new();
        for version in VERSIONS {
            let mut client = Client::new(&site, version).await;
            asking.spawn(async move { drop(client.get(&format!("/hang/{version}")).await) });
        }
        for version in VERSIONS {
            actor.seen.wait(&format!("/hang/{version}")).await;
        }
        if waits {
            site.process.drain().await;
        }
        let Site { process, books, directory, .. } = site;
        drop(process);
        let text = crate::site::read(&directory.0.join("access.log"));
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for line in &lines {
            let said = (line["status"].as_u64(), line["ended_by"].as_str(), line["reason"].as_str());
            assert_eq!(said, (Some(503), Some("gateway"), Some("drained")), "{line}");
        }
        assert_eq!(lines.len(), 3);
        drop(books);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnels_have_one_line_in_their_end() {
    let (actor, h2c) = (Actor::start(false).await, Actor::start(true).await);
    let site = Site::start("ends-tunnels", &routes(&actor, &h2c));
    let mut count = 0;
    for (number, version) in VERSIONS.into_iter().enumerate() {
        for gives_up in [false, true] {
            let path = format!("/switch/{number}-{gives_up}");
            let mut client = Client::new(&site, version).await;
            if version == "h2" {
                // The server's settings have to have come before an extended CONNECT may be sent.
                client.get("/ok").await.unwrap();
                ends(&site, &mut count, version, "/ok", (200, "answer", "complete", true)).await;
            }
            let (sender, body) = Channel::<Bytes, Error>::new(1);
            let request = match version {
                "http/1.1" => {
                    let mut request = get1(&path);
                    request.headers_mut().insert("connection", "upgrade".parse().unwrap());
                    request.headers_mut().insert("upgrade", "websocket".parse().unwrap());
                    request
                }
                "h2" => {
                    let protocol = hyper::ext::Protocol::from_static("websocket");
                    client.request(Method::CONNECT, &path, full("")).map_ext(protocol)
                }
                _ => {
                    let protocol = h3_quic::Protocol::from_static("websocket");
                    client.request(Method::CONNECT, &path, body.boxed_unsync()).map_ext(protocol)
                }
            };
            let status = if version == "http/1.1" { 101 } else { 200 };
            let mut answer = client.send(request).await.unwrap();
            assert_eq!(u64::from(answer.status().as_u16()), status);
            let in_flight = format!("tiderace_edge_requests_in_flight{{protocol=\"{version}\"}}");
            assert_eq!(site.figure(&in_flight), 1.0, "a tunnel is in flight until it ends");
            if version == "h3" {
                // A tunnel on a stream: its end is the end of what the client sends.
                drop(if gives_up { None } else { Some(sender) });
                if !gives_up {
                    answer.into_body().collect().await.unwrap();
                } else {
                    drop((answer, client));
                }
            } else {
                let mut stream = hyper_util::rt::TokioIo::new(hyper::upgrade::on(&mut answer).await.unwrap());
                stream.write_all(b"hello").await.unwrap();
                within(tokio::io::AsyncReadExt::read_exact(&mut stream, &mut [0; 5])).await.unwrap();
                if gives_up {
                    drop((stream, client));
                } else {
                    stream.shutdown().await.unwrap();
                    within(tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut Vec::new())).await.unwrap();
                }
            }
            let whole = (status, "answer", "complete", true);
            // For hyper a stream of HTTP/2 that is cancelled is one that has ended.
            if version == "h2" && gives_up {
                count += 1;
                let said = lines(&site, count).await;
                assert_eq!((said.len(), said.last().unwrap()["path"].as_str()), (count, Some(path.as_str())));
            } else {
                let expected = if gives_up { (status, "client", "cancelled", false) } else { whole };
                ends(&site, &mut count, version, &path, expected).await;
            }
        }
        let requests = if version == "h2" { 2.0 } else { 0.0 };
        let timed = site.figure(&format!("tiderace_edge_request_seconds_count{{protocol=\"{version}\"}}"));
        assert_eq!(timed, requests, "{version}: the time of a tunnel is none of a request");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_with_trailers_are_compared_as_others_are() {
    let (actor, h2c) = (Actor::start(false).await, Actor::start(true).await);
    let policy = "[[policy]]\nname = \"all\"\nnetwork = \"127.0.0.0/8\"\ncongestion = \"bbr3\"\n";
    for path in ["/big", "/trailers"] {
        let site = Site::start("compared", &format!("{policy}{}", routes(&actor, &h2c)));
        let (_endpoint, quic) = site.quic(b"h3").await;
        let mut h3 = h3_quic::client::begin(quic.clone()).await.unwrap();
        let answer = h3.send(crate::site::get(&format!("https://localhost{path}"))).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().trailers().is_some(), path == "/trailers");
        // The request ends when its answer is handed on, which the client may see first.
        crate::site::until(|| site.books.ledger().open(), 0).await;
        quic.close(0x100, b"");
        let arm = || site.process.arms()["arms"]["all"]["with"].clone();
        crate::site::until(|| arm()["connections"].clone(), 1.into()).await;
        assert!(arm()["samples"][0]["rate"].is_number(), "{path}: {}", arm());
    }
}

trait MapExt {
    fn map_ext<T: Clone + Send + Sync + 'static>(self, extension: T) -> Self;
}

impl<B> MapExt for Request<B> {
    fn map_ext<T: Clone + Send + Sync + 'static>(mut self, extension: T) -> Self {
        self.extensions_mut().insert(extension);
        self
    }
}
