//! Unreliable datagrams (RFC 9221): a queue for each direction, each bounded in bytes, without retransmission.
//!
//! Both queues drop the oldest datagram when they are full, because it has the least value; the application learns the number. Applications
//! use streams for data that must arrive.

mod figures;

use std::collections::VecDeque;

use bytes::Bytes;
use units::Instant;
use wire::{
    Writer,
    frame::{datagram_header_len, encode_datagram_header},
    frame_type,
};

pub use self::figures::{DatagramFate, DatagramFigures};
use crate::{
    error::{Code, TransportError},
    fec::{Content, DatagramFlow, Tolerance},
    memory::allocation,
    pins::{Pin, Pins},
    sent::SentFrame,
};

/// Memory of a queued datagram beside its bytes: its place in the queue and, at least, the header of an allocation.
const OVERHEAD: u64 = 64;

/// DATAGRAM frames for which each packet pays: a frame costs time beside its bytes, and a packet may hold a thousand empty ones. This
/// number of datagrams of 36 bytes fills a packet of 1,200 bytes.
const PER_PACKET: u32 = 32;

/// DATAGRAM frames that may be saved up, for packets that hold more now and then.
const SAVED: u32 = 1024;

/// Capacity that the empty queue of received datagrams keeps.
const PLACES_KEPT: usize = 512;

/// Bounds of the queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramsConfig {
    /// Bytes that may wait to be sent, 64 counted on top for each datagram.
    pub send_buffer: u64,
    /// Bytes that may wait for the application, counted likewise.
    pub receive_buffer: u64,
    /// The largest DATAGRAM frame we are ready to receive, in bytes with type and length; 0 refuses all.
    pub max_frame_size: u64,
}

impl Default for DatagramsConfig {
    /// 1 MiB each way, and every frame that fits into a packet (RFC 9221 §3 RECOMMENDED-1).
    fn default() -> Self {
        Self { send_buffer: 1 << 20, receive_buffer: 1 << 20, max_frame_size: 65535 }
    }
}

/// Error of a datagram that was not accepted for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendDatagramError {
    /// The peer takes no datagrams.
    #[error("the peer does not support datagrams")]
    Unsupported,
    /// Does not fit into a packet, or the peer takes no frame as large.
    #[error("a datagram of {len} bytes is too large: at most {max} fit")]
    TooLarge {
        /// Size in bytes.
        len: usize,
        /// The largest that can be sent at the moment, in bytes.
        max: usize,
    },
}

/// Event of datagrams for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramEvent {
    /// A datagram can be received. Not repeated until there was none.
    Readable,
    /// Half of the queue is free, after [`has_room`](Datagrams::has_room) returned `false`.
    Writable,
    /// Datagrams were dropped before they were sent: the queue was full, the path became too narrow for them, or they waited until they
    /// were worthless.
    SendDropped {
        /// Number since the last such event.
        count: u64,
        /// Number of the latest.
        last: u64,
    },
    /// Received datagrams were dropped, because they were not taken in time.
    ReceiveDropped {
        /// Number since the last such event.
        count: u64,
    },
}

/// A datagram that waits to be sent.
#[derive(Debug)]
struct Waiting {
    number: u64,
    data: Bytes,
    /// From then on it is worthless.
    expires: Instant,
    /// Share of its flow that may stay lost.
    tolerance: Tolerance,
}

/// A datagram that waits for the application: a slice of the buffer that it arrived in, or a copy.
#[derive(Debug)]
struct Unread {
    data: Bytes,
    pin: Option<Pin>,
}

impl Unread {
    /// Bytes that it takes beside its place and received buffers.
    fn copied(&self) -> usize {
        if self.pin.is_some() { 0 } else { allocation(self.data.len()) }
    }
}

