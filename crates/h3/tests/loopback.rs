//! HTTP/3 over real sockets on loopback: what one side sends the other gets, and what breaks is told apart from what ends.

mod pair;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use pair::{Answer, PSEUDO, fields, full, get, pair, raw, within};
use tiderace::CloseReason;
use tiderace_h3::{Code, Error, RequestBody, server::Options};
use tokio::sync::mpsc;

fn pattern(len: usize) -> Bytes {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Sends the request's body back.
async fn echo(request: Request<RequestBody>) -> Answer {
    let length = request.headers().get("content-length").cloned();
    let mut response = Response::new(request.into_body().map_err(std::io::Error::other).boxed());
    if let Some(length) = length {
        response.headers_mut().insert("content-length", length);
    }
    response
}

/// RFC 9114 §4.1 SHOULD-1, MUST-1, MUST-5, MUST-6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_and_trailers_go_both_ways() {
    let mut pair = pair(Options::default(), echo).await;
    let data = pattern(3_000_000);
    let mut trailers = HeaderMap::new();
    trailers.insert("checksum", "abc".parse().unwrap());
    let chunks: Vec<Result<Frame<Bytes>, Infallible>> = data
        .chunks(70_001)
        .map(|chunk| Ok(Frame::data(Bytes::copy_from_slice(chunk))))
        .chain([Ok(Frame::trailers(trailers))])
        .collect();
    let body = StreamBody::new(Iter(chunks.into_iter()));
    let request = Request::post("https://localhost/echo").body(body).unwrap();
    let response = pair.request.send(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["checksum"], "abc");
    assert!(collected.to_bytes() == data, "what came back differs");
}

/// An iterator as a stream.
struct Iter<I>(I);

