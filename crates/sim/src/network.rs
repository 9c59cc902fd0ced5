//! Topology: zones and the links between them.
//!
//! Each address is in a zone. Inside a zone packets pass freely. From one zone to another they pass the link between the two, which all
//! nodes share. A dumbbell is two zones; a telephone with two radios is a node with addresses in two zones.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;

use netem::{Link, LinkConfig, Nat, NatConfig};
use rand_core::RngCore;
use units::{Duration, Instant, RandomStream, Seed};

use crate::SimError;

/// A set of addresses that reach one another without a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone(u32);

/// A link from one zone to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub(crate) u32);

/// The way between a node and the zone's edge. The default is no way at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Access {
    /// Delay in each direction: nodes with different delays have different round-trip times over the same bottleneck.
    pub delay: Duration,
    /// Delay of packets that leave, drawn evenly from zero to this for each, with the order kept. Less than the time
    /// that the bottleneck takes for one packet is enough to break the phase effects of deterministic simulations
    /// (Floyd and Jacobson, 1991), where one of two equal flows starves for ever.
    pub jitter: Duration,
}

/// Packets without a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Undeliverable {
    /// No node has the address.
    pub no_address: u64,
    /// No link between the zones.
    pub no_link: u64,
    /// The node had not been started when they arrived.
    pub not_started: u64,
    /// The address translation in front of the node had forgotten whom they are for.
    pub no_mapping: u64,
}

/// An address and where it is.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) node: u32,
    zone: Zone,
    access: Access,
    draws: RandomStream,
    /// Time at which the last packet reached the edge of the zone.
    last: Instant,
}

/// The path of a packet, as far as known when it is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) node: u32,
    pub(crate) flow: u32,
    pub(crate) link: Option<u32>,
    pub(crate) source: usize,
    /// Access delay at the far end.
    pub(crate) egress: Duration,
}

#[derive(Debug)]
pub(crate) struct Wire {
    from: Zone,
    to: Zone,
    pub(crate) link: Link,
    /// Packets offered so far, by flow.
    numbers: Vec<u64>,
    /// Time at which the simulation looks after the packets that the link holds.
    pub(crate) wake: Option<Instant>,
}

/// An address translation at the edge of a zone.
#[derive(Debug)]
struct Translation {
    zone: Zone,
    nat: Nat,
    /// Inside address of each outside address ever used: packets to an old one still reach the zone.
    known: BTreeMap<SocketAddr, SocketAddr>,
}

/// Zones, the links between them and the addresses in them.
#[derive(Debug)]
pub struct Network {
    seed: Seed,
    zones: u32,
    pub(crate) wires: Vec<Wire>,
    translations: Vec<Translation>,
    attachments: Vec<Attachment>,
    /// Sorted by address.
    addresses: Vec<(IpAddr, usize)>,
    pub(crate) undeliverable: Undeliverable,
}

impl Network {
    /// A network without zones.
    pub const fn new(seed: Seed) -> Self {
        Self {
            seed,
            zones: 0,
            wires: Vec::new(),
            translations: Vec::new(),
            attachments: Vec::new(),
            addresses: Vec::new(),
            undeliverable: Undeliverable { no_address: 0, no_link: 0, not_started: 0, no_mapping: 0 },
        }
    }

    /// Adds a zone.
    pub const fn zone(&mut self) -> Zone {
        self.zones += 1;
        Zone(self.zones - 1)
    }

    /// Adds a link from one zone to another, in this direction only. A second link between the same zones is never used.
    ///
    /// # Errors
    /// When the settings are contradictory; `name` is the link.
    pub fn connect(
        &mut self,
        from: Zone,
        to: Zone,
        name: &'static str,
        config: &LinkConfig,
    ) -> Result<LinkId, SimError> {
        let index = self.wires.len();
        let link = Link::new(config, self.seed.child("link", index as u64))
            .map_err(|source| SimError::Link { link: name, source })?;
        self.wires.push(Wire { from, to, link, numbers: Vec::new(), wake: None });
        Ok(LinkId(u32::try_from(index).expect("fewer than 2^32 links")))
    }

    /// Adds address translation between a zone and all of its links. Once per zone.
    pub fn translate(&mut self, zone: Zone, config: &NatConfig) {
        let nat = Nat::new(config, &self.seed.child("nat", u64::from(zone.0)));
        self.translations.push(Translation { zone, nat, known: BTreeMap::new() });
    }

    /// The address translation of a zone, for its counters.
    pub fn translation(&self, zone: Zone) -> Option<&Nat> {
        self.translations.iter().find(|translation| translation.zone == zone).map(|translation| &translation.nat)
    }

