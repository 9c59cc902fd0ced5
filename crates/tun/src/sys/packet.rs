//! Packet sockets (packet(7)) with a ring of frames, which the kernel shares with this process (TPACKET_V2). A ring holds more than the receive
//! buffer that an ordinary user may have.

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering},
};

use libc::{c_int, c_void, socklen_t};

use super::check;

/// Bytes of a frame: header, address, and a packet of the MTU of Ethernet.
const FRAME: usize = 2_048;
/// Frames of a ring: enough for the longest sleep of a reader at a high rate.
const FRAMES: usize = 8_192;
/// Bytes that the kernel allocates at once.
const BLOCK: usize = 1 << 16;

/// IPv4, as the kernel wants it: in network byte order.
fn ipv4() -> u16 {
    u16::try_from(libc::ETH_P_IP).unwrap_or(0).to_be()
}

/// Contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A packet of this length.
    Packet(usize),
    /// A packet that does not fit, or without a complete checksum.
    Unusable,
}

/// A packet socket bound to an interface, with its ring.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    index: c_int,
    ring: NonNull<u8>,
    /// Number of the frame that is read next.
    next: usize,
}

// SAFETY: the ring belongs to the socket alone, and only `take`, with exclusive access, touches it.
unsafe impl Send for Socket {}

fn set_option<T>(fd: &OwnedFd, name: c_int, value: &T) -> io::Result<()> {
    let size = socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: `value` is valid for reads of its size during the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_PACKET, name, ptr::from_ref(value).cast(), size) })
        .map(drop)
}

impl Socket {
    /// Opens a socket for the IPv4 packets of an interface.
    pub(crate) fn open(index: u32) -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers. Without a protocol it receives nothing until it is bound.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the descriptor is new and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set_option(&fd, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as c_int))?;
        let number = |value: usize| u32::try_from(value).unwrap_or(0);
        let request = libc::tpacket_req {
            tp_block_size: number(BLOCK),
            tp_block_nr: number(FRAMES * FRAME / BLOCK),
            tp_frame_size: number(FRAME),
            tp_frame_nr: number(FRAMES),
        };
        set_option(&fd, libc::PACKET_RX_RING, &request)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let ring = unsafe { libc::mmap(ptr::null_mut(), FRAMES * FRAME, access, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if ring == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ring = NonNull::new(ring.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // Unmapped when dropped, whether or not the socket can be bound.
        let socket = Self { fd, index: c_int::try_from(index).unwrap_or(0), ring, next: 0 };
        let address = socket.address([0; 6]);
        let size = socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
        // SAFETY: `address` is valid for reads of its size during the call.
        check(unsafe { libc::bind(socket.fd.as_raw_fd(), (&raw const address).cast(), size) })?;
        Ok(socket)
    }

    /// Address of IPv4 packets at the interface.
    fn address(&self, hardware: [u8; 6]) -> libc::sockaddr_ll {
        // SAFETY: a plain C structure for which all zero is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or(0);
        address.sll_protocol = ipv4();
        address.sll_ifindex = self.index;
        address.sll_halen = 6;
        address.sll_addr[..6].copy_from_slice(&hardware);
        address
    }

    /// Takes the next packet out of the ring into `buffer`; `None` when there is none.
    pub(crate) fn take(&mut self, buffer: &mut [u8]) -> Option<Frame> {
        // SAFETY: `next` is below the number of frames, all of which are in the mapping.
        let frame = unsafe { self.ring.as_ptr().add(self.next * FRAME) };
        let header = frame.cast::<libc::tpacket2_hdr>();
        // SAFETY: the mapping is aligned to pages, and lives as long as `self`; both sides change the status by atomic accesses.
        let status = unsafe { AtomicU32::from_ptr(&raw mut (*header).tp_status) };
        let found = status.load(Ordering::Acquire);
        if found & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the frame is this side's until the status is changed, and begins with its header.
        let (length, stored, at) = unsafe { ((*header).tp_len, (*header).tp_snaplen, (*header).tp_net) };
        let (length, at) = (usize::try_from(length).unwrap_or(usize::MAX), usize::from(at));
        let is_whole = usize::try_from(stored) == Ok(length) && length <= buffer.len().min(FRAME - at.min(FRAME));
        let is_usable = is_whole && found & libc::TP_STATUS_CSUMNOTREADY == 0;
        if is_usable {
            // SAFETY: `length` bytes from `at` on are within the frame, and `buffer` has room for them.
            unsafe { ptr::copy_nonoverlapping(frame.add(at), buffer.as_mut_ptr(), length) };
        }
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % FRAMES;
        Some(if is_usable { Frame::Packet(length) } else { Frame::Unusable })
    }

    /// Sends an IPv4 packet to a hardware address.
    pub(crate) fn send(&self, packet: &[u8], to: [u8; 6]) -> io::Result<()> {
        let to = self.address(to);
        let size = socklen_t::try_from(size_of_val(&to)).unwrap_or(0);
        let (data, to) = (packet.as_ptr().cast::<c_void>(), (&raw const to).cast());
        // SAFETY: the pointers and lengths are those of `packet` and of an address; both are alive during the call.
        let sent = unsafe { libc::sendto(self.fd.as_raw_fd(), data, packet.len(), 0, to, size) };
        // Packets are sent as a whole or not at all.
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Number of packets dropped because the ring was full, since the last call.
    pub(crate) fn take_drops(&self) -> io::Result<u64> {
        // SAFETY: a plain C structure for which all zero is a valid value.
        let mut found: libc::tpacket_stats = unsafe { mem::zeroed() };
        let mut size = socklen_t::try_from(size_of_val(&found)).unwrap_or(0);
        let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: `found` and `size` are valid for writes during the call.
        check(unsafe { libc::getsockopt(self.fd.as_raw_fd(), level, name, (&raw mut found).cast(), &raw mut size) })?;
        Ok(u64::from(found.tp_drops))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: the mapping is this socket's own, and nothing refers to it any more.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), FRAMES * FRAME) };
    }
}
