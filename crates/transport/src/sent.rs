//! The ledger of packets in flight: what was sent in which packet, and what became of it.

use wire::{Dir, StreamId};

/// What a packet carried that matters once it is acknowledged or lost.
///
/// A record names state, it does not copy it: a lost `MaxData` is answered with the limit of that moment, not with the
/// old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentFrame {
    /// `len` bytes of a stream from `offset`, and whether its end was among them.
    Stream {
        /// The stream.
        id: StreamId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u16,
        /// The frame carried the end of the stream.
        fin: bool,
    },
    /// `len` bytes of the handshake from `offset`, of the space the packet belongs to.
    Crypto {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u16,
    },
    /// An acknowledgement whose largest packet number was this.
    Ack {
        /// The largest packet number it acknowledged.
        largest: u64,
    },
    /// The connection's flow control limit.
    MaxData,
    /// A stream's flow control limit.
    MaxStreamData(StreamId),
    /// The limit on streams.
    MaxStreams(Dir),
    /// The connection is blocked at this limit.
    DataBlocked(u64),
    /// The stream is blocked at its limit.
    StreamDataBlocked(StreamId),
    /// No further stream may be opened.
    StreamsBlocked(Dir),
    /// The stream was reset.
    ResetStream(StreamId),
    /// The peer was asked to stop.
    StopSending(StreamId),
    /// The connection ID with this sequence number was issued.
    NewConnectionId(u64),
    /// The peer's connection ID with this sequence number was given up.
    RetireConnectionId(u64),
    /// A token for the next connection.
    NewToken,
    /// The handshake is confirmed.
    HandshakeDone,
    /// An unreliable datagram, by its number.
    Datagram(u64),
    /// A PING that has to be sent again when lost (keep-alive, liveness); others are not recorded.
    Ping,
}
