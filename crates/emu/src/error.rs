//! Errors of a relay that could not start or had to stop.

use std::{io, net::SocketAddr};

/// Error of a relay that could not start or had to stop. Prints the failed operation; [`Self::hint`] has advice.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The address to listen on cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// No route to the server.
    #[error("cannot send to {address}: {source}")]
    Target {
        /// The server.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The settings of a link contradict themselves.
    #[error("{direction}: {source}")]
    Link {
        /// `up` or `down`.
        direction: &'static str,
        /// The fault.
        source: netem::ConfigError,
    },
    /// The relay computes a packet's way when it arrives, which such a queue does not allow.
    #[error("{direction}: CoDel and FQ-CoDel work in the simulator; the relay has drop-tail queues only")]
    ManagedQueue {
        /// `up` or `down`.
        direction: &'static str,
    },
    /// A rebinding is to change the address, and this machine has no second address that the server would answer to.
    #[error("rebinding {index} of the NAT changes the address; the relay can do that for a server on 127.0.0.0/8 only")]
    OtherAddress {
        /// Number of the rebinding, from 0.
        index: usize,
    },
    /// Another system call that a relay needs failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The attempt.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// The relay's thread has panicked. A fault of this program.
    #[error("the relay has stopped because of a fault of its own")]
    Fault,
    /// Another system than Linux.
    #[error("the relay needs Linux")]
    Unsupported,
}

impl RelayError {
    /// Hint for the person at the keyboard.
    pub fn hint(&self) -> Option<&'static str> {
        let (Self::Listen { source, .. } | Self::Target { source, .. } | Self::System { source, .. }) = self else {
            return None;
        };
        match source.kind() {
            io::ErrorKind::AddrInUse => Some("another program has this port; choose another one, or port 0 for any"),
            io::ErrorKind::AddrNotAvailable => Some("no network interface of this machine has this address"),
            io::ErrorKind::PermissionDenied => Some("ports below 1024 are reserved; choose a higher one"),
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
                Some("this machine has no route to the address")
            }
            io::ErrorKind::InvalidInput => Some("give an address and a port that is not 0"),
            _ => None,
        }
    }
}
