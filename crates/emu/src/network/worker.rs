//! The emulator's thread, in the order in which a packet meets it: read from a device, translated by the NAT, passed through its link,
//! held until its departure, translated back, written to the other device.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::mpsc,
};

use netem::{Delivery, Histogram, Link, PacketMeta, Ticket, flip_bits};
use units::{Duration, Instant};

use super::{
    NetworkConfig, Snapshot,
    device::Device,
    packet::{Headers, Side, set_ecn},
};
use crate::{
    clients::Place,
    event_loop::{self, Emulator, EventLoop},
    pending::{Direction, Packet, Pending},
    sys::{self, Poll, Timer},
    translation::Translation,
};

/// Order of the owner of a network.
#[derive(Debug)]
pub(super) enum Command {
    /// Answer with the counters; the queueing times start anew.
    Snapshot(mpsc::Sender<Snapshot>),
    /// The time of the links begins now.
    Begin,
    /// End.
    Stop,
}

/// Number of the client's device among the sources; the server's follows.
const DEVICES: u64 = 0;

/// Packets read from one device before others get their turn.
const BATCH: usize = 64;
/// An IP packet is never larger.
const LARGEST: usize = 65_536;
/// Largest number of distinct flows; packets of further ones count as flow 0.
const FLOWS: usize = 65_536;
/// Wake-ups of the calibration, one in each of these spans.
const CALIBRATION: (u32, Duration) = (200, Duration::from_micros(500));

/// State of the thread.
pub(super) struct Worker {
    events: EventLoop<Command>,
    /// The devices of the client and the server.
    devices: [Device; 2],
    ways: [OneWay; 2],
    translation: Option<Translation>,
    /// Time zero of both links: set by the owner, or the arrival of the first packet.
    origin: Option<Instant>,
    pending: Pending,
    flows: Flows,
    buffer: Vec<u8>,
    snapshot: Snapshot,
}

/// A link, the time of the last packet offered to it, and the packets whose fate it has not decided.
struct OneWay {
    link: Link,
    latest: Instant,
    held: HashMap<Ticket, Vec<u8>>,
}

/// Numbers of flows and of their packets.
#[derive(Default)]
struct Flows {
    /// By client, server and protocol.
    numbers: HashMap<(SocketAddr, SocketAddr, u8), u32>,
    packets: Vec<[u64; 2]>,
}

impl Flows {
    fn meta(&mut self, headers: &Headers, direction: Direction, size: u32) -> PacketMeta {
        let (client, server) = match direction {
            Direction::Up => (headers.source, headers.destination),
            Direction::Down => (headers.destination, headers.source),
        };
        let key = (client, server, headers.protocol as u8);
        let flow = match self.numbers.get(&key) {
            Some(&flow) => flow,
            None if self.packets.len() < FLOWS => {
                let flow = u32::try_from(self.packets.len()).unwrap_or(0);
                self.packets.push([0; 2]);
                self.numbers.insert(key, flow);
                flow
            }
            None => 0,
        };
        let number = &mut self.packets[flow as usize][index(direction)];
        let meta = PacketMeta { size, flow, number: *number, ecn: headers.ecn, protocol: headers.protocol, tag: 0 };
        *number += 1;
        meta
    }
}

const fn index(direction: Direction) -> usize {
    match direction {
        Direction::Up => 0,
        Direction::Down => 1,
    }
}

impl Worker {
    pub(super) fn new(
        config: &NetworkConfig,
        [up, down]: [Link; 2],
        devices: [Device; 2],
        commands: mpsc::Receiver<Command>,
        wake: UnixStream,
    ) -> io::Result<Self> {
        let events = EventLoop::new(commands, wake)?;
        for (number, device) in (DEVICES..).zip(&devices) {
            events.watch(device.as_fd(), number)?;
        }
        let way = |link| OneWay { link, latest: Instant::ZERO, held: HashMap::new() };
        Ok(Self {
            events,
            devices,
            ways: [way(up), way(down)],
            translation: config.nat.as_ref().map(|nat| Translation::new(nat, &config.seed)),
            origin: None,
            pending: Pending::new(config.max_held.as_bytes()),
            flows: Flows::default(),
            buffer: vec![0; LARGEST],
            snapshot: Snapshot::default(),
        })
    }

