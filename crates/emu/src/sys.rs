//! System calls that have no safe interface elsewhere, each in a function that cannot be misused.
//!
//! Every `unsafe` block is one call into the C library, with a comment that says why its pointers are valid. Control messages and socket
//! addresses are read and written as bytes, without pointers.

use std::{
    io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

use libc::{c_int, c_void};
use netem::Ecn;
use socket2::SockAddr;
use units::Instant;

/// Messages in one receive or send call.
pub(crate) const BATCH: usize = 32;
/// A UDP payload is never larger.
const SLOT: usize = 65_536;
/// Room for the control messages of one packet: ECN bits, receive time, drop counter.
const CONTROL: usize = 128;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A clock, in nanoseconds.
fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes during the call.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    nanos(time.tv_sec, time.tv_nsec)
}

fn nanos(seconds: i64, nanos: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0) * 1_000_000_000 + u64::try_from(nanos).unwrap_or(0)
}

/// The monotonic clock, which timers and links run by.
pub(crate) fn now() -> Instant {
    Instant::from_nanos(clock(libc::CLOCK_MONOTONIC))
}

/// The wall clock in nanoseconds, by which the kernel stamps packets.
pub(crate) fn wall_clock() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

/// Lets the calling thread run before all ordinary ones, if the system allows it (it takes a privilege).
pub(crate) fn prefer_this_thread() -> bool {
    // SAFETY: numbers, for which zero is a value. musl has more of them than glibc and the kernel, which has the first one.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = 50;
    // Not by the function of the C library: that of musl refuses always.
    // SAFETY: `parameters` is valid for reads during the call; 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}

/// A timer that makes its file descriptor readable, exact to the nanosecond and without slack.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    armed: Option<Instant>,
    /// Readable until it is set again.
    expired: bool,
}

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) })?;
        // SAFETY: the descriptor is new and belongs to nobody else.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, armed: None, expired: false })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.fd.as_fd()
    }

    /// Sets the expiry to `at`, or disarms the timer. Clears an earlier expiry.
    pub(crate) fn arm(&mut self, at: Option<Instant>) -> io::Result<()> {
        if self.armed == at && !self.expired {
            return Ok(());
        }
        (self.armed, self.expired) = (at, false);
        // All zero disarms, so a time of zero is moved by a nanosecond.
        let nanos = at.map_or(0, |at| at.as_nanos().max(1));
        let value = libc::timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
        };
        let spec = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // SAFETY: `spec` is valid for reads during the call; a null old value is allowed.
        let result = unsafe {
            libc::timerfd_settime(self.fd.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &raw const spec, ptr::null_mut())
        };
        check(result).map(drop)
    }

    /// The descriptor is readable, and stays so until the next `arm`, which is needed anyway and saves the call that reads it. True for the first
    /// time since the timer was set.
    pub(crate) fn fired(&mut self) -> bool {
        !std::mem::replace(&mut self.expired, true)
    }
}

/// A set of descriptors of which one can wait for any. Each has a number by which it is reported.
#[derive(Debug)]
pub(crate) struct Poll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
    ready: usize,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the descriptor is new and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; 64], ready: 0 })
    }

    /// Watches a descriptor for input until it is closed.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        // SAFETY: `event` is valid during the call, which copies it.
        let result =
            unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) };
        check(result).map(drop)
    }

    /// Waits until something is ready; without `block`, returns at once.
    pub(crate) fn wait(&mut self, block: bool) -> io::Result<()> {
        let room = c_int::try_from(self.events.len()).unwrap_or(c_int::MAX);
        // SAFETY: `events` has room for as many events as the call is told.
        let result = unsafe {
            libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), room, if block { -1 } else { 0 })
        };
        self.ready = match check(result) {
            Ok(count) => usize::try_from(count).unwrap_or(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// The number of the `index`-th descriptor that is ready.
    pub(crate) fn ready(&self, index: usize) -> Option<u64> {
        (index < self.ready).then(|| self.events[index].u64)
    }
}

/// Sets an integer option of a socket.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or(4);
    // SAFETY: `value` is valid for reads of its size during the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast::<c_void>(), size) };
    check(result).map(drop)
}

/// Control bytes, aligned as the kernel's headers in them.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// A socket address as bytes, aligned as the kernel's structures.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Name([u8; 32]);

/// Room for one batch of packets to be received.
pub(crate) struct Inbox {
    data: Vec<u8>,
    names: [Name; BATCH],
    controls: [Control; BATCH],
    /// Of each packet: payload bytes, address bytes, control bytes.
    lengths: [(usize, usize, usize); BATCH],
}

