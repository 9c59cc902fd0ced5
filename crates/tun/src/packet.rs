//! Packets of an Ethernet device.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use crate::{
    interface::Interface,
    sys::packet::{Frame, Socket},
};

/// A socket that reads the IPv4 packets that arrive at an Ethernet device, and sends packets from it: whole IP packets without Ethernet
/// headers, non-blocking.
///
/// The kernel stores packets in a ring of 8,192. Further ones are dropped and counted until there is room.
#[derive(Debug)]
pub struct PacketSocket {
    socket: Socket,
    to: [u8; 6],
    drops: u64,
}

impl PacketSocket {
    /// Opens a socket at an interface, whose packets go to this hardware address.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_RAW`; when the kernel has no packet sockets, or no memory for the ring.
    pub fn open(interface: &Interface, to: [u8; 6]) -> io::Result<Self> {
        Ok(Self { socket: Socket::open(interface.index())?, to, drops: 0 })
    }

    /// Reads a packet that has arrived at the interface. Packets without a complete checksum, or larger than a frame of the ring, are drops.
    ///
    /// # Errors
    /// `WouldBlock` when there is none.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.socket.take(buffer) {
                Some(Frame::Packet(length)) => return Ok(length),
                Some(Frame::Unusable) => self.drops += 1,
                None => return Err(io::ErrorKind::WouldBlock.into()),
            }
        }
    }

    /// Sends an IPv4 packet.
    ///
    /// # Errors
    /// When the kernel does not take it: larger than the MTU, or no room.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        self.socket.send(packet, self.to)
    }

    /// Packets that arrived and could not be read, since the socket was opened.
    ///
    /// # Errors
    /// When the kernel does not return its counter.
    pub fn drops(&mut self) -> io::Result<u64> {
        self.drops += self.socket.take_drops()?;
        Ok(self.drops)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
