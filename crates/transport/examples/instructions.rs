//! Two endpoints in one process, without a kernel between them: what the state machine itself costs.
//!
//! `cargo run --profile dist -p tiderace-transport --example instructions -- bulk` prints nanoseconds per unit of work for each
//! side. Under callgrind with `--toggle-collect=instructions::client_turn` or `…server_turn` it counts the
//! instructions of one side; `cargo xtask instructions` does that for all scenarios and compares with the committed table.

#![expect(clippy::disallowed_methods, reason = "a measurement of real time needs a clock")]

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant as Clock},
};

use bytes::{Bytes, BytesMut};
use transport::{
    ClientConfig, Datagram, Endpoint, EndpointConfig, Event, Handle, Profile, ServerConfig,
    streams::{Order, ReadStatus, StreamEvent, StreamsConfig, WriteError},
    tls::rustls_backend::{FixedClock, Identity, RustlsClient, RustlsServer},
};
use units::{Instant, Seed};
use wire::{Dir, StreamId};

/// One way between the endpoints, of the order of what loopback takes.
const DELAY: Duration = Duration::from_micros(50);
/// Flow control window in bytes.
const WINDOW: u64 = 512 << 10;
const BULK: u64 = 128 << 20;
const REQUESTS: u64 = 20_000;
const CONCURRENT: u64 = 100;
const REQUEST: usize = 100;
const ANSWER: usize = 1024;
const DATAGRAMS: u64 = 40_000;
const HANDSHAKES: u64 = 40;
/// In the scenario with losses each of this many batches loses its first datagram.
const LOSE_EVERY: u64 = 5;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scenario {
    Bulk,
    Lossy,
    Requests,
    Datagrams,
    Handshakes,
}

impl Scenario {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "bulk" => Self::Bulk,
            "lossy" => Self::Lossy,
            "requests" => Self::Requests,
            "datagrams" => Self::Datagrams,
            "handshakes" => Self::Handshakes,
            _ => return None,
        })
    }
}

/// A batch on its way.
struct Batch {
    payload: BytesMut,
    segment_size: usize,
}

/// One end with its application.
struct End {
    endpoint: Endpoint,
    peer: SocketAddr,
    scenario: Scenario,
    connection: Option<Handle>,
    buffer: Vec<u8>,
    inbox: Vec<Batch>,
    outbox: Vec<Batch>,
    content: Bytes,
    /// Units of work to do.
    goal: u64,
    /// Units of work done: bytes, requests, datagrams.
    done: u64,
    started: u64,
    batches: u64,
    spent: Duration,
}

impl End {
    fn new(endpoint: Endpoint, peer: SocketAddr, scenario: Scenario, goal: u64) -> Self {
        Self {
            endpoint,
            peer,
            scenario,
            connection: None,
            buffer: vec![0; 65_000],
            inbox: Vec::new(),
            outbox: Vec::new(),
            content: Bytes::from(vec![0x5a; 1 << 20]),
            goal,
            done: 0,
            started: 0,
            batches: 0,
            spent: Duration::ZERO,
        }
    }

    /// Takes in what arrived, lets the application act, puts out what leaves.
    fn turn(&mut self, now: Instant, act: fn(&mut Self, Handle, &Event)) {
        for Batch { payload, segment_size } in self.inbox.drain(..) {
            let datagram =
                Datagram { remote: self.peer, local: None, ecn: None, received_at: now, segment_size, payload };
            self.endpoint.handle_datagram(now, datagram);
        }
        self.endpoint.handle_timeout(now);
        loop {
            while let Some((handle, event)) = self.endpoint.poll_event() {
                act(self, handle, &event);
            }
            let Some(transmit) = self.endpoint.poll_transmit(now, &mut self.buffer) else { break };
            self.batches += 1;
            let mut payload = BytesMut::from(&self.buffer[..transmit.len]);
            if self.scenario == Scenario::Lossy && self.connection.is_some() && self.batches.is_multiple_of(LOSE_EVERY)
            {
                let _ = payload.split_to(transmit.segment_size.min(payload.len()));
            }
            if !payload.is_empty() {
                self.outbox.push(Batch { payload, segment_size: transmit.segment_size });
            }
        }
    }
}

/// All that a client does at one time; named so that callgrind can count it alone.
#[inline(never)]
fn client_turn(client: &mut End, now: Instant) {
    let start = Clock::now();
    client.turn(now, client_acts);
    client.spent += start.elapsed();
}

/// The same for the server.
#[inline(never)]
fn server_turn(server: &mut End, now: Instant) {
    let start = Clock::now();
    server.turn(now, server_acts);
    server.spent += start.elapsed();
}