/// A packet in an [`Inbox`].
#[derive(Debug)]
pub(crate) struct Received<'a> {
    /// The sender; unknown for a family other than IPv4 and IPv6.
    pub(crate) from: Option<SocketAddr>,
    pub(crate) ecn: Ecn,
    /// Time of arrival at the kernel, by the wall clock in nanoseconds.
    pub(crate) stamp: Option<u64>,
    /// Packets that the kernel has dropped at this socket since it was made, modulo 2^32.
    pub(crate) kernel_drops: Option<u32>,
    pub(crate) payload: &'a [u8],
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            data: vec![0; BATCH * SLOT],
            names: [Name([0; 32]); BATCH],
            controls: [Control([0; CONTROL]); BATCH],
            lengths: [(0, 0, 0); BATCH],
        }
    }

    /// Receives the available packets without waiting and returns their number.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: both are plain C structures for which all zero is a valid value.
        let mut parts: [libc::iovec; BATCH] = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        let slots = self.data.chunks_exact_mut(SLOT).zip(&mut self.names).zip(&mut self.controls);
        for ((part, header), ((slot, name), control)) in parts.iter_mut().zip(&mut headers).zip(slots) {
            *part = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: SLOT };
            header.msg_hdr.msg_name = (&raw mut name.0).cast();
            header.msg_hdr.msg_namelen = 32;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = (&raw mut control.0).cast();
            header.msg_hdr.msg_controllen = CONTROL as _;
        }
        // SAFETY: each header points to a slot, a name and a control buffer of its own, all alive and of the length
        // said, and `headers` has BATCH elements.
        let result = unsafe {
            libc::recvmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), BATCH as _, libc::MSG_DONTWAIT as _, ptr::null_mut())
        };
        let count = usize::try_from(check(result)?).unwrap_or(0);
        for (lengths, header) in self.lengths.iter_mut().zip(&headers[..count]) {
            let name = usize::try_from(header.msg_hdr.msg_namelen).unwrap_or(0);
            #[allow(clippy::unnecessary_cast, reason = "the C type differs between C libraries")]
            let control = header.msg_hdr.msg_controllen as usize;
            *lengths = (usize::try_from(header.msg_len).unwrap_or(0).min(SLOT), name.min(32), control.min(CONTROL));
        }
        Ok(count)
    }

    /// Metadata of the `index`-th packet of the last batch.
    pub(crate) fn payload(&self, index: usize) -> &[u8] {
        &self.data[index * SLOT..][..self.lengths[index].0]
    }

    /// The `index`-th packet of the last batch.
    pub(crate) fn packet(&self, index: usize) -> Received<'_> {
        let (_, name, control) = self.lengths[index];
        let mut received = Received {
            from: read_address(&self.names[index].0[..name]),
            ecn: Ecn::NotEct,
            stamp: None,
            kernel_drops: None,
            payload: self.payload(index),
        };
        for (level, kind, value) in (ControlMessages { bytes: &self.controls[index].0[..control] }) {
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    // One byte for IPv4, an integer for IPv6.
                    let class = value.first_chunk().map_or(u32::from(first(value)), |int| u32::from_ne_bytes(*int));
                    received.ecn = Ecn::from_bits((class & 0b11) as u8);
                }
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => received.stamp = timestamp(value),
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => received.kernel_drops = Some(int(value)),
                _ => {}
            }
        }
        received
    }
}

/// The first integer in a control message's data, zero when there is none.
fn int(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn first(value: &[u8]) -> u8 {
    value.first().copied().unwrap_or(0)
}

/// A `timespec` of two 64-bit numbers.
fn timestamp(value: &[u8]) -> Option<u64> {
    let (seconds, rest) = value.split_first_chunk::<8>()?;
    Some(nanos(i64::from_ne_bytes(*seconds), i64::from_ne_bytes(*rest.first_chunk()?)))
}

/// Length of a control message's header: its length as a word, level and type as two integers.
const HEADER: usize = size_of::<usize>() + 8;

/// Control messages as (level, type, data). Stops at the first one that does not fit.
struct ControlMessages<'a> {
    bytes: &'a [u8],
}

impl<'a> Iterator for ControlMessages<'a> {
    type Item = (c_int, c_int, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        const WORD: usize = size_of::<usize>();
        let length = usize::from_ne_bytes(*self.bytes.first_chunk::<WORD>()?);
        let message = self.bytes.get(..length)?;
        let level = message.get(WORD..)?.first_chunk()?;
        let kind = message.get(WORD + 4..)?.first_chunk()?;
        let data = message.get(HEADER..)?;
        self.bytes = self.bytes.get(length.next_multiple_of(WORD)..).unwrap_or(&[]);
        Some((c_int::from_ne_bytes(*level), c_int::from_ne_bytes(*kind), data))
    }
}

/// A socket address from the bytes of a `sockaddr_in` or `sockaddr_in6`.
fn read_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = c_int::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    if family == libc::AF_INET {
        let address: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
        return Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(address)), port));
    }
    if family != libc::AF_INET6 {
        return None;
    }
    let address: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
    let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
    Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(address), port, 0, scope)))
}

