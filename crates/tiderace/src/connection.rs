//! Handle to a connection.

use std::{
    future::{Future, poll_fn},
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use transport::{
    CloseReason, Handle, MigrateError, Stats, fec::DatagramFlow, memory::ConnectionBudget, streams::Priority,
    tls::EarlyData,
};
use units::Duration;
use wire::{ConnectionId, Dir, StreamId};

use crate::{
    error::{ConnectError, DatagramError, WriteError},
    held::Held,
    shared::{Shared, Wait, Waiters},
    stream::{RecvStream, SendStream},
};

/// Connection whose handshake is in progress. Dropping it abandons the connection.
#[derive(Debug)]
pub struct Connecting(Option<Connection>);

impl Connecting {
    pub(crate) fn new(connection: Connection) -> Self {
        Self(Some(connection))
    }

    /// Returns the connection before its handshake is complete, when a session with the server is resumed and it takes early
    /// data: data on streams of [`Connection::open_bi_early`] arrives half a round trip later. Other streams wait for the
    /// handshake.
    ///
    /// # Errors
    /// Returns itself if there is no session to resume.
    pub fn into_early(mut self) -> Result<Connection, Self> {
        match self.0.take() {
            Some(connection) if connection.early_data() == EarlyData::Offered => Ok(connection),
            connection => Err(Self(connection)),
        }
    }
}

impl Future for Connecting {
    type Output = Result<Connection, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let connection = self.0.as_ref().expect("not polled after it was ready");
        let mut state = connection.held.shared.lock();
        let waiters = state.connections.get_mut(&connection.held.handle).expect("kept while there are handles");
        if let Some(reason) = &waiters.closed {
            return Poll::Ready(Err(reason.clone().into()));
        }
        if !waiters.connected {
            waiters.wait(Wait::State, cx.waker());
            return Poll::Pending;
        }
        drop(state);
        Poll::Ready(Ok(self.0.take().expect("taken once")))
    }
}

/// Connection. Clones refer to the same one. Dropping the last handle, streams included, closes it.
#[derive(Clone)]
pub struct Connection {
    pub(crate) held: Arc<Held>,
}

impl Connection {
    /// The first handle of a connection that is marked as [held](State::hold).
    pub(crate) fn new(shared: Arc<Shared>, handle: Handle) -> Self {
        Self { held: Arc::new(Held { shared, handle }) }
    }

    /// Outcome of early data.
    pub fn early_data(&self) -> EarlyData {
        let state = self.held.shared.lock();
        state.endpoint.connection(self.held.handle).map_or(EarlyData::None, transport::Connection::early_data)
    }

    /// Waits until the handshake is complete: data received before may be a replay.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn established(&self) -> Result<(), CloseReason> {
        poll_fn(|cx| {
            let mut state = self.held.shared.lock();
            let waiters = state.connections.get_mut(&self.held.handle).expect("kept while there are handles");
            if let Some(reason) = &waiters.closed {
                return Poll::Ready(Err(reason.clone()));
            }
            if waiters.connected {
                return Poll::Ready(Ok(()));
            }
            waiters.wait(Wait::State, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Accepts the next bidirectional stream that the peer opened.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn accept_bi(&self) -> Result<(SendStream, RecvStream), CloseReason> {
        let id = self.accept(Dir::Bi).await?;
        Ok((SendStream::new(self.held.clone(), id), RecvStream::new(self.held.clone(), id)))
    }

    /// Accepts the next unidirectional stream that the peer opened.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn accept_uni(&self) -> Result<RecvStream, CloseReason> {
        let id = self.accept(Dir::Uni).await?;
        Ok(RecvStream::new(self.held.clone(), id))
    }

    async fn accept(&self, dir: Dir) -> Result<StreamId, CloseReason> {
        poll_fn(|cx| self.poll_accept(cx, dir)).await
    }

    fn poll_accept(&self, cx: &mut Context<'_>, dir: Dir) -> Poll<Result<StreamId, CloseReason>> {
        self.with(|waiters, connection| {
            if let Some(id) = connection.accept(dir) {
                return Poll::Ready(Ok(id));
            }
            waiters.wait(Wait::Accept(dir), cx.waker());
            Poll::Pending
        })
        .unwrap_or_else(|reason| Poll::Ready(Err(reason)))
    }

    /// Poll form of [`accept_bi`](Self::accept_bi), for futures written by hand.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn poll_accept_bi(&self, cx: &mut Context<'_>) -> Poll<Result<(SendStream, RecvStream), CloseReason>> {
        let id = ready!(self.poll_accept(cx, Dir::Bi))?;
        Poll::Ready(Ok((SendStream::new(self.held.clone(), id), RecvStream::new(self.held.clone(), id))))
    }

    /// Poll form of [`accept_uni`](Self::accept_uni), for futures written by hand.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn poll_accept_uni(&self, cx: &mut Context<'_>) -> Poll<Result<RecvStream, CloseReason>> {
        let id = ready!(self.poll_accept(cx, Dir::Uni))?;
        Poll::Ready(Ok(RecvStream::new(self.held.clone(), id)))
    }

