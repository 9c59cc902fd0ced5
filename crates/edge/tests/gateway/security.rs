//! Clients of ill will: what they can reach, and what they can use up.

use std::{os::unix::fs::PermissionsExt, sync::atomic::Ordering};

use crate::site::{BackEnd, Site, full, get, get1, text, until, within};
use http::Request;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn route(back_end: &BackEnd) -> String {
    format!("[[route]]\nto = \"{}\"\n", back_end.url())
}

/// Writes `bytes` over TLS as HTTP/1.1 and reads until the end.
async fn raw(site: &Site, bytes: &[u8]) -> String {
    let mut stream = site.tls(&[b"http/1.1"]).await;
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    // A gateway that has refused may reset the connection behind its answer.
    let _ = within(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_second_request_hides_in_a_first_one() {
    let (back_end, count) = BackEnd::counting().await;
    let site = Site::start("smuggling", &route(&back_end));
    // Behind the last answer the connection ends: then all that reaches the back end has reached it.
    let hidden = "GET /hidden HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    for (head, at_most) in [
        // Two lengths, one of them chunked: refused, or the chunks count and the connection ends.
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 1),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", 0),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\nabcde", 0),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 0),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 0),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 0),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n", 0),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", 0),
        ("GET / HTTP/1.1\r\n\r\n", 0),
    ] {
        count.store(0, Ordering::Relaxed);
        let answer = raw(&site, format!("{head}{hidden}").as_bytes()).await;
        let after = answer.matches("HTTP/1.1 ").count();
        let reached = count.load(Ordering::Relaxed);
        // What comes after a message whose end is in doubt must not be taken for a request of the same client: the hidden
        // one may be answered only where the first one was refused by the gateway itself and was read to its end.
        let refused = answer.contains("HTTP/1.1 400") || answer.contains("HTTP/1.1 411") || after == 0;
        assert!(reached <= at_most || refused && reached <= at_most + 1, "{head:?}: {reached} reached, {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_length_that_lies_reaches_no_back_end_as_a_whole() {
    let (back_end, count) = BackEnd::counting().await;
    let site = Site::start("lengths", &route(&back_end));
    let mut h2 = site.h2().await;
    let lie = || Request::post("https://localhost/").header("content-length", "10").body(full("12345")).unwrap();
    assert!(h2.send_request(lie()).await.map_or(true, |response| response.status().as_u16() >= 400));
    let (_endpoint, mut h3) = site.h3().await;
    assert!(h3.send(lie()).await.map_or(true, |response| response.status().as_u16() >= 400));
    assert_eq!(count.load(Ordering::Relaxed), 0);
    assert_eq!(text(h3.send(get("https://localhost/")).await.unwrap()).await, "ok");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_beyond_the_limit_are_refused_everywhere() {
    let (back_end, count) = BackEnd::counting().await;
    let site = Site::start("fields", &format!("[limits]\nfields = \"16 KiB\"\n{}", route(&back_end)));
    let large = "x".repeat(30_000);
    let mut request = get1("/");
    request.headers_mut().insert("x-large", large.parse().unwrap());
    let refused = site.h1().await.send_request(request).await;
    assert!(refused.map_or(true, |response| response.status() == 431));
    let oversized = || {
        let mut request = get("https://localhost/");
        request.headers_mut().insert("x-large", large.parse().unwrap());
        request
    };
    let refused = site.h2().await.send_request(oversized()).await;
    assert!(refused.map_or(true, |response| response.status() == 431));
    let (_endpoint, mut h3) = site.h3().await;
    assert!(h3.send(oversized()).await.map_or(true, |response| response.status() == 431));
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_are_let_go() {
    let (back_end, _) = BackEnd::counting().await;
    let limits =
        "[limits]\nfields-timeout = \"300 ms\"\ncontent-timeout = \"300 ms\"\nhandshake-timeout = \"300 ms\"\n";
    let site = Site::start("slow-clients", &format!("{limits}{}", route(&back_end)));
    let over = async |mut stream: Box<dyn tokio::io::AsyncRead + Unpin>| {
        let mut rest = Vec::new();
        let reading = stream.read_to_end(&mut rest);
        within(reading).await
    };
    // Nothing at all on TCP; half of a request's fields; half of its content.
    let silent = tokio::net::TcpStream::connect(site.address).await.unwrap();
    let mut half = site.tls(&[b"http/1.1"]).await;
    half.write_all(b"GET / HTTP/1.1\r\nHost: loc").await.unwrap();
    half.flush().await.unwrap();
    let mut content = site.tls(&[b"http/1.1"]).await;
    content.write_all(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc").await.unwrap();
    content.flush().await.unwrap();
    let _ = tokio::join!(over(Box::new(silent)), over(Box::new(half)), over(Box::new(content)));
    let (_endpoint, quic) = site.quic(b"h3").await;
    let (mut send, mut recv) = quic.open_bi().await.unwrap();
    send.write_all(&[0x01, 0x20, 0, 0]).await.unwrap();
    let reset = within(recv.read_chunk(100)).await;
    assert!(reset.is_err());
}

/// Buffered bytes of a file stay few for a client that reads nothing of the content.
///
/// With L as what the client has announced, S as what was sent and A as what was acknowledged of it, the gateway accepts
/// a write as long as what it holds is less than its buffer or twice what is in flight: W - A <= max(B, 2 (S - A)). As
/// 0 <= A <= S <= L, it is W <= max(B + L, 2 L). One chunk of the file waits for that in the response's body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn little_is_held_for_a_client_that_does_not_read() {
    const WINDOW: u64 = 256 << 10;
    const BUFFER: u64 = 512 << 10;
    const CHUNK: u64 = 64 << 10;
    let www = crate::site::Directory::new("www-unread");
    www.write("large", vec![b'x'; 16 << 20]);
    let site = Site::start("unread", &format!("[[route]]\nfiles = \"{}\"\n", www.0.display()));
    // A window that does not grow: else the head of the response, read together with the content behind it, widens it.
    let mut profile = tiderace::Profile::default();
    (profile.streams.receive_window_stream, profile.streams.receive_window_max) = (WINDOW, WINDOW);
    profile.streams.receive_window_connection = 4 * WINDOW;
    let (_endpoint, quic) = site.quic_with(b"h3", profile).await.unwrap();
    let mut h3 = h3_quic::client::begin(quic).await.unwrap();
    let response = h3.send(get("https://localhost/large")).await.unwrap();
    let read = || site.figure("tiderace_edge_file_bytes{source=\"system\"}") as u64;
    // A writer that waits is woken when there is room for an eighth of the buffer, so the buffer fills up to that.
    until(|| read() >= WINDOW + BUFFER - BUFFER / 8, true).await;
    // Each answer shows that the worker of the connection has had its turn, and that acknowledgements go to and fro.
    for _ in 0..50 {
        assert_eq!(h3.send(get("https://localhost/nothing")).await.unwrap().status(), 404);
    }
    let held = read();
    assert!(held <= WINDOW + BUFFER + CHUNK, "{held} bytes were read");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 16 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_meet_limits_and_others_are_served() {
    let (back_end, _) = BackEnd::counting().await;
    let limits = "[limits]\nconnections-per-address = 6\n";
    let site = Site::start("floods", &format!("{limits}{}", route(&back_end)));
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(site.h1().await);
    }
    for sender in &mut held {
        assert_eq!(sender.send_request(get1("/")).await.unwrap().status(), 200);
    }
    assert!(crate::site::connect_tls(site.address, &site.certificate, &[b"h2"]).await.is_err());
    // The refusal may overtake the end of the handshake.
    let reason = match site.try_quic(b"h3").await {
        Ok((_endpoint, quic)) => within(quic.closed()).await,
        Err(error) => match error.downcast::<tiderace::ConnectError>().map(|error| *error) {
            Ok(tiderace::ConnectError::Closed(reason)) => reason,
            other => panic!("{other:?}"),
        },
    };
    assert!(matches!(reason, tiderace::CloseReason::PeerApplication { code: 0x107, .. }), "{reason}");
    assert_eq!(site.figure("tiderace_edge_connections_refused_total{reason=\"address\"}"), 2.0);
    drop(held);
    until(|| site.process.status()["connections"].clone(), 0.into()).await;
    let (_endpoint, mut h3) = site.h3().await;
    assert_eq!(h3.send(get("https://localhost/")).await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_given_up_at_once_leave_nothing_behind() {
    let back_end = BackEnd::start(|_| async { std::future::pending().await }).await;
    let site = Site::start("rapid-reset", &route(&back_end));
    let (_endpoint, h3) = site.h3().await;
    for _ in 0..2_000 {
        let mut sender = h3.clone();
        let waiting = tokio::spawn(async move { sender.send(get("https://localhost/")).await.map(drop) });
        tokio::task::yield_now().await;
        waiting.abort();
    }
    let in_flight = "tiderace_edge_requests_in_flight{protocol=\"h3\"}";
    until(|| site.figure(in_flight), 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_socket_is_for_its_owner() {
    let (back_end, _) = BackEnd::counting().await;
    let site = Site::start("admin", &format!("[admin]\nsocket = \"edge.sock\"\n{}", route(&back_end)));
    let socket = site.directory.0.join("edge.sock");
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let ask = |command: &'static str| {
        let socket = socket.clone();
        tokio::task::spawn_blocking(move || tiderace_edge::admin::ask(&socket, command).unwrap())
    };
    let status = ask("status").await.unwrap();
    assert_eq!((&status["generation"], &status["workers"]), (&1.into(), &2.into()));
    assert_eq!(ask("reload").await.unwrap()["generation"], 2);
    site.configure("nonsense");
    assert!(ask("reload").await.unwrap()["error"].as_str().unwrap().contains("edge.toml:6"));
    assert!(ask("delete").await.unwrap()["error"].as_str().unwrap().contains("no command"));
    // A second gateway does not take the socket away from the first.
    assert!(
        tiderace_edge::Process::start(
            &site.directory.write(
                "other.toml",
                format!("{}[admin]\nsocket = \"edge.sock\"\n{}", crate::site::TOP, route(&back_end))
            )
        )
        .is_err()
    );
}

/// A HEADERS frame of HTTP/3 with a field of this many bytes, as a client writes it that does not care what it was told.
fn headers_frame(size: usize) -> Vec<u8> {
    // RFC 9204: no dynamic table; GET, https, / from the static one; the authority; a literal field.
    let mut section = vec![0, 0, 0xd1, 0xd7, 0xc1, 0x50, 9];
    section.extend_from_slice(b"localhost\x23x-l");
    let mut rest = size - 127;
    section.push(0x7f);
    while rest >= 128 {
        section.push((rest % 128) as u8 | 0x80);
        rest /= 128;
    }
    section.push(rest as u8);
    section.resize(section.len() + size, b'x');
    let mut frame = vec![1];
    frame.extend_from_slice(&(0x8000_0000 | section.len() as u32).to_be_bytes());
    frame.extend_from_slice(&section);
    frame
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_beyond_the_limit_are_answered_over_http3_and_the_connection_goes_on() {
    let (back_end, count) = BackEnd::counting().await;
    let site = Site::start("fields-h3", &format!("[limits]\nfields = \"16 KiB\"\n{}", route(&back_end)));
    let (_endpoint, quic) = site.quic(b"h3").await;
    let ask = async |size: usize| {
        let (mut send, mut recv) = quic.open_bi().await.unwrap();
        send.write_all(&headers_frame(size)).await.unwrap();
        let _ = send.finish();
        let mut answer = Vec::new();
        // An end, and no reset: the answer is whole.
        while let Some(data) = recv.read_chunk(4_096).await.unwrap() {
            answer.extend_from_slice(&data);
        }
        answer
    };
    for _ in 0..3 {
        let answer = ask(30_000).await;
        let has = |part: &[u8]| answer.windows(part.len()).any(|window| window == part);
        // The status as it is, or in the code of RFC 7541 Appendix B.
        assert!(answer[0] == 1 && (has(b"431") || has(&[0x69, 0x90, 0xff])), "{answer:x?}");
    }
    assert_eq!(count.load(Ordering::Relaxed), 0);
    assert!(ask(200).await.ends_with(b"ok"));
    assert_eq!(count.load(Ordering::Relaxed), 1);
}
