//! Commands of the application to a connection.

use std::sync::Arc;

use bytes::Bytes;
use units::Instant;
use wire::{Dir, StreamId};

use super::{Connection, lifecycle::CloseFrame};
use crate::{
    congestion::Algorithm,
    datagrams::{DatagramFate, SendDatagramError},
    events::{CloseReason, Event},
    fec::{DatagramFlow, Protection},
    streams::{Chunk, Order, Priority, ReadError, ReadStatus, ReceivedBytes, ResetAtError, Unread, WriteError},
};

/// Commands. Drain `poll_transmit` afterwards.
impl Connection {
    /// Opens a stream. `None` while the peer's limit is reached; `StreamsAvailable` follows when it rises.
    pub fn open(&mut self, dir: Dir) -> Option<StreamId> {
        if self.lifecycle.is_open() { self.packets.sources.streams.open(dir) } else { None }
    }

    /// Changes the congestion controller on all paths. Estimates of the path are kept; packets in flight stay in flight. Without effect if
    /// it is the one in use.
    pub fn set_congestion(&mut self, now: Instant, algorithm: Algorithm) {
        if self.profile.congestion == algorithm {
            return;
        }
        Arc::make_mut(&mut self.profile).congestion = algorithm;
        let config = self.profile.recovery_config();
        let seeds = self.packets.random.controller_seeds();
        for (number, path) in self.paths.iter_mut().enumerate() {
            path.recovery.change_controller(now, &config, seeds(number));
        }
    }

    /// Streams that are live: not both parts over, acknowledged and known to the application.
    pub fn live_streams(&self) -> usize {
        self.packets.sources.streams.live()
    }

    /// The congestion control in use.
    pub fn congestion(&self) -> Algorithm {
        self.profile.congestion
    }

