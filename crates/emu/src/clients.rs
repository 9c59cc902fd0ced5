//! Clients of a relay: the map from client addresses to sockets towards the server. Its size is bounded: a new address replaces one that
//! has been silent for long, or else is refused.
//!
//! Behind a NAT an entry is a mapping. A client whose mapping has changed gets a new entry. The retired entry keeps its socket: the port
//! stays in use, so the NAT drops further packets of the server, and the system does not answer them.

use std::{collections::HashMap, io, net::SocketAddr};

use socket2::SockAddr;
use units::{Duration, Instant};

use crate::socket::UdpSocket;

/// Slot of a client. The generation tells apart clients that had the same slot one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) index: u32,
    generation: u32,
}

/// A client and its way to the server.
#[derive(Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    /// The same address as the system wants it.
    name: SockAddr,
    pub(crate) socket: UdpSocket,
    generation: u32,
    /// Time of the latest packet from or to the client.
    pub(crate) heard: Instant,
    /// Packets offered so far: from the client, and to it.
    pub(crate) numbers: [u64; 2],
    /// Number of its flow on the links. It does not depend on the NAT mapping.
    pub(crate) flow: u32,
    /// Address that the NAT gives it.
    pub(crate) outside: Option<SocketAddr>,
    /// The client has another place: the NAT has changed its mapping.
    retired: bool,
}

impl Client {
    fn new(address: SocketAddr, socket: UdpSocket, now: Instant, flow: u32) -> Self {
        let (name, numbers) = (address.into(), [0; 2]);
        Self { address, name, socket, generation: 0, heard: now, numbers, flow, outside: None, retired: false }
    }
}

#[derive(Debug)]
pub(crate) struct Clients {
    places: Vec<Client>,
    by_address: HashMap<SocketAddr, u32>,
    /// Most packets come from the client of the packet before.
    latest: u32,
    max: usize,
    idle: Duration,
    flows: u32,
    /// Flow numbers of clients that have lost their place.
    free_flows: Vec<u32>,
}

/// Result of the search for a client's place.
#[derive(Debug)]
pub(crate) enum Found {
    Known(Place),
    /// Newly given a place; its socket is to be watched.
    New {
        place: Place,
        /// The client that has lost its place for this one.
        evicted: Option<SocketAddr>,
    },
    /// Every place is taken.
    Full,
}

impl Clients {
    pub(crate) fn new(max: usize, idle: Duration) -> Self {
        let (places, by_address, free_flows) = (Vec::new(), HashMap::new(), Vec::new());
        Self { places, by_address, latest: 0, max, idle, flows: 0, free_flows }
    }

    /// The place of a client's address; a new one opens a socket with `connect`.
    pub(crate) fn find(
        &mut self,
        address: SocketAddr,
        now: Instant,
        connect: impl FnOnce() -> io::Result<UdpSocket>,
    ) -> io::Result<Found> {
        if self.places.get(self.latest as usize).is_some_and(|client| client.address == address && !client.retired) {
            return Ok(Found::Known(self.heard(self.latest, now)));
        }
        if let Some(&index) = self.by_address.get(&address) {
            self.latest = index;
            return Ok(Found::Known(self.heard(index, now)));
        }
        let index = if self.by_address.len() < self.max {
            self.vacancy()
        } else {
            let silent = |index: &usize| now.saturating_since(self.places[*index].heard) >= self.idle;
            self.longest_silent(false).filter(silent)
        };
        let Some(index) = index else { return Ok(Found::Full) };
        let socket = connect()?;
        let evicted =
            self.places.get(index).filter(|client| !client.retired).map(|client| (client.address, client.flow));
        if let Some((address, flow)) = evicted {
            self.by_address.remove(&address);
            self.free_flows.push(flow);
        }
        let flow = self.free_flows.pop().unwrap_or(self.flows);
        self.flows = self.flows.max(flow + 1);
        let place = self.settle(index, Client::new(address, socket, now, flow));
        Ok(Found::New { place, evicted: evicted.map(|(address, _)| address) })
    }

    /// Replaces the slot of a client by a new one with its own socket, and retires the old one.
    pub(crate) fn remap(
        &mut self,
        place: Place,
        outside: SocketAddr,
        now: Instant,
        connect: impl FnOnce() -> io::Result<UdpSocket>,
    ) -> io::Result<Place> {
        let socket = connect()?;
        let index = self.vacancy().ok_or(io::ErrorKind::QuotaExceeded)?;
        let old = self.get(place).ok_or(io::ErrorKind::NotFound)?;
        old.retired = true;
        let mut client = Client::new(old.address, socket, now, old.flow);
        (client.numbers, client.outside) = (old.numbers, Some(outside));
        Ok(self.settle(index, client))
    }

    /// Returns a free slot, or a retired one to reuse: there are at most as many retired slots as clients.
    fn vacancy(&self) -> Option<usize> {
        if self.places.len() < self.max.saturating_mul(2) {
            return Some(self.places.len());
        }
        self.longest_silent(true)
    }

