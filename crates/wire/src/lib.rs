//! QUIC on the wire: varints, packet headers, frames, transport parameters. Bytes to values and back, nothing that
//! waits.
//!
//! Everything here is a pure function of its input. Parsing borrows from the bytes it reads, allocates nothing for a
//! packet, and never panics, whatever the bytes are. Writing goes into a buffer of the caller, who checks that there is
//! room.
//!
//! In the order in which data meets them: [`Reader`] and [`Writer`] (with [`varint`]), [`Header`] for what can be seen
//! without keys, [`Frames`] for the payload of an opened packet, [`TransportParameters`] for what TLS carries.

mod buffer;
mod connection_id;
pub mod frame;
pub mod header;
pub mod proxy;
mod reset_token;
mod stream_id;
pub mod transport_parameters;
pub mod varint;
pub mod version;

pub use buffer::{Reader, Truncated, Writer};
pub use connection_id::ConnectionId;
pub use frame::{
    Ack, AckRanges, EcnCounts, Frame, FrameError, FrameErrorKind, Frames, PacketKind, RepairFrame, StreamFrame,
    SymbolAck, frame_type, source_symbol_len,
};
pub use header::{
    Header, HeaderError, HeaderPos, LongHeader, LongType, bits, decode_packet_number, encode_retry, encode_short,
    encode_version_negotiation, fixed_bit, is_long, long_dcid, packet_number_len, patch_length, retry_pseudo_packet,
    short_dcid,
};
pub use proxy::ProxyHeader;
pub use reset_token::ResetToken;
pub use stream_id::{Dir, Side, StreamId};
pub use transport_parameters::{PreferredAddress, TransportParameterError, TransportParameters, VersionInformation};