fn client_acts(client: &mut End, handle: Handle, event: &Event) {
    match event {
        Event::Connected => {
            client.connection = Some(handle);
            match client.scenario {
                Scenario::Bulk | Scenario::Lossy => {
                    let connection = client.endpoint.connection_mut(handle).expect("it just connected");
                    let id = connection.open(Dir::Bi).expect("the limit allows a stream");
                    client.fill(handle, id);
                }
                Scenario::Requests => (0..CONCURRENT).for_each(|_| client.request(handle)),
                Scenario::Datagrams => client.send_datagrams(handle),
                Scenario::Handshakes => client.close(handle),
            }
        }
        Event::Stream(StreamEvent::Writable { id }) => client.fill(handle, *id),
        Event::Stream(StreamEvent::Readable { id }) => {
            let bytes = client.read(handle, *id);
            match client.scenario {
                Scenario::Requests => {
                    client.done += u64::from(bytes.1);
                    if bytes.1 && client.started < client.goal {
                        client.request(handle);
                    }
                }
                Scenario::Datagrams => client.send_datagrams(handle),
                _ => {}
            }
        }
        Event::Closed(_) => client.connection = None,
        _ => {}
    }
}

fn server_acts(server: &mut End, handle: Handle, event: &Event) {
    match event {
        Event::Stream(StreamEvent::Opened { dir }) => {
            while server.endpoint.connection_mut(handle).is_some_and(|c| c.accept(*dir).is_some()) {}
        }
        Event::Stream(StreamEvent::Readable { id }) => {
            let (bytes, end) = server.read(handle, *id);
            if server.scenario == Scenario::Requests {
                if end {
                    server.done += 1;
                    let mut answer = server.content.slice(..ANSWER);
                    let connection = server.endpoint.connection_mut(handle).expect("it has events");
                    connection.write(*id, &mut answer).expect("the buffer has room");
                    connection.finish(*id).expect("the stream is open");
                }
            } else {
                server.done += bytes;
            }
        }
        Event::DatagramsReadable => {
            let connection = server.endpoint.connection_mut(handle).expect("it has events");
            let before = server.done;
            while connection.recv_datagram().is_some() {
                server.done += 1;
            }
            // The client sends the next ones when it hears of these.
            if before / CONCURRENT != server.done / CONCURRENT
                && let Some(id) = connection.open(Dir::Uni)
            {
                connection.write(id, &mut Bytes::from_static(b"more")).expect("the buffer has room");
                connection.finish(id).expect("the stream is open");
            }
        }
        Event::Connected if server.scenario == Scenario::Handshakes => server.done += 1,
        _ => {}
    }
}

impl End {
    /// Writes until the send buffer is full or everything is written.
    fn fill(&mut self, handle: Handle, id: StreamId) {
        let connection = self.endpoint.connection_mut(handle).expect("it has events");
        while self.started < self.goal {
            let mut data = self.content.clone();
            match connection.write(id, &mut data) {
                Ok(taken) => self.started += taken as u64,
                Err(WriteError::Blocked) => return,
                Err(error) => panic!("{error}"),
            }
        }
        // A second call says that it is finished already.
        let _ = connection.finish(id);
    }

    fn request(&mut self, handle: Handle) {
        let connection = self.endpoint.connection_mut(handle).expect("it has events");
        let Some(id) = connection.open(Dir::Bi) else { return };
        self.started += 1;
        connection.write(id, &mut self.content.slice(..REQUEST)).expect("the buffer has room");
        connection.finish(id).expect("the stream is open");
    }

    fn send_datagrams(&mut self, handle: Handle) {
        let connection = self.endpoint.connection_mut(handle).expect("it has events");
        let size = connection.max_datagram_size().expect("the server accepts datagrams");
        while self.started < self.goal && self.started < self.done + 4 * CONCURRENT {
            connection.send_datagram(self.content.slice(..size)).expect("the queue has room");
            self.started += 1;
        }
        self.done += CONCURRENT;
    }

    fn close(&mut self, handle: Handle) {
        self.done += 1;
        if let Some(connection) = self.endpoint.connection_mut(handle) {
            connection.close(Instant::ZERO, 0, b"");
        }
    }

    /// Reads all there is: the bytes, and whether the end came.
    fn read(&mut self, handle: Handle, id: StreamId) -> (u64, bool) {
        let connection = self.endpoint.connection_mut(handle).expect("it has events");
        let mut bytes = 0;
        let status = connection.read_many(id, usize::MAX, Order::Ordered, |chunk| bytes += chunk.data.len() as u64);
        (bytes, status.expect("the stream is open") == ReadStatus::End)
    }
}

