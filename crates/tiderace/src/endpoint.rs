//! One socket with all of its connections.

use std::{
    future::poll_fn,
    io,
    net::{SocketAddr, UdpSocket},
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
};

use transport::{ClientConfig, EndpointConfig, EndpointStats, ServerConfig};
use units::Seed;

use crate::{
    connection::{Connecting, Connection},
    driver::Driver,
    error::ConnectError,
    shared::Shared,
    socket::{Socket, SocketStats},
    tls_pool::{TlsLink, TlsPool},
};

/// Where the TLS work of accepted connections runs.
#[derive(Clone, Default)]
pub enum Handshakes {
    /// On a pool of the endpoint's own with its default size. This is the default.
    #[default]
    OwnPool,
    /// On this pool.
    Pool(TlsPool),
    /// On the task that drives the endpoint: nothing starts a thread, and a burst of handshakes delays data.
    InPlace,
}

/// How an endpoint is opened.
#[derive(Default)]
pub struct EndpointOptions {
    /// Accept connections.
    pub server: Option<ServerConfig>,
    /// Seed and layout of connection IDs; from the operating system when not given.
    pub config: Option<EndpointConfig>,
    /// Where TLS runs.
    pub handshakes: Handshakes,
}

/// A UDP socket that speaks QUIC. When it is dropped, its connections go on; with the last of them the socket is closed.
pub struct Endpoint {
    shared: Arc<Shared>,
    local: Mutex<SocketAddr>,
}

impl Endpoint {
    /// Opens a socket at `address` that can connect and, with a server configuration, accept. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn open(address: SocketAddr, options: EndpointOptions) -> io::Result<Self> {
        Self::on_socket(UdpSocket::bind(address)?, options)
    }

    /// A client on any port, of the family of `remote`.
    ///
    /// # Errors
    /// When no port can be bound.
    pub fn client_for(remote: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = if remote.is_ipv4() {
            (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
        } else {
            (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
        };
        Self::open(any, EndpointOptions::default())
    }

    /// A server at `address`.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn server(address: SocketAddr, config: ServerConfig) -> io::Result<Self> {
        Self::open(address, EndpointOptions { server: Some(config), ..EndpointOptions::default() })
    }

    /// Uses a socket that is bound already.
    ///
    /// # Errors
    /// When the socket cannot be prepared.
    pub fn on_socket(socket: UdpSocket, options: EndpointOptions) -> io::Result<Self> {
        let socket = Socket::new(socket)?;
        let local = socket.local_addr()?;
        let config = match options.config {
            Some(config) => config,
            None => EndpointConfig::from_seed(system_seed()?),
        };
        let pool = match options.handshakes {
            _ if options.server.is_none() => None,
            Handshakes::OwnPool => Some(TlsPool::default()),
            Handshakes::Pool(pool) => Some(pool),
            Handshakes::InPlace => None,
        };
        let mut endpoint = transport::Endpoint::new(config, options.server.map(Arc::new));
        let tls = pool.map(|pool| TlsLink::new(pool, &mut endpoint));
        let shared = Shared::new(endpoint);
        tokio::spawn(Driver::new(shared.clone(), socket, tls));
        Ok(Self { shared, local: Mutex::new(local) })
    }

    /// Goes on with another socket, for example because the host has moved to another network: the connections of this
    /// client migrate at once and validate the new path while data flows. What a server has accepted goes on as well, if
    /// its clients still reach it. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be prepared; the old one stays.
    pub fn rebind(&self, socket: UdpSocket) -> io::Result<()> {
        let socket = Socket::new(socket)?;
        let local = socket.local_addr()?;
        let ip = Some(local.ip()).filter(|ip| !ip.is_unspecified());
        let mut state = self.shared.lock();
        state.replacement = Some((socket, ip));
        *self.local.lock().unwrap_or_else(PoisonError::into_inner) = local;
        state.wake_driver();
        Ok(())
    }

    /// The address of the socket.
    pub fn local_addr(&self) -> SocketAddr {
        *self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a connection; the result is a future that is ready when the handshake is complete.
    ///
    /// # Errors
    /// When TLS refuses the server name, or the endpoint is closed.
    pub fn connect(
        &self,
        config: &ClientConfig,
        remote: SocketAddr,
        server_name: &str,
    ) -> Result<Connecting, ConnectError> {
        let mut state = self.shared.lock();
        if state.closed {
            return Err(ConnectError::EndpointClosed);
        }
        let handle = state.endpoint.connect(self.shared.clock.now(), config, remote, server_name)?;
        state.connections.entry(handle).or_default();
        state.add_handle(handle);
        state.wake_driver();
        drop(state);
        Ok(Connecting::new(Connection::new(self.shared.clone(), handle)))
    }

    /// The next connection whose handshake a client has completed. `None` once the endpoint is closed.
    pub async fn accept(&self) -> Option<Connection> {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            while let Some(handle) = state.incoming.pop_front() {
                if state.connections.contains_key(&handle) {
                    state.add_handle(handle);
                    return Poll::Ready(Some(Connection::new(self.shared.clone(), handle)));
                }
            }
            if state.closed {
                return Poll::Ready(None);
            }
            state.incoming_waiters.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Closes all connections with `code`, and accepts and opens no more.
    pub fn close(&self, code: u64, reason: &[u8]) {
        let mut state = self.shared.lock();
        let now = self.shared.clock.now();
        state.closed = true;
        state.endpoint.set_server_config(None);
        let handles: Vec<_> = state.connections.keys().copied().collect();
        for handle in handles {
            if let Some(connection) = state.endpoint.connection_mut(handle) {
                connection.close(now, code, reason);
            }
        }
        let waiters = std::mem::take(&mut state.incoming_waiters);
        state.wake_driver();
        drop(state);
        waiters.into_iter().for_each(std::task::Waker::wake);
    }

    /// Waits until every connection is over and its goodbye is said.
    pub async fn wait_idle(&self) {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            if state.endpoint.open_connections() == 0 {
                return Poll::Ready(());
            }
            state.idle_waiters.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// What no connection reports.
    pub fn stats(&self) -> EndpointStats {
        self.shared.lock().endpoint.stats()
    }

    /// What the socket has done.
    pub fn socket_stats(&self) -> SocketStats {
        self.shared.lock().socket
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.orphaned = true;
        state.endpoint.set_server_config(None);
        state.wake_driver();
    }
}

/// 32 bytes from the operating system.
fn system_seed() -> io::Result<Seed> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(Seed::from_bytes(bytes))
}