    /// Queues an unreliable datagram. When the queue is full its oldest entry is dropped: see
    /// [`Stats::datagram_frames_dropped`].
    ///
    /// # Errors
    /// When the peer does not accept datagrams, or not of this size, or the connection has ended.
    pub fn send_datagram(&self, data: Bytes) -> Result<(), DatagramError> {
        let mut state = self.held.shared.lock();
        let sent = self.held.act(&mut state, |_, connection| connection.send_datagram(data))?;
        state.wake_driver();
        Ok(sent?)
    }

    /// Queues an unreliable datagram of a flow, which sets protection by forward error correction and expiry.
    /// [`Stats::datagram_frames_expired`] counts datagrams that expire unsent.
    ///
    /// # Errors
    /// As [`send_datagram`](Self::send_datagram).
    pub fn send_datagram_in(&self, flow: &DatagramFlow, data: Bytes) -> Result<(), DatagramError> {
        let mut state = self.held.shared.lock();
        let now = self.held.shared.clock.now();
        let sent = self.held.act(&mut state, |_, connection| connection.send_datagram_in(now, flow, data))?;
        state.wake_driver();
        Ok(sent?)
    }

    /// Queues an unreliable datagram as soon as the queue has room for it, so that none is dropped unsent.
    ///
    /// # Errors
    /// As [`send_datagram`](Self::send_datagram).
    pub async fn send_datagram_wait(&self, data: Bytes) -> Result<(), DatagramError> {
        poll_fn(|cx| {
            let mut state = self.held.shared.lock();
            let sent = self.held.act(&mut state, |waiters, connection| {
                if connection.has_datagram_room(data.len()) {
                    return Some(connection.send_datagram(data.clone()));
                }
                waiters.wait(Wait::DatagramRoom, cx.waker());
                None
            })?;
            let Some(sent) = sent else { return Poll::Pending };
            state.wake_driver();
            Poll::Ready(sent.map_err(Into::into))
        })
        .await
    }

