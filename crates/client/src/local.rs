//! Local address on the route to another host.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// Source of this host's address on the route to another host; the default asks the system.
///
/// A program that gives its own source tells open connections of changes by [`NetworkChanges`](crate::NetworkChanges); they look twice
/// a second otherwise.
///
/// ```
/// use tiderace_client::{LocalAddress, Settings};
///
/// // All connections from one address.
/// let fixed = LocalAddress::new(|_remote| Some([192, 0, 2, 7].into()));
/// let settings = Settings { local_address: fixed, ..Settings::default() };
/// # drop(settings);
/// ```
#[derive(Clone, Default)]
pub struct LocalAddress(Option<Arc<Source>>);

type Source = dyn Fn(SocketAddr) -> Option<IpAddr> + Send + Sync;

impl LocalAddress {
    /// Source that is asked in place of the system.
    pub fn new(source: impl Fn(SocketAddr) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(source)))
    }

    /// Address of this host on the route to `remote`. `None` without a route.
    pub(crate) fn towards(&self, remote: SocketAddr) -> Option<IpAddr> {
        self.0.as_ref().map_or_else(|| local_address(remote), |source| source(remote))
    }

    pub(crate) fn is_of_system(&self) -> bool {
        self.0.is_none()
    }
}

impl std::fmt::Debug for LocalAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalAddress").field("is_of_system", &self.is_of_system()).finish_non_exhaustive()
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
