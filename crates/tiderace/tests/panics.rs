//! A panic in the task that drives a socket is reported, because nothing else would tell.

use std::{
    num::NonZeroU8,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tiderace::{Endpoint, EndpointOptions, Identity, Profile, RustlsServer, ServerConfig, Shards, Tap, Tapped};
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
