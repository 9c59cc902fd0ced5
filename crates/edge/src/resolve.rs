//! Name resolution for proxies and back ends: bounded in number and time.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    pin::Pin,
    sync::Arc,
};

use tokio::sync::Semaphore;

/// Largest number of concurrent look-ups. Each holds a thread until the system's resolver returns, also when the client has left.
const LOOKUPS: usize = 64;

/// Pending result of a look-up.
pub(crate) type Lookup<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

/// Source of addresses.
pub(crate) trait Resolve: Send + Sync {
    /// Looks up the addresses of a name.
    fn resolve(&self, host: &str, port: u16) -> Lookup<'_>;
}

/// The system's resolver.
pub(crate) struct SystemResolver(Arc<Semaphore>);

impl Default for SystemResolver {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LOOKUPS)))
    }
}

impl Resolve for SystemResolver {
    fn resolve(&self, host: &str, port: u16) -> Lookup<'_> {
        let host = host.to_owned();
        Box::pin(async move {
            let place = self.0.clone().acquire_owned().await.map_err(io::Error::other)?;
            let lookup = tokio::task::spawn_blocking(move || {
                // The place is free when the thread is, not when the client has lost patience.
                let _place = place;
                (host.as_str(), port).to_socket_addrs().map(Vec::from_iter)
            });
            lookup.await.map_err(io::Error::other)?
        })
    }
}

/// Addresses of a host, which may be an IP address.
pub(crate) async fn addresses(resolver: &dyn Resolve, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match host.parse::<IpAddr>() {
        Ok(address) => Ok(vec![SocketAddr::new(address, port)]),
        Err(_) => resolver.resolve(host, port).await,
    }
}
