//! Datagrams between processes that serve one address: the newest process reads the sockets, and forwards to each older one the datagrams
//! of its connections, through a pair of connected Unix datagram sockets for each shard.
//!
//! Waiting datagrams are bounded by the send buffer of the socket. A process that does not read loses packets, as on a network; nobody
//! waits for it.

use std::{
    collections::HashMap,
    io::{self, IoSlice},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::unix::net::UnixDatagram,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::BytesMut;
use socket2::SockRef;
use tokio::io::ReadBuf;
use transport::{Datagram, Ecn, SiblingShard};
use units::Instant;

use crate::load_balancers::WayBack;

/// Bytes in front of the payloads.
const HEADER: usize = 44;
/// Bytes behind these, where answers go back through a load balancer.
const WAY_BACK: usize = 56;
/// Flag of the header: a way back follows.
const HAS_WAY_BACK: u8 = 1 << 5;
/// Largest read of the socket, with its header.
const LARGEST: usize = HEADER + WAY_BACK + 65_535;
/// Bytes that may wait for a process, on each shard, as the kernel counts them.
const ROOM: usize = 2 << 20;
/// Reads taken over before the shard's own socket gets its turn.
const TAKEN_PER_PASS: usize = 64;

/// Ways to the shards of another process, in their order.
#[derive(Debug)]
pub struct Sibling {
    /// Generation in the connection IDs of the process.
    pub generation: u8,
    /// Sending ends, one for each shard.
    pub shards: Vec<UnixDatagram>,
}

/// Fate of a read for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    Over,
    /// The process reads too slowly.
    NoRoom,
    /// The process has ended, or has lost the shard.
    Gone,
}

/// Ways to all processes that are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Links(Arc<HashMap<u8, Arc<Sibling>>>);

impl Links {
    pub(crate) fn new(siblings: &[Arc<Sibling>]) -> Self {
        Self(Arc::new(siblings.iter().map(|sibling| (sibling.generation, sibling.clone())).collect()))
    }

    /// Hands a read to its process, without waiting.
    pub(crate) fn send(&self, to: SiblingShard, datagram: &Datagram, way: Option<&WayBack>) -> Handed {
        let socket = self.0.get(&to.generation).and_then(|sibling| sibling.shards.get(usize::from(to.shard)));
        let Some(socket) = socket else { return Handed::Gone };
        let mut header = encode(datagram);
        let way = way.map(|way| {
            header[0] |= HAS_WAY_BACK;
            encode_way_back(way)
        });
        let way = way.as_ref().map_or(&[][..], |way| way);
        let parts = [IoSlice::new(&header), IoSlice::new(way), IoSlice::new(&datagram.payload)];
        match SockRef::from(socket).send_vectored(&parts) {
            Ok(_) => Handed::Over,
            Err(error) if is_gone(&error) => Handed::Gone,
            // No room now, or never for a read of this size.
            Err(_) => Handed::NoRoom,
        }
    }
}

/// Returns whether an error shows that nobody receives any more.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | NotConnected | BrokenPipe)
}

/// A connected pair: the end that sends, for another process, and the end that receives.
pub(crate) fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
    let (sender, receiver) = UnixDatagram::pair()?;
    sender.set_nonblocking(true)?;
    receiver.set_nonblocking(true)?;
    // Within the administrator's limit the kernel grants what it can.
    let _ = SockRef::from(&sender).set_send_buffer_size(ROOM);
    Ok((sender, receiver))
}

/// The receiving end of a shard.
pub(crate) struct Inbox {
    socket: tokio::net::UnixDatagram,
    buffer: Box<[u8]>,
}

impl Inbox {
    /// Takes a receiving end; must be called within a tokio runtime.
    pub(crate) fn new(socket: UnixDatagram) -> io::Result<Self> {
        Ok(Self { socket: tokio::net::UnixDatagram::from_std(socket)?, buffer: vec![0; LARGEST].into() })
    }

    /// Takes what the reading process has handed over, with the way back where that leads through a load balancer. `Ok(true)` when there may be more; otherwise the next one wakes the task
    /// of `cx`.
    pub(crate) fn receive(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        mut take: impl FnMut(Datagram, Option<WayBack>),
    ) -> io::Result<bool> {
        for _ in 0..TAKEN_PER_PASS {
            let mut buffer = ReadBuf::new(&mut self.buffer);
            match self.socket.poll_recv(cx, &mut buffer) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(())) => {}
            }
            if let Some((datagram, way)) = decode(buffer.filled(), now) {
                take(datagram, way);
            }
        }
        Ok(true)
    }
}

