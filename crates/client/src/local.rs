//! Local address on the route to another host.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// Source of this host's address on the route to another host; the default asks the system.
#[derive(Clone)]
pub struct LocalAddress(pub Arc<dyn Fn(SocketAddr) -> Option<IpAddr> + Send + Sync>);

impl std::fmt::Debug for LocalAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalAddress").finish_non_exhaustive()
    }
}

impl Default for LocalAddress {
    fn default() -> Self {
        Self(Arc::new(local_address))
    }
}

/// Any port, of the family of `remote`.
pub(crate) fn any(remote: SocketAddr) -> SocketAddr {
    if remote.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() }
}

/// Local address on the route to `remote`. Sends nothing.
pub(crate) fn local_address(remote: SocketAddr) -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind(any(remote)).ok()?;
    socket.connect(remote).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
