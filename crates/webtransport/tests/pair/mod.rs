//! Both ends of a connection, over real sockets: directly, or through a link that loses packets.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use emu::{Relay, RelayConfig};
use tiderace::{
    ClientConfig, Connection, Endpoint, Identity, Profile, RustlsClient, RustlsServer, ServerConfig,
    transport::streams::StreamsConfig,
};

use h3_quic::ALPN;
use tiderace_webtransport::{Client, Config, Origins, Session, server};
use tokio::sync::mpsc;

/// Waits for what has to come; a test that hangs ends.
pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), what).await.expect("it comes")
}

pub fn profile(reset_stream_at: bool) -> Arc<Profile> {
    let streams = StreamsConfig { reset_stream_at, ..StreamsConfig::default() };
    // Small, so that tests of what is held see what is held above the transport.
    Arc::new(Profile { streams, datagram_queue: 64 * 1024, ..Profile::default() })
}

pub struct Ends {
    pub accepted: Connection,
    pub quic: Connection,
    _endpoints: (Endpoint, Endpoint),
    _relay: Option<Relay>,
}

/// Both ends, which accept RESET_STREAM_AT or not; through a link with this loss, if there is one.
pub async fn ends(resets_at: bool, loss: Option<f64>) -> Ends {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der()).unwrap();
    let server = RustlsServer::builder().identity(identity).alpn(ALPN).build().unwrap();
    let client = RustlsClient::builder().roots([cert]).alpn(ALPN).build().unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let server = Endpoint::server(any, ServerConfig::new(Arc::new(server), profile(resets_at))).unwrap();
    let relay = loss.map(|loss| {
        let loss = netem::Loss::Iid { p: units::Probability::new(loss).unwrap() };
        let link = netem::LinkConfig { loss, ..netem::LinkConfig::default() };
        let config = RelayConfig { up: link.clone(), down: link, ..RelayConfig::new(any, server.local_addr()) };
        Relay::start(&config).unwrap()
    });
    let to = relay.as_ref().map_or(server.local_addr(), Relay::address);
    let config = ClientConfig::new(Arc::new(client), profile(resets_at));
    let client = Endpoint::client_for(to).unwrap();
    let connecting = client.connect(&config, to, "localhost").unwrap();
    let (accepted, quic) = tokio::join!(server.accept(), connecting);
    Ends { accepted: accepted.unwrap(), quic: quic.unwrap(), _endpoints: (server, client), _relay: relay }
}

/// Settings of a server that any page may use.
pub fn open() -> Config {
    Config { origins: Origins::Any, ..Config::default() }
}

/// Serves sessions on a connection; each is handed over, with the first protocol that its client offers.
pub fn serve(accepted: &Connection, config: Config) -> mpsc::UnboundedReceiver<Session> {
    let (sessions, begun) = mpsc::unbounded_channel();
    let handler = move |request: server::SessionRequest| {
        let sessions = sessions.clone();
        async move {
            let protocol = (!request.protocols().is_empty()).then_some(0);
            let (session, response) = request.accept(protocol);
            sessions.send(session).unwrap();
            response
        }
    };
    let options = h3_quic::server::Options::default();
    tokio::spawn(server::serve(accepted.clone(), config, options, std::future::pending(), handler));
    begun
}

pub fn request() -> http::Request<()> {
    http::Request::get("https://localhost/chat").body(()).unwrap()
}

pub struct Pair {
    pub client: Client,
    /// The client's and the server's side of a session.
    pub ours: Session,
    pub theirs: Session,
    pub begun: mpsc::UnboundedReceiver<Session>,
    pub ends: Ends,
}

/// A session between ends with these settings.
pub async fn pair(client: Config, server: Config, resets_at: bool, loss: Option<f64>) -> Pair {
    let ends = ends(resets_at, loss).await;
    let mut begun = serve(&ends.accepted, server);
    let mut client = Client::begin(ends.quic.clone(), client).await.unwrap();
    let ours = within(client.connect(request(), &[])).await.unwrap();
    let theirs = within(begun.recv()).await.unwrap();
    Pair { client, ours, theirs, begun, ends }
}
