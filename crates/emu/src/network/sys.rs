//! System calls behind namespaces and TUN devices that have no safe interface elsewhere.
//!
//! Every `unsafe` block is one call into the C library, with a comment that says why its pointers are valid. Netlink messages are built as
//! bytes.

use std::{
    fs::{File, OpenOptions},
    io, mem,
    net::Ipv4Addr,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::{fs::OpenOptionsExt, process::CommandExt},
    },
    process::Command,
    ptr,
};

use libc::{c_char, c_int, c_ulong, c_void};

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Moves the calling thread into new namespaces; `CLONE_NEWUSER` needs a process of one thread.
pub(super) fn unshare(flags: c_int) -> io::Result<()> {
    // SAFETY: no pointers. File descriptors stay shared: CLONE_FILES is never among the flags of this module.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Moves the calling thread into a network namespace.
pub(super) fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// User and group as the system sees them now.
pub(super) fn identity() -> (u32, u32) {
    // SAFETY: no pointers, cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Opens a TUN device in the network namespace of the calling thread. Non-blocking; without packet information, and without offloads:
/// the kernel cuts TSO and USO super-packets before it hands them over, and computes every checksum.
pub(super) fn open_tun(name: &str) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let mut request = interface(name);
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TUN | libc::IFF_NO_PI).unwrap_or(0);
    // SAFETY: `request` is a valid ifreq during the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(file)
}

fn interface(name: &str) -> libc::ifreq {
    // SAFETY: a plain C structure for which all zero is a valid value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays zero. `c_char` has a sign on x86_64, and none on aarch64.
    for (place, byte) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
    request
}

/// A socket for settings of the interfaces in the network namespace of the calling thread.
pub(super) struct Interfaces(OwnedFd);

impl Interfaces {
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: the descriptor is new and belongs to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn set(&self, call: c_ulong, request: &libc::ifreq) -> io::Result<()> {
        // SAFETY: `request` is a valid ifreq during the call, which only reads it.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), call as _, ptr::from_ref(request)) }).map(drop)
    }

    pub(super) fn set_address(&self, name: &str, address: Ipv4Addr, mask: Ipv4Addr) -> io::Result<()> {
        for (call, value) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, mask)] {
            let mut request = interface(name);
            request.ifr_ifru.ifru_addr.sa_family = u16::try_from(libc::AF_INET).unwrap_or(0);
            // Behind the port, in network order.
            for (place, byte) in request_address(&mut request).iter_mut().zip(value.octets()) {
                *place = c_char::from_ne_bytes([byte]);
            }
            self.set(call, &request)?;
        }
        Ok(())
    }

    pub(super) fn set_mtu(&self, name: &str, mtu: u32) -> io::Result<()> {
        let mut request = interface(name);
        request.ifr_ifru.ifru_mtu = c_int::try_from(mtu).unwrap_or(c_int::MAX);
        self.set(libc::SIOCSIFMTU, &request)
    }

    pub(super) fn set_up(&self, name: &str) -> io::Result<()> {
        let mut request = interface(name);
        request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or(0);
        self.set(libc::SIOCSIFFLAGS, &request)
    }

    /// The number of an interface.
    pub(super) fn index(&self, name: &str) -> io::Result<c_int> {
        let mut request = interface(name);
        // SAFETY: `request` is a valid ifreq during the call, which writes the number into it.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCGIFINDEX as _, &raw mut request) })?;
        // SAFETY: the call has written this member.
        Ok(unsafe { request.ifr_ifru.ifru_ifindex })
    }
}

/// The four bytes of an IPv4 address within the request.
fn request_address(request: &mut libc::ifreq) -> &mut [c_char] {
    // SAFETY: the member is plain bytes, for which any value is valid, and the request is initialised as a whole.
    unsafe { &mut request.ifr_ifru.ifru_addr.sa_data[2..6] }
}

/// Sets how many packets wait in an interface for its reader. By netlink: the ioctl for it asks for privileges in the initial user
/// namespace.
pub(super) fn set_queue_length(index: c_int, packets: u32) -> io::Result<()> {
    const LENGTH: u32 = 16 + 16 + 8;
    // SAFETY: no pointers.
    let fd =
        check(unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) })?;
    // SAFETY: the descriptor is new and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_ACK).unwrap_or(0);
    let mut message = Vec::with_capacity(LENGTH as usize);
    // struct nlmsghdr: length, type, flags, sequence, port.
    message.extend(LENGTH.to_ne_bytes());
    message.extend(libc::RTM_NEWLINK.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    // struct ifinfomsg: family, padding, type, index, flags, change.
    message.extend([0; 4]);
    message.extend(index.to_ne_bytes());
    message.extend([0; 8]);
    // struct rtattr: length, type, value.
    message.extend(8_u16.to_ne_bytes());
    message.extend(libc::IFLA_TXQLEN.to_ne_bytes());
    message.extend(packets.to_ne_bytes());
    let mut answer = [0_u8; 1024];
    // SAFETY: the pointer and the length are those of `message`, which is alive; the kernel is the default destination.
    let sent = unsafe { libc::send(fd.as_raw_fd(), message.as_ptr().cast::<c_void>(), message.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the pointer and the length are those of `answer`, which is alive.
    let got = unsafe { libc::recv(fd.as_raw_fd(), answer.as_mut_ptr().cast::<c_void>(), answer.len(), 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // struct nlmsgerr follows the header: zero, or a negative error number.
    let error = answer[16..].first_chunk().map_or(0, |bytes| c_int::from_ne_bytes(*bytes));
    if error < 0 { Err(io::Error::from_raw_os_error(-error)) } else { Ok(()) }
}

/// Has the kernel kill the command when the thread that starts it ends, however that comes.
pub(super) fn die_with_this_thread(command: &mut Command) {
    // SAFETY: between fork and exec the closure only makes one system call, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)).map(drop));
    }
}

/// Waits for any child; its process number and its exit code as shells give it. `None` when there is none.
pub(super) fn wait_for_any() -> io::Result<Option<(i32, u8)>> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for writes during the call.
        match check(unsafe { libc::waitpid(-1, &raw mut status, 0) }) {
            Ok(child) if libc::WIFSIGNALED(status) => {
                return Ok(Some((child, u8::try_from(128 + libc::WTERMSIG(status)).unwrap_or(255))));
            }
            Ok(child) => return Ok(Some((child, u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(255)))),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// CPU time of the calling thread, in nanoseconds.
pub(super) fn thread_cpu() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes during the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Ticks per second of the times in /proc.
pub(super) fn ticks_per_second() -> u64 {
    // SAFETY: no pointers.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1)
}

/// Reads `struct tcp_info`; how many bytes of it the kernel has.
pub(super) fn tcp_info(socket: BorrowedFd<'_>, bytes: &mut [u8; 256]) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(bytes.len()).unwrap_or(0);
    // SAFETY: the pointer and the length are those of `bytes`, and both are valid for writes during the call.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast::<c_void>(),
            &raw mut length,
        )
    })?;
    Ok(usize::try_from(length).unwrap_or(0).min(bytes.len()))
}
