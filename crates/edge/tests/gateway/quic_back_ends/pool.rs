//! Connections to a back end over HTTP/3: when they are shared, replaced, resumed and refused, and checks of health over them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use http::{Method, Request, Response};
use tiderace::{Profile, transport::streams::StreamsConfig};
use tokio::sync::{Notify, Semaphore};

use super::{
    back_end, connection,
    origin::{Origin, Raw, certified, gateway, route},
    text_of,
};
use crate::site::{client::Client, full, get, until, within};

/// Requests go on while a back end drains, on a new connection that resumes the session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_loses_nothing_and_the_next_connection_resumes() {
    let (waiting, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (waits, goes) = (waiting.clone(), go.clone());
    let origin = Origin::start(move |request: Request<_>, connection| {
        let (waits, goes) = (waits.clone(), goes.clone());
        async move {
            if request.uri().path() == "/slow" {
                waits.add_permits(1);
                let _ = goes.acquire().await;
            }
            Response::builder().header("x-connection", connection).body(full("ok")).unwrap()
        }
    })
    .await;
    let (site, _roots) = gateway("h3-drain", &origin.certificate, &route(origin.address, "retries = 0"));
    let (_endpoint, mut h3) = site.h3().await;
    let first = connection(&within(h3.send(get("https://localhost/"))).await.unwrap());
    let mut slow = h3.clone();
    let slow = tokio::spawn(async move { slow.send(get("https://localhost/slow")).await });
    within(waiting.acquire()).await.unwrap().forget();
    origin.drain();
    // The connection changes at some time, and no request suffers for it.
    let next = loop {
        let response = within(h3.send(get("https://localhost/"))).await.unwrap();
        assert_eq!(response.status(), 200);
        if connection(&response) != first {
            break connection(&response);
        }
    };
    assert!(next > first);
    go.add_permits(1);
    let late = within(slow).await.unwrap().unwrap();
    assert_eq!((connection(&late), within(text_of(late)).await.as_str()), (first, "ok"));
    until(|| origin.resumed.load(Ordering::SeqCst) > 0, true).await;
    let connections = format!("tiderace_edge_back_end_quic_connections{{back_end=\"h3://{}\"}}", origin.address);
    until(|| site.figure(&connections), 1.0).await;
    assert!(back_end(&site, "fall_back").is_null());
    // Without the route the connection goes, too.
    site.configure("[[route]]\nto = \"http://127.0.0.1:9\"\n");
    site.process.reload().await.unwrap();
    drop(h3);
    until(|| site.figure(&connections), 0.0).await;
}

/// RFC 9114 §4.1.1, §5.2: what a back end has not processed is sent again, whatever its method is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_processed_is_sent_again() {
    for (name, retries, status, requests) in [("h3-rejected", 1, 200, 2), ("h3-rejected-once", 0, 502, 1)] {
        let count = Arc::new(AtomicUsize::new(0));
        let counting = count.clone();
        let request = move |(mut send, _recv): super::origin::Streams| {
            let count = counting.clone();
            async move {
                if count.fetch_add(1, Ordering::SeqCst) == 0 {
                    let _ = send.reset(0x10b);
                    return;
                }
                // A status of 200, and no content.
                let _ = send.write_all(&[1, 3, 0, 0, 0xd9]).await;
                let _ = send.finish();
                let _ = send.finished().await;
            }
        };
        let origin = Raw::start(|_, _own| async move { std::future::pending().await }, request).await;
        let config = route(origin.address, &format!("retries = {retries}"));
        let (site, _roots) = gateway(name, &origin.certificate, &config);
        let mut client = Client::new(&site, "h3").await;
        let mut request = client.request(Method::POST, "/", full(""));
        // The end of the stream may come in a packet of its own: without the field, the gateway would not know that there is no content.
        request.headers_mut().insert("content-length", "0".parse().unwrap());
        let got = within(client.send(request)).await.unwrap().status();
        let log = || crate::site::read(&site.directory.0.join("access.log"));
        assert_eq!(got, status, "{name}: {}", log());
        assert_eq!(
            (count.load(Ordering::SeqCst), site.figure("tiderace_edge_retries_total")),
            (requests, f64::from(retries))
        );
    }
}