fn ip_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// IP address with a flag for IPv4.
fn ip_from(bytes: &[u8], is_v4: bool) -> IpAddr {
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(bytes).expect("sixteen bytes"));
    if is_v4 { IpAddr::V4(ip.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED)) } else { IpAddr::V6(ip) }
}

/// Flags: ECN in two bits, then whether the remote address is one of IPv4, whether there is a local one, and whether that is;
/// whether a way back follows.
fn encode(datagram: &Datagram) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let scope = if let SocketAddr::V6(v6) = datagram.remote { v6.scope_id() } else { 0 };
    let ecn = match datagram.ecn {
        None => 0,
        Some(Ecn::Ect1) => 1,
        Some(Ecn::Ect0) => 2,
        Some(Ecn::Ce) => 3,
    };
    let local = datagram.local;
    header[0] = ecn
        | u8::from(datagram.remote.is_ipv4()) << 2
        | u8::from(local.is_some()) << 3
        | u8::from(local.is_some_and(|ip| ip.is_ipv4())) << 4;
    header[2..4].copy_from_slice(&datagram.remote.port().to_be_bytes());
    header[4..8].copy_from_slice(&scope.to_be_bytes());
    header[8..24].copy_from_slice(&ip_bytes(datagram.remote.ip()));
    header[24..40].copy_from_slice(&local.map_or([0; 16], ip_bytes));
    let segment = u32::try_from(datagram.segment_size).unwrap_or(u32::MAX);
    header[40..].copy_from_slice(&segment.to_be_bytes());
    header
}

/// Flags: whether the load balancer's address, that of the server and the own one are of IPv4, and whether there is an own one.
fn encode_way_back(way: &WayBack) -> [u8; WAY_BACK] {
    let mut out = [0; WAY_BACK];
    out[0] = u8::from(way.balancer.is_ipv4())
        | u8::from(way.server.is_ipv4()) << 1
        | u8::from(way.own.is_some_and(|ip| ip.is_ipv4())) << 2
        | u8::from(way.own.is_some()) << 3;
    out[2..4].copy_from_slice(&way.balancer.port().to_be_bytes());
    out[4..20].copy_from_slice(&ip_bytes(way.balancer.ip()));
    out[20..22].copy_from_slice(&way.server.port().to_be_bytes());
    out[22..38].copy_from_slice(&ip_bytes(way.server.ip()));
    out[38..54].copy_from_slice(&way.own.map_or([0; 16], ip_bytes));
    out
}

fn decode_way_back(bytes: &[u8; WAY_BACK]) -> WayBack {
    let has = |bit: u8| bytes[0] & 1 << bit != 0;
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    WayBack {
        balancer: (ip_from(&bytes[4..20], has(0)), port(2)).into(),
        server: (ip_from(&bytes[22..38], has(1)), port(20)).into(),
        own: has(3).then(|| ip_from(&bytes[38..54], has(2))),
    }
}

