//! Streams that are reserved before their request is known: the server's limit, a server that takes its leave, and content as copies.

mod pair;

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
};

use http::{Request, Response};
use http_body_util::BodyExt;
use pair::{Answer, endpoints, full, get, pair, within};
use tiderace_h3::{
    Error, RequestBody,
    client::{Options, begin_with},
    server,
};
use tokio::sync::Semaphore;

/// Streams that a server permits at a time, as the default of a profile says.
const STREAMS: usize = 100;

async fn echo(request: Request<RequestBody>) -> Answer {
    let content = request.into_body().collect().await.unwrap().to_bytes();
    Response::new(full(content))
}

#[tokio::test]
async fn a_stream_comes_when_the_limit_allows_it_and_no_sooner() {
    let pair = pair(server::Options::default(), echo).await;
    let mut reserved = Vec::new();
    for _ in 0..STREAMS {
        reserved.push(within(pair.request.reserve()).await.unwrap());
    }
    let mut next = pin!(pair.request.reserve());
    assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    for stream in reserved {
        let request = Request::post("https://localhost/").body(full("content")).unwrap();
        let answer = within(stream.send(request)).await.unwrap();
        assert_eq!(within(answer.into_body().collect()).await.unwrap().to_bytes(), "content");
    }
    let next = within(next).await.unwrap();
    assert_eq!(within(next.send(get("/"))).await.unwrap().status(), 200);
}

#[tokio::test]
async fn nothing_is_reserved_with_a_server_that_takes_its_leave() {
    let release = Arc::new(Semaphore::new(0));
    let (waits, begun) = (release.clone(), Arc::new(Semaphore::new(0)));
    let begins = begun.clone();
    let pair = pair(server::Options::default(), move |_| {
        let (waits, begins) = (waits.clone(), begins.clone());
        async move {
            begins.add_permits(1);
            let _ = waits.acquire().await;
            Response::new(full("late"))
        }
    })
    .await;
    assert!(pair.request.is_open());
    let mut requests = pair.request.clone();
    let asked = tokio::spawn(async move { requests.send(get("/")).await });
    within(begun.acquire()).await.unwrap().forget();
    pair.drain.notify_one();
    while pair.request.is_open() {
        // The GOAWAY is on its way.
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let refused = within(pair.request.reserve()).await.unwrap_err();
    assert!(matches!(refused, Error::GoingAway) && refused.is_unprocessed(), "{refused}");
    release.add_permits(1);
    let answer = within(asked).await.unwrap().unwrap();
    assert_eq!(within(answer.into_body().collect()).await.unwrap().to_bytes(), "late");
    // It goes once nothing is in progress, and says so.
    within(pair.quic.closed()).await;
    assert!(!pair.request.is_open() && within(pair.request.reserve()).await.is_err());
}

#[tokio::test]
async fn copies_are_joined() {
    let (_server, _client, accepted, quic) = endpoints().await;
    let sends = |_| async { Response::new(full(vec![7_u8; 200_000])) };
    tokio::spawn(server::serve(accepted, server::Options::default(), std::future::pending(), sends));
    let mut requests = begin_with(quic, Options { copies: true, ..Options::default() }).await.unwrap();
    let mut body = within(requests.send(get("/"))).await.unwrap().into_body();
    let (mut came, mut largest) = (0, 0);
    while let Some(frame) = within(body.frame()).await {
        let part = frame.unwrap().into_data().unwrap();
        (came, largest) = (came + part.len(), largest.max(part.len()));
    }
    // A packet has less than 1,500 bytes.
    assert!(came == 200_000 && largest > 1_500, "{came} {largest}");
}
