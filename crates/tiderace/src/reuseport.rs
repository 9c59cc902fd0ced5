//! Several sockets on one address, and the program by which the kernel selects a socket for a datagram.
//!
//! By default the kernel selects a socket by a hash of both addresses and ports, so a client whose NAT gives it another port would reach
//! another socket. The connection ID stays the same: a classic packet filter reads its byte that names the shard. Packets without such a
//! byte, such as a client's first packet, are spread by the hash.

use std::{
    fs::File,
    io,
    net::{SocketAddr, UdpSocket},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

use socket2::SockRef;
use wire::proxy;

use crate::socket::grow_buffers;

/// Binds `count` sockets to one address; their order is that of their numbers in the kernel's group.
///
/// The first is bound for itself: the kernel would let it join sockets of another endpoint of the same user, which has the address or is about
/// to end, and each would get a share of all clients.
pub(crate) fn bind(address: SocketAddr, count: u8) -> io::Result<Vec<UdpSocket>> {
    let mut sockets = Vec::with_capacity(count.into());
    let mut address = address;
    for _ in 0..count {
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::DGRAM, None)?;
        let is_first = sockets.is_empty();
        if !is_first {
            set_option(&socket, libc::SO_REUSEPORT, &1i32)?;
        }
        socket.bind(&address.into())?;
        if is_first {
            set_option(&socket, libc::SO_REUSEPORT, &1i32)?;
        }
        let socket = UdpSocket::from(socket);
        // The system has chosen the port of the first one.
        address = socket.local_addr()?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Binds another socket to the address of `first`, into its group. Without a program the kernel passes it a share of all clients at once.
pub(crate) fn join(first: &UdpSocket) -> io::Result<UdpSocket> {
    let address = first.local_addr()?;
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::DGRAM, None)?;
    if address.is_ipv6() {
        // A group has one kind of sockets.
        socket.set_only_v6(SockRef::from(first).only_v6()?)?;
    }
    set_option(first, libc::SO_REUSEPORT, &1i32)?;
    set_option(&socket, libc::SO_REUSEPORT, &1i32)?;
    // Its first datagrams arrive before its driver has it.
    grow_buffers(&SockRef::from(&socket));
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Returns whether sockets of this process may join the group of `first`. The kernel asks for the same user, who owns a socket from when it was
/// made, by another process perhaps.
pub(crate) fn may_join(first: &UdpSocket) -> io::Result<bool> {
    let own = socket2::Socket::new(socket2::Domain::for_address(first.local_addr()?), socket2::Type::DGRAM, None)?;
    let owner = |socket: OwnedFd| File::from(socket).metadata().map(|metadata| metadata.uid());
    Ok(owner(own.into())? == owner(first.try_clone()?.into())?)
}

/// Byte of connection IDs that names the shard: its index, and the length of the IDs.
pub(crate) type ShardPlace = (usize, usize);

/// Steers datagrams to the group of `count` sockets that `socket` is in: by a byte of connection IDs, if one names the shard, and by
/// the hint of load balancers.
pub(crate) fn steer(socket: &UdpSocket, place: Option<ShardPlace>, count: u8) -> io::Result<()> {
    let program = program(place, count);
    let mut program: Vec<_> =
        program.into_iter().map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
    let filter =
        libc::sock_fprog { len: u16::try_from(program.len()).expect("a short program"), filter: program.as_mut_ptr() };
    set_option(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &filter)
}

/// Instruction as code, jump if true, jump if false, operand.
type Instruction = (u16, u8, u8, u32);

/// Program of instructions. The data starts with the UDP payload; the result is a socket's number, and one that does not exist
/// leaves the choice to the hash.
fn program(place: Option<ShardPlace>, count: u8) -> Vec<Instruction> {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const REMAINDER: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
    const RETURN_LOADED: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let byte = |at: usize| u32::try_from(at).expect("an index in a header");
    let [len4, len6] = proxy::HINTED_LENGTHS.map(u32::from);
    let [hint4, hint6] = proxy::HINT_PLACES.map(byte);
    let mut program = vec![
        // One byte would not do: a short header may begin with it where the peer greases the QUIC bit (RFC 9287).
        (LOAD_WORD, 0, 0, 0),
        (IF_EQUAL, 0, 8, proxy::FIRST_WORD),
        // The header of a load balancer: where the hint is follows from its length.
        (LOAD_BYTE, 0, 0, 15),
        (IF_EQUAL, 0, 2, len4),
        (LOAD_BYTE, 0, 0, hint4),
        (IF_EQUAL, 2, 2, 0),
        (IF_EQUAL, 0, if place.is_some() { 11 } else { 3 }, len6),
        (LOAD_BYTE, 0, 0, hint6),
        (REMAINDER, 0, 0, count.into()),
        (RETURN_LOADED, 0, 0, 0),
    ];
    if let Some((place, id_len)) = place {
        // RFC 8999 §5: the highest bit tells long headers from short ones; the destination ID follows the first byte of a
        // short header, and in a long one the version and its own length.
        program.extend([
            (LOAD_BYTE, 0, 0, 0),
            (IF_ANY_BIT, 2, 0, 0x80),
            (LOAD_BYTE, 0, 0, byte(1 + place)),
            (RETURN_LOADED, 0, 0, 0),
            (LOAD_BYTE, 0, 0, 5),
            (IF_EQUAL, 0, 2, byte(id_len)),
            (LOAD_BYTE, 0, 0, byte(6 + place)),
            (RETURN_LOADED, 0, 0, 0),
        ]);
    }
    program.push((RETURN, 0, 0, u32::MAX));
    program
}

#[expect(unsafe_code, reason = "these options have no safe wrapper")]
pub(crate) fn set_option<T>(socket: &impl AsRawFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<T>()).expect("options are small");
    // SAFETY: the descriptor is open while `socket` is borrowed. The kernel reads `size` bytes at the address, and the
    // instructions that an `sock_fprog` points to, which live to the end of the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, std::ptr::from_ref(value).cast(), size)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn run(program: &[Instruction], payload: &[u8]) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let (code, jt, jf, k) = program[at];
            at += 1;
            match code {
                0x20 => match payload.get(k as usize..k as usize + 4) {
                    Some(word) => loaded = u32::from_be_bytes(word.try_into().unwrap()),
                    None => return 0,
                },
                0x30 => match payload.get(k as usize) {
                    Some(&byte) => loaded = u32::from(byte),
                    None => return 0,
                },
                0x45 => at += usize::from(if loaded & k != 0 { jt } else { jf }),
                0x15 => at += usize::from(if loaded == k { jt } else { jf }),
                0x94 => loaded %= k,
                0x16 => return loaded,
                0x06 => return k,
                _ => panic!("code {code:#x}"),
            }
        }
    }

    #[test]
    fn the_program_finds_the_shard_in_both_kinds_of_headers() {
        let program = program(Some((0, 8)), 4);
        let short = [0x40, 3, 9, 9, 9, 9, 9, 9, 9, 1, 2, 3];
        assert_eq!(run(&program, &short), 3);
        // RFC 9287 §3.1: the peer may set the QUIC bit as it likes, and the other bits are encrypted.
        for first in 0..0x80 {
            assert_eq!(run(&program, &[&[first], &short[1..]].concat()), 3, "{first:#x}");
        }
        let long = |len: u8| {
            let mut packet = vec![0xc0, 0, 0, 0, 1, len, 5];
            packet.extend([9; 40]);
            packet
        };
        assert_eq!(run(&program, &long(8)), 5);
        assert_eq!(run(&program, &long(20)), u32::MAX, "no ID of ours");
        for len in 0..short.len() {
            run(&program, &short[..len]);
        }
    }

    /// A datagram of a load balancer with this hint.
    fn proxied(client: &str, hint: Option<u8>) -> Vec<u8> {
        let header = wire::ProxyHeader { client: client.parse().unwrap(), server: client.parse().unwrap(), hint };
        let mut bytes = [0; wire::ProxyHeader::MAX_LEN];
        let len = header.encode(&mut bytes);
        [&bytes[..len], &[0x40; 30]].concat()
    }

    #[test]
    fn the_program_finds_the_hint_of_a_load_balancer() {
        for place in [None, Some((0, 8))] {
            let program = program(place, 3);
            for client in ["192.0.2.1:1", "[2001:db8::1]:1"] {
                for hint in [0, 1, 2, 3, 200, 255] {
                    assert_eq!(run(&program, &proxied(client, Some(hint))), u32::from(hint % 3), "{client} {hint}");
                }
                assert_eq!(run(&program, &proxied(client, None)), u32::MAX);
            }
            if place.is_none() {
                assert_eq!(run(&program, &[0x40; 30]), u32::MAX, "nothing is in the clear");
            }
        }
    }

    #[test]
    fn the_kernel_takes_the_program() {
        let sockets = bind("127.0.0.1:0".parse().unwrap(), 3).unwrap();
        steer(&sockets[0], Some((0, 8)), 3).unwrap();
        let to = sockets[0].local_addr().unwrap();
        for shard in 0..3u8 {
            // Each time from another port.
            let from = UdpSocket::bind("127.0.0.1:0").unwrap();
            from.send_to(&[0x40, shard, 0, 0, 0, 0, 0, 0, 0], to).unwrap();
            let mut buffer = [0; 100];
            assert_eq!(sockets[usize::from(shard)].recv(&mut buffer).unwrap(), 9);
            assert_eq!(buffer[1], shard);
            from.send_to(&proxied("192.0.2.1:1", Some(shard + 3)), to).unwrap();
            assert_eq!(sockets[usize::from(shard)].recv(&mut buffer).unwrap(), 62);
        }
    }
}
