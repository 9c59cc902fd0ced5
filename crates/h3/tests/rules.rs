//! Protocol violations are answered with the codes of RFC 9114, RFC 9204, RFC 9218 and RFC 9297.

mod pair;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use pair::{PSEUDO, endpoints, endpoints_with, fields, full, get, pair, raw};
use tiderace::{CloseReason, Connection, Endpoint, Profile};
use tiderace_h3::{
    Code, Error, RequestBody,
    client::{self, SendRequest},
    server::{self, Options},
};

/// A server of HTTP/3, and a connection to it on which nothing was said.
async fn server() -> (Connection, (Endpoint, Endpoint)) {
    let (server, client, accepted, quic) = endpoints().await;
    tokio::spawn(server::serve(accepted, Options::default(), std::future::pending(), |_| async {
        Response::new(full("ok"))
    }));
    (quic, (server, client))
}

/// A client of HTTP/3, and the server's end, on which nothing was said.
async fn client() -> (SendRequest, Connection, (Endpoint, Endpoint)) {
    let (server, client, accepted, quic) = endpoints().await;
    (client::begin(quic).await.unwrap(), accepted, (server, client))
}

/// Opens a unidirectional stream with these bytes on it, and leaves it open or ends it.
async fn uni(quic: &Connection, bytes: &[u8], finish: bool) -> tiderace::SendStream {
    let mut stream = quic.open_uni().await.unwrap();
    stream.write_all(bytes).await.unwrap();
    if finish {
        stream.finish().unwrap();
    }
    stream
}

/// The code with which the peer closes.
async fn closed(quic: &Connection) -> Code {
    let reason = tokio::time::timeout(Duration::from_secs(120), quic.closed()).await.expect("it is closed");
    match reason {
        CloseReason::PeerApplication { code, .. } => Code(code),
        other => panic!("{other}"),
    }
}

/// A control stream with nothing but settings.
const SETTINGS: &[u8] = &[0x00, 0x04, 0x00];

/// RFC 9114 §4.6 MUST-1, RFC 9114 §5.2 MUST-1, RFC 9114 §6.2.1 MUST-2, MUST-4, RFC 9114 §6.2.2 MUST-1, RFC 9114 §7.1 MUST-2
/// RFC 9114 §7.2.1 MUST-2, RFC 9114 §7.2.3 MUST-2
/// RFC 9114 §7.2.3 MUST-3, RFC 9114 §7.2.4 MUST-2, RFC 9114 §7.2.4.1 MUST-1, RFC 9114 §7.2.7 MUST-3, RFC 9114 §7.2.8 MUST-1
/// RFC 9114 §9 SHOULD-1
/// RFC 9204 §4.2 MUST-3, RFC 9204 §4.3.1 MUST-2, RFC 9204 §4.4.1 MUST-1, RFC 9204 §4.4.3 MUST-1
/// RFC 9218 §7.2 MUST-4, MUST-7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_may_not_say() {
    let control = |frame: &[u8]| [SETTINGS, frame].concat();
    for (what, bytes, finish, code) in [
        ("no settings", vec![0x00, 0x07, 0x01, 0x00], false, Code::MISSING_SETTINGS),
        ("a reserved frame before the settings", vec![0x00, 0x21, 0x00, 0x04, 0x00], false, Code::MISSING_SETTINGS),
        ("settings that are cut off", vec![0x00, 0x04, 0x01, 0x06], false, Code::FRAME_ERROR),
        ("a GOAWAY with more than a number", control(&[0x07, 0x02, 0x00, 0x00]), false, Code::FRAME_ERROR),
        ("fields on the control stream", control(&[0x01, 0x00]), false, Code::FRAME_UNEXPECTED),
        ("a promise on the control stream", control(&[0x05, 0x00]), false, Code::FRAME_UNEXPECTED),
        ("settings twice", control(&[0x04, 0x00]), false, Code::FRAME_UNEXPECTED),
        ("a setting of HTTP/2", vec![0x00, 0x04, 0x02, 0x02, 0x00], false, Code::SETTINGS_ERROR),
        ("the same setting twice", vec![0x00, 0x04, 0x04, 0x06, 0x00, 0x06, 0x00], false, Code::SETTINGS_ERROR),
        ("content on the control stream", control(&[0x00, 0x00]), false, Code::FRAME_UNEXPECTED),
        ("a frame of HTTP/2", control(&[0x06, 0x00]), false, Code::FRAME_UNEXPECTED),
        ("the end of the control stream", SETTINGS.to_vec(), true, Code::CLOSED_CRITICAL_STREAM),
        ("a GOAWAY that is no number", control(&[0x07, 0x00]), false, Code::FRAME_ERROR),
        ("a GOAWAY that goes up", control(&[0x07, 0x01, 0x00, 0x07, 0x01, 0x04]), false, Code::ID_ERROR),
        ("a push by a client", vec![0x01, 0x00], false, Code::STREAM_CREATION_ERROR),
        ("a push limit that goes down", control(&[0x0d, 0x01, 0x02, 0x0d, 0x01, 0x01]), false, Code::ID_ERROR),
        ("a push is cancelled", control(&[0x03, 0x01, 0x00]), false, Code::ID_ERROR),
        ("a priority of no request", control(&[0x80, 0x0f, 0x07, 0x00, 0x01, 0x02]), false, Code::ID_ERROR),
        ("a priority of nothing", control(&[0x80, 0x0f, 0x07, 0x00, 0x00]), false, Code::FRAME_ERROR),
        ("a priority of a push", control(&[0x80, 0x0f, 0x07, 0x01, 0x01, 0x00]), false, Code::ID_ERROR),
        ("a table that is too large", vec![0x02, 0x3f, 0xff, 0xff, 0x03], false, Code::ENCODER_STREAM_ERROR),
        ("the end of the encoder's stream", vec![0x02], true, Code::CLOSED_CRITICAL_STREAM),
        ("an acknowledgement of nothing", vec![0x03, 0x80], false, Code::DECODER_STREAM_ERROR),
        ("an increment of nothing", vec![0x03, 0x00], false, Code::DECODER_STREAM_ERROR),
    ] {
        let (quic, _endpoints) = server().await;
        let _stream = uni(&quic, &bytes, finish).await;
        assert_eq!(closed(&quic).await, code, "{what}");
    }
}

