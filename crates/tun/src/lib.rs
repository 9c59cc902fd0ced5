//! TUN devices: network interfaces whose packets a program reads and writes, with their addresses and routes.
//!
//! A [`Device`] is open as long as the program holds it. One that [`Device::open`] has made vanishes with it, and its addresses and routes
//! with the interface. An [`Interface`] has the settings of a device, or of any other interface.
//!
//! Linux only. Both belong to the network namespace of the thread that opens them.
#![cfg(target_os = "linux")]

mod device;
mod interface;
#[expect(unsafe_code, reason = "TUN devices and netlink have no safe interface in std or socket2")]
mod sys;

pub use self::{
    device::{Device, Waited},
    interface::Interface,
};