/// A packet to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) payload: &'a [u8],
    /// Needed for a socket that is not connected.
    pub(crate) to: Option<&'a SockAddr>,
    pub(crate) ecn: Ecn,
    pub(crate) ipv6: bool,
}

/// Sends packets, at most [`BATCH`], without waiting; returns how many were taken.
///
/// # Errors
/// When the first one was not taken.
pub(crate) fn send(fd: BorrowedFd<'_>, packets: &[Outgoing<'_>]) -> io::Result<usize> {
    // SAFETY: both are plain C structures for which all zero is a valid value.
    let mut parts: [libc::iovec; BATCH] = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
    let mut controls = [Control([0; CONTROL]); BATCH];
    let count = packets.len().min(BATCH);
    let slots = parts.iter_mut().zip(&mut headers).zip(&mut controls);
    for (packet, ((part, header), control)) in packets.iter().zip(slots) {
        *part = libc::iovec { iov_base: packet.payload.as_ptr().cast_mut().cast(), iov_len: packet.payload.len() };
        header.msg_hdr.msg_iov = part;
        header.msg_hdr.msg_iovlen = 1;
        if let Some(to) = packet.to {
            header.msg_hdr.msg_name = to.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_namelen = to.len();
        }
        if packet.ecn != Ecn::NotEct {
            let length = write_ecn(&mut control.0, packet.ecn, packet.ipv6);
            header.msg_hdr.msg_control = (&raw mut control.0).cast();
            header.msg_hdr.msg_controllen = length as _;
        }
    }
    // SAFETY: the first `count` headers point to a payload, perhaps an address and perhaps control bytes, all of which
    // are alive; the call reads from them only.
    let result = unsafe {
        libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), u32::try_from(count).unwrap_or(0), libc::MSG_DONTWAIT as _)
    };
    Ok(usize::try_from(check(result)?).unwrap_or(0))
}

/// Writes the control message that sets the ECN bits; returns its length.
fn write_ecn(control: &mut [u8; CONTROL], ecn: Ecn, ipv6: bool) -> usize {
    const WORD: usize = size_of::<usize>();
    let (level, kind) = if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) } else { (libc::IPPROTO_IP, libc::IP_TOS) };
    let length = HEADER + 4;
    control[..WORD].copy_from_slice(&length.to_ne_bytes());
    control[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
    control[WORD + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
    control[HEADER..length].copy_from_slice(&c_int::from(ecn.bits()).to_ne_bytes());
    length.next_multiple_of(WORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back() {
        for text in ["127.0.0.1:4433", "[::1]:443", "[fe80::1%7]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let name = SockAddr::from(address);
            // SAFETY: the pointer and length are those of the address, which is alive.
            let bytes = unsafe { std::slice::from_raw_parts(name.as_ptr().cast::<u8>(), name.len() as usize) };
            assert_eq!(read_address(bytes), Some(address));
            assert_eq!(read_address(&bytes[..5]), None);
        }
    }

    #[test]
    fn control_messages_read_back() {
        let mut control = [0; CONTROL];
        let length = write_ecn(&mut control, Ecn::Ce, false);
        let messages: Vec<_> = ControlMessages { bytes: &control[..length] }.collect();
        assert_eq!(messages, [(libc::IPPROTO_IP, libc::IP_TOS, &3i32.to_ne_bytes()[..])]);
        for cut in 0..HEADER + 4 {
            assert_eq!(ControlMessages { bytes: &control[..cut] }.count(), 0);
        }
        control[..8].copy_from_slice(&usize::MAX.to_ne_bytes());
        assert_eq!(ControlMessages { bytes: &control }.count(), 0);
    }

    #[test]
    fn a_timer_fires_once() {
        let mut timer = Timer::new().unwrap();
        let mut poll = Poll::new().unwrap();
        poll.add(timer.fd(), 7).unwrap();
        poll.wait(false).unwrap();
        assert_eq!(poll.ready(0), None);
        let at = now() + units::Duration::from_millis(2);
        timer.arm(Some(at)).unwrap();
        // A signal may end the wait early.
        while poll.ready(0).is_none() {
            poll.wait(true).unwrap();
        }
        assert_eq!((poll.ready(0), poll.ready(1)), (Some(7), None));
        assert!(now() >= at);
        assert!(timer.fired());
        poll.wait(false).unwrap();
        // Readable until it is set again, at the same time as well.
        assert_eq!((poll.ready(0), timer.fired()), (Some(7), false));
        timer.arm(Some(at)).unwrap();
        poll.wait(true).unwrap();
        assert_eq!((poll.ready(0), timer.fired()), (Some(7), true));
        timer.arm(None).unwrap();
        poll.wait(false).unwrap();
        assert_eq!(poll.ready(0), None);
    }
}
