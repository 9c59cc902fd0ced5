//! Frames, the content of packets: RFC 9000 §19, DATAGRAM of RFC 9221, ACK_FREQUENCY and IMMEDIATE_ACK of
//! draft-ietf-quic-ack-frequency-14, ACK_RECEIVE_TIMESTAMPS of draft-ietf-quic-receive-ts-02, and those of forward error
//! correction (docs/fec.md).

mod ack;
mod data;
mod field;
pub mod frame_type;
mod parse;
mod symbols;
mod table;
#[cfg(test)]
mod tests;
mod timestamps;

pub use ack::{Ack, AckRanges, EcnCounts};
pub use data::{StreamFrame, crypto_header_len, datagram_header_len, encode_crypto_header, encode_datagram_header};
pub use parse::{FrameError, FrameErrorKind, Frames};
pub use symbols::{RepairFrame, SymbolAck, source_symbol_len};
pub use table::Frame;
pub use timestamps::Times;

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
