//! Cloudflare's quiche on BoringSSL behind [`Peer`]: a stack that shares no line with the others.
//!
//! It reads the clock itself (see `clock`), opens streams by writing to them, and has no events but lists of readable and
//! writable streams; the signals of [`Peer`] are made from those.

use std::{
    collections::{BTreeSet, VecDeque},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use anyhow::{Context, Result};
use boring::{
    pkey::PKey,
    ssl::{SslContextBuilder, SslMethod, SslSignatureAlgorithm, SslVerifyMode},
    x509::{X509, store::X509StoreBuilder},
};
use bytes::BytesMut;
use quiche::{Config, Connection, ConnectionId, Error, Header, RecvInfo, Shutdown};
use units::Instant;

use crate::{
    clock,
    peer::{
        ALPN, Closed, Congestion, Dir, Peer, Read, Refusal, SERVER_NAME, Settings, Side, Signal, Write, stream_id,
        stream_kind,
    },
};

const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 4433);
const OTHER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4433);
/// Length of the connection IDs this end chooses.
const ID_LEN: usize = 16;
/// The largest datagram it sends.
const MAX_DATAGRAM: usize = 1_350;

/// Streams granted beyond what the run asks for, as many as a run has. quiche 0.30 does not grant a new one for a stream that
/// it stopped and that was then reset.
const MORE_STREAMS: u64 = 40;

/// One endpoint and its connection.
struct Quiche {
    side: Side,
    config: Config,
    connection: Option<Connection>,
    /// The connection ID this end starts with; from the run's seed.
    id: [u8; ID_LEN],
    /// Server: the ID by which the client first called it.
    first_id: Vec<u8>,
    origin: std::time::Instant,
    signals: VecDeque<Signal>,
    connected: bool,
    closed: bool,
    closed_here: bool,
    /// Streams of one's own opened so far, per direction.
    opened: [u64; 2],
    /// An `open` was refused, per direction.
    wanted: [bool; 2],
    /// Streams of the other end that were seen and not yet accepted.
    waiting: [VecDeque<u64>; 2],
    seen: BTreeSet<u64>,
    /// Streams this end sends on and has not ended. quiche lists a stopped stream as writable only if it was not writable
    /// before, so each is asked.
    sending: BTreeSet<u64>,
    /// Streams whose last bytes were handed out together with the end.
    finished: BTreeSet<u64>,
}

/// One end of a connection.
pub(super) fn peer(side: Side, settings: &Settings) -> Result<Box<dyn Peer>> {
    let origin = clock::instant(Instant::ZERO);
    let mut config = config(side, settings)?;
    let mut id = [0; ID_LEN];
    id.copy_from_slice(&settings.seed[..ID_LEN]);
    let connection = match side {
        Side::Client => {
            let scid = ConnectionId::from_ref(&id);
            Some(quiche::connect(Some(SERVER_NAME), &scid, HERE, OTHER, &mut config).context("connect")?)
        }
        Side::Server => None,
    };
    Ok(Box::new(Quiche {
        side,
        config,
        connection,
        id,
        first_id: vec![],
        origin,
        signals: VecDeque::new(),
        connected: false,
        closed: false,
        closed_here: false,
        opened: [0; 2],
        wanted: [false; 2],
        waiting: [VecDeque::new(), VecDeque::new()],
        seen: BTreeSet::new(),
        sending: BTreeSet::new(),
        finished: BTreeSet::new(),
    }))
}

fn config(side: Side, settings: &Settings) -> Result<Config> {
    let mut tls = SslContextBuilder::new(SslMethod::tls())?;
    // BoringSSL signs with Ed25519 when the key is one, but accepts it only from those who ask for it.
    tls.set_verify_algorithm_prefs(&[SslSignatureAlgorithm::ED25519])?;
    match side {
        Side::Client => {
            let mut roots = X509StoreBuilder::new()?;
            roots.add_cert(X509::from_der(&settings.identity.root)?)?;
            tls.set_cert_store_builder(roots);
            tls.set_verify(SslVerifyMode::PEER);
        }
        Side::Server => {
            let mut chain = settings.identity.chain.iter().map(|der| X509::from_der(der));
            let leaf = chain.next().context("the chain has a leaf")??;
            tls.set_certificate(&leaf)?;
            for certificate in chain {
                tls.add_extra_chain_cert(certificate?)?;
            }
            let key = PKey::private_key_from_der(&settings.identity.key)?;
            tls.set_private_key(&key)?;
        }
    }
    tls.set_curves_list(if settings.post_quantum { "X25519MLKEM768:X25519" } else { "X25519:P-256" })?;
    let mut config = Config::with_boring_ssl_ctx_builder(quiche::PROTOCOL_VERSION, tls)?;
    config.set_application_protos(&[ALPN])?;
    config.verify_peer(side == Side::Client);
    config.set_max_idle_timeout(u64::try_from(settings.idle_timeout.as_millis())?);
    config.set_max_recv_udp_payload_size(1_472);
    config.set_max_send_udp_payload_size(MAX_DATAGRAM);
    config.discover_pmtu(settings.congestion.is_none());
    if let Some(congestion) = settings.congestion {
        config.set_cc_algorithm(match congestion {
            Congestion::Cubic => quiche::CongestionControlAlgorithm::CUBIC,
            Congestion::NewReno => quiche::CongestionControlAlgorithm::Reno,
            Congestion::Bbr => quiche::CongestionControlAlgorithm::Bbr2Gcongestion,
        });
    }
    config.enable_pacing(false);
    config.set_initial_max_data(settings.connection_window);
    config.set_initial_max_stream_data_bidi_local(settings.stream_window);
    config.set_initial_max_stream_data_bidi_remote(settings.stream_window);
    config.set_initial_max_stream_data_uni(settings.stream_window);
    config.set_initial_max_streams_bidi(settings.streams + MORE_STREAMS);
    config.set_initial_max_streams_uni(settings.streams + MORE_STREAMS);
    Ok(config)
}

