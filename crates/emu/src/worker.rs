//! The relay's thread, in the order in which a packet meets it: received in batches, passed through its link, held until its departure,
//! sent in batches.

use std::{io, net::SocketAddr, os::unix::net::UnixStream, sync::mpsc};

use capture::PacketFile;
use netem::{Ecn, Histogram, Link, PacketMeta, flip_bits, overhead};
use units::{Duration, Instant};

use crate::{
    RelayConfig, Statistics,
    clients::{Clients, Found, Place},
    event_loop::{self, Emulator, EventLoop},
    pending::{Direction, Packet, Pending},
    socket::UdpSocket,
    sys::{self, BATCH, Inbox, Outgoing},
    translation::{self, Translation},
};

/// Order of the owner of a relay.
#[derive(Debug)]
pub(crate) enum Command {
    /// Answer with the figures.
    Report(mpsc::Sender<Statistics>),
    /// End.
    Stop,
}

/// Numbers of sources: the client with index `i` has `CLIENTS + i`.
const LISTENER: u64 = 0;
const CLIENTS: u64 = 1;

/// State of the thread.
pub(crate) struct Worker {
    config: RelayConfig,
    events: EventLoop<Command>,
    listener: UdpSocket,
    /// Address of the listener.
    address: SocketAddr,
    clients: Clients,
    translation: Option<Translation>,
    up: OneWay,
    down: OneWay,
    /// Arrival of the first packet: time zero of both links, as the first packet is in a simulation. Outages and changes
    /// of a path are written in that time.
    origin: Option<Instant>,
    pending: Pending,
    inbox: Inbox,
    /// Due packets, collected for one send call.
    outgoing: Vec<Packet>,
    statistics: Statistics,
}

/// A link and the time of the last packet offered to it, before which the next one cannot be.
struct OneWay {
    link: Link,
    latest: Instant,
}

impl Worker {
    /// Creates the worker. The sockets are bound by the caller, so that errors are reported where the relay is started.
    pub(crate) fn new(
        config: RelayConfig,
        [up, down]: [Link; 2],
        listener: UdpSocket,
        commands: mpsc::Receiver<Command>,
        wake: UnixStream,
    ) -> io::Result<Self> {
        let events = EventLoop::new(commands, wake)?;
        events.watch(listener.fd(), LISTENER)?;
        Ok(Self {
            events,
            address: listener.address()?,
            listener,
            clients: Clients::new(config.max_clients, config.client_idle),
            translation: config.nat.as_ref().map(|nat| Translation::new(nat, &config.seed)),
            up: OneWay { link: up, latest: Instant::ZERO },
            down: OneWay { link: down, latest: Instant::ZERO },
            origin: None,
            pending: Pending::new(config.max_held.as_bytes()),
            inbox: Inbox::new(),
            outgoing: Vec::with_capacity(BATCH),
            statistics: Statistics { lateness: Histogram::new(), ..Statistics::default() },
            config,
        })
    }

    /// Runs until stopped and returns the statistics.
    pub(crate) fn run(mut self) -> io::Result<Statistics> {
        self.statistics.preferred = sys::prefer_this_thread();
        event_loop::run(&mut self)?;
        Ok(self.report())
    }

    fn report(&self) -> Statistics {
        Statistics {
            up: *self.up.link.counters(),
            down: *self.down.link.counters(),
            held: self.pending.len() as u64,
            rebindings: self.translation.as_ref().map_or(0, Translation::rebindings),
            ..self.statistics.clone()
        }
    }

