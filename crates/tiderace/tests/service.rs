//! Services: streams that are answered inside the pass of the driver.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
};

use bytes::Bytes;
use tiderace::{
    ClientConfig, CloseReason, Connection, Dir, Endpoint, Handle, Identity, Profile, ReadError, RustlsClient,
    RustlsServer, ServedConnection, ServedStream, ServerConfig, Service, StreamId, WriteError,
    transport::streams::StreamsConfig,
};

fn configs(profile: Profile) -> (ServerConfig, ClientConfig) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der()).unwrap();
    let server = RustlsServer::builder().identity(identity).alpn("served").alpn("accepted").build().unwrap();
    let client = RustlsClient::builder().roots([cert]).alpn("served").build().unwrap();
    let profile = Arc::new(profile);
    (ServerConfig::new(Arc::new(server), profile.clone()), ClientConfig::new(Arc::new(client), profile))
}

/// A server with a service, and a client connected to it.
async fn pair<S: Service>(profile: Profile, service: S) -> (Endpoint, Endpoint, Connection) {
    let (server_config, client_config) = configs(profile);
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let server = Endpoint::server(any, server_config).unwrap();
    let mut service = Some(service);
    server.serve(|_| service.take().expect("there is one shard"));
    let client = Endpoint::client_for(server.local_addr()).unwrap();
    let connection = client.connect(&client_config, server.local_addr(), "localhost").unwrap().await.unwrap();
    (server, client, connection)
}

/// Gives everything back once all of it has arrived.
#[derive(Default)]
struct Echo {
    /// Streams of which something is kept.
    live: Arc<AtomicUsize>,
}

/// Data of a stream, counted.
struct Kept {
    data: Vec<u8>,
    /// The rest of an answer under way.
    rest: Option<Bytes>,
    live: Arc<AtomicUsize>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Relaxed);
    }
}

impl Service for Echo {
    type Stream = Kept;

