//! Real sockets on loopback: what is sent arrives, and errors say whose fault they are.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Wake, Waker},
};

use bytes::Bytes;
use tiderace::{
    CertificateFault, ClientConfig, CloseReason, Connection, Endpoint, HandshakeFault, Identity, Profile, RecvStream,
    RustlsClient, RustlsServer, SendStream, ServerConfig,
};

fn configs(profile: &Profile) -> (ServerConfig, ClientConfig) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der()).unwrap();
    let server = RustlsServer::builder().identity(identity).alpn("test").build().unwrap();
    let client = RustlsClient::builder().roots([cert]).alpn("test").build().unwrap();
    let profile = Arc::new(profile.clone());
    (ServerConfig::new(Arc::new(server), profile.clone()), ClientConfig::new(Arc::new(client), profile))
}

async fn pair(profile: &Profile) -> (Endpoint, Connection, Endpoint, Connection) {
    let (server_config, client_config) = configs(profile);
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let server = Endpoint::server(any, server_config).unwrap();
    let client = Endpoint::client_for(server.local_addr()).unwrap();
    let connecting = client.connect(&client_config, server.local_addr(), "localhost").unwrap();
    let (accepted, connected) = tokio::join!(server.accept(), connecting);
    (server, accepted.unwrap(), client, connected.unwrap())
}

type Halves = (SendStream, RecvStream);

/// Both ends of a stream on which `connected` has said something, and not all.
async fn half_said(connected: &Connection, accepted: &Connection) -> (Halves, Halves) {
    let (mut send, recv) = connected.open_bi().await.unwrap();
    send.write_all(b"half").await.unwrap();
    let (back, mut forth) = accepted.accept_bi().await.unwrap();
    assert_eq!(forth.read_chunk(100).await.unwrap().unwrap(), "half");
    ((send, recv), (back, forth))
}

#[tokio::test]
async fn a_stream_is_echoed() {
    let (_server, accepted, _client, connected) = pair(&Profile::default()).await;
    assert_eq!(connected.alpn().unwrap(), b"test");
    let echo = tokio::spawn(async move {
        let (mut send, mut recv) = accepted.accept_bi().await.unwrap();
        while let Some(chunk) = recv.read_chunk(usize::MAX).await.unwrap() {
            send.write_chunk(chunk).await.unwrap();
        }
        send.finish().unwrap();
        send.finished().await.unwrap();
        accepted.closed().await
    });
    let data: Bytes = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut send, mut recv) = connected.open_bi().await.unwrap();
    let expected = data.clone();
    let reader = tokio::spawn(async move {
        let back = recv.read_to_end(10_000_000).await.unwrap();
        assert!(back == expected, "what came back differs");
    });
    send.write_chunk(data).await.unwrap();
    send.finish().unwrap();
    send.finished().await.unwrap();
    reader.await.unwrap();
    connected.close(3, b"enough");
    let reason = echo.await.unwrap();
    assert_eq!(reason, CloseReason::PeerApplication { code: 3, reason: Bytes::from_static(b"enough") });
}

#[tokio::test]
async fn datagrams_arrive() {
    let (_server, accepted, _client, connected) = pair(&Profile::default()).await;
    connected.send_datagram(Bytes::from_static(b"ping")).unwrap();
    assert_eq!(accepted.read_datagram().await.unwrap(), "ping");
    let max = connected.max_datagram_size().unwrap();
    assert!(connected.send_datagram(vec![0; max + 1].into()).is_err());
    connected.send_datagram(vec![7; max].into()).unwrap();
    assert_eq!(accepted.read_datagram().await.unwrap().len(), max);
}

#[tokio::test]
async fn datagrams_that_wait_for_room_are_all_sent() {
    // Room for about twelve.
    let profile = Profile { datagram_queue: 13_000, ..Profile::default() };
    let (_server, accepted, _client, connected) = pair(&profile).await;
    let reader = tokio::spawn(async move {
        let mut last = 0;
        while let Ok(data) = accepted.read_datagram().await {
            last = u32::from_be_bytes(data[..4].try_into().unwrap());
        }
        last
    });
    for number in 1..=2_000_u32 {
        let data: Vec<u8> = number.to_be_bytes().into_iter().cycle().take(1_000).collect();
        connected.send_datagram_wait(data.into()).await.unwrap();
    }
    let max = connected.max_datagram_size().unwrap();
    assert!(connected.send_datagram_wait(vec![0; max + 1].into()).await.is_err());
    // Whatever the network made of them, each left the queue in a packet.
    while connected.stats().unwrap().datagram_frames_sent < 2_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(connected.stats().unwrap().datagram_frames_dropped, 0);
    connected.close(0, b"");
    assert!(reader.await.unwrap() <= 2_000);
    assert!(connected.send_datagram_wait(Bytes::from_static(b"late")).await.is_err());
}