/// RFC 9114 §6.2.1 MUST-3
/// RFC 9204 §4.2 MUST-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_a_kind_that_may_be_there_once() {
    for ty in [0x00, 0x02, 0x03] {
        let (quic, _endpoints) = server().await;
        let _first = uni(&quic, &[ty], false).await;
        let _second = uni(&quic, &[ty], false).await;
        assert_eq!(closed(&quic).await, Code::STREAM_CREATION_ERROR, "{ty}");
    }
}

/// RFC 9114 §4.1 MUST-3, RFC 9114 §7.1 MUST-4, RFC 9114 §7.2.3 MUST-1, RFC 9114 §7.2.4 MUST-3, RFC 9114 §7.2.5 MUST-6
/// RFC 9114 §7.2.7 MUST-1, RFC 9114 §7.2.8 MUST-1
/// RFC 9204 §2.2.3 MUST-1, RFC 9204 §7.4 MUST-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_request_may_not_say() {
    let good = fields(&PSEUDO);
    for (what, bytes, code) in [
        ("content first", vec![0x00, 0x01, 0x41], Code::FRAME_UNEXPECTED),
        ("no content first", vec![0x00, 0x00], Code::FRAME_UNEXPECTED),
        ("settings", vec![0x04, 0x00], Code::FRAME_UNEXPECTED),
        ("a limit for pushes", vec![0x0d, 0x01, 0x00], Code::FRAME_UNEXPECTED),
        ("the end of a push", [&good[..], &[0x03, 0x01, 0x00]].concat(), Code::FRAME_UNEXPECTED),
        ("the end in the length of a frame", [&good[..], &[0x00]].concat(), Code::FRAME_ERROR),
        ("the end in a frame that means nothing", [&good[..], &[0x21, 0x02, 0x00]].concat(), Code::FRAME_ERROR),
        (
            "an index that is no number",
            vec![0x01, 0x0d, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            Code::DECOMPRESSION_FAILED,
        ),
        ("a frame of HTTP/2", vec![0x08, 0x00], Code::FRAME_UNEXPECTED),
        ("a promise", [&good[..], &[0x05, 0x00]].concat(), Code::FRAME_UNEXPECTED),
        ("the end in a frame", [&good[..], &[0x00, 0x05, 0x41]].concat(), Code::FRAME_ERROR),
        ("a field that is not in the table", vec![0x01, 0x03, 0x02, 0x00, 0x80], Code::DECOMPRESSION_FAILED),
        ("fields that are cut off", vec![0x01, 0x03, 0x00, 0x00, 0x27], Code::DECOMPRESSION_FAILED),
        ("three sections", [&good[..], &good[..], &good[..]].concat(), Code::FRAME_UNEXPECTED),
        (
            "content behind the trailers",
            [&good[..], &fields(&[("a", "b")]), &[0x00, 0x00]].concat(),
            Code::FRAME_UNEXPECTED,
        ),
    ] {
        let (server, client, accepted, quic) = endpoints().await;
        // Reads the content as well.
        let service = |request: Request<RequestBody>| async move {
            let _ = request.into_body().collect().await;
            Response::new(full("ok"))
        };
        tokio::spawn(server::serve(accepted, Options::default(), std::future::pending(), service));
        let _ = raw(&quic, &bytes, true).await;
        assert_eq!(closed(&quic).await, code, "{what}");
        drop((server, client));
    }
}