    fn stream(&mut self, stream: &mut ServedStream<'_>, kept: &mut Option<Kept>) {
        let kept = kept.get_or_insert_with(|| {
            self.live.fetch_add(1, Relaxed);
            Kept { data: Vec::new(), rest: None, live: self.live.clone() }
        });
        if kept.rest.is_none() {
            match stream.read(|part| kept.data.extend_from_slice(&part)) {
                Ok(true) => kept.rest = Some(std::mem::take(&mut kept.data).into()),
                Ok(false) => return,
                Err(ReadError::Reset(code)) => return stream.reset(code + 1).unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
        let rest = kept.rest.as_mut().expect("it was just set");
        match stream.write_last(rest) {
            Ok(_) | Err(WriteError::Stopped(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn datagrams(&mut self, connection: &mut ServedConnection<'_>) {
        while let Some(data) = connection.recv_datagram() {
            connection.send_datagram(data).unwrap();
        }
    }
}

async fn ask(connection: &Connection, data: Vec<u8>) -> Vec<u8> {
    let (send, mut recv) = connection.open_bi().await.unwrap();
    send.write_last(data.into()).await.unwrap();
    recv.read_to_end(usize::MAX).await.unwrap()
}

#[tokio::test]
async fn many_requests_are_answered() {
    let echo = Echo::default();
    let live = echo.live.clone();
    let (_server, _client, connection) = pair(Profile::default(), echo).await;
    let mut asking = tokio::task::JoinSet::new();
    for task in 0..50_u8 {
        let connection = connection.clone();
        asking.spawn(async move {
            for request in 0..40_u8 {
                let data = vec![task ^ request; 10 + usize::from(request) * usize::from(task)];
                assert!(ask(&connection, data.clone()).await == data);
            }
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked.unwrap();
    }
    connection.send_datagram(Bytes::from_static(b"ping")).unwrap();
    assert_eq!(connection.read_datagram().await.unwrap(), "ping");
    assert_eq!(live.load(Relaxed), 0);
}

#[tokio::test]
async fn answers_leave_in_portions() {
    const STREAMS: usize = 100;
    let (server, _client, connection) = pair(Profile::default(), Echo::default()).await;
    // A short round-trip time, so that pacing lets all answers leave at once.
    for _ in 0..STREAMS {
        ask(&connection, vec![0]).await;
    }
    let before = server.socket_stats().send_calls;
    let mut asking = Vec::new();
    for _ in 0..STREAMS {
        let (send, recv) = connection.open_bi().await.unwrap();
        send.write_last(Bytes::from_static(b"?")).await.unwrap();
        asking.push(recv);
    }
    for recv in &mut asking {
        assert_eq!(recv.read_to_end(100).await.unwrap(), b"?");
    }
    let calls = server.socket_stats().send_calls - before;
    assert!(calls >= 5, "{STREAMS} answers in {calls} system calls");
}

#[tokio::test]
async fn messages_larger_than_buffers_and_windows_pass() {
    let streams = StreamsConfig {
        send_buffer: 20_000,
        send_buffer_max: 20_000,
        receive_window_stream: 30_000,
        receive_window_connection: 50_000,
        receive_window_max: 50_000,
        ..StreamsConfig::default()
    };
    let echo = Echo::default();
    let live = echo.live.clone();
    let (_server, _client, connection) = pair(Profile { streams, ..Profile::default() }, echo).await;
    let asks = (0..4_u8).map(|number| {
        let connection = connection.clone();
        tokio::spawn(async move {
            let data: Vec<u8> = (0..1_000_000_u32).map(|i| (i >> 8) as u8 ^ number).collect();
            assert!(ask(&connection, data.clone()).await == data, "what came back differs");
        })
    });
    for asked in asks.collect::<Vec<_>>() {
        asked.await.unwrap();
    }
    assert_eq!(live.load(Relaxed), 0);
}

#[tokio::test]
async fn what_is_kept_goes_with_its_stream_and_its_connection() {
    let echo = Echo::default();
    let live = echo.live.clone();
    let (server, _client, connection) = pair(Profile::default(), echo).await;
    for code in 0..20 {
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        send.write_all(b"the first part").await.unwrap();
        send.reset(code).unwrap();
        // The service answers a reset with one.
        assert_eq!(recv.read_chunk(1).await, Err(ReadError::Reset(code + 1)));
    }
    assert_eq!(ask(&connection, b"whole".to_vec()).await, b"whole");
    assert_eq!(live.load(Relaxed), 0);
    let (mut send, _recv) = connection.open_bi().await.unwrap();
    send.write_all(b"the first part").await.unwrap();
    while live.load(Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    connection.close(0, b"");
    server.wait_idle().await;
    while live.load(Relaxed) > 0 {
        tokio::task::yield_now().await;
    }
}

/// Takes connections by their protocol, and remembers the questions that it does not answer.
struct Later {
    asked: mpsc::Sender<(Handle, StreamId)>,
    closed: Arc<Mutex<Vec<CloseReason>>>,
}

impl Service for Later {
    type Stream = ();

    fn connected(&mut self, connection: &mut ServedConnection<'_>) -> bool {
        connection.alpn() == Some(b"served")
    }

    fn stream(&mut self, stream: &mut ServedStream<'_>, _: &mut Option<()>) {
        if stream.read(|_| {}) == Ok(true) {
            let (id, handle) = (stream.id(), stream.connection().handle());
            self.asked.send((handle, id)).unwrap();
        }
    }

    fn closed(&mut self, _: Handle, reason: &CloseReason) {
        self.closed.lock().unwrap().push(reason.clone());
    }
}

#[tokio::test]
async fn an_answer_may_come_later() {
    let (asked, questions) = mpsc::channel();
    let closed = Arc::default();
    let later = Later { asked, closed: Arc::clone(&closed) };
    let (server, _client, connection) = pair(Profile::default(), later).await;
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.finish().unwrap();
    send.finished().await.unwrap();
    let (handle, id) = questions.recv().unwrap();
    let answer = |stream: &mut ServedStream<'_>| stream.write_last(&mut Bytes::from_static(b"at last"));
    let taken = server.with_service(0, handle, |_: &mut Later, connection| answer(&mut connection.stream(id)));
    assert_eq!(taken, Some(Ok(true)));
    assert_eq!(recv.read_to_end(100).await.unwrap(), b"at last");
    // A stream of the server's own.
    let opened = server.with_service(0, handle, |_: &mut Later, connection| {
        connection.open(Dir::Uni).map(|mut stream| answer(&mut stream))
    });
    assert_eq!(opened, Some(Some(Ok(true))));
    assert_eq!(connection.accept_uni().await.unwrap().read_to_end(100).await.unwrap(), b"at last");
    assert!(server.with_service(0, handle, |_: &mut Echo, _| ()).is_none(), "another service");
    connection.close(7, b"");
    server.wait_idle().await;
    while closed.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let reason = CloseReason::PeerApplication { code: 7, reason: Bytes::new() };
    assert_eq!(closed.lock().unwrap()[..], [reason]);
    assert!(server.with_service(0, handle, |_: &mut Later, _| ()).is_none(), "the connection is over");
}

#[tokio::test]
async fn what_the_service_does_not_take_is_accepted() {
    let (asked, _questions) = mpsc::channel();
    let later = Later { asked, closed: Arc::default() };
    let (server, client, _connection) = pair(Profile::default(), later).await;
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der()).unwrap();
    let tls = RustlsServer::builder().identity(identity).alpn("accepted").build().unwrap();
    let profile = Arc::new(Profile::default());
    server.set_server_config(Some(ServerConfig::new(Arc::new(tls), profile.clone())));
    let tls = RustlsClient::builder().roots([cert]).alpn("accepted").build().unwrap();
    let config = ClientConfig::new(Arc::new(tls), profile);
    let connecting = client.connect(&config, server.local_addr(), "localhost").unwrap();
    let (connected, accepted) = tokio::join!(connecting, server.accept());
    let (connected, accepted) = (connected.unwrap(), accepted.unwrap());
    let (send, mut recv) = connected.open_bi().await.unwrap();
    send.write_last(Bytes::from_static(b"question")).await.unwrap();
    let (back, mut forth) = accepted.accept_bi().await.unwrap();
    assert_eq!(forth.read_to_end(100).await.unwrap(), b"question");
    back.write_last(Bytes::from_static(b"answer")).await.unwrap();
    assert_eq!(recv.read_to_end(100).await.unwrap(), b"answer");
}
