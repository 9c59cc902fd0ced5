//! Services: streams that are answered inside the pass of the driver, without a task, a lock or a wake-up for each.
//!
//! A [`Service`] is called for what its connections have to read, and writes its answers at once. They leave in the same pass,
//! some at a time, so that the peer works on the first while the last are made.

use std::{any::Any, net::SocketAddr};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use transport::{
    CloseReason, Event, Handle,
    streams::{self, Order, Priority, ReadStatus, StreamEvent},
};
use units::Instant;
use wire::{Dir, StreamId};

use crate::error::{DatagramError, ReadError, WriteError, from_write};

/// Application whose streams are answered on the task that drives the socket: see
/// [`Endpoint::serve`](crate::Endpoint::serve).
///
/// A service costs less than a task for each stream, for answers that are made without waiting:
///
/// - A call does not block: all connections of the shard wait for its end.
/// - It uses no async handle ([`Connection`](crate::Connection), [`Endpoint`](crate::Endpoint), …) of its own endpoint: the endpoint is
///   locked during a call.
/// - A panic ends the shard, with all its connections.
///
/// Work that takes longer leaves the stream unanswered and answers it later: [`Endpoint::with_service`](crate::Endpoint::with_service).
pub trait Service: Send + 'static {
    /// State of a stream between two calls, for messages that come or leave in several parts.
    type Stream: Send + 'static;

    /// Decides about a connection whose handshake has just become complete. `false` leaves it to
    /// [`Endpoint::accept`](crate::Endpoint::accept).
    fn connected(&mut self, connection: &mut ServedConnection<'_>) -> bool {
        let _ = connection;
        true
    }

    /// Works on a stream that has something to read (data, its end or a reset), or room after a write that was cut short, or that the
    /// peer has stopped. What is unread stays in the flow control window of the peer.
    ///
    /// `kept` is what the call before has left there, `None` at first. It is dropped with the connection, and once the stream can be
    /// neither read nor written.
    fn stream(&mut self, stream: &mut ServedStream<'_>, kept: &mut Option<Self::Stream>);

    /// Takes datagrams that have arrived, until [`ServedConnection::recv_datagram`] has no more. The default discards them.
    fn datagrams(&mut self, connection: &mut ServedConnection<'_>) {
        while connection.recv_datagram().is_some() {}
    }

    /// Notes that a connection is over; nothing of it is called any more.
    fn closed(&mut self, connection: Handle, reason: &CloseReason) {
        let _ = (connection, reason);
    }
}

/// A connection during a call of its service.
pub struct ServedConnection<'a> {
    handle: Handle,
    now: Instant,
    inner: &'a mut transport::Connection,
}

impl ServedConnection<'_> {
    /// Name of the connection, unique among all of the shard.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// State machine of the connection, for queries.
    pub fn state(&self) -> &transport::Connection {
        self.inner
    }

    /// Last validated address of the peer.
    pub fn remote_address(&self) -> SocketAddr {
        self.inner.validated_remote()
    }

    /// Negotiated application protocol (ALPN).
    pub fn alpn(&self) -> Option<&[u8]> {
        self.inner.tls()?.alpn()
    }

    /// A stream of the connection, by its ID.
    pub fn stream(&mut self, id: StreamId) -> ServedStream<'_> {
        let Self { handle, now, inner } = self;
        ServedStream { connection: ServedConnection { handle: *handle, now: *now, inner }, id }
    }

    /// Opens a stream, whose events then come to [`Service::stream`]. `None` while the peer permits no more.
    pub fn open(&mut self, dir: Dir) -> Option<ServedStream<'_>> {
        let id = self.inner.open(dir)?;
        Some(self.stream(id))
    }

    /// Takes the next datagram from the peer.
    pub fn recv_datagram(&mut self) -> Option<Bytes> {
        self.inner.recv_datagram()
    }

    /// Queues an unreliable datagram. When the queue is full its oldest entry is dropped.
    ///
    /// # Errors
    /// When the peer takes none, or none of this size.
    pub fn send_datagram(&mut self, data: Bytes) -> Result<(), DatagramError> {
        Ok(self.inner.send_datagram(data)?)
    }

    /// Closes the connection at once. Data that is not delivered yet is discarded.
    pub fn close(&mut self, code: u64, reason: &[u8]) {
        self.inner.close(self.now, code, reason);
    }
}

/// A stream during a call of its service.
pub struct ServedStream<'a> {
    connection: ServedConnection<'a>,
    id: StreamId,
}