    /// Receives the next datagram from the peer.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn read_datagram(&self) -> Result<Bytes, CloseReason> {
        poll_fn(|cx| self.poll_read_datagram(cx)).await
    }

    /// Poll form of [`read_datagram`](Self::read_datagram), for futures written by hand.
    ///
    /// # Errors
    /// As [`read_datagram`](Self::read_datagram).
    pub fn poll_read_datagram(&self, cx: &mut Context<'_>) -> Poll<Result<Bytes, CloseReason>> {
        self.with(|waiters, connection| {
            if let Some(data) = connection.recv_datagram() {
                return Poll::Ready(Ok(data));
            }
            waiters.wait(Wait::Datagram, cx.waker());
            Poll::Pending
        })
        .unwrap_or_else(|reason| Poll::Ready(Err(reason)))
    }

    /// Takes up to `most` datagrams and appends them to `into`, the oldest first: fewer calls for packets with many small
    /// datagrams. Ready with their number, never 0 unless `most` is.
    ///
    /// # Errors
    /// As [`read_datagram`](Self::read_datagram).
    pub fn poll_read_datagrams(
        &self,
        cx: &mut Context<'_>,
        into: &mut Vec<Bytes>,
        most: usize,
    ) -> Poll<Result<usize, CloseReason>> {
        self.with(|waiters, connection| {
            let before = into.len();
            into.extend(std::iter::from_fn(|| connection.recv_datagram()).take(most));
            let taken = into.len() - before;
            if taken > 0 || most == 0 {
                return Poll::Ready(Ok(taken));
            }
            waiters.wait(Wait::Datagram, cx.waker());
            Poll::Pending
        })
        .unwrap_or_else(|reason| Poll::Ready(Err(reason)))
    }

    /// Memory budget of the connection. Layers above charge it for the peer's data that they hold. `None` when the connection has ended.
    pub fn memory_budget(&self) -> Option<ConnectionBudget> {
        Some(self.held.shared.lock().endpoint.connection(self.held.handle)?.memory_budget().clone())
    }

    /// Largest datagram that can be sent at the moment, in bytes; `None` when the peer takes none.
    pub fn max_datagram_size(&self) -> Option<usize> {
        self.held.shared.lock().endpoint.connection(self.held.handle)?.max_datagram_size()
    }

    /// Searches for the largest datagram size of the path without waiting for data that fills datagrams: for datagrams that do not fit yet.
    /// [`max_datagram_size`](Self::max_datagram_size) grows when larger ones have arrived.
    pub fn discover_mtu(&self) {
        let mut state = self.held.shared.lock();
        if let Some(connection) = state.endpoint.connection_mut(self.held.handle) {
            connection.discover_mtu(self.held.shared.clock.now());
            state.wake_driver();
        }
    }

    /// Closes the connection at once. Data that is not delivered yet is discarded.
    pub fn close(&self, code: u64, reason: &[u8]) {
        let mut state = self.held.shared.lock();
        if let Some(connection) = state.endpoint.connection_mut(self.held.handle) {
            connection.close(self.held.shared.clock.now(), code, reason);
            state.wake_driver();
        }
    }

    /// Waits until the connection has ended. Returns the reason.
    pub async fn closed(&self) -> CloseReason {
        poll_fn(|cx| {
            let mut state = self.held.shared.lock();
            let waiters = state.connections.get_mut(&self.held.handle).expect("kept while there are handles");
            if let Some(reason) = &waiters.closed {
                return Poll::Ready(reason.clone());
            }
            waiters.wait(Wait::State, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Reason for the end of the connection, if it has ended.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.held.shared.lock().connections.get(&self.held.handle)?.closed.clone()
    }

    /// Updates the keys of both directions as soon as that is allowed (RFC 9001 §6).
    pub fn update_keys(&self) {
        let mut state = self.held.shared.lock();
        if let Some(connection) = state.endpoint.connection_mut(self.held.handle) {
            connection.update_keys();
            state.wake_driver();
        }
    }

    /// Migrates this client to another address of its host, on the same socket: validates the path from `local`, and changes
    /// over when it works, which [`Stats::path_changes`] counts. For another socket see
    /// [`Endpoint::rebind`](crate::Endpoint::rebind).
    ///
    /// # Errors
    /// See [`MigrateError`]; [`MigrateError::NotEstablished`] also when the connection has ended.
    pub fn migrate(&self, local: IpAddr) -> Result<(), MigrateError> {
        let mut state = self.held.shared.lock();
        let now = self.held.shared.clock.now();
        let connection = state.endpoint.connection_mut(self.held.handle).ok_or(MigrateError::NotEstablished)?;
        connection.migrate(now, local)?;
        state.wake_driver();
        Ok(())
    }

    /// Returns whether this client may move to another address now: [`Endpoint::rebind`](crate::Endpoint::rebind) ends a connection that
    /// may not.
    ///
    /// # Errors
    /// See [`MigrateError`]; [`MigrateError::NotEstablished`] also when the connection has ended.
    pub fn may_migrate(&self) -> Result<(), MigrateError> {
        let state = self.held.shared.lock();
        state.endpoint.connection(self.held.handle).ok_or(MigrateError::NotEstablished)?.may_migrate()
    }

    /// Sends a PING, to find out whether the peer is reachable. Without effect once the connection has ended.
    pub fn ping(&self) {
        let mut state = self.held.shared.lock();
        if let Some(connection) = state.endpoint.connection_mut(self.held.handle) {
            connection.ping();
            state.wake_driver();
        }
    }

    /// Number of path challenges by the peer on the path in use; 0 once the connection is forgotten. A client that is
    /// challenged after a silence knows that its address has changed on the path: a NAT has lost its mapping.
    pub fn challenges_received(&self) -> u64 {
        let state = self.held.shared.lock();
        state.endpoint.connection(self.held.handle).map_or(0, transport::Connection::challenges_received)
    }

    /// Returns whether received data that nobody has read takes half of the connection's flow control window, or more: the peer may soon be
    /// unable to send on any stream (RFC 9000 §4.1). A client with a choice sends further requests on another connection.
    pub fn is_mostly_unread(&self) -> bool {
        let state = self.held.shared.lock();
        state.endpoint.connection(self.held.handle).is_some_and(transport::Connection::is_mostly_unread)
    }

    /// Statistics at this moment; `None` once the connection is forgotten.
    pub fn stats(&self) -> Option<Stats> {
        Some(self.held.shared.lock().endpoint.connection(self.held.handle)?.stats())
    }

    /// Changes the congestion controller; the state of the path is kept. Without effect if it is the one in use, or once the connection has
    /// ended.
    pub fn set_congestion(&self, algorithm: transport::congestion::Algorithm) {
        let mut state = self.held.shared.lock();
        if let Some(connection) = state.endpoint.connection_mut(self.held.handle) {
            connection.set_congestion(self.held.shared.clock.now(), algorithm);
            state.wake_driver();
        }
    }

    /// Congestion controller in use; `None` once the connection is forgotten.
    pub fn congestion(&self) -> Option<transport::congestion::Algorithm> {
        Some(self.held.shared.lock().endpoint.connection(self.held.handle)?.congestion())
    }

    /// Negotiated policy of forward error correction; `Off` once the connection is forgotten.
    pub fn fec(&self) -> transport::fec::FecPolicy {
        let state = self.held.shared.lock();
        state.endpoint.connection(self.held.handle).map_or(Default::default(), transport::Connection::fec)
    }

    /// Smoothed RTT; zero once the connection is forgotten.
    pub fn rtt(&self) -> Duration {
        self.held.shared.lock().endpoint.connection(self.held.handle).map_or(Duration::ZERO, transport::Connection::rtt)
    }

    /// Last validated address of the peer; `None` once the connection is forgotten. A server's connection that was accepted
    /// early may have none yet: then this is the source address of its first packet, see
    /// [`has_validated_address`](Self::has_validated_address).
    pub fn remote_address(&self) -> Option<SocketAddr> {
        Some(self.held.shared.lock().endpoint.connection(self.held.handle)?.validated_remote())
    }

    /// Returns whether [`remote_address`](Self::remote_address) is validated. Always true for a client, and for a server at the
    /// latest when the handshake is complete; `None` once the connection is forgotten.
    pub fn has_validated_address(&self) -> Option<bool> {
        Some(self.held.shared.lock().endpoint.connection(self.held.handle)?.has_validated_remote())
    }

    /// Address of the peer on the path in use. A single copied packet with a forged source can make it an attacker's for a
    /// while; `None` once the connection is forgotten. To identify the peer use [`remote_address`](Self::remote_address).
    pub fn unvalidated_remote_address(&self) -> Option<SocketAddr> {
        Some(self.held.shared.lock().endpoint.connection(self.held.handle)?.remote())
    }

    /// Number of the shard that drives the connection, counted from 0.
    pub fn shard(&self) -> usize {
        self.held.shared.shard.into()
    }

    /// Negotiated application protocol (ALPN).
    pub fn alpn(&self) -> Option<Vec<u8>> {
        Some(self.held.shared.lock().endpoint.connection(self.held.handle)?.tls()?.alpn()?.to_vec())
    }

    /// Waits until the peer sends STOP_SENDING for the stream `id`, or the stream or the connection has ended. For tasks that do not hold
    /// its [`SendStream`], and only while no task waits to write to it.
    pub fn poll_stopped(&self, cx: &mut Context<'_>, id: StreamId) -> Poll<WriteError> {
        self.held.poll_stopped(cx, id)
    }

    /// Sets a stream's priority like [`SendStream::set_priority`], for callers that do not hold the stream. Without effect on a stream that
    /// has ended.
    pub fn set_priority(&self, id: StreamId, priority: Priority) {
        let _ = self.with(|_, connection| connection.set_priority(id, priority));
    }

    /// Returns whether this end accepts RESET_STREAM_AT, and whether the peer does; the latter is known once the handshake is complete.
    pub fn accept_reset_at(&self) -> (bool, bool) {
        self.with(|_, connection| connection.accept_reset_at()).unwrap_or_default()
    }

    /// Bytes that were written to streams and that the peer has not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.with(|_, connection| connection.unacknowledged_bytes()).unwrap_or(0)
    }

    /// Version of QUIC in use: 1 (RFC 9000) or 0x6b3343cf (RFC 9369). `None` when the connection has ended.
    pub fn version(&self) -> Option<u32> {
        Some(self.held.shared.lock().endpoint.connection(self.held.handle)?.version())
    }

    /// Server name that the client requested (SNI), if any.
    pub fn server_name(&self) -> Option<String> {
        Some(self.held.shared.lock().endpoint.connection(self.held.handle)?.tls()?.server_name()?.to_owned())
    }

    /// Certificates of the peer in DER, its own first; empty if it has presented none. A resumed session has those of its first handshake,
    /// which may have expired.
    pub fn peer_certificates(&self) -> Vec<Vec<u8>> {
        let state = self.held.shared.lock();
        let tls = state.endpoint.connection(self.held.handle).and_then(|connection| connection.tls());
        tls.map_or_else(Vec::new, |tls| tls.peer_certificates().into_iter().map(<[u8]>::to_vec).collect())
    }

    /// Returns whether the handshake is complete. Until then all data of a client may be a replay.
    pub fn is_established(&self) -> bool {
        self.held.shared.lock().connections.get(&self.held.handle).is_some_and(|waiters| waiters.connected)
    }

    /// Adds an observer of the connection. To observe it from its first packet on, set the observer in the configuration of the client or
    /// the server: [`ClientConfig::observe`](transport::ClientConfig).
    pub fn set_observer(&self, observer: Box<dyn transport::observe::Observer>) {
        if let Some(connection) = self.held.shared.lock().endpoint.connection_mut(self.held.handle) {
            connection.set_observer(observer);
        }
    }

    /// Adds an observer that first receives the state of the connection: see [`transport::Connection::watch`].
    pub fn watch(&self, observer: Box<dyn transport::observe::Observer>) {
        let mut state = self.held.shared.lock();
        let now = self.held.shared.clock.now();
        if let Some(connection) = state.endpoint.connection_mut(self.held.handle) {
            connection.watch(now, observer);
        }
    }

    /// Connection IDs of the connection in logs of others: the client's first Destination Connection ID, then those of this endpoint. Empty
    /// once it has ended.
    pub fn ids(&self) -> Vec<ConnectionId> {
        let state = self.held.shared.lock();
        state.endpoint.connection(self.held.handle).map_or_else(Vec::new, |connection| connection.ids().collect())
    }

    /// Runs a query on the connection that needs no datagram to be sent.
    pub(crate) fn with<T>(
        &self,
        act: impl FnOnce(&mut Waiters, &mut transport::Connection) -> T,
    ) -> Result<T, CloseReason> {
        self.held.with(act)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({:?})", self.held.handle)
    }
}
