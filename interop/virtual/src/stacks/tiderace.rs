//! Our own transport behind [`Peer`].

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use bytes::{Bytes, BytesMut};
use transport::{
    ClientConfig, CloseReason, Connection, Datagram, Endpoint, EndpointConfig, Event, Handle, Profile, RetryPolicy,
    ServerConfig,
    observe::{Observer, ObserverFactory, Start},
    qlog::QlogWriter,
    streams::{Order, ReadError, StreamEvent, StreamsConfig, WriteError},
    tls::{
        EarlyData,
        rustls_backend::{FixedClock, Identity, KeyExchange, RustlsClient, RustlsServer},
    },
};
use units::{Instant, Seed};

use crate::peer::{ALPN, Closed, Dir, Peer, Read, Refusal, SERVER_NAME, Settings, Side, Signal, Write};

/// The address of the other end. The simulation knows who is meant; the stack needs one that stays the same.
const OTHER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4433);

/// The middle of the certificates' validity, 2030-01-01.
const CLOCK: FixedClock = FixedClock { unix_secs: 1_893_456_000 };

/// One endpoint and its connection.
struct Tiderace {
    endpoint: Endpoint,
    side: Side,
    handle: Option<Handle>,
    signals: VecDeque<Signal>,
    buffer: Vec<u8>,
    log: Option<Log>,
}

