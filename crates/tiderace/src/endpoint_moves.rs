//! Changes of an endpoint's socket: at once, or once the path from another one is validated.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::PoisonError,
};

use tokio::sync::oneshot;

use crate::{endpoint::Endpoint, next_socket::NextSocket, socket::Socket};

impl Endpoint {
    /// Replaces the socket, for example because the host has moved to another network.
    ///
    /// - Connections of this client migrate at once, and validate the new path while data flows.
    /// - Accepted connections continue if their clients still reach this endpoint.
    /// - While a client of this endpoint is in its handshake, the change waits for its end (RFC 9000 §9).
    /// - A connection whose server forbids migration, or has provided no connection ID for it, ends
    ///   ([`CloseReason::Stranded`](transport::CloseReason::Stranded)).
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be prepared, or the endpoint has several shards; the old socket stays.
    pub fn rebind(&self, socket: UdpSocket) -> io::Result<()> {
        let [shard] = &self.shards[..] else { return Err(several_shards()) };
        let local = socket.local_addr()?;
        let socket = Socket::new(socket)?;
        let ip = Some(local.ip()).filter(|ip| !ip.is_unspecified());
        let mut state = shard.lock();
        state.replacement = Some((socket, ip));
        *self.local.lock().unwrap_or_else(PoisonError::into_inner) = local;
        state.wake_driver();
        Ok(())
    }

    /// Moves the connections of this client to another socket, each when the path from there is validated. Until then they use the socket in
    /// use, and both are read for a second after the move.
    ///
    /// The socket has to be bound to an address, and to another one than the socket in use. `hold` names the interface on which the socket in
    /// use stays from here on (Linux), because a new route may lead its packets into the other network.
    ///
    /// Returns whether a connection has moved. None does that may not migrate ([`Connection::may_migrate`](crate::Connection::may_migrate)),
    /// or whose server does not answer there within three PTOs. Dropping the future does not end the move; [`rebind`](Self::rebind) and
    /// another call do.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be prepared or has no address, the endpoint has several shards or has ended, or another move took the place.
    pub async fn migrate(&self, socket: UdpSocket, hold: Option<&str>) -> io::Result<bool> {
        let local = socket.local_addr()?;
        let outcome = self.begin_move(socket, local, hold)?;
        let has_moved = outcome.await.map_err(|_| io::Error::other("the endpoint has ended, or moves elsewhere"))?;
        if has_moved {
            *self.local.lock().unwrap_or_else(PoisonError::into_inner) = local;
        }
        Ok(has_moved)
    }

    fn begin_move(
        &self,
        socket: UdpSocket,
        local: SocketAddr,
        hold: Option<&str>,
    ) -> io::Result<oneshot::Receiver<bool>> {
        let [shard] = &self.shards[..] else { return Err(several_shards()) };
        if local.ip().is_unspecified() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket has no address to move to"));
        }
        let socket = Socket::new(socket)?;
        let (outcome, receiver) = oneshot::channel();
        let mut state = shard.lock();
        let hold = hold.map(str::to_owned);
        state.next = Some(Box::new(NextSocket { socket, local: local.ip(), hold, outcome }));
        state.wake_driver();
        Ok(receiver)
    }
}

fn several_shards() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "an endpoint with several shards keeps its sockets")
}
