//! Proxying IP in HTTP (RFC 9484): the parts that client and proxy share.
//!
//! - [`Template`] and [`Scope`]: the request, and what it is limited to.
//! - [`AddressAssign`], [`AddressRequest`] and [`RouteAdvertisement`]: capsules, of [`Prefix`]es and [`AddressRange`]s.
//! - [`Packet`]: the header of an IP packet. [`icmp`]: reports about packets that are not forwarded.
//! - This file has the payload of HTTP datagrams.
//!
//! ```
//! use tiderace_h3::connect_ip::{AddressRange, Content, RouteAdvertisement};
//!
//! assert_eq!(Content::parse(b"\0a packet"), Content::Packet(b"a packet"));
//! let range = AddressRange { start: "192.0.2.0".parse().unwrap(), end: "192.0.2.9".parse().unwrap(), protocol: 0 };
//! let routes = RouteAdvertisement(vec![range]);
//! assert_eq!(RouteAdvertisement::parse(&routes.encode()), Ok(routes));
//! ```

mod capsules;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod icmp;
mod packet;
mod prefix;
mod routes;
mod scope;
mod template;

pub use self::{
    capsules::{
        ADDRESS_ASSIGN, ADDRESS_REQUEST, AddressAssign, AddressRequest, AssignedAddress, CapsuleFault,
        ROUTE_ADVERTISEMENT, RequestedAddress,
    },
    packet::{Packet, PacketFault, protocol},
    prefix::{AddressRange, Prefix, PrefixFault},
    routes::RouteAdvertisement,
    scope::{Scope, ScopeTarget},
    template::Template,
};
pub use crate::uri_template::{TemplateError, TemplateFault};

/// Upgrade token, and the value of `:protocol` (RFC 9484 §4).
pub const PROTOCOL: &str = "connect-ip";

/// Context ID of IP packets (RFC 9484 §6).
pub const IP_CONTEXT: u8 = 0;

/// Smallest MTU of a link that carries IPv6 (RFC 8200 §5).
pub const MIN_IPV6_MTU: usize = 1_280;

/// The most bytes that an IP packet can have without jumbograms: the header of IPv6, and its longest payload.
pub const MAX_PACKET: usize = 40 + 65_535;

/// Content of an HTTP datagram of IP proxying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// An IP packet, not looked at yet.
    Packet(&'a [u8]),
    /// Payload of another context.
    Unknown,
}

impl<'a> Content<'a> {
    /// Parses an HTTP datagram. One without a context ID is of no known context.
    // RFC 9484 §6 SHALL-1: what has an unknown context is dropped
    pub fn parse(datagram: &'a [u8]) -> Self {
        let mut reader = wire::Reader::new(datagram);
        match reader.varint() {
            Ok(0) => Self::Packet(&datagram[reader.position()..]),
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9484 §6 SHALL-1
    #[test]
    fn contexts_are_told_apart() {
        for (datagram, expected) in [
            (&b"\0E..."[..], Content::Packet(b"E...")),
            (b"\0", Content::Packet(b"")),
            (b"\x40\0long form", Content::Packet(b"long form")),
            (b"\x02hello", Content::Unknown),
            (b"", Content::Unknown),
            (b"\xc0\0", Content::Unknown),
        ] {
            assert_eq!(Content::parse(datagram), expected, "{datagram:?}");
        }
    }
}