    fn receive_from_clients(&mut self) -> io::Result<()> {
        let Some(count) = received(self.inbox.receive(self.listener.fd()), &mut self.statistics) else { return Ok(()) };
        let clocks = Clocks::read();
        if self.translation.is_some() {
            // What was due before these packets came has met the mappings of before.
            self.deliver();
        }
        for index in 0..count {
            let packet = self.inbox.packet(index);
            self.statistics.kernel_dropped += self.listener.dropped_since(packet.kernel_drops);
            let Some(from) = packet.from else { continue };
            if let Some(file) = &self.config.packets {
                note(file, clocks.wall, [from, self.address], packet.ecn, packet.payload);
            }
            let arrived = clocks.arrival(packet.stamp, self.up.latest);
            let (size, ecn) = (size(packet.payload, self.listener.ipv6), packet.ecn);
            let Some(place) = self.place(from, clocks.monotonic, arrived)? else {
                self.statistics.refused += 1;
                continue;
            };
            let Some(client) = self.clients.get(place) else { continue };
            let meta = PacketMeta {
                size,
                flow: client.flow,
                number: count_up(&mut client.numbers[0]),
                ecn,
                protocol: netem::Protocol::Udp,
                tag: 0,
            };
            let origin = *self.origin.get_or_insert(arrived);
            self.up.judge(
                Direction::Up,
                place,
                [origin, arrived],
                &meta,
                self.inbox.payload(index),
                &mut self.pending,
                &mut self.statistics,
            );
        }
        Ok(())
    }

    /// Slot of the client that sent a packet, after translation by the NAT. `None` without a mapping or a socket (too many open files): the
    /// packet is dropped and the relay continues.
    fn place(&mut self, from: SocketAddr, now: Instant, arrived: Instant) -> io::Result<Option<Place>> {
        let to = self.config.to;
        let place = match self.clients.find(from, now, || UdpSocket::connect(to)) {
            Ok(Found::Known(place)) => place,
            Ok(Found::New { place, evicted }) => {
                self.statistics.clients += 1;
                if let (Some(translation), Some(evicted)) = (&mut self.translation, evicted) {
                    translation.forget(evicted);
                }
                self.watch(place)?;
                place
            }
            Ok(Found::Full) | Err(_) => return Ok(None),
        };
        let Some(translation) = &mut self.translation else { return Ok(Some(place)) };
        let at = Instant::ZERO + arrived.saturating_since(self.origin.unwrap_or(arrived));
        let outside = translation.outward(at, from);
        let Some(client) = self.clients.get(place) else { return Ok(None) };
        if *client.outside.get_or_insert(outside) == outside {
            return Ok(Some(place));
        }
        let source = translation::source(from, outside, to);
        match self.clients.remap(place, outside, now, || UdpSocket::connect_from(source, to)) {
            Ok(place) => {
                self.watch(place)?;
                Ok(Some(place))
            }
            Err(_) => Ok(None),
        }
    }

    /// Registers a client's socket for packets from the server.
    fn watch(&mut self, place: Place) -> io::Result<()> {
        match self.clients.get(place) {
            Some(client) => self.events.watch(client.socket.fd(), CLIENTS + u64::from(place.index)),
            None => Ok(()),
        }
    }

    fn receive_from_server(&mut self, index: u64) {
        let Some(place) = u32::try_from(index).ok().and_then(|index| self.clients.at(index)) else { return };
        let Some(client) = self.clients.get(place) else { return };
        let Some(count) = received(self.inbox.receive(client.socket.fd()), &mut self.statistics) else { return };
        let clocks = Clocks::read();
        client.heard = clocks.monotonic;
        for index in 0..count {
            let packet = self.inbox.packet(index);
            self.statistics.kernel_dropped += client.socket.dropped_since(packet.kernel_drops);
            let meta = PacketMeta {
                size: size(packet.payload, self.listener.ipv6),
                flow: client.flow,
                number: count_up(&mut client.numbers[1]),
                ecn: packet.ecn,
                protocol: netem::Protocol::Udp,
                tag: 0,
            };
            let arrived = clocks.arrival(packet.stamp, self.down.latest);
            let origin = *self.origin.get_or_insert(arrived);
            let (pending, statistics) = (&mut self.pending, &mut self.statistics);
            self.down.judge(Direction::Down, place, [origin, arrived], &meta, packet.payload, pending, statistics);
        }
    }

