//! Sockets and state of an older process, as a newer one takes them over.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::{
        fd::OwnedFd,
        unix::net::{UnixDatagram, UnixListener, UnixStream},
    },
};

use tiderace::{Endpoint, IdGeneration, KeyRing, RoutableConfig};

use super::{
    messages::{Offer, read_description},
    siblings::SiblingProcess,
};
use crate::{listen::ListenerSockets, masque::OfferedDevice, worker::TakenCount, worker_panics::PanicHistory};

/// Sockets and state of an older process. What is left when the gateway is built stays with that process.
pub(crate) struct TakenOver {
    pub(crate) process: u64,
    pub(crate) id_generation: IdGeneration,
    pub(crate) routable: Option<RoutableConfig>,
    pub(crate) read_by_others: bool,
    pub(crate) routable_before: Vec<RoutableConfig>,
    pub(crate) ring: KeyRing,
    pub(crate) configuration: u64,
    /// Number of sockets of each kind at an address.
    pub(crate) sockets: usize,
    pub(crate) addresses: HashMap<SocketAddr, ListenerSockets>,
    pub(crate) plain: HashMap<SocketAddr, TcpListener>,
    pub(crate) admin: Option<(String, UnixListener)>,
    pub(crate) metrics: Option<(String, TcpListener)>,
    pub(crate) siblings: Vec<SiblingProcess>,
    pub(crate) panics: PanicHistory,
    pub(crate) devices: HashMap<String, OfferedDevice>,
}

impl TakenOver {
    /// Takes an offer apart. `channel` becomes the stream to the older process.
    pub(crate) fn new(offer: Offer, descriptors: Vec<OwnedFd>, channel: &UnixStream) -> io::Result<Self> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut descriptors = descriptors.into_iter();
        let sockets = usize::from(offer.sockets);
        let mut addresses = HashMap::new();
        for address in offer.addresses {
            let tcp = descriptors.by_ref().take(sockets).map(TcpListener::from).collect();
            let udp = descriptors.by_ref().take(sockets).map(UdpSocket::from).collect();
            let is_among_others = !offer.alone.contains(&address);
            addresses.insert(address, ListenerSockets { tcp, udp, steering: None, is_among_others });
        }
        let mut next = || descriptors.next().ok_or_else(|| invalid("descriptors are missing"));
        let mut plain = HashMap::new();
        for address in offer.plain {
            plain.insert(address, next()?.into());
        }
        let admin = offer.admin.map(|path| Ok::<_, io::Error>((path, next()?.into()))).transpose()?;
        let metrics = offer.metrics.map(|address| Ok::<_, io::Error>((address, next()?.into()))).transpose()?;
        let mut siblings = Vec::new();
        let last = offer.siblings.len().saturating_sub(1);
        for (number, sibling) in offer.siblings.iter().enumerate() {
            // The older process itself is at the other end of the channel.
            let control = if number == last { channel.try_clone()? } else { next()?.into() };
            let count: usize = sibling.addresses.iter().map(|(_, shards)| *shards).sum();
            let senders: Vec<_> = (0..count).map(|_| next()).collect::<io::Result<_>>()?;
            siblings.push(SiblingProcess::new(sibling, control, senders.into_iter()));
        }
        let mut devices = HashMap::new();
        for device in offer.devices {
            let file = next()?.into();
            let packets = (0..device.processes).map(|_| next().map(UnixDatagram::from)).collect::<io::Result<_>>()?;
            devices.insert(device.name, OfferedDevice { file, packets });
        }
        for address in offer.steered {
            let table = next()?;
            if let Some(sockets) = addresses.get_mut(&address) {
                sockets.steering = Some(table);
            }
        }
        Ok(Self {
            process: offer.process,
            id_generation: IdGeneration { number: offer.generation, key: offer.id_key },
            routable: offer.routable.as_deref().and_then(read_description),
            read_by_others: offer.read_by_others,
            routable_before: offer.routable_before.iter().filter_map(|text| read_description(text)).collect(),
            ring: KeyRing::parse(&offer.ring).map_err(|error| invalid(&error.to_string()))?,
            configuration: offer.configuration,
            sockets,
            addresses,
            plain,
            admin,
            metrics,
            siblings,
            panics: offer.panics,
            devices,
        })
    }
}

impl TakenOver {
    /// The number of sockets at each address, and whether more may join them: not without kernel steering where there was some, and not those of
    /// another user, such as a service manager's.
    pub(crate) fn count(&self, is_steered: bool) -> TakenCount {
        let has_room = |sockets: &ListenerSockets| match sockets.steering {
            Some(_) => is_steered,
            None => !sockets.is_among_others,
        };
        let may_join =
            |sockets: &ListenerSockets| sockets.udp.iter().all(|socket| Endpoint::may_join(socket).unwrap_or(false));
        let may_grow = self.addresses.values().all(|sockets| has_room(sockets) && may_join(sockets));
        TakenCount { sockets: self.sockets, may_grow }
    }
}

impl Offer {
    /// Number of descriptors that follow.
    pub(crate) fn descriptors(&self) -> usize {
        let shards: usize = self.siblings.iter().flat_map(|sibling| &sibling.addresses).map(|(_, count)| *count).sum();
        let streams = self.siblings.len().saturating_sub(1);
        2 * usize::from(self.sockets) * self.addresses.len()
            + self.plain.len()
            + usize::from(self.admin.is_some())
            + usize::from(self.metrics.is_some())
            + shards
            + streams
            + self.steered.len()
            + self.devices.iter().map(|device| 1 + device.processes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The count of sockets that a process has, which offers those of one address like this.
    fn count(more: serde_json::Value, is_steered: bool) -> TakenCount {
        let mut offer = json!({
            "protocol": 5, "process": 2, "generation": 1, "id_key": vec![0; 16], "routable": null, "configuration": 1, "workers": 2,
            "ring": KeyRing::single([7; 32]).to_text(), "addresses": ["127.0.0.1:443"], "plain": [], "admin": null, "metrics": null,
            "siblings": [],
        });
        offer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let offer: Offer = serde_json::from_value(offer).unwrap();
        let descriptors = (0..offer.descriptors()).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap().into()).collect();
        let taken = TakenOver::new(offer, descriptors, &UnixStream::pair().unwrap().0).unwrap();
        assert!(taken.addresses.values().all(|sockets| (sockets.tcp.len(), sockets.udp.len()) == (2, 2)));
        taken.count(is_steered)
    }

    #[test]
    fn sockets_join_where_the_kernel_finds_them() {
        let address = "127.0.0.1:443";
        for (more, is_steered, may_grow) in [
            (json!({"alone": [address]}), false, true),
            (json!({"alone": [address]}), true, true),
            (json!({"steered": [address]}), true, true),
            (json!({"steered": [address]}), false, false),
            (json!({"alone": ["127.0.0.1:444"]}), true, false),
            // A program with an older version of the protocol.
            (json!({}), true, false),
        ] {
            let count = count(more.clone(), is_steered);
            assert_eq!((count.sockets, count.may_grow), (2, may_grow), "{more} {is_steered}");
        }
    }
}
