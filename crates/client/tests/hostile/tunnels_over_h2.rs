//! A proxy that is reached over TCP only, and gives no tunnel, one that breaks off, or takes nothing.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use h2::{
    Reason,
    server::{Builder, Connection, SendResponse},
};
use http::{Request, Response, StatusCode};
use tiderace_client::{
    Cause, Leg, Settings, Timeouts, Trust, Verdict,
    masque::{ProxyClient, ProxyError, SentPayload},
};
use tokio::{net::TcpStream, sync::mpsc};
use tokio_rustls::server::TlsStream;

use crate::servers::{LIMIT, PATIENT, SHORT, tls};

/// Window of the proxy for each stream, which is the default of RFC 9113 §6.9.2.
const WINDOW: usize = 65_535;

type Link = Connection<TlsStream<TcpStream>, Bytes>;
type Asked = (Request<h2::RecvStream>, SendResponse<Bytes>);

/// A proxy with extended CONNECT if so wanted, and an action for each request.
async fn proxy(extended: bool, act: impl Fn(Asked, &mut Link) + Clone + Send + Sync + 'static) -> (SocketAddr, Trust) {
    tls(b"h2", move |stream| {
        let act = act.clone();
        async move {
            let mut builder = Builder::new();
            builder.initial_connection_window_size(1 << 20);
            if extended {
                builder.enable_connect_protocol();
            }
            let Ok(mut link) = builder.handshake::<_, Bytes>(stream).await else { return };
            while let Some(Ok(asked)) = link.accept().await {
                act(asked, &mut link);
            }
        }
    })
    .await
}

fn client((address, trust): (SocketAddr, Trust), timeouts: Timeouts) -> ProxyClient {
    ProxyClient::new(&Settings { trust, timeouts, ..Settings::default() }, &address.to_string(), None).unwrap()
}

fn answer(status: u16) -> Response<()> {
    Response::builder().status(status).header("proxy-status", "p; error=x").body(()).unwrap()
}

