//! Event loop: takes the next event, advances time to it, calls one node, sends its datagrams.

use core::net::IpAddr;
use std::collections::BTreeMap;

use netem::{Amount, DropReason, LinkCounters, PacketMeta, Ticket, Transit, Verdict, flip_bits, overhead};
use units::Instant;

use crate::{
    Access, Books, Datagram, Ended, Imbalance, LinkId, Network, Node, Outbox, Outcome, SimError, Trace, TraceRecord,
    Waiting, Zone,
    agenda::{Agenda, Event},
    books,
    network::Route,
    slab::{Packet, Slab},
};

/// Limits that no sound simulation exceeds. A node that does is stopped with an error that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Events in all.
    pub events: u64,
    /// Calls of one node in one instant.
    pub calls_per_instant: u32,
    /// Packets that one call may send.
    pub packets_per_call: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { events: 1_000_000_000, calls_per_instant: 100_000, packets_per_call: 65_536 }
    }
}

/// Inspects a datagram before it enters the network and returns its mark.
type Tagger = dyn FnMut(&Datagram) -> u64 + Send;

/// A node with its state in the simulation.
#[derive(Debug)]
struct Member<N> {
    node: N,
    name: String,
    started: bool,
    finished: bool,
    /// The earliest event that will wake it.
    wake: Option<Instant>,
    /// Time of the last call, and the number of calls at that instant.
    called: Instant,
    calls: u32,
}

/// Nodes on a network, and virtual time.
pub struct Simulation<N> {
    now: Instant,
    agenda: Agenda,
    network: Network,
    members: Vec<Member<N>>,
    unfinished: usize,
    packets: Slab,
    /// Packets that a link holds: (link, ticket) and their places.
    held: BTreeMap<(u32, Ticket), u32>,
    trace: Trace,
    /// Books of packets that are neither at links nor in progress.
    books: Books,
    limits: Limits,
    events: u64,
    outbox: Outbox,
    tagger: Option<Box<Tagger>>,
}

impl<N: Node> Simulation<N> {
    /// A simulation on a network, without nodes. See [`Dumbbell`](crate::Dumbbell) and
    /// [`point_to_point`](crate::point_to_point) for ready-made ones.
    pub fn new(network: Network) -> Self {
        Self {
            now: Instant::ZERO,
            agenda: Agenda::default(),
            network,
            members: Vec::new(),
            unfinished: 0,
            packets: Slab::default(),
            held: BTreeMap::new(),
            trace: Trace::new(),
            books: Books::default(),
            limits: Limits::default(),
            events: 0,
            outbox: Outbox::new(),
            tagger: None,
        }
    }

    /// Adds a node that starts (is called for the first time) at `start`, and returns its number. Numbers count up from
    /// zero. Give it its addresses with [`attach`](Self::attach).
    pub fn add(&mut self, name: impl Into<String>, node: N, start: Instant) -> usize {
        let index = self.members.len();
        let start = start.max(self.now);
        let finished = node.finished();
        self.unfinished += usize::from(!finished);
        self.members.push(Member {
            node,
            name: name.into(),
            started: false,
            finished,
            wake: Some(start),
            called: Instant::ZERO,
            calls: 0,
        });
        self.agenda.enter(start, Event::Wake { node: number(index) });
        index
    }

    /// Gives a node an address. Packets to every port of it reach the node.
    ///
    /// # Errors
    /// When another node has the address.
    pub fn attach(&mut self, node: usize, address: IpAddr, zone: Zone, access: Access) -> Result<(), SimError> {
        self.network.attach(number(node), address, zone, access)
    }

    /// Keeps the first `records` packets of the trace, not only the hash.
    pub fn keep_trace(&mut self, records: usize) {
        self.trace.keep(records);
    }

    /// Replaces the limits.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Tags each packet that enters the network, after batches have been split, so that a link's script can distinguish packets by their
    /// content.
    pub fn tag_with(&mut self, tagger: impl FnMut(&Datagram) -> u64 + Send + 'static) {
        self.tagger = Some(Box::new(tagger));
    }

    /// Runs until every node has finished, no event is left, or `limit` is reached.
    ///
    /// # Errors
    /// When a node exceeds the [`Limits`].
    pub fn run_until(&mut self, limit: Instant) -> Result<Outcome, SimError> {
        loop {
            if self.unfinished == 0 {
                return Ok(self.outcome(Ended::Finished));
            }
            match self.agenda.next_at() {
                None => return Ok(self.outcome(Ended::Stalled)),
                Some(at) if at > limit => {
                    self.now = self.now.max(limit);
                    return Ok(self.outcome(Ended::TimeLimit));
                }
                Some(_) => {}
            }
            if let Some((at, event)) = self.agenda.pop() {
                self.now = at;
                self.step(event)?;
            }
        }
    }

