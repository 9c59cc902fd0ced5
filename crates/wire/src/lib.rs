//! QUIC on the wire: conversion of varints, packet headers, frames and transport parameters between bytes and values.
//!
//! All functions are pure. Parsing borrows from its input, allocates nothing for a packet, and never panics on any input. Writing uses a
//! buffer of the caller, who checks that there is room.
//!
//! In the order in which data meets them: [`Reader`] and [`Writer`] (with [`varint`]), [`Header`] for the parts that are readable without
//! keys, [`Frames`] for the payload of an opened packet, [`TransportParameters`] for the TLS extension.

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
pub use proxy::{ProxyHeader, StreamOrigin};
pub use reset_token::ResetToken;
pub use stream_id::{Dir, Side, StreamId};
pub use transport_parameters::{PreferredAddress, TransportParameterError, TransportParameters, VersionInformation};