/// The back end's limit of streams is a queue with a time limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_the_back_ends_streams_wait_and_not_for_ever() {
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let (begins, goes) = (begun.clone(), go.clone());
    let streams = StreamsConfig { max_streams_bidi: 2, ..StreamsConfig::default() };
    let profile = Profile { streams, ..Profile::default() };
    let service = move |request: Request<_>, _| {
        let (begins, goes) = (begins.clone(), goes.clone());
        async move {
            if request.uri().path() == "/slow" {
                begins.add_permits(1);
                goes.notified().await;
            }
            Response::new(full("ok"))
        }
    };
    let origin = Origin::start_at("127.0.0.1:0".parse().unwrap(), &certified(), profile, service).await;
    let (site, _roots) = gateway("h3-streams", &origin.certificate, &route(origin.address, "queue-timeout = \"1 s\""));
    let (_endpoint, mut h3) = site.h3().await;
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut h3 = h3.clone();
        slow.push(tokio::spawn(async move { h3.send(get("https://localhost/slow")).await }));
    }
    within(begun.acquire_many(2)).await.unwrap().forget();
    let refused = within(h3.send(get("https://localhost/"))).await.unwrap();
    assert_eq!((refused.status().as_u16(), refused.headers().contains_key("retry-after")), (503, true));
    let queued =
        format!("tiderace_edge_back_end_requests_total{{back_end=\"h3://{}\",result=\"queued\"}}", origin.address);
    assert_eq!((site.figure(&queued), origin.accepted()), (1.0, 1));
    go.notify_one();
    go.notify_one();
    for slow in slow {
        // A permit for each, whichever waits.
        go.notify_waiters();
        go.notify_one();
        assert_eq!(within(slow).await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(within(h3.send(get("https://localhost/"))).await.unwrap().status(), 200);
}

/// More requests than a connection may have get another connection, and none waits for one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_at_a_time_get_several_connections() {
    const MANY: u32 = 60;
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begins, goes) = (begun.clone(), go.clone());
    let origin = Origin::start(move |_, _| {
        let (begins, goes) = (begins.clone(), goes.clone());
        async move {
            begins.add_permits(1);
            let _ = goes.acquire().await;
            Response::new(full("ok"))
        }
    })
    .await;
    let (site, _roots) = gateway("h3-many", &origin.certificate, &route(origin.address, ""));
    let (_endpoint, h3) = site.h3().await;
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..MANY {
        let mut h3 = h3.clone();
        asked.spawn(async move { h3.send(get("https://localhost/")).await.unwrap().status() });
    }
    within(begun.acquire_many(MANY)).await.unwrap().forget();
    assert_eq!(origin.accepted(), 3, "24 each");
    go.add_permits(1_000);
    while let Some(status) = within(asked.join_next()).await {
        assert_eq!(status.unwrap(), 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_checked_over_http3() {
    let sick = Arc::new(AtomicBool::new(false));
    let is_sick = sick.clone();
    let origin = Origin::start(move |request: Request<_>, _| {
        let status = if request.uri().path() == "/health" && is_sick.load(Ordering::SeqCst) { 500 } else { 200 };
        std::future::ready(Response::builder().status(status).body(full("")).unwrap())
    })
    .await;
    let health = "health = { path = \"/health\", interval = \"20 ms\", down-after = 2, up-after = 2 }";
    let (site, _roots) = gateway("h3-health", &origin.certificate, &route(origin.address, health));
    until(|| back_end(&site, "protocol"), "h3".into()).await;
    assert_eq!(back_end(&site, "well"), true);
    sick.store(true, Ordering::SeqCst);
    until(|| back_end(&site, "well"), false.into()).await;
    sick.store(false, Ordering::SeqCst);
    until(|| back_end(&site, "well"), true.into()).await;
    assert!(origin.accepted() <= 1, "one connection is used again and again");
}
