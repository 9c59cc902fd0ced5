//! Load balancers in front of an endpoint: they name the client of each datagram in a PROXY protocol header, and accept the answers with
//! the same header.
//!
//! A connection knows only its client's address. The return path is the load balancer and the address that the client sent to. It is
//! encoded in the local address of a path: an address of the discard-only prefix 100::/64 (RFC 6666) with the number of an entry here. So a
//! path leads through one load balancer, and there is no state for each client.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Buf;
use transport::{Datagram, Transmit};
use wire::ProxyHeader;

/// Ways back at a time; the oldest one is replaced. Load balancers have few addresses, and only trusted ones get here.
const MOST: usize = 4_096;
/// First seven groups of the addresses that encode a return path.
const PREFIX: [u16; 7] = [0x100, 0, 0, 0, 0, 0, 0];

/// Decides whether a load balancer at this address is believed.
pub type Trust = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// Way back to the clients of a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WayBack {
    /// The load balancer.
    pub(crate) balancer: SocketAddr,
    /// The address of this end that it sends to.
    pub(crate) own: Option<IpAddr>,
    /// The address that clients send to.
    pub(crate) server: SocketAddr,
}

/// Load balancers that an endpoint believes, and the ways back through them. All shards have the same.
#[derive(Clone)]
pub struct LoadBalancers(Arc<Inner>);

struct Inner {
    trust: RwLock<Trust>,
    ways: RwLock<Ways>,
    /// Presence of any way back; saves the lock where there is none.
    are_used: AtomicBool,
}

#[derive(Default)]
struct Ways {
    all: Vec<WayBack>,
    /// The oldest one once all places are taken.
    next: usize,
}

impl Default for LoadBalancers {
    /// No load balancer is believed.
    fn default() -> Self {
        Self::new(Arc::new(|_| false))
    }
}

impl LoadBalancers {
    /// Load balancers at the addresses that `trust` accepts.
    pub fn new(trust: Trust) -> Self {
        Self(Arc::new(Inner { trust: RwLock::new(trust), ways: RwLock::default(), are_used: AtomicBool::new(false) }))
    }

    /// Replaces the trusted load balancers. Answers still go back to the load balancer of their path.
    pub fn set_trust(&self, trust: Trust) {
        *self.0.trust.write().unwrap_or_else(PoisonError::into_inner) = trust;
    }

    /// Returns whether there are clients of load balancers.
    pub(crate) fn are_used(&self) -> bool {
        self.0.are_used.load(Ordering::Relaxed)
    }

    fn trusts(&self, address: IpAddr) -> bool {
        let trust = self.0.trust.read().unwrap_or_else(PoisonError::into_inner).clone();
        trust(address.to_canonical())
    }

    /// Address that encodes a return path.
    pub(crate) fn intern(&self, way: WayBack) -> IpAddr {
        self.0.are_used.store(true, Ordering::Relaxed);
        let known = self.0.ways.read().unwrap_or_else(PoisonError::into_inner).find(&way);
        let number = known.unwrap_or_else(|| self.0.ways.write().unwrap_or_else(PoisonError::into_inner).add(way));
        let [a, b, c, d, e, f, g] = PREFIX;
        Ipv6Addr::new(a, b, c, d, e, f, g, u16::try_from(number).unwrap_or_default()).into()
    }

    /// Return path of an address.
    pub(crate) fn way_back(&self, local: Option<IpAddr>) -> Option<WayBack> {
        let Some(IpAddr::V6(local)) = local else { return None };
        let segments = local.segments();
        let (number, prefix) = segments.split_last()?;
        if prefix != PREFIX {
            return None;
        }
        let ways = self.0.ways.read().unwrap_or_else(PoisonError::into_inner);
        ways.all.get(usize::from(*number)).copied()
    }

