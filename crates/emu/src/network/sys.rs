//! System calls behind namespaces that have no safe interface elsewhere.
//!
//! Every `unsafe` block is one call into the C library, with a comment that says why its pointers are valid.

use std::{
    io,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Command, ExitStatus},
};

use libc::{c_int, c_void};
use units::Duration;

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

/// Has the kernel kill the command when the thread that starts it ends, however that comes.
pub fn die_with_this_thread(command: &mut Command) {
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

/// Waits until a child has ended, and leaves its status and its number for [`reap`].
pub(super) fn wait_for_end(child: u32) -> io::Result<()> {
    loop {
        // SAFETY: all zeros is a valid `siginfo_t`, and it is valid for writes during the call.
        let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
        // SAFETY: as above.
        let waited = unsafe { libc::waitid(libc::P_PID, child, &raw mut info, libc::WEXITED | libc::WNOWAIT) };
        match check(waited) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            waited => return waited.map(drop),
        }
    }
}

/// Status of a child that has ended, and the CPU time of it and of everything that it has waited for.
pub(super) fn reap(child: u32) -> io::Result<(ExitStatus, Duration)> {
    let child = c_int::try_from(child).map_err(io::Error::other)?;
    let mut status = 0;
    // SAFETY: all zeros is a valid `rusage`.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: `status` and `usage` are valid for writes during the call.
    check(unsafe { libc::wait4(child, &raw mut status, 0, &raw mut usage) })?;
    let micros = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
    };
    let cpu = Duration::from_micros(micros(usage.ru_utime) + micros(usage.ru_stime));
    Ok((ExitStatus::from_raw(status), cpu))
}

/// Sends a child that has not been waited for a signal.
pub(super) fn signal(child: u32, signal: c_int) {
    if let Ok(child) = c_int::try_from(child) {
        // SAFETY: no pointers.
        unsafe { libc::kill(child, signal) };
    }
}

/// Kills all other processes of the process namespace of which this is the first process. In any other process it does nothing: there, the
/// same call would reach all processes of the user.
pub(super) fn kill_namespace() {
    // SAFETY: no pointers, and both calls are async-signal-safe.
    unsafe {
        if libc::getpid() == 1 {
            libc::kill(-1, libc::SIGKILL);
        }
    }
}

extern "C" fn at_sigterm(_signal: c_int) {
    kill_namespace();
}

/// Has SIGTERM call [`kill_namespace`]. Programs that are started keep the default action.
pub(super) fn kill_namespace_at_sigterm() -> io::Result<()> {
    // SAFETY: all zeros is a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = at_sigterm as extern "C" fn(c_int) as libc::sighandler_t;
    // SAFETY: `action` is valid for reads during the call, and its function only makes calls that are async-signal-safe.
    check(unsafe { libc::sigaction(libc::SIGTERM, &raw const action, core::ptr::null_mut()) }).map(drop)
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

/// Reads the flags of `struct mptcp_info` (the kernel's `uapi/linux/mptcp.h`): a word behind eight bytes.
pub(super) fn mptcp_flags(socket: BorrowedFd<'_>) -> io::Result<u32> {
    const SOL_MPTCP: c_int = 284;
    const MPTCP_INFO: c_int = 1;
    let mut bytes = [0_u8; 12];
    let mut length = libc::socklen_t::try_from(bytes.len()).unwrap_or(0);
    // SAFETY: the pointer and the length are those of `bytes`, and both are valid for writes during the call.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            SOL_MPTCP,
            MPTCP_INFO,
            bytes.as_mut_ptr().cast::<c_void>(),
            &raw mut length,
        )
    })?;
    bytes.last_chunk().map(|word| u32::from_ne_bytes(*word)).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

/// Sets an option of TCP whose value is a number.
pub(super) fn set_tcp_option(socket: BorrowedFd<'_>, option: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the pointer is that of `value`, which lives through the call, and the length is its size.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            (&raw const value).cast::<c_void>(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })?;
    Ok(())
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
