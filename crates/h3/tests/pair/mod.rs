//! Both ends of a connection on loopback, and a client that writes what it likes.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test uses a part")]

mod fields;

use std::{convert::Infallible, future::Future, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use tiderace::{ClientConfig, Connection, Endpoint, Identity, Profile, RustlsClient, RustlsServer, ServerConfig};
use tiderace_h3::{
    ALPN, Error, RequestBody,
    client::{self, SendRequest},
    server::{self, Options},
};
use tokio::sync::Notify;

pub(crate) use fields::fields;

pub type Answer = Response<BoxBody<Bytes, std::io::Error>>;

pub struct Pair {
    pub request: SendRequest,
    pub quic: Connection,
    pub server: tokio::task::JoinHandle<Result<(), Error>>,
    pub drain: Arc<Notify>,
    _endpoints: (Endpoint, Endpoint),
}

pub async fn endpoints() -> (Endpoint, Endpoint, Connection, Connection) {
    endpoints_with(Profile::default()).await
}

/// A server, and a client with this profile.
pub async fn endpoints_with(of_client: Profile) -> (Endpoint, Endpoint, Connection, Connection) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der()).unwrap();
    let server = RustlsServer::builder().identity(identity).alpn(ALPN).build().unwrap();
    let client = RustlsClient::builder().roots([cert]).alpn(ALPN).build().unwrap();
    let profile = Arc::new(Profile::default());
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let server = Endpoint::server(any, ServerConfig::new(Arc::new(server), profile)).unwrap();
    let client_config = ClientConfig::new(Arc::new(client), Arc::new(of_client));
    let client = Endpoint::client_for(server.local_addr()).unwrap();
    let connecting = client.connect(&client_config, server.local_addr(), "localhost").unwrap();
    let (accepted, connected) = tokio::join!(server.accept(), connecting);
    (server, client, accepted.unwrap(), connected.unwrap())
}

pub async fn pair<S, F>(options: Options, service: S) -> Pair
where
    S: Fn(Request<RequestBody>) -> F + Clone + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let (server, client, accepted, quic) = endpoints().await;
    let drain = Arc::new(Notify::new());
    let draining = drain.clone();
    let serving = tokio::spawn(async move { server::serve(accepted, options, draining.notified(), service).await });
    let request = client::begin(quic.clone()).await.unwrap();
    Pair { request, quic, server: serving, drain, _endpoints: (server, client) }
}

pub fn empty() -> Empty<Bytes> {
    Empty::new()
}

pub fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("https://localhost{path}")).body(empty()).unwrap()
}

pub fn full(data: impl Into<Bytes>) -> BoxBody<Bytes, std::io::Error> {
    Full::new(data.into()).map_err(|never: Infallible| match never {}).boxed()
}

/// Waits for what has to come; a test that hangs ends.
pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), what).await.expect("it comes")
}

/// A client that writes what it likes.
pub async fn raw(quic: &Connection, bytes: &[u8], finish: bool) -> Result<Vec<u8>, String> {
    let (mut send, mut recv) = quic.open_bi().await.map_err(|e| e.to_string())?;
    let sent = send.write_all(bytes).await.and_then(|()| if finish { send.finish() } else { Ok(()) });
    // RFC 9114 §4.1: a server that has answered stops what comes after with H3_NO_ERROR, and the answer counts.
    match sent.map_err(|e| e.to_string()) {
        Err(error) if !error.contains("(code 256)") => return Err(error),
        _ => {}
    }
    let answer = tokio::time::timeout(Duration::from_secs(120), recv.read_to_end(1_000_000));
    answer.await.map_err(|_| "nothing".to_owned())?.map_err(|e| e.to_string())
}

pub const PSEUDO: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "https"), (":authority", "localhost"), (":path", "/")];
