//! A server that validates every address, and clients that present its tokens: genuine ones, changed ones, other bytes; from
//! the right address and the wrong, in time and late, once and again.
//!
//! A connection begins exactly when the model says that the token proves the address.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::Arc,
};

use bytes::BytesMut;
use transport::{
    ClientConfig, Datagram, Endpoint, EndpointConfig, Event, Profile, RetryPolicy, ServerConfig,
    crypto::{Labels, TAG_LEN},
    keys::{KeyLimits, Keys},
    tls::{Level, testing::Toy},
};
use units::{Duration, Instant, Seed};
use wire::{ConnectionId, Frame, Header, LongHeader, LongType, Side, Writer};

use super::Program;

const SERVER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 2, 0, 0), 443));
const INSTRUCTIONS: usize = 60;
/// Lifetimes that the server gives its tokens.
const RETRY_LIFETIME: Duration = Duration::from_secs(15);
const NEW_TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

fn address(n: usize) -> SocketAddr {
    SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, (n & 1) as u8), 50_000 + (n >> 1 & 1) as u16).into()
}

/// Model of a token.
#[derive(Clone)]
struct Known {
    bytes: Vec<u8>,
    at: Instant,
    to: SocketAddr,
    /// A Retry token: the ID that the client has to use.
    retry: Option<ConnectionId>,
    used: bool,
}

struct World {
    now: Instant,
    server: Endpoint,
    config: Arc<ServerConfig>,
    known: Vec<Known>,
    connections: u64,
    /// IDs to which clients have sent the packet that began their connection.
    named: BTreeSet<ConnectionId>,
    /// Tokens accepted, and not accepted.
    shown: [u64; 2],
    ids: u64,
}

/// Runs a program. Returns how many tokens were accepted of those that were shown, and how many were not.
pub(crate) fn tokens(data: &[u8]) -> [u64; 2] {
    let mut program = Program::new(data);
    let mut config = ServerConfig::new(Arc::new(Toy::default()), Arc::new(Profile::default()));
    config.retry = RetryPolicy::Always;
    let config = Arc::new(config);
    let seed = Seed::from_number(u64::from(program.byte()));
    let mut world = World {
        now: Instant::from_millis(1_000),
        server: Endpoint::new(EndpointConfig::from_seed(seed), Some(config.clone())),
        config,
        known: Vec::new(),
        connections: 0,
        named: BTreeSet::new(),
        shown: [0; 2],
        ids: 0,
    };
    for _ in 0..INSTRUCTIONS {
        let Some(instruction) = program.instruction() else { break };
        match instruction % 8 {
            0 | 1 => world.ask(program.below(4)),
            2 => world.connect(program.below(4)),
            3 => world.now += Duration::from_millis(u64::from(program.word()) * 2),
            4 => world.now += Duration::from_secs(u64::from(program.byte()) * 600),
            _ => world.present(&mut program),
        }
    }
    world.shown
}

impl World {
    fn id(&mut self) -> ConnectionId {
        self.ids += 1;
        ConnectionId::new(&(self.ids | 0xd1d1 << 48).to_be_bytes()).expect("eight bytes fit")
    }

    fn give(&mut self, from: SocketAddr, payload: &[u8]) -> Vec<Vec<u8>> {
        give(&mut self.server, self.now, from, payload);
        sent(&mut self.server, self.now)
    }

    /// A client without a token, which is sent back with one.
    fn ask(&mut self, from: usize) {
        let (dcid, scid) = (self.id(), self.id());
        let packet = initial(dcid, scid, &[], dcid);
        let answers = self.give(address(from), &packet);
        let [retry] = &answers[..] else { panic!("{} answers to a client without a token", answers.len()) };
        let Ok(Header::Retry { dcid, scid: named, token, .. }) = Header::parse(retry, 8) else {
            panic!("no Retry: {retry:?}")
        };
        assert!(dcid == scid && retry.len() <= 3 * packet.len());
        let bytes = retry[token].to_vec();
        assert!(self.known.iter().all(|known| known.bytes != bytes), "the same token again");
        let to = address(from);
        self.known.push(Known { bytes, at: self.now, to, retry: Some(named), used: false });
    }

    /// A client that connects and is given a token for the next time.
    fn connect(&mut self, from: usize) {
        let seed = Seed::from_number(1_000 + self.ids);
        self.ids += 1;
        let mut client = Endpoint::new(EndpointConfig::from_seed(seed), None);
        let config = ClientConfig::new(Arc::new(Toy::default()), Arc::new(Profile::default()));
        let handle = client.connect(self.now, &config, SERVER, "server.test").expect("the toy takes any name");
        let mut given = Vec::new();
        for _ in 0..8 {
            for payload in sent(&mut client, self.now) {
                for answer in self.give(address(from), &payload) {
                    give(&mut client, self.now, SERVER, &answer);
                }
            }
            while let Some((_, event)) = client.poll_event() {
                if let Event::TokenReceived(token) = event {
                    given.push(token.to_vec());
                }
            }
        }
        assert!(client.connection(handle).is_some_and(transport::Connection::is_connected), "a client that obeys");
        self.connections += 1;
        for bytes in given {
            assert!(self.known.iter().all(|known| known.bytes != bytes), "the same token again");
            self.known.push(Known { bytes, at: self.now, to: address(from), retry: None, used: false });
        }
    }

