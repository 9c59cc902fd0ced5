//! Peers that write what they like: early streams, unknown sessions, wrong capsules, and too much of everything.

#[path = "../../h3/tests/pair/fields.rs"]
mod fields;
mod pair;

use std::time::Duration;

use bytes::Bytes;
use fields::fields as headers;
use h3_quic::{Code, capsule};
use pair::{Ends, ends, open, serve, within};
use tiderace::{Connection, ReadError, WriteError};
use tiderace_webtransport::{Config, Limits, Session, SessionEnd};
use tokio::sync::mpsc::UnboundedReceiver;

fn varint(number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    wire::varint::push(&mut out, number);
    out
}

/// A control stream with these settings.
fn settings(pairs: &[(u64, u64)]) -> Vec<u8> {
    let payload: Vec<u8> = pairs.iter().flat_map(|(id, value)| [varint(*id), varint(*value)].concat()).collect();
    [&[0x00, 0x04, payload.len() as u8][..], &payload].concat()
}

const CURRENT: &[(u64, u64)] = &[(0x33, 1), (0x2c7c_f000, 1), (0x2b64, 100), (0x2b65, 100), (0x2b61, 65_536)];
/// Settings of a browser of today.
const BROWSER: &[(u64, u64)] = &[(0x1, 65_536), (0x7, 100), (0x6, 16_384), (0x33, 1), (0xff_d277, 1), (0x2b60_3742, 1)];

