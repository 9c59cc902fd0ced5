//! Sessions between our two sides: streams, datagrams, closes, flow control, with loss and without.

mod pair;

use http::StatusCode;
use pair::{Pair, ends, open, pair, request, serve, within};
use tiderace_webtransport::{
    Client, Config, ConnectError, ConnectionFault, Draft, Limits, Origins, ReadError, Session, SessionEnd, WriteError,
    h3, server,
};

/// Sends `data` on streams of both kinds and gets it back, whole.
async fn exchange(one: &Session, other: &Session, data: &[u8]) {
    let echo = async {
        let (mut send, mut recv) = other.accept_bi().await.unwrap();
        let all = recv.read_to_end(10_000_000).await.unwrap();
        send.write_all(&all).await.unwrap();
        send.finish().unwrap();
        let mut recv = other.accept_uni().await.unwrap();
        let all = recv.read_to_end(10_000_000).await.unwrap();
        let mut send = other.open_uni().await.unwrap();
        send.write_all(&all).await.unwrap();
        send.finish().unwrap();
    };
    let ask = async {
        let (mut send, mut recv) = one.open_bi().await.unwrap();
        send.write_all(data).await.unwrap();
        send.finish().unwrap();
        assert!(recv.read_to_end(10_000_000).await.unwrap() == data);
        let mut send = one.open_uni().await.unwrap();
        send.write_all(data).await.unwrap();
        send.finish().unwrap();
        assert!(one.accept_uni().await.unwrap().read_to_end(10_000_000).await.unwrap() == data);
    };
    within(async { tokio::join!(echo, ask) }).await;
}

