//! Choice of the devices of an emulated network.

use clap::ValueEnum;
use emu::network::DeviceKind;

/// Value of `--device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum DeviceChoice {
    /// TUN devices, or veth pairs where /dev/net/tun cannot be opened
    #[default]
    Auto,
    /// TUN devices
    Tun,
    /// Veth pairs with packet sockets
    Veth,
}

impl DeviceChoice {
    /// The forced kind, if any.
    pub(super) const fn kind(self) -> Option<DeviceKind> {
        match self {
            Self::Auto => None,
            Self::Tun => Some(DeviceKind::Tun),
            Self::Veth => Some(DeviceKind::Veth),
        }
    }
}
