//! Ends of streams and sessions: each side learns of the other's.

use super::*;
use std::io::ErrorKind;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_half_is_the_end_of_that_half_only() {
    let (back_end, address) = listener().await;
    let site = Site::start("wt-halves", &to(address, ""));
    let (_endpoint, session) = session(&site).await;
    let (mut send, mut recv) = session.open_bi().await.unwrap();
    send.write_all(b"question").await.unwrap();
    send.finish().unwrap();
    let (mut accepted, _) = within(back_end.accept()).await.unwrap();
    let mut all = Vec::new();
    within(accepted.read_to_end(&mut all)).await.unwrap();
    assert_eq!(all, b"question");
    accepted.write_all(b"answer").await.unwrap();
    drop(accepted);
    assert_eq!(within(recv.read_to_end(100)).await.unwrap(), b"answer");
    // The other way round: the back end ends first.
    let (mut send, mut recv) = session.open_bi().await.unwrap();
    send.write_all(b"a").await.unwrap();
    let (mut accepted, _) = within(back_end.accept()).await.unwrap();
    accepted.write_all(b"answer").await.unwrap();
    accepted.shutdown().await.unwrap();
    assert_eq!(within(recv.read_to_end(100)).await.unwrap(), b"answer");
    send.write_all(b"b").await.unwrap();
    send.finish().unwrap();
    let mut all = Vec::new();
    within(accepted.read_to_end(&mut all)).await.unwrap();
    assert_eq!(all, b"ab");
    until(|| streams(&site, "completed"), 2.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_breaks_off_here_breaks_off_there_with_its_code() {
    let (back_end, address) = listener().await;
    let site = Site::start("wt-resets", &to(address, ""));
    let (_endpoint, session) = session(&site).await;
    // The client resets: the back end sees an error and no end.
    let (mut send, mut recv) = session.open_bi().await.unwrap();
    send.write_all(b"half").await.unwrap();
    let (mut accepted, _) = within(back_end.accept()).await.unwrap();
    let mut half = [0; 4];
    accepted.read_exact(&mut half).await.unwrap();
    send.reset(99);
    assert_eq!(within(accepted.read(&mut half)).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(within(recv.read_chunk(10)).await, Err(ReadError::Reset(Some(3))));
    // The back end breaks off.
    let (mut send, mut recv) = session.open_bi().await.unwrap();
    send.write_all(b"x").await.unwrap();
    let (mut accepted, _) = within(back_end.accept()).await.unwrap();
    assert_eq!(within(accepted.read_u8()).await.unwrap(), b'x');
    reset(accepted);
    assert_eq!(within(recv.read_chunk(10)).await, Err(ReadError::Reset(Some(3))));
    // Nobody is there, and the refusal may come before the data is written: the gateway connects when it has the stream's header.
    drop(back_end);
    let (mut send, mut recv) = session.open_bi().await.unwrap();
    let written = send.write_all(b"x").await;
    assert!(matches!(written, Ok(()) | Err(WriteError::Stopped(Some(2)))), "{written:?}");
    assert_eq!(within(recv.read_chunk(10)).await, Err(ReadError::Reset(Some(2))));
    // A stream in one direction has no back end.
    let mut send = session.open_uni().await.unwrap();
    let stopped = within(async {
        loop {
            if let Err(error) = send.write_all(b"x").await {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert_eq!(stopped.await, WriteError::Stopped(Some(1)));
    assert!(session.end().is_none(), "the session goes on");
    for (result, count) in [("reset", 1.0), ("broken", 1.0), ("unreachable", 1.0), ("refused", 1.0)] {
        until(|| streams(&site, result), count).await;
    }
}

/// Streams in progress, whose back ends have neither been read to the end nor written to it, and stand still in both directions.
async fn stand_still(session: &Session, back_end: &TcpListener) -> Vec<TcpStream> {
    let (mut all, mut halves) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let (mut send, recv) = within(session.open_bi()).await.unwrap();
        send.write_all(b"x").await.unwrap();
        let (mut accepted, _) = within(back_end.accept()).await.unwrap();
        assert_eq!(within(accepted.read_u8()).await.unwrap(), b'x');
        all.push(accepted);
        halves.push((send, recv));
    }
    for (mut send, recv) in halves {
        // The streams are held by a task, as those of an application are.
        tokio::spawn(async move {
            let data = Bytes::from(vec![7; 64 * 1024]);
            while send.write_chunk(data.clone()).await.is_ok() {}
            drop(recv);
        });
    }
    all
}

/// Reads to the end; the error that stands there.
async fn broken_off(mut stream: TcpStream) -> ErrorKind {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match within(stream.read(&mut buffer)).await {
            Ok(0) => return ErrorKind::UnexpectedEof,
            Ok(_) => {}
            Err(error) => return error.kind(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_takes_its_connections_with_it() {
    for kind in ["close", "connection"] {
        let (back_end, address) = listener().await;
        let site = Site::start(&format!("wt-mid-{kind}"), &to(address, ""));
        let (_endpoint, session) = session(&site).await;
        let accepted = stand_still(&session, &back_end).await;
        let line = "tiderace_edge_streams_in_flight{protocol=\"webtransport\"}";
        assert_eq!(site.figure(line), 5.0);
        match kind {
            "close" => session.close(7, "enough"),
            _ => session.connection().close(0, b""),
        }
        // None looks complete.
        for stream in accepted {
            assert_eq!(broken_off(stream).await, ErrorKind::ConnectionReset, "{kind}");
        }
        until(|| site.figure(line), 0.0).await;
        until(|| open_sessions(&site), 0.0).await;
        let line = line_with(&site, "path", "/session").await;
        if kind == "close" {
            assert_eq!(line["reason"], "complete", "{line}");
            assert!(line["error"].as_str().unwrap_or_default().contains("(code 7): enough"), "{line}");
        } else {
            assert_eq!(
                (line["reason"].as_str(), line["ended_by"].as_str()),
                (Some("cancelled"), Some("client")),
                "{line}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_carries_nothing_is_closed() {
    let back_end = echo().await;
    let site = Site::start("wt-idle", &to(back_end, "idle-timeout = \"300 ms\""));
    let (_endpoint, session) = session(&site).await;
    let end = within(session.closed()).await;
    let webtransport::SessionEnd::ClosedByPeer { code: 17, reason } = &end else { panic!("{end}") };
    assert_eq!(reason, "nothing was carried");
    let line = line_with(&site, "reason", "idle").await;
    assert_eq!((line["ended_by"].as_str(), line["status"].as_u64()), (Some("limit"), Some(200)), "{line}");
}