#[tokio::test]
async fn a_dropped_stream_is_reset_and_stopped() {
    let (_server, accepted, _client, connected) = pair(&Profile::default()).await;
    let ((send, recv), (mut back, mut forth)) = half_said(&connected, &accepted).await;
    drop(send);
    drop(recv);
    assert_eq!(forth.read_chunk(100).await, Err(tiderace::ReadError::Reset(0)));
    let stopped = loop {
        match back.write_all(&[0; 1000]).await {
            Ok(()) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert_eq!(stopped, tiderace::WriteError::Stopped(0));
}

/// Counts how often it wakes; and its clones, as any `Arc` does.
struct Counts(AtomicUsize);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_stream_that_is_gone_keeps_nobody_s_waker() {
    let (_server, accepted, _client, connected) = pair(&Profile::default()).await;
    let (_ours, (mut back, mut forth)) = half_said(&connected, &accepted).await;
    let [reads, writes] = [0, 0].map(|_| Arc::new(Counts(AtomicUsize::new(0))));
    let [reader, writer] = [&reads, &writes].map(|counts| Waker::from(counts.clone()));
    // Who waits here continues without the stream, as a task does that is given up while it waits.
    assert!(forth.poll_read_chunk(&mut Context::from_waker(&reader), 100).is_pending());
    let id = back.id();
    assert!(accepted.poll_stopped(&mut Context::from_waker(&writer), id).is_pending());
    drop((reader, writer));
    assert_eq!((Arc::strong_count(&reads), Arc::strong_count(&writes)), (2, 2));
    back.finish().unwrap();
    drop((back, forth));
    assert_eq!((Arc::strong_count(&reads), Arc::strong_count(&writes)), (1, 1));
    // Who waits for the end of a stream that somebody else holds is told.
    assert_eq!(writes.0.load(Ordering::Relaxed), 1);
    let mut context = Context::from_waker(Waker::noop());
    assert!(accepted.poll_stopped(&mut context, id).is_ready());
}

#[tokio::test]
async fn what_has_arrived_can_be_read_after_the_peer_has_closed() {
    let (_server, accepted, _client, connected) = pair(&Profile::default()).await;
    let (mut send, mut recv) = connected.open_bi().await.unwrap();
    send.write_chunk(Bytes::from_static(b"go")).await.unwrap();
    let (mut whole, mut request) = accepted.accept_bi().await.unwrap();
    assert_eq!(request.read_chunk(2).await.unwrap().unwrap(), "go");
    let mut open = accepted.open_uni().await.unwrap();
    open.write_chunk(Bytes::from_static(b"without an end")).await.unwrap();
    let mut cut = connected.accept_uni().await.unwrap();
    whole.write_chunk(vec![7; 100_000].into()).await.unwrap();
    whole.finish().unwrap();
    // All of it is acknowledged, and nothing of it is read.
    whole.finished().await.unwrap();
    while accepted.unacknowledged() > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    accepted.close(4, b"");
    let closed = CloseReason::PeerApplication { code: 4, reason: Bytes::new() };
    assert_eq!(connected.closed().await, closed);
    // Long after the draining period, too.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(recv.read_to_end(1_000_000).await.unwrap(), vec![7; 100_000]);
    // A stream that has not come to its end does not look as if it had.
    assert_eq!(cut.read_chunk(100).await.unwrap().unwrap(), "without an end");
    assert_eq!(cut.read_chunk(100).await.unwrap_err(), tiderace::ReadError::ConnectionClosed(closed));
}

#[tokio::test]
async fn nobody_there_is_said_after_the_timeout() {
    let profile = Profile { handshake_timeout: std::time::Duration::from_millis(300), ..Profile::default() };
    let (_, client_config) = configs(&profile);
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = Endpoint::client_for(silent.local_addr().unwrap()).unwrap();
    let error = client.connect(&client_config, silent.local_addr().unwrap(), "localhost").unwrap().await.unwrap_err();
    assert!(matches!(error, tiderace::ConnectError::Closed(CloseReason::HandshakeTimeout)), "{error}");
}

/// RFC 9114 §3.1 MUST-1, MUST NOT-1
#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let (server_config, client_config) = configs(&Profile::default());
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), server_config).unwrap();
    let client = Endpoint::client_for(server.local_addr()).unwrap();
    let error = client.connect(&client_config, server.local_addr(), "other.test").unwrap().await.unwrap_err();
    let tiderace::ConnectError::Closed(CloseReason::HandshakeFailed { fault, .. }) = &error else { panic!("{error}") };
    assert_eq!(*fault, HandshakeFault::Certificate(CertificateFault::WrongName));
    // Where `?` has taken the error, its cause can still be found.
    let error: Box<dyn std::error::Error + Send + Sync> = error.into();
    let cause = error.source().and_then(|source| source.downcast_ref::<CloseReason>());
    assert!(matches!(cause, Some(CloseReason::HandshakeFailed { .. })), "{cause:?}");
}

