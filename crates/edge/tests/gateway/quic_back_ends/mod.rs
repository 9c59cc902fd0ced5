//! Back ends over HTTP/3 (`to = "h3://…"`).

mod chain;
mod fall_back;
mod hostile;
mod interim;
pub(crate) mod origin;
mod pool;
mod priorities;
mod tunnels;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use h3_quic::{Code, server::RequestBody};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full, channel::Channel};
use tiderace::{Profile, transport::streams::StreamsConfig};
use tokio::sync::{Notify, mpsc};

use self::origin::{Origin, Raw, gateway, route};
use crate::site::{
    Body, Error, Site,
    client::{Client, VERSIONS},
    full, get, pattern, text, until, within,
};

fn fields(map: &HeaderMap) -> serde_json::Map<String, serde_json::Value> {
    map.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().into())).collect()
}

/// Says what it was asked, with the content's length and the trailers, and sends trailers itself.
async fn mirror(request: Request<RequestBody>, connection: usize) -> Response<Body> {
    let (head, body) = request.into_parts();
    let content = body.collect().await.unwrap();
    let trailers = content.trailers().cloned().unwrap_or_default();
    let said = serde_json::json!({
        "method": head.method.as_str(), "uri": head.uri.to_string(), "version": format!("{:?}", head.version),
        "fields": fields(&head.headers), "content": content.to_bytes().len(), "trailers": fields(&trailers),
    });
    let mut behind = HeaderMap::new();
    behind.insert("x-behind", "1".parse().unwrap());
    let body = Full::new(Bytes::from(said.to_string())).with_trailers(std::future::ready(Some(Ok(behind))));
    Response::builder().header("x-connection", connection).body(body.map_err(Into::into).boxed_unsync()).unwrap()
}

/// Status of the only back end of a gateway.
fn back_end(site: &Site, field: &str) -> serde_json::Value {
    site.process.status()["back_ends"][0][field].clone()
}

/// Number of the back end's connection that an answer came on.
fn connection<B>(response: &Response<B>) -> usize {
    response.headers()["x-connection"].to_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_all_versions_go_over_http3_with_content_and_trailers() {
    let origin = Origin::start(mirror).await;
    let (site, _roots) = gateway("h3-all", &origin.certificate, &route(origin.address, ""));
    for version in VERSIONS {
        let mut client = Client::new(&site, version).await;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-behind-all", "2".parse().unwrap());
        let content = Full::new(pattern(300_000)).with_trailers(std::future::ready(Some(Ok(trailers))));
        let content = content.map_err(|never: std::convert::Infallible| -> Error { match never {} }).boxed_unsync();
        let mut request = client.request(Method::POST, "/a?b", content);
        for (name, value) in [("te", "trailers"), ("trailer", "x-behind-all"), ("priority", "u=1, i")] {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let response = within(client.send(request)).await.unwrap();
        assert_eq!(response.status(), 200, "{version}");
        let whole = within(response.into_body().collect()).await.unwrap();
        let behind = whole.trailers().and_then(|trailers| trailers.get("x-behind")).cloned();
        let said: serde_json::Value = serde_json::from_slice(&whole.to_bytes()).unwrap();
        assert_eq!((&said["version"], &said["content"]), (&"HTTP/3.0".into(), &300_000.into()), "{version}: {said}");
        // It is asked under its own name; the client's is beside it.
        assert_eq!(said["uri"], format!("https://{}/a?b", origin.address));
        assert_eq!(
            (&said["fields"]["x-forwarded-host"], &said["fields"]["host"]),
            (&"localhost".into(), &serde_json::Value::Null)
        );
        assert_eq!(said["fields"]["priority"], "u=1, i");
        if version != "http/1.1" {
            assert_eq!((&said["trailers"]["x-behind-all"], behind.is_some()), (&"2".into(), true), "{version}: {said}");
        }
        let head = client.request(Method::HEAD, "/", full(""));
        let answer = within(client.send(head)).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert!(within(answer.into_body().collect()).await.unwrap().to_bytes().is_empty());
    }
    assert_eq!((back_end(&site, "protocol"), back_end(&site, "tls")), ("h3".into(), true.into()));
    assert!(back_end(&site, "fall_back").is_null());
    // One for each worker at most: requests share them.
    let connections = format!("tiderace_edge_back_end_quic_connections{{back_end=\"h3://{}\"}}", origin.address);
    let open = site.figure(&connections);
    assert!((1.0..=2.0).contains(&open) && origin.accepted() <= 2, "{open}");
}

/// A client that reads nothing holds its own streams, and no credit of the connection that others need.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_hold_up_nobody_else_on_the_connection() {
    const UNREAD: usize = 20;
    let origin = Origin::start(|request, connection| async move {
        let content = if request.uri().path() == "/large" { pattern(5_000_000) } else { Bytes::from_static(b"ok") };
        Response::builder().header("x-connection", connection).body(full(content)).unwrap()
    })
    .await;
    // Nothing else lets them go in the time of a test.
    let config = format!("limits = {{ read-timeout = \"600 s\" }}\n{}", route(origin.address, ""));
    let (site, _roots) = gateway("h3-unread", &origin.certificate, &config);
    // The heads of all answers come, and little of their content.
    let streams = StreamsConfig {
        receive_window_stream: 16 << 10,
        receive_window_max: 16 << 10,
        receive_window_connection: 64 << 20,
        ..StreamsConfig::default()
    };
    let (_endpoint, quic) = site.quic_with(b"h3", Profile { streams, ..crate::site::patient() }).await.unwrap();
    let mut greedy = h3_quic::client::begin(quic).await.unwrap();
    let mut unread = Vec::new();
    for _ in 0..UNREAD {
        unread.push(within(greedy.send(get("https://localhost/large"))).await.unwrap());
    }
    let held = connection(&unread[0]);
    assert!(unread.iter().all(|response| connection(response) == held), "they share a connection");
    // Until the windows of their streams are used up.
    let holds = || site.process.status()["memory"]["held"].as_u64().unwrap() >= UNREAD as u64 * 200_000;
    until(holds, true).await;
    let mut others = Vec::new();
    for _ in 0..64 {
        let (endpoint, mut other) = site.h3().await;
        let response = within(other.send(get("https://localhost/small"))).await.unwrap();
        let number = connection(&response);
        assert_eq!(within(text_of(response)).await, "ok");
        others.push((endpoint, other));
        if number == held {
            break;
        }
    }
    assert!(others.len() < 64, "none came to the worker with the unread responses");
    // A large one is read to its end beside them.
    let (_, other) = others.last_mut().unwrap();
    let response = within(other.send(get("https://localhost/large"))).await.unwrap();
    assert_eq!(connection(&response), held);
    assert_eq!(within(response.into_body().collect()).await.unwrap().to_bytes().len(), 5_000_000);
    // A connection has as many as its window covers, and the next ones get another.
    let mut shared = UNREAD;
    for _ in 0..10 {
        let response = within(greedy.send(get("https://localhost/large"))).await.unwrap();
        shared += usize::from(connection(&response) == held);
        unread.push(response);
    }
    assert_eq!(shared, 24);
    // What is given up gives its memory back.
    drop(unread);
    until(|| site.process.status()["memory"]["held"].as_u64().unwrap() < 2_000_000, true).await;
    until(|| back_end(&site, "requests"), 0.into()).await;
}

async fn text_of<B>(response: Response<B>) -> String
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    text(response).await
}

