//! A peer whose every packet is made by hand: it has the keys of the connection, and says whatever a test wants.
//!
//! The handshake is the toy of `transport::tls::testing`, so that a test can stop it anywhere.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use sim::{client_address, server_address};
use transport::{
    ClientConfig, Code, Endpoint, Event, Handle, PathId, Profile, ServerConfig,
    crypto::{Labels, TAG_LEN},
    crypto_stream::CryptoStream,
    keys::{KeyLimits, Keys},
    tls::{ClientTls, Level, ServerTls, Session, TlsEvent, testing::Toy},
};
use units::{Duration, Instant};
use wire::{Ack, ConnectionId, Frame, Frames, Header, LongHeader, LongType, Side, TransportParameters, Writer};

use super::{client_endpoint, direct, server_endpoint};

/// The levels with CRYPTO streams, in the order in which their state is kept.
pub const LEVELS: [Level; 3] = [Level::Initial, Level::Handshake, Level::OneRtt];

fn place(level: Level) -> usize {
    LEVELS.iter().position(|&l| l == level).expect("a level with packets of its own")
}

/// The frames, one after the other.
pub fn bytes(frames: &[Frame<'_>]) -> Vec<u8> {
    let mut buffer = vec![0; frames.iter().map(Frame::encoded_len).sum()];
    let mut w = Writer::new(&mut buffer);
    frames.iter().for_each(|frame| frame.encode(&mut w));
    buffer
}

/// An ACK frame for these packet numbers.
pub fn ack(numbers: &BTreeSet<u64>) -> Vec<u8> {
    let mut ranges: Vec<std::ops::RangeInclusive<u64>> = Vec::new();
    for &pn in numbers.iter().rev() {
        match ranges.last_mut() {
            Some(last) if *last.start() == pn + 1 => *last = pn..=*last.end(),
            _ => ranges.push(pn..=pn),
        }
    }
    let mut buffer = vec![0; 1100];
    let mut w = Writer::new(&mut buffer);
    let count = ranges.len();
    Ack::encode(&mut w, 0, ranges.into_iter(), count, None, 1100);
    let len = w.position();
    buffer.truncate(len);
    buffer
}

/// A packet with a long header, sealed.
pub fn seal_long(
    keys: &mut Keys,
    level: Level,
    dcid: ConnectionId,
    scid: ConnectionId,
    pn: u64,
    payload: &[u8],
) -> Vec<u8> {
    let ty = if level == Level::Initial { LongType::Initial } else { LongType::Handshake };
    let header = LongHeader { ty, version: 1, dcid, scid };
    let mut packet = vec![0; header.encoded_len(0, 4) + payload.len() + TAG_LEN];
    let mut w = Writer::new(&mut packet);
    let pos = header.encode(&mut w, &[], pn, 4);
    w.bytes(payload);
    let end = packet.len();
    wire::patch_length(&mut packet, &pos, end);
    keys.seal_long(level, &mut packet, pos.pn_offset, pn).unwrap();
    packet
}

/// The puppet, and the endpoint that it talks to.
pub struct Puppet {
    pub victim: Endpoint,
    pub handle: Option<Handle>,
    pub now: Instant,
    pub side: Side,
    pub keys: Keys,
    pub dcid: ConnectionId,
    pub scid: ConnectionId,
    pub next_pn: [u64; 3],
    /// Packet numbers that the victim has used.
    pub seen: [BTreeSet<u64>; 3],
    /// Payloads of the victim's packets.
    pub received: Vec<(Level, Vec<u8>)>,
    pub events: Vec<Event>,
    /// Source address of the puppet's datagrams.
    pub address: SocketAddr,
    /// Local address that the victim is given with datagrams.
    pub local: Option<IpAddr>,
    session: Box<dyn Session>,
    crypto: [CryptoStream; 3],
}

/// Generous limits.
fn parameters(scid: ConnectionId) -> TransportParameters {
    TransportParameters {
        initial_source_cid: Some(scid),
        initial_max_data: 1 << 30,
        initial_max_stream_data_bidi_local: 1 << 30,
        initial_max_stream_data_bidi_remote: 1 << 30,
        initial_max_stream_data_uni: 1 << 30,
        initial_max_streams_bidi: 10,
        initial_max_streams_uni: 10,
        max_datagram_frame_size: 65_535,
        active_connection_id_limit: 8,
        max_idle_timeout_ms: 60_000,
        ..TransportParameters::default()
    }
}

impl Puppet {
    /// A client, against a server. `change` edits its encoded parameters.
    pub fn client(profile: &Profile, change: impl FnOnce(&mut TransportParameters, &mut Vec<u8>)) -> Self {
        let config = ServerConfig::new(Arc::new(Toy::default()), Arc::new(profile.clone()));
        let (dcid, scid) = (ConnectionId::new(&[0xdc; 8]).unwrap(), ConnectionId::new(&[0x5c; 8]).unwrap());
        let raw = encoded(scid, Side::Client, None, change);
        let session = ClientTls::start(&Toy::default(), 1, "toy.test", raw).unwrap();
        Self::new(server_endpoint(1, config), Side::Client, session, dcid, dcid, scid)
    }

    /// A server, against a client that has sent its first flight.
    pub fn server(profile: &Profile, change: impl FnOnce(&mut TransportParameters, &mut Vec<u8>)) -> Self {
        Self::server_to(&ClientConfig::new(Arc::new(Toy::default()), Arc::new(profile.clone())), change)
    }

    /// The same, to a client with this configuration, whose TLS has to be [`Toy`].
    pub fn server_to(config: &ClientConfig, change: impl FnOnce(&mut TransportParameters, &mut Vec<u8>)) -> Self {
        let mut victim = client_endpoint(1);
        let handle = victim.connect(Instant::ZERO, config, server_address(0), "toy.test").unwrap();
        let flight = direct::sent(&mut victim, Instant::ZERO);
        let Ok(Header::Long { dcid: original, scid: peer, .. }) = Header::parse(&flight[0].payload, 8) else {
            panic!()
        };
        let scid = ConnectionId::new(&[0x5c; 8]).unwrap();
        let raw = encoded(scid, Side::Server, Some(original), change);
        let session = ServerTls::start(&Toy::default(), 1, raw).unwrap();
        let mut puppet = Self::new(victim, Side::Server, session, original, peer, scid);
        puppet.handle = Some(handle);
        flight.iter().for_each(|d| puppet.take(&d.payload));
        puppet
    }

    fn new(
        victim: Endpoint,
        side: Side,
        session: Box<dyn Session>,
        initial: ConnectionId,
        dcid: ConnectionId,
        scid: ConnectionId,
    ) -> Self {
        let mut keys = Keys::new(side, Labels::of(1).unwrap(), KeyLimits::default());
        keys.set_initial(initial.as_slice());
        let mut puppet = Self {
            victim,
            handle: None,
            now: Instant::ZERO,
            side,
            keys,
            dcid,
            scid,
            next_pn: [0; 3],
            seen: Default::default(),
            received: Vec::new(),
            events: Vec::new(),
            address: if side == Side::Client { client_address(0) } else { server_address(0) },
            local: None,
            session,
            crypto: Default::default(),
        };
        puppet.obey();
        puppet
    }

    /// Both ends have completed the handshake, and know it.
    pub fn connected(mut self) -> Self {
        for _ in 0..10 {
            self.flush(&LEVELS);
            self.collect();
        }
        if self.side == Side::Server {
            self.send(Level::OneRtt, &bytes(&[Frame::HandshakeDone]));
            self.collect();
        }
        let connection = self.victim.connection(self.handle.unwrap()).unwrap();
        assert!(connection.is_connected(), "{:?}", self.events);
        self
    }

    /// Sends what TLS has written at these levels.
    pub fn flush(&mut self, levels: &[Level]) {
        for &level in levels {
            while self.crypto[place(level)].wants_to_send() && self.keys.can_seal(level) {
                let mut payload = vec![0; 1120];
                let mut w = Writer::new(&mut payload);
                self.crypto[place(level)].write_unrecorded(&mut w);
                self.send(level, &payload);
            }
        }
    }

    /// Bytes that TLS has written at a level, in CRYPTO frames of at most `room` bytes.
    pub fn pieces(&mut self, level: Level, room: usize) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        while self.crypto[place(level)].wants_to_send() {
            let mut frame = vec![0; room];
            let mut w = Writer::new(&mut frame);
            self.crypto[place(level)].write_unrecorded(&mut w);
            pieces.push(w.written().to_vec());
        }
        pieces
    }

    /// A sealed packet with this payload and the next packet number.
    pub fn packet(&mut self, level: Level, payload: &[u8]) -> Vec<u8> {
        let pn = self.next_pn[place(level)];
        self.next_pn[place(level)] += 1;
        self.packet_numbered(level, pn, payload)
    }

    pub fn packet_numbered(&mut self, level: Level, pn: u64, payload: &[u8]) -> Vec<u8> {
        if level != Level::OneRtt {
            return seal_long(&mut self.keys, level, self.dcid, self.scid, pn, payload);
        }
        let mut packet = vec![0; 1 + self.dcid.len() + 4 + payload.len() + TAG_LEN];
        let mut w = Writer::new(&mut packet);
        let pn_offset = wire::encode_short(&mut w, &self.dcid, pn, 4, false, false);
        w.bytes(payload);
        self.keys.seal_short(&mut packet, pn_offset, pn, PathId(0)).unwrap();
        packet
    }

    /// Sends a packet; Initial packets are padded.
    pub fn send(&mut self, level: Level, payload: &[u8]) {
        let mut payload = payload.to_vec();
        if level == Level::Initial {
            payload.resize(payload.len().max(1160), 0);
        }
        let packet = self.packet(level, &payload);
        self.give(&packet);
    }

    pub fn give(&mut self, datagram: &[u8]) {
        direct::give_at(&mut self.victim, self.now, self.address, self.local, datagram);
    }

    /// Acknowledges everything that the victim has sent at a level.
    pub fn acknowledge(&mut self, level: Level) {
        let payload = ack(&self.seen[place(level)]);
        self.send(level, &payload);
    }

    /// Takes what the victim sends; returns the number of datagrams.
    pub fn collect(&mut self) -> usize {
        let datagrams = direct::sent(&mut self.victim, self.now);
        datagrams.iter().for_each(|d| self.take(&d.payload));
        while let Some(handle) = self.victim.poll_accept() {
            self.handle = Some(handle);
        }
        self.events.extend(direct::events(&mut self.victim).into_iter().map(|(_, event)| event));
        datagrams.len()
    }

    /// Lets time pass, with everything that falls due.
    pub fn wait(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some((at, ..)) = self.victim.poll_timeout().filter(|(at, ..)| *at <= end) {
            self.now = self.now.max(at);
            self.victim.handle_timeout(self.now);
            self.collect();
        }
        self.now = end;
    }

    /// As [`collect`](Self::collect), for a puppet that has said nonsense: it does not try to make sense of the answer
    /// once the victim has closed.
    pub fn collect_quietly(&mut self) {
        let closed = self.handle.and_then(|h| self.victim.connection(h)).is_none_or(|c| c.is_closed());
        if closed && self.handle.is_some() {
            direct::sent(&mut self.victim, self.now);
        } else {
            self.collect();
        }
    }

    /// Lets time pass, and hears nothing.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some((at, ..)) = self.victim.poll_timeout().filter(|(at, ..)| *at <= end) {
            self.now = self.now.max(at);
            self.victim.handle_timeout(self.now);
            direct::sent(&mut self.victim, self.now);
        }
        self.now = end;
    }

    /// Opens the packets of a datagram of the victim.
    pub fn take(&mut self, datagram: &[u8]) {
        let mut rest = datagram.to_vec();
        while let Ok(header) = Header::parse(&rest, self.scid.len()) {
            let mut packet = rest.split_off(header.packet_len());
            std::mem::swap(&mut packet, &mut rest);
            let (level, pn_offset) = match header {
                Header::Long { ty, scid, pn_offset, .. } => {
                    self.dcid = scid;
                    (if ty == LongType::Initial { Level::Initial } else { Level::Handshake }, pn_offset)
                }
                Header::Short { pn_offset, .. } => (Level::OneRtt, pn_offset),
                other => panic!("{other:?}"),
            };
            let expected = self.seen[place(level)].last().map_or(0, |pn| pn + 1);
            let opened = match level {
                Level::OneRtt => self.keys.open_short(&mut packet, pn_offset, PathId(0), expected),
                _ => self.keys.open_long(level, &mut packet, pn_offset, expected),
            };
            let Ok(opened) = opened else { continue };
            self.seen[place(level)].insert(opened.pn);
            let payload = packet[opened.payload].to_vec();
            for frame in Frames::new(&payload).flatten() {
                if let Frame::Crypto { offset, data } = frame {
                    self.crypto[place(level)].on_frame(offset, data).unwrap();
                }
            }
            self.received.push((level, payload));
            while let Some(data) = self.crypto[place(self.session.read_level())].read() {
                let level = self.session.read_level();
                let _ = self.session.read(level, &data).unwrap();
                self.obey();
            }
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Does what TLS says.
    fn obey(&mut self) {
        while let Some(event) = self.session.next_event() {
            match event {
                TlsEvent::Write { level, data } => self.crypto[place(level)].write(&data),
                TlsEvent::Secret { level, direction, suite, secret, .. } => {
                    self.keys.install(level, direction, suite, &secret);
                }
                _ => {}
            }
        }
    }

    /// Error code of the victim's CONNECTION_CLOSE, if it has sent one.
    pub fn close_code(&mut self) -> Option<Code> {
        self.collect();
        self.received.iter().flat_map(|(_, payload)| Frames::new(payload).flatten()).find_map(|frame| match frame {
            Frame::ConnectionClose { error, .. } => Some(Code(error)),
            _ => None,
        })
    }

    /// Frames of the victim, with the level of each.
    pub fn frames(&self) -> impl Iterator<Item = (Level, Frame<'_>)> {
        self.received.iter().flat_map(|(level, payload)| Frames::new(payload).flatten().map(move |f| (*level, f)))
    }
}

fn encoded(
    scid: ConnectionId,
    side: Side,
    original: Option<ConnectionId>,
    change: impl FnOnce(&mut TransportParameters, &mut Vec<u8>),
) -> Vec<u8> {
    let mut parameters = TransportParameters { original_dcid: original, ..parameters(scid) };
    let mut extra = Vec::new();
    change(&mut parameters, &mut extra);
    let mut raw = Vec::new();
    parameters.encode(&mut raw, side, None);
    raw.extend(extra);
    raw
}