/// RFC 9114 §4.1 SHOULD-2, RFC 9114 §4.1.2 MUST-1, MUST NOT-1, RFC 9114 §4.2 MUST-2, MUST-3, MUST NOT-2, RFC 9114 §4.3 MUST-1, MUST-3
/// RFC 9114 §4.3 MUST NOT-3, RFC 9114 §4.3.1 MUST NOT-1, MUST NOT-2, MUST NOT-3, MUST-4, MUST-5, MUST-6, RFC 9114 §4.4 MUST-1
/// RFC 9114 §10.3 MUST-1, MUST-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_request_ends_its_stream_alone() {
    let reached = Arc::new(AtomicUsize::new(0));
    let count = reached.clone();
    let mut pair = pair(Options::default(), move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Response::new(full("ok")) }
    })
    .await;
    let with = |extra: &[(&str, &str)]| fields(&[&PSEUDO[..], extra].concat());
    let only = |list: &[(&str, &str)]| fields(list);
    for (what, bytes) in [
        ("a method twice", with(&[(":method", "GET")])),
        ("a path twice", with(&[(":path", "/other")])),
        ("a status", with(&[(":status", "200")])),
        ("an unknown pseudo-field", with(&[(":version", "3")])),
        ("a pseudo-field behind a field", only(&[PSEUDO[0], PSEUDO[1], PSEUDO[2], ("a", "b"), PSEUDO[3]])),
        ("no scheme", only(&[PSEUDO[0], PSEUDO[2], PSEUDO[3]])),
        ("no path", only(&PSEUDO[..3])),
        ("an empty path", only(&[PSEUDO[0], PSEUDO[1], PSEUDO[2], (":path", "")])),
        ("a path without a slash", only(&[PSEUDO[0], PSEUDO[1], PSEUDO[2], (":path", "x")])),
        ("an empty authority", only(&[PSEUDO[0], PSEUDO[1], (":authority", ""), PSEUDO[3]])),
        ("a user in the authority", only(&[PSEUDO[0], PSEUDO[1], (":authority", "a@b"), PSEUDO[3]])),
        ("no authority", only(&[PSEUDO[0], PSEUDO[1], PSEUDO[3]])),
        ("a protocol without CONNECT", with(&[(":protocol", "websocket")])),
        ("a CONNECT with a path", only(&[(":method", "CONNECT"), (":authority", "localhost:443"), PSEUDO[3]])),
        ("a CONNECT with a scheme", only(&[(":method", "CONNECT"), (":authority", "localhost:443"), PSEUDO[1]])),
        ("a CONNECT without a port", only(&[(":method", "CONNECT"), PSEUDO[2]])),
        ("a CONNECT to nowhere", only(&[(":method", "CONNECT")])),
        ("a star without OPTIONS", only(&[PSEUDO[0], PSEUDO[1], PSEUDO[2], (":path", "*")])),
        ("a fragment", only(&[PSEUDO[0], PSEUDO[1], PSEUDO[2], (":path", "/a#b")])),
        ("a host that differs", with(&[("host", "elsewhere")])),
        ("an empty host", only(&[PSEUDO[0], PSEUDO[1], PSEUDO[3], ("host", "")])),
        ("a name that is none", with(&[("a b", "x")])),
        ("an empty name", with(&[("", "x")])),
        ("a line in a value", with(&[("x", "a\r\nb: c")])),
        ("a NUL in a value", with(&[("x", "a\0b")])),
        ("a TE that has no place", with(&[("te", "gzip")])),
        (
            "an extended CONNECT without a path",
            only(&[(":method", "CONNECT"), PSEUDO[1], PSEUDO[2], (":protocol", "websocket")]),
        ),
        ("the end before the fields", vec![]),
        ("capital letters", with(&[("Upper", "x")])),
        ("a field for one connection", with(&[("keep-alive", "5")])),
    ] {
        let answer = raw(&pair.quic, &bytes, true).await;
        let given_up = |error: &String| error.contains("reset") || error.contains("asked to stop");
        assert!(answer.as_ref().is_err_and(given_up), "{what}: {answer:?}");
        assert!(pair.quic.close_reason().is_none(), "{what} concerns its stream only");
    }
    assert_eq!(reached.load(Ordering::Relaxed), 0);
    assert_eq!(pair.request.send(get("/")).await.unwrap().status(), 200);
}

