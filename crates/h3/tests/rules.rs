//! Who breaks the rules of HTTP/3 is told with the code that RFC 9114, RFC 9204, RFC 9218 and RFC 9297 name.

mod pair;

use std::{
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
    let reason = tokio::time::timeout(Duration::from_secs(20), quic.closed()).await.expect("it is closed");
    match reason {
        CloseReason::PeerApplication { code, .. } => Code(code),
        other => panic!("{other}"),
    }
}

/// A control stream with nothing but settings.
const SETTINGS: &[u8] = &[0x00, 0x04, 0x00];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_may_not_say() {
    let control = |frame: &[u8]| [SETTINGS, frame].concat();
    for (what, bytes, finish, code) in [
        ("no settings", vec![0x00, 0x07, 0x01, 0x00], false, Code::MISSING_SETTINGS),
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_a_kind_that_may_be_there_once() {
    for ty in [0x00, 0x02, 0x03] {
        let (quic, _endpoints) = server().await;
        let _first = uni(&quic, &[ty], false).await;
        let _second = uni(&quic, &[ty], false).await;
        assert_eq!(closed(&quic).await, Code::STREAM_CREATION_ERROR, "{ty}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_request_may_not_say() {
    let good = fields(&PSEUDO);
    for (what, bytes, code) in [
        ("content first", vec![0x00, 0x01, 0x41], Code::FRAME_UNEXPECTED),
        ("no content first", vec![0x00, 0x00], Code::FRAME_UNEXPECTED),
        ("settings", vec![0x04, 0x00], Code::FRAME_UNEXPECTED),
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
        ("a CONNECT with a path", only(&[(":method", "CONNECT"), PSEUDO[2], PSEUDO[3]])),
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_may_not_say() {
    let control = |frame: &[u8]| [SETTINGS, frame].concat();
    for (what, bytes, code) in [
        ("a push", vec![0x01, 0x00], Code::ID_ERROR),
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

/// What a server answers that writes what it likes.
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
    let outcome = tokio::time::timeout(Duration::from_secs(20), outcome).await.expect("there is an outcome");
    let _ = answering.await;
    (outcome, quic)
}

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
    let error = tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it does not wait").unwrap();
    assert!(error.is_unprocessed(), "{error}");
    let error = request.send(get("/")).await.map(|_| ()).unwrap_err();
    assert!(error.is_unprocessed(), "{error}");
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_known_is_not_minded() {
    let (quic, _endpoints) = server().await;
    // A reserved stream, one that ends before its type, a reserved frame, an unknown setting.
    let mut reserved = uni(&quic, &[0x21, 1, 2, 3], false).await;
    let _short = uni(&quic, &[0x40], true).await;
    let _control = uni(&quic, &[0x00, 0x04, 0x03, 0x40, 0x99, 0x07, 0x21, 0x02, 9, 9], false).await;
    assert_eq!(reserved.stopped().await.to_string(), "the peer asked to stop (code 259)");
    let request = [&[0x21, 0x01, 0x00][..], &fields(&PSEUDO), &[0x40, 0x5f, 0x00]].concat();
    assert!(!raw(&quic, &request, true).await.unwrap().is_empty());
    assert!(quic.close_reason().is_none());
}
