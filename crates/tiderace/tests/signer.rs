//! A private key that is elsewhere, over real sockets and on one thread: handshakes wait for it, and nothing else does.
//!
//! `cargo test -p tiderace --features boringssl --test signer`

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};
use tiderace::{
    BoringServer, ClientConfig, Connection, Endpoint, EndpointOptions, Handshakes, Profile, RustlsClient, ServerConfig,
    transport::tls::boring_backend::{Signature, Signer},
};
use tokio::sync::mpsc;

/// ecdsa_secp256r1_sha256 (RFC 8446 §4.2.3).
const SCHEME: u16 = 0x0403;
/// Handshakes that wait at the same time.
const WAITING: usize = 8;

/// Signature that a task waits for.
#[derive(Clone, Default)]
struct Order {
    done: Arc<AtomicBool>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Order {
    fn complete(&self) {
        self.done.store(true, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }
}

struct Elsewhere {
    key: EcdsaKeyPair,
    orders: mpsc::UnboundedSender<Order>,
}

struct Awaited {
    signature: Option<Vec<u8>>,
    order: Order,
}

impl Signer for Elsewhere {
    fn schemes(&self) -> Vec<u16> {
        vec![SCHEME]
    }

    fn sign(&self, scheme: u16, message: &[u8]) -> Box<dyn Signature> {
        assert_eq!(scheme, SCHEME);
        let signature = self.key.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec();
        let order = Order::default();
        let _ = self.orders.send(order.clone());
        Box::new(Awaited { signature: Some(signature), order })
    }
}

impl Signature for Awaited {
    fn poll(&mut self, waker: &Waker) -> Option<Result<Vec<u8>, String>> {
        *self.order.waker.lock().unwrap() = Some(waker.clone());
        if !self.order.done.load(Ordering::SeqCst) {
            return None;
        }
        Some(self.signature.take().ok_or_else(|| "asked twice".to_owned()))
    }
}

async fn echo(connection: Connection) {
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        let Ok(data) = recv.read_to_end(1_000).await else { return };
        let _ = send.write_all(&data).await;
        let _ = send.finish();
    }
}

async fn ask(connection: &Connection) -> Vec<u8> {
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(b"question").await.unwrap();
    send.finish().unwrap();
    recv.read_to_end(1_000).await.unwrap()
}

#[tokio::test]
async fn handshakes_wait_for_a_signature_and_nothing_else_does() {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let certificate = certificate.der().to_vec();
    for handshakes in [Handshakes::InPlace, Handshakes::OwnPool] {
        let (orders, mut ordered) = mpsc::unbounded_channel::<Order>();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &key.serialize_der()).unwrap();
        let signer = Arc::new(Elsewhere { key: pair, orders });
        let tls = BoringServer::builder().signer(vec![certificate.clone()], signer).alpn("test").build().unwrap();
        let profile = Arc::new(Profile::default());
        let server = Some(ServerConfig::new(Arc::new(tls), profile.clone()));
        let options = EndpointOptions { server, handshakes, ..EndpointOptions::default() };
        let server = Arc::new(Endpoint::open("127.0.0.1:0".parse().unwrap(), options).unwrap());
        let tls = RustlsClient::builder().roots([certificate.clone()]).alpn("test").build().unwrap();
        let config = ClientConfig::new(Arc::new(tls), profile);
        let client = Endpoint::client_for(server.local_addr()).unwrap();
        let connect = || client.connect(&config, server.local_addr(), "localhost").unwrap();
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Some(connection) = accepting.accept().await {
                tokio::spawn(echo(connection));
            }
        });

        let (first, ()) = tokio::join!(connect(), async { ordered.recv().await.unwrap().complete() });
        let first = first.unwrap();
        let waiting: Vec<_> = (0..WAITING).map(|_| tokio::spawn(connect())).collect();
        let mut orders = Vec::new();
        while orders.len() < WAITING {
            orders.push(ordered.recv().await.unwrap());
            assert_eq!(ask(&first).await, b"question", "data flows meanwhile");
        }
        assert!(waiting.iter().all(|task| !task.is_finished()));
        // From another thread, as the answer of a key server would.
        let signing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            orders.iter().for_each(Order::complete);
        });
        for task in waiting {
            assert_eq!(ask(&task.await.unwrap().unwrap()).await, b"question");
        }
        signing.join().unwrap();
    }
}