    /// Virtual time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Number of events.
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// The packet trace.
    pub const fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The network, for its links.
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// The network, to give a link a script.
    pub const fn network_mut(&mut self) -> &mut Network {
        &mut self.network
    }

    /// Counters of a link.
    pub fn counters(&self, link: LinkId) -> &LinkCounters {
        self.network.link(link).counters()
    }

    /// Fates of all packets.
    pub fn books(&self) -> Books {
        let mut books = self.books;
        for link in self.network.links() {
            for (sum, reason) in books.dropped.iter_mut().zip(DropReason::ALL) {
                let dropped = link.counters().dropped(reason);
                (sum.packets, sum.bytes) = (sum.packets + dropped.packets, sum.bytes + dropped.bytes);
            }
        }
        self.packets.iter().for_each(|packet| books::add(&mut books.under_way, size(&packet.datagram)));
        books
    }

    /// Checks that the accounts balance: those of every link, and those of the whole network.
    ///
    /// # Errors
    /// The first that does not.
    pub fn balance(&self) -> Result<(), Imbalance> {
        let mut held = vec![Amount::default(); self.network.wires.len()];
        for (&(link, _), &place) in &self.held {
            if let Some(packet) = self.packets.get(place) {
                books::add(&mut held[link as usize], size(&packet.datagram));
            }
        }
        for (wire, held) in self.network.wires.iter().zip(held) {
            books::balance_link(wire.link.counters(), held)?;
        }
        self.books().balance()
    }

    /// The node with this number.
    ///
    /// # Panics
    /// When there is none.
    pub fn node(&self, index: usize) -> &N {
        &self.members[index].node
    }

    /// Changes a node from outside, for example a test's next step, and lets it act at once.
    ///
    /// # Errors
    /// When the node exceeds the [`Limits`].
    ///
    /// # Panics
    /// When there is no such node.
    pub fn with_node<T>(&mut self, index: usize, act: impl FnOnce(Instant, &mut N) -> T) -> Result<T, SimError> {
        let result = act(self.now, &mut self.members[index].node);
        if self.members[index].started {
            self.call(index, None)?;
        }
        Ok(result)
    }