/// Opens a tunnel for TCP and reads from it.
async fn read(client: &ProxyClient) -> Result<Option<Bytes>, ProxyError> {
    let reading = async { client.open_tcp("a.example", 80).await?.split().1.recv().await };
    tokio::time::timeout(LIMIT, reading).await.expect("a tunnel fails in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_answer_that_gives_no_tunnel_has_its_variant() {
    let refusing = proxy(true, |(_, mut respond), _| drop(respond.send_response(answer(403), true))).await;
    let error = read(&client(refusing, PATIENT)).await.unwrap_err();
    let ProxyError::Refused { status: StatusCode::FORBIDDEN, proxy_status: Some(text) } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(text, "p; error=x");
    let empty = proxy(true, |(_, mut respond), _| drop(respond.send_response(answer(204), true))).await;
    let error = read(&client(empty, PATIENT)).await.unwrap_err();
    assert!(matches!(error, ProxyError::NoTunnel(StatusCode::NO_CONTENT)), "{error:?}");
    // RFC 8441 §3: without the setting, no protocol is asked for.
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let plain = proxy(false, move |_, _| {
        count.fetch_add(1, Relaxed);
    })
    .await;
    let error = tokio::time::timeout(LIMIT, client(plain, PATIENT).open_udp("a.example", 53)).await.unwrap();
    let error = error.err().unwrap();
    assert!(matches!(error, ProxyError::NoExtendedConnect) && asked.load(Relaxed) == 0, "{error:?}");
    let h1 = tls(b"http/1.1", |_| std::future::pending()).await;
    let error = read(&client(h1, PATIENT).only(Leg::Tcp)).await.unwrap_err();
    let ProxyError::Connection(connection) = &error else { panic!("{error:?}") };
    assert!(matches!(connection.cause(), Some(Cause::Refused { .. })), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_is_no_end() {
    for (reason, code) in [(Reason::CANCEL, 8), (Reason::CONNECT_ERROR, 10), (Reason::NO_ERROR, 0)] {
        let resetting = proxy(true, move |(_, mut respond), _| {
            let mut stream = respond.send_response(answer(200), false).unwrap();
            stream.send_reset(reason);
        });
        let error = read(&client(resetting.await, PATIENT)).await.unwrap_err();
        let is_reset = matches!(error, ProxyError::Broken(Cause::Reset { code: Some(found), .. }) if found == code);
        assert!(is_reset, "{reason:?}: {error:?}");
    }
    let ending = proxy(true, |(_, mut respond), _| drop(respond.send_response(answer(200), true))).await;
    assert_eq!(read(&client(ending, PATIENT)).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_ends_a_request() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let silent = proxy(true, move |asked, _| kept.lock().unwrap().push(asked)).await;
    let error = read(&client(silent, Timeouts { response: SHORT, ..PATIENT }).only(Leg::Tcp)).await.unwrap_err();
    assert!(matches!(error, ProxyError::TimedOut(limit) if limit == SHORT), "{error:?}");
}

/// A proxy that reads nothing: datagrams beyond its window are dropped, and other tunnels go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_that_nobody_takes_are_dropped() {
    const SIZE: usize = 1_200;
    let kept = Arc::new(Mutex::new(Vec::new()));
    let idle = proxy(true, move |(request, mut respond), _| {
        let stream = respond.send_response(answer(200), false).unwrap();
        kept.lock().unwrap().push((request, stream));
    });
    let client = client(idle.await, PATIENT);
    let (mut sender, _receiver) = client.open_udp("a.example", 53).await.unwrap().split();
    let sent: Vec<_> = (0..1_000).map(|_| sender.send(&[7; SIZE])).collect();
    let capsules = sent.iter().filter(|sent| **sent == SentPayload::Capsule).count();
    // Each capsule has two varints and a context ID before the payload.
    assert!(capsules > 0 && capsules * (SIZE + 4) <= WINDOW, "{capsules} capsules");
    assert_eq!(sent.last(), Some(&SentPayload::Dropped));
    assert_eq!((sender.send(&[7; 65_528]), sender.max_datagram()), (SentPayload::TooLarge, None));
    let (mut other, _receiver) = client.open_tcp("a.example", 80).await.unwrap().split();
    tokio::time::timeout(LIMIT, other.send(Bytes::from(vec![7; WINDOW]))).await.unwrap().unwrap();
}

/// After GOAWAY the open tunnel goes on, and the next one has a connection of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_goes_away_is_connected_to_again() {
    let links = Arc::new(AtomicUsize::new(0));
    let (count, kept) = (links.clone(), Arc::new(Mutex::new(Vec::new())));
    let leaving = proxy(true, move |(request, mut respond), link| {
        count.fetch_add(1, Relaxed);
        link.graceful_shutdown();
        let mut stream = respond.send_response(answer(200), false).unwrap();
        stream.send_data(Bytes::from_static(b"hello"), false).unwrap();
        kept.lock().unwrap().push((request, stream));
    });
    let (say, mut said) = mpsc::unbounded_channel();
    let client = client(leaving.await, PATIENT).only(Leg::Tcp).observe(move |connection| {
        let _ = say.send(connection);
    });
    let mut tunnels = Vec::new();
    for _ in 0..3 {
        let opened = tokio::time::timeout(LIMIT, client.open_tcp("a.example", 80)).await.unwrap().unwrap();
        let (sender, mut receiver) = opened.split();
        // GOAWAY was sent before.
        assert_eq!(receiver.recv().await.unwrap().unwrap(), "hello");
        tunnels.push((sender, receiver));
        let connection = said.recv().await.unwrap();
        assert!(matches!(connection.verdict, Some(Verdict::NotTried(_))) && connection.protocol == "h2");
    }
    assert_eq!(links.load(Relaxed), 3);
}
