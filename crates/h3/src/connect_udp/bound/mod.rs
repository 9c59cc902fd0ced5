//! Bound UDP (draft-ietf-masque-connect-udp-listen): one UDP proxying request for many peers.
//!
//! - `fields`: the header fields of request and response.
//! - [`Compression`]: capsules that register, confirm and close context IDs.
//! - `payload`: addresses in front of UDP payloads.
//! - [`Contexts`]: the context IDs of a tunnel at one of its ends, with the rules for both. `ids` remembers which were used.
//!
//! ```
//! use tiderace_h3::connect_udp::bound::{Contexts, End, Received};
//!
//! let mut client = Contexts::new(End::Client, 8, false);
//! let mut proxy = Contexts::new(End::Proxy, 8, false);
//! let (mut up, mut down) = (Vec::new(), Vec::new());
//! up.extend(client.open_uncompressed());
//! for capsule in &up {
//!     proxy.take(capsule, |_| true, &mut down).unwrap();
//! }
//! for capsule in &down {
//!     client.take(capsule, |_| true, &mut up).unwrap();
//! }
//! let peer = "192.0.2.42:50000".parse().unwrap();
//! let header = client.header(peer).expect("the proxy has confirmed the context");
//! let datagram = [&header[..], b"ping"].concat();
//! assert_eq!(proxy.receive(&datagram), Ok(Received::Payload(peer, b"ping")));
//! ```

mod capsules;
mod contexts;
mod fields;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod ids;
mod payload;

pub use self::{
    capsules::{COMPRESSION_ACK, COMPRESSION_ASSIGN, COMPRESSION_CLOSE, Compression},
    contexts::{Contexts, End, Received},
    fields::{CONNECT_UDP_BIND, PROXY_PUBLIC_ADDRESS, is_bound, public_address_value, public_addresses},
    payload::ContextHeader,
};

/// Violation of the rules of bound UDP: the stream has to be aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BoundFault {
    /// Capsule that ends too early.
    #[error("a capsule ends too early")]
    Truncated,
    /// Capsule with bytes behind its last field.
    #[error("a capsule has bytes behind its last field")]
    Trailing,
    /// IP version of a registration other than 0, 4 and 6.
    #[error("an IP version is {0}")]
    Version(u8),
    /// Context ID 0 in a capsule.
    #[error("a capsule has the context ID 0")]
    ZeroContext,
    /// Registration of a context ID that only the other end may allocate.
    #[error("the context ID {0} is one of the other end")]
    Parity(u64),
    /// Registration of a context ID that was used before.
    #[error("the context ID {0} is registered twice")]
    RepeatedContext(u64),
    /// Registration of an uncompressed context beside an open one.
    #[error("a second uncompressed context is registered")]
    SecondUncompressed,
    /// Registration of an uncompressed context by the proxy.
    #[error("the proxy registers an uncompressed context")]
    UncompressedByProxy,
    /// Registration for an address and port that have a context of the same end.
    #[error("{0} has two contexts")]
    RepeatedTarget(std::net::SocketAddr),
    /// Confirmation of a context that this end did not register.
    #[error("the context ID {0} is confirmed, and was not registered")]
    UnknownAck(u64),
    /// Datagram with the context ID 0 in a tunnel without a target.
    #[error("a datagram has the context ID 0, and the tunnel has no target")]
    NoTarget,
    /// UDP payload that no UDP datagram can have.
    #[error("a UDP payload has more than 65,527 bytes")]
    TooLong,
}
