//! Tunnels for IP packets (RFC 9484): HTTP datagrams in QUIC datagrams or in capsules, and capsules about addresses and routes.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use h3_quic::{
    Datagrams,
    capsule::{self, Capsules},
    connect_ip::{
        ADDRESS_ASSIGN, ADDRESS_REQUEST, AddressAssign, AddressRequest, AssignedAddress, CapsuleFault, Content,
        IP_CONTEXT, MAX_PACKET, ROUTE_ADVERTISEMENT, RequestedAddress, RouteAdvertisement,
    },
};

use super::{
    ProxyError,
    error::broken,
    stream::{RecvHalf, SendHalf},
};
use crate::error::Cause;

/// The longest capsule: the longest packet, and the longest form of its context ID.
const MAX_CAPSULE: usize = MAX_PACKET + 8;
/// Time for the proxy to answer the end of a tunnel.
const CLOSING: Duration = Duration::from_secs(1);

/// A tunnel for IP packets. Dropped, it is cancelled; see [`IpReceiver::close`].
pub struct IpTunnel {
    sender: IpSender,
    receiver: IpReceiver,
    remote: Option<SocketAddr>,
}

/// Sending half of a tunnel for IP packets. Dropped, it ends the tunnel.
pub struct IpSender {
    stream: SendHalf,
    /// Datagrams of HTTP/3; `None` over HTTP/2, where all packets are capsules.
    datagrams: Option<Datagrams>,
    /// ID of the last request for an address.
    last_request: u64,
}

/// Receiving half of a tunnel for IP packets.
pub struct IpReceiver {
    content: RecvHalf,
    capsules: Capsules,
    datagrams: Option<Datagrams>,
}

/// Message of the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpEvent {
    /// A packet, not looked at yet.
    Packet(Bytes),
    /// All addresses that this end has from now on.
    Addresses(AddressAssign),
    /// All ranges to which the proxy forwards packets from now on.
    Routes(RouteAdvertisement),
    /// A request for addresses, which the proxy expects to be answered: see [`IpSender::refuse`].
    Requested(AddressRequest),
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentPacket {
    /// Queued as a QUIC datagram, or as a capsule over HTTP/2.
    Sent,
    /// Dropped: it is larger than this.
    TooLarge(usize),
    /// Dropped: the stream has no room, or the connection has ended.
    Dropped,
}

impl IpTunnel {
    pub(super) fn new(
        stream: SendHalf,
        content: RecvHalf,
        datagrams: Option<Datagrams>,
        remote: Option<SocketAddr>,
    ) -> Self {
        let types = [capsule::DATAGRAM, ADDRESS_ASSIGN, ADDRESS_REQUEST, ROUTE_ADVERTISEMENT];
        let capsules = Capsules::among(&types, MAX_CAPSULE);
        let sender = IpSender { stream, datagrams: datagrams.clone(), last_request: 0 };
        Self { sender, receiver: IpReceiver { content, capsules, datagrams }, remote }
    }

    /// Protocol of the connection that carries the tunnel: `h3` or `h2`.
    pub fn protocol(&self) -> &'static str {
        self.sender.stream.protocol()
    }

    /// Address of the proxy, to which no packets may go through the tunnel.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    /// Halves for two tasks.
    pub fn split(self) -> (IpSender, IpReceiver) {
        (self.sender, self.receiver)
    }
}

impl IpSender {
    /// Sends a packet, or drops it.
    // RFC 9484 §10.1 SHOULD NOT-1: a packet that does not fit into a datagram is not sent in a capsule
    // RFC 9484 §10 SHOULD-1, SHOULD NOT-1: at once, and nothing waits for more
    pub fn send(&mut self, packet: &[u8]) -> SentPacket {
        if let Some(datagrams) = &self.datagrams {
            let Some(mtu) = self.mtu() else { return SentPacket::Dropped };
            if packet.len() > mtu {
                return SentPacket::TooLarge(mtu);
            }
            let sent = datagrams.send_parts(&[&[IP_CONTEXT], packet]);
            return if sent.is_ok() { SentPacket::Sent } else { SentPacket::Dropped };
        }
        let mut out = Vec::with_capacity(packet.len() + 16);
        capsule::write_parts(&mut out, capsule::DATAGRAM, &[&[IP_CONTEXT], packet]);
        if self.stream.try_send(out.into()) { SentPacket::Sent } else { SentPacket::Dropped }
    }

    /// Requests addresses. Returns whether the stream has room for the request.
    // RFC 9484 §4.7.2 MUST NOT-1, MUST NOT-2: IDs begin with 1, and none is used twice
    pub fn request(&mut self, prefixes: &[h3_quic::connect_ip::Prefix]) -> bool {
        let requested = prefixes.iter().map(|prefix| {
            self.last_request += 1;
            RequestedAddress { request_id: self.last_request, prefix: *prefix }
        });
        let request = AddressRequest(requested.collect());
        let mut out = Vec::new();
        capsule::write(&mut out, ADDRESS_REQUEST, &request.encode());
        self.stream.try_send(out.into())
    }

    /// Answers a request of the proxy for addresses: this end has none to give. Returns whether the stream has room for the answer.
    // RFC 9484 §4.7.2 SHALL-3, SHALL-5, SHALL-6
    pub fn refuse(&mut self, request: &AddressRequest) -> bool {
        let answer = AddressAssign(request.0.iter().map(AssignedAddress::refused).collect());
        let mut out = Vec::new();
        capsule::write(&mut out, ADDRESS_ASSIGN, &answer.encode());
        self.stream.try_send(out.into())
    }