impl<I: Iterator + Unpin> futures_core::Stream for Iter<I> {
    type Item = I::Item;
    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_at_a_time_keep_their_answers_apart() {
    let pair = pair(Options::default(), |request: Request<RequestBody>| async move {
        // Answers leave in another order than requests came.
        let number: u64 = request.uri().path()[1..].parse().unwrap();
        tokio::time::sleep(Duration::from_millis(number * 7 % 23)).await;
        Response::new(full(format!("{number}:{}", "x".repeat(number as usize * 10))))
    })
    .await;
    // More than the peer allows at a time.
    let tasks: Vec<_> = (0..500_u64)
        .map(|number| {
            let mut request = pair.request.clone();
            tokio::spawn(async move {
                let response = request.send(get(&format!("/{number}"))).await.unwrap();
                let body = response.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(body, format!("{number}:{}", "x".repeat(number as usize * 10)));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stands_still_holds_the_writer_up() {
    let produced = Arc::new(AtomicU64::new(0));
    let count = produced.clone();
    let mut pair = pair(Options::default(), move |_| {
        let count = count.clone();
        async move {
            let endless = std::iter::repeat_with(move || {
                count.fetch_add(100_000, Ordering::Relaxed);
                Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![7; 100_000])))
            });
            Response::new(BodyExt::boxed(StreamBody::new(Iter(endless))))
        }
    })
    .await;
    let response = pair.request.send(get("/")).await.unwrap();
    let mut before = u64::MAX;
    // Until it stands still: the window of the stream and the send buffer are full.
    while before != produced.load(Ordering::Relaxed) {
        before = produced.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(before < 40_000_000, "{before} bytes were produced for a reader that read none");
    let mut body = response.into_body();
    let mut read = 0;
    while read < before + 5_000_000 {
        read += body.frame().await.unwrap().unwrap().into_data().unwrap().len() as u64;
    }
    drop(body);
    // And whoever goes away stops it for good.
    let mut last = u64::MAX;
    while last != produced.load(Ordering::Relaxed) {
        last = produced.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// RFC 9114 §4.1.1 SHOULD-3, SHOULD NOT-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_breaks_off_is_no_complete_body() {
    let mut pair = pair(Options::default(), |_| async {
        let parts = [Ok(Frame::data(Bytes::from_static(b"half"))), Err(std::io::Error::other("the disk is gone"))];
        Response::new(BodyExt::boxed(StreamBody::new(Iter(parts.into_iter()))))
    })
    .await;
    // The reset may overtake everything before it.
    let error = match pair.request.send(get("/")).await {
        Ok(response) => response.into_body().collect().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(error, Error::Reset(Code::REQUEST_CANCELLED)), "{error}");
    // The connection continues.
    assert!(pair.quic.close_reason().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_gives_up_ends_the_work_for_it() {
    let (dropped, mut was_dropped) = mpsc::unbounded_channel();
    struct Tell(mpsc::UnboundedSender<()>);
    impl Drop for Tell {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (begin, mut began) = mpsc::unbounded_channel();
    let pair = pair(Options::default(), move |_| {
        let (tell, begin) = (Tell(dropped.clone()), begin.clone());
        async move {
            let _tell = tell;
            begin.send(()).unwrap();
            std::future::pending::<()>().await;
            unreachable!()
        }
    })
    .await;
    let mut request = pair.request.clone();
    let waiting = tokio::spawn(async move { request.send(get("/slow")).await.map(|_| ()) });
    within(began.recv()).await.unwrap();
    waiting.abort();
    within(was_dropped.recv()).await.unwrap();
}

/// RFC 9114 §4.1 SHOULD-3, MUST NOT-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_before_the_end_of_the_request_stops_the_request() {
    let mut pair = pair(Options::default(), |_| async {
        let mut response = Response::new(full("too large"));
        *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
        response
    })
    .await;
    let endless = std::iter::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![1; 100_000]))));
    let request = Request::post("https://localhost/").body(StreamBody::new(Iter(endless))).unwrap();
    let response = pair.request.send(request).await.unwrap();
    assert_eq!(response.status(), 413);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "too large");
    assert_eq!(pair.request.send(get("/")).await.unwrap().status(), 413);
}

/// RFC 9114 §3.3 SHOULD-4, RFC 9114 §4.1.1 SHOULD-2, MUST NOT-1, RFC 9114 §5.2 SHOULD-1, SHOULD-2, SHOULD-3, SHOULD-4, MUST NOT-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_answers_what_is_under_way_and_takes_no_more() {
    let begun = Arc::new(AtomicUsize::new(0));
    let release = Arc::new(tokio::sync::Semaphore::new(0));
    let (count, gate) = (begun.clone(), release.clone());
    let mut pair = pair(Options::default(), move |_| {
        let (count, gate) = (count.clone(), gate.clone());
        async move {
            count.fetch_add(1, Ordering::Relaxed);
            let _permit = gate.acquire().await.unwrap();
            Response::new(full(pattern(2_000_000)))
        }
    })
    .await;
    let under_way: Vec<_> = (0..10)
        .map(|_| {
            let mut request = pair.request.clone();
            tokio::spawn(async move { request.send(get("/")).await.unwrap().into_body().collect().await })
        })
        .collect();
    while begun.load(Ordering::Relaxed) < 10 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pair.drain.notify_one();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let late = pair.request.send(get("/late")).await.map(|_| ()).unwrap_err();
    assert!(late.is_unprocessed(), "{late}");
    release.add_permits(10);
    for task in under_way {
        assert_eq!(task.await.unwrap().unwrap().to_bytes(), pattern(2_000_000));
    }
    assert!(pair.server.await.unwrap().is_ok());
    let reason = pair.quic.closed().await;
    assert!(matches!(reason, CloseReason::PeerApplication { code: 0x100, .. }), "{reason}");
    assert_eq!(begun.load(Ordering::Relaxed), 10);
}

/// RFC 9114 §4.1.1 RECOMMENDED-1, RFC 9114 §4.2.2 SHOULD NOT-1, RFC 9114 §7.2.4.2 MUST NOT-1, MUST-2, MUST-3, SHOULD-1
/// RFC 9204 §7.4 SHOULD-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_beyond_the_limit_are_refused() {
    let options = Options { max_fields: 4_000, ..Options::default() };
    let mut pair = pair(options, |_| async { Response::new(full("never")) }).await;
    // One field that has nearly all of the limit is taken, whatever its bytes are.
    let mut large = get("/");
    large.headers_mut().insert("x-large", http::HeaderValue::from_bytes(&[0xf9; 3_700]).unwrap());
    assert_eq!(pair.request.send(large).await.unwrap().status(), 200);
    let mut request = get("/");
    request.headers_mut().insert("x-large", "y".repeat(5_000).parse().unwrap());
    // Before the client has heard of the limit, its request is answered.
    match pair.request.send(request.clone()).await.map(|response| response.status().as_u16()) {
        Ok(status) => assert_eq!(status, 431),
        Err(error) => assert!(matches!(error, Error::FieldsTooLarge { limit: 4_000, .. }), "{error}"),
    }
    assert_eq!(pair.request.send(get("/")).await.unwrap().status(), 200);
    let error = pair.request.send(request).await.map(|response| response.status()).unwrap_err();
    assert!(matches!(error, Error::FieldsTooLarge { limit: 4_000, .. }), "{error}");
    assert_eq!(pair.request.send(get("/")).await.unwrap().status(), 200);
}