/// The datagrams of a connection.
///
/// [`send`](Self::send) and [`recv`](Self::recv) are the application's; while [`wants_to_send`](Self::wants_to_send),
/// `write` fills packets; [`poll_event`](Self::poll_event) until it has no more.
#[derive(Debug)]
pub struct Datagrams {
    config: DatagramsConfig,
    outgoing: VecDeque<Waiting>,
    outgoing_cost: u64,
    next_number: u64,
    /// Bytes of the datagram that was last put into a packet.
    last_len: usize,
    incoming: VecDeque<Unread>,
    incoming_cost: u64,
    /// DATAGRAM frames that are still taken; beyond them the peer's are dropped unread.
    allowance: u32,
    /// The buffers that received datagrams are slices of.
    pins: Pins,
    /// Bytes of the copies of others.
    copies: usize,
    /// Largest frame the peer takes; 0 when none.
    peer_max_frame: u64,
    /// Bytes of frames that fit into a packet.
    packet_room: usize,
    /// The application waits for a datagram.
    armed: bool,
    readable: bool,
    /// The application waits for room.
    wants_room: bool,
    /// Number and count of the drops that were not reported yet.
    dropped: Option<(u64, u64)>,
    receive_dropped: u64,
    figures: DatagramFigures,
    /// Fate of each datagram, if they are recorded.
    fates: Option<Vec<(u64, DatagramFate)>>,
}

fn cost(data: &Bytes) -> u64 {
    data.len() as u64 + OVERHEAD
}

impl Datagrams {
    /// Returns memory that a busy phase left behind.
    pub(crate) fn shrink(&mut self) {
        self.outgoing.shrink_to_fit();
        self.incoming.shrink_to_fit();
        self.pins.shrink();
    }

    /// Creates the queues. Sending needs [`set_peer_max_frame_size`](Self::set_peer_max_frame_size) and
    /// [`set_packet_room`](Self::set_packet_room) first.
    pub fn new(config: &DatagramsConfig) -> Self {
        Self {
            config: config.clone(),
            outgoing: VecDeque::new(),
            outgoing_cost: 0,
            next_number: 0,
            last_len: 0,
            incoming: VecDeque::new(),
            incoming_cost: 0,
            allowance: SAVED,
            pins: Pins::default(),
            copies: 0,
            peer_max_frame: 0,
            packet_room: 0,
            armed: true,
            readable: false,
            wants_room: false,
            dropped: None,
            receive_dropped: 0,
            figures: DatagramFigures::default(),
            fates: None,
        }
    }

    /// Value of our transport parameter `max_datagram_frame_size`, in bytes.
    pub fn local_max_frame_size(&self) -> u64 {
        self.config.max_frame_size
    }

    /// The peer's transport parameter `max_datagram_frame_size`, remembered for early data or of the handshake.
    ///
    /// # Errors
    /// PROTOCOL_VIOLATION when the peer accepted early data and takes less than was remembered.
    pub fn set_peer_max_frame_size(&mut self, bytes: u64, early_data_accepted: bool) -> Result<(), TransportError> {
        // RFC 9221 §3 MUST-4, MUST-5: a client that remembered the value checks that the new one is not smaller.
        if early_data_accepted && bytes < self.peer_max_frame {
            return Err(TransportError::new(
                Code::PROTOCOL_VIOLATION,
                format!("max_datagram_frame_size {bytes}, remembered were {}", self.peer_max_frame),
            ));
        }
        self.peer_max_frame = bytes;
        Ok(())
    }

    /// Sets the number of bytes of frames that fit into a packet on the path in use. Call it when the path or its MTU changes.
    pub fn set_packet_room(&mut self, bytes: usize) {
        self.packet_room = bytes;
    }

    /// The largest datagram that can be sent at the moment, in bytes. `None` when the peer takes none.
    // RFC 8899 §5 MUST-1: what packets and frames add is taken off
    pub fn max_size(&self) -> Option<usize> {
        // RFC 9221 §3: the limit counts type and length. A frame without length could hold two bytes more, but only as the
        // last in its packet; room for the length makes every place possible.
        let frame = self.peer_max_frame.min(self.packet_room as u64) as usize;
        let header = datagram_header_len(Some(frame));
        (self.peer_max_frame > 0).then(|| frame.saturating_sub(header))
    }

    /// Queues a datagram and returns its number. When the queue is full, the oldest in it are dropped.
    ///
    /// # Errors
    /// When the peer takes no datagrams, or none as large.
    pub fn send(&mut self, data: Bytes) -> Result<u64, SendDatagramError> {
        self.queue(data, Instant::FAR_FUTURE, Tolerance::NONE)
    }

