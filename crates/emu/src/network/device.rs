//! Devices between the sides of a network and the emulator.
//!
//! - **TUN**: the emulator reads and writes the packets of a device in each side's namespace.
//! - **Veth pairs**, for machines without `/dev/net/tun`: each side has one end of a pair. The other ends are in a namespace of the emulator, which reads
//!   and writes their packets by packet sockets. Nobody asks for hardware addresses (`IFF_NOARP`), and the ends of the sides have no
//!   offloads, so that packets are those of a TUN device.

use core::fmt;
use std::{
    fs::File,
    io::{self, Read, Write},
    net::Ipv4Addr,
    os::fd::{AsFd, BorrowedFd},
};

use tun::{Interface, PacketSocket, VethEnd, add_veth_pair};

use super::{Namespace, NetworkError};

/// Kind of the devices of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// TUN devices.
    Tun,
    /// Pairs of virtual Ethernet devices, with packet sockets at the emulator's ends.
    Veth,
}

impl DeviceKind {
    /// Name in options and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tun => "tun",
            Self::Veth => "veth",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tun => "TUN devices",
            Self::Veth => "veth pairs",
        })
    }
}

/// Name of a side's device.
const TUN: &str = "tun0";
const VETH: &str = "veth0";
/// Hardware address of each side's end of a pair.
const HARDWARE_ADDRESS: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The whole of 10.0.0.0/8 lies behind the device, the addresses of a NAT included.
const PREFIX: u8 = 8;
/// Packets that wait in a TUN device for the emulator: enough for its longest sleep at the highest rate.
const QUEUE: u32 = 10_000;

/// Emulator's end of a side's device.
#[derive(Debug)]
pub(super) enum Device {
    Tun(File),
    Veth(PacketSocket),
}

impl Device {
    /// Reads an IP packet that the side has sent.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tun(file) => file.read(buffer),
            Self::Veth(socket) => socket.read(buffer),
        }
    }

    /// Hands an IP packet to the side.
    pub(super) fn write(&self, packet: &[u8]) -> io::Result<()> {
        match self {
            Self::Tun(file) => {
                let mut file: &File = file;
                // A device takes a packet as a whole.
                if file.write(packet)? == packet.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
            }
            Self::Veth(socket) => socket.write(packet),
        }
    }

    /// Packets that came and could not be read. A TUN device has them among the drops of its interface.
    pub(super) fn unread(&mut self) -> io::Result<u64> {
        match self {
            Self::Tun(_) => Ok(0),
            Self::Veth(socket) => socket.drops(),
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tun(file) => file.as_fd(),
            Self::Veth(socket) => socket.as_fd(),
        }
    }
}

/// Devices of both sides.
#[derive(Debug)]
pub(super) struct Devices {
    /// Of the client and of the server.
    pub(super) devices: [Device; 2],
    pub(super) kind: DeviceKind,
    /// Namespace of the emulator's ends of veth pairs.
    pub(super) middle: Option<Namespace>,
}

/// Adds a device to each side, of this kind or of the first one that the system permits.
pub(super) fn add(sides: [&Namespace; 2], mtu: u32, kind: Option<DeviceKind>) -> Result<Devices, NetworkError> {
    match kind {
        Some(DeviceKind::Tun) => add_tun(sides, mtu),
        Some(DeviceKind::Veth) => add_veth(sides, mtu),
        None => match add_tun(sides, mtu) {
            Err(NetworkError::Tun { source: tun }) if is_missing(&tun) => {
                add_veth(sides, mtu).map_err(|error| match error {
                    NetworkError::Veth { source: veth } => NetworkError::NoDevice { tun, veth },
                    other => other,
                })
            }
            tried => tried,
        },
    }
}

