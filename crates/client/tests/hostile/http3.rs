//! Hostile servers over HTTP/3: heads and trailers without end, lengths that lie, streams and frames that have no place.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use tiderace::{CloseReason, Profile, SendStream};
use tiderace_client::Leg;
use tokio::sync::mpsc;

use crate::servers::{LIMIT, PATIENT, ask, client, control, frame, headers, http3, quic, read};

const EXCESSIVE_LOAD: u64 = 0x107;

/// Asks a server that answers each request with these bytes, and says what came of it.
async fn answered(bytes: Vec<u8>) -> Result<usize, String> {
    let bytes = Bytes::from(bytes);
    let (address, trust) = http3(move |mut send: SendStream, _recv| {
        let bytes = bytes.clone();
        async move {
            if send.write_chunk(bytes).await.is_ok() && send.finish().is_ok() {
                send.stopped().await;
            }
        }
    });
    match ask(&client(&trust, PATIENT), address, Leg::Quic).await {
        Ok(fetched) => read(fetched).await,
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interim_responses_without_end_are_given_up() {
    let (told, mut tells) = mpsc::unbounded_channel();
    let (address, trust) = http3(move |mut send: SendStream, _recv| {
        let told = told.clone();
        async move {
            let early = headers(&[(":status", "103"), ("link", "</a>")]);
            let mut sent = 0;
            let refused = loop {
                match send.write_all(&early).await {
                    Ok(_) => sent += 1,
                    Err(error) => break error,
                }
                tokio::task::yield_now().await;
            };
            // Whichever hears of it first: a stream that was stopped is reset, and then has no code to wait for.
            let _ = told.send((sent, format!("{refused}; {}", send.stopped().await)));
        }
    });
    let error = ask(&client(&trust, PATIENT), address, Leg::Quic).await.err().unwrap().to_string();
    assert!(error.contains("interim responses"), "{error}");
    let (sent, why) = tokio::time::timeout(LIMIT, tells.recv()).await.unwrap().unwrap();
    // The stream is stopped; the connection, which nobody else uses, may be closed before that is read.
    let is_over =
        why.contains("107") || why.contains(&EXCESSIVE_LOAD.to_string()) || why.contains("application (code 256)");
    assert!(sent > 16 && is_over, "{sent}: {why}");
    // A few are what they are.
    let mut few = headers(&[(":status", "103")]).repeat(16);
    few.extend(headers(&[(":status", "200")]));
    few.extend(frame(0, b"hello"));
    assert_eq!(answered(few).await, Ok(5));
}

/// 256 KiB of fields, as RFC 9114 §4.2.2 counts them: 32 bytes for each field beside its letters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_and_trailers_are_bounded() {
    let status = headers(&[(":status", "200")]);
    let many: Vec<(&str, &str)> = vec![("a", ""); 8_000];
    let head = |fields: &[(&str, &str)]| headers(&[&[(":status", "200")], fields].concat());
    assert_eq!(answered([head(&many[..7_900]), frame(0, b"x")].concat()).await, Ok(1), "within the limit");
    let large = "x".repeat(300 * 1024);
    for fields in [&many[..], &[("a", &large)]] {
        let error = answered(head(fields)).await.unwrap_err();
        assert!(error.contains("fields") || error.contains("frame of"), "{error}");
        let trailers = [status.clone(), frame(0, b"x"), headers(fields)].concat();
        let error = answered(trailers).await.unwrap_err();
        assert!(error.contains("fields") || error.contains("frame of"), "{error}");
    }
    // A frame that claims to be enormous is refused before it comes: nothing is reserved for it.
    for claim in
        [vec![0x01, 0xff, 255, 255, 255, 255, 255, 255, 255], [&status[..], &[0x01, 0xbf, 255, 255, 255]].concat()]
    {
        let error = answered(claim).await.unwrap_err();
        assert!(error.contains("frame of"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_make_no_sense_are_no_responses() {
    for fields in [
        &[(":status", "0200")][..],
        &[(":status", "20")],
        &[(":status", "2x0")],
        &[(":status", "101")],
        &[(":status", "200"), (":status", "200")],
        &[("a", "b"), (":status", "200")],
        &[("a", "b")],
        &[(":status", "200"), (":path", "/")],
        &[(":status", "200"), ("transfer-encoding", "chunked")],
        &[(":status", "200"), ("Upper", "x")],
        &[(":status", "200"), ("a", "b\r\nc: d")],
        &[(":status", "200"), ("a", "b\0")],
        &[(":status", "200"), ("content-length", "-1")],
        &[(":status", "200"), ("content-length", "+5")],
        &[(":status", "200"), ("content-length", "5, 5")],
        &[(":status", "200"), ("content-length", "99999999999999999999")],
        &[(":status", "200"), ("content-length", "5"), ("content-length", "6")],
    ] {
        let error = answered([headers(fields), frame(0, b"hello")].concat()).await.unwrap_err();
        assert!(error.contains("a message that"), "{fields:?}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lengths_that_lie_are_told() {
    for (length, content, lies) in [("5", "hello", false), ("6", "hello", true), ("4", "hello", true), ("0", "x", true)]
    {
        let head = headers(&[(":status", "200"), ("content-length", length)]);
        let came = answered([head, frame(0, content.as_bytes())].concat()).await;
        assert_eq!(came.is_err(), lies, "{length} for {content}: {came:?}");
    }
}

/// A protocol violation by a server ends the connection with the code of the standard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_place_ends_the_connection() {
    #[derive(Clone, Copy, Debug)]
    enum Does {
        Control(&'static [u8]),
        Uni(&'static [u8]),
        Bidi,
        EndsControl,
    }
    for (does, code) in [
        // GOAWAY: the number goes up; is no request's.
        (Does::Control(&[0x07, 0x01, 0x04, 0x07, 0x01, 0x08]), 0x108),
        (Does::Control(&[0x07, 0x01, 0x03]), 0x108),
        // MAX_PUSH_ID, and CANCEL_PUSH, of a server.
        (Does::Control(&[0x0d, 0x01, 0x00]), 0x105),
        (Does::Control(&[0x03, 0x01, 0x00]), 0x108),
        // Settings twice; a frame that is larger than anything.
        (Does::Control(&[0x04, 0x00]), 0x105),
        (Does::Control(&[0x07, 0xbf, 0xff, 0xff, 0xff]), EXCESSIVE_LOAD),
        // A push, a second control stream, an encoder that sets a capacity beyond what was allowed.
        (Does::Uni(&[0x01, 0x00]), 0x108),
        (Does::Uni(&[0x00, 0x04, 0x00]), 0x103),
        (Does::Uni(&[0x02, 0x3f, 0xff, 0xff, 0xff, 0x7f]), 0x201),
        (Does::Bidi, 0x103),
        (Does::EndsControl, 0x104),
    ] {
        let (told, mut tells) = mpsc::unbounded_channel();
        let (address, trust) = quic(
            Profile::default(),
            |_| {},
            move |connection| {
                let told = told.clone();
                async move {
                    let more = if let Does::Control(more) = does { more } else { &[] };
                    let mut control = control(&connection, more).await.unwrap();
                    let mut kept = Vec::new();
                    match does {
                        Does::Control(_) => {}
                        Does::Uni(bytes) => {
                            let mut stream = connection.open_uni().await.unwrap();
                            stream.write_all(bytes).await.unwrap();
                            kept.push(stream);
                        }
                        Does::Bidi => {
                            let (mut send, _recv) = connection.open_bi().await.unwrap();
                            let _ = send.write_all(b"x").await;
                            kept.push(send);
                        }
                        Does::EndsControl => control.finish().unwrap(),
                    }
                    let _ = told.send(connection.closed().await);
                }
            },
        );
        let error = ask(&client(&trust, PATIENT), address, Leg::Quic).await.err().map(|error| error.to_string());
        let reason = tokio::time::timeout(LIMIT, tells.recv()).await.unwrap().unwrap();
        assert!(
            matches!(reason, CloseReason::PeerApplication { code: said, .. } if said == code),
            "{does:?}: {reason:?}, {error:?}"
        );
    }
}

/// Streams that nobody knows, and frames that mean nothing, are refused one by one, and the request beside them is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_known_costs_nothing_that_stays() {
    const STREAMS: usize = 5_000;
    let stopped = Arc::new(AtomicUsize::new(0));
    let stops = stopped.clone();
    let (address, trust) = quic(
        Profile::default(),
        |_| {},
        move |connection| {
            let stops = stops.clone();
            async move {
                // Settings that ask for everything: a table of 2^62 - 1 bytes, as many blocked streams, and a reserved frame of 1 MB.
                let most = [0xff; 8];
                let settings = [&[0x01][..], &most, &[0x07], &most].concat();
                let mut control = connection.open_uni().await.unwrap();
                control.write_all(&[&[0x00, 0x04, settings.len() as u8][..], &settings].concat()).await.unwrap();
                control.write_all(&frame(0x21, &vec![0; 1_000_000])).await.unwrap();
                for _ in 0..STREAMS {
                    let mut stream = connection.open_uni().await.unwrap();
                    let _ = stream.write_all(&[0x21, 0, 0, 0]).await;
                    let stops = stops.clone();
                    tokio::spawn(async move {
                        if stream.stopped().await.to_string().contains("stop") {
                            stops.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                }
                let (mut send, _recv) = connection.accept_bi().await.unwrap();
                let empty = frame(0, b"").repeat(10_000);
                send.write_all(
                    &[headers(&[(":status", "200")]), empty, frame(0x21, &[0; 5_000]), frame(0, b"hello")].concat(),
                )
                .await
                .unwrap();
                send.finish().unwrap();
                connection.closed().await;
            }
        },
    );
    let fetched = ask(&client(&trust, PATIENT), address, Leg::Quic).await.unwrap();
    assert_eq!(read(fetched).await, Ok(5));
    assert!(stopped.load(Ordering::SeqCst) > 0, "streams of unknown types are stopped");
}

/// A server that always takes its leave: the client tries a few connections, and gives up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leave_that_is_always_taken_ends_the_request() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counts = connections.clone();
    let (address, trust) = quic(
        Profile::default(),
        |_| {},
        move |connection| {
            counts.fetch_add(1, Ordering::SeqCst);
            async move {
                let _control = control(&connection, &[0x07, 0x01, 0x00]).await;
                connection.closed().await;
            }
        },
    );
    let client = client(&trust, PATIENT);
    let route = tiderace_client::Route { only: Some(Leg::Quic), ..tiderace_client::Route::default() };
    for asked in 1..=3 {
        let ended = tokio::time::timeout(LIMIT, client.get_by(&format!("https://{address}/"), &route)).await;
        assert!(ended.expect("it ends").is_err());
        // A request that a new connection has left out goes to another one, once.
        assert!(connections.load(Ordering::SeqCst) <= 2 * asked, "two connections for each request");
    }
}

/// Content that nobody reads stays with the server: it gets no more credit than the client's receive window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_that_nobody_reads_is_bounded_by_the_window() {
    let window = Profile::default().streams.receive_window_max as usize;
    let sent = Arc::new(AtomicUsize::new(0));
    let (counts, (told, mut tells)) = (sent.clone(), mpsc::unbounded_channel());
    let (address, trust) = http3(move |mut send: SendStream, _recv| {
        let (counts, told) = (counts.clone(), told.clone());
        async move {
            send.write_all(&headers(&[(":status", "200")])).await.unwrap();
            let part = frame(0, &[b'x'; 65_536]);
            while send.write_all(&part).await.is_ok() {
                counts.fetch_add(part.len(), Ordering::SeqCst);
            }
            let _ = told.send(());
        }
    });
    let fetched = ask(&client(&trust, PATIENT), address, Leg::Quic).await.unwrap();
    // Until the server is stuck for a while; however long that takes, it does not get further than this.
    let buffers = Profile::default().streams.send_buffer_max as usize;
    let mut before = usize::MAX;
    while before != sent.load(Ordering::SeqCst) {
        before = sent.load(Ordering::SeqCst);
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        assert!(before <= window + buffers + 65_536, "{before}");
    }
    drop(fetched);
    tokio::time::timeout(LIMIT, tells.recv()).await.unwrap().expect("the server is told to stop");
}
