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

use tun::Interface;

use super::{NetworkError, sys};

/// One side of an emulated network.
#[derive(Clone, Debug)]
pub struct Namespace {
    file: Arc<File>,
    address: Ipv4Addr,
}

impl Namespace {
    /// Makes a namespace with a loopback device.
    pub(super) fn new(address: Ipv4Addr) -> Result<Self, NetworkError> {
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
            Ok(Self { file: Arc::new(file), address })
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

    /// True if anybody listens on this side, on this port or any: by TCP, or by UDP, where every socket does.
    pub fn listens(&self, port: Option<u16>) -> bool {
        let tables = self.run(|| {
            let read = |table: &str| fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
            Ok([("tcp", Some("0A")), ("tcp6", Some("0A")), ("udp", None), ("udp6", None)]
                .map(|(table, state)| has_socket(&read(table), state, port)))
        });
        tables.is_ok_and(|found| found.contains(&true))
    }

    /// Reads what its devices have dropped because the emulator, or the kernel behind it, was too slow.
    pub(super) fn drops(&self) -> io::Result<u64> {
        let text = self.run(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
        Ok(read_drops(&text))
    }
}

/// Sums up the columns "drop" of both directions of all devices but the loopback one.
fn read_drops(text: &str) -> u64 {
    let devices = text.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
    let drops = devices.map(|(_, line)| {
        let columns: Vec<u64> = line.split_whitespace().map(|column| column.parse().unwrap_or(0)).collect();
        // Eight columns of what came in, then eight of what went out; the fourth of each is "drop".
        [3, 11].iter().filter_map(|&column| columns.get(column)).sum::<u64>()
    });
    drops.sum()
}

/// True if a table of sockets has one in this state, or any, with this local port, or any.
fn has_socket(table: &str, state: Option<&str>, port: Option<u16>) -> bool {
    let mut rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.any(|row| {
        let (Some(local), Some(found)) = (row.get(1), row.get(3)) else { return false };
        let own = local.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok());
        state.is_none_or(|state| state == *found) && port.is_none_or(|port| own == Some(port))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_listens() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue\n";
        let row = |state: &str| format!("{head}   0: 0100007F:1F90 00000000:0000 {state} 00000000:00000000\n");
        assert!(has_socket(&row("0A"), Some("0A"), None) && has_socket(&row("07"), None, None));
        assert!(has_socket(&row("0A"), Some("0A"), Some(8080)) && !has_socket(&row("0A"), Some("0A"), Some(8081)));
        assert!(!has_socket(&row("01"), Some("0A"), None) && !has_socket(head, None, None));
    }

    #[test]
    fn drops_of_both_directions_count() {
        let text = "Inter-|   Receive                            |  Transmit\n \
                    face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed\n    \
                    lo:  1 1 0 100 0 0 0 0 1 1 0 100 0 0 0 0\n  \
                    tun0: 9 9 0 2 0 0 0 0 8 8 0 3 0 0 0 0\n \
                    veth0:9 9 0 7 0 0 0 0 8 8 0 0 0 0 0 0\n";
        assert_eq!(read_drops(text), 12);
        assert_eq!(read_drops(""), 0);
    }
}
