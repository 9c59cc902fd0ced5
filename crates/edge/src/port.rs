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