/// True if TUN devices are missing or not permitted, for which veth pairs are the answer; false for a lack of descriptors or memory.
fn is_missing(error: &io::Error) -> bool {
    let codes = [libc::EPERM, libc::EACCES, libc::ENOENT, libc::ENODEV, libc::ENXIO];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

const fn system(what: &'static str) -> impl Fn(io::Error) -> NetworkError {
    move |source| NetworkError::System { what, source }
}

/// Runs `what` in a namespace.
fn inside<T: Send>(side: &Namespace, what: impl FnOnce() -> Result<T, NetworkError> + Send) -> Result<T, NetworkError> {
    side.run(|| Ok(what())).map_err(system("enter a network namespace"))?
}

fn add_tun(sides: [&Namespace; 2], mtu: u32) -> Result<Devices, NetworkError> {
    let add = |side: &Namespace| {
        inside(side, || {
            let device = tun::Device::open(TUN).map_err(|source| NetworkError::Tun { source })?;
            let interface = device.interface().map_err(system("find a TUN device"))?;
            interface.set_queue_length(QUEUE).map_err(system("set the queue length of a TUN device"))?;
            configure(&interface, side.address(), mtu)?;
            Ok(Device::Tun(device.into_file()))
        })
    };
    let [client, server] = sides;
    Ok(Devices { devices: [add(client)?, add(server)?], kind: DeviceKind::Tun, middle: None })
}

fn add_veth(sides: [&Namespace; 2], mtu: u32) -> Result<Devices, NetworkError> {
    let middle = Namespace::new(Ipv4Addr::UNSPECIFIED)?;
    let veth = |source| NetworkError::Veth { source };
    let add = |side: &Namespace, name: &str| {
        let end = VethEnd { name: VETH, namespace: side.file().as_fd(), hardware_address: HARDWARE_ADDRESS };
        inside(&middle, || add_veth_pair(name, end).map_err(veth))?;
        let device = inside(&middle, || {
            let interface = Interface::of(name).map_err(system("find a veth device"))?;
            interface.disable_offloads().map_err(system("switch the offloads of a veth device off"))?;
            interface.set_mtu(mtu).map_err(system("set the MTU of a device"))?;
            // A socket of an interface that is down has an error pending.
            interface.set_up().map_err(system("bring up a device"))?;
            PacketSocket::open(&interface, HARDWARE_ADDRESS).map_err(veth)
        })?;
        // The side comes last: nothing is sent that the socket does not see.
        inside(side, || {
            let interface = Interface::of(VETH).map_err(system("find a veth device"))?;
            interface.disable_arp().map_err(system("switch ARP off"))?;
            interface.disable_offloads().map_err(system("switch the offloads of a veth device off"))?;
            configure(&interface, side.address(), mtu)
        })?;
        Ok(Device::Veth(device))
    };
    let [client, server] = sides;
    let devices = [add(client, "client")?, add(server, "server")?];
    Ok(Devices { devices, kind: DeviceKind::Veth, middle: Some(middle) })
}

/// Gives a side's device its MTU and address, and brings it up.
fn configure(interface: &Interface, address: Ipv4Addr, mtu: u32) -> Result<(), NetworkError> {
    interface.set_mtu(mtu).map_err(system("set the MTU of a device"))?;
    interface.add_address(address.into(), PREFIX).map_err(system("give a device its address"))?;
    interface.set_up().map_err(system("bring up a device"))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::{
        super::{CLIENT, SERVER},
        *,
    };

    /// Sides with veth pairs; `None` where the system does not permit them.
    fn veth() -> Option<([Namespace; 2], Devices)> {
        let made = Namespace::new(CLIENT).and_then(|client| {
            let server = Namespace::new(SERVER)?;
            let devices = add_veth([&client, &server], 1_500)?;
            Ok(([client, server], devices))
        });
        match made {
            Ok(made) => Some(made),
            Err(error @ (NetworkError::Namespace { .. } | NetworkError::Veth { .. })) => {
                eprintln!("not tested, since this system refuses: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn packets_that_a_ring_has_no_room_for_are_counted() {
        const ROOM: u64 = 8_192;
        const MORE: u64 = 100;
        let Some(([client, _server], mut devices)) = veth() else { return };
        let [device, _] = &mut devices.devices;
        let socket = client.run(|| UdpSocket::bind((CLIENT, 0))).unwrap();
        for number in 0..ROOM + MORE {
            socket.send_to(&number.to_be_bytes(), (SERVER, 9)).unwrap();
        }
        let mut buffer = [0; 2_000];
        let mut read = 0;
        while let Ok(length) = device.read(&mut buffer) {
            // In their order, with the headers of IPv4 and UDP.
            assert_eq!((length, &buffer[28..36]), (36, &u64::to_be_bytes(read)[..]));
            read += 1;
        }
        assert_eq!((read, device.unread().unwrap()), (ROOM, MORE));
        // Counted once, and there is room again.
        assert_eq!(device.unread().unwrap(), MORE);
        socket.send_to(&[1; 1_472], (SERVER, 9)).unwrap();
        assert_eq!(device.read(&mut buffer).unwrap(), 1_500);
        assert_eq!(device.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_packet_that_the_kernel_does_not_take_is_an_error() {
        let Some((_sides, devices)) = veth() else { return };
        let mut packet = vec![0; 1_501];
        packet[0] = 0x45;
        assert!(devices.devices[0].write(&packet).is_err());
        assert!(devices.devices[0].write(&packet[..1_500]).is_ok());
    }

    #[test]
    fn veth_pairs_are_for_machines_without_tun_devices() {
        for code in [libc::EPERM, libc::EACCES, libc::ENOENT, libc::ENODEV] {
            assert!(is_missing(&io::Error::from_raw_os_error(code)), "{code}");
        }
        for code in [libc::EMFILE, libc::ENOMEM, libc::EBUSY] {
            assert!(!is_missing(&io::Error::from_raw_os_error(code)), "{code}");
        }
    }
}
