//! Datagrams between processes that serve one address: the newest reads its sockets, and hands each older one what is for its
//! connections, through a pair of connected Unix datagram sockets for each shard.
//!
//! What waits in such a pair is bounded by the send buffer of its socket. A process that does not read loses its packets, as on
//! a network; nobody waits for it.

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

/// Bytes in front of the payloads.
const HEADER: usize = 44;
/// The most that a read of the socket returns, with the header.
const LARGEST: usize = HEADER + 65_535;
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
    /// The process has ended.
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
    pub(crate) fn send(&self, to: SiblingShard, datagram: &Datagram) -> Handed {
        let socket = self.0.get(&to.generation).and_then(|sibling| sibling.shards.get(usize::from(to.shard)));
        let Some(socket) = socket else { return Handed::Gone };
        let header = encode(datagram);
        let parts = [IoSlice::new(&header), IoSlice::new(&datagram.payload)];
        match SockRef::from(socket).send_vectored(&parts) {
            Ok(_) => Handed::Over,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Handed::NoRoom,
            Err(_) => Handed::Gone,
        }
    }
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

    /// Takes what the reading process has handed over. `Ok(true)` when there may be more; otherwise the next one wakes the task
    /// of `cx`.
    pub(crate) fn receive(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        mut take: impl FnMut(Datagram),
    ) -> io::Result<bool> {
        for _ in 0..TAKEN_PER_PASS {
            let mut buffer = ReadBuf::new(&mut self.buffer);
            match self.socket.poll_recv(cx, &mut buffer) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(())) => {}
            }
            if let Some(datagram) = decode(buffer.filled(), now) {
                take(datagram);
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

/// Flags: ECN in two bits, then whether the remote address is one of IPv4, whether there is a local one, and whether that is.
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

fn decode(message: &[u8], now: Instant) -> Option<Datagram> {
    let (header, payload) = message.split_first_chunk::<HEADER>()?;
    let flags = header[0];
    let ip = |at: usize, is_v4: bool| {
        let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&header[at..at + 16]).expect("sixteen bytes"));
        if is_v4 { IpAddr::V4(ip.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED)) } else { IpAddr::V6(ip) }
    };
    let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let port = u16::from_be_bytes([header[2], header[3]]);
    let remote = match ip(8, flags & 4 != 0) {
        IpAddr::V4(ip) => (ip, port).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, word(4)).into(),
    };
    let segment_size = word(40) as usize;
    if payload.is_empty() || segment_size == 0 {
        return None;
    }
    Some(Datagram {
        remote,
        local: (flags & 8 != 0).then(|| ip(24, flags & 16 != 0)),
        ecn: [None, Some(Ecn::Ect1), Some(Ecn::Ect0), Some(Ecn::Ce)][usize::from(flags & 3)],
        received_at: now,
        segment_size,
        payload: BytesMut::from(payload),
    })
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
                let got = decode(&message, Instant::from_millis(5)).unwrap();
                assert_eq!((got.remote, got.local, got.ecn), (sent.remote, sent.local, sent.ecn));
                assert_eq!((got.segment_size, got.payload), (1_200, sent.payload));
                for len in 0..=HEADER {
                    assert!(decode(&message[..len], Instant::ZERO).is_none(), "{len} bytes");
                }
            }
        }
    }

    #[test]
    fn a_process_that_does_not_read_or_is_gone_delays_nobody() {
        let (sender, receiver) = pair().unwrap();
        let links = Links::new(&[Arc::new(Sibling { generation: 9, shards: vec![sender] })]);
        let to = SiblingShard { generation: 9, shard: 0 };
        let datagram = datagram("192.0.2.1:1", None, None);
        let taken = (0..100_000).take_while(|_| links.send(to, &datagram) == Handed::Over).count();
        assert!((16..10_000).contains(&taken), "{taken} reads wait");
        assert_eq!(links.send(to, &datagram), Handed::NoRoom);
        assert_eq!(links.send(SiblingShard { shard: 1, ..to }, &datagram), Handed::Gone);
        assert_eq!(links.send(SiblingShard { generation: 8, ..to }, &datagram), Handed::Gone);
        let mut buffer = vec![0; LARGEST];
        receiver.recv(&mut buffer).unwrap();
        assert_eq!(links.send(to, &datagram), Handed::Over, "there is room again");
        drop(receiver);
        assert_eq!(links.send(to, &datagram), Handed::Gone);
    }
}