/// A qlog in memory, of which the last [`Log::MOST`] bytes or more are kept.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    const MOST: usize = 4 << 20;

    fn bytes(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut kept = self.bytes();
        if kept.len() > 2 * Self::MOST {
            let excess = kept.len() - Self::MOST;
            kept.drain(..excess);
        }
        kept.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One end of a connection.
pub(super) fn peer(side: Side, settings: &Settings) -> Result<Box<dyn Peer>> {
    let profile = Arc::new(Profile {
        streams: StreamsConfig {
            receive_window_stream: settings.stream_window,
            receive_window_connection: settings.connection_window,
            max_streams_bidi: settings.streams,
            max_streams_uni: settings.streams,
            ..StreamsConfig::default()
        },
        idle_timeout: settings.idle_timeout,
        // The network of a run may be worse than what a user would wait for.
        handshake_timeout: settings.idle_timeout * 4,
        ..Profile::default()
    });
    let config = EndpointConfig::from_seed(Seed::from_bytes(settings.seed));
    let log = settings.log.then(Log::default);
    let observe = log.clone().map(|log| -> Arc<dyn ObserverFactory> {
        Arc::new(move |_, start: &Start| -> Option<Box<dyn Observer>> {
            let vantage = start.side.into();
            Some(Box::new(QlogWriter::new(log.clone(), vantage, "virtual interop", start.original_dcid, Instant::ZERO)))
        })
    });
    let groups: &[KeyExchange] =
        if settings.post_quantum { &KeyExchange::ALL } else { &[KeyExchange::X25519, KeyExchange::Secp256r1] };
    let (endpoint, handle) = match side {
        Side::Client => {
            let make = || {
                let builder = RustlsClient::builder()
                    .roots([settings.identity.root.clone()])
                    .alpn(ALPN)
                    .key_exchanges(groups)
                    .clock(Arc::new(CLOCK))
                    .early_data(settings.memory.is_some());
                Ok(builder.build()?)
            };
            let tls = match &settings.memory {
                Some(memory) => memory.keep(side, make)?,
                None => Arc::new(make()?),
            };
            let mut endpoint = Endpoint::new(config, None);
            let client = ClientConfig { observe, ..ClientConfig::new(tls, profile) };
            let handle = endpoint.connect(Instant::ZERO, &client, OTHER, SERVER_NAME)?;
            (endpoint, Some(handle))
        }
        Side::Server => {
            let make = || {
                let identity = Identity::from_der(settings.identity.chain.clone(), settings.identity.key.clone())?;
                let builder = RustlsServer::builder()
                    .identity(identity)
                    .alpn(ALPN)
                    .key_exchanges(groups)
                    .clock(Arc::new(CLOCK))
                    .early_data(settings.memory.is_some());
                Ok(builder.build()?)
            };
            let tls = match &settings.memory {
                Some(memory) => memory.keep(side, make)?,
                None => Arc::new(make()?),
            };
            let server = ServerConfig { retry: RetryPolicy::Never, observe, ..ServerConfig::new(tls, profile) };
            (Endpoint::new(config, Some(Arc::new(server))), None)
        }
    };
    Ok(Box::new(Tiderace { endpoint, side, handle, signals: VecDeque::new(), buffer: vec![0; 64 * 1500], log }))
}

fn to_wire(dir: Dir) -> wire::Dir {
    match dir {
        Dir::Bi => wire::Dir::Bi,
        Dir::Uni => wire::Dir::Uni,
    }
}

fn from_wire(dir: wire::Dir) -> Dir {
    match dir {
        wire::Dir::Bi => Dir::Bi,
        wire::Dir::Uni => Dir::Uni,
    }
}

fn closed(reason: CloseReason) -> Closed {
    match reason {
        CloseReason::PeerApplication { code, reason } => Closed::ByPeer { code, reason: reason.to_vec() },
        CloseReason::IdleTimeout | CloseReason::HandshakeTimeout => Closed::Idle,
        CloseReason::Reset => Closed::Reset,
        other => Closed::Error(other.to_string()),
    }
}

impl Tiderace {
    fn connection(&mut self) -> Option<&mut Connection> {
        self.endpoint.connection_mut(self.handle?)
    }

    fn needed(&mut self) -> Result<&mut Connection, Refusal> {
        self.connection().ok_or_else(|| "there is no connection".to_owned())
    }

    /// Carries what the endpoint has to say to `signals`.
    fn settle(&mut self) {
        while let Some(handle) = self.endpoint.poll_accept() {
            self.handle.get_or_insert(handle);
        }
        while let Some((_, event)) = self.endpoint.poll_event() {
            let signal = match event {
                Event::Connected => Signal::Connected,
                Event::Stream(event) => match event {
                    StreamEvent::Opened { dir } => Signal::Opened(from_wire(dir)),
                    StreamEvent::Readable { id } => Signal::Readable(id.0),
                    StreamEvent::Writable { id } => Signal::Writable(id.0),
                    StreamEvent::Stopped { id, code } => Signal::Stopped { id: id.0, code: Some(code) },
                    StreamEvent::StreamsAvailable { dir } => Signal::StreamsAvailable(from_wire(dir)),
                    StreamEvent::Finished { .. } => continue,
                },
                Event::Closed(CloseReason::ThisApplication { .. }) => continue,
                Event::Closed(reason) => Signal::Closed(closed(reason)),
                _ => continue,
            };
            self.signals.push_back(signal);
        }
    }
}

impl Peer for Tiderace {
    fn receive(&mut self, now: Instant, datagram: BytesMut) {
        self.endpoint.handle_datagram(
            now,
            Datagram {
                remote: OTHER,
                local: None,
                ecn: None,
                received_at: now,
                segment_size: datagram.len(),
                payload: datagram,
            },
        );
        self.settle();
    }

    fn deadline(&mut self) -> Option<(Instant, &'static str)> {
        self.endpoint.poll_timeout().map(|(at, _, timer)| (at, timer.name()))
    }

    fn expire(&mut self, now: Instant) {
        self.endpoint.handle_timeout(now);
        self.settle();
    }

    fn transmit(&mut self, now: Instant, out: &mut Vec<BytesMut>) {
        while let Some(transmit) = self.endpoint.poll_transmit(now, &mut self.buffer) {
            out.extend(self.buffer[..transmit.len].chunks(transmit.segment_size).map(BytesMut::from));
        }
        self.settle();
    }

    fn signal(&mut self) -> Option<Signal> {
        self.signals.pop_front()
    }

    fn gone(&self) -> bool {
        let over = self.handle.is_some_and(|handle| self.endpoint.connection(handle).is_none());
        over || (self.side == Side::Client && self.handle.is_none())
    }

    fn open(&mut self, dir: Dir) -> Option<u64> {
        self.connection()?.open(to_wire(dir)).map(|id| id.0)
    }

    fn open_early(&mut self, dir: Dir) -> Option<u64> {
        self.connection()?.open_early(to_wire(dir)).map(|id| id.0)
    }

    fn early_accepted(&self) -> Option<bool> {
        match self.endpoint.connection(self.handle?)?.early_data() {
            EarlyData::Accepted => Some(true),
            EarlyData::Rejected => Some(false),
            EarlyData::None | EarlyData::Offered => None,
        }
    }

    fn accept(&mut self, dir: Dir) -> Option<u64> {
        self.connection()?.accept(to_wire(dir)).map(|id| id.0)
    }

    fn write(&mut self, id: u64, data: &[u8]) -> Result<Write, Refusal> {
        let mut data = Bytes::copy_from_slice(data);
        match self.needed()?.write(wire::StreamId(id), &mut data) {
            Ok(taken) => Ok(Write::Taken(taken)),
            Err(WriteError::Blocked) => Ok(Write::Blocked),
            Err(WriteError::Stopped(code)) => Ok(Write::Stopped(Some(code))),
            Err(other) => Err(other.to_string()),
        }
    }

    fn finish(&mut self, id: u64) -> Result<(), Refusal> {
        self.needed()?.finish(wire::StreamId(id)).map_err(|e| e.to_string())
    }

    fn reset(&mut self, id: u64, code: u64) -> Result<(), Refusal> {
        self.needed()?.reset(wire::StreamId(id), code).map_err(|e| e.to_string())
    }

    fn stop_sending(&mut self, id: u64, code: u64) -> Result<(), Refusal> {
        self.needed()?.stop_sending(wire::StreamId(id), code).map_err(|e| e.to_string())
    }

    fn read(&mut self, id: u64, buffer: &mut [u8]) -> Result<Read, Refusal> {
        match self.needed()?.read(wire::StreamId(id), buffer.len(), Order::Ordered) {
            Ok(Some(chunk)) => {
                buffer[..chunk.data.len()].copy_from_slice(&chunk.data);
                Ok(Read::Data(chunk.data.len()))
            }
            Ok(None) => Ok(Read::Finished),
            Err(ReadError::Reset(code)) => Ok(Read::Reset(code)),
            Err(ReadError::Blocked) => Ok(Read::Blocked),
            Err(other) => Err(other.to_string()),
        }
    }

    fn update_keys(&mut self) -> bool {
        if let Some(connection) = self.connection() {
            connection.update_keys();
        }
        true
    }

    fn key_updates(&self) -> Option<u64> {
        Some(self.endpoint.connection(self.handle?)?.stats().key_updates)
    }

    fn close(&mut self, now: Instant, code: u64, reason: &[u8]) {
        if let Some(connection) = self.connection() {
            connection.close(now, code, reason);
        }
    }
    fn figures(&self) -> String {
        self.handle
            .and_then(|handle| self.endpoint.connection(handle))
            .map_or_else(String::new, |connection| format!("{:?}", connection.stats()))
    }

    fn log(&self) -> Vec<u8> {
        self.log.as_ref().map_or_else(Vec::new, |log| log.bytes().clone())
    }
}
