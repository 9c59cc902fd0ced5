//! Proxying UDP in HTTP (RFC 9298): the parts that client and proxy share.
//!
//! `template` has URI templates; this file has the payload of HTTP datagrams. [`bound`] has tunnels for many peers.
//!
//! ```
//! use tiderace_h3::connect_udp::{Content, UDP_CONTEXT};
//!
//! let datagram = [UDP_CONTEXT, b'p', b'i', b'n', b'g'];
//! assert_eq!(Content::parse(&datagram), Content::Udp(b"ping"));
//! ```

pub mod bound;
mod template;

pub use self::template::{Template, UdpTarget};
pub use crate::uri_template::{TemplateError, TemplateFault};

/// Upgrade token, and the value of `:protocol` (RFC 9298 §3).
pub const PROTOCOL: &str = "connect-udp";

/// Context ID of UDP payloads (RFC 9298 §4).
pub const UDP_CONTEXT: u8 = 0;

/// The most bytes that a UDP payload can have (RFC 9298 §5).
pub const MAX_PAYLOAD: usize = 65_527;

/// UDP payload that always gets through: the payload of the smallest datagram of a path that can carry QUIC (RFC 9000 §14.1). One that
/// does not fit into a QUIC datagram is sent as a capsule.
// RFC 9298 §6.1 SHOULD NOT-1: larger payloads are dropped, so that path MTU discovery inside of the tunnel works. A payload of this
// size or less is an exception: without it a connection of QUIC could not begin before the MTU of the outer path was discovered.
pub const ALWAYS_CARRIED: usize = 1_200;

/// Content of an HTTP datagram of UDP proxying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// A UDP payload.
    Udp(&'a [u8]),
    /// Payload of another context.
    Unknown,
    /// A UDP payload that no UDP datagram can have: the stream has to be aborted.
    TooLong,
}

impl<'a> Content<'a> {
    /// Parses an HTTP datagram. One without a context ID is of no known context.
    // RFC 9298 §5 SHALL-1: what has an unknown context is dropped
    // RFC 9298 §5 MUST-1: a payload of more than 65,527 bytes aborts the stream
    pub fn parse(datagram: &'a [u8]) -> Self {
        let mut reader = wire::Reader::new(datagram);
        match reader.varint() {
            Ok(0) => match &datagram[reader.position()..] {
                payload if payload.len() > MAX_PAYLOAD => Self::TooLong,
                payload => Self::Udp(payload),
            },
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9298 §5 SHALL-1, MUST-1
    #[test]
    fn contexts_are_told_apart() {
        for (datagram, expected) in [
            (&b"\0hello"[..], Content::Udp(b"hello")),
            (b"\0", Content::Udp(b"")),
            (b"\x40\0long form", Content::Udp(b"long form")),
            (b"\x02hello", Content::Unknown),
            (b"\xc0\0\0\0\0\0\0\x01x", Content::Unknown),
            (b"", Content::Unknown),
            (b"\xc0\0", Content::Unknown),
        ] {
            assert_eq!(Content::parse(datagram), expected, "{datagram:?}");
        }
        let largest = vec![0; MAX_PAYLOAD + 1];
        assert_eq!(Content::parse(&largest), Content::Udp(&largest[1..]));
        assert_eq!(Content::parse(&vec![0; MAX_PAYLOAD + 2]), Content::TooLong);
    }
}
