//! The gateway with a back end behind it, and a client of HTTP/3 that a program of bytes writes for, past the handshake.
//!
//! Each program has a connection of its own to a gateway that all of them share. What always holds:
//!
//! - no panic,
//! - what is charged to the process stays within the budgets of its connections, and the heap within twice that,
//! - every request whose client has said all ends: in an answer, a reset, or the end of the connection,
//! - the gateway answers an ordinary client afterwards, and gives all memory back.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tiderace::{ClientConfig, Connection, Endpoint, Profile, RustlsClient};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::Runtime,
};

use crate::{
    client::{Client, Reached},
    site::{self, BackEnd, Directory, Site, full, mirror},
};

/// Instructions of a program that are followed, so that each one ends soon.
const STEPS: usize = 1_000;
/// Bytes that a connection may hold: 4 MiB when its windows have grown, 16 KiB for each request, and its size at rest.
const CONNECTION: usize = (4 << 20) + 100 * (16 << 10) + (64 << 10);
/// Bytes that the clients, the back end and the program itself hold beside that.
const OWN: usize = 24 << 20;
/// Bytes of the register of used tokens when it is full: 65,536 with some 113 bytes each, kept until they expire.
const USED_TOKENS: usize = 65_536 * 128;
/// Bytes that may stay after programs: that register, and tables, pools and caches that have grown.
const LEFT: usize = (8 << 20) + USED_TOKENS;
/// Programs after which it is looked at what has stayed.
const ROUND: usize = 200;

/// A gateway, its back end, and a client.
pub(crate) struct Bench {
    // In this order: tasks end before what they use.
    ordinary: Mutex<Option<h3_quic::client::SendRequest>>,
    endpoint: Endpoint,
    config: ClientConfig,
    site: Site,
    _back_end: BackEnd,
    _www: Directory,
    base: usize,
    programs: AtomicUsize,
    runtime: Runtime,
}

/// Back end that answers by path.
async fn back_end(mut request: Request<Incoming>) -> Response<site::Body> {
    match request.uri().path() {
        "/mirror" => mirror(request).await,
        "/echo" => Response::new(request.into_body().map_err(Into::into).boxed_unsync()),
        "/big" => Response::new(full(vec![b'x'; 200_000])),
        "/late" => std::future::pending().await,
        "/trailers" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", http::HeaderValue::from_static("7"));
            let body = Full::new(Bytes::from_static(b"content")).with_trailers(async move { Some(Ok(trailers)) });
            Response::new(body.map_err(|never: std::convert::Infallible| match never {}).boxed_unsync())
        }
        "/tunnel" => {
            let Some(protocol) = request.headers().get("upgrade").cloned() else { return mirror(request).await };
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let Ok(stream) = upgrade.await else { return };
                let mut stream = TokioIo::new(stream);
                let mut buffer = [0; 4_096];
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    if stream.write_all(&buffer[..length]).await.is_err() {
                        return;
                    }
                }
                let _ = stream.shutdown().await;
            });
            let response = Response::builder().status(101).header("connection", "upgrade").header("upgrade", protocol);
            response.body(full("")).expect("it is right")
        }
        _ => Response::builder().status(404).body(full("none")).expect("it is right"),
    }
}