    /// As [`send`](Self::send), as one of a flow.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_in(&mut self, now: Instant, flow: &DatagramFlow, data: Bytes) -> Result<u64, SendDatagramError> {
        let expires = flow.expiry.map_or(Instant::FAR_FUTURE, |span| now + span);
        self.queue(data, expires, flow.tolerance())
    }

    fn queue(&mut self, data: Bytes, expires: Instant, tolerance: Tolerance) -> Result<u64, SendDatagramError> {
        // RFC 9221 §3 MUST NOT-1: no datagrams before the peer said that it takes them
        let max = self.max_size().ok_or(SendDatagramError::Unsupported)?;
        // RFC 9221 §3 MUST NOT-2: no datagrams that are larger than the peer takes
        if data.len() > max {
            return Err(SendDatagramError::TooLarge { len: data.len(), max });
        }
        let number = self.next_number;
        self.next_number += 1;
        self.outgoing_cost += cost(&data);
        self.outgoing.push_back(Waiting { number, data, expires, tolerance });
        // The newest stays, also when it alone is more than the bound.
        while self.outgoing_cost > self.config.send_buffer && self.outgoing.len() > 1 {
            self.drop_oldest();
        }
        Ok(number)
    }

    /// Returns whether a datagram of `len` bytes fits into the queue without dropping another. After `false`,
    /// [`DatagramEvent::Writable`] follows once it does.
    pub fn has_room(&mut self, len: usize) -> bool {
        let room = self.outgoing.is_empty() || self.outgoing_cost + len as u64 + OVERHEAD <= self.config.send_buffer;
        self.wants_room |= !room;
        room
    }

    #[cold]
    fn drop_oldest(&mut self) {
        self.figures.send_dropped += 1;
        self.give_up_oldest(DatagramFate::Dropped);
    }

    fn give_up_oldest(&mut self, fate: DatagramFate) {
        if let Some(Waiting { number, data, .. }) = self.outgoing.pop_front() {
            if let Some(fates) = &mut self.fates {
                fates.push((number, fate));
            }
            self.outgoing_cost -= cost(&data);
            self.dropped = Some((number, self.dropped.map_or(0, |(_, count)| count) + 1));
        }
    }

    /// Drops expired datagrams at the front of the queue.
    #[inline]
    fn drop_expired(&mut self, now: Instant) {
        while self.outgoing.front().is_some_and(|waiting| waiting.expires <= now) {
            self.figures.expired += 1;
            self.give_up_oldest(DatagramFate::Expired);
        }
    }

    /// Share that may stay lost of the flow of the datagram that leaves next.
    pub(crate) fn next_tolerance(&mut self, now: Instant) -> Option<Tolerance> {
        self.drop_expired(now);
        self.outgoing.front().map(|waiting| waiting.tolerance)
    }

    /// Returns whether a datagram waits.
    #[inline]
    pub fn wants_to_send(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Returns whether the next datagram is as long as the last one sent: then a packet of the same size holds it.
    #[inline]
    pub fn next_is_alike(&self) -> bool {
        self.outgoing.front().is_some_and(|waiting| waiting.data.len() == self.last_len)
    }

    /// Writes as many datagrams into the packet as fit, in order, and records each.
    ///
    /// The writer ends at the end of the packet's payload. A frame that extends to the end has no length, so no frame may follow it.
    /// Datagrams that fit into no packet of this path are dropped.
    pub(crate) fn write(&mut self, now: Instant, w: &mut Writer<'_>, record: &mut impl FnMut(SentFrame)) {
        self.write_while(now, w, |_| true, record);
    }

    /// As [`write`](Self::write), up to the first datagram of a flow that is not admitted; what the packet carries of them.
    #[inline]
    pub(crate) fn write_while(
        &mut self,
        now: Instant,
        w: &mut Writer<'_>,
        admits: impl Fn(Tolerance) -> bool,
        record: &mut impl FnMut(SentFrame),
    ) -> Content {
        let mut content = Content::EMPTY;
        loop {
            self.drop_expired(now);
            let Some(&Waiting { number, ref data, expires, tolerance }) = self.outgoing.front() else { break };
            if !admits(tolerance) {
                break;
            }
            let len = data.len();
            let room = w.remaining();
            let length_field = match room {
                room if room == len + datagram_header_len(None) => None,
                room if room >= len + datagram_header_len(Some(len)) => Some(len),
                _ if self.max_size().is_none_or(|max| len > max) => {
                    self.drop_oldest();
                    continue;
                }
                _ => break,
            };
            let before = w.position();
            encode_datagram_header(w, length_field);
            self.figures.header_bytes += (w.position() - before) as u64;
            w.bytes(data);
            record(SentFrame::Datagram(number));
            if let Some(fates) = &mut self.fates {
                fates.push((number, DatagramFate::Sent(now)));
            }
            content = content.and(Content { tolerance, expires });
            self.figures.sent += 1;
            self.figures.sent_bytes += len as u64;
            self.last_len = len;
            self.outgoing_cost -= cost(data);
            self.outgoing.pop_front();
        }
        content
    }

    /// The packet with this datagram was acknowledged.
    pub fn on_acked(&mut self, _number: u64) {
        self.figures.acked += 1;
    }

    /// The packet with this datagram was lost. RFC 9221 §5.2: it is not sent again.
    pub fn on_lost(&mut self, _number: u64) {
        self.figures.lost += 1;
    }

    /// Called for a received or rebuilt packet with DATAGRAM frames: a further number of them is [admitted](Self::admits).
    #[inline]
    pub(crate) fn entitle(&mut self) {
        self.allowance = SAVED.min(self.allowance + PER_PACKET);
    }

    /// Returns whether a DATAGRAM frame of `frame_size` bytes with `len` bytes of data is to be taken. Those beyond what the packets
    /// entitle to are counted as received and dropped: RFC 9221 §5.3 lets a receiver drop what it cannot process.
    #[inline]
    pub(crate) fn admits(&mut self, len: usize, frame_size: usize) -> bool {
        // What breaks the rules is not passed over.
        if self.allowance == 0 && frame_size as u64 <= self.config.max_frame_size {
            self.figures.received += 1;
            self.figures.received_bytes += len as u64;
            self.figures.receive_dropped += 1;
            self.receive_dropped += 1;
            return false;
        }
        self.allowance = self.allowance.saturating_sub(1);
        true
    }

    /// A DATAGRAM frame of `frame_size` bytes arrived, its type and length included. When the queue is full, the oldest in
    /// it are dropped.
    ///
    /// # Errors
    /// PROTOCOL_VIOLATION when we did not offer to receive it.
    #[inline]
    pub fn on_datagram(&mut self, data: Bytes, frame_size: usize) -> Result<(), TransportError> {
        // RFC 9221 §3 MUST-1, MUST-2: a frame without our having sent the parameter, or larger than it says, closes
        // the connection.
        if frame_size as u64 > self.config.max_frame_size {
            return Err(too_large(frame_size, self.config.max_frame_size));
        }
        self.figures.received += 1;
        self.figures.received_bytes += data.len() as u64;
        let pin = self.pins.pin(data.len(), false);
        let data = if pin.is_some() { data } else { Bytes::copy_from_slice(&data) };
        self.incoming_cost += cost(&data);
        let unread = Unread { data, pin };
        self.copies += unread.copied();
        // RFC 9221 §5 SHOULD-2: a datagram that arrives is given to the application at once
        self.incoming.push_back(unread);
        while self.incoming_cost > self.config.receive_buffer && self.incoming.len() > 1 {
            self.drop_unread();
        }
        self.readable |= std::mem::replace(&mut self.armed, false);
        Ok(())
    }

    /// Takes the oldest datagram received. After `None`, [`DatagramEvent::Readable`] follows once there is one.
    pub fn recv(&mut self) -> Option<Bytes> {
        let Some(data) = self.pop_unread() else {
            self.armed = true;
            return None;
        };
        self.figures.delivered += 1;
        self.compact_if_wasteful();
        Some(data)
    }

    #[inline]
    fn pop_unread(&mut self) -> Option<Bytes> {
        let unread = self.incoming.pop_front()?;
        self.copies -= unread.copied();
        let Unread { data, pin } = unread;
        if let Some(pin) = pin {
            self.pins.release(pin, data.len(), true);
        }
        self.incoming_cost -= cost(&data);
        if self.incoming.is_empty() && self.incoming.capacity() > PLACES_KEPT {
            self.incoming = VecDeque::new();
        }
        Some(data)
    }

    fn drop_unread(&mut self) {
        if self.pop_unread().is_some() {
            self.receive_dropped += 1;
            self.figures.receive_dropped += 1;
        }
    }

    /// Datagrams that arrive from here on lie in another received buffer, of `size` bytes, of which `used` carry what arrived.
    #[inline]
    pub fn next_buffer(&mut self, size: usize, used: usize) {
        self.pins.next_buffer(size, used);
    }

    /// Sets the bytes by which receive buffers may exceed a quarter more than the data kept in them.
    pub(crate) fn set_slack(&mut self, bytes: u64) {
        self.pins.set_slack(bytes);
    }

    /// Copies data that pins much larger receive buffers, if this is too much in total.
    #[inline]
    pub(crate) fn compact_if_wasteful(&mut self) {
        if self.pins.is_wasteful() {
            self.compact();
        }
    }

    #[cold]
    fn compact(&mut self) {
        for unread in &mut self.incoming {
            if let Some(pin) = unread.pin.filter(|pin| self.pins.is_poor(*pin)) {
                unread.data = Bytes::copy_from_slice(&unread.data);
                unread.pin = None;
                self.pins.release(pin, unread.data.len(), true);
                self.copies += unread.copied();
            }
        }
    }

    /// Bytes of memory that received datagrams hold.
    #[inline]
    pub(crate) fn received_memory(&self) -> u64 {
        let queue = self.incoming.capacity() * size_of::<Unread>();
        self.pins.pinned() + (self.pins.heap() + self.copies + queue) as u64
    }

    /// Drops received datagrams, the oldest first, until `bytes` of memory are free or none is left.
    #[cold]
    pub(crate) fn shed(&mut self, bytes: u64) {
        let target = self.received_memory().saturating_sub(bytes);
        while self.received_memory() > target && !self.incoming.is_empty() {
            self.drop_unread();
            // Places of those that are gone count, too.
            if self.incoming.len() * 4 < self.incoming.capacity() {
                self.incoming.shrink_to_fit();
            }
        }
        self.compact_if_wasteful();
    }

    /// Forgets what waits; the connection has ended.
    pub(crate) fn forget(&mut self) {
        self.figures.abandoned += self.outgoing.len() as u64;
        self.figures.receive_dropped += self.incoming.len() as u64;
        (self.outgoing, self.outgoing_cost) = Default::default();
        (self.incoming, self.incoming_cost) = Default::default();
        (self.pins, self.copies) = Default::default();
    }

    /// Records the fate of each datagram. The caller takes the fates with [`take_fates`](Self::take_fates).
    pub fn record_fates(&mut self) {
        self.fates.get_or_insert_default();
    }

    /// Numbers of datagrams that have left the queue, and why, since this was asked last.
    pub fn take_fates(&mut self) -> Vec<(u64, DatagramFate)> {
        self.fates.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns whether there may be an event.
    #[inline]
    pub(crate) fn may_have_event(&self) -> bool {
        self.readable || self.wants_room || self.dropped.is_some() || self.receive_dropped > 0
    }

    /// Takes the oldest event that was not taken.
    pub fn poll_event(&mut self) -> Option<DatagramEvent> {
        if std::mem::take(&mut self.readable) {
            return Some(DatagramEvent::Readable);
        }
        // Not for each datagram that leaves: whoever waits shall find room for many.
        if self.wants_room && self.outgoing_cost <= self.config.send_buffer / 2 {
            self.wants_room = false;
            return Some(DatagramEvent::Writable);
        }
        if let Some((last, count)) = self.dropped.take() {
            return Some(DatagramEvent::SendDropped { count, last });
        }
        match std::mem::take(&mut self.receive_dropped) {
            0 => None,
            count => Some(DatagramEvent::ReceiveDropped { count }),
        }
    }

    /// Figures since the beginning.
    pub fn figures(&self) -> DatagramFigures {
        DatagramFigures {
            queued: self.next_number,
            waiting: self.outgoing.len() as u64,
            unread: self.incoming.len() as u64,
            ..self.figures
        }
    }
}

/// Error for a DATAGRAM frame that is larger than was offered. Apart from the path of every datagram, which need not prepare for it.
#[cold]
fn too_large(size: usize, offered: u64) -> TransportError {
    let reason = format!("a DATAGRAM frame of {size} bytes, offered were {offered}");
    TransportError::new(Code::PROTOCOL_VIOLATION, reason).in_frame(frame_type::DATAGRAM)
}

#[cfg(test)]
mod tests;
