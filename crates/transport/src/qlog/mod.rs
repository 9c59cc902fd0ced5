//! qlog: what an observed connection did, as a file that tools can draw (draft-ietf-quic-qlog-main-schema-14 and
//! draft-ietf-quic-qlog-quic-events-13).
//!
//! [`QlogWriter`] is an [`Observer`](crate::observe::Observer). Each event becomes one record of a JSON text sequence
//! (RFC 7464), which belongs in a file whose name ends in `.sqlog`: `record` has the sequence and what happens when it
//! cannot be written, `trace` the first record, `events` the data of the others, `frames` and `header` what is read out
//! of packets, `value` how single values are written, `writer` the mapping from the table of events. `v03` rewrites records for
//! viewers that open qlog 0.3 only.
//!
//! Written are no payloads and nothing with which somebody who reads the file could act upon the connection: of tokens
//! only the length, of stateless reset tokens nothing (main schema §14). Addresses are written.
//!
//! The types are our own: those of the crate `qlog` (0.18.2) are for draft 12 of the events, name the serialization
//! format and the events of frames as older drafts did, own every string and byte they write, and take their time from
//! the system's clock.

mod events;
mod format;
mod frames;
mod header;
mod record;
#[cfg(test)]
mod tests;
mod trace;
mod v03;
mod value;
mod writer;

pub use format::Format;
pub use trace::Vantage;
pub use v03::Version03;
pub use writer::QlogWriter;

/// File name extension of qlog files.
pub const EXTENSION: &str = "sqlog";
