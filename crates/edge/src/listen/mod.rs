//! An address that is served: TCP with TLS for HTTP/1.1 and HTTP/2, UDP with QUIC for HTTP/3 and private protocols.
//!
//! Each worker has sockets of its own for both, so that a connection never leaves its thread.

mod h2_sections;
mod plain;
mod quic;
mod stall;
mod tcp;

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use socket2::{Domain, Protocol, Socket, Type};
use tiderace::Endpoint;
use tokio::sync::watch;

use crate::{
    body::Pace,
    config::Limits,
    context::ListenerContext,
    generation::{Generation, Shared},
    worker::Workers,
};

pub(crate) use self::plain::PlainListener;

/// An address at work. Dropped, it takes no connection more and lets those that exist end.
pub(crate) struct Listener {
    local: SocketAddr,
    endpoint: Arc<Endpoint>,
    draining: watch::Sender<bool>,
    closed: watch::Sender<bool>,
}

/// Least rate for the content of requests.
fn pace(limits: &Limits) -> Pace {
    Pace { interval: limits.content_timeout.0, progress: limits.content_progress.0 }
}

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

impl Listener {
    /// Opens an address on all workers. With port 0 TCP and UDP get the same free port.
    pub(crate) fn open(
        address: SocketAddr,
        first: &Generation,
        shared: &Arc<Shared>,
        workers: &Workers,
    ) -> io::Result<Self> {
        let mut last = io::Error::other("no port is free for both TCP and UDP");
        // Only when any port will do, another may be tried.
        for _ in 0..if address.port() == 0 { 16 } else { 1 } {
            match Self::try_open(address, first, shared, workers) {
                Ok(this) => return Ok(this),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn try_open(address: SocketAddr, first: &Generation, shared: &Arc<Shared>, workers: &Workers) -> io::Result<Self> {
        let sockets = tcp::sockets(address, workers.count())?;
        let local = sockets[0].local_addr()?;
        let endpoint = Arc::new(quic::open(local, first, shared, workers)?);
        let (draining, drain) = watch::channel(false);
        let (closed, close) = watch::channel(false);
        let context = ListenerContext { shared: shared.clone(), local, draining: drain };
        for (number, (socket, worker)) in sockets.into_iter().zip(workers.handles()).enumerate() {
            let _inside = worker.enter();
            let socket = tokio::net::TcpListener::from_std(socket)?;
            worker.spawn(tcp::accept(socket, context.clone(), close.clone()));
            worker.spawn(quic::accept(endpoint.clone(), number, context.clone(), close.clone()));
        }
        Ok(Self { local, endpoint, draining, closed })
    }

    /// The address, with the port that it has got.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// From here on, handshakes are made as `generation` wants.
    pub(crate) fn adopt(&self, generation: &Generation) {
        self.endpoint.set_server_config(Some(quic::server_config(generation, self.local)));
    }

    /// Takes no connection more, and asks those that exist to end.
    pub(crate) fn drain(&self, generation: &Generation) {
        self.closed.send_replace(true);
        let shed = tiderace::ServerConfig { versions: Vec::new(), ..quic::server_config(generation, self.local) };
        self.endpoint.set_server_config(Some(shed));
        self.draining.send_replace(true);
    }
}