impl Quiche {
    fn live(&mut self) -> Result<&mut Connection, Refusal> {
        self.connection.as_mut().ok_or_else(|| "there is no connection".into())
    }

    /// A datagram for a server without a connection.
    fn first(&mut self, datagram: &mut [u8]) {
        let Ok(header) = Header::from_slice(datagram, ID_LEN) else { return };
        if header.ty != quiche::Type::Initial || header.version != quiche::PROTOCOL_VERSION {
            return;
        }
        let first_id = header.dcid.to_vec();
        let scid = ConnectionId::from_ref(&self.id);
        let Ok(mut connection) = quiche::accept(&scid, None, HERE, OTHER, &mut self.config) else { return };
        let info = RecvInfo { from: OTHER, to: HERE };
        let taken = connection.recv(datagram, info).is_ok();
        // A corrupted datagram leaves a connection whose keys come from a connection ID nobody chose: forget it.
        if taken && connection.stats().recv > 0 {
            self.first_id = first_id;
            self.connection = Some(connection);
        }
    }

    /// Turns what has become possible into signals.
    fn settle(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        if !self.connected && connection.is_established() {
            self.connected = true;
            self.signals.push_back(Signal::Connected);
        }
        while let Some(id) = connection.stream_readable_next() {
            let (initiator, dir) = stream_kind(id);
            if initiator != self.side && self.seen.insert(id) {
                self.waiting[dir as usize].push_back(id);
                self.signals.push_back(Signal::Opened(dir));
            }
            self.signals.push_back(Signal::Readable(id));
        }
        while let Some(id) = connection.stream_writable_next() {
            if self.sending.contains(&id) {
                self.signals.push_back(Signal::Writable(id));
            }
        }
        self.sending.retain(|&id| match connection.stream_capacity(id) {
            Err(Error::StreamStopped(code)) => {
                self.signals.push_back(Signal::Stopped { id, code: Some(code) });
                false
            }
            // Stopped and forgotten within one datagram, together with the code: nothing else ends an open stream.
            Err(Error::InvalidStreamState(_)) => {
                self.signals.push_back(Signal::Stopped { id, code: None });
                false
            }
            _ => true,
        });
        for dir in [Dir::Bi, Dir::Uni] {
            let left = match dir {
                Dir::Bi => connection.peer_streams_left_bidi(),
                Dir::Uni => connection.peer_streams_left_uni(),
            };
            if self.wanted[dir as usize] && left > 0 {
                self.wanted[dir as usize] = false;
                self.signals.push_back(Signal::StreamsAvailable(dir));
            }
        }
        if !self.closed && !self.closed_here {
            let closed = if connection.is_timed_out() {
                Closed::Idle
            } else if let Some(error) = connection.peer_error() {
                if error.is_app {
                    Closed::ByPeer { code: error.error_code, reason: error.reason.clone() }
                } else {
                    let reason = String::from_utf8_lossy(&error.reason);
                    Closed::Error(format!("the other end's stack gave up: {:#x} {reason}", error.error_code))
                }
            } else if let Some(error) = connection.local_error() {
                let reason = String::from_utf8_lossy(&error.reason);
                Closed::Error(format!("error found here: {:#x} {reason}", error.error_code))
            } else if connection.is_closed() {
                Closed::Reset
            } else {
                return;
            };
            self.closed = true;
            self.signals.push_back(Signal::Closed(closed));
        }
    }
}

