//! Hand-over of an endpoint's sockets to another process: the newer one takes every new connection, and this one drains its own.
//!
//! Order: the older process stops reading and lists the handshakes in progress; the newer one reads from then on. Datagrams that arrive in
//! between wait in the sockets. Both send through the same sockets.

use std::{io, net::UdpSocket, os::unix::net::UnixDatagram, sync::Arc};

use transport::{SiblingShard, Siblings};
use wire::ConnectionId;

use crate::{
    endpoint::{Endpoint, EndpointOptions, config_of},
    siblings::{self, Links, Sibling},
};

/// Connection ID of a handshake in progress, and its shard.
pub type HandshakeId = (ConnectionId, u8);

impl Endpoint {
    /// Takes over the sockets of another process, one for each shard, in their order. Reads only after [`set_reading`](Self::set_reading).
    /// Must be called within a tokio runtime.
    ///
    /// With more [`shards`](EndpointOptions::shards) than sockets, those of the last shards are missing until
    /// [`open_missing`](Self::open_missing). With fewer, there is one shard for each socket: a socket that is closed loses the packets in it.
    ///
    /// # Errors
    /// When a socket cannot be prepared, or there are none or too many, or more cannot join them.
    pub fn take_over(sockets: Vec<UdpSocket>, mut options: EndpointOptions) -> io::Result<Self> {
        if sockets.is_empty() || sockets.len() > usize::from(u8::MAX) {
            let reason = format!("{} sockets cannot be taken over\nhint: from 1 to 255 can", sockets.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let is_short = sockets.len() < usize::from(options.shards.count.get());
        if is_short && options.generation.is_none() {
            let reason = "connection IDs do not show the process\nhint: give the endpoint a generation";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let config = config_of(&mut options)?;
        let this = Self::assemble(sockets, config, options, false)?;
        if is_short && !this.steering.may_grow() {
            let fault = this.steering_fault().unwrap_or_default();
            let reason = format!("no more sockets can join those of older processes: {fault}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        Ok(this)
    }

    /// Opens the sockets that are missing. No other process may read then: the kernel may pass packets to them at once. Does nothing if none
    /// is missing.
    ///
    /// # Errors
    /// When the system gives no socket.
    pub fn open_missing(&self) -> io::Result<()> {
        let Some(first) = self.sockets.first() else { return Ok(()) };
        let missing = &self.shards[self.sockets.len()..];
        if missing.is_empty() || self.joined.get().is_some() {
            return Ok(());
        }
        let join = |shared: &Arc<crate::shared::Shared>| self.steering.join(shared.shard, first);
        let joined = missing.iter().map(join).collect::<io::Result<Vec<_>>>()?;
        for (shared, socket) in missing.iter().zip(&joined) {
            let mut state = shared.lock();
            state.joined = Some(socket.try_clone()?);
            state.wake_driver();
        }
        // Nobody else sets it.
        let _ = self.joined.set(joined);
        Ok(())
    }

    /// Returns whether this process may open sockets beside `socket` ([`open_missing`](Self::open_missing)): the kernel asks for the same user.
    ///
    /// # Errors
    /// When the system gives no socket to compare with.
    pub fn may_join(socket: &UdpSocket) -> io::Result<bool> {
        crate::reuseport::may_join(socket)
    }

    /// Copies of the sockets, for another process; none without [`EndpointOptions::generation`].
    pub fn sockets(&self) -> impl Iterator<Item = &UdpSocket> + Clone {
        self.sockets.iter().chain(self.joined.get().into_iter().flatten())
    }

    /// Starts or stops reading the sockets, which another process may read. When this returns after a stop, nothing is read any more.
    /// Sending continues. From a start on, the kernel spreads packets over the sockets of this endpoint.
    pub fn set_reading(&self, reading: bool) {
        if let Some(first) = self.sockets.first().filter(|_| reading)
            && let Err(error) = self.steering.spread(first)
        {
            tracing::error!("the kernel spreads packets over the sockets of another process: {error}");
        }
        for shared in &self.shards {
            let mut state = shared.lock();
            state.reading = reading;
            state.wake_driver();
        }
    }

    /// Opens the inbox for datagrams that another process reads for this one. Returns the ends for sending, one for each shard.
    ///
    /// # Errors
    /// When the system gives no sockets.
    pub fn open_inbox(&self) -> io::Result<Vec<UnixDatagram>> {
        let pairs = self.shards.iter().map(|_| siblings::pair()).collect::<io::Result<Vec<_>>>()?;
        let take = |(shared, (sender, receiver)): (&Arc<crate::shared::Shared>, _)| {
            let mut state = shared.lock();
            // Without a receiver, the process that reads learns that a lost shard has no connections.
            if !state.is_lost() {
                state.inbox = Some(receiver);
                state.wake_driver();
            }
            sender
        };
        Ok(self.shards.iter().zip(pairs).map(take).collect())
    }

    /// Returns the connection IDs of handshakes that are not complete, at most `most` of them.
    pub fn handshakes(&self, most: usize) -> Vec<HandshakeId> {
        let mut ids = Vec::new();
        for shared in &self.shards {
            let state = shared.lock();
            ids.extend(state.endpoint.handshake_ids().take(most - ids.len()).map(|id| (id, shared.shard)));
        }
        ids
    }

    /// Sets the other processes at this address. `handshakes` are those that began there.
    pub fn set_siblings(
        &self,
        siblings: &[Arc<Sibling>],
        handshakes: impl IntoIterator<Item = (ConnectionId, SiblingShard)>,
    ) {
        let mut known = Siblings::default();
        siblings.iter().for_each(|sibling| known.add(sibling.generation));
        let live = |shard: &SiblingShard| siblings.iter().any(|sibling| sibling.generation == shard.generation);
        handshakes.into_iter().filter(|(_, shard)| live(shard)).for_each(|(id, shard)| known.add_handshake(id, shard));
        let (known, links) = (Arc::new(known), Links::new(siblings));
        for shared in &self.shards {
            let mut state = shared.lock();
            state.endpoint.set_siblings(known.clone());
            state.links = links.clone();
        }
    }

    /// Number of connections, with incomplete handshakes and closing ones.
    pub fn open_connections(&self) -> usize {
        self.shards.iter().map(|shared| shared.lock().endpoint.open_connections()).sum()
    }
}
