//! Back ends over HTTP/3: one that serves, and one that writes what it likes.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use h3_quic::server::{self, RequestBody};
use http::{Request, Response};
use tiderace::{Connection, Endpoint, Identity, Profile, RecvStream, RustlsServer, SendStream, ServerConfig};
use tokio::{net::TcpSocket, sync::watch, task::JoinHandle};

use crate::site::{Body, Directory, Site};

/// A certificate for `app.internal`.
pub(crate) fn certified() -> rcgen::CertifiedKey<rcgen::KeyPair> {
    rcgen::generate_simple_self_signed(vec!["app.internal".to_owned()]).unwrap()
}

/// An endpoint for HTTP/3 with this certificate.
pub(crate) fn listen(address: SocketAddr, made: &rcgen::CertifiedKey<rcgen::KeyPair>, profile: Profile) -> Endpoint {
    let identity = Identity::from_der(vec![made.cert.der().to_vec()], made.signing_key.serialize_der()).unwrap();
    let tls = RustlsServer::builder().identity(identity).alpn(h3_quic::ALPN).early_data(true).build().unwrap();
    Endpoint::server(address, ServerConfig::new(Arc::new(tls), Arc::new(profile))).unwrap()
}

/// A gateway in front of back ends whose certificate is `pem`, with `config`, in which ROOTS is a file of it.
pub(crate) fn gateway(name: &str, pem: &str, config: &str) -> (Site, Directory) {
    // The roots have to be there before the gateway is.
    let roots = Directory::new(&format!("{name}-roots"));
    let file = roots.write("roots.pem", pem);
    (Site::start(name, &config.replace("ROOTS", file.to_str().unwrap())), roots)
}

/// A route to this address over HTTP/3.
pub(super) fn route(address: SocketAddr, rest: &str) -> String {
    format!("[[route]]\nto = \"h3://{address}\"\ntls = {{ roots = 'ROOTS', name = 'app.internal' }}\n{rest}\n")
}

/// A back end over HTTP/3.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    /// Certificate in PEM.
    pub(crate) certificate: String,
    /// Connections that were accepted, and those of them that resumed a session.
    pub(crate) accepted: Arc<AtomicUsize>,
    pub(crate) resumed: Arc<AtomicUsize>,
    drains: watch::Sender<usize>,
    endpoint: Arc<Endpoint>,
    task: JoinHandle<()>,
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.endpoint.close(0x100, b"");
        self.task.abort();
    }
}

impl Origin {
    /// One whose service gets each request with the number of its connection.
    pub(crate) async fn start<S, F>(service: S) -> Self
    where
        S: Fn(Request<RequestBody>, usize) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::start_at("127.0.0.1:0".parse().unwrap(), &certified(), Profile::default(), service).await
    }

    pub(crate) async fn start_at<S, F>(
        address: SocketAddr,
        made: &rcgen::CertifiedKey<rcgen::KeyPair>,
        profile: Profile,
        service: S,
    ) -> Self
    where
        S: Fn(Request<RequestBody>, usize) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let endpoint = Arc::new(listen(address, made, profile));
        let address = endpoint.local_addr();
        let (accepted, resumed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let drains = watch::Sender::new(0);
        let (accepts, counts, of_resumed) = (endpoint.clone(), accepted.clone(), resumed.clone());
        let drained = drains.subscribe();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Some(connection) = accepts.accept().await {
                let number = counts.fetch_add(1, Ordering::SeqCst);
                let stats = connection.stats().unwrap_or_default();
                // Nothing may come before the handshake: it could be a copy.
                assert_eq!(stats.early_packets_received, 0);
                of_resumed.fetch_add(usize::from(stats.resumed > 0), Ordering::SeqCst);
                let service = service.clone();
                let service = move |request| service(request, number);
                let mut drained = drained.clone();
                drained.mark_unchanged();
                connections.spawn(async move {
                    let drain = async { drop(drained.changed().await) };
                    let options =
                        server::Options { max_cancelled: u32::MAX, forwards: true, ..server::Options::default() };
                    let _ = server::serve(connection, options, drain, service).await;
                });
            }
        });
        Self { address, certificate: made.cert.pem(), accepted, resumed, drains, endpoint, task }
    }

    /// One beside a socket for TCP that has the same port, and refuses connections until it listens: a port that is free for UDP may be
    /// somebody else's for TCP, and may become so later.
    pub(crate) async fn start_beside_tcp<S, F>(
        made: &rcgen::CertifiedKey<rcgen::KeyPair>,
        service: S,
    ) -> (Self, TcpSocket)
    where
        S: Fn(Request<RequestBody>, usize) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        loop {
            let origin =
                Self::start_at("127.0.0.1:0".parse().unwrap(), made, Profile::default(), service.clone()).await;
            let reserved = TcpSocket::new_v4().unwrap();
            if reserved.bind(origin.address).is_ok() {
                return (origin, reserved);
            }
        }
    }

    /// Announces the end of all connections.
    pub(crate) fn drain(&self) {
        self.drains.send_modify(|count| *count += 1);
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// A back end that writes what it likes.
pub(super) struct Raw {
    pub(super) address: SocketAddr,
    pub(super) certificate: String,
    task: JoinHandle<()>,
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The streams of a request.
pub(super) type Streams = (SendStream, RecvStream);

impl Raw {
    /// One that hands each connection to `control`, behind its settings, and each request to `request`.
    pub(super) async fn start<C, F, R, G>(control: C, request: R) -> Self
    where
        C: Fn(Connection, SendStream) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
        R: Fn(Streams) -> G + Clone + Send + Sync + 'static,
        G: Future<Output = ()> + Send + 'static,
    {
        let made = certified();
        let endpoint = listen("127.0.0.1:0".parse().unwrap(), &made, Profile::default());
        let (address, certificate) = (endpoint.local_addr(), made.cert.pem());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Some(connection) = endpoint.accept().await {
                let (control, request) = (control.clone(), request.clone());
                connections.spawn(async move {
                    let Ok(mut own) = connection.open_uni().await else { return };
                    if own.write_all(&[0, 4, 0]).await.is_err() {
                        return;
                    }
                    let mut requests = tokio::task::JoinSet::new();
                    requests.spawn(control(connection.clone(), own));
                    // What the gateway says on its own streams is not read, and stays with the connection.
                    while let Ok(streams) = connection.accept_bi().await {
                        requests.spawn(request(streams));
                    }
                });
            }
        });
        Self { address, certificate, task }
    }
}