    /// From whom a packet seems to come when it enters a link.
    #[inline]
    pub(crate) fn outward(&mut self, now: Instant, link: u32, from: SocketAddr) -> SocketAddr {
        if self.translations.is_empty() {
            return from;
        }
        let zone = self.wires[link as usize].from;
        let Some(translation) = self.translations.iter_mut().find(|translation| translation.zone == zone) else {
            return from;
        };
        let outside = translation.nat.outward(now, from);
        translation.known.insert(outside, from);
        outside
    }

    /// Inside destination of a packet that left a link; `None` when its mapping is not known any more.
    #[inline]
    pub(crate) fn inward(&mut self, now: Instant, link: u32, to: SocketAddr) -> Option<SocketAddr> {
        if self.translations.is_empty() {
            return Some(to);
        }
        let zone = self.wires[link as usize].to;
        let Some(translation) = self.translations.iter_mut().find(|translation| translation.zone == zone) else {
            return Some(to);
        };
        let inside = translation.nat.inward(now, to);
        self.undeliverable.no_mapping += u64::from(inside.is_none());
        inside
    }

    /// A link, for its counters and queueing delays.
    ///
    /// # Panics
    /// When the link belongs to another network.
    pub fn link(&self, id: LinkId) -> &Link {
        &self.wires[id.0 as usize].link
    }

    /// A link, to give it a script.
    ///
    /// # Panics
    /// When the link belongs to another network.
    pub fn link_mut(&mut self, id: LinkId) -> &mut Link {
        &mut self.wires[id.0 as usize].link
    }

    /// All links, in the order in which they were added.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.wires.iter().map(|wire| &wire.link)
    }

    /// Packets without a destination.
    pub const fn undeliverable(&self) -> Undeliverable {
        self.undeliverable
    }

    /// Gives a node an address.
    pub(crate) fn attach(&mut self, node: u32, address: IpAddr, zone: Zone, access: Access) -> Result<(), SimError> {
        let Err(place) = self.addresses.binary_search_by_key(&address, |entry| entry.0) else {
            return Err(SimError::AddressTaken(address));
        };
        let index = self.attachments.len();
        self.addresses.insert(place, (address, index));
        let draws = self.seed.child("access", index as u64).stream("jitter");
        self.attachments.push(Attachment { node, zone, access, draws, last: Instant::ZERO });
        Ok(())
    }

    fn find(&self, address: IpAddr) -> Option<usize> {
        let place = self.addresses.binary_search_by_key(&address, |entry| entry.0).ok()?;
        Some(self.addresses[place].1)
    }

    /// Route from one address to another. A source address without an owner (a forged one) counts as the sender's own.
    ///
    /// The flow of a packet is the number of that end which was attached first, so that both directions of a connection
    /// have the same flow number: the client's, when clients are attached before servers.
    pub(crate) fn route(&mut self, sender: u32, from: IpAddr, to: SocketAddr) -> Option<Route> {
        let known = || self.translations.iter().find_map(|translation| translation.known.get(&to));
        let Some(target) = self.find(to.ip()).or_else(|| self.find(known()?.ip())) else {
            self.undeliverable.no_address += 1;
            return None;
        };
        let source =
            self.find(from).or_else(|| self.attachments.iter().position(|attachment| attachment.node == sender))?;
        let (near, far) = (&self.attachments[source], &self.attachments[target]);
        let link = if near.zone == far.zone {
            None
        } else {
            let wire = self.wires.iter().position(|wire| wire.from == near.zone && wire.to == far.zone);
            if wire.is_none() {
                self.undeliverable.no_link += 1;
                return None;
            }
            wire.and_then(|wire| u32::try_from(wire).ok())
        };
        let flow = u32::try_from(source.min(target)).unwrap_or(u32::MAX);
        Some(Route { node: far.node, flow, link, source, egress: far.access.delay })
    }

    /// Time at which a packet sent at `now` reaches the edge of its zone.
    #[inline]
    pub(crate) fn leaves(&mut self, source: usize, now: Instant) -> Instant {
        let attachment = &mut self.attachments[source];
        let access = attachment.access;
        if access.jitter.is_zero() {
            return now + access.delay;
        }
        let span = u64::try_from(access.jitter.as_nanos()).unwrap_or(u64::MAX);
        let jitter =
            u64::try_from((u128::from(attachment.draws.next_u64()) * (u128::from(span) + 1)) >> 64).unwrap_or(span);
        attachment.last = attachment.last.max(now + access.delay + Duration::from_nanos(jitter));
        attachment.last
    }

    /// The link with this number, and which packet of its flow this is.
    #[inline]
    pub(crate) fn pass(&mut self, link: u32, flow: u32) -> (&mut Link, u64) {
        let wire = &mut self.wires[link as usize];
        let flow = flow as usize;
        if flow >= wire.numbers.len() {
            wire.numbers.resize(flow + 1, 0);
        }
        let number = wire.numbers[flow];
        wire.numbers[flow] += 1;
        (&mut wire.link, number)
    }
}