    /// Gives the tunnel up, so that its end does not look like a regular one: after an error of the receiving half.
    // RFC 9484 §4.7.1 MUST-4, RFC 9484 §4.7.2 MUST-4, MUST-5, RFC 9484 §4.7.3 MUST-3, MUST-8, MUST-9
    pub fn abort(self, reason: &str) {
        self.stream.abort(reason);
    }

    /// The longest packet that fits into a QUIC datagram at the moment; `None` over HTTP/2, and when the connection has ended.
    pub fn mtu(&self) -> Option<usize> {
        self.datagrams.as_ref()?.max_size()?.checked_sub(1)
    }

    /// Returns whether packets are QUIC datagrams, which have a longest size.
    pub fn has_mtu(&self) -> bool {
        self.datagrams.is_some()
    }
}

impl IpReceiver {
    /// The next packet or message of the proxy; `None` when the proxy has closed the tunnel. Cancel safe.
    ///
    /// # Errors
    /// When the tunnel broke off.
    pub async fn recv(&mut self) -> Result<Option<IpEvent>, ProxyError> {
        loop {
            while let Some(capsule) = self.capsules.take().map_err(broken)? {
                if let Some(event) = event(&capsule)? {
                    return Ok(Some(event));
                }
            }
            tokio::select! {
                Some(datagram) = next(&self.datagrams) => {
                    if let Some(packet) = packet(&datagram) {
                        return Ok(Some(IpEvent::Packet(packet)));
                    }
                }
                data = self.content.data() => match data? {
                    None => return Ok(None),
                    Some(data) => self.capsules.push(&data),
                },
            }
        }
    }

    /// Next packet, if one has arrived in a QUIC datagram.
    pub fn try_recv(&mut self) -> Option<Bytes> {
        while let Some(datagram) = self.datagrams.as_ref()?.try_recv() {
            if let Some(packet) = packet(&datagram) {
                return Some(packet);
            }
        }
        None
    }

    /// Closes the tunnel, and waits for the proxy to close it, too, for at most a second. A tunnel whose halves are dropped is cancelled
    /// instead.
    pub async fn close(mut self, sender: IpSender) {
        drop(sender);
        let closed = async { while let Ok(Some(_)) = self.content.data().await {} };
        let _ = tokio::time::timeout(CLOSING, closed).await;
    }
}

/// Next datagram of HTTP/3. Never over HTTP/2.
async fn next(datagrams: &Option<Datagrams>) -> Option<Bytes> {
    match datagrams {
        Some(datagrams) => datagrams.recv().await,
        None => std::future::pending().await,
    }
}

/// The packet of an HTTP datagram; `None` when it is of another context.
fn packet(datagram: &Bytes) -> Option<Bytes> {
    match Content::parse(datagram) {
        Content::Packet(packet) => Some(datagram.slice_ref(packet)),
        Content::Unknown => None,
    }
}

// RFC 9484 §4.7.1 MUST-4, RFC 9484 §4.7.2 MUST-4, MUST-5, RFC 9484 §4.7.3 MUST-3, MUST-8: a malformed capsule ends the tunnel
fn event(capsule: &capsule::Capsule) -> Result<Option<IpEvent>, ProxyError> {
    let malformed = |fault: CapsuleFault| {
        ProxyError::Broken(Cause::Protocol {
            code: None,
            reason: format!("the proxy breaks the rules of capsules: {fault}"),
        })
    };
    Ok(match capsule.ty {
        capsule::DATAGRAM => packet(&capsule.value).map(IpEvent::Packet),
        ADDRESS_ASSIGN => Some(IpEvent::Addresses(AddressAssign::parse(&capsule.value).map_err(malformed)?)),
        ROUTE_ADVERTISEMENT => Some(IpEvent::Routes(RouteAdvertisement::parse(&capsule.value).map_err(malformed)?)),
        _ => Some(IpEvent::Requested(AddressRequest::parse(&capsule.value).map_err(malformed)?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(ty: u64, value: &'static [u8]) -> Result<Option<IpEvent>, ProxyError> {
        event(&capsule::Capsule { ty, value: Bytes::from_static(value) })
    }

    /// RFC 9484 §4.7.1 MUST-4, RFC 9484 §4.7.2 MUST-4, MUST-5, RFC 9484 §4.7.3 MUST-3, MUST-8
    #[test]
    fn malformed_capsules_break_a_tunnel() {
        assert_eq!(parsed(capsule::DATAGRAM, b"\0E").unwrap(), Some(IpEvent::Packet(Bytes::from_static(b"E"))));
        assert_eq!(parsed(capsule::DATAGRAM, b"\x02E").unwrap(), None);
        assert_eq!(parsed(ADDRESS_ASSIGN, b"").unwrap(), Some(IpEvent::Addresses(AddressAssign::default())));
        let requested = parsed(ADDRESS_REQUEST, &[1, 4, 0, 0, 0, 0, 32]).unwrap();
        assert!(
            matches!(&requested, Some(IpEvent::Requested(request)) if request.0[0].request_id == 1),
            "{requested:?}"
        );
        for (ty, value) in [
            (ADDRESS_ASSIGN, &[0, 5][..]),
            (ADDRESS_REQUEST, &[]),
            (ROUTE_ADVERTISEMENT, &[4, 0, 0, 0, 2, 0, 0, 0, 1, 0]),
        ] {
            let error = parsed(ty, value).unwrap_err();
            assert!(matches!(error, ProxyError::Broken(Cause::Protocol { code: None, .. })), "{error:?}");
        }
    }
}