    /// Calibrates the timer, reports it on `calibrated`, and runs until stopped.
    pub(super) fn run(mut self, calibrated: &mpsc::Sender<()>) -> io::Result<Snapshot> {
        self.snapshot.preferred = sys::prefer_this_thread();
        self.calibrate()?;
        self.events.expect_delay(self.snapshot.calibration.quantile_duration(0.5).unwrap_or_default());
        let _ = calibrated.send(());
        event_loop::run(&mut self)?;
        self.report()
    }

    /// Measures how late the timer wakes this thread, at the priority it has.
    fn calibrate(&mut self) -> io::Result<()> {
        let (wake_ups, span) = CALIBRATION;
        let mut poll = Poll::new()?;
        let mut timer = Timer::new()?;
        poll.add(timer.fd(), 0)?;
        for _ in 0..wake_ups {
            let due = sys::now() + span;
            timer.arm(Some(due))?;
            poll.wait(true)?;
            self.snapshot.calibration.record_duration(sys::now() - due);
            timer.fired();
        }
        Ok(())
    }

    fn report(&mut self) -> io::Result<Snapshot> {
        let [from_client, from_server] = &mut self.devices;
        self.snapshot.unread = from_client.unread()? + from_server.unread()?;
        let [up, down] = &mut self.ways;
        Ok(Snapshot {
            up: *up.link.counters(),
            down: *down.link.counters(),
            queueing: [up.link.take_queueing(), down.link.take_queueing()],
            rebindings: self.translation.as_ref().map_or(0, Translation::rebindings),
            emulator_cpu: super::sys::thread_cpu(),
            ..self.snapshot.clone()
        })
    }

    /// Nanoseconds that this thread has run, from any beginning. The clock of its CPU time is a system call, twenty times dearer than the other,
    /// which does as well for a thread that nothing ordinary interrupts.
    fn spent(&self) -> u64 {
        if self.snapshot.preferred { sys::now().as_nanos() } else { super::sys::thread_cpu() }
    }

    /// Reads what waits in a device and offers it to the link behind it.
    fn read(&mut self, direction: Direction) -> io::Result<()> {
        for _ in 0..BATCH {
            let length = match self.devices[index(direction)].read(&mut self.buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.take(direction, length);
        }
        Ok(())
    }

    fn take(&mut self, direction: Direction, length: usize) {
        let packet = &mut self.buffer[..length];
        let Some(headers) = Headers::read(packet) else {
            self.snapshot.ignored += 1;
            return;
        };
        let now = sys::now();
        let origin = *self.origin.get_or_insert(now);
        let way = &mut self.ways[index(direction)];
        let at = Instant::ZERO + now.max(way.latest).saturating_since(origin);
        way.latest = now.max(way.latest);
        // Flows are those of programs: numbered by the addresses inside.
        let meta = match (&mut self.translation, direction) {
            (Some(translation), Direction::Up) if headers.has_ports => {
                let meta = self.flows.meta(&headers, direction, size(length));
                let outside = translation.outward(at, headers.source);
                if outside != headers.source {
                    headers.rewrite(packet, Side::Source, outside);
                }
                meta
            }
            _ => self.flows.meta(&headers, direction, size(length)),
        };
        let transit = way.link.offer(at, &meta);
        if let netem::Verdict::Held(ticket) = transit.verdict {
            match self.pending.copy(&self.buffer[..length]) {
                Some(copy) => drop(way.held.insert(ticket, copy)),
                None => self.snapshot.overflowed += 1,
            }
        }
        for delivery in transit.verdict.deliveries() {
            hold(&mut self.pending, &mut self.snapshot, direction, origin, delivery, &self.buffer[..length]);
        }
    }

    /// Time of the next decision of a managed queue.
    fn decision(&self) -> Option<Instant> {
        let origin = self.origin?;
        let next = self.ways.iter().filter_map(|way| way.link.deadline()).min()?;
        Some(origin + (next - Instant::ZERO))
    }

    /// True if the NAT lets a due packet through, after it has got its address inside. The NAT stands between the links and the
    /// client.
    fn admits(&mut self, packet: &mut Packet) -> bool {
        let (Some(translation), Direction::Down, Some(origin)) = (&mut self.translation, packet.direction, self.origin)
        else {
            return true;
        };
        let Some(headers) = Headers::read(&packet.payload).filter(|headers| headers.has_ports) else { return true };
        let at = Instant::ZERO + packet.due.saturating_since(origin);
        match translation.inward(at, headers.destination) {
            Some(inside) => {
                if inside != headers.destination {
                    headers.rewrite(&mut packet.payload, Side::Destination, inside);
                }
                true
            }
            None => false,
        }
    }
}

impl Emulator for Worker {
    type Command = Command;

