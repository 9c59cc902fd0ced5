//! Work that clients give up, do not take, or bring too slowly: what back ends see of it, and others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::site::{BackEnd, Site, full, get, get1, until, within};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, channel::Channel};
use hyper::body::Incoming;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::Notify,
};

/// Connections as a back end saw them.
#[derive(Default)]
struct Seen {
    opened: AtomicUsize,
    ended: AtomicUsize,
    changed: Notify,
}

impl Seen {
    async fn until(&self, what: impl Fn(&Self) -> bool) {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                if what(self) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("the back end sees it");
    }
}

/// A back end that answers `/`, never answers `/silent`, and answers `/endless` without end; one request for each connection.
async fn back_end() -> (String, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Seen::default());
    let seeing = seen.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let seen = seeing.clone();
            seen.opened.fetch_add(1, Ordering::SeqCst);
            seen.changed.notify_waiters();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|length| length > 0) {}
                if head.starts_with(b"GET /endless") {
                    let _ = stream.write_all(b"HTTP/1.1 200 x\r\nconnection: close\r\n\r\n").await;
                    while stream.write_all(&[b'x'; 16_384]).await.is_ok() {}
                } else if head.starts_with(b"GET / ") {
                    let _ =
                        stream.write_all(b"HTTP/1.1 200 x\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok").await;
                } else {
                    // Until the gateway closes.
                    while stream.read_buf(&mut head).await.is_ok_and(|length| length > 0) {}
                }
                drop(stream);
                seen.ended.fetch_add(1, Ordering::SeqCst);
                seen.changed.notify_waiters();
            });
        }
    });
    (url, seen)
}

/// A HEADERS frame: GET, https, localhost, and the path.
fn request(path: &str) -> Vec<u8> {
    let mut section = vec![0, 0, 0xd1, 0xd7, 0x50, 9];
    section.extend_from_slice(b"localhost\x51");
    section.push(path.len() as u8);
    section.extend_from_slice(path.as_bytes());
    [&[1, section.len() as u8][..], &section].concat()
}

