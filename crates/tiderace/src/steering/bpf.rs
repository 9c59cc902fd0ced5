//! The bpf(2) system call: a table of sockets, and a program that selects one of them.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Licence of the program, as the kernel asks for it.
const LICENCE: &CStr = c"MIT OR Apache-2.0";
/// SO_ATTACH_REUSEPORT_EBPF, which is the same on all architectures of ours.
const ATTACH: libc::c_int = libc::SO_ATTACH_REUSEPORT_EBPF;
/// SO_DETACH_REUSEPORT_BPF, likewise.
const DETACH: libc::c_int = libc::SO_DETACH_REUSEPORT_BPF;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;

/// BPF_MAP_TYPE_REUSEPORT_SOCKARRAY.
const SOCKET_ARRAY: u32 = 20;
/// BPF_PROG_TYPE_SK_REUSEPORT.
const SK_REUSEPORT: u32 = 21;

/// Instruction of the kernel's machine (RFC 9669 §3.1).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) code: u8,
    /// Source register in the upper half, destination in the lower one, on little-endian systems.
    pub(super) registers: u8,
    pub(super) offset: i16,
    pub(super) immediate: i32,
}

#[repr(C)]
#[derive(Default)]
struct CreateMap {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
}

#[repr(C)]
struct Element {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct LoadProgram {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
}

#[expect(unsafe_code, reason = "bpf(2) has no safe wrapper")]
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<i32> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of the attributes, and what their pointers lead to, which the callers borrow to the
    // end of the call. No command of this file lets the kernel write.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(i32::try_from(result).expect("descriptors are small")) }
}

#[expect(unsafe_code, reason = "a new descriptor becomes an owned one")]
fn own(descriptor: i32) -> OwnedFd {
    // SAFETY: the kernel has just returned the descriptor, which nobody else has.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

/// Creates a table with places for this many sockets.
pub(super) fn create_table(places: u32) -> io::Result<OwnedFd> {
    let attributes = CreateMap { kind: SOCKET_ARRAY, key_size: 4, value_size: 4, entries: places };
    bpf(MAP_CREATE, &attributes).map(own)
}

/// Puts a socket, which is in a group of SO_REUSEPORT, at a place of a table. Its last close empties the place.
pub(super) fn put(table: BorrowedFd<'_>, place: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = number(socket);
    let (key, value) = ((&raw const place).addr() as u64, (&raw const value).addr() as u64);
    bpf(MAP_UPDATE, &Element { map: number(table), _pad: 0, key, value, flags: 0 }).map(drop)
}

/// Empties a place of a table.
pub(super) fn clear(table: BorrowedFd<'_>, place: u32) -> io::Result<()> {
    let key = (&raw const place).addr() as u64;
    bpf(MAP_DELETE, &Element { map: number(table), _pad: 0, key, value: 0, flags: 0 }).map(drop)
}

/// Lets the kernel verify a program.
pub(super) fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let attributes = LoadProgram {
        kind: SK_REUSEPORT,
        count: u32::try_from(program.len()).expect("a short program"),
        instructions: program.as_ptr().addr() as u64,
        licence: LICENCE.as_ptr().addr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
    };
    bpf(PROG_LOAD, &attributes).map(own)
}

/// Lets a program select the socket of each datagram for the group that `socket` is in.
pub(super) fn attach(socket: &impl AsRawFd, program: BorrowedFd<'_>) -> io::Result<()> {
    crate::reuseport::set_option(socket, ATTACH, &program.as_raw_fd())
}

/// Leaves the choice of socket in the group that `socket` is in to the kernel's hash.
pub(super) fn detach(socket: &impl AsRawFd) -> io::Result<()> {
    crate::reuseport::set_option(socket, DETACH, &0i32)
}
