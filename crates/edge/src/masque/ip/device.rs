//! The TUN device between the tunnels and the kernel: a thread reads its packets, and gives each to the tunnel that has its destination.

use std::{
    collections::{HashMap, HashSet},
    io::{self, Read, Write},
    net::IpAddr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixDatagram, UnixStream},
    },
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use h3_quic::connect_ip::{MAX_PACKET, Packet, Prefix};
use tiderace::ConnectionBudget;
use tokio::sync::mpsc;
use tun::Waited;

use super::{
    devices::OfferedDevice,
    pool,
    queue::{Inbox, Queued},
};
use crate::observe::Traffic;

/// Packets that are read before other work of the thread gets its turn.
const TURN: usize = 64;
/// Interval in which the addresses of this machine are read again.
const OWN_ADDRESSES: Duration = Duration::from_secs(5);

/// State of a device that its thread shares.
struct Shared {
    device: tun::Device,
    /// Tunnels by the addresses of their clients. One that has not begun takes no packets.
    tunnels: Mutex<HashMap<IpAddr, Option<Inbox>>>,
    own: RwLock<Arc<[IpAddr]>>,
    /// Packets that the newer process has read, in place of those of the device.
    passed_on: Mutex<Option<Arc<tun::Device>>>,
    /// A newer process gives addresses. Set under the lock of `tunnels`.
    is_handed_over: AtomicBool,
    older: Mutex<Vec<OlderProcess>>,
}

/// Older process with tunnels of its own.
struct OlderProcess {
    packets: UnixDatagram,
    addresses: HashSet<IpAddr>,
}

impl OlderProcess {
    /// An empty datagram is no packet, and finds nobody when the process has ended.
    fn is_alive(&self) -> bool {
        !self.packets.send(&[]).is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock)
    }
}

impl Shared {
    fn new(device: tun::Device, older: Vec<OlderProcess>) -> Self {
        let this = Self {
            device,
            tunnels: Mutex::default(),
            own: RwLock::new(Arc::from([])),
            passed_on: Mutex::default(),
            is_handed_over: AtomicBool::new(false),
            older: Mutex::new(older),
        };
        this.read_own_addresses();
        this
    }

    fn older(&self) -> MutexGuard<'_, Vec<OlderProcess>> {
        self.older.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn passed_on(&self) -> MutexGuard<'_, Option<Arc<tun::Device>>> {
        self.passed_on.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tunnels(&self) -> MutexGuard<'_, HashMap<IpAddr, Option<Inbox>>> {
        self.tunnels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_own_addresses(&self) {
        // A failure leaves those that were read before.
        let Ok(interfaces) = if_addrs::get_if_addrs() else { return };
        let own = interfaces.iter().map(if_addrs::Interface::ip).collect();
        *self.own.write().unwrap_or_else(PoisonError::into_inner) = own;
    }

    fn dispatch(&self, packet: &[u8]) {
        let Ok(header) = Packet::parse(packet) else { return };
        let inbox = self.tunnels().get(&header.destination).cloned();
        match inbox {
            Some(Some(inbox)) => inbox.push(packet, header),
            Some(None) => {}
            None => {
                let older = self.older();
                let has_it = |process: &&OlderProcess| process.addresses.contains(&header.destination);
                if let Some(process) = older.iter().find(has_it) {
                    // One for which the process has no room is lost, as at its device.
                    let _ = process.packets.send(packet);
                }
            }
        }
    }