fn decode(message: &[u8], now: Instant) -> Option<(Datagram, Option<WayBack>)> {
    let (header, mut payload) = message.split_first_chunk::<HEADER>()?;
    let flags = header[0];
    let mut way = None;
    if flags & HAS_WAY_BACK != 0 {
        let (bytes, rest) = payload.split_first_chunk::<WAY_BACK>()?;
        (way, payload) = (Some(decode_way_back(bytes)), rest);
    }
    let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let port = u16::from_be_bytes([header[2], header[3]]);
    let remote = match ip_from(&header[8..24], flags & 4 != 0) {
        IpAddr::V4(ip) => (ip, port).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, word(4)).into(),
    };
    let segment_size = word(40) as usize;
    if payload.is_empty() || segment_size == 0 {
        return None;
    }
    let datagram = Datagram {
        remote,
        local: (flags & 8 != 0).then(|| ip_from(&header[24..40], flags & 16 != 0)),
        ecn: [None, Some(Ecn::Ect1), Some(Ecn::Ect0), Some(Ecn::Ce)][usize::from(flags & 3)],
        received_at: now,
        segment_size,
        payload: BytesMut::from(payload),
    };
    Some((datagram, way))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(remote: &str, local: Option<&str>, ecn: Option<Ecn>) -> Datagram {
        Datagram {
            remote: remote.parse().unwrap(),
            local: local.map(|ip| ip.parse().unwrap()),
            ecn,
            received_at: Instant::ZERO,
            segment_size: 1_200,
            payload: BytesMut::from(&[7; 2_500][..]),
        }
    }

    #[test]
    fn what_is_handed_over_is_what_arrived() {
        for (remote, local) in [
            ("192.0.2.1:4433", Some("192.0.2.2")),
            ("[2001:db8::1]:1", None),
            ("[fe80::1%3]:65535", Some("fe80::2")),
            ("[::ffff:192.0.2.1]:443", Some("::ffff:192.0.2.2")),
        ] {
            for ecn in [None, Some(Ecn::Ect0), Some(Ecn::Ect1), Some(Ecn::Ce)] {
                let sent = datagram(remote, local, ecn);
                let mut message = encode(&sent).to_vec();
                message.extend_from_slice(&sent.payload);
                let (got, way) = decode(&message, Instant::from_millis(5)).unwrap();
                assert_eq!(way, None);
                assert_eq!((got.remote, got.local, got.ecn), (sent.remote, sent.local, sent.ecn));
                assert_eq!((got.segment_size, got.payload), (1_200, sent.payload));
                for len in 0..=HEADER {
                    assert!(decode(&message[..len], Instant::ZERO).is_none(), "{len} bytes");
                }
            }
        }
    }

    #[test]
    fn the_way_back_through_a_load_balancer_goes_with_it() {
        for (balancer, own, server) in [
            ("192.0.2.9:7000", Some("192.0.2.1"), "203.0.113.1:443"),
            ("[2001:db8::9]:7000", Some("2001:db8::1"), "203.0.113.1:443"),
            ("192.0.2.9:1", None, "[2001:db8::2]:443"),
        ] {
            let own = own.map(|ip| ip.parse().unwrap());
            let way = WayBack { balancer: balancer.parse().unwrap(), own, server: server.parse().unwrap() };
            let (sender, receiver) = pair().unwrap();
            let links = Links::new(&[Arc::new(Sibling { generation: 9, shards: vec![sender] })]);
            let sent = datagram("192.0.2.1:1", Some("100::5"), None);
            assert_eq!(links.send(SiblingShard { generation: 9, shard: 0 }, &sent, Some(&way)), Handed::Over);
            let mut buffer = vec![0; LARGEST];
            let len = receiver.recv(&mut buffer).unwrap();
            let (got, back) = decode(&buffer[..len], Instant::ZERO).unwrap();
            assert_eq!((got.payload, back), (sent.payload, Some(way)));
            for cut in 0..=HEADER + WAY_BACK {
                assert!(decode(&buffer[..cut], Instant::ZERO).is_none(), "{cut} bytes");
            }
        }
    }

    #[test]
    fn a_process_that_does_not_read_or_is_gone_delays_nobody() {
        let (sender, receiver) = pair().unwrap();
        let links = Links::new(&[Arc::new(Sibling { generation: 9, shards: vec![sender] })]);
        let to = SiblingShard { generation: 9, shard: 0 };
        let datagram = datagram("192.0.2.1:1", None, None);
        let taken = (0..100_000).take_while(|_| links.send(to, &datagram, None) == Handed::Over).count();
        assert!((16..10_000).contains(&taken), "{taken} reads wait");
        assert_eq!(links.send(to, &datagram, None), Handed::NoRoom);
        assert_eq!(links.send(SiblingShard { shard: 1, ..to }, &datagram, None), Handed::Gone);
        assert_eq!(links.send(SiblingShard { generation: 8, ..to }, &datagram, None), Handed::Gone);
        let mut buffer = vec![0; LARGEST];
        receiver.recv(&mut buffer).unwrap();
        assert_eq!(links.send(to, &datagram, None), Handed::Over, "there is room again");
        drop(receiver);
        assert_eq!(links.send(to, &datagram, None), Handed::Gone);
    }
}
