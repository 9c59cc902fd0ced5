//! Hostile servers over HTTP/1.1: heads without end, lengths that lie, ends that are none.

use bytes::Bytes;
use tiderace_client::{Leg, Timeouts};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};

use crate::servers::{LIMIT, PATIENT, SHORT, ask, client, read, tls};

/// End of the connection by the server.
#[derive(Clone, Copy)]
enum End {
    /// By a TLS close_notify alert.
    Clean,
    /// As somebody does who cuts it.
    Cut,
}

async fn answered(bytes: impl Into<Bytes>, end: End) -> Result<usize, String> {
    let bytes = bytes.into();
    let (address, trust) = tls(b"http/1.1", move |mut stream| {
        let bytes = bytes.clone();
        async move {
            let mut request = [0; 4_096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(&bytes).await;
            let _ = stream.flush().await;
            match end {
                End::Clean => drop(stream.shutdown().await),
                End::Cut => drop(tokio::io::AsyncWriteExt::shutdown(stream.get_mut().0).await),
            }
            while stream.get_mut().0.read(&mut request).await.is_ok_and(|length| length > 0) {}
        }
    })
    .await;
    match ask(&client(&trust, PATIENT), address, Leg::Tcp).await {
        Ok(fetched) => read(fetched).await,
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_are_bounded_and_make_sense() {
    let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}content-length: 5\r\n\r\nhello");
    let fields = |count: usize| (0..count).map(|n| format!("a{n}: b\r\n")).collect::<String>();
    assert_eq!(answered(head(&fields(127)), End::Clean).await, Ok(5));
    let large = format!("a: {}\r\n", "x".repeat(1 << 20));
    for refused in [
        head(&fields(128)),
        head(&large),
        head("content-length: 6\r\n"),
        head("content-length: x\r\n"),
        head("content-length: -5\r\n"),
        head("a: b\0c\r\n"),
        head("a b: c\r\n"),
        head("a: b\r\n folded\r\n"),
        "HTTP/1.1 20 OK\r\n\r\n".to_owned(),
        "HTTP/1.1 099 OK\r\n\r\n".to_owned(),
        "HTTP/1.1 2000 OK\r\n\r\n".to_owned(),
        "HTTP/3.0 200 OK\r\n\r\n".to_owned(),
        "SSH-2.0-OpenSSH_9.6\r\n".to_owned(),
        // Nobody has asked for another protocol.
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n".to_owned(),
        String::new(),
    ] {
        let start: String = refused.chars().take(60).collect();
        let came = answered(refused, End::Clean).await;
        assert!(came.is_err(), "{start:?}: {came:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lengths_that_lie_and_ends_that_are_none_are_told() {
    for (answer, end, came) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", End::Clean, Some(5)),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello and more", End::Clean, Some(5)),
        ("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello", End::Clean, None),
        ("HTTP/1.1 200 OK\r\n\r\nhello", End::Clean, Some(5)),
        // Without a length, the end of TLS is the end of the content: what is cut is not complete.
        ("HTTP/1.1 200 OK\r\n\r\nhello", End::Cut, None),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", End::Clean, Some(5)),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", End::Clean, None),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n", End::Clean, None),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5x\r\nhello\r\n0\r\n\r\n", End::Clean, None),
    ] {
        let got = answered(answer, end).await;
        assert_eq!(got.clone().ok(), came, "{answer:?}: {got:?}");
    }
    let trailers = "a: b\r\n".repeat(100_000);
    let enormous = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n{trailers}\r\n");
    assert!(answered(enormous, End::Clean).await.is_err());
    let extension = "x".repeat(100_000);
    let enormous = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;{extension}\r\nhello\r\n0\r\n\r\n");
    assert!(answered(enormous, End::Clean).await.is_err());
}

/// Interim responses and lines of nothing hold no memory over HTTP/1.1, and end with the client's timeouts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interim_responses_without_end_are_given_up() {
    let (told, mut tells) = mpsc::unbounded_channel();
    let (address, trust) = tls(b"http/1.1", move |mut stream| {
        let told = told.clone();
        async move {
            let mut request = [0; 4_096];
            let _ = stream.read(&mut request).await;
            let early = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(100);
            while stream.write_all(early.as_bytes()).await.is_ok() && stream.flush().await.is_ok() {}
            let _ = told.send(());
        }
    })
    .await;
    let timeouts = Timeouts { response: SHORT, ..PATIENT };
    let error = ask(&client(&trust, timeouts), address, Leg::Tcp).await.err().unwrap().to_string();
    assert!(error.contains("a response did not come"), "{error}");
    tokio::time::timeout(LIMIT, tells.recv()).await.unwrap().expect("the connection is closed");
}