/// RFC 9114 §4.6 MUST-1, RFC 9114 §6.2.1 MUST-2, MUST-4, RFC 9114 §7.2.3 MUST-2, RFC 9114 §7.2.6 MUST-1, RFC 9114 §7.2.7 MUST-2
/// RFC 9218 §7.2 MUST-8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_may_not_say() {
    let control = |frame: &[u8]| [SETTINGS, frame].concat();
    for (what, bytes, code) in [
        ("a push", vec![0x01, 0x00], Code::ID_ERROR),
        ("no settings", vec![0x00, 0x07, 0x01, 0x00], Code::MISSING_SETTINGS),
        ("a push is cancelled", control(&[0x03, 0x01, 0x00]), Code::ID_ERROR),
        ("a limit for pushes", control(&[0x0d, 0x01, 0x00]), Code::FRAME_UNEXPECTED),
        ("a change of a priority", control(&[0x80, 0x0f, 0x07, 0x00, 0x01, 0x00]), Code::FRAME_UNEXPECTED),
        ("a GOAWAY that names no request", control(&[0x07, 0x01, 0x02]), Code::ID_ERROR),
    ] {
        let (mut request, quic, _endpoints) = client().await;
        let _stream = uni(&quic, &bytes, false).await;
        assert_eq!(closed(&quic).await, code, "{what}");
        let error = request.send(get("/")).await.map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Protocol { code: said, .. } if said == code), "{what}: {error}");
    }
}

/// RFC 9114 §6.1 MUST-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_begins_no_requests() {
    let (_request, quic, _endpoints) = client().await;
    let (mut send, _recv) = quic.open_bi().await.unwrap();
    send.write_all(&[0x01]).await.unwrap();
    assert_eq!(closed(&quic).await, Code::STREAM_CREATION_ERROR);
}

/// Sends the bytes as a server's answer; returns the client's result.
async fn answered(bytes: &[u8]) -> (Result<Bytes, Error>, Connection) {
    let (mut request, quic, _endpoints) = client().await;
    let bytes = bytes.to_vec();
    let serving = quic.clone();
    let answering = tokio::spawn(async move {
        let (mut send, mut recv) = serving.accept_bi().await.unwrap();
        recv.read_to_end(100_000).await.unwrap();
        send.write_all(&bytes).await.unwrap();
        send.finish().unwrap();
        let _ = send.finished().await;
    });
    let outcome = async {
        let response = request.send(get("/")).await?;
        Ok(response.into_body().collect().await?.to_bytes())
    };
    let outcome = tokio::time::timeout(Duration::from_secs(120), outcome).await.expect("there is an outcome");
    let _ = answering.await;
    (outcome, quic)
}

