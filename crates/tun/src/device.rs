//! An open TUN device.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use crate::{interface::Interface, sys};

/// An open TUN device: whole IP packets, non-blocking, without offloads. The kernel cuts super-packets before it hands them over, and
/// computes every checksum.
#[derive(Debug)]
pub struct Device {
    file: File,
    name: String,
}

/// Reason why a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The device has packets, or has lost its interface.
    Packets,
    /// The other file was closed, or has something to read.
    Stopped,
    /// The time is over.
    TimedOut,
}

impl Device {
    /// Opens the device of this name, or makes it. `%d` in the name stands for the first free number.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_ADMIN`, unless the device belongs to the user; `NotFound` without `/dev/net/tun`;
    /// `ResourceBusy` while another program has the device.
    pub fn open(name: &str) -> io::Result<Self> {
        // Longer names would be cut, and lead to another device.
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['/', '\0']) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name of a device has 1 to 15 characters"));
        }
        let (file, name) = sys::open_tun(name)?;
        Ok(Self { file, name })
    }

    /// A device from its open file, which another process may have opened, and its name.
    ///
    /// # Errors
    /// When the system cannot make the file non-blocking.
    pub fn from_file(file: File, name: String) -> io::Result<Self> {
        sys::set_nonblocking(file.as_fd())?;
        Ok(Self { file, name })
    }

    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Settings of the interface.
    ///
    /// # Errors
    /// When the system has no more sockets.
    pub fn interface(&self) -> io::Result<Interface> {
        Interface::of(&self.name)
    }

    /// Keeps the kernel from sending IPv6 packets of its own, from a link-local address. Without effect where it cannot.
    pub fn silence(&self) {
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{}/addr_gen_mode", self.name), "1");
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{}/router_solicitations", self.name), "0");
    }

    /// Reads a packet that the kernel has routed to the device.
    ///
    /// # Errors
    /// `WouldBlock` when there is none.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(buffer)
    }

    /// Waits for packets, for `stop` to be closed or have something to read, and for `timeout`.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub fn wait(&self, stop: BorrowedFd<'_>, timeout: Duration) -> io::Result<Waited> {
        let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        Ok(match sys::wait([stop, self.file.as_fd()], timeout)? {
            [true, _] => Waited::Stopped,
            [false, true] => Waited::Packets,
            [false, false] => Waited::TimedOut,
        })
    }

    /// Gives a packet to the kernel, as if it had arrived at the interface.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(drop)
    }

    /// The open file.
    pub fn into_file(self) -> File {
        self.file
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