/// Sends datagrams until one comes back.
async fn datagram(one: &Session, other: &Session) {
    let echo = async {
        let datagram = other.read_datagram().await.unwrap();
        loop {
            other.send_datagram(&datagram).unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let ask = async {
        loop {
            one.send_datagram(b"hello").unwrap();
            let back = tokio::time::timeout(std::time::Duration::from_millis(20), one.read_datagram());
            if let Ok(back) = back.await {
                break back.unwrap();
            }
        }
    };
    let back = within(async {
        tokio::select! {
            () = echo => unreachable!("it goes on for ever"),
            back = ask => back,
        }
    });
    assert_eq!(back.await, "hello");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_datagrams_go_both_ways() {
    // Larger than each window, so that credit is given on the way.
    let data: Vec<u8> = (0..3_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (resets_at, loss) in [(true, None), (false, None), (true, Some(0.05))] {
        let Pair { ours, theirs, .. } = &pair(Config::default(), open(), resets_at, loss).await;
        assert!(ours.has_flow_control() && theirs.has_flow_control());
        assert_eq!(ours.id(), theirs.id());
        let draft = if resets_at { Draft::Current } else { Draft::Earlier };
        assert_eq!([ours.draft(), theirs.draft()], [draft; 2]);
        exchange(ours, theirs, &data).await;
        exchange(theirs, ours, &data).await;
        datagram(ours, theirs).await;
        datagram(theirs, ours).await;
    }
}

/// draft-ietf-webtrans-http3 §4.4 MUST
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_and_stops_carry_the_applications_code() {
    let Pair { ours, theirs, .. } = &pair(Config::default(), open(), true, Some(0.05)).await;
    for (one, other) in [(ours, theirs), (theirs, ours)] {
        for code in [0, 29, 30, u32::MAX] {
            // Reset at once: the header arrives all the same.
            let (mut send, mut back) = within(one.open_bi()).await.unwrap();
            send.reset(code);
            let (mut reply, mut recv) = within(other.accept_bi()).await.unwrap();
            assert_eq!(within(recv.read_to_end(10)).await, Err(ReadError::Reset(Some(code))));
            back.stop(code);
            let stopped = async {
                loop {
                    if let Err(error) = reply.write_all(b"more").await {
                        break error;
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            };
            assert_eq!(within(stopped).await, WriteError::Stopped(Some(code)));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_is_heard_while_nothing_is_written() {
    let Pair { ours, theirs, .. } = &pair(Config::default(), open(), true, None).await;
    let (mut send, _back) = within(ours.open_bi()).await.unwrap();
    let (_reply, mut recv) = within(theirs.accept_bi()).await.unwrap();
    let early = tokio::time::timeout(std::time::Duration::from_millis(50), send.stopped()).await;
    assert!(early.is_err(), "{early:?}");
    recv.stop(9);
    assert_eq!(within(send.stopped()).await, WriteError::Stopped(Some(9)));
    assert_eq!(within(send.stopped()).await, WriteError::StreamClosed);
    // The end of the session is heard, too.
    let (mut send, _back) = within(ours.open_bi()).await.unwrap();
    let (stopped, ()) = tokio::join!(within(send.stopped()), async { ours.close(3, "") });
    assert_eq!(stopped, WriteError::Session(SessionEnd::ClosedHere { code: 3 }));
}

/// Packets are lost, so that much is under way when the reset leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_leaves_what_was_written_before_where_it_is_asked_to() {
    let Pair { ours, theirs, .. } = &pair(Config::default(), open(), true, Some(0.1)).await;
    let data: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
    for _ in 0..3 {
        let mut send = within(ours.open_uni()).await.unwrap();
        within(send.write_all(&data)).await.unwrap();
        send.reset_after_written(5);
        let mut recv = within(theirs.accept_uni()).await.unwrap();
        let mut arrived = Vec::new();
        let end = loop {
            match within(recv.read_chunk(10_000)).await {
                Ok(Some(part)) => arrived.extend(part),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        assert_eq!((end, arrived == data), (Err(ReadError::Reset(Some(5))), true), "{} bytes", arrived.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_breaks_off_has_no_code() {
    for by_server in [true, false] {
        let Pair { client: _client, ours, theirs, ends, .. } = pair(Config::default(), open(), true, None).await;
        let (breaking, other) = if by_server { (theirs, ours) } else { (ours, theirs) };
        breaking.abort();
        assert_eq!(breaking.end(), Some(SessionEnd::BrokenOff));
        let end = within(other.closed()).await;
        assert!(matches!(end, SessionEnd::Reset(h3_quic::Code::REQUEST_CANCELLED)), "{end}");
        assert!(ends.quic.close_reason().is_none(), "the connection goes on");
    }
}

/// draft-ietf-webtrans-http3 §6 MUST
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_reaches_all_who_wait() {
    for by_server in [true, false] {
        let Pair { ours, theirs, .. } = pair(Config::default(), open(), true, None).await;
        let (closing, other) = if by_server { (theirs, ours) } else { (ours, theirs) };
        let (mut send, mut recv) = within(closing.open_bi()).await.unwrap();
        send.write_all(b"begun").await.unwrap();
        let (_reply, mut heard) = within(other.accept_bi()).await.unwrap();
        assert_eq!(within(heard.read_chunk(10)).await.unwrap().unwrap(), "begun");
        let long = "ä".repeat(600);
        closing.close(7, &long);
        let end = SessionEnd::ClosedByPeer { code: 7, reason: "ä".repeat(512) };
        assert_eq!(within(other.closed()).await, end);
        // The reset of the stream and the close of its session may arrive in either order.
        let ended = within(heard.read_chunk(10)).await.unwrap_err();
        assert!(ended == ReadError::Reset(None) || ended == ReadError::Session(end.clone()), "{ended}");
        assert_eq!(within(other.accept_uni()).await.err(), Some(end.clone()));
        assert_eq!(within(other.open_uni()).await.err(), Some(end.clone()));
        assert_eq!(within(other.read_datagram()).await.err(), Some(end.clone()));
        assert!(other.send_datagram(b"late").is_err());
        let here = SessionEnd::ClosedHere { code: 7 };
        assert_eq!(within(recv.read_chunk(10)).await, Err(ReadError::Session(here.clone())));
        assert_eq!(within(send.write_all(b"more")).await, Err(WriteError::Session(here)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_handle_closes_the_session_and_the_connection_goes_on() {
    let Pair { mut client, ours, theirs, mut begun, .. } = pair(Config::default(), open(), true, None).await;
    let other = within(client.connect(request(), &["b", "a"])).await.unwrap();
    assert_eq!(other.protocol(), Some("b"));
    let others = within(begun.recv()).await.unwrap();
    theirs.drain();
    within(ours.draining()).await;
    drop(ours);
    assert_eq!(within(theirs.closed()).await, SessionEnd::ClosedByPeer { code: 0, reason: String::new() });
    exchange(&other, &others, b"still here").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_wait_for_the_sessions_limits() {
    let limits = Limits { data: 1_000, bidi: 2, uni: 2 };
    let server = Config { limits, ..open() };
    let Pair { ours, theirs, .. } = pair(Config::default(), server, true, None).await;
    let (one, two) = (within(ours.open_uni()).await.unwrap(), within(ours.open_uni()).await.unwrap());
    // The third waits until a half of the window is closed at the peer: certain, as the peer has not accepted any.
    let third = tokio::spawn({
        let ours = ours.clone();
        async move { ours.open_uni().await.map(|_| ()) }
    });
    drop((one, two));
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!third.is_finished());
    for _ in 0..2 {
        let mut recv = within(theirs.accept_uni()).await.unwrap();
        assert_eq!(within(recv.read_to_end(10)).await, Err(ReadError::Reset(Some(0))));
    }
    within(third).await.unwrap().unwrap();
    drop(within(theirs.accept_uni()).await.unwrap());

    // Streams that are stopped, or reset with data that was never sent, take no credit away for good.
    for number in 0..50 {
        let (mut send, _recv) = within(ours.open_bi()).await.unwrap();
        within(send.write_all(&[1; 600])).await.unwrap();
        if number % 2 == 0 {
            send.reset(1);
        }
        let (_send, mut recv) = within(theirs.accept_bi()).await.unwrap();
        if number % 2 == 1 {
            recv.stop(2);
        } else {
            let _ = within(recv.read_to_end(10_000)).await;
        }
    }
    exchange(&ours, &theirs, &[7; 20_000]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_session_at_a_time_without_flow_control() {
    let without = Config { limits: Limits::NONE, ..open() };
    let Pair { mut client, ours, theirs, begun: _begun, .. } = pair(without, open(), true, None).await;
    assert!(!ours.has_flow_control());
    exchange(&ours, &theirs, &[1; 3_000_000]).await;
    let second = within(client.connect(request(), &[])).await;
    assert!(matches!(second, Err(ConnectError::OneSessionOnly)), "{second:?}");
    ours.close(0, "");
    within(theirs.closed()).await;
    within(client.connect(request(), &[])).await.unwrap();
}

/// draft-ietf-webtrans-http3 §3.2 MUST
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_origins_are_refused() {
    let ends = ends(true, None).await;
    let origins = Origins::List(vec!["https://good.example".to_owned()]);
    let _begun = serve(&ends.accepted, Config { origins, ..Config::default() });
    let mut client = Client::begin(ends.quic.clone(), Config::default()).await.unwrap();
    for (origin, is_allowed) in [("https://good.example", true), ("https://evil.example", false), ("null", false)] {
        let mut request = request();
        request.headers_mut().insert("origin", origin.parse().unwrap());
        let session = within(client.connect(request, &[])).await;
        match session {
            Ok(_) => assert!(is_allowed, "{origin}"),
            Err(error) => {
                let is_forbidden = matches!(error, ConnectError::Refused(StatusCode::FORBIDDEN));
                assert!(is_forbidden && !is_allowed, "{origin}: {error}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_beyond_the_limit_are_rejected() {
    let server = Config { max_sessions: 2, ..open() };
    let Pair { mut client, ours, theirs: _theirs, begun: _begun, .. } =
        pair(Config::default(), server, true, None).await;
    let second = within(client.connect(request(), &[])).await.unwrap();
    let third = within(client.connect(request(), &[])).await;
    assert!(matches!(&third, Err(ConnectError::Http(error)) if error.is_unprocessed()), "{third:?}");
    drop((ours, second));
}

/// The request of the next session may arrive before the close of the only one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_closes_its_only_session_gets_the_next() {
    let server = Config { max_sessions: 1, ..open() };
    let Pair { mut client, ours, theirs, mut begun, .. } = pair(Config::default(), server, true, None).await;
    let close = async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        ours.close(7, "done");
    };
    let (next, ()) = within(async { tokio::join!(client.connect(request(), &[]), close) }).await;
    let _next = next.unwrap();
    assert!(within(begun.recv()).await.is_some());
    assert_eq!(within(theirs.closed()).await, SessionEnd::ClosedByPeer { code: 7, reason: "done".to_owned() });
}

/// draft-ietf-webtrans-http3 §3.3 MUST
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_needs_a_protocol_gives_a_session_without_one_up() {
    let ends = ends(true, None).await;
    let (sessions, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |request: server::SessionRequest| {
        let sessions = sessions.clone();
        async move {
            let (session, response) = request.accept(None);
            sessions.send(session).unwrap();
            response
        }
    };
    let options = h3::server::Options::default();
    tokio::spawn(server::serve(ends.accepted.clone(), open(), options, std::future::pending(), handler));
    let mut client = Client::begin(ends.quic.clone(), Config::default()).await.unwrap();
    let session = within(client.connect(request(), &["chat"])).await;
    assert!(matches!(session, Err(ConnectError::Protocol(None))), "{session:?}");
    let session = within(begun.recv()).await.unwrap();
    assert_eq!(within(session.closed()).await, SessionEnd::Reset(h3::Code::WT_ALPN_ERROR));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_streams_are_delivered_or_end_with_their_session() {
    let Pair { ours, theirs, .. } = &pair(Config::default(), open(), true, Some(0.05)).await;
    let mut send = within(ours.open_uni()).await.unwrap();
    assert_eq!(within(send.finished()).await, Err(WriteError::StreamClosed), "it was not finished");
    within(send.write_all(&[1; 100_000])).await.unwrap();
    send.finish().unwrap();
    within(send.finished()).await.unwrap();
    assert_eq!(within(within(theirs.accept_uni()).await.unwrap().read_to_end(100_000)).await.unwrap(), [1; 100_000]);
    // More than the windows take, so that some of it waits to be sent when the peer stops it, and when the session ends.
    for is_stopped in [true, false] {
        let mut send = within(ours.open_uni()).await.unwrap();
        let mut data = vec![2; 1_000_000].into();
        while let Ok(Ok(_)) = tokio::time::timeout(
            std::time::Duration::from_millis(200),
            std::future::poll_fn(|cx| send.poll_write(cx, &mut data)),
        )
        .await
        {
            if data.is_empty() {
                break;
            }
        }
        send.finish().unwrap();
        let mut recv = within(theirs.accept_uni()).await.unwrap();
        if is_stopped {
            recv.stop(9);
            // All of it may have been sent, and acknowledged, before.
            let ended = within(send.finished()).await;
            assert!(matches!(ended, Ok(()) | Err(WriteError::Stopped(Some(9)))), "{ended:?}");
        } else {
            ours.close(1, "");
            let ended = within(send.finished()).await;
            assert!(
                matches!(ended, Ok(()) | Err(WriteError::Session(SessionEnd::ClosedHere { code: 1 }))),
                "{ended:?}"
            );
        }
    }
}

/// Settings that the server has for itself, as after a reload, are not those that its client was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_has_the_limits_that_its_connection_advertised() {
    for bidi in [4, 90] {
        let ends = ends(true, None).await;
        let advertised = Config { limits: Limits { bidi, ..Limits::default() }, ..open() };
        let options = h3::server::Options {
            sessions: Some(advertised.support(&ends.accepted)),
            ..h3::server::Options::default()
        };
        let (sessions, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let service = move |request: http::Request<h3::RequestBody>| {
            let sessions = sessions.clone();
            async move {
                let server::Received::Session(request) = server::receive(request, &open()).await else {
                    panic!("no session")
                };
                let (session, response) = request.accept(None);
                sessions.send(session).unwrap();
                response
            }
        };
        tokio::spawn(h3::server::serve(ends.accepted.clone(), options, std::future::pending(), service));
        let mut client = Client::begin(ends.quic.clone(), Config::default()).await.unwrap();
        let ours = within(client.connect(request(), &[])).await.unwrap();
        let theirs = within(begun.recv()).await.unwrap();
        // All that may be open at a time, several times: credit comes back when they have ended.
        for _ in 0..3 {
            let mut kept = Vec::new();
            for _ in 0..bidi {
                let (mut send, recv) = within(ours.open_bi()).await.unwrap();
                send.write_all(b"x").await.unwrap();
                kept.push((send, recv, within(theirs.accept_bi()).await.unwrap()));
            }
        }
        assert!(theirs.end().is_none() && ours.end().is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_request_for_a_session_has_its_variant() {
    let Pair { mut client, .. } = pair(Config::default(), open(), true, None).await;
    let insecure = http::Request::get("http://localhost/chat").body(()).unwrap();
    let insecure = within(client.connect(insecure, &[])).await.err().unwrap();
    assert!(matches!(insecure, ConnectError::Request("has a URI that is not https")), "{insecure:?}");
    let protocol = within(client.connect(request(), &["two\nlines"])).await.err().unwrap();
    assert!(matches!(protocol, ConnectError::Request("has a protocol that cannot be sent")), "{protocol:?}");
    // A server of HTTP/3 alone.
    let ends = ends(true, None).await;
    let options = h3::server::Options::default();
    let service = |_| async { http::Response::new(String::new()) };
    tokio::spawn(h3::server::serve(ends.accepted.clone(), options, std::future::pending(), service));
    let mut client = Client::begin(ends.quic.clone(), Config::default()).await.unwrap();
    let plain = within(client.connect(request(), &[])).await.err().unwrap();
    assert!(matches!(plain, ConnectError::RequirementsNotMet(_)), "{plain:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_to_the_end_is_limited_and_a_stopped_stream_is_over() {
    let Pair { ours, theirs, .. } = pair(Config::default(), open(), true, None).await;
    for (bytes, expected) in [(10, Ok(10)), (11, Err(ReadError::TooLong { limit: 10 }))] {
        let mut send = within(ours.open_uni()).await.unwrap();
        within(send.write_all(&vec![7; bytes])).await.unwrap();
        send.finish().unwrap();
        let mut recv = within(theirs.accept_uni()).await.unwrap();
        assert_eq!(within(recv.read_to_end(10)).await.map(|all| all.len()), expected);
        recv.stop(0);
        assert_eq!(within(recv.read_chunk(1)).await, Err(ReadError::StreamClosed));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_with_its_connection_and_says_how() {
    let Pair { ours, theirs: _theirs, ends, .. } = pair(Config::default(), open(), true, None).await;
    ends.accepted.close(0x107, b"enough");
    let end = within(ours.closed()).await;
    let SessionEnd::Connection(ConnectionFault::Closed(reason)) = &end else { panic!("{end:?}") };
    assert!(matches!(reason, tiderace::CloseReason::PeerApplication { code: 0x107, .. }), "{reason:?}");
}
