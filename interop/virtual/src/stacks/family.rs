//! quinn-proto and noq-proto behind [`Peer`]. Compiled once inside each of the two modules, which say what `proto` is.

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, LazyLock},
};

use anyhow::{Context, Result};
use bytes::BytesMut;
use units::Instant;

use super::{bbr, client_crypto, endpoint, handle, poll_transmit, proto, server_crypto, shown};
use crate::peer::{Closed, Congestion, Dir, Peer, Read, Refusal, SERVER_NAME, Settings, Side, Signal, Write};

/// The address of the other end. The simulation knows who is meant; the stack needs one that stays the same.
pub(super) const OTHER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4433);

/// Initial congestion window in bytes.
const INITIAL_WINDOW: u64 = 100_000;

/// The system's instant that stands for the origin of virtual time.
static ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

/// One endpoint and its connection.
pub(super) struct Family {
    endpoint: proto::Endpoint,
    server: bool,
    connection: Option<(proto::ConnectionHandle, proto::Connection)>,
    /// CRYPTO frames that had been sent when the handshake was complete.
    crypto_frames_before: Option<u64>,
    /// CRYPTO frames that have been sent.
    crypto_frames: u64,
    /// Datagrams the endpoint answered by itself: Version Negotiation, refusal, stateless reset.
    responses: Vec<BytesMut>,
    signals: VecDeque<Signal>,
    /// Buffer for datagrams.
    buffer: Vec<u8>,
}

/// Virtual time as the stack's instant.
fn to_std(now: Instant) -> std::time::Instant {
    *ORIGIN + std::time::Duration::from_nanos(now.as_nanos())
}

fn varint(value: u64) -> proto::VarInt {
    proto::VarInt::from_u64(value).unwrap_or(proto::VarInt::MAX)
}

fn stream(id: u64) -> proto::StreamId {
    proto::StreamId::from(varint(id))
}

fn number(id: proto::StreamId) -> u64 {
    proto::VarInt::from(id).into_inner()
}

fn direction(dir: Dir) -> proto::Dir {
    match dir {
        Dir::Bi => proto::Dir::Bi,
        Dir::Uni => proto::Dir::Uni,
    }
}

impl Family {
    pub(super) fn new(side: Side, settings: &Settings) -> Result<Self> {
        let mut config = proto::EndpointConfig::default();
        config.rng_seed(Some(settings.seed));
        let mut transport = proto::TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(varint(settings.streams))
            .max_concurrent_uni_streams(varint(settings.streams))
            .stream_receive_window(varint(settings.stream_window))
            .receive_window(varint(settings.connection_window))
            .max_idle_timeout(Some(settings.idle_timeout.try_into()?))
            .datagram_receive_buffer_size(None);
        match settings.congestion {
            None => {
                // With the usual window of ten packets a server of this family can wait for ever: when a part of its ServerHello
                // is lost while Handshake packets fill the window, it probes with Handshake packets only, which the client cannot
                // read and so never acknowledges, and "blocked by congestion control" keeps the lost part back.
                let mut congestion = proto::congestion::CubicConfig::default();
                congestion.initial_window(INITIAL_WINDOW);
                transport.congestion_controller_factory(Arc::new(congestion));
            }
            Some(congestion) => {
                transport.mtu_discovery_config(None);
                match congestion {
                    Congestion::Cubic => {
                        transport.congestion_controller_factory(Arc::new(proto::congestion::CubicConfig::default()))
                    }
                    Congestion::NewReno => {
                        transport.congestion_controller_factory(Arc::new(proto::congestion::NewRenoConfig::default()))
                    }
                    Congestion::Bbr => transport.congestion_controller_factory(Arc::new(bbr())),
                };
            }
        }
        let transport = Arc::new(transport);

        let mut server_config = None;
        if side == Side::Server {
            let mut config = proto::ServerConfig::with_crypto(server_crypto(settings)?);
            config.transport_config(transport.clone());
            server_config = Some(Arc::new(config));
        }
        let mut endpoint = endpoint(Arc::new(config), server_config);
        let mut connection = None;
        if side == Side::Client {
            let mut config = proto::ClientConfig::new(client_crypto(settings)?);
            config.transport_config(transport);
            let connected = endpoint.connect(to_std(Instant::ZERO), config, OTHER, SERVER_NAME).context("connect")?;
            connection = Some(connected);
        }
        Ok(Self {
            endpoint,
            server: side == Side::Server,
            connection,
            crypto_frames_before: None,
            crypto_frames: 0,
            responses: vec![],
            signals: VecDeque::new(),
            buffer: vec![],
        })
    }

