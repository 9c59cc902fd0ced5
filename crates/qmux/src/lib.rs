//! QMux: QUIC streams and datagrams over one ordered, reliable stream of bytes, such as TLS on TCP. A private protocol over QUIC uses it on
//! networks that block UDP.
//!
//! draft-ietf-quic-qmux-02 (the version that follows -01). Differences to QUIC: all streams wait for a lost segment, sent datagrams are
//! reliable, and a connection ends when the address of its client changes.
//!
//! In the order in which bytes meet them: [`record`] splits them into records; [`parameters`] are the content of the first frame;
//! [`Mux`] is the state machine, without input or output; [`Connection`] drives it over an `AsyncRead` and `AsyncWrite`.
//! [`Lingering`] closes a connection over TCP in such a way that its last bytes arrive.
//!
//! Not implemented: 0-RTT (§8.2 of the draft, optional), and RESET_STREAM_AT, which is not negotiated.

mod io;
mod linger;
mod mux;
pub mod parameters;
pub mod record;
mod streams;

pub use io::{Connection, Halves, RecvStream, SendStream};
pub use linger::Lingering;
pub use mux::{Closed, Config, Event, Mux, Refused};
pub use wire::Side;
