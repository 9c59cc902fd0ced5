//! Pairs of virtual Ethernet devices: what one sends arrives at the other.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use crate::sys::{Netlink, encode};

/// Attribute of linux/veth.h that has the other device of a pair.
const VETH_INFO_PEER: u16 = 1;

/// One device of a pair, in another network namespace.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// Name of the interface.
    pub name: &'a str,
    /// Network namespace of the interface.
    pub namespace: BorrowedFd<'a>,
    /// Hardware address of the interface.
    pub hardware_address: [u8; 6],
}

/// Makes a pair of devices: one of this name in the network namespace of the calling thread, and `end` in its own. Both vanish with the namespace of
/// either.
///
/// # Errors
/// `PermissionDenied` without `CAP_NET_ADMIN` in both namespaces; `Unsupported` when the kernel has no such devices.
pub fn add_veth_pair(name: &str, end: VethEnd<'_>) -> io::Result<()> {
    // struct ifinfomsg, with nothing set.
    let info = [0_u8; 16];
    let (name, end_name) = (zero_terminated(name), zero_terminated(end.name));
    let mut peer = info.to_vec();
    peer.extend(encode(&[
        (libc::IFLA_IFNAME, &end_name),
        (libc::IFLA_ADDRESS, &end.hardware_address),
        (libc::IFLA_NET_NS_FD, &end.namespace.as_raw_fd().to_ne_bytes()),
    ]));
    let data = encode(&[(VETH_INFO_PEER, &peer)]);
    let kind = encode(&[(libc::IFLA_INFO_KIND, b"veth"), (libc::IFLA_INFO_DATA, &data)]);
    let attributes = [(libc::IFLA_IFNAME, &name[..]), (libc::IFLA_LINKINFO, &kind)];
    Netlink::open()?.request(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &info, &attributes)
}

fn zero_terminated(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}