fn connect(token: &str) -> Vec<u8> {
    headers(&[
        (":method", "CONNECT"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", "/chat"),
        (":protocol", token),
    ])
}

/// Capsules in a DATA frame.
fn data(capsules: &[(u64, &[u8])]) -> Vec<u8> {
    let mut content = Vec::new();
    for (ty, value) in capsules {
        capsule::write(&mut content, *ty, value);
    }
    [vec![0x00], varint(content.len() as u64), content].concat()
}

/// A client that has sent these settings, and a server of ours.
struct Raw {
    quic: Connection,
    sessions: UnboundedReceiver<Session>,
    ends: Ends,
    _control: tiderace::SendStream,
}

async fn raw(config: Config, of_client: &[(u64, u64)]) -> Raw {
    let ends = ends(true, None).await;
    let sessions = serve(&ends.accepted, config);
    let mut control = ends.quic.open_uni().await.unwrap();
    control.write_all(&settings(of_client)).await.unwrap();
    Raw { quic: ends.quic.clone(), sessions, ends, _control: control }
}

impl Raw {
    /// Begins a session.
    async fn session(&mut self, token: &str) -> (tiderace::SendStream, tiderace::RecvStream, Session) {
        let (mut send, recv) = self.quic.open_bi().await.unwrap();
        send.write_all(&connect(token)).await.unwrap();
        (send, recv, within(self.sessions.recv()).await.unwrap())
    }
}

/// The code that a stream is reset with, whatever comes before.
async fn reset_of(recv: &mut tiderace::RecvStream) -> u64 {
    loop {
        match within(recv.read_chunk(10_000)).await {
            Ok(Some(_)) => {}
            Err(ReadError::Reset(code)) => return code,
            other => panic!("{other:?}"),
        }
    }
}

/// draft-ietf-webtrans-http3 §4.6 SHOULD, MUST
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_datagrams_before_their_session_wait_within_a_bound() {
    let mut raw = raw(Config { max_early_streams: 3, ..open() }, CURRENT).await;
    // The request's stream has the lowest number, and its fields come last.
    let (mut request, _answer) = raw.quic.open_bi().await.unwrap();
    assert_eq!(request.id().0, 0);
    request.write_all(&[0x01]).await.unwrap();
    let mut held = Vec::new();
    for number in 0..3_u8 {
        let (mut send, recv) = raw.quic.open_bi().await.unwrap();
        send.write_all(&[0x40, 0x41, 0x00, number]).await.unwrap();
        send.finish().unwrap();
        within(send.finished()).await.unwrap();
        held.push(recv);
    }
    // Acknowledged is not read yet: one more than fits is refused, whichever that is. So is a unidirectional one.
    let mut more = raw.quic.open_uni().await.unwrap();
    more.write_all(&[0x40, 0x54, 0x00, 9]).await.unwrap();
    let (mut send, recv) = raw.quic.open_bi().await.unwrap();
    send.write_all(&[0x40, 0x41, 0x00, 9]).await.unwrap();
    held.push(recv);
    let refused = async {
        tokio::select! {
            stopped = more.stopped() => stopped,
            stopped = send.stopped() => stopped,
        }
    };
    assert_eq!(within(refused).await, WriteError::Stopped(Code::WT_BUFFERED_STREAM_REJECTED.0));
    let received = || raw.ends.accepted.stats().unwrap().datagram_frames_received;
    within(async {
        // A socket may lose one.
        while received() == 0 {
            raw.quic.send_datagram(Bytes::from_static(b"\x00early")).unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    request.write_all(&connect("webtransport-h3")[1..]).await.unwrap();
    let session = within(raw.sessions.recv()).await.unwrap();
    for number in 0..3_u8 {
        let (_send, mut recv) = within(session.accept_bi()).await.unwrap();
        assert_eq!(within(recv.read_to_end(10)).await.unwrap(), [number], "in the order of their arrival");
    }
    assert_eq!(within(session.read_datagram()).await.unwrap(), "early");
}

/// Streams that are refused before their session opens count for its limits, and their credit comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_refused_before_their_session_return_their_credit() {
    let limits = Limits { bidi: 8, ..Limits::default() };
    let mut raw = raw(Config { max_early_streams: 3, limits, ..open() }, CURRENT).await;
    let (mut request, mut answer) = raw.quic.open_bi().await.unwrap();
    assert_eq!(request.id().0, 0);
    request.write_all(&[0x01]).await.unwrap();
    // A stream that is refused may be stopped before its end is written, or before its end is acknowledged.
    let open_one = async |quic: &Connection| {
        let (mut send, recv) = quic.open_bi().await.unwrap();
        send.write_all(&[0x40, 0x41, 0x00, 1]).await.unwrap();
        let ended = match send.finish() {
            Ok(()) => within(send.finished()).await,
            Err(stopped) => Err(stopped),
        };
        assert!(matches!(ended, Ok(()) | Err(WriteError::Stopped(_))), "{ended:?}");
        recv
    };
    // Three wait, whichever they are, and five are reset.
    let (reset, mut resets) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..8 {
        let mut recv = open_one(&raw.quic).await;
        let reset = reset.clone();
        tokio::spawn(async move {
            if let Err(ReadError::Reset(code)) = recv.read_chunk(10).await {
                let _ = reset.send(code);
            }
        });
    }
    for _ in 0..5 {
        assert_eq!(within(resets.recv()).await, Some(Code::WT_BUFFERED_STREAM_REJECTED.0));
    }
    request.write_all(&connect("webtransport-h3")[1..]).await.unwrap();
    let session = within(raw.sessions.recv()).await.unwrap();
    // Credit is announced once half of the window is free: that is after the fourth.
    let mut expected = Vec::new();
    capsule::write(&mut expected, 0x190b_4d3f, &varint(12));
    let mut read = Vec::new();
    while !read.windows(expected.len()).any(|window| window == expected) {
        read.extend_from_slice(&within(answer.read_chunk(10_000)).await.unwrap().expect("the session has ended"));
    }
    let (mut opened, mut accepted) = (Vec::new(), Vec::new());
    for number in 0..7 {
        if number >= 3 {
            opened.push(open_one(&raw.quic).await);
        }
        accepted.push(within(session.accept_bi()).await.unwrap());
    }
    // The refused ones count: this is the 13th.
    let _thirteenth = open_one(&raw.quic).await;
    assert_eq!(reset_of(&mut answer).await, Code::WT_FLOW_CONTROL_ERROR.0);
}

/// draft-ietf-webtrans-http3 §4 MUST, §6 MUST
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_no_session_are_refused() {
    let mut raw = raw(open(), CURRENT).await;
    let (mut send, mut answer, session) = raw.session("webtransport-h3").await;
    send.finish().unwrap();
    assert_eq!(within(session.closed()).await, SessionEnd::ClosedByPeer { code: 0, reason: String::new() });
    assert!(within(answer.read_to_end(1_000)).await.is_ok(), "the server ends its side");
    // Of the session that has ended; of a stream that is one of a session itself.
    for id in [0_u8, 4] {
        let (mut send, mut recv) = raw.quic.open_bi().await.unwrap();
        send.write_all(&[0x40, 0x41, id]).await.unwrap();
        assert_eq!(reset_of(&mut recv).await, Code::WT_SESSION_GONE.0);
    }
    // A stream that is reset in its header belongs to nobody, and harms nobody.
    let mut send = raw.quic.open_uni().await.unwrap();
    send.write_all(&[0x40]).await.unwrap();
    send.reset(7).unwrap();
    let _ = raw.session("webtransport-h3").await;
    for id in [1_u8, 2, 3] {
        let ends = ends(true, None).await;
        let _sessions = serve(&ends.accepted, open());
        let mut send = ends.quic.open_uni().await.unwrap();
        send.write_all(&[0x40, 0x54, id]).await.unwrap();
        let closed = within(ends.quic.closed()).await;
        assert!(format!("{closed:?}").contains(&Code::ID_ERROR.0.to_string()), "{closed:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_capsules_end_the_session_and_nothing_else() {
    let mut raw = raw(open(), CURRENT).await;
    let close_late = data(&[(0x2843, b"\0\0\0\x07bye"), (0x17, b"more")]);
    for (bytes, code) in [
        (data(&[(0x2843, b"\0\0")]), Code::MESSAGE_ERROR),
        (data(&[(0x2843, b"\0\0\0\0\xff\xff")]), Code::MESSAGE_ERROR),
        (data(&[(0x190b_4d3e, b"\x01\x01")]), Code::MESSAGE_ERROR),
        (data(&[(0x190b_4d3d, b"\x01")]), Code::WT_FLOW_CONTROL_ERROR),
        (data(&[(0x190b_4d3f, b"\x01")]), Code::WT_FLOW_CONTROL_ERROR),
        (data(&[(0x190b_4d40, b"\xd0\0\0\0\0\0\0\x01")]), Code::WT_FLOW_CONTROL_ERROR),
        (close_late, Code::MESSAGE_ERROR),
    ] {
        let (mut send, mut answer, session) = raw.session("webtransport-h3").await;
        send.write_all(&bytes).await.unwrap();
        assert_eq!(reset_of(&mut answer).await, code.0, "{bytes:?}");
        assert_eq!(within(send.stopped()).await, WriteError::Stopped(code.0), "both directions tell the same");
        assert!(matches!(within(session.closed()).await, SessionEnd::Violation { code: told, .. } if told == code));
    }
    // What is not known is skipped, whatever its length; the others continue.
    let (mut send, _answer, session) = raw.session("webtransport-h3").await;
    send.write_all(&data(&[(0x17, &[0; 100_000]), (0x2843, b"\0\0\0\x07bye")])).await.unwrap();
    send.finish().unwrap();
    let end = SessionEnd::ClosedByPeer { code: 7, reason: "bye".to_owned() };
    assert_eq!(within(session.closed()).await, end);
}

/// Of a client that gives up both directions, either may be learned of first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn either_direction_of_a_session_that_is_given_up_tells_the_code() {
    let mut raw = raw(open(), CURRENT).await;
    let (_send, mut answer, session) = raw.session("webtransport-h3").await;
    answer.stop(Code::WT_ALPN_ERROR.0).unwrap();
    assert_eq!(within(session.closed()).await, SessionEnd::Reset(Code::WT_ALPN_ERROR));
    let (mut send, _answer, session) = raw.session("webtransport-h3").await;
    send.reset(Code::WT_ALPN_ERROR.0).unwrap();
    assert_eq!(within(session.closed()).await, SessionEnd::Reset(Code::WT_ALPN_ERROR));
}

/// draft-ietf-webtrans-http3 §5.6.2 MUST, §5.6.4 MUST
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_ignores_the_limits_loses_its_session() {
    let limits = Limits { data: 1_000, bidi: 1, uni: 2 };
    let mut raw = raw(Config { limits, ..open() }, CURRENT).await;
    let (_send, mut answer, session) = raw.session("webtransport-h3").await;
    let id = session.id() as u8;
    for _ in 0..3 {
        let mut send = raw.quic.open_uni().await.unwrap();
        send.write_all(&[0x40, 0x54, id]).await.unwrap();
        send.finish().unwrap();
    }
    assert_eq!(reset_of(&mut answer).await, Code::WT_FLOW_CONTROL_ERROR.0);

    let (_send, mut answer, session) = raw.session("webtransport-h3").await;
    let mut send = raw.quic.open_uni().await.unwrap();
    send.write_all(&[&[0x40, 0x54, session.id() as u8][..], &[1; 1_001]].concat()).await.unwrap();
    send.finish().unwrap();
    within(send.finished()).await.unwrap();
    // All of it has arrived, so that whoever reads a byte sees the rest.
    let mut recv = within(session.accept_uni()).await.unwrap();
    let _ = within(recv.read_to_end(10_000)).await;
    assert_eq!(reset_of(&mut answer).await, Code::WT_FLOW_CONTROL_ERROR.0);
}

/// Browsers of today send settings of draft 02, and get one session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_of_today_gets_its_session_and_its_answer() {
    let mut raw = raw(open(), BROWSER).await;
    let (mut send, mut answer) = raw.quic.open_bi().await.unwrap();
    let mut fields = vec![
        (":method", "CONNECT"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", "/chat"),
        (":protocol", "webtransport"),
        ("origin", "https://page.example"),
        ("sec-webtransport-http3-draft02", "1"),
    ];
    send.write_all(&headers(&fields)).await.unwrap();
    let session = within(raw.sessions.recv()).await.unwrap();
    assert!(!session.has_flow_control());
    let head = within(answer.read_chunk(1_000)).await.unwrap().unwrap();
    assert_eq!(head[0], 0x01, "a HEADERS frame");
    // A second one at the same time is rejected.
    let (mut second, mut rejected) = raw.quic.open_bi().await.unwrap();
    second.write_all(&connect("webtransport")).await.unwrap();
    assert_eq!(reset_of(&mut rejected).await, Code::REQUEST_REJECTED.0);
    // A token that does not fit the settings is malformed.
    fields[4] = (":protocol", "webtransport-h3");
    let (mut third, mut malformed) = raw.quic.open_bi().await.unwrap();
    third.write_all(&headers(&fields)).await.unwrap();
    assert_eq!(reset_of(&mut malformed).await, Code::MESSAGE_ERROR.0);
}

/// Memory of a server whose application neither accepts nor reads stays within the budget that it states.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_the_smallest_things_is_bounded() {
    let mut raw = raw(open(), BROWSER).await;
    let (_send, _answer, session) = raw.session("webtransport").await;
    let id = session.id() as u8;
    let budget = raw.ends.accepted.memory_budget().unwrap();
    let before = budget.held();
    // An empty stream that was read uses no credit of QUIC: only the session bounds those that nobody has accepted. More are refused.
    for _ in 0..20_000 {
        let mut send = within(raw.quic.open_uni()).await.unwrap();
        let _ = send.write_all(&[0x40, 0x54, id]).await;
        let _ = send.finish();
    }
    for number in 0..100_000_u32 {
        // For the session, for one that has ended, for one that never comes.
        let quarter = [id / 4, 63, 0x3f][number as usize % 3];
        let _ = raw.quic.send_datagram(Bytes::copy_from_slice(&[quarter]));
    }
    within(async {
        while raw.quic.unacknowledged() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // 100 streams wait, with 4 KiB each; datagrams hold 64 KiB for the session and 16 KiB for those that wait for one. Beside them, the
    // transport holds what has arrived and was not read: 100 streams, its queue of datagrams, which the profile bounds, and the receive
    // buffers of both, which may exceed the data by a quarter of the budget each. Unbounded, the streams alone would hold 80 MiB.
    let above = 100 * 4_096 + 80 * 1_024;
    let bound = before + above + 200 * 1_024 + 64 * 1_024 + budget.limit() / 2;
    assert!(bound < 4 * 1_024 * 1_024, "{bound}");
    assert!(budget.held() <= bound, "{} of {bound}", budget.held());
    // What waits is accepted, and the session continues.
    let quic = raw.quic.clone();
    let sending = tokio::spawn(async move {
        loop {
            let mut send = quic.open_uni().await.unwrap();
            let _ = send.write_all(&[0x40, 0x54, id, b'!']).await;
            let _ = send.finish();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let accepted = within(async {
        let mut accepted = 0;
        while session.accept_uni().await.unwrap().read_to_end(1).await.unwrap() != b"!" {
            accepted += 1;
        }
        accepted
    });
    assert!(accepted.await >= 100);
    sending.abort();
    assert!(session.connection().close_reason().is_none() && session.end().is_none());
}

/// A client of HTTP/3 with the settings of a browser reads the fields that draft 02 answers with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draft_02_is_answered_by_name() {
    let ends = ends(false, None).await;
    let mut sessions = serve(&ends.accepted, open());
    let support = h3_quic::SessionSupport { settings: vec![(0x2b60_3742, 1)], max_early_streams: 0 };
    let options = h3_quic::client::Options { sessions: Some(support), ..Default::default() };
    let mut requests = h3_quic::client::begin_with(ends.quic.clone(), options).await.unwrap();
    let settings = within(requests.peer_settings()).await.unwrap();
    // Without RESET_STREAM_AT the current draft is not offered.
    assert_eq!((settings.get(0x2b60_3742), settings.get(0xc671_706a), settings.get(0x2c7c_f000)), (1, 1, 0));
    let request = http::Request::builder().method("CONNECT").uri("https://localhost/chat");
    let request = request.header("sec-webtransport-http3-draft02", "1").header("origin", "https://page.example");
    let request = request.extension(h3_quic::Protocol::from_static("webtransport"));
    let response = within(requests.send(request.body(SessionBody).unwrap())).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["sec-webtransport-http3-draft"]),
        (200, &"draft02".parse().unwrap())
    );
    let session = within(sessions.recv()).await.unwrap();
    drop(response);
    assert!(matches!(within(session.closed()).await, SessionEnd::Reset(_)), "the client gave its request up");
}

/// A body of which nothing comes.
struct SessionBody;

impl http_body::Body for SessionBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}
