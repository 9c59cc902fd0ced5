//! Host of a workload at one end of a connection: the interface between workloads and stacks.
//!
//! The contract: after each event of the connection, drain [`Host::poll_event`]. Events are edges, not levels: after `Readable` the
//! workload reads until [`ReadEnd::Blocked`] or the end, after `Writable` it writes until [`Written::Blocked`].

use bytes::Bytes;
use units::Instant;

/// A bidirectional stream, by the stack's number.
pub type Stream = u64;

/// Event of a host for the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// At a client that has been here before: streams may be used although the handshake is not complete. What they carry may
    /// leave as early data (RFC 9001 §4.6).
    Early,
    /// The handshake is complete: streams and datagrams may be used. Streams from before continue.
    Established,
    /// The peer has opened streams: [`Host::accept`] gives them.
    Opened,
    /// The stream has data, its end or its reset.
    Readable(Stream),
    /// A stream that was blocked takes data again.
    Writable(Stream),
    /// [`Host::open`], which returned `None`, may be called again.
    Available,
    /// Datagrams have arrived.
    Datagram,
    /// The connection has ended, and why.
    Closed(String),
}

/// Outcome of an attempt to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Bytes taken from the front of the data, at least one.
    Bytes(usize),
    /// No space; [`HostEvent::Writable`] follows.
    Blocked,
    /// The stream takes no more data, ever.
    Closed,
}

/// End of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// No data at the moment; [`HostEvent::Readable`] follows.
    Blocked,
    /// The stream was read to its end.
    Finished,
    /// The stream or the connection was broken off.
    Closed,
}

/// Outcome of a datagram at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramFate {
    /// Left in a packet, at this moment.
    Sent(Instant),
    /// Dropped from a full queue, or too large for the path.
    Dropped,
    /// Worthless before it could be sent.
    Expired,
}

/// One end of a connection, as a workload sees it. Streams are bidirectional and reliable, reads are in order.
pub trait Host {
    /// The next event, or `None`.
    fn poll_event(&mut self) -> Option<HostEvent>;

    /// Opens a stream. `None`: the peer permits no further one; [`HostEvent::Available`] follows.
    fn open(&mut self) -> Option<Stream>;

    /// The next stream that the peer opened.
    fn accept(&mut self) -> Option<Stream>;

    /// Takes bytes from the front of `data`.
    fn write(&mut self, stream: Stream, data: &mut Bytes) -> Written;

    /// Ends the sending side after the data written so far.
    fn finish(&mut self, stream: Stream);

    /// Sets the urgency of the stream: 0 is sent first, 7 last (RFC 9218 §4.1). `false` when the stack has no priorities.
    fn prioritise(&mut self, _stream: Stream, _urgency: u8) -> bool {
        false
    }

    /// Cancels receiving: the peer is asked to stop sending. `false` when the stack has no such call; data that arrives is then read and
    /// discarded.
    fn cancel(&mut self, _stream: Stream) -> bool {
        false
    }

    /// Gives up sending: data that was not sent, or was sent and not acknowledged, vanishes. Where the peer accepts RESET_STREAM_AT, the
    /// first `keep` bytes arrive all the same. `false` when the stack has no such call.
    fn reset(&mut self, _stream: Stream, _keep: u64) -> bool {
        false
    }

    /// Bytes of the stream that left in packets at least once; of a stream that the peer has acknowledged to its end, `u64::MAX`. `None`
    /// when the stack does not report it.
    fn sent(&mut self, _stream: Stream) -> Option<u64> {
        None
    }

    /// Passes all available data to `sink`, in order.
    fn read(&mut self, stream: Stream, sink: &mut dyn FnMut(&[u8])) -> ReadEnd;

    /// Sends an unreliable datagram. `false` when the connection cannot take it (too large, not negotiated).
    fn send_datagram(&mut self, data: Bytes) -> bool;

    /// Reports the fate of datagrams since the last call, numbered from 0 in the order in which [`Host::send_datagram`] accepted them.
    /// `false` when the stack does not report it.
    fn take_datagram_fates(&mut self, _sink: &mut dyn FnMut(u64, DatagramFate)) -> bool {
        false
    }

    /// The next datagram that arrived.
    fn receive_datagram(&mut self) -> Option<Bytes>;
}
