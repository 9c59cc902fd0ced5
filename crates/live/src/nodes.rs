//! Nodes of the simulator in real time: each has a UDP port, and a timer for its deadlines.
//!
//! One thread serves all nodes of a run, in the order of packets and deadlines. Nodes keep the addresses of the simulation. This module
//! translates between these and the addresses of the ports, except addresses that a NAT of the path has made.

use std::{collections::HashMap, net::SocketAddr};

use bytes::BytesMut;
use emu::network::{Buffer, CLIENT, Network, Port, SERVER, Waiter, address, now, thread_cpu};
use lab::{
    contender::{Contender, RunSpec},
    view::Viewer,
};
use sim::{Datagram, Node, Outbox};
use units::{Duration, Instant};

use crate::{
    ends::Ends,
    watch::{Looks, Sender, Watch},
};

/// Ports of the first client and of the first server; the others follow.
const PORTS: [u16; 2] = [40_000, 10_000];

/// A node with its port.
struct Seat {
    node: Box<dyn Node>,
    port: Port,
    /// Client or server: 0 or 1.
    side: usize,
    start: Instant,
    started: bool,
    /// Address in the simulation.
    own: SocketAddr,
    /// Real addresses by those of the simulation, and the other way round.
    real: HashMap<SocketAddr, SocketAddr>,
    simulated: HashMap<SocketAddr, SocketAddr>,
}

impl Seat {
    /// Time of its next call.
    fn due(&self) -> Option<Instant> {
        if self.started { self.node.deadline().map(|(at, _)| at) } else { Some(self.start) }
    }

    fn handle(&mut self, at: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        self.started = true;
        self.node.handle(at, datagram, out);
        for datagram in out.drain() {
            let to = self.real.get(&datagram.to).copied().unwrap_or(datagram.to);
            let size = datagram.segment_size.unwrap_or(datagram.payload.len()).max(1);
            for payload in datagram.payload.chunks(size) {
                // What is larger than the device's MTU vanishes, as on the path.
                self.port.send(to, datagram.ecn, payload);
            }
        }
    }
}

pub(crate) fn pass(
    network: &Network,
    contender: &dyn Contender,
    spec: &RunSpec<'_>,
    watch: Option<&Watch<'_>>,
) -> Result<Ends, String> {
    let nodes = contender.build(spec).map_err(|error| error.to_string())?;
    let system = |error: std::io::Error| format!("cannot use a UDP port of the emulated network: {error}");
    let mut waiter = Waiter::new().map_err(system)?;
    let mut seats = Vec::new();
    for (connection, (client, server)) in spec.connections.iter().zip(nodes.pairs) {
        let number = u16::try_from(connection.index).map_err(|_| "too many connections".to_owned())?;
        let places = [(CLIENT, network.client(), connection.client), (SERVER, network.server(), connection.server)];
        let addresses = [0, 1].map(|side| (places[side].2, address(places[side].0, PORTS[side] + number)));
        let starts = [connection.start, Instant::ZERO];
        for (side, node) in [client, server].into_iter().enumerate() {
            let port = Port::bind(places[side].1, PORTS[side] + number).map_err(system)?;
            waiter.add(&port, seats.len() as u64).map_err(system)?;
            seats.push(Seat {
                node,
                port,
                side,
                start: starts[side],
                started: false,
                own: places[side].2,
                real: addresses.into_iter().collect(),
                simulated: addresses.map(|(simulated, real)| (real, simulated)).into_iter().collect(),
            });
        }
    }
    let (mut out, mut buffer, mut cpu) = (Outbox::new(), Buffer::default(), [0, 0]);
    let failed = |error: emu::network::NetworkError| error.to_string();
    network.begin();
    let origin = now();
    let clock = || Instant::ZERO + (now() - origin);
    let (mut before, mut looks) = (None, Looks::new(watch));
    let (mut ready, mut arrived) = (Vec::new(), Vec::new());
    loop {
        let at = clock();
        if before.is_none() && at >= spec.measure_from {
            before = Some(network.snapshot().map_err(failed)?);
        }
        if at >= spec.end {
            break;
        }
        looks.look(at, || {
            let rtts = nodes.rtts.iter().map(|read| read()).chain(std::iter::repeat(None));
            let sender = |(view, rtts): (&Viewer, _)| view().map(|view| Sender { rtts, ..view.into() });
            nodes.views.iter().zip(rtts).map(sender).collect()
        })?;
        for seat in &mut seats {
            if seat.due().is_some_and(|due| due <= at) {
                metered(&mut cpu[seat.side], || seat.handle(at, None, &mut out));
            }
        }
        let next = if before.is_none() { spec.measure_from } else { spec.end };
        let next = seats.iter().filter_map(Seat::due).fold(looks.next(next), Instant::min);
        ready.clear();
        waiter.wait(origin + (next - Instant::ZERO), |number| ready.push(number)).map_err(system)?;
        for &number in &ready {
            let Some(seat) = usize::try_from(number).ok().and_then(|index| seats.get_mut(index)) else { continue };
            let spent = &mut cpu[seat.side];
            metered(spent, || -> Result<(), String> {
                seat.port
                    .receive(&mut buffer, |from, ecn, payload| arrived.push((from, ecn, BytesMut::from(payload))))
                    .map_err(system)?;
                for (from, ecn, payload) in arrived.drain(..) {
                    let from = seat.simulated.get(&from).copied().unwrap_or(from);
                    let datagram = Datagram { ecn, ..Datagram::new(from, seat.own, payload) };
                    seat.handle(clock(), Some(datagram), &mut out);
                }
                Ok(())
            })?;
        }
    }
    let after = network.snapshot().map_err(failed)?;
    // Scripts settle their accounts a moment before the end.
    let settles = spec.end.saturating_sub(Duration::from_micros(1));
    for seat in &mut seats {
        if seat.due().is_some_and(|due| due <= settles) {
            seat.handle(settles, None, &mut out);
        }
    }
    let measured = (nodes.measured)();
    let emulator = [before.unwrap_or_else(|| after.clone()), after];
    Ok(Ends { measured, smoothed_rtts: Vec::new(), delivery_rate: None, cpu, emulator })
}

/// Adds the CPU time of what is done.
pub(crate) fn metered<T>(spent: &mut u64, what: impl FnOnce() -> T) -> T {
    let before = thread_cpu();
    let done = what();
    *spent += thread_cpu() - before;
    done
}