    /// Sends a first packet with a token, whole or changed.
    fn present(&mut self, program: &mut Program<'_>) {
        let n = program.below(self.known.len().max(1));
        let mut token = self.known.get(n).map_or_else(Vec::new, |known| known.bytes.clone());
        for _ in 0..program.below(4) {
            let (place, mask) = (program.below(token.len()), program.byte());
            match program.byte() % 4 {
                0 => token.truncate(place),
                1 => token.extend_from_slice(program.take(place)),
                2 => token = program.take(place).to_vec(),
                _ => token.get_mut(place).into_iter().for_each(|byte| *byte ^= mask),
            }
        }
        let owner = self.known.get(n).map(|known| known.to);
        let from = owner.filter(|_| program.byte() & 3 != 0).unwrap_or_else(|| address(program.below(4)));
        let named = self.known.get(n).and_then(|known| known.retry).filter(|_| program.byte() & 3 != 0);
        let dcid = named.unwrap_or_else(|| self.id());
        let scid = self.id();
        let valid = self.known.iter().position(|known| known.bytes == token).filter(|&n| {
            let Known { at, to, retry, used, .. } = &self.known[n];
            let age = self.now.saturating_since(*at);
            match retry {
                Some(named) => age <= RETRY_LIFETIME && *to == from && *named == dcid,
                None => age <= NEW_TOKEN_LIFETIME && to.ip() == from.ip() && !used,
            }
        });
        let before = self.server.stats();
        let packet = initial(dcid, scid, &token, dcid);
        // What is addressed to a connection is its own affair.
        let again = self.named.contains(&dcid);
        let answers = self.give(from, &packet);
        let after = self.server.stats();
        let begun = after.connections - before.connections;
        assert_eq!(
            after.retries - before.retries + after.tokens_invalid - before.tokens_invalid + begun,
            u64::from(!again)
        );
        assert_eq!(begun == 1, valid.is_some() && !again, "token {n} from {from} at {:?}", self.now);
        let bytes: usize = answers.iter().map(Vec::len).sum();
        assert!(valid.is_some() || bytes <= 3 * packet.len(), "{bytes} bytes to an address without proof");
        if let Some(n) = valid.filter(|_| begun == 1) {
            self.known[n].used = true;
            self.named.insert(dcid);
        }
        self.connections += begun;
        self.shown[usize::from(begun == 0)] += 1;
        assert!(self.server.open_connections() as u64 <= self.connections.min(self.config.max_connections as u64));
    }
}

fn give(endpoint: &mut Endpoint, now: Instant, from: SocketAddr, payload: &[u8]) {
    let segment_size = payload.len();
    let payload = BytesMut::from(payload);
    let datagram = Datagram { remote: from, local: None, ecn: None, received_at: now, segment_size, payload };
    endpoint.handle_datagram(now, datagram);
    while endpoint.poll_accept().is_some() {}
}

fn sent(endpoint: &mut Endpoint, now: Instant) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; 16 * 1500];
    let mut all = Vec::new();
    while let Some(transmit) = endpoint.poll_transmit(now, &mut buffer) {
        all.extend(buffer[..transmit.len].chunks(transmit.segment_size).map(<[u8]>::to_vec));
        assert!(all.len() < 1_000, "sends without end");
    }
    all
}

/// A sealed Initial packet with the beginning of a handshake message, in a datagram of 1,200 bytes.
fn initial(dcid: ConnectionId, scid: ConnectionId, token: &[u8], keys: ConnectionId) -> Vec<u8> {
    let mut sealer = Keys::new(Side::Client, Labels::of(1).expect("version 1"), KeyLimits::default());
    sealer.set_initial(keys.as_slice());
    let header = LongHeader { ty: LongType::Initial, version: 1, dcid, scid };
    let mut packet = vec![0; 1_200.max(header.encoded_len(token.len(), 4) + 100)];
    let end = packet.len();
    let mut w = Writer::new(&mut packet[..end - TAG_LEN]);
    let pos = header.encode(&mut w, token, 0, 4);
    Frame::Crypto { offset: 0, data: &[1, 0, 4, 0] }.encode(&mut w);
    wire::patch_length(&mut packet, &pos, end);
    sealer.seal_long(Level::Initial, &mut packet, pos.pn_offset, 0).expect("keys are there");
    packet
}