    /// All nodes in the order of their numbers.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &N> {
        self.members.iter().map(|member| &member.node)
    }

    /// All nodes, when the simulation has done its work.
    pub fn into_nodes(self) -> impl ExactSizeIterator<Item = N> {
        self.members.into_iter().map(|member| member.node)
    }

    fn step(&mut self, event: Event) -> Result<(), SimError> {
        self.events += 1;
        if self.events > self.limits.events {
            return Err(self.too_many_events(event));
        }
        match event {
            Event::Wake { node } => self.wake(node as usize),
            Event::Enter { packet } => {
                let packet = self.packets.take(packet);
                self.pass(packet);
                Ok(())
            }
            Event::Arrive { packet } => self.arrive(packet),
            Event::Link { link } => {
                self.network.wires[link as usize].wake = None;
                self.release(link);
                Ok(())
            }
        }
    }

    /// A deadline may have come; it may also have moved since the event was entered.
    fn wake(&mut self, index: usize) -> Result<(), SimError> {
        let member = &mut self.members[index];
        if member.wake != Some(self.now) {
            return Ok(());
        }
        member.wake = None;
        if member.started {
            match member.node.deadline() {
                Some((deadline, _)) if deadline <= self.now => {}
                _ => {
                    self.schedule(index);
                    return Ok(());
                }
            }
        }
        member.started = true;
        self.call(index, None)
    }

    fn arrive(&mut self, place: u32) -> Result<(), SimError> {
        let mut packet = self.packets.take(place);
        let index = packet.node as usize;
        let bytes = size(&packet.datagram);
        if !self.members[index].started {
            self.network.undeliverable.not_started += 1;
            books::add(&mut self.books.undeliverable, bytes);
            return Ok(());
        }
        if let Some(link) = packet.link {
            let Some(inside) = self.network.inward(self.now, link, packet.datagram.to) else {
                books::add(&mut self.books.undeliverable, bytes);
                return Ok(());
            };
            packet.datagram.to = inside;
        }
        books::add(&mut self.books.delivered, bytes);
        if let Some(random) = packet.corrupt {
            flip_bits(&mut packet.datagram.payload, random);
        }
        self.call(index, Some(packet.datagram))
    }

    /// Lets a node act and sends its datagrams.
    fn call(&mut self, index: usize, datagram: Option<Datagram>) -> Result<(), SimError> {
        let member = &mut self.members[index];
        if member.called == self.now {
            member.calls += 1;
            if member.calls > self.limits.calls_per_instant {
                let reason = match datagram {
                    Some(_) => "a datagram arrived",
                    None => member.node.deadline().map_or("none given", |deadline| deadline.1),
                };
                return Err(SimError::Spinning {
                    node: member.name.clone(),
                    at: self.now,
                    calls: member.calls,
                    reason,
                });
            }
        } else {
            member.called = self.now;
            member.calls = 1;
        }
        member.node.handle(self.now, datagram, &mut self.outbox);
        let finished = member.node.finished();
        if finished != member.finished {
            member.finished = finished;
            self.unfinished = if finished { self.unfinished - 1 } else { self.unfinished + 1 };
        }
        self.schedule(index);
        if self.outbox.is_empty() { Ok(()) } else { self.send(index) }
    }

    /// Schedules the event for a node's deadline, unless an earlier event exists.
    #[inline]
    fn schedule(&mut self, index: usize) {
        let member = &mut self.members[index];
        let Some((deadline, _)) = member.node.deadline() else { return };
        let deadline = deadline.max(self.now);
        if deadline < Instant::FAR_FUTURE && member.wake.is_none_or(|wake| deadline < wake) {
            member.wake = Some(deadline);
            self.agenda.enter(deadline, Event::Wake { node: number(index) });
        }
    }

    /// Sends what the node put in the outbox: finds each datagram's way and cuts batches into packets.
    fn send(&mut self, index: usize) -> Result<(), SimError> {
        let mut outbox = core::mem::take(&mut self.outbox.datagrams);
        let mut room = self.limits.packets_per_call;
        for mut datagram in outbox.drain(..) {
            let whole = datagram.payload.len();
            let segment = match datagram.segment_size.take() {
                Some(size) if size > 0 && size < whole => size,
                _ => whole,
            };
            let packets = whole.div_ceil(segment.max(1)).max(1);
            if packets > room {
                return Err(SimError::Flood {
                    node: self.members[index].name.clone(),
                    at: self.now,
                    packets: self.limits.packets_per_call - room + packets,
                    limit: self.limits.packets_per_call,
                });
            }
            room -= packets;
            let route = self.network.route(number(index), datagram.from.ip(), datagram.to);
            self.book_sent(&datagram, segment, route.is_none());
            let Some(route) = route else { continue };
            while datagram.payload.len() > segment {
                let piece = Datagram { payload: datagram.payload.split_to(segment), ..datagram };
                self.depart(&route, piece);
            }
            self.depart(&route, datagram);
        }
        self.outbox.datagrams = outbox;
        Ok(())
    }

    /// Enters a batch that a node has sent, cut into packets of `segment` bytes.
    fn book_sent(&mut self, batch: &Datagram, segment: usize, is_lost: bool) {
        let (whole, header) = (batch.payload.len(), overhead(batch.to.ip()));
        let packets = whole.div_ceil(segment.max(1)).max(1) as u64;
        let bytes = whole as u64 + packets * u64::from(header);
        let columns = [Some(&mut self.books.sent), is_lost.then_some(&mut self.books.undeliverable)];
        for amount in columns.into_iter().flatten() {
            amount.packets += packets;
            amount.bytes += bytes;
        }
    }

    /// A packet leaves its node.
    #[inline]
    fn depart(&mut self, route: &Route, datagram: Datagram) {
        let at = self.network.leaves(route.source, self.now);
        let packet = Packet {
            datagram,
            node: route.node,
            flow: route.flow,
            link: route.link,
            egress: route.egress,
            corrupt: None,
        };
        if at > self.now {
            let packet = self.packets.put(packet);
            self.agenda.enter(at, Event::Enter { packet });
        } else {
            self.pass(packet);
        }
    }

    /// A packet passes its link, if it has one, and its arrivals are entered.
    fn pass(&mut self, mut packet: Packet) {
        if let Some(tagger) = &mut self.tagger {
            packet.datagram.tag = tagger(&packet.datagram);
        }
        let Some(index) = packet.link else {
            let at = self.now + packet.egress;
            return self.enter_arrival(at, packet);
        };
        packet.datagram.from = self.network.outward(self.now, index, packet.datagram.from);
        let size = size(&packet.datagram);
        let (link, number) = self.network.pass(index, packet.flow);
        let meta = PacketMeta {
            size,
            flow: packet.flow,
            number,
            ecn: packet.datagram.ecn,
            protocol: netem::Protocol::Udp,
            tag: packet.datagram.tag,
        };
        if link.deadline().is_some_and(|at| at <= self.now) {
            self.release(index);
        }
        let link = &mut self.network.wires[index as usize].link;
        let transit = link.offer(self.now, &meta);
        if let Verdict::Held(ticket) = transit.verdict {
            let place = self.packets.put(packet);
            self.held.insert((index, ticket), place);
            return self.release(index);
        }
        self.trace.add(&TraceRecord { at: self.now, link: index, packet: meta, transit });
        self.leave(packet, transit);
    }

    /// Takes what a link knows by now of the packets that it holds, and enters the next time to ask.
    fn release(&mut self, index: u32) {
        while let Some(released) = self.network.wires[index as usize].link.poll(self.now) {
            let Some(place) = self.held.remove(&(index, released.ticket)) else { continue };
            let packet = self.packets.take(place);
            let record = TraceRecord { at: self.now, link: index, packet: released.packet, transit: released.transit };
            self.trace.add(&record);
            self.leave(packet, released.transit);
        }
        let wire = &mut self.network.wires[index as usize];
        let Some(at) = wire.link.deadline() else { return };
        if wire.wake.is_none_or(|wake| at < wake) {
            wire.wake = Some(at);
            self.agenda.enter(at, Event::Link { link: index });
        }
    }

    /// A packet whose fate is known leaves its link.
    #[inline]
    fn leave(&mut self, mut packet: Packet, transit: Transit) {
        let Verdict::Delivered { first, copy } = transit.verdict else { return };
        packet.datagram.ecn = first.ecn;
        packet.corrupt = first.corrupt;
        if let Some(copy) = copy {
            books::add(&mut self.books.duplicated, size(&packet.datagram));
            let twin = Packet { datagram: packet.datagram.clone(), ..packet };
            self.enter_arrival(first.at + twin.egress, packet);
            self.enter_arrival(copy.at + twin.egress, twin);
        } else {
            self.enter_arrival(first.at + packet.egress, packet);
        }
    }

    #[inline]
    fn enter_arrival(&mut self, at: Instant, mut packet: Packet) {
        packet.datagram.tag = 0;
        let packet = self.packets.put(packet);
        self.agenda.enter(at, Event::Arrive { packet });
    }

    fn outcome(&self, ended: Ended) -> Outcome {
        debug_assert_eq!(self.balance(), Ok(()), "the books of the network");
        let waiting = self.members.iter().filter(|member| !member.finished).map(|member| {
            let (until, reason) = match member.node.deadline() {
                _ if !member.started => (member.wake, "its start"),
                Some((until, reason)) => (Some(until), reason),
                None => (None, "a datagram"),
            };
            Waiting { node: member.name.clone(), until, reason }
        });
        Outcome { ended, at: self.now, events: self.events, under_way: self.packets.len(), waiting: waiting.collect() }
    }

    #[cold]
    fn too_many_events(&mut self, event: Event) -> SimError {
        let (node, reason) = match event {
            Event::Wake { node } => {
                let deadline = self.members[node as usize].node.deadline();
                (node, deadline.map_or("its start", |deadline| deadline.1))
            }
            Event::Enter { packet } => (self.packets.take(packet).node, "a datagram for it entered the link"),
            Event::Arrive { packet } => (self.packets.take(packet).node, "a datagram arrived"),
            Event::Link { .. } => (0, "a link released packets"),
        };
        SimError::TooManyEvents {
            at: self.now,
            events: self.limits.events,
            node: self.members[node as usize].name.clone(),
            reason,
        }
    }
}

impl<N> core::fmt::Debug for Simulation<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Simulation")
            .field("now", &self.now)
            .field("nodes", &self.members.len())
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

/// Bytes of the IP packet of a datagram.
#[inline]
fn size(datagram: &Datagram) -> u32 {
    let payload = u32::try_from(datagram.payload.len()).unwrap_or(u32::MAX);
    payload.saturating_add(overhead(datagram.to.ip()))
}

/// Node numbers fit: a simulation of four thousand million nodes does not.
#[inline]
fn number(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32 nodes")
}

/// Kept small: packets are moved in and out of the slab.
const _: () = assert!(size_of::<Packet>() <= 192);