fn identity() -> (Identity, Vec<u8>) {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("the algorithm is supported");
    let mut params = rcgen::CertificateParams::new(vec!["server.test".to_owned()]).expect("the name is valid");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = params.self_signed(&key).expect("the key can sign");
    let issuer = rcgen::Issuer::new(params, key);
    let leaf_key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("the algorithm is supported");
    let leaf = rcgen::CertificateParams::new(vec!["server.test".to_owned()])
        .and_then(|params| params.signed_by(&leaf_key, &issuer))
        .expect("the root can sign");
    let identity = Identity::from_der(vec![leaf.der().to_vec()], leaf_key.serialize_der()).expect("a usable key");
    (identity, root.der().to_vec())
}

fn main() {
    let Some(scenario) = std::env::args().nth(1).as_deref().and_then(Scenario::parse) else {
        eprintln!(
            "usage: instructions bulk|lossy|requests|datagrams|handshakes [SHARE OF THE WORK, AS A DIVISOR] [CONGESTION CONTROL]"
        );
        std::process::exit(2);
    };
    let congestion = std::env::args().nth(3).map(|name| name.parse().unwrap_or_else(|error| panic!("{error}")));
    // The first random number of a process takes longer than all others.
    aws_lc_rs::rand::fill(&mut [0; 16]).expect("there is randomness");
    let clock = Arc::new(FixedClock { unix_secs: 1_800_000_000 });
    let (identity, root) = identity();
    let server_tls =
        RustlsServer::builder().identity(identity).alpn("test").clock(clock.clone()).build().expect("a valid config");
    let client_tls = RustlsClient::builder()
        .roots([root])
        .alpn("test")
        .clock(clock)
        .without_resumption()
        .cipher_suites([transport::crypto::CipherSuite::Aes128Gcm])
        .build()
        .expect("a valid config");
    let profile = Arc::new(Profile {
        initial_mtu: 1452,
        congestion: congestion.unwrap_or_default(),
        // What is on its way fits into the cache, as it would with a kernel in between.
        streams: StreamsConfig {
            receive_window_stream: WINDOW,
            receive_window_connection: WINDOW,
            receive_window_max: WINDOW,
            max_streams_bidi: 2 * CONCURRENT,
            max_streams_uni: 1 << 20,
            ..StreamsConfig::default()
        },
        ..Profile::default()
    });
    let addresses: [SocketAddr; 2] = [([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into()];
    let server_config = Arc::new(ServerConfig::new(Arc::new(server_tls), profile.clone()));
    let client_config = ClientConfig::new(Arc::new(client_tls), profile);
    let endpoint = |seed, server| Endpoint::new(EndpointConfig::from_seed(Seed::from_number(seed)), server);
    let (all, unit) = match scenario {
        Scenario::Bulk | Scenario::Lossy => (BULK, "1,452 bytes of stream data"),
        Scenario::Requests => (REQUESTS, "request"),
        Scenario::Datagrams => (DATAGRAMS, "datagram"),
        Scenario::Handshakes => (HANDSHAKES, "handshake"),
    };
    let goal = all / std::env::args().nth(2).and_then(|share| share.parse().ok()).unwrap_or(1).max(1);
    let mut client = End::new(endpoint(1, None), addresses[1], scenario, goal);
    let mut server = End::new(endpoint(2, Some(server_config)), addresses[0], scenario, goal);

    let mut now = Instant::from_millis(1000);
    let mut turns = 0_u64;
    while server.done < goal {
        if client.connection.is_none() && client.endpoint.open_connections() == 0 {
            client.endpoint.connect(now, &client_config, addresses[1], "server.test").expect("a valid name");
        }
        // Connections are the subject of one scenario; elsewhere they are there before the count begins.
        let counts = scenario == Scenario::Handshakes || client.connection.is_some();
        if counts {
            client_turn(&mut client, now)
        } else {
            client.turn(now, client_acts)
        }
        server.inbox.append(&mut client.outbox);
        now += DELAY;
        if counts {
            server_turn(&mut server, now)
        } else {
            server.turn(now, server_acts)
        }
        client.inbox.append(&mut server.outbox);
        now += DELAY;
        // Losses wait for timers now and then.
        if client.inbox.is_empty() {
            let next = [&client, &server].into_iter().filter_map(|end| end.endpoint.poll_timeout()).map(|t| t.0).min();
            now = now.max(next.unwrap_or(now));
        }
        turns += 1;
        assert!(turns < 10_000_000, "the scenario does not end");
    }
    let units = if matches!(scenario, Scenario::Bulk | Scenario::Lossy) { goal / 1452 } else { goal };
    let per_unit = |end: &End| end.spent.as_nanos() as f64 / units as f64;
    eprintln!("{units} x {unit}: client {:.0} ns, server {:.0} ns each", per_unit(&client), per_unit(&server));
    println!("{{\"units\":{units},\"unit\":\"{unit}\"}}");
}