    /// The next stream that the peer opened, in the order of their numbers.
    pub fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.packets.sources.streams.accept(dir)
    }

    /// Takes a prefix of `data` to send; returns its length. The rest stays in `data`.
    ///
    /// # Errors
    /// [`WriteError::Blocked`] when the send buffer is full: `Writable` follows.
    pub fn write(&mut self, id: StreamId, data: &mut Bytes) -> Result<usize, WriteError> {
        if !self.lifecycle.is_open() {
            return Err(WriteError::Closed);
        }
        self.packets.sources.streams.write(id, data)
    }

    /// Takes all of `data` to send, and ends the stream behind it.
    ///
    /// # Errors
    /// [`WriteError::Blocked`] when the send buffer is full: `Writable` follows. What it did not take stays in `data`.
    pub fn write_last(&mut self, id: StreamId, data: &mut Bytes) -> Result<(), WriteError> {
        if !self.lifecycle.is_open() {
            return Err(WriteError::Closed);
        }
        self.packets.sources.streams.write_last(id, data)
    }

    /// Ends the stream after the written data.
    ///
    /// # Errors
    /// When the stream is not open for sending.
    pub fn finish(&mut self, id: StreamId) -> Result<(), WriteError> {
        self.packets.sources.streams.finish(id)
    }

    /// Returns whether the application can still read the stream or write to it.
    pub fn can_use(&mut self, id: StreamId) -> bool {
        self.packets.sources.streams.can_use(id)
    }

    /// Gives the sending side up: what the peer has not received is not sent any more (RFC 9000 §19.4).
    ///
    /// # Errors
    /// When the stream is not open for sending.
    pub fn reset(&mut self, id: StreamId, code: u64) -> Result<(), WriteError> {
        self.packets.sources.streams.reset(id, code)
    }

    /// Resets the sending part, except for its first `reliable_size` bytes, which the peer reads (draft-ietf-quic-reliable-stream-reset).
    ///
    /// # Errors
    /// Errors when the peer does not accept it, the size is above what was written or named before, or the stream has ended.
    pub fn reset_at(&mut self, id: StreamId, code: u64, reliable_size: u64) -> Result<(), ResetAtError> {
        self.packets.sources.streams.reset_at(id, code, reliable_size)
    }

    /// Returns whether this end accepts RESET_STREAM_AT, and whether the peer does.
    pub fn accept_reset_at(&self) -> (bool, bool) {
        self.packets.sources.streams.accept_reset_at()
    }

    /// Bytes of a stream that the peer has used credit for. `None` when the stream has no receiving part any more.
    pub fn received(&mut self, id: StreamId) -> Option<ReceivedBytes> {
        self.packets.sources.streams.received(id)
    }

    /// Bytes of a stream that were sent at least once. `None` when the stream has no sending part any more.
    pub fn sent(&mut self, id: StreamId) -> Option<u64> {
        self.packets.sources.streams.sent(id)
    }

    /// Asks the peer not to send more on the stream (RFC 9000 §19.5).
    ///
    /// # Errors
    /// When the stream is not open for receiving.
    pub fn stop_sending(&mut self, id: StreamId, code: u64) -> Result<(), ReadError> {
        self.packets.sources.streams.stop_sending(id, code)
    }

    /// Sets the priority of a stream.
    ///
    /// # Errors
    /// When the stream is not open for sending.
    // RFC 9000 §2.3 SHOULD-1: the application can say which streams go first
    pub fn set_priority(&mut self, id: StreamId, priority: Priority) -> Result<(), WriteError> {
        self.packets.sources.streams.set_priority(id, priority)
    }

    /// Returns whether a stream's data is worth repair symbols, where the connection makes some (`fec` of its profile).
    ///
    /// # Errors
    /// When the stream is not open for sending.
    pub fn set_protection(&mut self, id: StreamId, protection: Protection) -> Result<(), WriteError> {
        self.packets.sources.streams.set_protection(id, protection)
    }

    /// Bytes written to streams that the peer has not acknowledged.
    pub fn unacknowledged_bytes(&self) -> u64 {
        self.packets.sources.streams.unacknowledged_bytes()
    }

    /// Returns whether reading has freed flow control credit to announce: `poll_transmit` has a packet.
    pub fn wants_to_send_credit(&self) -> bool {
        self.packets.sources.streams.wants_to_send()
    }

    /// At most `max` bytes of a stream. `None` when everything was read up to its end.
    ///
    /// # Errors
    /// [`ReadError::Blocked`] without data: `Readable` follows.
    pub fn read(&mut self, id: StreamId, max: usize, order: Order) -> Result<Option<Chunk>, ReadError> {
        self.packets.sources.streams.read(id, max, order)
    }

    /// Passes the next chunks of a stream to `out` until they are `enough` bytes or more, or no more can be read, and returns the reason.
    ///
    /// # Errors
    /// When the stream was read to its end or stopped before, or there is none.
    pub fn read_many(
        &mut self,
        id: StreamId,
        enough: usize,
        order: Order,
        out: impl FnMut(Chunk),
    ) -> Result<ReadStatus, ReadError> {
        self.packets.sources.streams.read_many(id, enough, order, out)
    }

    /// Records the fate of each datagram, for measurements.
    pub fn record_datagram_fates(&mut self) {
        self.packets.sources.datagrams.record_fates();
    }

    /// Fates of datagrams since the last call, numbered from 0 as they were taken. Empty unless [recorded](Self::record_datagram_fates).
    pub fn take_datagram_fates(&mut self) -> Vec<(u64, DatagramFate)> {
        self.packets.sources.datagrams.take_fates()
    }

    /// Takes the unread data of all streams: a connection that has ended discards it soon.
    pub fn take_unread(&mut self) -> Vec<(StreamId, Unread)> {
        self.packets.sources.streams.take_unread()
    }

    /// Queues an unreliable datagram (RFC 9221). When the queue is full, its oldest entry is dropped and reported.
    ///
    /// # Errors
    /// When the peer takes none, or none of this size.
    pub fn send_datagram(&mut self, data: Bytes) -> Result<(), SendDatagramError> {
        self.packets.sources.datagrams.send(data).map(|_| ())
    }

    /// As [`send_datagram`](Self::send_datagram), as one of a flow: whether and how it is protected, and when it is worthless.
    ///
    /// # Errors
    /// As [`send_datagram`](Self::send_datagram).
    pub fn send_datagram_in(
        &mut self,
        now: Instant,
        flow: &DatagramFlow,
        data: Bytes,
    ) -> Result<(), SendDatagramError> {
        self.packets.sources.datagrams.send_in(now, flow, data).map(|_| ())
    }

    /// Returns whether a datagram of `len` bytes can be queued without dropping another. After `false`,
    /// [`Event::DatagramsWritable`](crate::Event) follows once it can.
    pub fn has_datagram_room(&mut self, len: usize) -> bool {
        self.packets.sources.datagrams.has_room(len)
    }

    /// The next datagram from the peer.
    pub fn recv_datagram(&mut self) -> Option<Bytes> {
        self.packets.sources.datagrams.recv()
    }

    /// The largest datagram that can be sent at the moment, in bytes; `None` when the peer takes none.
    pub fn max_datagram_size(&self) -> Option<usize> {
        self.packets.sources.datagrams.max_size()
    }

    /// Closes the connection: from here on only CONNECTION_CLOSE is sent.
    pub fn close(&mut self, now: Instant, code: u64, reason: &[u8]) {
        if self.lifecycle.is_open() {
            let frame = CloseFrame::Application { code, reason: reason.to_vec() };
            self.close_with(now, frame, CloseReason::ThisApplication { code });
        }
    }

    /// Replaces the keys of both directions as soon as that is allowed (RFC 9001 §6.1).
    pub fn update_keys(&mut self) {
        self.packets.key_updates.wanted = true;
    }

    /// Sends a PING, to find out whether the peer is reachable.
    pub fn ping(&mut self) {
        self.packets.sources.control.ping.request();
    }

    /// Number of PATH_CHALLENGE frames of the peer on the path in use. A challenge after a silence tells a client that its address has
    /// changed on the path, because a NAT has dropped its mapping.
    pub fn challenges_received(&self) -> u64 {
        self.paths.active().challenge.asked
    }

    pub(super) fn push(&mut self, event: Event) {
        self.events.push(event);
    }
}
