//! HTTP/3 over tiderace: requests and responses with streamed bodies, both sides.
//!
//! In the order in which data meets them: [`quic`] puts the transport under the `h3` crate, which frames, compresses fields
//! and keeps the rules of a connection; `watch` looks at the frames on their way in for what `h3` does not bound or does
//! not know; [`server`] serves a connection with a function from request to response; [`client`] sends requests;
//! [`RequestBody`] and [`ResponseBody`] are what the peer sends, as it comes.
//!
//! Nothing here names a type of `h3` to its user, except in [`quic`].

mod body;
pub mod client;
mod error;
pub mod priority;
pub mod quic;
pub mod server;
mod watch;

pub use body::{RequestBody, ResponseBody};
pub use error::{Code, Error};

/// The application protocol in TLS (RFC 9114 §3.1).
pub const ALPN: &[u8] = b"h3";
