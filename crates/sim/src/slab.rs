//! Storage of packets in flight, with reused slots.

use units::Duration;

use crate::node::Datagram;

/// A packet in transit to a node.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) datagram: Datagram,
    /// The destination node.
    pub(crate) node: u32,
    /// Flow.
    pub(crate) flow: u32,
    /// The link it has to pass, if any.
    pub(crate) link: Option<u32>,
    /// Access delay at the far end.
    pub(crate) egress: Duration,
    /// Bits are to be flipped on arrival.
    pub(crate) corrupt: Option<u64>,
}

/// Packets by place.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    places: Vec<Option<Packet>>,
    free: Vec<u32>,
}

impl Slab {
    #[inline]
    pub(crate) fn put(&mut self, packet: Packet) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = Some(packet);
            return place;
        }
        self.places.push(Some(packet));
        u32::try_from(self.places.len() - 1).expect("fewer than 2^32 packets on their way")
    }

    /// Takes a packet out. Each place that an event names is filled until that event.
    #[inline]
    pub(crate) fn take(&mut self, place: u32) -> Packet {
        self.free.push(place);
        self.places[place as usize].take().expect("an event names a packet that is there")
    }

    /// Packets in transit.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Packet> {
        self.places.iter().flatten()
    }

    /// The packet at a place.
    pub(crate) fn get(&self, place: u32) -> Option<&Packet> {
        self.places.get(place as usize)?.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
