//! Network interfaces whose packets a program reads and writes, with their addresses and routes: TUN devices, and pairs of virtual Ethernet
//! devices (veth).
//!
//! A [`Device`] is open as long as the program holds it. One that [`Device::open`] has made vanishes with it, and its addresses and routes
//! with the interface. An [`Interface`] has the settings of a device, or of any other interface.
//!
//! A [`PacketSocket`] reads and writes the packets of an Ethernet device. With one end of a pair that [`add_veth_pair`] has made, it does what
//! a [`Device`] does, without `/dev/net/tun`.
//!
//! Linux only. All belong to the network namespace of the thread that opens or makes them.
#![cfg(target_os = "linux")]

mod device;
mod interface;
mod packet;
#[expect(unsafe_code, reason = "TUN devices, packet sockets and netlink have no safe interface in std or socket2")]
mod sys;
mod veth;

pub use self::{
    device::{Device, Waited},
    interface::Interface,
    packet::PacketSocket,
    veth::{VethEnd, add_veth_pair},
};
