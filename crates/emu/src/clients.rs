//! The clients of a relay: which address has which socket towards the server. Bounded: a new address may take the place
//! of one that has been silent for long, or else finds none.

use std::{collections::HashMap, io, net::SocketAddr};

use socket2::SockAddr;
use units::{Duration, Instant};

use crate::socket::UdpSocket;

/// A client's place. The second number tells apart those who had the same place one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// When it was last heard, or the server spoke to it.
    pub(crate) heard: Instant,
    /// Packets from it and to it, offered so far.
    pub(crate) numbers: [u64; 2],
}

#[derive(Debug)]
pub(crate) struct Clients {
    places: Vec<Client>,
    by_address: HashMap<SocketAddr, u32>,
    /// Most packets come from the client of the packet before.
    latest: u32,
    max: usize,
    idle: Duration,
}

/// What came of looking for a client's place.
#[derive(Debug)]
pub(crate) enum Found {
    Known(Place),
    /// Newly given a place; its socket is to be watched.
    New(Place),
    /// All places are taken.
    Full,
}

impl Clients {
    pub(crate) fn new(max: usize, idle: Duration) -> Self {
        Self { places: Vec::new(), by_address: HashMap::new(), latest: 0, max, idle }
    }

    /// The place of a client's address; a new one opens a socket with `connect`.
    pub(crate) fn find(
        &mut self,
        address: SocketAddr,
        now: Instant,
        connect: impl FnOnce() -> io::Result<UdpSocket>,
    ) -> io::Result<Found> {
        if self.places.get(self.latest as usize).is_some_and(|client| client.address == address) {
            return Ok(Found::Known(self.heard(self.latest, now)));
        }
        if let Some(&index) = self.by_address.get(&address) {
            self.latest = index;
            return Ok(Found::Known(self.heard(index, now)));
        }
        let (index, generation) = if self.places.len() < self.max {
            (self.places.len(), 0)
        } else {
            let silent = |client: &Client| now.saturating_since(client.heard) >= self.idle;
            let longest = (0..self.places.len()).min_by_key(|&index| self.places[index].heard);
            match longest {
                Some(index) if silent(&self.places[index]) => (index, self.places[index].generation.wrapping_add(1)),
                _ => return Ok(Found::Full),
            }
        };
        let client =
            Client { address, name: address.into(), socket: connect()?, generation, heard: now, numbers: [0; 2] };
        if index < self.places.len() {
            self.by_address.remove(&self.places[index].address);
            self.places[index] = client;
        } else {
            self.places.push(client);
        }
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.by_address.insert(address, index);
        self.latest = index;
        Ok(Found::New(Place { index, generation }))
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

    /// Who has the place with this index.
    pub(crate) fn at(&self, index: u32) -> Option<Place> {
        self.places.get(index as usize).map(|client| Place { index, generation: client.generation })
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
        let Found::New(first) = find(&mut clients, 1, 0) else { panic!("room for one") };
        assert!(matches!(find(&mut clients, 2, 1), Found::New(_)));
        assert!(matches!(find(&mut clients, 3, 2), Found::Full));
        // The first one speaks again, so that the second one has been silent for longer.
        assert!(matches!(find(&mut clients, 1, 20), Found::Known(place) if place == first));
        assert!(matches!(find(&mut clients, 3, 30), Found::Full));
        let Found::New(third) = find(&mut clients, 3, 31) else { panic!("the second one is silent for 30 s") };
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
}
