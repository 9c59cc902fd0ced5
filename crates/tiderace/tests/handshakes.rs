//! Placement of TLS: a private key that does not answer stalls handshakes, and nothing else.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
    mpsc,
};

use rustls::{
    SignatureAlgorithm, SignatureScheme,
    crypto::aws_lc_rs::sign::any_supported_type,
    server::{ClientHello, ResolvesServerCert},
    sign::{CertifiedKey, Signer, SigningKey},
};
use tiderace::{
    ClientConfig, Connection, Endpoint, EndpointOptions, Handshakes, Profile, RustlsClient, RustlsServer, ServerConfig,
    TlsPool,
};

/// A private key that signs so many times, and from then on only when it is told to.
#[derive(Debug)]
struct Slow {
    key: Arc<dyn SigningKey>,
    gate: Arc<Gate>,
}

#[derive(Debug)]
struct Gate {
    asked: AtomicUsize,
    /// Signatures that are given for nothing.
    free: usize,
    permits: std::sync::Mutex<mpsc::Receiver<()>>,
    /// Threads of the signatures.
    threads: std::sync::Mutex<Vec<std::thread::ThreadId>>,
}

impl Gate {
    fn new(free: usize, permits: mpsc::Receiver<()>) -> Arc<Self> {
        Arc::new(Self { asked: AtomicUsize::new(0), free, permits: permits.into(), threads: Default::default() })
    }
}

#[derive(Debug)]
struct SlowSigner {
    signer: Box<dyn Signer>,
    gate: Arc<Gate>,
}

impl SigningKey for Slow {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signer = self.key.choose_scheme(offered)?;
        Some(Box::new(SlowSigner { signer, gate: self.gate.clone() }))
    }
    fn algorithm(&self) -> SignatureAlgorithm {
        self.key.algorithm()
    }
}

impl Signer for SlowSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        self.gate.threads.lock().unwrap().push(std::thread::current().id());
        if self.gate.asked.fetch_add(1, Ordering::SeqCst) >= self.gate.free {
            let permit = self.gate.permits.lock().unwrap().recv();
            permit.map_err(|_| rustls::Error::General("the key is gone".to_owned()))?;
        }
        self.signer.sign(message)
    }
    fn scheme(&self) -> SignatureScheme {
        self.signer.scheme()
    }
}

#[derive(Debug)]
struct Always(Arc<CertifiedKey>);

impl ResolvesServerCert for Always {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

fn configs(gate: &Arc<Gate>) -> (ServerConfig, ClientConfig) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert = certified.cert.der().clone();
    let key = any_supported_type(&certified.signing_key.serialize_der().try_into().unwrap()).unwrap();
    let key = CertifiedKey::new(vec![cert.clone()], Arc::new(Slow { key, gate: gate.clone() }));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Always(Arc::new(key))));
    tls.alpn_protocols = vec![b"test".to_vec()];
    let server = RustlsServer::from_config(tls).unwrap();
    let client = RustlsClient::builder().roots([cert.to_vec()]).alpn("test").build().unwrap();
    let profile = Arc::new(Profile::default());
    (ServerConfig::new(Arc::new(server), profile.clone()), ClientConfig::new(Arc::new(client), profile))
}

async fn echo(connection: Connection) {
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        let Ok(data) = recv.read_to_end(1000).await else { return };
        send.write_all(&data).await.unwrap();
        send.finish().unwrap();
    }
}

async fn ask(connection: &Connection, question: &[u8]) -> bytes::Bytes {
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(question).await.unwrap();
    send.finish().unwrap();
    recv.read_to_end(1000).await.unwrap().into()
}

#[tokio::test]
async fn a_private_key_that_does_not_answer_stalls_no_data() {
    let (permit, permits) = mpsc::channel();
    let gate = Gate::new(1, permits);
    let (server_config, client_config) = configs(&gate);
    let pool = TlsPool::new(std::num::NonZeroUsize::MIN);
    let options = EndpointOptions {
        server: Some(server_config),
        handshakes: Handshakes::Pool(pool),
        ..EndpointOptions::default()
    };
    let server = Endpoint::open("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let client = Endpoint::client_for(server.local_addr()).unwrap();
    let connect = || client.connect(&client_config, server.local_addr(), "localhost").unwrap();

    let (first, accepted) = tokio::join!(connect(), server.accept());
    let first = first.unwrap();
    let echoing = tokio::spawn(echo(accepted.unwrap()));
    let second = tokio::spawn(connect());
    // Data of the first connection flows before and while the second one's signature is asked for.
    let mut answers = 0;
    while gate.asked.load(Ordering::SeqCst) < 2 || answers < 50 {
        assert_eq!(ask(&first, b"still there?").await, "still there?");
        if gate.asked.load(Ordering::SeqCst) == 2 {
            answers += 1;
        }
    }
    assert!(!second.is_finished(), "nobody has signed");
    permit.send(()).unwrap();
    let (second, accepted) = tokio::join!(second, server.accept());
    second.unwrap().unwrap();
    assert!(accepted.is_some());
    drop(first);
    echoing.await.unwrap();
}

#[tokio::test]
async fn tls_may_run_in_place() {
    let (_permit, permits) = mpsc::channel();
    let gate = Gate::new(1, permits);
    let (server_config, client_config) = configs(&gate);
    let options =
        EndpointOptions { server: Some(server_config), handshakes: Handshakes::InPlace, ..EndpointOptions::default() };
    let server = Endpoint::open("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let client = Endpoint::client_for(server.local_addr()).unwrap();
    let connecting = client.connect(&client_config, server.local_addr(), "localhost").unwrap();
    let (connected, accepted) = tokio::join!(connecting, server.accept());
    let echoing = tokio::spawn(echo(accepted.unwrap()));
    assert_eq!(ask(&connected.unwrap(), b"hello").await, "hello");
    echoing.await.unwrap();
}

/// Waking a thread for a step that is alone costs more than the step delays: once steps have shown that they are quick, the
/// task that drives the endpoint runs it. One that had to wait for its key goes to the pool, and those after it.
#[tokio::test]
async fn a_lone_quick_step_runs_where_the_endpoint_is_driven() {
    let (permit, permits) = mpsc::channel();
    let gate = Gate::new(60, permits);
    let (server_config, client_config) = configs(&gate);
    let options = EndpointOptions { server: Some(server_config), ..EndpointOptions::default() };
    let server = Endpoint::open("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let client = Endpoint::client_for(server.local_addr()).unwrap();
    let here = std::thread::current().id();
    let connect = async || {
        let connecting = client.connect(&client_config, server.local_addr(), "localhost").unwrap();
        let (connected, accepted) = tokio::join!(connecting, server.accept());
        connected.unwrap().close(0, b"");
        accepted.unwrap().closed().await;
        *gate.threads.lock().unwrap().last().unwrap()
    };
    assert_ne!(connect().await, here, "nothing is known yet of the key");
    let mut count = 1;
    while connect().await != here {
        count += 1;
        assert!(count < 60, "all steps were quick");
    }
    while gate.asked.load(Ordering::SeqCst) < 60 {
        connect().await;
    }
    // The key is slow from now on. Who waits for it first finds out; after that nobody drives and waits.
    let keeper = std::thread::spawn(move || {
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(50));
            permit.send(()).unwrap();
        }
    });
    connect().await;
    assert_ne!(connect().await, here);
    assert_ne!(connect().await, here);
    keeper.join().unwrap();
}
