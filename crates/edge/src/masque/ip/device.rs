//! The TUN device between the tunnels and the kernel: a thread reads its packets, and gives each to the tunnel that has its destination.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak},
    thread,
    time::{Duration, Instant},
};

use h3_quic::connect_ip::{MAX_PACKET, Packet, Prefix};
use tiderace::{Charge, ConnectionBudget};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tun::Waited;

use super::pool;
use crate::observe::{Direction, DropReason, Traffic};

/// Packets that wait for a tunnel. Beyond them, the newest are dropped.
const WAITING: usize = 256;
/// Bytes that wait for a tunnel, with [`OVERHEAD`] for each packet.
const MAX_WAITING: usize = 256 * 1024;
/// Memory of a waiting packet beside its bytes.
const OVERHEAD: usize = 256;
/// Packets that are read before other work of the thread gets its turn.
const TURN: usize = 64;
/// Interval in which the addresses of this machine are read again.
const OWN_ADDRESSES: Duration = Duration::from_secs(5);

/// A packet that waits for its tunnel.
pub(super) struct Queued {
    pub(super) packet: Vec<u8>,
    pub(super) header: Packet,
    _charge: Charge,
    _room: OwnedSemaphorePermit,
}

/// Queue of a tunnel, whose packets are charged to the connection of its client.
#[derive(Clone)]
struct Inbox {
    packets: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
    memory: ConnectionBudget,
    traffic: Arc<Traffic>,
}

impl Inbox {
    fn push(&self, packet: &[u8], header: Packet) {
        let size = packet.len() + OVERHEAD;
        let room = u32::try_from(size).ok().and_then(|size| self.room.clone().try_acquire_many_owned(size).ok());
        let charge = self.memory.charge(size as u64);
        let is_queued = room.zip(charge).is_some_and(|(room, charge)| {
            let queued = Queued { packet: packet.to_vec(), header, _charge: charge, _room: room };
            self.packets.try_send(queued).is_ok()
        });
        if !is_queued {
            self.traffic.on_drop(Direction::Down, DropReason::QueueFull);
        }
    }
}

/// State of a device that its thread shares.
struct Shared {
    device: tun::Device,
    /// Tunnels by the addresses of their clients. One that has not begun takes no packets.
    tunnels: Mutex<HashMap<IpAddr, Option<Inbox>>>,
    own: RwLock<Arc<[IpAddr]>>,
}

impl Shared {
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
        if let Some(Some(inbox)) = inbox {
            inbox.push(packet, header);
        }
    }

    /// Reads packets until the other end of `stop` is closed.
    fn run(&self, stop: &UnixStream) -> io::Result<()> {
        let mut read_at = Instant::now();
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            let waited = match self.device.wait(stop.as_fd(), OWN_ADDRESSES) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                waited => waited?,
            };
            if waited == Waited::Stopped {
                return Ok(());
            }
            if read_at.elapsed() >= OWN_ADDRESSES {
                self.read_own_addresses();
                read_at = Instant::now();
            }
            for _ in 0..TURN {
                match self.device.read(&mut buffer) {
                    Ok(length) => self.dispatch(&buffer[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// An open device. Its thread ends when this is dropped.
pub(super) struct TunDevice {
    shared: Arc<Shared>,
    _stop: UnixStream,
}

impl TunDevice {
    fn open(name: &str) -> io::Result<Self> {
        Self::begin(tun::Device::open(name)?)
    }

    /// Starts the thread of an open device.
    pub(super) fn begin(device: tun::Device) -> io::Result<Self> {
        let own = RwLock::new(Arc::from([]));
        let shared = Arc::new(Shared { device, tunnels: Mutex::default(), own });
        shared.read_own_addresses();
        let (stop, stopped) = UnixStream::pair()?;
        let reading = shared.clone();
        thread::Builder::new().name("tun".to_owned()).spawn(move || {
            if let Err(error) = reading.run(&stopped) {
                tracing::error!("the TUN device {} cannot be read: {error}", reading.device.name());
            }
        })?;
        Ok(Self { shared, _stop: stop })
    }

    /// Gives the device its addresses. Without the privilege it stays as the operator has set it up.
    fn configure(&self, pools: &[Prefix], mtu: u16) -> io::Result<()> {
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
        let mut lease = Lease { device: self.clone(), addresses: Vec::new() };
        for pool in pools {
            let is_taken = |address: IpAddr| tunnels.contains_key(&address);
            let Some(address) = pool::choose(*pool, u128::from_ne_bytes(random), tunnels.len(), is_taken) else {
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
        let (packets, waiting) = mpsc::channel(WAITING);
        let room = Arc::new(Semaphore::new(MAX_WAITING));
        let inbox = Inbox { packets, room, memory: memory.clone(), traffic: traffic.clone() };
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

/// Open devices by name. Outlives reloads: a device stays open while a generation or a tunnel has it.
#[derive(Default)]
pub(crate) struct TunDevices(Mutex<HashMap<String, Weak<TunDevice>>>);

impl TunDevices {
    /// The device of this name, opened if it is not.
    pub(super) fn open(&self, name: &str, pools: &[Prefix], mtu: u16) -> io::Result<Arc<TunDevice>> {
        let mut devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let device = match devices.get(name).and_then(Weak::upgrade) {
            Some(device) => device,
            None => Arc::new(TunDevice::open(name)?),
        };
        device.configure(pools, mtu)?;
        devices.retain(|_, device| device.strong_count() > 0);
        devices.insert(name.to_owned(), Arc::downgrade(&device));
        Ok(device)
    }
}

#[cfg(test)]
mod tests {
    use tiderace::ProcessBudget;

    use super::*;
    use crate::metrics::{Metrics, TunnelKind};

    /// A client that reads nothing: what waits for it is bounded in number and bytes, charged, and given back.
    #[tokio::test]
    async fn packets_that_wait_are_bounded_and_charged() {
        let packet = |length: usize| {
            let mut packet = vec![0; length];
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
            packet
        };
        let process = ProcessBudget::default();
        for (length, limit, count) in [
            (20, 1 << 30, WAITING),
            (9_000, 1 << 30, MAX_WAITING / (9_000 + OVERHEAD)),
            (1_000, 10 * (1_000 + OVERHEAD) as u64, 10),
        ] {
            let memory = ConnectionBudget::new(limit, &process);
            let traffic =
                Traffic::new(TunnelKind::Ip, String::new(), String::new(), None, &Arc::new(Metrics::default()));
            let (packets, mut waiting) = mpsc::channel(WAITING);
            let room = Arc::new(Semaphore::new(MAX_WAITING));
            let inbox = Inbox { packets, room, memory: memory.clone(), traffic: Arc::new(traffic) };
            let packet = packet(length);
            for _ in 0..1_000 {
                inbox.push(&packet, Packet::parse(&packet).unwrap());
            }
            assert_eq!(waiting.len(), count, "{length}");
            assert_eq!(memory.held(), (count * (length + OVERHEAD)) as u64);
            while waiting.try_recv().is_ok() {}
            assert_eq!(memory.held(), 0);
            inbox.push(&packet, Packet::parse(&packet).unwrap());
            assert_eq!(waiting.len(), 1, "there is room again");
        }
    }
}