    /// Removes the headers of a read. Passes on a datagram for each run of payloads of one client, with the hint of its header. Returns the
    /// number of dropped payloads: those of untrusted load balancers, and malformed headers.
    pub(crate) fn unwrap(&self, datagram: Datagram, mut take: impl FnMut(Datagram, Option<u8>)) -> u64 {
        let segment = datagram.segment_size.max(1);
        if !self.trusts(datagram.remote.ip()) {
            return datagram.payload.len().div_ceil(segment) as u64;
        }
        let (balancer, own) = (datagram.remote, datagram.local);
        let (mut rest, mut dropped) = (datagram.payload, 0);
        let mut known: Option<(SocketAddr, IpAddr)> = None;
        while !rest.is_empty() {
            let size = segment.min(rest.len());
            let Some((header, at)) = ProxyHeader::parse(&rest[..size]).filter(|(_, at)| *at < size) else {
                rest.advance(size);
                dropped += 1;
                continue;
            };
            // Payloads with the same header move together, so that the connection gets them in one piece.
            let (mut read, mut end) = (size, size);
            while read < rest.len() {
                let next = segment.min(rest.len() - read);
                if next <= at || rest[read..read + at] != rest[..at] {
                    break;
                }
                rest.copy_within(read + at..read + next, end);
                (read, end) = (read + next, end + next - at);
            }
            let mut payload = rest.split_to(read);
            payload.truncate(end);
            payload.advance(at);
            let local = match known {
                Some((server, local)) if server == header.server => local,
                _ => self.intern(WayBack { balancer, own, server: header.server }),
            };
            known = Some((header.server, local));
            let part = Datagram {
                remote: header.client,
                local: Some(local),
                ecn: datagram.ecn,
                received_at: datagram.received_at,
                segment_size: size - at,
                payload,
            };
            take(part, header.hint);
        }
        dropped
    }

    /// Writes each payload that goes back through a load balancer into `buffer`, with the header. `None` if it goes to the client directly.
    pub(crate) fn wrap(&self, transmit: &Transmit, payload: &[u8], buffer: &mut Vec<u8>) -> Option<Transmit> {
        let way = self.way_back(transmit.local)?;
        let mut header = [0; ProxyHeader::MAX_LEN];
        let len = ProxyHeader { client: transmit.remote, server: way.server, hint: None }.encode(&mut header);
        buffer.clear();
        for segment in payload[..transmit.len].chunks(transmit.segment_size.max(1)) {
            buffer.extend_from_slice(&header[..len]);
            buffer.extend_from_slice(segment);
        }
        let segment_size = (transmit.segment_size + len).min(buffer.len());
        Some(Transmit { remote: way.balancer, local: way.own, ecn: transmit.ecn, len: buffer.len(), segment_size })
    }
}

impl Ways {
    fn find(&self, way: &WayBack) -> Option<usize> {
        self.all.iter().position(|known| known == way)
    }