    fn events(&mut self) -> &mut EventLoop<Command> {
        &mut self.events
    }

    /// Takes over the packets whose fate managed queues have decided.
    fn release(&mut self) {
        let Some(origin) = self.origin else { return };
        let now = Instant::ZERO + sys::now().saturating_since(origin);
        for (way, direction) in self.ways.iter_mut().zip([Direction::Up, Direction::Down]) {
            while let Some(released) = way.link.poll(now) {
                let Some(payload) = way.held.remove(&released.ticket) else { continue };
                for delivery in released.transit.verdict.deliveries() {
                    hold(&mut self.pending, &mut self.snapshot, direction, origin, delivery, &payload);
                }
                self.pending.recycle(payload);
            }
        }
    }

    /// Writes every packet whose time has come.
    fn deliver(&mut self) {
        let now = sys::now();
        while let Some(mut packet) = self.pending.pop_due(now) {
            if self.admits(&mut packet) {
                set_ecn(&mut packet.payload, packet.ecn);
                // The device of the client is the far end of what goes down, and the other way round.
                let to = 1 - index(packet.direction);
                let before = self.spent();
                let written = self.devices[to].write(&packet.payload);
                self.snapshot.receiving_cpu += self.spent() - before;
                match written {
                    Ok(()) => {
                        self.snapshot.written += 1;
                        self.snapshot.lateness.record_duration(sys::now() - packet.due);
                    }
                    Err(_) => self.snapshot.write_failed += 1,
                }
            } else {
                self.snapshot.unmapped += 1;
            }
            self.pending.recycle(packet.payload);
        }
    }

    fn next_due(&mut self) -> Option<Instant> {
        [self.pending.next_due(), self.decision()].into_iter().flatten().min()
    }

    fn obey(&mut self, command: Command) -> bool {
        match command {
            // Without an answer, the owner learns that something is wrong.
            Command::Snapshot(to) => {
                if let Ok(snapshot) = self.report() {
                    let _ = to.send(snapshot);
                }
            }
            Command::Begin => self.origin = Some(sys::now()),
            Command::Stop => return true,
        }
        false
    }

    fn receive(&mut self, source: u64) -> io::Result<()> {
        self.read(if source == DEVICES { Direction::Up } else { Direction::Down })
    }
}

fn size(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Holds a copy of a packet until it is due.
fn hold(
    pending: &mut Pending,
    snapshot: &mut Snapshot,
    direction: Direction,
    origin: Instant,
    delivery: Delivery,
    payload: &[u8],
) {
    let Some(mut payload) = pending.copy(payload) else {
        snapshot.overflowed += 1;
        return;
    };
    if let (Some(random), Some(headers)) = (delivery.corrupt, Headers::read(&payload)) {
        // The receiving kernel finds the damage by the checksum of TCP or UDP, as it does on a real path.
        flip_bits(headers.body(&mut payload), random);
    }
    let due = origin + (delivery.at - Instant::ZERO);
    pending.push(Packet { due, direction, client: Place::default(), ecn: delivery.ecn, payload });
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            up: netem::LinkCounters::default(),
            down: netem::LinkCounters::default(),
            queueing: [Histogram::new(), Histogram::new()],
            lateness: Histogram::new(),
            calibration: Histogram::new(),
            written: 0,
            write_failed: 0,
            unread: 0,
            overflowed: 0,
            ignored: 0,
            rebindings: 0,
            unmapped: 0,
            emulator_cpu: 0,
            receiving_cpu: 0,
            preferred: false,
        }
    }
}