/// A request that the client gives up is given up at the back end, with the code for that, in both directions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_gives_up_ends_the_request_at_the_back_end() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let (begun, begins) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let begin = begins.clone();
    let request = move |(mut send, mut recv): origin::Streams| {
        let (tell, begin) = (tell.clone(), begin.clone());
        async move {
            begin.notify_one();
            let read = async {
                loop {
                    match recv.read_chunk(4096).await {
                        Ok(Some(_)) => {}
                        Ok(None) => break "end".to_owned(),
                        Err(error) => break error.to_string(),
                    }
                }
            };
            let (read, stopped) = tokio::join!(read, async { send.stopped().await.to_string() });
            tell.send((read, stopped)).unwrap();
        }
    };
    let origin = Raw::start(|_, _own| async move { std::future::pending().await }, request).await;
    let (site, _roots) = gateway("h3-given-up", &origin.certificate, &route(origin.address, ""));
    for version in VERSIONS {
        let mut client = Client::new(&site, version).await;
        let (mut content, body) = Channel::<Bytes, Error>::new(1);
        let request = client.request(Method::POST, "/", body.boxed_unsync());
        let asked = tokio::spawn(async move { client.send(request).await.map(drop) });
        content.send_data(Bytes::from_static(b"some")).await.unwrap();
        within(begins.notified()).await;
        asked.abort();
        let _ = asked.await;
        let (read, stopped) = within(told.recv()).await.unwrap();
        // Dropped before, it would be the end of the content.
        drop(content);
        let code = Code::REQUEST_CANCELLED.0.to_string();
        assert!(read.contains(&code) && stopped.contains(&code), "{version}: {read}, {stopped}");
    }
    drop(begun);
    until(|| back_end(&site, "requests"), 0.into()).await;
}

/// The back end's slow reading holds the client up, and nothing grows without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_back_end_that_does_not_read_holds_its_client_up() {
    let go = Arc::new(Notify::new());
    let going = go.clone();
    let origin = Origin::start(move |request: Request<RequestBody>, _| {
        let going = going.clone();
        async move {
            going.notified().await;
            Response::new(full(request.into_body().collect().await.unwrap().to_bytes().len().to_string()))
        }
    })
    .await;
    let (site, _roots) = gateway("h3-upload", &origin.certificate, &route(origin.address, ""));
    let (_endpoint, mut h3) = site.h3().await;
    let (mut content, body) = Channel::<Bytes, Error>::new(1);
    let request = Request::post("https://localhost/").body(body.boxed_unsync()).unwrap();
    let asked = tokio::spawn(async move { h3.send(request).await });
    let mut sent = 0_usize;
    while let Ok(taken) =
        tokio::time::timeout(Duration::from_secs(2), content.send_data(Bytes::from(vec![7; 65_536]))).await
    {
        taken.unwrap();
        sent += 65_536;
        assert!(sent < 64 << 20, "somebody takes it all");
    }
    go.notify_one();
    drop(content);
    let answer = within(asked).await.unwrap().unwrap();
    assert_eq!(within(text_of(answer)).await, sent.to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_back_end_that_is_silent_is_a_timeout_and_early_data_is_judged_by_it() {
    let origin = Origin::start(|request: Request<RequestBody>, _| async move {
        if request.uri().path() == "/silent" {
            std::future::pending::<()>().await;
        }
        Response::builder().status(425).body(full("")).unwrap()
    })
    .await;
    let (site, _roots) = gateway("h3-silent", &origin.certificate, &route(origin.address, "timeout = \"1 s\""));
    let (_endpoint, mut h3) = site.h3().await;
    assert_eq!(within(h3.send(get("https://localhost/silent"))).await.unwrap().status(), 504);
    assert_eq!(within(h3.send(get("https://localhost/"))).await.unwrap().status(), 425);
}
