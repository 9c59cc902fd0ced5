//! Kernel steering: an eBPF program passes packets of older processes to sockets of their own, so that nobody has to forward them.
//!
//! All processes at an address share one group of SO_REUSEPORT, one table of sockets and one program, which the first one loads and hands
//! on. The serving process reads the shared sockets. A process that hands over opens sockets of its own in the group, and enters them in
//! the table under its generation. When they are closed, the kernel empties their places, and the packets reach the serving process again.
//!
//! A program knows the number of shared sockets. The process that begins to read attaches one of its own in place of that of the process
//! before, which may have had fewer.
//!
//! Sockets that outlive all processes, such as those of a service manager, keep the program of the last one. The next process replaces it.
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
    time::{Duration, Instant},
};

use transport::{EndpointConfig, IdGeneration};

use self::program::Layout;
pub(crate) use self::socket::{Steered, SteeredSocket};
use crate::reuseport::{self, ShardPlace};

/// Time limit for the kernel to release the table of a program that is detached; it takes some 20 ms.
const RELEASE: Duration = Duration::from_secs(2);

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
    /// Program for the number of this process' sockets.
    program: OwnedFd,
    generation: u8,
    /// Planted fault: distance to the place where the own sockets belong.
    #[cfg(test)]
    off: std::sync::atomic::AtomicU8,
}

impl SteeringTable {
    /// Loads the program for the group of `sockets`, the shared ones, or adopts the table of the process before. The program is for `count`
    /// sockets; if some are missing, it is not attached yet.
    ///
    /// # Errors
    /// The reason why there is no steering.
    pub(crate) fn open(
        steering: KernelSteering,
        is_among_others: bool,
        sockets: &[UdpSocket],
        count: u8,
        config: &EndpointConfig,
        generation: Option<IdGeneration>,
    ) -> Result<Arc<Self>, String> {
        let (Some(shard), Some(place), Some(generation)) =
            (config.ids.shard_place(), config.ids.generation_place(), generation)
        else {
            return Err("connection IDs do not show the process in the clear".to_owned());
        };
        let layout = Layout { shard: (shard, config.ids.len()), generation: place };
        if !matches!(steering, KernelSteering::Off) && reuseport::may_join(&sockets[0]).is_ok_and(|may| !may) {
            // A process that hands over needs sockets of its own in the group.
            return Err("another user has opened the sockets".to_owned());
        }
        let this = match steering {
            KernelSteering::Off => return Err("it is not wanted".to_owned()),
            KernelSteering::Adopt(table) => Self::new(table, layout, count, generation.number),
            KernelSteering::Load => Self::load(sockets, is_among_others, layout, count, generation.number),
        };
        this.map(Arc::new).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => "it needs CAP_BPF".to_owned(),
            _ => format!("the system does not take it: {error}"),
        })
    }

    fn new(table: OwnedFd, layout: Layout, count: u8, generation: u8) -> io::Result<Self> {
        let program = bpf::load(&program::assemble(table.as_fd(), layout, count))?;
        Ok(Self {
            table,
            program,
            generation,
            #[cfg(test)]
            off: Default::default(),
        })
    }

    fn load(
        sockets: &[UdpSocket],
        is_among_others: bool,
        layout: Layout,
        count: u8,
        generation: u8,
    ) -> io::Result<Self> {
        let this = Self::new(bpf::create_table(program::PLACES)?, layout, count, generation)?;
        // A socket that is alone has no group yet. The other one leaves it at once.
        let _second = match sockets {
            [alone] => Some(reuseport::join(alone)?),
            _ => None,
        };
        for (worker, socket) in (0..count).zip(sockets) {
            match this.share(worker, socket) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && !is_among_others => {
                    this.share_released(worker, socket)?;
                }
                result => result?,
            }
        }
        if sockets.len() == usize::from(count) {
            this.attach(&sockets[0])?;
        }
        Ok(this)
    }

    /// Does the same as [`share`](Self::share) with a socket that is in the table of a process that has ended. The group holds that table by its
    /// program.
    fn share_released(&self, worker: u8, socket: &UdpSocket) -> io::Result<()> {
        let begun = Instant::now();
        match bpf::detach(socket) {
            // The socket before in the same group was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            detached => detached?,
        }
        loop {
            match self.share(worker, socket) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < RELEASE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                result => return result,
            }
        }
    }

    /// Leads packets for a worker of the process that serves to a socket.
    fn share(&self, worker: u8, socket: &UdpSocket) -> io::Result<()> {
        bpf::put(self.table.as_fd(), program::shared(worker), socket.as_fd())
    }

    /// Lets the program of this process select, in place of that of another one.
    fn attach(&self, socket: &UdpSocket) -> io::Result<()> {
        bpf::attach(socket, self.program.as_fd())
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
        let place = program::own(generation, worker);
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
    /// Sockets of other processes are in the group, with a program that this endpoint cannot replace.
    has_strangers: bool,
    /// Byte of connection IDs that names the shard.
    shard: Option<ShardPlace>,
    /// Number of shared sockets, those that are still missing included.
    count: u8,
}

impl EndpointSteering {
    pub(crate) fn open(
        steering: KernelSteering,
        is_among_others: bool,
        sockets: &[UdpSocket],
        count: u8,
        config: &EndpointConfig,
        generation: Option<IdGeneration>,
    ) -> Self {
        let shard = config.ids.shard_place().map(|place| (place, config.ids.len()));
        let is_steered = matches!(steering, KernelSteering::Adopt(_));
        let table = SteeringTable::open(steering, is_among_others, sockets, count, config, generation);
        let has_strangers = table.is_err() && (is_among_others || is_steered);
        Self { table, ways: Mutex::default(), has_strangers, shard, count }
    }

    /// Returns whether sockets may join the group: the kernel finds them by a table, or by their order, which others would disturb.
    pub(crate) fn may_grow(&self) -> bool {
        !self.has_strangers
    }

    /// Returns whether the group has, or may get, sockets beside the shared ones.
    pub(crate) fn is_among_others(&self) -> bool {
        self.table.is_ok() || self.has_strangers
    }

    /// Opens a socket for a worker in the group of `first`. Packets may arrive at it at once.
    pub(crate) fn join(&self, worker: u8, first: &UdpSocket) -> io::Result<UdpSocket> {
        let socket = reuseport::join(first)?;
        if let Ok(table) = &self.table {
            table.share(worker, &socket)?;
        }
        Ok(socket)
    }

    /// Lets the kernel select among the shared sockets of this endpoint, whatever their number was in the process before.
    pub(crate) fn spread(&self, first: &UdpSocket) -> io::Result<()> {
        match &self.table {
            Ok(table) => table.attach(first),
            // One socket has no group.
            Err(_) if self.has_strangers || self.count == 1 => Ok(()),
            Err(_) => reuseport::steer(first, self.shard, self.count),
        }
    }

    /// Ways to the own sockets, one for each.
    pub(crate) fn ways(&self) -> MutexGuard<'_, Vec<OwnWay>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