/// RFC 9114 §4.1 MUST-2, RFC 9114 §4.1.2 MUST-1, RFC 9114 §4.2 MUST-3, RFC 9114 §4.3 MUST NOT-4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_requests_reach_no_service() {
    let reached = Arc::new(AtomicUsize::new(0));
    let count = reached.clone();
    let pair = pair(Options::default(), move |request: Request<RequestBody>| {
        let count = count.clone();
        async move {
            if request.into_body().collect().await.is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
            Response::new(full("ok"))
        }
    })
    .await;
    let with = |extra: &[(&str, &str)]| fields(&[&PSEUDO[..], extra].concat());
    let data = |text: &str| [&[0x00, text.len() as u8], text.as_bytes()].concat();
    let good = [with(&[("content-length", "2")]), data("ab")].concat();
    raw(&pair.quic, &good, true).await.unwrap();
    assert_eq!(reached.load(Ordering::Relaxed), 1);
    for bad in [
        [with(&[("content-length", "3")]), data("ab")].concat(),
        [with(&[("content-length", "1")]), data("ab")].concat(),
        [with(&[("content-length", "2"), ("content-length", "3")]), data("ab")].concat(),
        [with(&[("content-length", "+2")]), data("ab")].concat(),
        [with(&[("transfer-encoding", "chunked")]), data("ab")].concat(),
        with(&[("connection", "close")]),
        with(&[("te", "gzip")]),
        with(&[("Upper", "x")]),
        with(&[("x", "a\r\nb: c")]),
        with(&[("host", "elsewhere")]),
        with(&[("host", "localhost"), ("host", "localhost")]),
        fields(&PSEUDO[1..]),
        // A second request behind the first, and pseudo-fields in what would be trailers.
        [fields(&PSEUDO), data("ab"), fields(&PSEUDO)].concat(),
        [fields(&PSEUDO), fields(&[(":path", "/")])].concat(),
    ] {
        let _ = raw(&pair.quic, &bad, true).await;
        assert_eq!(reached.load(Ordering::Relaxed), 1, "{bad:?}");
        assert!(pair.quic.close_reason().is_none(), "a malformed request concerns its stream only: {bad:?}");
    }
}

/// RFC 9114 §10.5 SHOULD-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_without_end_closes_the_connection() {
    let pair = pair(Options::default(), |_| async { Response::new(full("never")) }).await;
    let _ = raw(&pair.quic, &[0x01, 0x80, 0x10, 0x00, 0x00], false).await;
    let reason = within(pair.quic.closed()).await;
    assert!(matches!(reason, CloseReason::PeerApplication { code: 0x107, .. }), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_that_never_come_end_the_stream() {
    let options = Options { fields_timeout: Duration::from_millis(1500), ..Options::default() };
    let mut pair = pair(options, |_| async { Response::new(full("ok")) }).await;
    let error = raw(&pair.quic, &[0x01, 0x20, 0x00], false).await.unwrap_err();
    assert!(error.contains("reset"), "{error}");
    assert_eq!(pair.request.send(get("/")).await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn head_and_interim_lengths() {
    let mut pair = pair(Options::default(), |request: Request<RequestBody>| async move {
        let mut response = Response::new(full(if request.method() == Method::HEAD { "" } else { "12345" }));
        response.headers_mut().insert("content-length", "5".parse().unwrap());
        response
    })
    .await;
    let mut head = get("/");
    *head.method_mut() = Method::HEAD;
    let response = pair.request.send(head).await.unwrap();
    assert_eq!(response.headers()["content-length"], "5");
    assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty());
    let response = pair.request.send(get("/")).await.unwrap();
    assert_eq!(response.body().size_hint().exact(), Some(5));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "12345");
}
