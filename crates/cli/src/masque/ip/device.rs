//! The TUN device of a tunnel: a thread reads its packets, and its addresses and routes follow what the proxy says.

use std::{
    collections::BTreeSet,
    io,
    net::IpAddr,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::Arc,
    thread,
    time::Duration,
};

use client::masque::connect_ip::{MAX_PACKET, Prefix, RouteAdvertisement};
use tokio::sync::mpsc;
use tun::{Device, Interface, Waited};

use crate::failure::{Failure, UNSOUND};

/// Packets that wait for the tunnel; the others wait in the device, which drops those beyond its own queue.
const WAITING: usize = 256;
/// Packets that are read before the thread looks whether it shall end.
const TURN: usize = 64;
/// Interval in which the thread wakes without packets. It is woken at the end, too.
const IDLE: Duration = Duration::from_secs(600);
/// Routes of a tunnel.
const MAX_ROUTES: usize = 4_096;

/// Device of a tunnel, with the addresses and routes that the proxy gave. These vanish with a device that [`open`](Self::open) has made,
/// and are [removed](Self::clear) from one that was there.
pub(super) struct TunnelDevice {
    device: Arc<Device>,
    interface: Interface,
    mtu: Option<u32>,
    addresses: BTreeSet<Prefix>,
    routes: BTreeSet<Prefix>,
    _stop: UnixStream,
}

fn refused(name: &str, what: &str, error: &io::Error) -> Failure {
    let failure = Failure::new(format_args!("cannot {what} the TUN device {name}: {error}")).code(UNSOUND);
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            failure.hint("it takes CAP_NET_ADMIN: run the command as root, or in a network namespace of your own")
        }
        io::ErrorKind::NotFound => failure.hint("`modprobe tun`; in a container: --device /dev/net/tun"),
        io::ErrorKind::ResourceBusy => failure.hint("another program has the device: choose a name with --tun"),
        _ => failure.hint("`ip address` shows the devices of this machine"),
    }
}

impl TunnelDevice {
    /// Opens the device, and a queue of its packets.
    pub(super) fn open(name: &str) -> Result<(Self, mpsc::Receiver<Vec<u8>>), Failure> {
        let failed = |error| refused(name, "open", &error);
        let device = Arc::new(Device::open(name).map_err(failed)?);
        let interface = device.interface().map_err(failed)?;
        device.silence();
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let (packets, waiting) = mpsc::channel(WAITING);
        let reading = device.clone();
        let read = move || {
            // The tunnel notices the end of the packets.
            let _ = read(&reading, &stopped, &packets);
        };
        thread::Builder::new().name("tun".to_owned()).spawn(read).map_err(failed)?;
        let (addresses, routes) = Default::default();
        Ok((Self { device, interface, mtu: None, addresses, routes, _stop: stop }, waiting))
    }

    pub(super) fn name(&self) -> &str {
        self.device.name()
    }

    /// Gives a packet to the kernel. Returns whether it was taken.
    pub(super) fn write(&self, packet: &[u8]) -> bool {
        self.device.write(packet).is_ok()
    }

    /// Returns whether an address is one of this end.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|prefix| prefix.contains(address))
    }

    pub(super) fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(|prefix| prefix.address().is_ipv6())
    }

    /// Sets the MTU, if it is another one.
    pub(super) fn set_mtu(&mut self, mtu: u32) -> Result<(), Failure> {
        if self.mtu != Some(mtu) {
            self.interface.set_mtu(mtu).map_err(|error| refused(self.name(), "set the MTU of", &error))?;
            self.mtu = Some(mtu);
        }
        Ok(())
    }

    /// Replaces the addresses.
    // RFC 9484 §4.7.1: those that are not named are removed
    pub(super) fn set_addresses(&mut self, prefixes: impl IntoIterator<Item = Prefix>) -> Result<(), Failure> {
        let wanted: BTreeSet<Prefix> = prefixes.into_iter().collect();
        let failed = |error| refused(self.device.name(), "set the addresses of", &error);
        for gone in self.addresses.difference(&wanted) {
            let _ = self.interface.remove_address(gone.address(), full(*gone));
        }
        for new in wanted.difference(&self.addresses) {
            // Other addresses of a prefix are given by the user.
            accept_existing(self.interface.add_address(new.address(), full(*new))).map_err(failed)?;
        }
        self.interface.set_up().map_err(failed)?;
        self.addresses = wanted;
        // Routes without an address of their version could not be set.
        Ok(())
    }

    /// Replaces the routes, as far as this end has an address of their version. Packets to `excluded`, the proxy itself, stay outside.
    // RFC 9484 §4.7.3: each capsule supersedes those before
    pub(super) fn set_routes(&mut self, routes: &RouteAdvertisement, excluded: Option<IpAddr>) -> Result<(), Failure> {
        let has_version = |is_v4: bool| self.addresses.iter().any(|prefix| prefix.address().is_ipv4() == is_v4);
        let ranges = routes.0.iter().filter(|range| has_version(range.start.is_ipv4()));
        let ranges = ranges.flat_map(|range| excluded.map_or_else(|| vec![*range], |address| range.without(address)));
        let wanted: BTreeSet<Prefix> = ranges.flat_map(|range| range.prefixes()).take(MAX_ROUTES + 1).collect();
        if wanted.len() > MAX_ROUTES {
            let message = format_args!("the proxy advertises more than {MAX_ROUTES} routes").to_string();
            return Err(Failure::new(message).code(UNSOUND).hint("name the network that you need with --target"));
        }
        let failed = |error| refused(self.device.name(), "set the routes of", &error);
        for gone in self.routes.difference(&wanted) {
            let _ = self.interface.remove_route(gone.address(), gone.length());
        }
        for new in wanted.difference(&self.routes) {
            accept_existing(self.interface.add_route(new.address(), new.length())).map_err(failed)?;
        }
        self.routes = wanted;
        Ok(())
    }

    /// Removes addresses and routes from a device that outlives the program.
    pub(super) fn clear(&mut self) {
        for route in std::mem::take(&mut self.routes) {
            let _ = self.interface.remove_route(route.address(), route.length());
        }
        for address in std::mem::take(&mut self.addresses) {
            let _ = self.interface.remove_address(address.address(), full(address));
        }
    }
}

impl Drop for TunnelDevice {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Length of the prefix of one address: the proxy says with its routes what lies behind the device.
fn full(prefix: Prefix) -> u8 {
    Prefix::of(prefix.address()).length()
}

fn accept_existing(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
}

/// Reads packets until the other end of `stop` is closed.
fn read(device: &Device, stop: &UnixStream, packets: &mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    let mut buffer = vec![0; MAX_PACKET];
    loop {
        match device.wait(stop.as_fd(), IDLE) {
            Ok(Waited::Stopped) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for _ in 0..TURN {
            match device.read(&mut buffer) {
                Ok(length) => {
                    if packets.blocking_send(buffer[..length].to_vec()).is_err() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
