//! qlog files of observed connections (draft-ietf-quic-qlog-main-schema-14 and draft-ietf-quic-qlog-quic-events-13).
//!
//! [`QlogWriter`] is an [`Observer`](crate::observe::Observer). Each event becomes a record of a JSON text sequence (RFC 7464), in a file
//! whose name ends in `.sqlog`.
//!
//! - `record` has the sequence, and its write errors; `trace` the first record; `events` the data of the others.
//! - `frames` and `header` read packets; `value` writes single values; `writer` maps the table of events to records.
//! - `v03` rewrites records for viewers that support qlog 0.3 only.
//!
//! Files contain no payloads, and nothing with which a reader could act on the connection: of tokens only the length, of stateless reset
//! tokens nothing (main schema §14). Addresses are written.
//!
//! The types are our own. Those of the crate `qlog` (0.18.2) are for draft 12 of the events, name the serialization format and the events
//! of frames as older drafts did, own every string and byte that they write, and take their time from the system's clock.

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
