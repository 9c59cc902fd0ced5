//! A panic in the task that drives a socket is reported, because nothing else would tell, and ends the connections of its shard alone.

use std::{
    num::NonZeroU8,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tiderace::{
    ClientConfig, CloseReason, Connection, Endpoint, EndpointOptions, Identity, Profile, RustlsClient, RustlsServer,
    ServedConnection, ServedStream, ServerConfig, Service, Shards, Tap, Tapped, transport::Handle,
};
use tokio::sync::Notify;

/// Panics at a datagram that begins with zeros.
struct Trap;

impl Tap for Trap {
    fn is_open(&self) -> bool {
        true
    }

    fn pass(&self, tapped: &Tapped<'_>) {
        assert!(!tapped.payload.starts_with(&[0; 9]), "the trap");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_a_driver_is_reported_once() {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let der = (certified.cert.der().to_vec(), certified.signing_key.serialize_der());
    let identity = Identity::from_der(vec![der.0], der.1).unwrap();
    let server = RustlsServer::builder().identity(identity).alpn("test").build().unwrap();
    // On a task of this runtime, and on threads of its own.
    for shards in [1, 2] {
        let (count, reported) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let on_panic = {
            let (count, reported) = (count.clone(), reported.clone());
            Arc::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
                reported.notify_one();
            })
        };
        let options = EndpointOptions {
            server: Some(ServerConfig::new(Arc::new(server.clone()), Arc::new(Profile::default()))),
            shards: Shards::new(NonZeroU8::new(shards).unwrap()),
            tap: Some(Arc::new(Trap)),
            on_panic: Some(on_panic),
            ..EndpointOptions::default()
        };
        let endpoint = Endpoint::open("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(&[1; 100], endpoint.local_addr()).await.unwrap();
        socket.send_to(&[0; 100], endpoint.local_addr()).await.unwrap();
        tokio::time::timeout(Duration::from_secs(60), reported.notified()).await.expect("the panic is reported");
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}

/// A server, and its reports of panics.
struct Server {
    endpoint: Endpoint,
    reported: Arc<Notify>,
    certificate: Vec<u8>,
}

/// A server whose sockets have a trap.
fn server(shards: u8) -> Server {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (certified.cert.der().to_vec(), certified.signing_key.serialize_der());
    let identity = Identity::from_der(vec![certificate.clone()], key).unwrap();
    let server = RustlsServer::builder().identity(identity).alpn("test").build().unwrap();
    let reported = Arc::new(Notify::new());
    let on_panic = {
        let reported = reported.clone();
        Arc::new(move || reported.notify_one())
    };
    let options = EndpointOptions {
        server: Some(ServerConfig::new(Arc::new(server), Arc::new(Profile::default()))),
        shards: Shards::new(NonZeroU8::new(shards).unwrap()),
        tap: Some(Arc::new(Trap)),
        on_panic: Some(on_panic),
        ..EndpointOptions::default()
    };
    let endpoint = Endpoint::open("127.0.0.1:0".parse().unwrap(), options).unwrap();
    Server { endpoint, reported, certificate }
}

impl Server {
    /// A connection to a shard: that of the client, and that of the server.
    async fn connection_at(&self, shard: usize) -> (Endpoint, Connection, Connection) {
        let tls = RustlsClient::builder().roots([self.certificate.clone()]).alpn("test").build().unwrap();
        let config = ClientConfig::new(Arc::new(tls), Arc::new(Profile::default()));
        // The kernel chooses the shard by a random byte.
        for _ in 0..200 {
            let endpoint = Endpoint::client_for(self.endpoint.local_addr()).unwrap();
            let connecting = endpoint.connect(&config, self.endpoint.local_addr(), "localhost").unwrap();
            let accepting = tokio::time::timeout(Duration::from_millis(500), self.endpoint.accept_at(shard, false));
            if let (Ok(client), Ok(Some(server))) = tokio::join!(connecting, accepting) {
                return (endpoint, client, server);
            }
        }
        panic!("no connection at shard {shard}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_shard_ends_its_connections_and_no_others() {
    let server = server(2);
    let (_client, _of_client, lost) = server.connection_at(0).await;
    let (_other_client, client, other) = server.connection_at(1).await;
    let waiting = {
        let lost = lost.clone();
        tokio::spawn(async move { lost.accept_uni().await.map(|_| ()) })
    };
    let connections = server.endpoint.stats().connections;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    // The first byte of a connection ID names the shard.
    socket.send_to(&[0; 100], server.endpoint.local_addr()).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), server.reported.notified()).await.expect("the panic is reported");
    assert_eq!(waiting.await.unwrap(), Err(CloseReason::StateLost), "who waits is woken");
    assert!(matches!(lost.open_uni().await, Err(CloseReason::StateLost)));
    assert_eq!(lost.close_reason(), Some(CloseReason::StateLost));
    assert!(server.endpoint.accept_at(0, false).await.is_none());
    drop(lost);
    let mut stream = client.open_uni().await.unwrap();
    stream.write_all(b"as before").await.unwrap();
    stream.finish().unwrap();
    let mut stream = other.accept_uni().await.unwrap();
    assert_eq!(stream.read_to_end(100).await.unwrap(), b"as before");
    assert_eq!(server.endpoint.stats().connections, connections, "counters stay");
}

/// Leaves all connections to the endpoint, and notes their names.
struct Notes(Arc<Mutex<Vec<Handle>>>);

impl Service for Notes {
    type Stream = ();

    fn connected(&mut self, connection: &mut ServedConnection<'_>) -> bool {
        self.0.lock().unwrap().push(connection.handle());
        false
    }

    fn stream(&mut self, _: &mut ServedStream<'_>, _: &mut Option<()>) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_a_task_that_has_the_state_ends_the_shard() {
    let server = server(1);
    let handles = Arc::new(Mutex::new(Vec::new()));
    server.endpoint.serve(|_| Notes(handles.clone()));
    let (_client, _of_client, connection) = server.connection_at(0).await;
    let handle = handles.lock().unwrap()[0];
    let Server { endpoint, reported, .. } = server;
    let endpoint = Arc::new(endpoint);
    let held = (endpoint.clone(), connection.clone());
    // The task has a handle of the connection, which is dropped while it panics.
    let panicked = tokio::spawn(async move {
        let (endpoint, _connection) = held;
        endpoint.with_service::<Notes, ()>(0, handle, |_, _| panic!("the trap"))
    });
    assert!(panicked.await.unwrap_err().is_panic());
    tokio::time::timeout(Duration::from_secs(60), reported.notified()).await.expect("the panic is reported");
    assert_eq!(connection.close_reason(), Some(CloseReason::StateLost));
    assert!(endpoint.accept().await.is_none());
}
