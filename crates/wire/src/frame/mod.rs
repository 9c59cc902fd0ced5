//! Frames, the content of packets: RFC 9000 §19, DATAGRAM of RFC 9221, ACK_FREQUENCY and IMMEDIATE_ACK of
//! draft-ietf-quic-ack-frequency-14, ACK_RECEIVE_TIMESTAMPS of draft-ietf-quic-receive-ts-02, and those of forward error
//! correction (docs/fec.md).

use crate::{ConnectionId, Dir, ResetToken, StreamId};

mod ack;
mod data;
mod encode;
pub mod frame_type;
mod parse;
mod symbols;
#[cfg(test)]
mod tests;
mod timestamps;

pub use ack::{Ack, AckRanges, EcnCounts};
pub use data::{StreamFrame, crypto_header_len, datagram_header_len, encode_crypto_header, encode_datagram_header};
pub use parse::{FrameError, FrameErrorKind, Frames};
pub use symbols::{RepairFrame, SymbolAck, source_symbol_len};
pub use timestamps::Times;

/// One frame. It borrows from the packet it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A run of PADDING frames.
    Padding {
        /// Number of frames, each of one byte.
        len: usize,
    },
    /// Asks for an acknowledgement.
    Ping,
    /// Says which packets have arrived.
    Ack(Ack<'a>),
    /// The sender gives a stream up.
    ResetStream {
        /// The stream.
        id: StreamId,
        /// The application's error code.
        code: u64,
        /// Bytes of flow control that the stream has used.
        final_size: u64,
    },
    /// The receiver wants no more of a stream.
    StopSending {
        /// The stream.
        id: StreamId,
        /// The application's error code.
        code: u64,
    },
    /// Bytes of the TLS handshake.
    Crypto {
        /// The first byte's place in the handshake of this packet number space.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// A token for the client's next connection.
    NewToken {
        /// Never empty.
        token: &'a [u8],
    },
    /// Bytes of a stream.
    Stream(StreamFrame<'a>),
    /// Number of bytes that may be sent on the connection.
    MaxData(u64),
    /// Number of bytes that may be sent on a stream.
    MaxStreamData {
        /// The stream.
        id: StreamId,
        /// In bytes from the start of the stream.
        limit: u64,
    },
    /// Number of streams of a kind that may be opened.
    MaxStreams {
        /// The kind.
        dir: Dir,
        /// At most 2^60.
        limit: u64,
    },
    /// The sender has used up the connection's flow control.
    DataBlocked(u64),
    /// The sender has used up a stream's flow control.
    StreamDataBlocked {
        /// The stream.
        id: StreamId,
        /// The limit that was reached.
        limit: u64,
    },
    /// The sender has opened all streams it may.
    StreamsBlocked {
        /// Of this kind.
        dir: Dir,
        /// The limit that was reached, at most 2^60.
        limit: u64,
    },
    /// A further connection ID under which the sender of this frame can be reached.
    NewConnectionId {
        /// Number.
        sequence: u64,
        /// All with smaller numbers are to be given up; not above `sequence`.
        retire_prior_to: u64,
        /// 1 to 20 bytes.
        cid: ConnectionId,
        /// Token of the stateless reset for a connection that uses this ID.
        reset_token: ResetToken,
    },
    /// The sender of this frame will not use a connection ID any more.
    RetireConnectionId {
        /// Number.
        sequence: u64,
    },
    /// Asks for the same bytes back over the same path.
    PathChallenge([u8; 8]),
    /// The bytes of a PATH_CHALLENGE.
    PathResponse([u8; 8]),
    /// The connection is closed because of an error in QUIC.
    ConnectionClose {
        /// The code of RFC 9000 §20.1.
        error: u64,
        /// The type of the frame that led to it, 0 when unknown.
        frame_type: u64,
        /// For people; usually UTF-8, but nothing ensures it.
        reason: &'a [u8],
    },
    /// The application closed the connection.
    ApplicationClose {
        /// The application's error code.
        error: u64,
        /// For people; usually UTF-8, but nothing ensures it.
        reason: &'a [u8],
    },
    /// The server has confirmed the handshake.
    HandshakeDone,
    /// A message without promise of delivery (RFC 9221).
    Datagram {
        /// The message.
        data: &'a [u8],
    },
    /// Asks the receiver of this frame to acknowledge in another rhythm (draft-ietf-quic-ack-frequency-14 §4).
    AckFrequency {
        /// The number of the request: the highest counts.
        sequence: u64,
        /// So many ack-eliciting packets need not be acknowledged; the next one has to be.
        eliciting_threshold: u64,
        /// The longest time that an acknowledgement shall be held back, in microseconds.
        max_ack_delay_us: u64,
        /// Reordering at which a missing packet is reported at once, in packets; 0 for never.
        reordering_threshold: u64,
    },
    /// Asks for an acknowledgement at once (draft-ietf-quic-ack-frequency-14 §5).
    ImmediateAck,
    /// Source symbol: the rest of the packet (docs/fec.md).
    SourceSymbol {
        /// Symbol ID.
        id: u64,
    },
    /// A repair symbol (docs/fec.md).
    Repair(RepairFrame<'a>),
    /// Says which source symbols were rebuilt from repair symbols (docs/fec.md).
    SymbolAck(SymbolAck<'a>),
}

/// The types of packets that carry frames. Each has its encryption level (RFC 9001 §2.1), in whose order they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PacketKind {
    /// Long header, Initial: keys that follow from the first packet.
    Initial,
    /// Long header, 0-RTT: early data of a client that resumes a session. It carries no handshake bytes.
    ZeroRtt,
    /// Long header, Handshake: keys of the handshake.
    Handshake,
    /// Short header: keys of the application's data.
    OneRtt,
}

impl Frame<'_> {
    /// The frame type as [`encode`](Self::encode) writes it: STREAM and DATAGRAM with their length.
    pub fn ty(&self) -> u64 {
        use frame_type as t;
        match self {
            Self::Padding { .. } => t::PADDING,
            Self::Ping => t::PING,
            Self::Ack(ack) => ack.ty(),
            Self::ResetStream { .. } => t::RESET_STREAM,
            Self::StopSending { .. } => t::STOP_SENDING,
            Self::Crypto { .. } => t::CRYPTO,
            Self::NewToken { .. } => t::NEW_TOKEN,
            Self::Stream(stream) => stream.ty(),
            Self::MaxData(_) => t::MAX_DATA,
            Self::MaxStreamData { .. } => t::MAX_STREAM_DATA,
            Self::MaxStreams { dir: Dir::Bi, .. } => t::MAX_STREAMS_BIDI,
            Self::MaxStreams { dir: Dir::Uni, .. } => t::MAX_STREAMS_UNI,
            Self::DataBlocked(_) => t::DATA_BLOCKED,
            Self::StreamDataBlocked { .. } => t::STREAM_DATA_BLOCKED,
            Self::StreamsBlocked { dir: Dir::Bi, .. } => t::STREAMS_BLOCKED_BIDI,
            Self::StreamsBlocked { dir: Dir::Uni, .. } => t::STREAMS_BLOCKED_UNI,
            Self::NewConnectionId { .. } => t::NEW_CONNECTION_ID,
            Self::RetireConnectionId { .. } => t::RETIRE_CONNECTION_ID,
            Self::PathChallenge(_) => t::PATH_CHALLENGE,
            Self::PathResponse(_) => t::PATH_RESPONSE,
            Self::ConnectionClose { .. } => t::CONNECTION_CLOSE,
            Self::ApplicationClose { .. } => t::APPLICATION_CLOSE,
            Self::HandshakeDone => t::HANDSHAKE_DONE,
            Self::Datagram { .. } => t::DATAGRAM | t::DATAGRAM_LEN,
            Self::AckFrequency { .. } => t::ACK_FREQUENCY,
            Self::ImmediateAck => t::IMMEDIATE_ACK,
            Self::SourceSymbol { .. } => t::SOURCE_SYMBOL,
            Self::Repair(_) => t::REPAIR,
            Self::SymbolAck(_) => t::SYMBOL_ACK,
        }
    }

    /// RFC 9002 §2: a packet with such a frame has to be acknowledged within the agreed delay.
    #[inline]
    pub fn is_ack_eliciting(&self) -> bool {
        !matches!(
            self,
            Self::Padding { .. }
                | Self::Ack(_)
                | Self::ConnectionClose { .. }
                | Self::ApplicationClose { .. }
                | Self::SymbolAck(_)
        )
    }

    /// RFC 9000 §9.1: a packet of such frames alone does not move the connection to the path it came from.
    #[inline]
    pub fn is_probing(&self) -> bool {
        matches!(
            self,
            Self::Padding { .. } | Self::NewConnectionId { .. } | Self::PathChallenge(_) | Self::PathResponse(_)
        )
    }

    /// RFC 9000 §12.4, table 3, and §12.5: whether a packet of this kind may carry the frame. Where it may not, the
    /// receiver closes with PROTOCOL_VIOLATION.
    #[inline]
    pub fn is_permitted_in(&self, kind: PacketKind) -> bool {
        match kind {
            PacketKind::OneRtt => true,
            // draft-ietf-quic-receive-ts-02 §3: acknowledgements with receive times are for 1-RTT packets.
            PacketKind::Initial | PacketKind::Handshake => match self {
                Self::Ack(ack) => ack.receive_times().is_none(),
                Self::Padding { .. } | Self::Ping | Self::Crypto { .. } | Self::ConnectionClose { .. } => true,
                _ => false,
            },
            PacketKind::ZeroRtt => !matches!(
                self,
                Self::Ack(_)
                    | Self::Crypto { .. }
                    | Self::HandshakeDone
                    | Self::NewToken { .. }
                    | Self::PathResponse(_)
                    | Self::RetireConnectionId { .. }
                    // draft-ietf-quic-ack-frequency-14 §3: what permits them is not remembered for early data.
                    | Self::AckFrequency { .. }
                    | Self::ImmediateAck
                    // docs/fec.md: the same holds for forward error correction.
                    | Self::SourceSymbol { .. }
                    | Self::Repair(_)
                    | Self::SymbolAck(_)
            ),
        }
    }
}
