//! The system calls the standard library does not offer: CPU clocks, CPU affinity, an alarm, UDP offloads.
//!
//! The only file with unsafe code. Every function takes and returns plain values.
#![allow(unsafe_code)]

use std::{
    io, mem,
    net::UdpSocket,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

/// CPU time of a process: the exact sum, and the kernel's estimate of how it splits.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// User and system time, in nanoseconds, from the process CPU clock.
    pub total_ns: u64,
    /// User time in nanoseconds, as `getrusage` splits it (sampled on most kernels).
    pub user_ns: u64,
    /// System time in nanoseconds, as `getrusage` splits it (sampled on most kernels).
    pub system_ns: u64,
}

/// Processes whose CPU time `rusage_ns` reports.
#[derive(Clone, Copy)]
pub enum Who {
    /// Process of the caller.
    Myself,
    /// All children that have ended and were waited for.
    Children,
}

fn nanos(seconds: i64, nanos: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0) * 1_000_000_000 + u64::try_from(nanos).unwrap_or(0)
}

/// User and system time in nanoseconds.
pub fn rusage_ns(who: Who) -> (u64, u64) {
    let who = match who {
        Who::Myself => libc::RUSAGE_SELF,
        Who::Children => libc::RUSAGE_CHILDREN,
    };
    // SAFETY: an all-zero rusage is valid, and the kernel writes only within it.
    let usage = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        libc::getrusage(who, &raw mut usage);
        usage
    };
    let time = |t: libc::timeval| nanos(t.tv_sec, t.tv_usec * 1_000);
    (time(usage.ru_utime), time(usage.ru_stime))
}

/// CPU time this process has used since it started.
pub fn process_cpu() -> CpuTime {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut now) };
    let (user_ns, system_ns) = rusage_ns(Who::Myself);
    CpuTime { total_ns: nanos(now.tv_sec, now.tv_nsec), user_ns, system_ns }
}

/// Restricts this process, and the threads it starts later, to one CPU.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= usize::try_from(libc::CPU_SETSIZE).unwrap_or(0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: an all-zero cpu_set_t is the empty set, and `cpu` is within it (checked above).
    let result = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, mem::size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends this process by signal after `seconds`, whatever it hangs in.
pub fn end_after(seconds: u32) {
    // SAFETY: alarm has no memory effects; SIGALRM keeps its default action, which ends the process.
    unsafe { libc::alarm(seconds) };
}

/// Clock ticks per second in `/proc/stat`.
pub fn ticks_per_second() -> u64 {
    // SAFETY: sysconf has no memory effects.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}

fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let size = libc::socklen_t::try_from(mem::size_of::<i32>()).expect("four bytes");
    // SAFETY: the option's value is a live i32 of the size given.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get_option(socket: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut size = libc::socklen_t::try_from(mem::size_of::<i32>()).expect("four bytes");
    // SAFETY: the kernel writes at most `size` bytes into a live i32.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut size) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Asks for socket buffers of `bytes` each way, beyond the system's limit where the privilege exists.
///
/// Returns what the kernel grants for receiving, in its own count (twice the request, as it includes its overhead).
pub fn set_socket_buffers(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<u64> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    for (force, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        if set_option(socket, libc::SOL_SOCKET, force, bytes).is_err() {
            set_option(socket, libc::SOL_SOCKET, plain, bytes)?;
        }
    }
    let granted = get_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    Ok(u64::try_from(granted).unwrap_or(0))
}

/// Has the kernel cut every send on this socket into datagrams of `size` bytes (generic segmentation offload).
pub fn segment_sends(socket: BorrowedFd<'_>, size: u16) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(size))
}

/// Lets the kernel hand up datagrams of one size from one sender as one buffer (generic receive offload).
pub fn coalesce_receives(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Lets sends with [`send_shared`] go without a copy.
pub fn allow_shared_sends(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)
}

/// Sends without a copy: `bytes` must not change until [`sends_done`] has counted this call.
pub fn send_shared(socket: &UdpSocket, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads the bytes of the slice.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_ZEROCOPY) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

// linux/errqueue.h, which libc does not have.
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// Waits until the kernel is done with more sends: how many, and whether it has copied them after all.
pub fn sends_done(socket: &UdpSocket, limit: std::time::Duration) -> io::Result<(usize, bool)> {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
    let limit = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    let mut control = [0_u64; CONTROL_WORDS * 2];
    // SAFETY: `poll` is one live pollfd. An all-zero msghdr is valid, its control buffer is alive with its true length, and the macros walk
    // only within it. The note behind the header is a sock_extended_err, as level and type say.
    unsafe {
        if libc::poll(&raw mut poll, 1, limit) == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = mem::size_of_val(&control);
        if libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE) < 0 {
            return Err(io::Error::last_os_error());
        }
        let note = libc::CMSG_FIRSTHDR(&raw const message);
        if note.is_null() || (*note).cmsg_level != libc::SOL_IP || (*note).cmsg_type != libc::IP_RECVERR {
            return Err(io::Error::other("an error in place of a note"));
        }
        let note: libc::sock_extended_err = ptr::read_unaligned(libc::CMSG_DATA(note).cast());
        if note.ee_origin != ORIGIN_ZEROCOPY || note.ee_errno != 0 {
            return Err(io::Error::from_raw_os_error(i32::try_from(note.ee_errno).unwrap_or(0)));
        }
        // The range of calls, from the first to the last.
        let count = note.ee_data.wrapping_sub(note.ee_info).wrapping_add(1);
        Ok((count as usize, note.ee_code == CODE_COPIED))
    }
}

