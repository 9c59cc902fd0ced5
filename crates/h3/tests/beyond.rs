//! Extensions of HTTP/3: dynamic table, extended CONNECT, datagrams.

mod pair;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use pair::{full, get, pair};
use tiderace_h3::{Datagrams, Error, Protocol, RequestBody, server::Options};

/// The cookie of a site that knows its visitors well.
const COOKIE: &str =
    "session=0123456789abcdef0123456789abcdef0123456789abcdef; seen=1,2,3,4,5,6,7,8,9,10,11,12; more=xyzzy";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_that_come_again_are_not_sent_again() {
    let mut pair = pair(Options::default(), |request: Request<RequestBody>| async move {
        assert_eq!(request.headers()["cookie"], COOKIE);
        let mut response = Response::new(full("ok"));
        response.headers_mut().insert("x-policy", "p".repeat(300).parse().unwrap());
        response
    })
    .await;
    let mut sent = Vec::new();
    for number in 0..8 {
        let mut request = get(&format!("/{number}"));
        request.headers_mut().insert("cookie", COOKIE.parse().unwrap());
        request.headers_mut().insert("user-agent", "a program with a long name".repeat(5).parse().unwrap());
        let before = pair.quic.stats().unwrap().stream_bytes_sent;
        let response = pair.request.send(request).await.unwrap();
        assert_eq!(response.headers()["x-policy"], "p".repeat(300));
        response.into_body().collect().await.unwrap();
        // What the tables learn has time to arrive.
        tokio::time::sleep(Duration::from_millis(50)).await;
        sent.push(pair.quic.stats().unwrap().stream_bytes_sent - before);
    }
    assert!(sent[0] > 150, "{sent:?}");
    assert!(sent[7] < 40, "a field that has come seven times is sent again: {sent:?}");
}