    /// Carries events between endpoint and connection, and those for the application to `signals`.
    fn settle(&mut self) {
        let Some((handle, connection)) = &mut self.connection else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(answer);
            }
        }
        while let Some(event) = connection.poll() {
            let signal = match event {
                proto::Event::Connected => {
                    self.crypto_frames_before = Some(connection.stats().frame_tx.crypto);
                    Signal::Connected
                }
                proto::Event::ConnectionLost { reason } => Signal::Closed(closed(reason)),
                proto::Event::Stream(event) => match event {
                    proto::StreamEvent::Opened { dir } => Signal::Opened(back(dir)),
                    proto::StreamEvent::Readable { id } => Signal::Readable(number(id)),
                    proto::StreamEvent::Writable { id } => Signal::Writable(number(id)),
                    proto::StreamEvent::Stopped { id, error_code } => {
                        Signal::Stopped { id: number(id), code: Some(error_code.into_inner()) }
                    }
                    proto::StreamEvent::Available { dir } => Signal::StreamsAvailable(back(dir)),
                    proto::StreamEvent::Finished { .. } => continue,
                },
                _ => continue,
            };
            self.signals.push_back(signal);
        }
    }

    fn accept_connection(&mut self, now: std::time::Instant, incoming: proto::Incoming) {
        if self.connection.is_some() {
            // A copy of the client's first datagram that came after the connection was made.
            self.endpoint.ignore(incoming);
            return;
        }
        let mut response = vec![];
        match self.endpoint.accept(incoming, now, &mut response, None) {
            Ok(accepted) => self.connection = Some(accepted),
            // Not a QUIC Initial after all: corrupted on the way. The real one will be retransmitted.
            Err(error) => {
                if let Some(transmit) = error.response {
                    response.truncate(transmit.size);
                    self.responses.push(BytesMut::from(response.as_slice()));
                }
            }
        }
    }

    fn live(&mut self) -> Result<&mut proto::Connection, Refusal> {
        self.connection.as_mut().map(|(_, connection)| connection).ok_or_else(|| "there is no connection".into())
    }
}

fn back(dir: proto::Dir) -> Dir {
    match dir {
        proto::Dir::Bi => Dir::Bi,
        proto::Dir::Uni => Dir::Uni,
    }
}

fn closed(reason: proto::ConnectionError) -> Closed {
    match reason {
        proto::ConnectionError::ApplicationClosed(close) => {
            Closed::ByPeer { code: close.error_code.into_inner(), reason: close.reason.to_vec() }
        }
        proto::ConnectionError::TimedOut => Closed::Idle,
        proto::ConnectionError::Reset => Closed::Reset,
        other => Closed::Error(other.to_string()),
    }
}

