//! Allocations and system calls of a server for each request and each handshake: counts that do not depend on the load of the machine.
//!
//! ```sh
//! cargo run --profile dist -p tiderace --example counts              # all, one JSON line each
//! cargo run --profile dist -p tiderace --example counts -- service   # one of task, one-task, service, full, resumed
//! ```
//!
//! Server and client run on a thread each, over loopback. An allocator counts the allocations (and reallocations) of the server's
//! thread while the second half of the work is done: 100 requests of 100 bytes at a time with answers of 1 KiB on one connection, or one
//! connection after the other. TLS runs on that thread, too.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    net::SocketAddr,
    sync::{Arc, mpsc},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use tiderace::{
    ClientConfig, Connection, Endpoint, EndpointOptions, Handshakes, Identity, Profile, RustlsClient, RustlsServer,
    ServedStream, ServerConfig, Service, SocketStats, transport::tls::rustls_backend::KeyExchange,
};

const REQUESTS: u64 = 20_000;
const CONCURRENT: u64 = 100;
const REQUEST: [u8; 100] = [1; 100];
const ANSWER: [u8; 1024] = [2; 1024];
const HANDSHAKES: u64 = 400;

/// The system's allocator, and how often a thread has used it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

#[expect(unsafe_code, reason = "an allocator is made of unsafe functions")]
// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Work of the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// A task answers each request.
    Task,
    /// One task answers all requests.
    OneTask,
    /// A [`Service`] answers in the pass of the driver.
    Service,
    /// Full handshakes.
    Full,
    /// Resumed handshakes.
    Resumed,
}

impl Work {
    const ALL: [Self; 5] = [Self::Task, Self::OneTask, Self::Service, Self::Full, Self::Resumed];

    fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::OneTask => "one-task",
            Self::Service => "service",
            Self::Full => "full",
            Self::Resumed => "resumed",
        }
    }

    fn is_handshake(self) -> bool {
        matches!(self, Self::Full | Self::Resumed)
    }

    fn units(self) -> u64 {
        if self.is_handshake() { HANDSHAKES } else { REQUESTS }
    }
}

/// Notes the allocations of the server's thread when half and all of the work is done.
struct Meter {
    units: u64,
    done: u64,
    half: u64,
    end: u64,
}

impl Meter {
    fn new(units: u64) -> Self {
        Self { units, done: 0, half: 0, end: 0 }
    }

    fn step(&mut self) {
        self.done += 1;
        if self.done == self.units / 2 {
            self.half = ALLOCATIONS.get();
        } else if self.done == self.units {
            self.end = ALLOCATIONS.get();
        }
    }

    fn is_done(&self) -> bool {
        self.done == self.units
    }

    /// One line: allocations in the second half of the work, system calls in all of it.
    fn print(&self, work: Work, socket: SocketStats) {
        let allocations = (self.end - self.half) as f64 / (self.units - self.units / 2) as f64;
        let per = |calls: u64| calls as f64 / self.units as f64;
        println!(
            "{{\"work\":\"{}\",\"allocations\":{allocations:.2},\"send_calls\":{:.3},\"receive_calls\":{:.3}}}",
            work.name(),
            per(socket.send_calls),
            per(socket.receive_calls),
        );
    }
}

fn main() -> Result<()> {
    let wanted = std::env::args().nth(1);
    let known = |name: &String| Work::ALL.iter().any(|work| work.name() == name);
    ensure!(wanted.as_ref().is_none_or(known), "unknown work\nhint: task, one-task, service, full, resumed");
    for work in Work::ALL.into_iter().filter(|work| wanted.as_ref().is_none_or(|name| work.name() == name)) {
        measure(work)?;
    }
    Ok(())
}

