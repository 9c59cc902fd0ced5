//! QPACK: field compression for HTTP/3 (RFC 9204), both directions, without input or output.
//!
//! [`Encoder`] makes field sections of fields, [`Decoder`] fields of field sections. Each keeps a dynamic table, and each has one stream
//! to its peer beside the requests: instructions of the encoder fill the peer's table, instructions of the decoder acknowledge.
//!
//! No stream ever waits for another here. The encoder refers only to what the peer has acknowledged, and the decoder's SETTINGS say
//! that no stream may be blocked: what a table saves comes one round trip later, and a lost packet never holds up a request that is
//! not in it.
//!
//! In the order in which fields meet them: `static_table`, `index` and `table` say where a field is; `integer`, `string` and `huffman`
//! write it; `outstanding` remembers what the peer may still need.
//!
//! Absent on purpose: blocked streams; changing the capacity of the encoder's table after it has been announced; the remembered
//! SETTINGS of 0-RTT (RFC 9204 §3.2.3), without which only the static table is used until SETTINGS have come.

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
    /// Never indexed, here or by who sends it on (RFC 9204 §7.1.3).
    pub sensitive: bool,
}