impl<'a> ServedStream<'a> {
    /// Stream ID.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The stream's connection.
    pub fn connection(&mut self) -> &mut ServedConnection<'a> {
        &mut self.connection
    }

    /// Gives `out` all that has arrived in order, without a copy. `true` once that was everything up to the end of the stream, which is
    /// said once.
    ///
    /// # Errors
    /// When the peer reset the stream, or it was read to its end or stopped before.
    pub fn read(&mut self, mut out: impl FnMut(Bytes)) -> Result<bool, ReadError> {
        let status = self.connection.inner.read_many(self.id, usize::MAX, Order::Ordered, |chunk| out(chunk.data));
        match status {
            Ok(ReadStatus::End) => Ok(true),
            Ok(ReadStatus::More | ReadStatus::Blocked) => Ok(false),
            Ok(ReadStatus::Reset(code)) => Err(ReadError::Reset(code)),
            Err(_) => Err(ReadError::StreamClosed),
        }
    }

    /// Takes as much of `data` as the send buffer has room for, without copying it. When some of it is left, [`Service::stream`] is called
    /// once there is room again.
    ///
    /// # Errors
    /// When the peer asked to stop, or the stream is finished or reset.
    pub fn write(&mut self, data: &mut Bytes) -> Result<(), WriteError> {
        while !data.is_empty() {
            match self.connection.inner.write(self.id, data) {
                Ok(_) => {}
                Err(streams::WriteError::Blocked) => return Ok(()),
                Err(error) => return Err(from_write(error)),
            }
        }
        Ok(())
    }

    /// As [`write`](Self::write), and ends the stream behind `data` once all of it was taken, which `true` says. After `false` the rest is
    /// to be given again.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_last(&mut self, data: &mut Bytes) -> Result<bool, WriteError> {
        match self.connection.inner.write_last(self.id, data) {
            Ok(()) => Ok(true),
            Err(streams::WriteError::Blocked) => Ok(false),
            Err(error) => Err(from_write(error)),
        }
    }

    /// Ends the stream after what was written. Delivery goes on in the background.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn finish(&mut self) -> Result<(), WriteError> {
        self.connection.inner.finish(self.id).map_err(from_write)
    }

    /// Resets the stream with an application error code: data that is not delivered yet is not sent any more.
    ///
    /// # Errors
    /// When the stream is over.
    pub fn reset(&mut self, code: u64) -> Result<(), WriteError> {
        self.connection.inner.reset(self.id, code).map_err(from_write)
    }

    /// Asks the peer to stop sending, and discards what has arrived.
    ///
    /// # Errors
    /// When the stream was read to its end or stopped before.
    pub fn stop(&mut self, code: u64) -> Result<(), ReadError> {
        self.connection.inner.stop_sending(self.id, code).map_err(|_| ReadError::StreamClosed)
    }

    /// Sets the priority of the stream.
    ///
    /// # Errors
    /// When the stream is over.
    pub fn set_priority(&mut self, priority: Priority) -> Result<(), WriteError> {
        self.connection.inner.set_priority(self.id, priority).map_err(from_write)
    }
}

/// A service of any kind, as the driver calls it.
pub(crate) trait Serve: Any + Send {
    /// Decides about a connection, and works on the streams that came before the end of its handshake.
    fn connected(&mut self, now: Instant, handle: Handle, connection: &mut transport::Connection) -> bool;
    /// Passes an event of a served connection on, except for its end. `true` when the application was called, and may have written.
    fn event(&mut self, now: Instant, handle: Handle, connection: &mut transport::Connection, event: &Event) -> bool;
    fn closed(&mut self, handle: Handle, reason: &CloseReason);
}

/// A service with the state of its streams.
pub(crate) struct Running<S: Service> {
    service: S,
    /// Nearly always empty: few messages are cut into parts.
    kept: FxHashMap<Handle, FxHashMap<StreamId, S::Stream>>,
}

impl<S: Service> Running<S> {
    pub(crate) fn new(service: S) -> Self {
        Self { service, kept: FxHashMap::default() }
    }

    /// Lets the application act on the service and a connection of it.
    pub(crate) fn act<T>(
        &mut self,
        now: Instant,
        handle: Handle,
        connection: &mut transport::Connection,
        act: impl FnOnce(&mut S, &mut ServedConnection<'_>) -> T,
    ) -> T {
        act(&mut self.service, &mut ServedConnection { handle, now, inner: connection })
    }

    fn stream(&mut self, now: Instant, handle: Handle, connection: &mut transport::Connection, id: StreamId) {
        let mut kept = self.kept.get_mut(&handle).and_then(|streams| streams.remove(&id));
        let mut stream = ServedStream { connection: ServedConnection { handle, now, inner: connection }, id };
        self.service.stream(&mut stream, &mut kept);
        if let Some(kept) = kept
            && connection.can_use(id)
        {
            self.kept.entry(handle).or_default().insert(id, kept);
        }
    }
}

impl<S: Service> Serve for Running<S> {
    fn connected(&mut self, now: Instant, handle: Handle, connection: &mut transport::Connection) -> bool {
        let served = self.service.connected(&mut ServedConnection { handle, now, inner: connection });
        if served {
            for dir in [Dir::Bi, Dir::Uni] {
                while let Some(id) = connection.accept(dir) {
                    self.stream(now, handle, connection, id);
                }
            }
        }
        served
    }

    fn event(&mut self, now: Instant, handle: Handle, connection: &mut transport::Connection, event: &Event) -> bool {
        match *event {
            Event::Stream(event) => match event {
                // Each with something to read has an event of its own.
                StreamEvent::Opened { dir } => {
                    while connection.accept(dir).is_some() {}
                    false
                }
                // What came with the handshake was read at once.
                StreamEvent::Readable { id } if !connection.can_use(id) => false,
                StreamEvent::Readable { id } | StreamEvent::Writable { id } | StreamEvent::Stopped { id, .. } => {
                    self.stream(now, handle, connection, id);
                    true
                }
                StreamEvent::Finished { .. } | StreamEvent::StreamsAvailable { .. } => false,
            },
            Event::DatagramsReadable => {
                self.service.datagrams(&mut ServedConnection { handle, now, inner: connection });
                true
            }
            _ => false,
        }
    }

    fn closed(&mut self, handle: Handle, reason: &CloseReason) {
        self.kept.remove(&handle);
        self.service.closed(handle, reason);
    }
}