    fn longest_silent(&self, retired: bool) -> Option<usize> {
        let candidates = (0..self.places.len()).filter(|&index| self.places[index].retired == retired);
        candidates.min_by_key(|&index| self.places[index].heard)
    }

    fn settle(&mut self, index: usize, mut client: Client) -> Place {
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        self.by_address.insert(client.address, number);
        self.latest = number;
        match self.places.get_mut(index) {
            Some(taken) => {
                client.generation = taken.generation.wrapping_add(1);
                *taken = client;
            }
            None => self.places.push(client),
        }
        Place { index: number, generation: self.places[index].generation }
    }

    /// The client at a place, unless it has lost it.
    pub(crate) fn get(&mut self, place: Place) -> Option<&mut Client> {
        self.places.get_mut(place.index as usize).filter(|client| client.generation == place.generation)
    }

    /// The address of the client at a place, unless it has lost it.
    pub(crate) fn name(&self, place: Place) -> Option<&SockAddr> {
        let client = self.places.get(place.index as usize)?;
        (client.generation == place.generation).then_some(&client.name)
    }

    /// Address of a client.
    pub(crate) fn address(&self, place: Place) -> Option<SocketAddr> {
        let client = self.places.get(place.index as usize)?;
        (client.generation == place.generation).then_some(client.address)
    }

    /// Client at the place with this index.
    pub(crate) fn at(&self, index: u32) -> Option<Place> {
        self.places.get(index as usize).map(|client| Place { index, generation: client.generation })
    }

    /// Address that the NAT gives the client at a place.
    pub(crate) fn outside(&self, place: Place) -> Option<SocketAddr> {
        let client = self.places.get(place.index as usize)?;
        client.outside.filter(|_| client.generation == place.generation)
    }

    fn heard(&mut self, index: u32, now: Instant) -> Place {
        let client = &mut self.places[index as usize];
        client.heard = now;
        Place { index, generation: client.generation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(30);

    fn find(clients: &mut Clients, port: u16, seconds: u64) -> Found {
        let now = Instant::from_millis(seconds * 1000);
        let connect = || UdpSocket::connect("127.0.0.1:9".parse().unwrap());
        clients.find(SocketAddr::new([127, 0, 0, 1].into(), port), now, connect).unwrap()
    }

    #[test]
    fn the_longest_silent_client_makes_room() {
        let mut clients = Clients::new(2, IDLE);
        let Found::New { place: first, evicted: None } = find(&mut clients, 1, 0) else { panic!("room for one") };
        assert!(matches!(find(&mut clients, 2, 1), Found::New { .. }));
        assert!(matches!(find(&mut clients, 3, 2), Found::Full));
        // The first one speaks again, so that the second one has been silent for longer.
        assert!(matches!(find(&mut clients, 1, 20), Found::Known(place) if place == first));
        assert!(matches!(find(&mut clients, 3, 30), Found::Full));
        let Found::New { place: third, evicted } = find(&mut clients, 3, 31) else {
            panic!("the second one is silent for 30 s")
        };
        assert_eq!(evicted.map(|address| address.port()), Some(2));
        assert_eq!(third.index, 1);
        assert_eq!(clients.at(1), Some(third));
        assert!(clients.get(first).is_some());
        assert!(matches!(find(&mut clients, 2, 32), Found::Full), "the second one has lost its place");
        assert!(clients.get(Place { index: 1, generation: 0 }).is_none());
    }

    #[test]
    fn without_places_there_are_no_clients() {
        assert!(matches!(find(&mut Clients::new(0, IDLE), 1, 100), Found::Full));
    }

    #[test]
    fn another_mapping_is_another_place_of_the_same_flow() {
        let mut clients = Clients::new(1, IDLE);
        let outside = |port| SocketAddr::new([127, 0, 0, 1].into(), port);
        let connect = || UdpSocket::connect("127.0.0.1:9".parse().unwrap());
        let Found::New { place: first, .. } = find(&mut clients, 1, 0) else { panic!("room for one") };
        clients.get(first).unwrap().numbers = [3, 4];
        let second = clients.remap(first, outside(2), Instant::ZERO, connect).unwrap();
        assert_ne!(first, second);
        assert!(matches!(find(&mut clients, 1, 1), Found::Known(place) if place == second));
        let client = clients.get(second).unwrap();
        assert_eq!((client.flow, client.numbers, client.outside), (0, [3, 4], Some(outside(2))));
        let ports = [first, second].map(|place| clients.get(place).unwrap().socket.address().unwrap().port());
        assert_ne!(ports[0], ports[1]);
        // The third mapping takes the first one's place, of which nobody else learns.
        let third = clients.remap(second, outside(3), Instant::ZERO, connect).unwrap();
        assert!(clients.get(first).is_none() && clients.get(second).is_some());
        assert!(matches!(find(&mut clients, 2, 2), Found::Full), "retired places are no room for others");
        assert!(matches!(find(&mut clients, 1, 2), Found::Known(place) if place == third));
        let Found::New { place, evicted } = find(&mut clients, 2, 40) else { panic!("the first one is silent") };
        assert_eq!((evicted.map(|address| address.port()), clients.get(place).unwrap().flow), (Some(1), 0));
    }
}