/// RFC 9114 §4.1 MUST-2, MUST-3, MUST NOT-2, RFC 9114 §4.1.2 MUST-1, MUST NOT-2, RFC 9114 §4.2 MUST-2, MUST-3
/// RFC 9114 §4.3 MUST-1, MUST NOT-2
/// RFC 9114 §4.3 MUST NOT-4, RFC 9114 §4.3.2 MUST-1, RFC 9114 §7.2.4 MUST-3, RFC 9114 §7.2.4.2 SHOULD NOT-1
/// RFC 9114 §7.2.5 MUST-1, RFC 9114 §7.2.6 MUST-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_answer_may_not_say() {
    let good = fields(&[(":status", "200")]);
    let (outcome, _) =
        answered(&[&fields(&[(":status", "103"), ("link", "x")]), &good[..], &[0x00, 0x01, 0x41]].concat()).await;
    assert_eq!(outcome.unwrap(), "A");
    for (what, bytes, code) in [
        ("no status", fields(&[("a", "b")]), Code::MESSAGE_ERROR),
        ("a status twice", fields(&[(":status", "200"), (":status", "404")]), Code::MESSAGE_ERROR),
        ("a status that is none", fields(&[(":status", "+20")]), Code::MESSAGE_ERROR),
        ("another protocol", fields(&[(":status", "101")]), Code::MESSAGE_ERROR),
        ("a path", fields(&[(":status", "200"), (":path", "/")]), Code::MESSAGE_ERROR),
        (
            "a wrong length",
            [&fields(&[(":status", "200"), ("content-length", "2")])[..], &[0x00, 0x01, 0x41]].concat(),
            Code::MESSAGE_ERROR,
        ),
        ("pseudo-fields at the end", [&good[..], &fields(&[(":status", "200")])].concat(), Code::MESSAGE_ERROR),
        (
            "a second answer",
            [&good[..], &[0x00, 0x01, 0x41], &fields(&[(":status", "200")])].concat(),
            Code::MESSAGE_ERROR,
        ),
        ("capital letters", fields(&[(":status", "200"), ("Upper", "x")]), Code::MESSAGE_ERROR),
        ("a field for one connection", fields(&[(":status", "200"), ("connection", "close")]), Code::MESSAGE_ERROR),
        ("a field of requests", fields(&[(":status", "200"), ("te", "trailers")]), Code::MESSAGE_ERROR),
        (
            "two lengths",
            [&fields(&[(":status", "200"), ("content-length", "1"), ("content-length", "2")])[..], &[0x00, 0x01, 0x41]]
                .concat(),
            Code::MESSAGE_ERROR,
        ),
        ("content of nothing", [&fields(&[(":status", "204")])[..], &[0x00, 0x01, 0x41]].concat(), Code::MESSAGE_ERROR),
        ("content first", vec![0x00, 0x01, 0x41], Code::FRAME_UNEXPECTED),
        (
            "content behind an interim answer",
            [&fields(&[(":status", "103")])[..], &[0x00, 0x00]].concat(),
            Code::FRAME_UNEXPECTED,
        ),
        ("settings", [&good[..], &[0x04, 0x00]].concat(), Code::FRAME_UNEXPECTED),
        ("a GOAWAY", [&good[..], &[0x07, 0x01, 0x00]].concat(), Code::FRAME_UNEXPECTED),
        ("nothing", vec![], Code::REQUEST_INCOMPLETE),
        ("a promise", [&good[..], &[0x05, 0x01, 0x00]].concat(), Code::ID_ERROR),
    ] {
        let (outcome, _) = answered(&bytes).await;
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Protocol { code: said, .. } if said == code), "{what}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_beyond_the_last_one_may_be_sent_again() {
    let (mut request, quic, _endpoints) = client().await;
    let waiting = {
        let mut request = request.clone();
        tokio::spawn(async move { request.send(get("/")).await.map(|_| ()).unwrap_err() })
    };
    let _halves = quic.accept_bi().await.unwrap();
    // The server says that it takes none, and is silent about this one.
    let _control = uni(&quic, &[SETTINGS, &[0x07, 0x01, 0x00]].concat(), false).await;
    let error = tokio::time::timeout(Duration::from_secs(120), waiting).await.expect("it does not wait").unwrap();
    assert!(error.is_unprocessed(), "{error}");
    let error = request.send(get("/")).await.map(|_| ()).unwrap_err();
    assert!(error.is_unprocessed(), "{error}");
}

/// RFC 9114 §10.5 SHOULD-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_gives_up_without_end_and_hears_nothing_is_sent_away() {
    // No stream on which it could be told that its fields are not decoded.
    let mut profile = Profile::default();
    profile.streams.max_streams_uni = 0;
    let (server, client, accepted, quic) = endpoints_with(profile).await;
    let serving =
        server::serve(accepted, Options::default(), std::future::pending(), |_| async { Response::new(full("ok")) });
    tokio::spawn(serving);
    let give_up = async {
        while let Ok((mut send, mut recv)) = quic.open_bi().await {
            let _ = send.write_all(&[0x01]).await;
            let _ = send.reset(0x10c);
            let _ = recv.stop(0x10c);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), give_up).await.expect("it is sent away");
    assert_eq!(closed(&quic).await, Code::EXCESSIVE_LOAD);
    drop((server, client));
}