/// One buffer that `receive_batch` filled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    /// Bytes in the buffer.
    pub len: usize,
    /// Size of each datagram in it but the last, which may be shorter.
    pub segment: usize,
}

/// Buffers per `recvmmsg`.
pub const BATCH: usize = 8;
/// Bytes per buffer: the most the kernel hands up at once.
pub const BUFFER: usize = 65_536;
const CONTROL_WORDS: usize = 8;

/// Waits for one buffer of datagrams and takes up to `BATCH` that are there, in one system call.
///
/// Buffer `i` is the `i`-th piece of `BUFFER` bytes of `storage`. Returns how many were filled.
pub fn receive_batch(socket: &UdpSocket, storage: &mut [u8], received: &mut [Received; BATCH]) -> io::Result<usize> {
    assert!(storage.len() >= BATCH * BUFFER, "one buffer per message");
    // u64 words, so that the control buffers are aligned for a cmsghdr.
    let mut control = [[0_u64; CONTROL_WORDS]; BATCH];
    // SAFETY: all-zero values of these C structures are valid (null pointers, zero lengths).
    let (mut pieces, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    for (i, piece) in storage.chunks_exact_mut(BUFFER).take(BATCH).enumerate() {
        pieces[i] = libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: BUFFER };
        let header = &mut messages[i].msg_hdr;
        header.msg_iov = &raw mut pieces[i];
        header.msg_iovlen = 1;
        header.msg_control = control[i].as_mut_ptr().cast();
        header.msg_controllen = mem::size_of_val(&control[i]);
    }
    let count = u32::try_from(BATCH).expect("a small constant");
    // SAFETY: every pointer set above is to memory that lives until the end of this function, with its true length.
    let filled = unsafe {
        libc::recvmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, libc::MSG_WAITFORONE, ptr::null_mut())
    };
    let filled = usize::try_from(filled).map_err(|_| io::Error::last_os_error())?;
    for (message, out) in messages.iter().zip(received.iter_mut()).take(filled) {
        let len = message.msg_len as usize;
        *out = Received { len, segment: segment_size(&message.msg_hdr).unwrap_or(len) };
    }
    Ok(filled)
}

/// The segment size that the kernel noted beside a coalesced buffer.
fn segment_size(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel filled `header`, whose control buffer is alive, and the macros walk only within its length.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = control.as_ref() {
            if found.cmsg_level == libc::SOL_UDP && found.cmsg_type == libc::UDP_GRO {
                let size: i32 = ptr::read_unaligned(libc::CMSG_DATA(control).cast());
                return usize::try_from(size).ok().filter(|&size| size > 0);
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}
