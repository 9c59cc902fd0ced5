//! The types of frames: RFC 9000 §12.4, RFC 9221 §4, draft-ietf-quic-ack-frequency-14 §10.2,
//! draft-ietf-quic-receive-ts-02 §9, draft-ietf-quic-reliable-stream-reset §8.2, and docs/fec.md. Those of the RFCs take one
//! byte. The table of frames declares the others.

pub use super::table::types::*;

/// PADDING.
pub const PADDING: u64 = 0x00;
/// ACK.
pub const ACK: u64 = 0x02;
/// ACK with counts of ECN marks.
pub const ACK_ECN: u64 = 0x03;
/// CRYPTO.
pub const CRYPTO: u64 = 0x06;
/// STREAM without any of the three bits that follow.
pub const STREAM: u64 = 0x08;
/// Bit of a STREAM type: the frame ends the stream.
pub const STREAM_FIN: u64 = 0x01;
/// Bit of a STREAM type: the frame has a length; without it, it reaches to the end of the packet.
pub const STREAM_LEN: u64 = 0x02;
/// Bit of a STREAM type: the frame has an offset; without it, it starts at 0.
pub const STREAM_OFF: u64 = 0x04;
/// The highest STREAM type: all bits set.
pub const STREAM_LAST: u64 = STREAM | STREAM_FIN | STREAM_LEN | STREAM_OFF;
/// MAX_STREAMS for bidirectional streams.
pub const MAX_STREAMS_BIDI: u64 = 0x12;
/// MAX_STREAMS for unidirectional streams.
pub const MAX_STREAMS_UNI: u64 = 0x13;
/// STREAMS_BLOCKED for bidirectional streams.
pub const STREAMS_BLOCKED_BIDI: u64 = 0x16;
/// STREAMS_BLOCKED for unidirectional streams.
pub const STREAMS_BLOCKED_UNI: u64 = 0x17;
/// ACK_RECEIVE_TIMESTAMPS: ACK with receive times.
pub const ACK_RECEIVE_TIMESTAMPS: u64 = 0x0317_8307;
/// ACK_RECEIVE_TIMESTAMPS with counts of ECN marks.
pub const ACK_RECEIVE_TIMESTAMPS_ECN: u64 = 0x0317_8308;
/// REPAIR: a repair symbol (docs/fec.md).
pub const REPAIR: u64 = 0x3fe1;
/// SYMBOL_ACK: source symbols that were recovered (docs/fec.md).
pub const SYMBOL_ACK: u64 = 0x3fe2;
/// DATAGRAM without the bit that follows.
pub const DATAGRAM: u64 = 0x30;
/// Bit of a DATAGRAM type: the frame has a length; without it, it reaches to the end of the packet.
pub const DATAGRAM_LEN: u64 = 0x01;