/// RFC 9114 §6.2 MUST-2, MUST-3, MUST NOT-1, SHOULD-3, SHOULD NOT-1, RFC 9114 §6.2.3 MUST NOT-1, RFC 9114 §7.2.4 MUST-4
/// RFC 9114 §7.2.4.1 MUST NOT-1, RFC 9114 §7.2.8 MUST NOT-1, RFC 9114 §9 MUST-1, MUST-2
/// RFC 9204 §4.2 MUST-4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_known_is_not_minded() {
    let (quic, _endpoints) = server().await;
    // A reserved stream, one that ends before its type, a reserved frame, an unknown setting.
    let mut reserved = uni(&quic, &[0x21, 1, 2, 3], false).await;
    let _short = uni(&quic, &[0x40], true).await;
    let _control = uni(&quic, &[0x00, 0x04, 0x06, 0x40, 0x99, 0x07, 0x40, 0x5f, 0x01, 0x21, 0x02, 9, 9], false).await;
    // QPACK without anything to say, and a stream that is given up before it has said what it is.
    let mut encoder = uni(&quic, &[0x40], false).await;
    let _decoder = uni(&quic, &[0x03], false).await;
    // A type that comes in two parts; and then no capacity.
    tokio::time::sleep(Duration::from_millis(50)).await;
    encoder.write_all(&[0x02, 0x20]).await.unwrap();
    uni(&quic, &[0x40], false).await.reset(0x100).unwrap();
    assert_eq!(reserved.stopped().await.to_string(), "the peer asked to stop (code 259)");
    // A frame that means nothing may have any length.
    let long = [&[0x21, 0x80, 0x01, 0x86, 0xa0][..], &[7; 100_000]].concat();
    let request = [&[0x21, 0x01, 0x00][..], &fields(&PSEUDO), &[0x40, 0x5f, 0x00], &long].concat();
    assert!(!raw(&quic, &request, true).await.unwrap().is_empty());
    assert!(quic.close_reason().is_none());
}

/// The types of the streams that a peer opens, with what has come on them so far.
async fn opened(quic: &Connection, count: usize) -> Vec<(Vec<u8>, tiderace::RecvStream)> {
    let mut streams = Vec::new();
    while streams.len() < count {
        let mut stream = quic.accept_uni().await.unwrap();
        let said = stream.read_chunk(1_000).await.unwrap().expect("it goes on");
        streams.push((said.to_vec(), stream));
    }
    streams.sort_by_key(|(said, _)| said[0]);
    streams
}

/// Returns whether nothing comes of a future for a while.
async fn nothing<T>(what: impl Future<Output = T>) -> bool {
    tokio::time::timeout(Duration::from_millis(400), what).await.is_err()
}

/// RFC 9114 §3.2 MUST-1, MUST-2, MUST-3, RFC 9114 §6.2 SHOULD-2, RFC 9114 §6.2.1 MUST-1, MUST NOT-1, MUST NOT-2, RFC 9114 §7.2.4 MUST-1
/// RFC 9114 §7.2.4 MUST NOT-1, MUST NOT-2, RFC 9114 §7.2.4.2 MUST-1, MUST-4, MUST NOT-2, RFC 9114 §7.2.7 MUST NOT-1
/// RFC 9204 §4.2 MUST-1, MUST NOT-1, MUST NOT-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_says_by_itself() {
    let (server, client, accepted, quic) = endpoints().await;
    assert_eq!(accepted.server_name().as_deref(), Some("localhost"));
    let service = |_| async {
        let mut response = Response::new(full("ok"));
        response.headers_mut().insert("server", "something".parse().unwrap());
        response
    };
    tokio::spawn(server::serve(accepted, Options::default(), std::future::pending(), service));
    // Before anything is said to it: settings that are not the default, each once, and one that means nothing.
    let mut control = opened(&quic, 1).await.remove(0);
    let settings = [0x06, 0x80, 0x01, 0x00, 0x00, 0x01, 0x50, 0x00, 0x08, 0x01, 0x33, 0x01, 0x40, 0xfa, 0x00];
    assert_eq!(control.0, [&[0x00, 0x04, settings.len() as u8][..], &settings].concat());
    // With a table, in both directions, there is something to say on the streams of QPACK: once for all requests.
    let mut ours = uni(&quic, &[0x00, 0x04, 0x03, 0x01, 0x50, 0x00], false).await;
    let mut encoder = uni(&quic, &[0x02, 0x3f, 0xe1, 0x1f, 0xc0, 0x01, b'a'], false).await;
    for _ in 0..3 {
        assert!(!raw(&quic, &fields(&PSEUDO), true).await.unwrap().is_empty());
    }
    let mut others = opened(&quic, 2).await;
    assert_eq!([others[0].0[0], others[1].0[0]], [0x02, 0x03]);
    assert!(nothing(quic.accept_uni()).await, "there is no fourth");
    assert!(nothing(control.1.read_chunk(10)).await, "the control stream says no more, and does not end");
    for (_, stream) in &mut others {
        let read = async { while let Ok(Some(_)) = stream.read_chunk(1_000).await {} };
        assert!(nothing(read).await, "it does not end");
    }
    // And nobody is asked to stop.
    assert!(nothing(ours.stopped()).await && nothing(encoder.stopped()).await);
    drop((server, client));
}