impl Bench {
    /// Starts all of it; `heap` tells the bytes that are live, if anybody counts them.
    pub(crate) fn new(heap: &dyn Fn() -> usize) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let bench = runtime.block_on(async {
            let www = Directory::new("www-checks");
            www.write("small", vec![b'x'; 1_000]);
            www.write("large", vec![b'y'; 300_000]);
            let back_end = BackEnd::start(back_end).await;
            let to = back_end.url();
            // The machine may be slow: nothing but `/late` is up to time.
            let site = Site::start(
                "checks",
                &format!(
                    "[limits]\nfields = \"8 KiB\"\nconnections-per-address = 100000\n\
                     [[route]]\nto = \"{to}\"\nconnect-timeout = \"1 min\"\ntunnels = [\"websocket\", \"connect-udp\"]\n\
                     [[route]]\npath = \"/late\"\nto = \"{to}\"\ntimeout = \"50 ms\"\nretries = 0\n\
                     [[route]]\npath = \"/files\"\nfiles = \"{}\"\nstrip = true\n",
                    www.0.display()
                ),
            );
            let tls = RustlsClient::builder().roots([site.certificate.clone()]).alpn(b"h3").build().expect("it is right");
            let config = ClientConfig::new(Arc::new(tls), Arc::new(Profile::default()));
            let endpoint = Endpoint::client_for(site.address).expect("a socket");
            (endpoint, config, site, back_end, www)
        });
        let (endpoint, config, site, back_end, www) = bench;
        let mut this = Self {
            ordinary: Mutex::default(),
            endpoint,
            config,
            site,
            _back_end: back_end,
            _www: www,
            base: 0,
            programs: AtomicUsize::new(0),
            runtime,
        };
        // What is made once is there.
        for program in [&[][..], b"\0\x05\0\0"] {
            this.runtime.block_on(this.program(program, heap));
        }
        this.runtime.block_on(this.others_are_served());
        this.base = heap();
        this
    }

    /// Runs a program.
    pub(crate) fn run(&self, program: &[u8], heap: &dyn Fn() -> usize) -> Reached {
        self.runtime.block_on(async {
            let reached = self.program(program, heap).await;
            self.others_are_served().await;
            let programs = self.programs.fetch_add(1, Ordering::Relaxed) + 1;
            if programs.is_multiple_of(ROUND) {
                self.nothing_stays(heap).await;
            }
            reached
        })
    }

    /// Waits until only the ordinary client is left, and looks at what there is.
    pub(crate) async fn nothing_stays(&self, heap: &dyn Fn() -> usize) {
        let connections = || self.site.process.status()["connections"].as_u64().unwrap_or(0);
        let is_idle = || connections() <= 1 && self.held() < 1 << 20 && heap() <= self.base + LEFT;
        let begun = std::time::Instant::now();
        while self.base > 0 && !is_idle() {
            let (held, heap) = (self.held(), heap());
            let waited = begun.elapsed() < site::LIMIT;
            assert!(
                waited,
                "{} connections, {held} bytes charged, {heap} on the heap, {} before",
                connections(),
                self.base
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until nothing has stayed.
    pub(crate) fn rest(&self, heap: &dyn Fn() -> usize) {
        self.runtime.block_on(self.nothing_stays(heap));
    }

    fn held(&self) -> usize {
        self.site.figure("tiderace_edge_memory_bytes{reason=\"held\"}") as usize
    }

    async fn connect(&self) -> Connection {
        let begun = std::time::Instant::now();
        loop {
            let connecting = self.endpoint.connect(&self.config, self.site.address, "localhost").expect("it is right");
            match connecting.await {
                Ok(connection) => return connection,
                Err(reason) => assert!(begun.elapsed() < site::LIMIT, "the gateway takes no connection: {reason}"),
            }
        }
    }

    /// An ordinary client gets its answer, after a connection anew if the last one was idle for too long.
    async fn others_are_served(&self) {
        let before = self.ordinary.lock().expect("one at a time").take();
        let asked = async |mut h3: h3_quic::client::SendRequest| {
            let response = h3.send(site::get("https://localhost/mirror")).await.ok()?;
            assert_eq!(response.status(), 200, "an ordinary request");
            response.into_body().collect().await.ok()?;
            Some(h3)
        };
        let mut served = match before {
            Some(h3) => site::within(asked(h3)).await,
            None => None,
        };
        if served.is_none() {
            let h3 = h3_quic::client::begin(self.connect().await).await.expect("it begins");
            served = site::within(asked(h3)).await;
            assert!(served.is_some(), "an ordinary client gets no answer");
        }
        *self.ordinary.lock().expect("one at a time") = served;
    }

    async fn program(&self, program: &[u8], heap: &dyn Fn() -> usize) -> Reached {
        let quic = self.connect().await;
        let mut client = Client::new(quic, program).await;
        for step in 0..STEPS {
            if !client.step().await {
                break;
            }
            if step % 4 == 3 {
                tokio::task::yield_now().await;
            }
            if step % 64 == 63 {
                self.weigh(heap);
            }
        }
        self.weigh(heap);
        let reached = client.end().await;
        self.weigh(heap);
        reached
    }

    /// Compares the charge with the live heap.
    fn weigh(&self, heap: &dyn Fn() -> usize) {
        let held = self.held();
        // Connections that were over when they were counted may have given nothing back when it was summed up.
        let connections = self.site.process.status()["connections"].as_u64().unwrap_or(0) as usize + 2;
        assert!(held <= connections * CONNECTION, "{held} bytes are charged to {connections} connections");
        let used = heap().saturating_sub(self.base);
        let may = 2 * connections * CONNECTION + OWN;
        assert!(self.base == 0 || used <= may, "{used} bytes on the heap, {held} charged to {connections} connections");
    }
}
