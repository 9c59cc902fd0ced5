//! Settings of network interfaces, by netlink: the older calls know no IPv6, and some ask for privileges in the initial user namespace.

use std::{io, net::IpAddr};

use crate::sys::{self, Netlink};

// Commands of linux/ethtool.h: checksums of what arrives and of what leaves, segmentation, and merging of what arrives.
const ETHTOOL_SRXCSUM: u32 = 0x15;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGSO: u32 = 0x24;
const ETHTOOL_SGRO: u32 = 0x2c;

// Values of linux/if_link.h, linux/if_addr.h and linux/rtnetlink.h that `libc` has as other types, or not at all.
const IFA_F_NODAD: u8 = 0x02;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_BOOT: u8 = 3;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;

/// A network interface.
#[derive(Debug)]
pub struct Interface {
    name: String,
    index: u32,
    netlink: Netlink,
}

/// Octets of an address.
fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn family(address: IpAddr) -> u8 {
    u8::try_from(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }).unwrap_or(0)
}

impl Interface {
    /// The interface of this name.
    ///
    /// # Errors
    /// When there is none, or the system has no more sockets.
    pub fn of(name: &str) -> io::Result<Self> {
        Ok(Self { name: name.to_owned(), index: sys::index(name)?, netlink: Netlink::open()? })
    }

    pub(crate) const fn index(&self) -> u32 {
        self.index
    }

    /// A change of the interface itself.
    fn change(&self, flags: u32, attributes: &[(u16, &[u8])]) -> io::Result<()> {
        // struct ifinfomsg: family, padding, type, index, flags, mask of flags.
        let mut body = vec![0; 4];
        body.extend(self.index.to_ne_bytes());
        body.extend(flags.to_ne_bytes());
        body.extend(flags.to_ne_bytes());
        self.netlink.request(libc::RTM_NEWLINK, 0, &body, attributes)
    }

    /// Brings the interface up.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn set_up(&self) -> io::Result<()> {
        self.change(u32::try_from(libc::IFF_UP).unwrap_or(0), &[])
    }

    /// Keeps the kernel from asking for hardware addresses: all packets have the interface's own as their destination.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn disable_arp(&self) -> io::Result<()> {
        self.change(u32::try_from(libc::IFF_NOARP).unwrap_or(0), &[])
    }

    /// Switches the offloads of an Ethernet interface off: packets that leave have the size of the MTU and complete checksums, and those of
    /// packets that arrive are verified.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn disable_offloads(&self) -> io::Result<()> {
        let offloads = [ETHTOOL_SGRO, ETHTOOL_SRXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_STXCSUM];
        offloads.into_iter().try_for_each(|command| sys::disable_offload(&self.name, command))
    }

    /// Sets the size of the largest packet.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        self.change(0, &[(libc::IFLA_MTU, &mtu.to_ne_bytes())])
    }

    /// Sets how many packets wait in the interface for its reader.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn set_queue_length(&self, packets: u32) -> io::Result<()> {
        self.change(0, &[(libc::IFLA_TXQLEN, &packets.to_ne_bytes())])
    }

    /// Adds an address, with a route to all addresses of its prefix.
    ///
    /// # Errors
    /// `AlreadyExists` when the interface has it.
    pub fn add_address(&self, address: IpAddr, prefix_length: u8) -> io::Result<()> {
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        let mut body = vec![family(address), prefix_length, IFA_F_NODAD, 0];
        body.extend(self.index.to_ne_bytes());
        let octets = octets(address);
        let local = (libc::IFA_LOCAL, &octets[..]);
        self.netlink.request(
            libc::RTM_NEWADDR,
            libc::NLM_F_CREATE | libc::NLM_F_EXCL,
            &body,
            &[local, (libc::IFA_ADDRESS, &octets)],
        )
    }

    /// Removes an address, and the route that came with it.
    ///
    /// # Errors
    /// When the interface does not have it.
    pub fn remove_address(&self, address: IpAddr, prefix_length: u8) -> io::Result<()> {
        let mut body = vec![family(address), prefix_length, 0, 0];
        body.extend(self.index.to_ne_bytes());
        let octets = octets(address);
        self.netlink.request(libc::RTM_DELADDR, 0, &body, &[(libc::IFA_LOCAL, &octets), (libc::IFA_ADDRESS, &octets)])
    }

    /// Routes the addresses of a prefix through the interface.
    ///
    /// # Errors
    /// `AlreadyExists` when there is such a route.
    pub fn add_route(&self, address: IpAddr, prefix_length: u8) -> io::Result<()> {
        self.route(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_EXCL, address, prefix_length)
    }

    /// Removes a route.
    ///
    /// # Errors
    /// When there is no such route.
    pub fn remove_route(&self, address: IpAddr, prefix_length: u8) -> io::Result<()> {
        self.route(libc::RTM_DELROUTE, 0, address, prefix_length)
    }

    fn route(&self, kind: u16, flags: i32, address: IpAddr, prefix_length: u8) -> io::Result<()> {
        // struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type, flags.
        let scope = if address.is_ipv4() { RT_SCOPE_LINK } else { 0 };
        let mut body = vec![family(address), prefix_length, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, scope, RTN_UNICAST];
        body.extend([0; 4]);
        let (octets, index) = (octets(address), self.index.to_ne_bytes());
        let attributes = [(libc::RTA_DST, &octets[..]), (libc::RTA_OIF, &index)];
        // The destination of a default route is left out.
        self.netlink.request(kind, flags, &body, &attributes[usize::from(prefix_length == 0)..])
    }
}