    /// Reads packets until the other end of `stop` is closed.
    fn run(&self, stop: &UnixStream) -> io::Result<()> {
        let mut read_at = Instant::now();
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            let newer = self.passed_on().clone();
            let source = newer.as_deref().unwrap_or(&self.device);
            let waited = match source.wait(stop.as_fd(), OWN_ADDRESSES) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                waited => waited?,
            };
            if waited == Waited::Stopped {
                // A byte says that the source is another one.
                match (&*stop).read(&mut [0; 16])? {
                    0 => return Ok(()),
                    _ => continue,
                }
            }
            if read_at.elapsed() >= OWN_ADDRESSES {
                self.read_own_addresses();
                read_at = Instant::now();
            }
            for _ in 0..TURN {
                match source.read(&mut buffer) {
                    Ok(length) => self.dispatch(&buffer[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // The newer process has ended: the device is read again as soon as that is noticed.
                    Err(_) if newer.is_some() => break,
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// An open device. Its thread ends when this is dropped.
pub(super) struct TunDevice {
    shared: Arc<Shared>,
    /// Wakes the thread with a byte, and ends it when it is closed.
    stop: UnixStream,
    /// The thread's end, until it has begun.
    stopped: Mutex<Option<UnixStream>>,
    /// Own end of the socket that a newer process was offered.
    offered: Mutex<Option<UnixDatagram>>,
}

impl TunDevice {
    pub(super) fn open(name: &str) -> io::Result<Self> {
        Self::begin(tun::Device::open(name)?)
    }

    /// Starts the thread of an open device.
    pub(super) fn begin(device: tun::Device) -> io::Result<Self> {
        let this = Self::new(Shared::new(device, Vec::new()))?;
        this.start()?;
        Ok(this)
    }

    /// A device of an older process, which reads it until [`start`](Self::start).
    pub(super) fn take_over(name: &str, OfferedDevice { file, packets }: OfferedDevice) -> io::Result<Self> {
        let device = tun::Device::from_file(file, name.to_owned())?;
        let older = packets.into_iter().map(|packets| OlderProcess { packets, addresses: HashSet::new() });
        Self::new(Shared::new(device, older.collect()))
    }

    fn new(shared: Shared) -> io::Result<Self> {
        let (stop, stopped) = UnixStream::pair()?;
        let stopped = Mutex::new(Some(stopped));
        Ok(Self { shared: Arc::new(shared), stop, stopped, offered: Mutex::default() })
    }

    /// Starts the thread, if it has not begun.
    pub(super) fn start(&self) -> io::Result<()> {
        let Some(stopped) = self.stopped.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
        let reading = self.shared.clone();
        let run = move || {
            if let Err(error) = reading.run(&stopped) {
                tracing::error!("the TUN device {} cannot be read: {error}", reading.device.name());
            }
        };
        thread::Builder::new().name("tun".to_owned()).spawn(run).map(drop)
    }

    /// Descriptors for a newer process: the device, a socket to this process, and those to older ones.
    pub(super) fn offer(&self) -> io::Result<Vec<OwnedFd>> {
        let (own, other) = UnixDatagram::pair()?;
        // All ends of a socket wait, or none does.
        other.set_nonblocking(true)?;
        let mut descriptors = vec![self.shared.device.as_fd().try_clone_to_owned()?, OwnedFd::from(other)];
        for process in &*self.shared.older() {
            descriptors.push(process.packets.as_fd().try_clone_to_owned()?);
        }
        *self.offered.lock().unwrap_or_else(PoisonError::into_inner) = Some(own);
        Ok(descriptors)
    }

    /// Takes packets of the newer process from now on, and gives no more addresses. Returns those in use, of this process first.
    pub(super) fn pause(&self) -> Vec<Vec<IpAddr>> {
        let own = {
            let tunnels = self.shared.tunnels();
            self.shared.is_handed_over.store(true, Ordering::Relaxed);
            tunnels.keys().copied().collect()
        };
        let older: Vec<Vec<IpAddr>> =
            self.shared.older().iter().map(|process| process.addresses.iter().copied().collect()).collect();
        let offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Packets arrive at the socket as at a device.
        let name = self.shared.device.name().to_owned();
        let packets = offered.and_then(|own| tun::Device::from_file(OwnedFd::from(own).into(), name).ok());
        *self.shared.passed_on() = packets.map(Arc::new);
        self.wake();
        [vec![own], older].concat()
    }

    /// Reads the device again, and gives addresses.
    pub(super) fn resume(&self) {
        *self.shared.passed_on() = None;
        self.shared.is_handed_over.store(false, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        // A thread that has ended needs none.
        let _ = (&self.stop).write(&[0]);
    }

    /// Addresses that tunnels of older processes have, in the order of their sockets.
    pub(super) fn set_older(&self, addresses: Vec<Vec<IpAddr>>) {
        for (process, addresses) in self.shared.older().iter_mut().zip(addresses) {
            process.addresses = addresses.into_iter().collect();
        }
    }

    /// Returns whether a newer process gives addresses.
    pub(super) fn is_handed_over(&self) -> bool {
        self.shared.is_handed_over.load(Ordering::Relaxed)
    }

    /// Gives the device its addresses. Without the privilege it stays as the operator has set it up.
    pub(super) fn configure(&self, pools: &[Prefix], mtu: u16) -> io::Result<()> {
        let device = &self.shared.device;
        let interface = device.interface()?;
        let configured = interface.set_mtu(mtu.into()).and_then(|()| {
            device.silence();
            for pool in pools {
                let Some(router) = pool::router(*pool) else { continue };
                match interface.add_address(router, pool.length()) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                    _ => {}
                }
            }
            interface.set_up()
        });
        match configured {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::info!("the TUN device {} stays as it was set up: {error}", device.name());
                Ok(())
            }
            configured => configured,
        }
    }

    /// Addresses of this machine.
    pub(super) fn own(&self) -> Arc<[IpAddr]> {
        self.shared.own.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives a packet to the kernel.
    pub(super) fn write(&self, packet: &[u8]) -> io::Result<()> {
        self.shared.device.write(packet)
    }

    /// Returns whether a tunnel has this address.
    #[cfg(test)]
    pub(super) fn is_leased(&self, address: IpAddr) -> bool {
        self.shared.tunnels().contains_key(&address)
    }

    /// Addresses for a tunnel, one of each network. `None` if a network has none left.
    pub(super) fn lease(self: &Arc<Self>, pools: &[Prefix]) -> Option<Lease> {
        let mut random = [0; 16];
        let _ = aws_lc_rs::rand::fill(&mut random);
        let mut tunnels = self.shared.tunnels();
        if self.is_handed_over() {
            return None;
        }
        let mut older = self.shared.older();
        older.retain(OlderProcess::is_alive);
        let count: usize = older.iter().map(|process| process.addresses.len()).sum();
        let mut lease = Lease { device: self.clone(), addresses: Vec::new() };
        for pool in pools {
            let is_taken = |address: IpAddr| {
                tunnels.contains_key(&address) || older.iter().any(|process| process.addresses.contains(&address))
            };
            let taken = tunnels.len() + count;
            let Some(address) = pool::choose(*pool, u128::from_ne_bytes(random), taken, is_taken) else {
                // The lease locks the table when it is dropped.
                drop(tunnels);
                return None;
            };
            tunnels.insert(address, None);
            lease.addresses.push(address);
        }
        Some(lease)
    }
}

/// Addresses of a tunnel, given back when this is dropped.
pub(super) struct Lease {
    device: Arc<TunDevice>,
    addresses: Vec<IpAddr>,
}

impl Lease {
    pub(super) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    pub(super) fn device(&self) -> &TunDevice {
        &self.device
    }

    /// Packets to the addresses, from now on. They are charged while they wait.
    pub(super) fn packets(&self, memory: &ConnectionBudget, traffic: &Arc<Traffic>) -> mpsc::Receiver<Queued> {
        let (inbox, waiting) = Inbox::new(memory, traffic);
        let mut tunnels = self.device.shared.tunnels();
        for address in &self.addresses {
            tunnels.insert(*address, Some(inbox.clone()));
        }
        waiting
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut tunnels = self.device.shared.tunnels();
        for address in &self.addresses {
            tunnels.remove(address);
        }
    }
}