/// A name that no certificate can have is told from a server that has another.
#[tokio::test]
async fn an_invalid_name_is_refused_before_the_first_packet() {
    let (_, client_config) = configs(&Profile::default());
    let client = Endpoint::client_for("127.0.0.1:1".parse().unwrap()).unwrap();
    let error = client.connect(&client_config, "127.0.0.1:1".parse().unwrap(), "not a name").err().unwrap();
    let tiderace::ConnectError::Config(tiderace::transport::ConnectError::Tls(error)) = error else {
        panic!("{error}")
    };
    assert_eq!(error.fault, HandshakeFault::InvalidServerName);
}

#[tokio::test]
async fn a_client_goes_on_with_another_socket() {
    let (_server, accepted, client, connected) = pair(&Profile::default()).await;
    let before = client.local_addr();
    let sink = tokio::spawn(async move {
        let mut recv = accepted.accept_uni().await.unwrap();
        let data = recv.read_to_end(40_000_000).await.unwrap();
        (data.len(), accepted.unvalidated_remote_address().unwrap(), accepted.stats().unwrap())
    });
    let mut send = connected.open_uni().await.unwrap();
    for round in 0..4 {
        send.write_all(&vec![round; 2_000_000]).await.unwrap();
        client.rebind(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    }
    send.finish().unwrap();
    send.finished().await.unwrap();
    let (len, remote, stats) = sink.await.unwrap();
    assert_ne!(client.local_addr(), before);
    assert_eq!((len, remote), (8_000_000, client.local_addr()));
    assert!(stats.path_changes >= 1 && connected.stats().unwrap().path_changes >= 1);
}

#[tokio::test]
async fn datagrams_grow_to_what_loopback_carries() {
    let profile = Profile { max_mtu: 8_952, ..Profile::default() };
    let (_server, accepted, _client, connected) = pair(&profile).await;
    let sink =
        tokio::spawn(async move { accepted.accept_uni().await.unwrap().read_to_end(10_000_000).await.unwrap().len() });
    let mut send = connected.open_uni().await.unwrap();
    send.write_all(&vec![1; 5_000_000]).await.unwrap();
    send.finish().unwrap();
    send.finished().await.unwrap();
    assert_eq!(sink.await.unwrap(), 5_000_000);
    assert_eq!(connected.stats().unwrap().mtu, 8_952);
}

#[tokio::test]
async fn congestion_control_changes_while_data_flows() {
    use tiderace::transport::congestion::Algorithm;
    let (_server, accepted, _client, connected) = pair(&Profile::default()).await;
    assert_eq!(connected.congestion(), Some(Algorithm::Cubic));
    let data: Bytes = (0..2_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let expected = data.clone();
    let reader = tokio::spawn(async move {
        // Whole rounds of all algorithms, from each to the next and back.
        for _ in 0..3 * Algorithm::ALL.len() {
            let mut recv = accepted.accept_uni().await.unwrap();
            let came = recv.read_to_end(10_000_000).await.unwrap();
            assert!(came == expected, "what came differs");
        }
        accepted
    });
    for algorithm in (0..3).flat_map(|_| Algorithm::ALL) {
        let mut send = connected.open_uni().await.unwrap();
        let (first, second) = (data.slice(..1_000_000), data.slice(1_000_000..));
        send.write_chunk(first).await.unwrap();
        connected.set_congestion(algorithm);
        assert_eq!(connected.congestion(), Some(algorithm));
        send.write_chunk(second).await.unwrap();
        send.finish().unwrap();
        send.finished().await.unwrap();
        assert!(connected.stats().unwrap().congestion_window > 0);
    }
    drop(reader.await.unwrap());
}

#[tokio::test]
async fn answers_of_many_tasks_leave_in_portions() {
    for tasks in [12, 100] {
        answers_of_tasks_leave_in_portions(tasks).await;
    }
}

async fn answers_of_tasks_leave_in_portions(tasks: usize) {
    let (_server, accepted, client, connected) = pair(&Profile::default()).await;
    let (mut asking, mut answering) = (Vec::new(), tokio::task::JoinSet::new());
    for _ in 0..tasks {
        let ((mut answer, mut question), (ask, answered)) = half_said(&connected, &accepted).await;
        asking.push((ask, answered));
        answering.spawn(async move {
            assert_eq!(question.read_chunk(100).await.unwrap(), None);
            answer.write_all(b"!").await.unwrap();
            answer.finish().unwrap();
        });
    }
    let before = client.socket_stats().send_calls;
    // In one go: all questions end in one batch of packets, and wake all tasks.
    for (ask, _) in &mut asking {
        ask.finish().unwrap();
    }
    for (_, answered) in &mut asking {
        assert_eq!(answered.read_to_end(100).await.unwrap(), b"!");
    }
    while answering.join_next().await.transpose().unwrap().is_some() {}
    let calls = client.socket_stats().send_calls - before;
    // The other end works on the first third of the answers while the others are made.
    assert!(calls >= 3, "{tasks} answers in {calls} system calls");
}

#[tokio::test]
async fn answers_of_one_task_leave_in_portions() {
    for streams in [12, 100] {
        answers_on_streams_leave_in_portions(streams).await;
    }
}

async fn answers_on_streams_leave_in_portions(streams: usize) {
    let (_server, accepted, client, connected) = pair(&Profile::default()).await;
    let (mut asking, mut answering) = (Vec::new(), Vec::new());
    for _ in 0..streams {
        let (answering_half, asking_half) = half_said(&connected, &accepted).await;
        answering.push(answering_half);
        asking.push(asking_half);
    }
    let before = client.socket_stats().send_calls;
    let answers = tokio::spawn(async move {
        for (number, (answer, _)) in answering.into_iter().enumerate() {
            let mut answer = answer;
            if number % 2 == 0 {
                answer.write_last(Bytes::from_static(b"!")).await.unwrap();
            } else {
                answer.write_all(b"!").await.unwrap();
                answer.finish().unwrap();
            }
        }
    });
    for (_, answered) in &mut asking {
        assert_eq!(answered.read_to_end(100).await.unwrap(), b"!");
    }
    answers.await.unwrap();
    let calls = client.socket_stats().send_calls - before;
    assert!(calls >= 3, "{streams} answers in {calls} system calls");
}

/// Tasks that wait for a stream are woken in turn, and those that give up hand their turn on.
#[tokio::test]
async fn thousands_of_tasks_open_streams_in_turn() {
    const TASKS: usize = 3_000;
    let (_server, accepted, _client, connected) = pair(&Profile::default()).await;
    let answering = tokio::spawn(async move {
        while let Ok((send, mut recv)) = accepted.accept_bi().await {
            tokio::spawn(async move {
                // Streams of tasks that gave up just then are reset.
                if recv.read_to_end(10).await.is_ok() {
                    send.write_last(Bytes::from_static(b"!")).await.unwrap();
                }
            });
        }
    });
    let polls = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..TASKS {
        let (connected, polls) = (connected.clone(), polls.clone());
        tasks.spawn(async move {
            let mut opening = std::pin::pin!(connected.open_bi());
            let opened = std::future::poll_fn(|cx| {
                polls.fetch_add(1, Ordering::Relaxed);
                opening.as_mut().poll(cx)
            });
            // Some give up while they wait, and some just when it is their turn: the others go on.
            if number % 7 == 3 {
                let _ = tokio::time::timeout(std::time::Duration::from_millis(number as u64 % 20), opened).await;
                return;
            }
            let (send, mut recv) = opened.await.unwrap();
            send.write_last(Bytes::from_static(b"?")).await.unwrap();
            assert_eq!(recv.read_to_end(10).await.unwrap(), b"!");
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let polls = polls.load(Ordering::Relaxed);
    // One to wait and one to open, and one of each permission that finds nothing left.
    assert!(polls <= TASKS * 11 / 5, "{polls} polls of {TASKS} tasks");
    connected.close(0, b"");
    answering.await.unwrap();
}

#[tokio::test]
async fn the_end_of_the_connection_wakes_all_that_wait_to_open() {
    let profile = Profile {
        streams: tiderace::transport::streams::StreamsConfig { max_streams_bidi: 0, ..Default::default() },
        ..Profile::default()
    };
    let (_server, accepted, _client, connected) = pair(&profile).await;
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let connected = connected.clone();
            tokio::spawn(async move { connected.open_bi().await.err() })
        })
        .collect();
    tokio::task::yield_now().await;
    accepted.close(5, b"no");
    for task in waiting {
        assert!(task.await.unwrap().is_some());
    }
}