/// RFC 9114 §3.2 MUST-3, RFC 9114 §6.2 SHOULD-2, RFC 9114 §6.2.1 MUST-1, RFC 9114 §7.2.4 MUST-1
/// RFC 9114 §7.2.4.2 MUST-1, MUST-4, MUST NOT-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_says_by_itself() {
    let (_request, quic, _endpoints) = client().await;
    let mut control = opened(&quic, 1).await.remove(0);
    let settings = [0x06, 0x80, 0x04, 0x00, 0x00, 0x01, 0x50, 0x00, 0x33, 0x01, 0x40, 0xfa, 0x00];
    assert_eq!(control.0, [&[0x00, 0x04, settings.len() as u8][..], &settings].concat());
    assert!(nothing(control.1.read_chunk(10)).await);
}

/// RFC 9114 §6.1 SHOULD-1, SHOULD-2, RFC 9114 §6.2 MUST-1, SHOULD-1, RFC 9114 §6.2.1 SHOULD-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_room_for_what_http_needs() {
    let (quic, _endpoints) = server().await;
    let (_request, accepted, _others) = client().await;
    for quic in [&quic, &accepted] {
        let mut streams = Vec::new();
        for _ in 0..3 {
            // A reserved type, with all of the first credit that a stream needs.
            streams.push(uni(quic, &[&[0x21][..], &[0; 1_024]].concat(), false).await);
        }
    }
    let mut requests = Vec::new();
    for _ in 0..100 {
        requests.push(quic.open_bi().await.unwrap());
    }
}

/// RFC 9114 §5.2 MUST NOT-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_its_leave_gets_no_more_requests() {
    let (mut request, quic, _endpoints) = client().await;
    let under_way = {
        let mut request = request.clone();
        tokio::spawn(async move { request.send(get("/")).await.map(|response| response.status()) })
    };
    let (mut send, _recv) = quic.accept_bi().await.unwrap();
    // All numbers that a request can have are below.
    let last = [&[0x07, 0x08][..], &(((1_u64 << 62) - 4) | 0xc000_0000_0000_0000).to_be_bytes()].concat();
    let _control = uni(&quic, &[SETTINGS, &last].concat(), false).await;
    let late = async {
        loop {
            match tokio::time::timeout(Duration::from_millis(100), request.send(get("/"))).await {
                Ok(answer) => return answer.map(|_| ()).unwrap_err(),
                // It had not heard of it yet.
                Err(_) => continue,
            }
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(120), late).await.expect("it is refused");
    assert!(matches!(error, Error::GoingAway), "{error}");
    send.write_all(&fields(&[(":status", "200")])).await.unwrap();
    send.finish().unwrap();
    assert_eq!(under_way.await.unwrap().unwrap(), 200);
}

/// RFC 9114 §5.4 MUST-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_goaway_nothing_is_known_about_a_request() {
    let (request, quic, _endpoints) = client().await;
    let waiting = {
        let mut request = request.clone();
        tokio::spawn(async move { request.send(get("/")).await.map(|_| ()).unwrap_err() })
    };
    let _halves = quic.accept_bi().await.unwrap();
    quic.close(Code::NO_ERROR.0, b"");
    let error = waiting.await.unwrap();
    assert!(matches!(error, Error::Closed(_)) && !error.is_unprocessed(), "{error}");
}

/// A client that asks with a body of which the end never comes, and the server's end of its stream.
async fn endless() -> (
    tokio::task::JoinHandle<Result<Response<tiderace_h3::ResponseBody>, Error>>,
    (tiderace::SendStream, tiderace::RecvStream),
    http_body_util::channel::Sender<Bytes, std::io::Error>,
    impl Sized,
) {
    let (mut request, quic, endpoints) = client().await;
    let (mut say, body) = http_body_util::channel::Channel::<Bytes, std::io::Error>::new(1);
    say.send_data(Bytes::from_static(b"begun")).await.unwrap();
    let post = Request::post("https://localhost/").body(body).unwrap();
    let kept = request.clone();
    let waiting = tokio::spawn(async move { request.send(post).await });
    let halves = quic.accept_bi().await.unwrap();
    (waiting, halves, say, (kept, quic, endpoints))
}

