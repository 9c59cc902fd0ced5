//! Ports of the gateway, which its workers share and no other process does.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
};

use socket2::{Domain, Protocol, Socket, Type};

/// Fails when another process serves an address. The sockets of workers share a port, so that the system would let another process of the
/// same user share it, too, and give it every second client.
pub(crate) fn check_unshared(address: SocketAddr) -> io::Result<()> {
    if address.port() == 0 {
        return Ok(());
    }
    let tcp = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        tcp.set_only_v6(false)?;
    }
    // Connections that have ended are in nobody's way.
    tcp.set_reuse_address(true)?;
    tcp.bind(&address.into())?;
    tcp.listen(1)?;
    UdpSocket::bind(address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket that would share its port with others of the same user, at any free one.
    fn sharing(kind: Type) -> (Socket, SocketAddr) {
        let socket = Socket::new(Domain::IPV4, kind, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        (socket, address)
    }

    #[test]
    fn ports_that_others_would_share_are_refused() {
        for kind in [Type::STREAM, Type::DGRAM] {
            let (socket, address) = sharing(kind);
            if kind == Type::STREAM {
                socket.listen(1).unwrap();
            }
            let error = check_unshared(address).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{kind:?}");
        }
    }
}