impl Peer for Family {
    fn receive(&mut self, now: Instant, datagram: BytesMut) {
        let now = to_std(now);
        let mut response = vec![];
        match handle(&mut self.endpoint, now, datagram, &mut response) {
            Some(proto::DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_event(event);
                }
            }
            Some(proto::DatagramEvent::NewConnection(incoming)) => self.accept_connection(now, incoming),
            Some(proto::DatagramEvent::Response(transmit)) => {
                response.truncate(transmit.size);
                self.responses.push(BytesMut::from(response.as_slice()));
            }
            None => {}
        }
        self.settle();
    }

    fn deadline(&mut self) -> Option<(Instant, &'static str)> {
        let (_, connection) = self.connection.as_mut()?;
        let at = connection.poll_timeout()?;
        let nanos = at.saturating_duration_since(*ORIGIN).as_nanos();
        Some((Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)), "the connection's timer"))
    }

    fn expire(&mut self, now: Instant) {
        if let Some((_, connection)) = &mut self.connection {
            connection.handle_timeout(to_std(now));
        }
        self.settle();
    }

    fn transmit(&mut self, now: Instant, out: &mut Vec<BytesMut>) {
        self.settle();
        out.append(&mut self.responses);
        let Some((_, connection)) = &mut self.connection else { return };
        loop {
            self.buffer.clear();
            let Some(transmit) = poll_transmit(connection, to_std(now), 10, &mut self.buffer) else { break };
            let size = transmit.segment_size.unwrap_or(transmit.size).max(1);
            out.extend(self.buffer[..transmit.size].chunks(size).map(BytesMut::from));
        }
        self.crypto_frames = connection.stats().frame_tx.crypto;
        self.settle();
    }

    fn signal(&mut self) -> Option<Signal> {
        self.settle();
        self.signals.pop_front()
    }

    fn gone(&self) -> bool {
        self.connection.as_ref().map_or(!self.server, |(_, connection)| connection.is_drained())
    }

    fn open(&mut self, dir: Dir) -> Option<u64> {
        self.live().ok()?.streams().open(direction(dir)).map(number)
    }

    fn early_accepted(&self) -> Option<bool> {
        let (_, connection) = self.connection.as_ref()?;
        (!connection.is_handshaking()).then(|| connection.accepted_0rtt())
    }

    fn accept(&mut self, dir: Dir) -> Option<u64> {
        self.live().ok()?.streams().accept(direction(dir)).map(number)
    }

    fn write(&mut self, id: u64, data: &[u8]) -> Result<Write, Refusal> {
        match self.live()?.send_stream(stream(id)).write(data) {
            Ok(taken) => Ok(Write::Taken(taken)),
            Err(proto::WriteError::Blocked) => Ok(Write::Blocked),
            Err(proto::WriteError::Stopped(code)) => Ok(Write::Stopped(Some(code.into_inner()))),
            Err(other) => Err(other.to_string()),
        }
    }

    fn finish(&mut self, id: u64) -> Result<(), Refusal> {
        self.live()?.send_stream(stream(id)).finish().map_err(|error| error.to_string())
    }

    fn reset(&mut self, id: u64, code: u64) -> Result<(), Refusal> {
        self.live()?.send_stream(stream(id)).reset(varint(code)).map_err(|error| error.to_string())
    }

    fn stop_sending(&mut self, id: u64, code: u64) -> Result<(), Refusal> {
        self.live()?.recv_stream(stream(id)).stop(varint(code)).map_err(|error| error.to_string())
    }

    fn read(&mut self, id: u64, buffer: &mut [u8]) -> Result<Read, Refusal> {
        let mut stream = self.live()?.recv_stream(stream(id));
        let mut chunks = match stream.read(true) {
            Ok(chunks) => chunks,
            // Its end was read before.
            Err(proto::ReadableError::ClosedStream) => return Ok(Read::Blocked),
            Err(other) => return Err(other.to_string()),
        };
        let read = match chunks.next(buffer.len()) {
            Ok(Some(chunk)) => {
                buffer[..chunk.bytes.len()].copy_from_slice(&chunk.bytes);
                Read::Data(chunk.bytes.len())
            }
            Ok(None) => Read::Finished,
            Err(proto::ReadError::Blocked) => Read::Blocked,
            Err(proto::ReadError::Reset(code)) => Read::Reset(code.into_inner()),
        };
        let _ = chunks.finalize();
        Ok(read)
    }

    fn update_keys(&mut self) -> bool {
        if let Some((_, connection)) = &mut self.connection {
            connection.force_key_update();
        }
        true
    }

    fn key_updates(&self) -> Option<u64> {
        None
    }

    fn controller(&self) -> Option<String> {
        shown(&self.connection.as_ref()?.1)
    }

    fn crypto_frames_since_complete(&self) -> Option<u64> {
        Some(self.crypto_frames - self.crypto_frames_before?)
    }

    fn close(&mut self, now: Instant, code: u64, reason: &[u8]) {
        if let Some((_, connection)) = &mut self.connection {
            connection.close(to_std(now), varint(code), reason.to_vec().into());
        }
    }
}
