//! Early data over real sockets on loopback.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    task::Waker,
};

use tiderace::{
    ClientConfig, Connection, EarlyData, Endpoint, EndpointOptions, Handshakes, Identity, Profile, RustlsClient,
    RustlsServer, ServerConfig,
    transport::ring::{MemoryRegister, Strike, StrikeId, StrikeRegister},
};
use tokio::sync::mpsc;

struct Pair {
    server: Endpoint,
    client: Endpoint,
    config: ClientConfig,
    /// Of a client that offers no early data.
    plain: ClientConfig,
}

impl Pair {
    fn new(accept: bool) -> Self {
        Self::with_register(accept, Arc::new(MemoryRegister::default()), Handshakes::default())
    }

    fn with_register(accept: bool, register: Arc<dyn StrikeRegister>, handshakes: Handshakes) -> Self {
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = certified.cert.der().to_vec();
        let identity = Identity::from_der(vec![certificate.clone()], certified.signing_key.serialize_der()).unwrap();
        let server = RustlsServer::builder().identity(identity).alpn("test").early_data(accept);
        let server = server.strike_register(register).build().unwrap();
        let builder = || RustlsClient::builder().roots([certificate.clone()]).alpn("test");
        let (client, plain) = (builder().early_data(true).build().unwrap(), builder().build().unwrap());
        let profile = Arc::new(Profile::default());
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server = ServerConfig::new(Arc::new(server), profile.clone());
        let options = EndpointOptions { server: Some(server), handshakes, ..EndpointOptions::default() };
        let server = Endpoint::open(any, options).unwrap();
        let client_endpoint = Endpoint::client_for(server.local_addr()).unwrap();
        let config = ClientConfig::new(Arc::new(client), profile.clone());
        let plain = ClientConfig::new(Arc::new(plain), profile);
        Self { server, client: client_endpoint, config, plain }
    }

    fn connect(&self) -> tiderace::Connecting {
        self.client.connect(&self.config, self.server.local_addr(), "localhost").unwrap()
    }

    /// A connection without early data; an exchange on it, after which the tickets are there.
    async fn exchange(&self) {
        let (accepted, connected) = tokio::join!(self.server.accept(), self.connect());
        let (accepted, connected) = (accepted.unwrap(), connected.unwrap());
        ask(&connected, &accepted).await;
        connected.close(0, b"");
        accepted.closed().await;
    }
}

/// A request and its answer on an early stream, if it can be one.
async fn ask(client: &Connection, server: &Connection) {
    let (mut send, mut recv) = client.open_bi_early().await.unwrap();
    send.write_all(b"question").await.unwrap();
    send.finish().unwrap();
    answer(server).await;
    assert_eq!(recv.read_to_end(100).await.unwrap(), b"question");
}

async fn answer(server: &Connection) {
    let (mut send, mut recv) = server.accept_bi().await.unwrap();
    let question = recv.read_to_end(100).await.unwrap();
    send.write_all(&question).await.unwrap();
    send.finish().unwrap();
}

#[tokio::test]
async fn a_returning_client_asks_before_the_handshake_is_complete() {
    let pair = Pair::new(true);
    assert!(pair.connect().into_early().is_err(), "there is nothing to resume");
    pair.exchange().await;
    let client = pair.connect().into_early().unwrap();
    assert_eq!(client.early_data(), EarlyData::Offered);
    let (mut send, mut recv) = client.open_bi_early().await.unwrap();
    send.write_all(b"question").await.unwrap();
    send.finish().unwrap();
    let server = loop {
        // The connection that was given up above may come first.
        let server = pair.server.accept_early().await.unwrap();
        if server.early_data() == EarlyData::Accepted {
            break server;
        }
    };
    answer(&server).await;
    assert_eq!(recv.read_to_end(100).await.unwrap(), b"question");
    client.established().await.unwrap();
    server.established().await.unwrap();
    assert_eq!(client.early_data(), EarlyData::Accepted);
    assert!(client.stats().unwrap().early_packets_sent > 0);
    assert!(server.stats().unwrap().early_bytes_received > 8);
}

#[tokio::test]
async fn a_server_that_only_accepts_complete_handshakes_gets_the_request_as_well() {
    let pair = Pair::new(true);
    pair.exchange().await;
    let client = pair.connect().into_early().unwrap();
    let asking = async {
        let (mut send, mut recv) = client.open_bi_early().await.unwrap();
        send.write_all(b"question").await.unwrap();
        send.finish().unwrap();
        recv.read_to_end(100).await.unwrap()
    };
    let serving = async {
        let server = pair.server.accept().await.unwrap();
        answer(&server).await;
        server
    };
    let (answer, server) = tokio::join!(asking, serving);
    assert_eq!(answer, b"question");
    server.established().await.unwrap();
}

/// A register that is elsewhere: it answers when the test says so.
struct Remote {
    asked: mpsc::UnboundedSender<StrikeId>,
    open: Mutex<HashMap<StrikeId, (Waker, Option<Strike>)>>,
}

impl Remote {
    /// Answers from a thread of its own.
    fn answer(self: &Arc<Self>, id: StrikeId, strike: Strike) {
        let this = self.clone();
        let thread = std::thread::spawn(move || {
            let mut open = this.open.lock().unwrap();
            let (waker, answer) = open.get_mut(&id).unwrap();
            *answer = Some(strike);
            waker.wake_by_ref();
        });
        thread.join().unwrap();
    }
}

impl StrikeRegister for Remote {
    fn strike(&self, id: &StrikeId, _: u64, _: u64, waker: &Waker) -> Strike {
        let mut open = self.open.lock().unwrap();
        if let Some((_, Some(strike))) = open.get(id) {
            return *strike;
        }
        open.insert(*id, (waker.clone(), None));
        let _ = self.asked.send(*id);
        Strike::Pending
    }
}

/// On one thread of the runtime, wherever TLS runs.
#[tokio::test]
async fn a_register_that_is_elsewhere_delays_one_handshake_and_no_other() {
    for handshakes in [Handshakes::InPlace, Handshakes::OwnPool] {
        let (asked, mut asks) = mpsc::unbounded_channel();
        let register = Arc::new(Remote { asked, open: Mutex::default() });
        let pair = Pair::with_register(true, register.clone(), handshakes);
        pair.exchange().await;
        for (says, expected) in [(Strike::First, EarlyData::Accepted), (Strike::Again, EarlyData::Rejected)] {
            let client = pair.connect().into_early().unwrap();
            assert_eq!(client.early_data(), EarlyData::Offered);
            let id = asks.recv().await.unwrap();
            // Another connection comes about and carries data while the answer is not there.
            let other = pair.client.connect(&pair.plain, pair.server.local_addr(), "localhost").unwrap();
            let (served, other) = tokio::join!(pair.server.accept(), other);
            ask(&other.unwrap(), &served.unwrap()).await;
            assert_eq!(client.early_data(), EarlyData::Offered);

            register.answer(id, says);
            let (served, complete) = tokio::join!(pair.server.accept(), client.established());
            complete.unwrap();
            let served = served.unwrap();
            assert_eq!((client.early_data(), served.early_data()), (expected, expected));
            // After an exchange the tickets for the next one are there.
            ask(&client, &served).await;
        }
    }
}