fn connect(protocol: &'static str) -> http::request::Builder {
    Request::builder()
        .method(Method::CONNECT)
        .uri("https://localhost/tunnel")
        .extension(Protocol::from_static(protocol))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_becomes_something_else() {
    let mut pair = pair(Options::default(), |request: Request<RequestBody>| async move {
        assert_eq!(request.extensions().get::<Protocol>().unwrap().as_str(), "echo");
        assert_eq!((request.method(), request.uri().path()), (&Method::CONNECT, "/tunnel"));
        // What comes goes back while it comes.
        Response::new(request.into_body().map_err(std::io::Error::other).boxed())
    })
    .await;
    let (mut say, body) = http_body_util::channel::Channel::<Bytes, std::io::Error>::new(1);
    let response = pair.request.send(connect("echo").body(body).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut heard = response.into_body();
    for number in 0..20_u8 {
        say.send_data(Bytes::from(vec![number; 1000])).await.unwrap();
        let mut back = Vec::new();
        while back.len() < 1000 {
            back.extend(heard.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        assert_eq!(back, vec![number; 1000]);
    }
    drop(say);
    assert!(heard.frame().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_belong_to_their_request() {
    let mut pair = pair(Options::default(), |request: Request<RequestBody>| async move {
        let datagrams = request.extensions().get::<Datagrams>().unwrap().clone();
        let name = request.headers()["name"].to_str().unwrap().to_owned();
        tokio::spawn(async move {
            let mut body = request.into_body();
            loop {
                tokio::select! {
                    Some(datagram) = datagrams.recv() => {
                        let back = [name.as_bytes(), b":", &datagram[..]].concat();
                        datagrams.send(&back).unwrap();
                    }
                    // Until the client ends the stream.
                    frame = body.frame() => if frame.is_none() { break },
                }
            }
        });
        let open = StreamBody::new(Pending);
        Response::new(BodyExt::boxed(open))
    })
    .await;
    let mut tunnels = Vec::new();
    for name in ["one", "two"] {
        let (say, body) = http_body_util::channel::Channel::<Bytes, std::io::Error>::new(1);
        let request = connect("x").header("name", name).body(body).unwrap();
        let response = pair.request.send(request).await.unwrap();
        let datagrams = response.extensions().get::<Datagrams>().unwrap().clone();
        tunnels.push((name, datagrams, say, response));
    }
    for (name, datagrams, ..) in &tunnels {
        let max = datagrams.max_size().unwrap();
        assert!((1100..1500).contains(&max), "{max}");
        assert!(datagrams.send(&vec![0; max + 1]).is_err());
        // Loopback loses none, but a socket may.
        let back = loop {
            datagrams.send(b"hello").unwrap();
            if let Ok(back) = tokio::time::timeout(Duration::from_secs(2), datagrams.recv()).await {
                break back.unwrap();
            }
        };
        assert_eq!(back, format!("{name}:hello"));
    }
    let (_, datagrams, ..) = &tunnels[0];
    pair.quic.close(0x100, b"");
    assert!(datagrams.recv().await.is_none());
}

/// A body of which nothing comes.
struct Pending;

impl futures_core::Stream for Pending {
    type Item = Result<Frame<Bytes>, std::io::Error>;
    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Pending
    }
}

/// RFC 9114 §4.2.1 MUST-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cookie_in_crumbs_is_one_again() {
    let mut pair = pair(Options::default(), |request: Request<RequestBody>| async move {
        let cookies: Vec<_> = request.headers().get_all("cookie").iter().cloned().collect();
        Response::new(full(Bytes::copy_from_slice(
            &cookies.iter().map(|c| c.as_bytes()).collect::<Vec<_>>().join(&b'|'),
        )))
    })
    .await;
    let mut request = get("/");
    for crumb in ["a=1", "b=2", "c=3"] {
        request.headers_mut().append("cookie", crumb.parse().unwrap());
    }
    let response = pair.request.send(request).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "a=1; b=2; c=3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_content_are_known_as_such() {
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let list = seen.clone();
    let mut pair = pair(Options::default(), move |request: Request<RequestBody>| {
        list.lock().unwrap().push(http_body::Body::is_end_stream(request.body()));
        async { Response::new(full("ok")) }
    })
    .await;
    pair.request.send(get("/")).await.unwrap();
    let post = Request::post("https://localhost/").body(Full::new(Bytes::from_static(b"content"))).unwrap();
    pair.request.send(post).await.unwrap();
    let seen = seen.lock().unwrap();
    // The end of the first may come in a packet of its own; the content of the second is not over before it was read.
    assert!(!seen[1], "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extended_connect_is_for_those_who_understand_it() {
    let (_server, _client, accepted, quic) = pair::endpoints().await;
    let mut request = tiderace_h3::client::begin(quic).await.unwrap();
    let mut control = accepted.open_uni().await.unwrap();
    control.write_all(&[0x00, 0x04, 0x00]).await.unwrap();
    let error = request.send(connect("x").body(Full::new(Bytes::new())).unwrap()).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::NoConnectProtocol), "{error}");
}

/// RFC 9204 §4.5.4 MUST-2, RFC 9204 §7.1.3 MUST NOT-1, MUST-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_to_be_indexed_stays_so() {
    let mut pair = pair(Options::default(), |request: Request<RequestBody>| async move {
        let mut response = Response::new(full("ok"));
        // As a gateway does, it is sent on as it has come.
        for name in ["x-secret", "x-plain"] {
            response.headers_mut().insert(name, request.headers()[name].clone());
        }
        response
    })
    .await;
    for _ in 0..3 {
        let mut request = get("/");
        for (name, sensitive) in [("x-secret", true), ("x-plain", false)] {
            let mut value: http::HeaderValue = "value".parse().unwrap();
            value.set_sensitive(sensitive);
            request.headers_mut().insert(name, value);
        }
        let response = pair.request.send(request).await.unwrap();
        assert!(response.headers()["x-secret"].is_sensitive() && !response.headers()["x-plain"].is_sensitive());
    }
}

/// RFC 9297 §2 MUST-1, RFC 9297 §2.1 MUST NOT-1, MUST-3, RFC 9297 §2.1.1 MUST-1, MUST NOT-1, RECOMMENDED-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_end_with_their_stream() {
    let (_server, _client, accepted, quic) = pair::endpoints().await;
    let mut request = tiderace_h3::client::begin(quic).await.unwrap();
    let (say, body) = http_body_util::channel::Channel::<Bytes, std::io::Error>::new(1);
    let waiting = tokio::spawn(async move {
        let response = request.send(connect("x").body(body).unwrap()).await.unwrap();
        (request, response)
    });
    let mut control = accepted.open_uni().await.unwrap();
    // Extended CONNECT is understood; datagrams not.
    control.write_all(&[0x00, 0x04, 0x02, 0x08, 0x01]).await.unwrap();
    let (mut send, mut recv) = accepted.accept_bi().await.unwrap();
    send.write_all(&pair::fields(&[(":status", "200")])).await.unwrap();
    let (_request, response) = waiting.await.unwrap();
    let datagrams = response.extensions().get::<Datagrams>().unwrap().clone();
    assert!(datagrams.max_size().is_none() && datagrams.send(b"x").is_err());
    drop(say);
    let _ = recv.read_to_end(10_000).await;

    let mut pair = pair(Options::default(), |request: Request<RequestBody>| async move {
        let datagrams = request.extensions().get::<Datagrams>().unwrap().clone();
        tokio::spawn(async move {
            // Until the client has ended the stream.
            while datagrams.recv().await.is_some() {}
            datagrams.send(b"all").unwrap();
            drop(request);
        });
        Response::new(BodyExt::boxed(StreamBody::new(Pending)))
    })
    .await;
    let (say, body) = http_body_util::channel::Channel::<Bytes, std::io::Error>::new(1);
    let response = pair.request.send(connect("x").body(body).unwrap()).await.unwrap();
    let datagrams = response.extensions().get::<Datagrams>().unwrap().clone();
    datagrams.send(b"one").unwrap();
    drop(say);
    // What this end has ended is ended for datagrams, too; the other direction continues.
    let ended = async {
        while datagrams.max_size().is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), ended).await.expect("it ends");
    assert!(datagrams.send(b"two").is_err());
    drop(response);
    let heard = tokio::time::timeout(Duration::from_secs(120), async { while datagrams.recv().await.is_some() {} });
    heard.await.expect("whoever gave the stream up hears nothing more");
}
