//! The local proxy between a hostile origin and a program, and a hostile program before it.

use std::net::SocketAddr;

use tiderace_client::{
    Timeouts,
    proxy::{Proxy, Secure, listen},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
};

use crate::servers::{LIMIT, PATIENT, certificate, client, headers, http3};

struct Running {
    address: SocketAddr,
    _end: oneshot::Sender<()>,
}

async fn proxy(trust: &tiderace_client::Trust, timeouts: Timeouts, secure: Secure) -> Running {
    let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let (end, ended) = oneshot::channel::<()>();
    let served = Proxy::new(client(trust, timeouts), secure, |_| {});
    tokio::spawn(served.serve(listener, async move { drop(ended.await) }));
    Running { address, _end: end }
}

/// Sends `text` and reads to the end of the connection, which the text asks for.
async fn said(to: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await.expect("the connection ends");
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

/// An origin over HTTP/1.1 without TLS: each connection's request goes to the test, and is answered with `answer`.
async fn origin(answer: &'static str) -> (SocketAddr, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (told, tells) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let told = told.clone();
            tokio::spawn(async move {
                let (mut request, mut part) = (Vec::new(), [0; 4_096]);
                // To the end of the fields, and of chunks if there are some.
                loop {
                    let text = String::from_utf8_lossy(&request).into_owned();
                    let chunked = text.to_ascii_lowercase().contains("transfer-encoding: chunked");
                    if text.ends_with("0\r\n\r\n") || (text.contains("\r\n\r\n") && !chunked) {
                        break;
                    }
                    match stream.read(&mut part).await {
                        Ok(length) if length > 0 => request.extend(&part[..length]),
                        _ => break,
                    }
                }
                let _ = told.send(String::from_utf8_lossy(&request).into_owned());
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.flush().await;
                let _ = stream.shutdown().await;
            });
        }
    });
    (address, tells)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_origin_cannot_split_the_answer() {
    let (.., trust) = certificate();
    let proxy = proxy(&trust, PATIENT, Secure::Never).await;
    for (answer, expected) in [
        // Nobody asked for another protocol: what follows would be the origin's to say.
        ("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "502"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!", "502"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "200"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\nx-split: 1\r\n\r\n", "200"),
        ("HTTP/1.1 200 OK\r\nx: a\rx-split: 1\r\ncontent-length: 0\r\n\r\n", "502"),
        ("HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\nx-split: 1", "204"),
    ] {
        let (address, _requests) = origin(answer).await;
        let request = format!("GET http://{address}/ HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        let came = said(proxy.address, &request).await;
        assert_eq!(status(&came), expected, "{answer:?}: {came:?}");
        assert_eq!(came.matches("HTTP/1.1 ").count(), 1, "{came:?}");
        assert!(!came.contains("x-split"), "{came:?}");
        let (head, content) = came.split_once("\r\n\r\n").unwrap();
        let framed = head.matches("content-length").count() + head.matches("transfer-encoding").count();
        assert!(framed <= 1, "one way to say how long it is: {head}");
        assert!(!head.contains("101") && content.len() < 200, "{came:?}");
        // Chunks decide, and a length that contradicts them goes no further (RFC 9112 §6.3).
        assert!(!answer.contains("chunked") || !head.contains("content-length"), "{came:?}");
    }
    // The same length twice over HTTP/3 is one length.
    let (address, trust) = http3(|mut send, _recv| async move {
        let head =
            headers(&[(":status", "200"), ("content-length", "5"), ("content-length", "5"), ("connection-x", "y")]);
        let _ = send.write_all(&[head, crate::servers::frame(0, b"hello")].concat()).await;
        let _ = send.finish();
        send.stopped().await;
    });
    let proxy = self::proxy(&trust, PATIENT, Secure::Always).await;
    let request = format!("GET http://{address}/ HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let came = said(proxy.address, &request).await;
    assert_eq!((status(&came), came.matches("content-length").count()), ("200", 1), "{came}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_cannot_smuggle_a_request() {
    let (.., trust) = certificate();
    let proxy = proxy(&trust, PATIENT, Secure::Never).await;
    let (address, mut requests) = origin("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    // Two ways to say how long it is: whichever counts, the origin sees one request with one of them, from the URI's host.
    let both = format!(
        "POST http://{address}/one HTTP/1.1\r\nhost: other.example\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\
         connection: close\r\n\r\n0\r\n\r\nGET http://{address}/two HTTP/1.1\r\n\r\n"
    );
    let came = said(proxy.address, &both).await;
    if status(&came) == "200" {
        let seen = requests.recv().await.unwrap();
        let lower = seen.to_ascii_lowercase();
        assert!(lower.starts_with("post /one ") && lower.contains(&format!("host: {address}")), "{seen}");
        assert_eq!(lower.matches("content-length").count() + lower.matches("transfer-encoding").count(), 1, "{seen}");
        assert!(!lower.contains("/two") && !lower.contains("other.example"), "{seen}");
    } else {
        assert_eq!(status(&came), "400", "{came}");
    }
    for (request, expected) in [
        (format!("GET http://{address}/ HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxy"), "400"),
        (format!("GET http://{address}/ HTTP/1.1\r\nhost : x\r\n\r\n"), "400"),
        (format!("GET http://{address}/ HTTP/1.1\r\ntransfer-encoding: chunked, gzip\r\n\r\n"), "400"),
        ("GET / HTTP/1.1\r\nhost: example.net\r\nconnection: close\r\n\r\n".to_owned(), "400"),
        ("GET file:///etc/passwd HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(), "400"),
        ("GET ftp://127.0.0.1/ HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(), "400"),
        ("CONNECT 127.0.0.1 HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(), "400"),
        ("CONNECT 127.0.0.1:0 HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(), "502"),
        // The proxy itself: it asks once, and is told that this is a proxy.
        (format!("GET http://{}/ HTTP/1.1\r\nconnection: close\r\n\r\n", proxy.address), "400"),
        (format!("GET http://{address}/ HTTP/1.1\r\na: {}\r\n\r\n", "x".repeat(1 << 20)), "431"),
    ] {
        let came = said(proxy.address, &request).await;
        assert_eq!(status(&came), expected, "{}: {came:?}", request.chars().take(80).collect::<String>());
    }
    // Fields for this connection, and a word about who asks, do not go on.
    let private = format!(
        "GET http://user:secret@{address}/x HTTP/1.1\r\nproxy-authorization: Basic c2VjcmV0\r\nconnection: close, x-hop\r\nx-hop: 1\r\n\r\n"
    );
    while requests.try_recv().is_ok() {}
    assert_eq!(status(&said(proxy.address, &private).await), "200");
    let seen = requests.recv().await.unwrap().to_ascii_lowercase();
    assert!(!seen.contains("secret") && !seen.contains("c2vjcmv0") && !seen.contains("x-hop"), "{seen}");
}