impl Peer for Quiche {
    fn receive(&mut self, now: Instant, mut datagram: BytesMut) {
        clock::set(now);
        match &mut self.connection {
            None if self.side == Side::Server => self.first(&mut datagram),
            None => {}
            Some(connection) => {
                // What a server's table of connection IDs would do: others' datagrams do not reach the connection.
                let Ok(header) = Header::from_slice(&mut datagram, ID_LEN) else { return };
                if connection.source_ids().any(|id| *id == header.dcid) || header.dcid.as_ref() == self.first_id {
                    let _ = connection.recv(&mut datagram, RecvInfo { from: OTHER, to: HERE });
                }
            }
        }
        self.settle();
    }

    fn deadline(&mut self) -> Option<(Instant, &'static str)> {
        let at = self.connection.as_ref()?.timeout_instant()?;
        let nanos = at.saturating_duration_since(self.origin).as_nanos();
        Some((Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)), "the connection's timer"))
    }

    fn expire(&mut self, now: Instant) {
        clock::set(now);
        if let Some(connection) = &mut self.connection {
            connection.on_timeout();
        }
        self.settle();
    }

    fn transmit(&mut self, now: Instant, out: &mut Vec<BytesMut>) {
        clock::set(now);
        let Some(connection) = &mut self.connection else { return };
        let mut buffer = [0; 1_500];
        while let Ok((size, _)) = connection.send(&mut buffer) {
            out.push(BytesMut::from(&buffer[..size]));
        }
        self.settle();
    }

    fn signal(&mut self) -> Option<Signal> {
        self.settle();
        self.signals.pop_front()
    }

    fn gone(&self) -> bool {
        self.connection.as_ref().map_or(self.side == Side::Client, Connection::is_closed)
    }

    fn open(&mut self, dir: Dir) -> Option<u64> {
        let id = stream_id(self.side, dir, self.opened[dir as usize]);
        let connection = self.connection.as_mut()?;
        match connection.stream_send(id, &[], false) {
            Ok(_) | Err(Error::Done) => {
                self.opened[dir as usize] += 1;
                self.sending.insert(id);
                Some(id)
            }
            Err(_) => {
                self.wanted[dir as usize] = true;
                None
            }
        }
    }

    fn accept(&mut self, dir: Dir) -> Option<u64> {
        let id = self.waiting[dir as usize].pop_front()?;
        if dir == Dir::Bi {
            self.sending.insert(id);
        }
        Some(id)
    }

    fn write(&mut self, id: u64, data: &[u8]) -> Result<Write, Refusal> {
        match self.live()?.stream_send(id, data, false) {
            Ok(0) | Err(Error::Done) => Ok(Write::Blocked),
            Ok(taken) => Ok(Write::Taken(taken)),
            Err(Error::StreamStopped(code)) => Ok(Write::Stopped(Some(code))),
            Err(Error::InvalidStreamState(_)) if self.sending.contains(&id) => Ok(Write::Stopped(None)),
            Err(other) => Err(format!("{other:?}")),
        }
    }

    fn finish(&mut self, id: u64) -> Result<(), Refusal> {
        self.sending.remove(&id);
        match self.live()?.stream_send(id, &[], true) {
            Ok(_) => Ok(()),
            Err(other) => Err(format!("{other:?}")),
        }
    }

    fn reset(&mut self, id: u64, code: u64) -> Result<(), Refusal> {
        self.sending.remove(&id);
        self.live()?.stream_shutdown(id, Shutdown::Write, code).map_err(|error| format!("{error:?}"))
    }

    fn stop_sending(&mut self, id: u64, code: u64) -> Result<(), Refusal> {
        self.live()?.stream_shutdown(id, Shutdown::Read, code).map_err(|error| format!("{error:?}"))
    }

    fn read(&mut self, id: u64, buffer: &mut [u8]) -> Result<Read, Refusal> {
        if self.finished.contains(&id) {
            return Ok(Read::Finished);
        }
        match self.live()?.stream_recv(id, buffer) {
            Ok((0, true)) => Ok(Read::Finished),
            Ok((0, false)) | Err(Error::Done | Error::InvalidStreamState(_)) => Ok(Read::Blocked),
            Ok((len, finished)) => {
                if finished {
                    self.finished.insert(id);
                }
                Ok(Read::Data(len))
            }
            Err(Error::StreamReset(code)) => Ok(Read::Reset(code)),
            Err(other) => Err(format!("{other:?}")),
        }
    }

    fn update_keys(&mut self) -> bool {
        false
    }

    fn key_updates(&self) -> Option<u64> {
        None
    }

    fn close(&mut self, now: Instant, code: u64, reason: &[u8]) {
        clock::set(now);
        self.closed_here = true;
        if let Some(connection) = &mut self.connection {
            let _ = connection.close(true, code, reason);
        }
    }
    fn figures(&self) -> String {
        let Some(connection) = &self.connection else { return String::new() };
        let paths: Vec<_> = connection.path_stats().collect();
        format!("{:?} {paths:?}", connection.stats())
    }
}
