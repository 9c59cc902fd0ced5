//! QMux: the streams and datagrams of QUIC over one ordered, reliable stream of bytes, such as TLS on TCP. What speaks a private
//! protocol over QUIC speaks the same one where UDP does not get through.
//!
//! draft-ietf-quic-qmux-02 (the version that follows -01). What differs from QUIC: all streams wait for a lost segment, datagrams
//! are reliable once they have left, and a connection lives as long as the address of its client.
//!
//! In the order in which bytes meet them: [`record`] cuts them into records; [`parameters`] are what the first frame carries;
//! [`Mux`] is the state machine, without input or output; [`Connection`] drives it over an `AsyncRead` and `AsyncWrite`.
//! [`Lingering`] is the end of any connection over TCP, so that its last bytes arrive.
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