/// RFC 9114 §10.5 SHOULD-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_cancelled_without_end_open_few_connections_and_hinder_nobody() {
    let (url, seen) = back_end().await;
    let site = Site::start("cancelled", &format!("[[route]]\nto = \"{url}\"\n"));
    let (_endpoint, quic) = site.quic(b"h3").await;
    let (_other_endpoint, other) = site.h3().await;
    let attacking = tokio::spawn(async move {
        let head = request("/silent");
        for number in 0..9_000 {
            let Ok((mut send, mut recv)) = quic.open_bi().await else { return (number, quic.closed().await) };
            let _ = send.write_all(&head).await;
            // What was written is on its way before it is given up.
            tokio::task::yield_now().await;
            let _ = (send.reset(0x10c), recv.stop(0x10c));
        }
        (9_000, quic.closed().await)
    });
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let mut other = other.clone();
        asking.spawn(async move { other.send(get("https://localhost/")).await.unwrap().status() });
    }
    while let Some(status) = asking.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    let (made, reason) = attacking.await.unwrap();
    assert!(matches!(reason, tiderace::CloseReason::PeerApplication { code: 0x107, .. }), "{reason}");
    assert!(made < 9_000, "{made} requests");
    // Those that may be given up, those that are worked on at a time, and those of the other client.
    let opened = seen.opened.load(Ordering::SeqCst);
    assert!(opened <= 201 + 100 + 100, "{opened} connections");
    println!("measured connections to the back end for {made} cancelled requests and 100 others: {opened}");
    seen.until(|seen| seen.ended.load(Ordering::SeqCst) == seen.opened.load(Ordering::SeqCst)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_wait_for_a_place_with_a_back_end_and_hear_when_there_is_none() {
    let (url, seen) = back_end().await;
    let limits = "requests = 2\nqueue-timeout = \"300 ms\"\n";
    let site = Site::start("queue", &format!("[[route]]\nto = \"{url}\"\n{limits}"));
    let (_endpoint, h3) = site.h3().await;
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let mut h3 = h3.clone();
            tokio::spawn(async move { h3.send(get("https://localhost/silent")).await.map(drop) })
        })
        .collect();
    seen.until(|seen| seen.opened.load(Ordering::SeqCst) == 2).await;
    let refused = h3.clone().send(get("https://localhost/")).await.unwrap();
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    assert_eq!(seen.opened.load(Ordering::SeqCst), 2);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    // What is given up has no place any more.
    seen.until(|seen| seen.ended.load(Ordering::SeqCst) == 2).await;
    assert_eq!(h3.clone().send(get("https://localhost/")).await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_do_not_read_are_let_go_in_all_versions() {
    let (url, seen) = back_end().await;
    let site =
        Site::start("unread-answers", &format!("[limits]\nread-timeout = \"300 ms\"\n[[route]]\nto = \"{url}\"\n"));
    let ended = |count: usize| seen.until(move |seen| seen.ended.load(Ordering::SeqCst) == count);
    let (_endpoint, mut h3) = site.h3().await;
    let unread = h3.send(get("https://localhost/endless")).await.unwrap();
    ended(1).await;
    let broken = tokio::time::timeout(Duration::from_secs(60), unread.into_body().collect()).await.unwrap();
    assert!(matches!(broken, Err(h3_quic::Error::Reset(_))), "what breaks off does not look complete");
    let mut h2 = site.h2().await;
    let unread = h2.send_request(get("https://localhost/endless")).await.unwrap();
    ended(2).await;
    assert!(unread.into_body().collect().await.is_err());
    assert_eq!(h2.send_request(get("https://localhost/")).await.unwrap().status(), 200, "the connection goes on");
    let mut h1 = site.h1().await;
    let unread = h1.send_request(get1("/endless")).await.unwrap();
    ended(4).await;
    assert!(unread.into_body().collect().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_that_trickles_is_given_up() {
    let (url, seen) = back_end().await;
    let limits = "[limits]\ncontent-timeout = \"500 ms\"\ncontent-progress = \"4 KiB\"\n";
    let site = Site::start("trickle", &format!("{limits}[[route]]\nto = \"{url}\"\n"));
    let (_endpoint, mut h3) = site.h3().await;
    let (mut say, body) = Channel::<Bytes, std::io::Error>::new(1);
    let trickling = tokio::spawn(async move {
        // Each part comes within the time.
        while say.send_data(Bytes::from_static(b"x")).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let answer = h3.send(Request::post("https://localhost/silent").body(body).unwrap()).await;
    // The client is at fault, and not the back end.
    assert!(answer.map_or(true, |answer| answer.status() == 408));
    tokio::time::timeout(Duration::from_secs(60), trickling).await.expect("the client is told").unwrap();
    seen.until(|seen| seen.ended.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_over_tcp_are_refused_when_memory_is_scarce() {
    let (url, _) = back_end().await;
    let site = Site::start("scarce", &format!("[limits]\nmemory = \"100 KiB\"\n[[route]]\nto = \"{url}\"\n"));
    assert_eq!(site.figure("tiderace_edge_memory_bytes{reason=\"limit\"}"), 102_400.0);
    let mut held = Vec::new();
    // Each holds 32 KiB.
    for _ in 0..3 {
        held.push(site.tls(&[b"http/1.1"]).await);
    }
    assert!(crate::site::connect_tls(site.address, &site.certificate, &[b"http/1.1"]).await.is_err());
    assert_eq!(site.figure("tiderace_edge_memory_refused_total"), 1.0);
    drop(held);
    while site.figure("tiderace_edge_memory_bytes{reason=\"held\"}") > 0.0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(site.h1().await.send_request(get1("/")).await.unwrap().status(), 200);
}

/// Workers have a connection of HTTP/2 each to a back end, which all their requests share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_that_nobody_reads_hold_up_no_other_from_a_back_end_of_http2() {
    let asked = Arc::new(AtomicUsize::new(0));
    let asking = asked.clone();
    let answer = move |request: Request<Incoming>| {
        let is_large = request.uri().path() == "/large";
        asking.fetch_add(usize::from(is_large), Ordering::SeqCst);
        async move { Response::new(full(vec![7; if is_large { 16 << 20 } else { 64 << 10 }])) }
    };
    let back_end = BackEnd::start_at("127.0.0.1:0".parse().unwrap(), true, answer).await;
    let limits = "[limits]\nread-timeout = \"1 h\"\n";
    let site = Site::start("unread-h2", &format!("{limits}[[route]]\nto = \"h2c://{}\"\n", back_end.address));
    let (_endpoint, attacker) = site.h3().await;
    let mut unread = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let mut attacker = attacker.clone();
        unread.spawn(async move {
            // Its content is not read.
            let _response = attacker.send(get("https://localhost/large")).await;
            std::future::pending::<()>().await;
        });
    }
    until(|| asked.load(Ordering::SeqCst), 50).await;
    let (_other_endpoint, mut other) = site.h3().await;
    for _ in 0..20 {
        let response = within(async {
            other.send(get("https://localhost/small")).await.unwrap().into_body().collect().await.unwrap()
        });
        assert_eq!(response.await.to_bytes().len(), 64 << 10);
    }
}