/// The code with which the other end gives its sending half up.
async fn reset(recv: &mut tiderace::RecvStream) -> Code {
    let reading = async {
        loop {
            match recv.read_chunk(1_000).await {
                Ok(Some(_)) => {}
                Err(tiderace::ReadError::Reset(code)) => return Code(code),
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), reading).await.expect("it is reset")
}

/// RFC 9114 §4.1.1 SHOULD-1, SHOULD-4, MUST NOT-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_a_response_up_ends_both_directions() {
    // When the answer has begun.
    let (waiting, (mut send, mut recv), _say, _kept) = endless().await;
    send.write_all(&fields(&[(":status", "200")])).await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    assert_eq!(reset(&mut recv).await, Code::REQUEST_CANCELLED);
    assert_eq!(send.stopped().await.to_string(), "the peer asked to stop (code 268)");
    // Before.
    let (waiting, (mut send, mut recv), _say, _kept) = endless().await;
    waiting.abort();
    assert_eq!(reset(&mut recv).await, Code::REQUEST_CANCELLED);
    assert_eq!(send.stopped().await.to_string(), "the peer asked to stop (code 268)");
}

/// RFC 9114 §4.1.2 MUST-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_answer_ends_both_directions() {
    let (waiting, (mut send, mut recv), _say, _kept) = endless().await;
    send.write_all(&fields(&[("a", "b")])).await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(Error::Protocol { code: Code::MESSAGE_ERROR, .. })));
    assert_eq!(reset(&mut recv).await, Code::MESSAGE_ERROR);
    assert_eq!(send.stopped().await.to_string(), "the peer asked to stop (code 270)");
}

/// RFC 9114 §4.1 MUST NOT-3, RFC 9114 §8 MUST-1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_counts_whatever_is_said_about_the_request() {
    for code in [Code::NO_ERROR, Code(0xdead), Code(0x1f * 9 + 0x21)] {
        let (waiting, (mut send, mut recv), _say, _kept) = endless().await;
        recv.stop(code.0).unwrap();
        send.write_all(&[&fields(&[(":status", "200")])[..], &[0x00, 0x01, 0x41]].concat()).await.unwrap();
        send.finish().unwrap();
        let response = waiting.await.unwrap().unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "A");
    }
}

/// RFC 9114 §4.1 SHOULD-4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_goes_on_behind_its_answer() {
    let (waiting, (mut send, mut recv), mut say, _kept) = endless().await;
    send.write_all(&fields(&[(":status", "200")])).await.unwrap();
    send.finish().unwrap();
    assert!(waiting.await.unwrap().unwrap().into_body().collect().await.unwrap().to_bytes().is_empty());
    say.send_data(Bytes::from_static(b"and ended")).await.unwrap();
    drop(say);
    let all = recv.read_to_end(10_000).await.unwrap();
    assert!(all.ends_with(b"\0\x09and ended"), "{all:?}");
}

/// RFC 9114 §4.4 MUST-1, MUST-2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_carries_content_and_nothing_else() {
    let connect = fields(&[(":method", "CONNECT"), (":authority", "a.example:443")]);
    // A service that agrees, and one that does not: what comes then is a request as others.
    for (status, agreed) in [(200, true), (403, false)] {
        let (server, client, accepted, quic) = endpoints().await;
        let service = move |request: Request<RequestBody>| async move {
            assert_eq!((request.method().as_str(), request.uri().to_string().as_str()), ("CONNECT", "a.example:443"));
            tokio::spawn(request.into_body().collect());
            Response::builder().status(status).body(full("")).unwrap()
        };
        tokio::spawn(server::serve(accepted, Options::default(), std::future::pending(), service));
        let (mut send, mut recv) = quic.open_bi().await.unwrap();
        send.write_all(&connect).await.unwrap();
        recv.read_to_end(1_000).await.unwrap();
        // The end of the connection may come between the two.
        let sent = send.write_all(&fields(&[("a", "b")])).await.and_then(|()| send.finish());
        if agreed {
            assert_eq!(closed(&quic).await, Code::FRAME_UNEXPECTED);
        } else {
            sent.unwrap();
            assert!(nothing(quic.closed()).await);
        }
        drop((server, client));
    }
    // And a server that sends trailers in one; its length means nothing.
    let (mut request, quic, _endpoints) = self::client().await;
    let asked = Request::connect("a.example:443").body(full("")).unwrap();
    let waiting = tokio::spawn(async move { request.send(asked).await.unwrap().into_body().collect().await });
    let (mut send, _recv) = quic.accept_bi().await.unwrap();
    let agree = fields(&[(":status", "200"), ("content-length", "5")]);
    send.write_all(&[&agree[..], &[0x00, 0x01, 0x41], &fields(&[("a", "b")])].concat()).await.unwrap();
    let error = waiting.await.unwrap().map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Protocol { code: Code::FRAME_UNEXPECTED, .. }), "{error}");
    assert_eq!(closed(&quic).await, Code::FRAME_UNEXPECTED);
}
