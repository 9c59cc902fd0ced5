//! QPACK: field compression for HTTP/3 (RFC 9204), both directions, without input or output.
//!
//! [`Encoder`] encodes fields into field sections, [`Decoder`] decodes them. Each has a dynamic table, and a unidirectional stream to its
//! peer: encoder instructions fill the peer's table, decoder instructions acknowledge.
//!
//! No stream waits for another one. The encoder refers only to acknowledged entries, and the decoder's SETTINGS allow no blocked streams.
//! So the table takes effect one round trip later, and a lost packet never blocks a request that is not in it.
//!
//! In the order in which fields meet them: `static_table`, `index` and `table` find a field; `integer`, `string` and `huffman`
//! write it; `outstanding` records entries that the peer may still need.
//!
//! Absent on purpose: blocked streams; a change of the encoder's table capacity after its announcement; the remembered SETTINGS of 0-RTT
//! (RFC 9204 §3.2.3), so only the static table is used until SETTINGS arrive.

#![forbid(unsafe_code)]

mod decoder;
mod encoder;
mod error;
mod hash;
mod huffman;
mod index;
mod integer;
mod outstanding;
mod static_table;
mod string;
mod table;

pub use decoder::Decoder;
pub use encoder::Encoder;
pub use error::{SectionError, StreamError};

/// A field line (RFC 9110 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name, without capitals, or that of a pseudo-header field.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Never indexed, here or by an intermediary (RFC 9204 §7.1.3).
    pub sensitive: bool,
}