fn measure(work: Work) -> Result<()> {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let cert = certified.cert.der().to_vec();
    let identity = Identity::from_der(vec![cert.clone()], certified.signing_key.serialize_der())?;
    let profile = Arc::new(Profile::default());
    // The key exchange of TCP+TLS in the tables of bench.
    let server = RustlsServer::builder().identity(identity).alpn("test").key_exchanges([KeyExchange::X25519]);
    let server = server.early_data(true).build()?;
    let server = ServerConfig::new(Arc::new(server), profile.clone());
    let client = RustlsClient::builder().roots([cert]).alpn("test").key_exchanges([KeyExchange::X25519]);
    let client = client.early_data(true);
    let client = if work == Work::Resumed { client } else { client.without_resumption() }.build()?;
    let client = ClientConfig::new(Arc::new(client), profile);
    let (tell, told) = mpsc::channel();
    let serving = std::thread::spawn(move || runtime()?.block_on(serve(work, server, &tell)));
    let address = told.recv().context("the server did not start")?;
    runtime()?.block_on(ask(work, client, address))?;
    let (meter, socket) = serving.join().map_err(|_| anyhow::anyhow!("the server failed"))??;
    meter.print(work, socket);
    Ok(())
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

async fn serve(work: Work, config: ServerConfig, tell: &mpsc::Sender<SocketAddr>) -> Result<(Meter, SocketStats)> {
    let options = EndpointOptions { server: Some(config), handshakes: Handshakes::InPlace, ..Default::default() };
    let endpoint = Endpoint::open("127.0.0.1:0".parse()?, options)?;
    let (served, answered) = tokio::sync::oneshot::channel();
    if work == Work::Service {
        let mut answers = Some(Answers { meter: Meter::new(work.units()), served: Some(served) });
        endpoint.serve(|_| answers.take().expect("there is one shard"));
    }
    tell.send(endpoint.local_addr())?;
    let meter = match work {
        Work::Service => answered.await?,
        Work::Task | Work::OneTask => answer_all(&endpoint, work).await?,
        Work::Full | Work::Resumed => accept_all(&endpoint, work).await?,
    };
    endpoint.wait_idle().await;
    Ok((meter, endpoint.socket_stats()))
}

/// Answers the requests of a connection.
async fn answer_all(endpoint: &Endpoint, work: Work) -> Result<Meter> {
    let mut meter = Meter::new(work.units());
    let connection = endpoint.accept().await.context("the endpoint closed")?;
    let mut tasks = tokio::task::JoinSet::new();
    while !meter.is_done() {
        let streams = connection.accept_bi().await?;
        if work == Work::Task {
            tasks.spawn(answer(streams));
            while tasks.try_join_next().is_some() {}
        } else {
            answer(streams).await?;
        }
        meter.step();
    }
    while tasks.join_next().await.is_some() {}
    connection.closed().await;
    Ok(meter)
}

/// Accepts connections with one request each.
async fn accept_all(endpoint: &Endpoint, work: Work) -> Result<Meter> {
    let mut meter = Meter::new(work.units());
    while !meter.is_done() {
        let connection = endpoint.accept().await.context("the endpoint closed")?;
        answer(connection.accept_bi().await?).await?;
        connection.closed().await;
        meter.step();
    }
    Ok(meter)
}

async fn answer((send, mut recv): (tiderace::SendStream, tiderace::RecvStream)) -> Result<()> {
    let mut bytes = 0;
    while let Some(chunk) = recv.read_chunk(usize::MAX).await? {
        bytes += chunk.len();
    }
    ensure!(bytes == REQUEST.len(), "{bytes} bytes are no request");
    Ok(send.write_last(Bytes::from_static(&ANSWER)).await?)
}

/// Answers whole requests.
struct Answers {
    meter: Meter,
    /// Gets the counts when all requests are answered.
    served: Option<tokio::sync::oneshot::Sender<Meter>>,
}

impl Service for Answers {
    /// Bytes of the request so far.
    type Stream = usize;

    fn stream(&mut self, stream: &mut ServedStream<'_>, kept: &mut Option<usize>) {
        let bytes = kept.get_or_insert(0);
        match stream.read(|chunk| *bytes += chunk.len()) {
            Ok(true) => {
                assert_eq!(*bytes, REQUEST.len());
                let taken = stream.write_last(&mut Bytes::from_static(&ANSWER)).expect("the client wants its answer");
                assert!(taken, "the send buffer has room for all answers");
                self.meter.step();
                if self.meter.is_done()
                    && let Some(served) = self.served.take()
                {
                    let Meter { units, done, half, end } = self.meter;
                    let _ = served.send(Meter { units, done, half, end });
                }
            }
            Ok(false) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn ask(work: Work, config: ClientConfig, server: SocketAddr) -> Result<()> {
    let endpoint = Endpoint::client_for(server)?;
    if work.is_handshake() {
        for _ in 0..work.units() {
            let connecting = endpoint.connect(&config, server, "localhost")?;
            let connection = match connecting.into_early() {
                Ok(connection) => connection,
                Err(connecting) => connecting.await?,
            };
            request(&connection).await?;
            connection.established().await?;
            connection.close(0, b"");
        }
        endpoint.wait_idle().await;
        return Ok(());
    }
    let connection = endpoint.connect(&config, server, "localhost")?.await?;
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..CONCURRENT {
        let connection = connection.clone();
        asking.spawn(async move {
            for _ in 0..REQUESTS / CONCURRENT {
                request(&connection).await?;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked??;
    }
    connection.close(0, b"");
    endpoint.wait_idle().await;
    Ok(())
}

async fn request(connection: &Connection) -> Result<()> {
    let (send, mut recv) = connection.open_bi_early().await?;
    send.write_last(Bytes::from_static(&REQUEST)).await?;
    ensure!(recv.read_to_end(usize::MAX).await? == ANSWER, "the answer is wrong");
    Ok(())
}
