//! Open TUN devices by name, and their hand-over in an upgrade.
//!
//! One process reads a device: the newest one. It has sockets to the older ones, through which they get the packets of their tunnels. Each
//! process writes to the device by itself. An address belongs to the process whose tunnel has it; the newer one gives it to nobody until
//! the tunnel's process has ended.

use std::{
    collections::HashMap,
    fs::File,
    io,
    net::IpAddr,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use h3_quic::connect_ip::Prefix;

use super::device::TunDevice;

/// Device of an older process.
pub(crate) struct OfferedDevice {
    pub(crate) file: File,
    /// Sockets to the processes that have tunnels: the one that offers the device, and those before it.
    pub(crate) packets: Vec<UnixDatagram>,
}

/// Device that a newer process may take over, with the descriptors that follow: the file of the device, and a socket to each process.
pub(crate) struct DeviceDescriptors {
    pub(crate) name: String,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Open devices by name. Outlives reloads: a device stays open while a generation or a tunnel has it.
#[derive(Default)]
pub(crate) struct TunDevices {
    open: Mutex<HashMap<String, Weak<TunDevice>>>,
    /// Devices of an older process that no proxy has asked for yet.
    offered: Mutex<HashMap<String, OfferedDevice>>,
}

impl TunDevices {
    /// The device of this name, opened if it is not.
    pub(super) fn open(&self, name: &str, pools: &[Prefix], mtu: u16) -> io::Result<Arc<TunDevice>> {
        let mut devices = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let device = match devices.get(name).and_then(Weak::upgrade) {
            Some(device) => device,
            None => match self.offered.lock().unwrap_or_else(PoisonError::into_inner).remove(name) {
                Some(offered) => Arc::new(TunDevice::take_over(name, offered)?),
                None => Arc::new(TunDevice::open(name)?),
            },
        };
        device.configure(pools, mtu)?;
        devices.retain(|_, device| device.strong_count() > 0);
        devices.insert(name.to_owned(), Arc::downgrade(&device));
        Ok(device)
    }

    /// The open devices with their names.
    fn all(&self) -> Vec<(String, Arc<TunDevice>)> {
        let devices = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        devices.iter().filter_map(|(name, device)| Some((name.clone(), device.upgrade()?))).collect()
    }

    /// Offers all devices to a newer process.
    pub(crate) fn offer(&self) -> io::Result<Vec<DeviceDescriptors>> {
        let offer =
            |(name, device): (String, Arc<TunDevice>)| Ok(DeviceDescriptors { name, descriptors: device.offer()? });
        self.all().into_iter().map(offer).collect()
    }

    /// Leaves devices to the newer process: it reads them, and gives addresses. Returns the addresses in use, by process in the order of
    /// the descriptors.
    pub(crate) fn pause(&self, taken: &[String]) -> Vec<(String, Vec<Vec<IpAddr>>)> {
        let all = self.all().into_iter().filter(|(name, _)| taken.contains(name));
        all.map(|(name, device)| (name, device.pause())).collect()
    }

    /// Reads all devices again, because the newer process does not.
    pub(crate) fn resume(&self) {
        self.all().iter().for_each(|(_, device)| device.resume());
    }

    /// Keeps the devices of an older process for the proxies that ask for them.
    pub(crate) fn set_offered(&self, devices: HashMap<String, OfferedDevice>) {
        *self.offered.lock().unwrap_or_else(PoisonError::into_inner) = devices;
    }

    /// Gives back devices that no proxy has asked for; returns their names.
    pub(crate) fn give_back(&self) -> Vec<String> {
        let left = std::mem::take(&mut *self.offered.lock().unwrap_or_else(PoisonError::into_inner));
        left.into_keys().collect()
    }

    /// Begins to read the devices that were taken over, whose older processes have tunnels with these addresses.
    pub(crate) fn commence(&self, in_use: Vec<(String, Vec<Vec<IpAddr>>)>) -> io::Result<()> {
        let mut in_use: HashMap<String, _> = in_use.into_iter().collect();
        for (name, device) in self.all() {
            device.set_older(in_use.remove(&name).unwrap_or_default());
            device.start()?;
        }
        Ok(())
    }
}
