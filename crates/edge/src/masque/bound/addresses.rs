//! Addresses of bound UDP: sockets to send from, and what others see of them.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use h3_quic::connect_udp::bound::{CONNECT_UDP_BIND, PROXY_PUBLIC_ADDRESS, public_address_value};
use http::HeaderMap;

use super::super::{local_address_for, refusal::Refusal, socket::PeersSocket};
use crate::config::{BoundAddress, Many};

/// Addresses on the public Internet, of root servers of DNS. Their routes are looked up, and nothing is sent.
const FAR: [&str; 2] = ["198.41.0.4:53", "[2001:503:ba3e::2:30]:53"];

/// The configured addresses, or those of the routes to the Internet.
fn addresses(configured: &Many) -> Vec<BoundAddress> {
    if !configured.0.is_empty() {
        // They were checked when they were read.
        return configured.0.iter().filter_map(|text| text.parse().ok()).collect();
    }
    let far = FAR.iter().filter_map(|text| text.parse().ok());
    let routes = far.filter_map(|far: SocketAddr| local_address_for(far).ok()).map(|local| local.ip());
    let usable = routes.filter(|ip| !ip.is_loopback() && !ip.is_unspecified());
    usable.map(|ip| BoundAddress { local: ip, public: ip }).collect()
}

/// Sockets of a tunnel, one of each IP version at most.
pub(in super::super) struct Sockets {
    v4: Option<PeersSocket>,
    v6: Option<PeersSocket>,
    public: Vec<SocketAddr>,
}

impl Sockets {
    /// Opens the sockets of a tunnel. Each keeps its address and port until the tunnel ends.
    // draft-ietf-masque-connect-udp-listen §7 MUST, MUST, SHALL
    pub(in super::super) async fn open(configured: &Many) -> Result<Self, Refusal> {
        let mut sockets = Self { v4: None, v6: None, public: Vec::new() };
        for BoundAddress { local, public } in addresses(configured) {
            let opened = async {
                let socket = PeersSocket::bind(local).await?;
                let port = socket.local()?.port();
                Ok::<_, io::Error>((socket, port))
            };
            let (socket, port) = opened.await.map_err(|error| {
                tracing::warn!("bound UDP has no socket at {local}: {error}");
                Refusal::NoAddress("the proxy has no socket at its address")
            })?;
            sockets.public.push(SocketAddr::new(public, port));
            *if local.is_ipv4() { &mut sockets.v4 } else { &mut sockets.v6 } = Some(socket);
        }
        if sockets.public.is_empty() {
            return Err(Refusal::NoAddress("the proxy has no address for bound UDP"));
        }
        Ok(sockets)
    }

    fn of(&self, ip: IpAddr) -> Option<&PeersSocket> {
        if ip.is_ipv4() { self.v4.as_ref() } else { self.v6.as_ref() }
    }

    /// Returns whether there is a socket of the IP version.
    pub(in super::super) fn reach(&self, ip: IpAddr) -> bool {
        self.of(ip).is_some()
    }

    pub(in super::super) fn public_addresses(&self) -> Vec<String> {
        self.public.iter().map(ToString::to_string).collect()
    }

    /// Adds the fields that tell the client of the addresses.
    pub(super) fn announce(&self, fields: &mut HeaderMap) {
        fields.insert(CONNECT_UDP_BIND, http::HeaderValue::from_static("?1"));
        fields.extend(public_address_value(&self.public).map(|value| (PROXY_PUBLIC_ADDRESS, value)));
    }

    /// Waits until a socket has datagrams, and returns it.
    pub(super) async fn readable(&self) -> io::Result<&PeersSocket> {
        async fn of(socket: Option<&PeersSocket>) -> io::Result<&PeersSocket> {
            let Some(socket) = socket else { return std::future::pending().await };
            socket.readable().await.map(|()| socket)
        }
        // Neither version of IP keeps the other one waiting: the order is random.
        tokio::select! {
            socket = of(self.v4.as_ref()) => socket,
            socket = of(self.v6.as_ref()) => socket,
        }
    }

    /// Sends a datagram from the socket of the peer's IP version.
    pub(super) fn try_send(&self, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let socket = self.of(peer.ip()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        socket.try_send(peer, payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn public_addresses_have_the_ports_of_the_sockets() {
        let many = |list: &[&str]| Many(list.iter().map(|text| (*text).to_owned()).collect());
        let sockets = Sockets::open(&many(&["127.0.0.1=203.0.113.7"])).await.unwrap_or_else(|why| panic!("{why:?}"));
        let port = sockets.v4.as_ref().unwrap().local().unwrap().port();
        assert_eq!(sockets.public_addresses(), [format!("203.0.113.7:{port}")]);
        assert!(sockets.reach("192.0.2.1".parse().unwrap()) && !sockets.reach("2001:db8::1".parse().unwrap()));
        let mut fields = HeaderMap::new();
        sockets.announce(&mut fields);
        assert_eq!(fields[PROXY_PUBLIC_ADDRESS], format!("\"203.0.113.7:{port}\""));
        // An address that this machine does not have.
        let refusal = Sockets::open(&many(&["192.0.2.77"])).await.err();
        assert!(matches!(refusal, Some(Refusal::NoAddress(_))), "{refusal:?}");
    }
}
