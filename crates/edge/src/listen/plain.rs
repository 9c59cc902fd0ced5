//! Listener for plain HTTP: redirects every request to the same URL with https, and closes the connection.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::watch, task::AbortHandle};

use super::Accepting;
use crate::{generation::Shared, site::to_https};

/// Bytes of a request's head that are read, at most. Hyper wants 8 KiB at least.
const HEAD: usize = 8 * 1024;

/// An open address of plain HTTP. When dropped, it accepts no more connections.
pub(crate) struct PlainListener {
    local: SocketAddr,
    task: AbortHandle,
    accepting: watch::Sender<Accepting>,
    /// A copy for a process that takes over.
    socket: std::net::TcpListener,
}

impl PlainListener {
    /// Opens an address that redirects to `port`. Must be called within a tokio runtime.
    pub(crate) fn open(address: SocketAddr, port: u16, shared: &Arc<Shared>) -> io::Result<Self> {
        Self::assemble(std::net::TcpListener::bind(address)?, Accepting::Open, port, shared)
    }

    /// Serves on a socket that the service manager has opened. Must be called within a tokio runtime.
    pub(crate) fn on_socket(socket: std::net::TcpListener, port: u16, shared: &Arc<Shared>) -> io::Result<Self> {
        Self::assemble(socket, Accepting::Open, port, shared)
    }

    /// Takes over the socket of another process. Accepts only after [`set_accepting`](Self::set_accepting).
    pub(crate) fn take_over(socket: std::net::TcpListener, port: u16, shared: &Arc<Shared>) -> io::Result<Self> {
        Self::assemble(socket, Accepting::Paused, port, shared)
    }

    fn assemble(socket: std::net::TcpListener, state: Accepting, port: u16, shared: &Arc<Shared>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        let listener = TcpListener::from_std(socket.try_clone()?)?;
        let (accepting, states) = watch::channel(state);
        let task = tokio::spawn(accept(listener, port, shared.clone(), states)).abort_handle();
        Ok(Self { local, task, accepting, socket })
    }

    /// Leaves connections to another process, or accepts them again.
    pub(crate) fn set_accepting(&self, accepting: bool) {
        self.accepting.send_replace(if accepting { Accepting::Open } else { Accepting::Paused });
    }

    /// A copy of the socket, for another process.
    pub(crate) fn socket(&self) -> &std::net::TcpListener {
        &self.socket
    }

    /// Local address, with the actual port.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for PlainListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, port: u16, shared: Arc<Shared>, mut accepting: watch::Receiver<Accepting>) {
    loop {
        if accepting.wait_for(|state| *state == Accepting::Open).await.is_err() {
            return;
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            changed = accepting.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        let Ok((stream, remote)) = accepted else {
            // Out of file descriptors, most likely: others have to end first.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let generation = shared.current();
        let limits = &generation.config.limits;
        let place = shared.admission.enter(remote.ip(), limits.connections, generation.connections_of(remote.ip()));
        let Ok(place) = place else { continue };
        let Some(listed) = shared.memory.enlist(HEAD as u64) else {
            shared.metrics.memory.refused.inc();
            continue;
        };
        let (limit, redirected) = (limits.fields_timeout.0, shared.metrics.redirected.clone());
        tokio::spawn(async move {
            let (_place, close) = (place, listed.close.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                redirected.inc();
                let response = to_https(request.uri(), request.headers(), port);
                async { Ok::<_, Infallible>(response) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(limit).max_buf_size(HEAD).keep_alive(false);
            // A client that neither reads nor closes has as long again.
            let serving = tokio::time::timeout(2 * limit, builder.serve_connection(TokioIo::new(stream), service));
            tokio::select! {
                _ = serving => {}
                () = close.notified() => {}
            }
            drop(listed);
        });
    }
}
