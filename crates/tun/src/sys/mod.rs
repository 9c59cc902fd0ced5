//! System calls behind TUN devices, packet sockets and netlink.
//!
//! Every `unsafe` block is one call into the C library, with a comment that says why its pointers are valid. Netlink messages are built as
//! bytes.

pub(crate) mod packet;

use std::{
    ffi::CString,
    fs::{File, OpenOptions},
    io, mem,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
};

use libc::{c_char, c_int, c_void};

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Opens a TUN device in the network namespace of the calling thread, without packet information and offloads. Returns its name as well.
pub(crate) fn open_tun(name: &str) -> io::Result<(File, String)> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
    let mut request = request_of(name);
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TUN | libc::IFF_NO_PI).unwrap_or(0);
    // SAFETY: `request` is a valid ifreq during the call, which writes the name into it.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let name: Vec<u8> =
        request.ifr_name.iter().map(|byte| byte.to_ne_bytes()[0]).take_while(|byte| *byte != 0).collect();
    Ok((file, String::from_utf8_lossy(&name).into_owned()))
}

/// A request about the interface of this name.
fn request_of(name: &str) -> libc::ifreq {
    // SAFETY: a plain C structure for which all zero is a valid value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays zero. `c_char` has a sign on x86_64, and none on aarch64.
    for (place, byte) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
    request
}

/// Switches an offload of an interface off, by its number in linux/ethtool.h.
pub(crate) fn disable_offload(name: &str, command: u32) -> io::Result<()> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    // struct ethtool_value: command, value.
    let mut value = [command, 0];
    let mut request = request_of(name);
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast::<c_char>();
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new and belongs to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `request` is a valid ifreq whose data is an ethtool_value; both are alive during the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) }).map(drop)
}

/// Makes a file return `WouldBlock` where it would wait.
pub(crate) fn set_nonblocking(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers.
    let flags = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Waits until one of two files can be read, or `timeout` milliseconds are over. Returns which can be read, or was closed.
pub(crate) fn wait(files: [BorrowedFd<'_>; 2], timeout: c_int) -> io::Result<[bool; 2]> {
    let mut polled = files.map(|file| libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    // SAFETY: the pointer and the number are those of `polled`, which is valid for writes during the call.
    check(unsafe { libc::poll(polled.as_mut_ptr(), 2, timeout) })?;
    Ok(polled.map(|polled| polled.revents != 0))
}

/// The number of an interface.
pub(crate) fn index(name: &str) -> io::Result<u32> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: `name` ends with a zero and is alive during the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 { Err(io::Error::last_os_error()) } else { Ok(index) }
}

/// A socket for requests to the kernel about interfaces of the network namespace in which it was made.
#[derive(Debug)]
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd =
            check(unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) })?;
        // SAFETY: the descriptor is new and belongs to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a request and waits for its acknowledgement.
    pub(crate) fn request(&self, kind: u16, flags: c_int, body: &[u8], attributes: &[(u16, &[u8])]) -> io::Result<()> {
        let message = message(kind, flags, body, attributes);
        // SAFETY: the pointer and the length are those of `message`, which is alive; the kernel is the default destination.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), message.as_ptr().cast::<c_void>(), message.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut answer = [0_u8; 1024];
        // SAFETY: the pointer and the length are those of `answer`, which is alive.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), answer.as_mut_ptr().cast::<c_void>(), answer.len(), 0) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        // struct nlmsgerr follows the header: zero, or a negative error number.
        let error = answer[16..].first_chunk().map_or(0, |bytes| c_int::from_ne_bytes(*bytes));
        if error < 0 { Err(io::Error::from_raw_os_error(-error)) } else { Ok(()) }
    }
}

/// A message of netlink: header, body and attributes, each filled up to a multiple of four bytes.
fn message(kind: u16, flags: c_int, body: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let flags = u16::try_from(flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK).unwrap_or(0);
    // struct nlmsghdr: length, type, flags, sequence, port.
    let mut message = vec![0; 4];
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message.resize(message.len().next_multiple_of(4), 0);
    message.extend(encode(attributes));
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message
}

/// Attributes of netlink as bytes, each filled up to a multiple of four bytes.
pub(crate) fn encode(attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (ty, value) in attributes {
        // struct rtattr: length, type, value.
        bytes.extend(u16::try_from(4 + value.len()).unwrap_or(u16::MAX).to_ne_bytes());
        bytes.extend(ty.to_ne_bytes());
        bytes.extend(*value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_filled_up() {
        let message = message(libc::RTM_NEWLINK, 0, &[1; 16], &[(7, &[1, 2, 3]), (8, &[4; 4])]);
        assert_eq!(message.len(), 16 + 16 + 8 + 8);
        assert_eq!(message[..4], 48_u32.to_ne_bytes());
        assert_eq!(message[32..40], [&7_u16.to_ne_bytes()[..], &7_u16.to_ne_bytes(), &[1, 2, 3, 0]].concat());
    }
}