    fn add(&mut self, way: WayBack) -> usize {
        // Another thread may have been faster.
        if let Some(known) = self.find(&way) {
            return known;
        }
        if self.all.len() < MOST {
            self.all.push(way);
            return self.all.len() - 1;
        }
        let number = self.next;
        self.next = (number + 1) % MOST;
        self.all[number] = way;
        number
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use units::Instant;

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn balancers() -> LoadBalancers {
        LoadBalancers::new(Arc::new(|ip| ip == IpAddr::from([192, 0, 2, 9])))
    }

    fn wrapped(client: &str, hint: Option<u8>, payload: &[u8]) -> Vec<u8> {
        let mut header = [0; ProxyHeader::MAX_LEN];
        let proxy = ProxyHeader { client: address(client), server: address("203.0.113.1:443"), hint };
        let len = proxy.encode(&mut header);
        [&header[..len], payload].concat()
    }

    fn read(from: &str, payloads: &[Vec<u8>]) -> Datagram {
        Datagram {
            remote: address(from),
            local: Some(IpAddr::from([192, 0, 2, 1])),
            ecn: None,
            received_at: Instant::ZERO,
            segment_size: payloads[0].len(),
            payload: BytesMut::from(&payloads.concat()[..]),
        }
    }

    fn unwrapped(balancers: &LoadBalancers, datagram: Datagram) -> (Vec<(Datagram, Option<u8>)>, u64) {
        let mut all = Vec::new();
        let dropped = balancers.unwrap(datagram, |part, hint| all.push((part, hint)));
        (all, dropped)
    }

    #[test]
    fn a_read_is_split_by_client_and_answers_go_back_the_same_way() {
        let balancers = balancers();
        let (a, b) = ("198.51.100.1:5000", "198.51.100.2:6000");
        let payloads = [
            wrapped(a, Some(3), &[1; 100]),
            wrapped(a, Some(3), &[2; 100]),
            wrapped(b, Some(4), &[3; 100]),
            wrapped(a, Some(3), &[4; 100]),
            wrapped(a, Some(3), &[5; 60]),
        ];
        let (parts, dropped) = unwrapped(&balancers, read("192.0.2.9:7000", &payloads));
        let seen: Vec<_> = parts.iter().map(|(part, hint)| (part.remote, *hint, part.payload.len())).collect();
        let (a, b) = (address(a), address(b));
        assert_eq!((seen, dropped), (vec![(a, Some(3), 200), (b, Some(4), 100), (a, Some(3), 160)], 0));
        assert!(parts.iter().all(|(part, _)| part.segment_size == 100 && part.local == parts[0].0.local));
        assert_eq!(parts[2].0.payload[..], [[4; 100].to_vec(), [5; 60].to_vec()].concat());

        let transmit = Transmit { remote: a, local: parts[0].0.local, ecn: None, len: 250, segment_size: 100 };
        let mut buffer = Vec::new();
        let back = balancers.wrap(&transmit, &[7; 300], &mut buffer).unwrap();
        assert_eq!((back.remote, back.local), (address("192.0.2.9:7000"), Some(IpAddr::from([192, 0, 2, 1]))));
        let segments: Vec<_> = buffer[..back.len].chunks(back.segment_size).collect();
        assert_eq!(segments.len(), 3);
        for (segment, len) in segments.iter().zip([100, 100, 50]) {
            let (header, at) = ProxyHeader::parse(segment).unwrap();
            assert_eq!((header.client, header.server), (a, address("203.0.113.1:443")));
            assert_eq!(segment[at..], vec![7; len]);
        }
    }

    #[test]
    fn others_than_trusted_load_balancers_name_nobody() {
        let balancers = balancers();
        let payloads = [wrapped("198.51.100.1:5000", None, &[1; 100]), wrapped("198.51.100.1:5000", None, &[1; 100])];
        assert_eq!(unwrapped(&balancers, read("192.0.2.8:7000", &payloads)).1, 2);
        assert_eq!(unwrapped(&balancers, read("192.0.2.9:7000", &payloads)).0.len(), 1);
        balancers.set_trust(Arc::new(|_| false));
        assert!(unwrapped(&balancers, read("192.0.2.9:7000", &payloads)).0.is_empty());
    }

    #[test]
    fn broken_headers_are_dropped_alone() {
        let balancers = balancers();
        let good = wrapped("198.51.100.1:5000", None, &[1; 100]);
        let mut broken = good.clone();
        broken[12] = 0x20;
        let (parts, dropped) = unwrapped(&balancers, read("192.0.2.9:7000", &[good.clone(), broken, good]));
        assert_eq!((parts.len(), dropped), (2, 1));
        let empty = wrapped("198.51.100.1:5000", None, &[]);
        assert_eq!(unwrapped(&balancers, read("192.0.2.9:7000", &[empty])).1, 1);
    }

    #[test]
    fn paths_without_a_load_balancer_are_left_alone() {
        let balancers = balancers();
        for local in [None, Some("192.0.2.1"), Some("2001:db8::1"), Some("100::5")] {
            let local = local.map(|ip| ip.parse().unwrap());
            let transmit = Transmit { remote: address("192.0.2.3:1"), local, ecn: None, len: 3, segment_size: 3 };
            assert_eq!(balancers.wrap(&transmit, &[0; 3], &mut Vec::new()), None, "{local:?}");
        }
    }

    #[test]
    fn ways_back_are_bounded_and_the_newest_are_kept() {
        let balancers = balancers();
        let way = |port: usize| WayBack {
            balancer: (IpAddr::from([192, 0, 2, 9]), u16::try_from(port).unwrap()).into(),
            own: None,
            server: address("203.0.113.1:443"),
        };
        let first = balancers.intern(way(1));
        assert_eq!(balancers.intern(way(1)), first, "the same way has one place");
        for port in 2..=MOST + 1 {
            let local = balancers.intern(way(port));
            assert_eq!(balancers.way_back(Some(local)), Some(way(port)));
        }
        assert_eq!(balancers.0.ways.read().unwrap().all.len(), MOST);
        assert_eq!(balancers.way_back(Some(first)), Some(way(MOST + 1)));
    }
}
