//! Servers that keep a client waiting: for a connection, for a response, for content.

use std::{sync::Arc, time::Duration};

use tiderace::{Profile, SendStream};
use tiderace_client::{FetchError, Leg, Pace, Settings, Timeouts, Trust, private::PrivateClient};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
};

use crate::servers::{
    LIMIT, PATIENT, SHORT, ask, certificate, client, control, frame, headers, http3, quic, read, tls,
};

const PACE: Pace = Pace { bytes: 1_000, within: SHORT };

#[track_caller]
fn timed_out(result: Result<tiderace_client::Fetched, FetchError>, wanted: &str) {
    match result.err().expect("nothing comes") {
        FetchError::TimedOut { what, .. } => assert_eq!(what, wanted),
        other => panic!("{other}"),
    }
}

/// The client waits for a handshake over TCP, and over QUIC, no longer than it is told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_never_come_are_given_up() {
    // The same port for both: that of TCP may be somebody else's for UDP.
    let (silent, address, _udp) = loop {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap();
        if let Ok(udp) = tokio::net::UdpSocket::bind(address).await {
            break (silent, address, udp);
        }
    };
    let (gone, mut ends) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = silent.accept().await {
            let gone = gone.clone();
            tokio::spawn(async move {
                let mut sink = Vec::new();
                let _ = stream.read_to_end(&mut sink).await;
                let _ = gone.send(sink.len());
            });
        }
    });
    let (.., trust) = certificate();
    let client = client(&trust, Timeouts { connect: SHORT, ..PATIENT });
    timed_out(ask(&client, address, Leg::Tcp).await, "a connection");
    assert!(tokio::time::timeout(LIMIT, ends.recv()).await.unwrap().is_some(), "the socket is closed");
    timed_out(ask(&client, address, Leg::Quic).await, "a connection");
    let raced = tokio::time::timeout(LIMIT, client.get(&format!("https://{address}/"), None, None)).await.unwrap();
    timed_out(raced, "a connection");
    let plain = format!("http://{address}/");
    let request = http::Request::get(&plain).body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap();
    let short = crate::servers::client(&trust, Timeouts { response: SHORT, ..PATIENT });
    let answered = tokio::time::timeout(LIMIT, short.send(request, &tiderace_client::Route::default())).await.unwrap();
    timed_out(answered, "a response");
}

/// A request whose stream the server acknowledges and never answers is reset; one that gets no stream is not sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_that_never_come_are_given_up() {
    let timeouts = Timeouts { response: SHORT, ..PATIENT };
    let (stopped, mut stops) = mpsc::unbounded_channel();
    let (address, trust) = http3(move |mut send: SendStream, recv| {
        let stopped = stopped.clone();
        async move {
            let _ = stopped.send(send.stopped().await.to_string());
            drop(recv);
        }
    });
    timed_out(ask(&client(&trust, timeouts), address, Leg::Quic).await, "a response");
    let why = tokio::time::timeout(LIMIT, stops.recv()).await.unwrap().unwrap();
    let is_over = why.contains("268") || why.contains("10c") || why.contains("application (code 256)");
    assert!(is_over, "the stream is cancelled, or the connection closed: {why}");

    let mut profile = Profile::default();
    profile.streams.max_streams_bidi = 0;
    let (address, trust) = quic(
        profile,
        |_| {},
        |connection| async move {
            let _control = control(&connection, &[]).await;
            connection.closed().await;
        },
    );
    timed_out(ask(&client(&trust, timeouts), address, Leg::Quic).await, "a response");

    for protocol in [&b"h2"[..], b"http/1.1"] {
        let (address, trust) = tls(protocol, |mut stream| async move {
            let mut sink = Vec::new();
            let _ = stream.read_to_end(&mut sink).await;
        })
        .await;
        timed_out(ask(&client(&trust, timeouts), address, Leg::Tcp).await, "a response");
    }
}

/// A byte now and then is no progress.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_that_drips_is_given_up() {
    let timeouts = Timeouts { content: PACE, ..PATIENT };
    let (stopped, mut stops) = mpsc::unbounded_channel();
    let (address, trust) = http3(move |mut send: SendStream, _recv| {
        let stopped = stopped.clone();
        async move {
            send.write_all(&headers(&[(":status", "200")])).await.unwrap();
            while send.write_all(&frame(0, b"x")).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let _ = stopped.send(());
        }
    });
    let error = read(ask(&client(&trust, timeouts), address, Leg::Quic).await.unwrap()).await.unwrap_err();
    assert!(error.contains("too slowly"), "{error}");
    tokio::time::timeout(LIMIT, stops.recv()).await.unwrap().expect("the server is told to stop");

    let (stopped, mut stops) = mpsc::unbounded_channel();
    let (address, trust) = tls(b"http/1.1", move |mut stream| {
        let stopped = stopped.clone();
        async move {
            // What comes before the request is an answer to nothing.
            let mut request = [0; 4_096];
            let _ = stream.read(&mut request).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
            stream.flush().await.unwrap();
            while stream.write_all(b"1\r\nx\r\n").await.is_ok() && stream.flush().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let _ = stopped.send(());
        }
    })
    .await;
    let error = read(ask(&client(&trust, timeouts), address, Leg::Tcp).await.unwrap()).await.unwrap_err();
    assert!(error.contains("too slowly"), "{error}");
    tokio::time::timeout(LIMIT, stops.recv()).await.unwrap().expect("the connection is closed");
}

/// A private protocol: a server that completes TLS and says nothing of QMux.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_connections_that_never_come_are_given_up() {
    let (address, trust) = tls(b"quiet-qx", |stream| async move {
        let _kept = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let private = |trust: Trust| {
        let timeouts = Timeouts { connect: SHORT * 3, ..PATIENT };
        PrivateClient::new(&Settings { trust, timeouts, ..Settings::default() }, b"quiet", b"quiet-qx").unwrap()
    };
    let private = Arc::new(private(trust));
    let route = tiderace_client::Route { only: Some(Leg::Tcp), ..tiderace_client::Route::default() };
    let connecting = private.connect("127.0.0.1", address.port(), &route);
    let error = tokio::time::timeout(LIMIT, connecting).await.expect("it ends").err().unwrap();
    assert!(matches!(error, FetchError::TimedOut { what: "a connection", .. }), "{error}");
}
