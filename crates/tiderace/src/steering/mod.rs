//! Kernel steering: an eBPF program passes packets of older processes to sockets of their own, so that nobody has to forward them.
//!
//! All processes at an address share one group of SO_REUSEPORT, one table of sockets and one program, which the first one loads and hands
//! on. The serving process reads the shared sockets. A process that hands over opens sockets of its own in the group, and enters them in
//! the table under its generation. When they are closed, the kernel empties their places, and the packets reach the serving process again.
//!
//! The program needs CAP_BPF. Without it, the serving process forwards all packets of older ones
//! ([`siblings`](crate::siblings)). It forwards as well what the program cannot know: packets with long headers.

mod bpf;
mod program;
mod socket;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::UdpSocket,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use transport::{EndpointConfig, IdGeneration};

use self::program::Layout;
pub(crate) use self::socket::{Steered, SteeredSocket};
use crate::reuseport;

/// Steering of packets to their processes by the kernel.
#[derive(Debug, Default)]
pub enum KernelSteering {
    /// Packets for other processes are forwarded. This is the default.
    #[default]
    Off,
    /// Loads the program, if the system permits it.
    Load,
    /// Uses the table of the process before, which has loaded the program.
    Adopt(OwnedFd),
}

/// Table of sockets of an address.
#[derive(Debug)]
pub(crate) struct SteeringTable {
    table: OwnedFd,
    layout: Layout,
    generation: u8,
    /// Planted fault: distance to the place where the own sockets belong.
    #[cfg(test)]
    off: std::sync::atomic::AtomicU8,
}

impl SteeringTable {
    /// Loads the program for the group of `sockets`, the shared ones, or adopts the table of the process before.
    ///
    /// # Errors
    /// The reason why there is no steering.
    pub(crate) fn open(
        steering: KernelSteering,
        sockets: &[UdpSocket],
        config: &EndpointConfig,
        generation: Option<IdGeneration>,
    ) -> Result<Arc<Self>, String> {
        let (Some(shard), Some(place), Some(generation)) =
            (config.ids.shard_place(), config.ids.generation_place(), generation)
        else {
            return Err("connection IDs do not show the process in the clear".to_owned());
        };
        let generation = generation.number;
        let count = u8::try_from(sockets.len()).expect("shards are counted in a byte");
        let layout = Layout { shard: (shard, config.ids.len()), generation: place, count };
        match steering {
            KernelSteering::Off => Err("it is not wanted".to_owned()),
            KernelSteering::Adopt(table) => Ok(Arc::new(Self::new(table, layout, generation))),
            KernelSteering::Load => {
                Self::load(sockets, layout, generation).map(Arc::new).map_err(|error| match error.kind() {
                    io::ErrorKind::PermissionDenied => "it needs CAP_BPF".to_owned(),
                    _ => format!("the system does not take it: {error}"),
                })
            }
        }
    }

    fn new(table: OwnedFd, layout: Layout, generation: u8) -> Self {
        Self {
            table,
            layout,
            generation,
            #[cfg(test)]
            off: Default::default(),
        }
    }

    fn load(sockets: &[UdpSocket], layout: Layout, generation: u8) -> io::Result<Self> {
        let table = bpf::create_table(layout.places())?;
        let program = bpf::load(&program::assemble(table.as_fd(), layout))?;
        // A socket that is alone has no group yet. The other one leaves it at once.
        let _second = match sockets {
            [alone] => Some(reuseport::join(alone)?),
            _ => None,
        };
        for (worker, socket) in (0..layout.count).zip(sockets) {
            bpf::put(table.as_fd(), layout.shared(worker), socket.as_fd())?;
        }
        bpf::attach(&sockets[0], program.as_fd())?;
        Ok(Self::new(table, layout, generation))
    }

    /// Table, to hand on.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }

    /// Opens a socket of this process' own for a worker, beside the shared one. Nothing reaches it before [`OwnSocket::enter`].
    pub(crate) fn own_socket(self: &Arc<Self>, worker: u8, shared: &UdpSocket) -> io::Result<OwnSocket> {
        // No packet may find the socket by the kernel's hash: the program selects one for each.
        let socket = reuseport::join(shared)?;
        let generation = self.generation;
        #[cfg(test)]
        let generation = generation.wrapping_add(self.off.load(std::sync::atomic::Ordering::Relaxed));
        let place = self.layout.own(generation, worker);
        Ok(OwnSocket { socket, way: OwnWay { table: self.clone(), place } })
    }
}

/// Socket that only this process reads.
pub(crate) struct OwnSocket {
    pub(crate) socket: UdpSocket,
    pub(crate) way: OwnWay,
}

impl OwnSocket {
    /// Leads the packets of this process here.
    pub(crate) fn enter(&self) -> io::Result<()> {
        bpf::put(self.way.table.table.as_fd(), self.way.place, self.socket.as_fd())
    }
}

/// Place of an own socket in the table.
#[derive(Clone, Debug)]
pub(crate) struct OwnWay {
    table: Arc<SteeringTable>,
    place: u32,
}

impl OwnWay {
    /// Leads the packets of this process to the shared socket again.
    pub(crate) fn leave(&self) {
        // An empty place is what was wanted.
        let _ = bpf::clear(self.table.table.as_fd(), self.place);
    }

    /// Generation of this process.
    pub(crate) fn generation(&self) -> u8 {
        self.table.generation
    }
}

/// Steering of an endpoint: its table, or the reason why it has none, and the ways to its own sockets.
#[derive(Debug)]
pub(crate) struct EndpointSteering {
    pub(crate) table: Result<Arc<SteeringTable>, String>,
    ways: Mutex<Vec<OwnWay>>,
}

impl EndpointSteering {
    pub(crate) fn open(
        steering: KernelSteering,
        sockets: &[UdpSocket],
        config: &EndpointConfig,
        generation: Option<IdGeneration>,
    ) -> Self {
        let table = SteeringTable::open(steering, sockets, config, generation);
        Self { table, ways: Mutex::default() }
    }

    /// Ways to the own sockets, one for each.
    pub(crate) fn ways(&self) -> MutexGuard<'_, Vec<OwnWay>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
