//! Network namespaces, held by descriptors: namespaces, devices and sockets vanish with the last process that holds one, however that
//! process ends.

use std::{
    fs::{self, File},
    io,
    net::Ipv4Addr,
    os::fd::AsFd,
    sync::Arc,
    thread,
};

use tun::{Device, Interface};

use super::{NetworkError, sys};

/// Name of the device in each namespace.
const DEVICE: &str = "tun0";
/// Packets that wait in a device for the emulator: enough for its longest sleep at the highest rate.
const QUEUE: u32 = 10_000;

/// One side of an emulated network.
#[derive(Clone, Debug)]
pub struct Namespace {
    file: Arc<File>,
    address: Ipv4Addr,
}

/// Drops of the devices of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceDrops {
    pub(super) count: u64,
}

impl Namespace {
    /// Makes a namespace with a TUN device in it.
    pub(super) fn new(address: Ipv4Addr, mask: Ipv4Addr, mtu: u32) -> Result<(Self, File), NetworkError> {
        // A thread of its own: one that has moved cannot be used for anything else.
        let made = thread::Builder::new().name("namespace".to_owned()).spawn(move || {
            sys::unshare(libc::CLONE_NEWNET).map_err(|source| NetworkError::Namespace { source })?;
            let system = |what| move |source| NetworkError::System { what, source };
            let file = File::open("/proc/thread-self/ns/net").map_err(system("open a network namespace"))?;
            // The kernel talks IPv6 on new devices by itself; those packets would take part in the run.
            let _ = fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
            let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            // `ping` without privileges.
            let group = sys::identity().1;
            let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", format!("{group} {group}"));
            let loopback = Interface::of("lo").map_err(system("find the loopback device"))?;
            loopback.set_up().map_err(system("bring up the loopback device"))?;
            let device = Device::open(DEVICE).map_err(|source| NetworkError::Tun { source })?;
            let interface = device.interface().map_err(system("find a TUN device"))?;
            interface.set_mtu(mtu).map_err(system("set the MTU of a TUN device"))?;
            let length = u32::from(mask).count_ones().try_into().unwrap_or(32);
            interface.add_address(address.into(), length).map_err(system("give a TUN device its address"))?;
            interface.set_queue_length(QUEUE).map_err(system("set the queue length of a TUN device"))?;
            interface.set_up().map_err(system("bring up a TUN device"))?;
            let device = device.into_file();
            Ok((Self { file: Arc::new(file), address }, device))
        });
        let made = made.map_err(|source| NetworkError::System { what: "start a thread", source })?;
        made.join().map_err(|_| NetworkError::Fault)?
    }

    /// Address of this side.
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Runs `what` on a new thread in this namespace and waits for it. A socket always stays in the namespace in which it was made,
    /// whichever thread uses it later.
    ///
    /// # Errors
    /// When the thread cannot be started or cannot enter the namespace, and those of `what`.
    pub fn run<T: Send>(&self, what: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let work = move || {
                sys::enter(self.file.as_fd())?;
                what()
            };
            let thread = thread::Builder::new().name("namespace".to_owned()).spawn_scoped(scope, work)?;
            thread.join().map_err(|_| io::Error::other("a thread in a namespace has panicked"))?
        })
    }

    /// Reads what its devices have dropped because the emulator, or the kernel behind it, was too slow.
    pub(super) fn drops(&self) -> io::Result<DeviceDrops> {
        let text = self.run(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
        Ok(DeviceDrops { count: read_drops(&text) })
    }
}

/// Sums up the columns "drop" of both directions of the TUN device.
fn read_drops(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(DEVICE)?.strip_prefix(':'));
    let columns: Vec<u64> =
        line.into_iter().flat_map(str::split_whitespace).map(|column| column.parse().unwrap_or(0)).collect();
    // Eight columns of what came in, then eight of what went out; the fourth of each is "drop".
    [3, 11].iter().filter_map(|&column| columns.get(column)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_both_directions_count() {
        let text = "Inter-|   Receive                            |  Transmit\n \
                    face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed\n    \
                    lo:  1 1 0 100 0 0 0 0 1 1 0 100 0 0 0 0\n  \
                    tun0: 9 9 0 2 0 0 0 0 8 8 0 3 0 0 0 0\n";
        assert_eq!(read_drops(text), 5);
        assert_eq!(read_drops(""), 0);
    }
}