    /// True if the NAT lets a due packet through. It stands between the links and the clients, so that it judges the packets of
    /// servers when they arrive.
    fn admits(&mut self, packet: &Packet) -> bool {
        let (Some(translation), Direction::Down) = (&mut self.translation, packet.direction) else { return true };
        match (self.clients.outside(packet.client), self.origin) {
            (Some(outside), Some(origin)) => {
                translation.admits(Instant::ZERO + packet.due.saturating_since(origin), outside)
            }
            // A place that is gone: counted where it is sent.
            _ => true,
        }
    }

    /// Sends the batch, whose packets all go through one socket.
    fn flush(&mut self) {
        let Some(head) = self.outgoing.first() else { return };
        match head.direction {
            Direction::Up => {
                let place = head.client;
                if let Some(client) = self.clients.get(place) {
                    let mut batch = [EMPTY; BATCH];
                    for (slot, packet) in batch.iter_mut().zip(&self.outgoing) {
                        *slot =
                            Outgoing { payload: &packet.payload, to: None, ecn: packet.ecn, ipv6: client.socket.ipv6 };
                    }
                    send(&client.socket, &batch[..self.outgoing.len()], &mut self.statistics);
                } else {
                    self.statistics.orphaned += self.outgoing.len() as u64;
                }
            }
            Direction::Down => {
                let mut batch = [EMPTY; BATCH];
                let mut count = 0;
                for packet in &self.outgoing {
                    let Some(name) = self.clients.name(packet.client) else {
                        self.statistics.orphaned += 1;
                        continue;
                    };
                    batch[count] = Outgoing {
                        payload: &packet.payload,
                        to: Some(name),
                        ecn: packet.ecn,
                        ipv6: self.listener.ipv6,
                    };
                    count += 1;
                }
                send(&self.listener, &batch[..count], &mut self.statistics);
                if let Some(file) = &self.config.packets {
                    let wall = sys::wall_clock();
                    for packet in &self.outgoing {
                        let Some(to) = self.clients.address(packet.client) else { continue };
                        note(file, wall, [self.address, to], packet.ecn, &packet.payload);
                    }
                }
            }
        }
        let sent_at = sys::now();
        for packet in self.outgoing.drain(..) {
            self.statistics.lateness.record_duration(sent_at - packet.due);
            self.pending.recycle(packet.payload);
        }
    }
}

impl Emulator for Worker {
    type Command = Command;

    fn events(&mut self) -> &mut EventLoop<Command> {
        &mut self.events
    }

    fn deliver(&mut self) {
        let now = sys::now();
        while let Some(packet) = self.pending.pop_due(now) {
            if !self.admits(&packet) {
                self.statistics.unmapped += 1;
                self.pending.recycle(packet.payload);
                continue;
            }
            // One call sends through one socket: the listener, or that of one client.
            let same = self.outgoing.last().is_none_or(|last| {
                last.direction == packet.direction
                    && (packet.direction == Direction::Down || last.client == packet.client)
            });
            if !same || self.outgoing.len() == BATCH {
                self.flush();
            }
            self.outgoing.push(packet);
        }
        self.flush();
    }

    fn next_due(&mut self) -> Option<Instant> {
        self.pending.next_due()
    }

    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Report(to) => drop(to.send(self.report())),
            Command::Stop => return true,
        }
        false
    }

    fn receive(&mut self, source: u64) -> io::Result<()> {
        match source {
            LISTENER => self.receive_from_clients(),
            number => {
                self.receive_from_server(number - CLIENTS);
                Ok(())
            }
        }
    }
}

const EMPTY: Outgoing<'static> = Outgoing { payload: &[], to: None, ecn: Ecn::NotEct, ipv6: false };

impl OneWay {
    /// Offers a packet to the link and holds what will arrive until its time. The link's time begins at the origin.
    #[expect(clippy::too_many_arguments, reason = "parts of the worker that are borrowed apart")]
    fn judge(
        &mut self,
        direction: Direction,
        client: Place,
        [origin, arrived]: [Instant; 2],
        meta: &PacketMeta,
        payload: &[u8],
        pending: &mut Pending,
        statistics: &mut Statistics,
    ) {
        self.latest = arrived;
        for delivery in self.link.offer(Instant::ZERO + (arrived - origin), meta).verdict.deliveries() {
            let Some(mut payload) = pending.copy(payload) else {
                statistics.overflowed += 1;
                continue;
            };
            if let Some(random) = delivery.corrupt {
                flip_bits(&mut payload, random);
            }
            pending.push(Packet {
                due: origin + (delivery.at - Instant::ZERO),
                direction,
                client,
                ecn: delivery.ecn,
                payload,
            });
        }
    }
}

/// Both clocks at one moment: the kernel stamps packets by the wall clock, links and timers run by the monotonic one.
struct Clocks {
    monotonic: Instant,
    wall: u64,
}

impl Clocks {
    fn read() -> Self {
        Self { monotonic: sys::now(), wall: sys::wall_clock() }
    }

    /// Arrival of a packet with this stamp, by the monotonic clock: not in the future, not before the packet before it,
    /// and never a second or more ago (then the wall clock was set).
    fn arrival(&self, stamp: Option<u64>, latest: Instant) -> Instant {
        const SANE: u64 = 1_000_000_000;
        let age = stamp.map_or(0, |stamp| self.wall.saturating_sub(stamp));
        let age = if age < SANE { age } else { 0 };
        self.monotonic.saturating_sub(Duration::from_nanos(age)).max(latest)
    }
}

/// Writes a packet into a file. `wall` counts nanoseconds since 1970.
fn note(file: &PacketFile, wall: u64, [from, to]: [SocketAddr; 2], ecn: Ecn, payload: &[u8]) {
    file.packet(&capture::Packet { at: Duration::from_nanos(wall), from, to, ecn: ecn.bits(), payload });
}

/// Bytes of the whole IP packet.
fn size(payload: &[u8], ipv6: bool) -> u32 {
    let address = if ipv6 { std::net::Ipv6Addr::LOCALHOST.into() } else { std::net::Ipv4Addr::LOCALHOST.into() };
    u32::try_from(payload.len()).unwrap_or(u32::MAX) + overhead(address)
}

/// The number of this packet; the next one has the next.
fn count_up(number: &mut u64) -> u64 {
    *number += 1;
    *number - 1
}

/// Packets received, or `None`. An error of a UDP socket reports an earlier packet (port closed, host unreachable); the socket stays
/// usable.
fn received(result: io::Result<usize>, statistics: &mut Statistics) -> Option<usize> {
    match result {
        Ok(count) => Some(count),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => None,
        Err(_) => {
            statistics.unreachable += 1;
            None
        }
    }
}

/// Sends a batch. What the system refuses is dropped and counted: waiting would make everything behind it late.
fn send(socket: &UdpSocket, packets: &[Outgoing<'_>], statistics: &mut Statistics) {
    let mut rest = packets;
    let mut news = 0;
    while !rest.is_empty() {
        match sys::send(socket.fd(), rest) {
            Ok(count) => {
                statistics.sent += count as u64;
                rest = &rest[count.clamp(1, rest.len())..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // News about an earlier packet, once; this one has not been tried.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && news < 3 => {
                statistics.unreachable += 1;
                news += 1;
            }
            Err(_) => {
                statistics.send_failed += 1;
                rest = &rest[1..];
                news = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_in_order_and_believable() {
        let clocks = Clocks { monotonic: Instant::from_millis(10_000), wall: 5_000_000_000_000 };
        let arrival = |age: i64, latest| clocks.arrival(Some(clocks.wall.saturating_add_signed(-age)), latest);
        assert_eq!(arrival(1_000_000, Instant::ZERO), Instant::from_millis(9_999));
        assert_eq!(arrival(1_000_000, Instant::from_micros(9_999_500)), Instant::from_micros(9_999_500));
        assert_eq!(arrival(-1_000_000, Instant::ZERO), clocks.monotonic, "a stamp in the future");
        assert_eq!(arrival(3_600_000_000_000, Instant::ZERO), clocks.monotonic, "the wall clock was set");
        assert_eq!(clocks.arrival(None, Instant::ZERO), clocks.monotonic);
    }
}
