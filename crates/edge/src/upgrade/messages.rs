//! Messages of the hand-over protocol, in their order: [`Hello`], [`Answer`], [`Built`], [`Commit`], [`Serving`].
//!
//! The version covers more than these: the layout of connection IDs, and the form of datagrams between processes.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use tiderace::{
    RoutableConfig,
    transport::quic_lb::{QuicLbParameters, ServerId},
};

use crate::worker_panics::PanicHistory;

/// Version of the hand-over protocol.
pub const PROTOCOL: u32 = 5;

/// Oldest version with which a hand-over works: it has no TUN devices.
pub(crate) const OLDEST: u32 = 2;
/// Version from which on TUN devices are offered.
pub(crate) const WITH_DEVICES: u32 = 3;
/// Version from which on tables of kernel steering are offered. Those of version 4 have room for one number of workers only.
pub(crate) const WITH_STEERING: u32 = 5;

/// First message of the newer process. Its form is the same in all versions.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Oldest version of the protocol that it speaks.
    pub(crate) from: u32,
    /// Newest version.
    pub(crate) to: u32,
    /// Version of the program.
    pub(crate) program: String,
}

/// Answer of the older process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// No version in common.
    Refused(String),
    /// State and sockets, whose descriptors follow.
    Offer(Box<Offer>),
}

/// State of the older process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Version of the protocol from here on.
    pub(crate) protocol: u32,
    /// Number of the newer process: one more than that of the older one.
    pub(crate) process: u64,
    /// Generation in the connection IDs of the newer process.
    pub(crate) generation: u8,
    /// Key of the checks in connection IDs.
    pub(crate) id_key: [u8; 16],
    /// Form of connection IDs for load balancers.
    pub(crate) routable: Option<String>,
    /// Forms before, which are still read.
    // Programs that do not send it have the same version of the protocol.
    #[serde(default)]
    pub(crate) routable_before: Vec<String>,
    /// Other machines read the connection IDs of this one, all in one form.
    // Programs that do not send it may be such a machine.
    #[serde(default = "yes")]
    pub(crate) read_by_others: bool,
    /// Ring of keys, as in a file.
    pub(crate) ring: String,
    /// Number of the next configuration.
    pub(crate) configuration: u64,
    /// Number of sockets of each kind at an address. Programs before version 5 have one for each worker.
    #[serde(rename = "workers")]
    pub(crate) sockets: u8,
    /// Sockets of each address: TCP, then UDP.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Addresses whose UDP sockets have none of older processes beside them.
    // Programs before version 5 do not tell.
    #[serde(default)]
    pub(crate) alone: Vec<SocketAddr>,
    /// Addresses of plain HTTP.
    pub(crate) plain: Vec<SocketAddr>,
    /// Path of the admin socket.
    pub(crate) admin: Option<String>,
    /// Address of the metrics.
    pub(crate) metrics: Option<String>,
    /// Processes that end their connections, the older one of this hand-over last.
    pub(crate) siblings: Vec<SiblingOffer>,
    /// Panics of workers so far.
    // Programs that do not send it have the same version of the protocol.
    #[serde(default)]
    pub(crate) panics: PanicHistory,
    /// TUN devices of proxies for IP packets.
    #[serde(default)]
    pub(crate) devices: Vec<DeviceOffer>,
    /// Addresses whose tables of kernel steering follow.
    #[serde(default)]
    pub(crate) steered: Vec<SocketAddr>,
}

/// TUN device: its file, and a socket to each process that has tunnels.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DeviceOffer {
    pub(crate) name: String,
    pub(crate) processes: usize,
}

/// Another process: a stream to it, unless it is the older one itself, and the ways to its shards.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SiblingOffer {
    pub(crate) process: u64,
    pub(crate) generation: u8,
    pub(crate) pid: u32,
    /// Addresses with the number of their shards.
    pub(crate) addresses: Vec<(SocketAddr, usize)>,
}

/// Second message of the newer process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Built {
    /// All of it works.
    Ready(Taken),
    /// Reason why it does not.
    Failed {
        error: String,
        hint: Option<String>,
        // Programs that do not send it have the same version of the protocol.
        #[serde(default)]
        cause: RefusalCause,
    },
}

/// Part of a gateway that the new program of an upgrade cannot set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RefusalCause {
    /// The configuration is not valid, or needs a file that is not.
    Configuration,
    /// An address or the admin socket cannot be served.
    Listener,
    /// Connection IDs would change their form.
    ConnectionIds,
    /// Threads, keys of the process, or another part of the gateway.
    Setup,
    /// The hand-over failed.
    HandOver,
    /// The new program does not tell, or has another cause.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Accepted parts of an offer; the older process keeps the others, and drains them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) plain: Vec<SocketAddr>,
    pub(crate) admin: bool,
    /// Names of TUN devices.
    #[serde(default)]
    pub(crate) devices: Vec<String>,
}

/// The older process has stopped reading and accepting.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Commit {
    /// Connection IDs of handshakes in progress in older processes.
    pub(crate) handshakes: Vec<HandshakeOffer>,
    /// Addresses of tunnels by TUN device, and by process in the order of its sockets.
    #[serde(default)]
    pub(crate) tunnels: Vec<(String, Vec<Vec<IpAddr>>)>,
}

/// Connection ID of a handshake, and where it is in progress.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HandshakeOffer {
    pub(crate) address: SocketAddr,
    pub(crate) generation: u8,
    pub(crate) shard: u8,
    pub(crate) len: u8,
    pub(crate) id: [u8; 20],
}

/// The newer process serves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Serving {}

fn yes() -> bool {
    true
}

/// Form of connection IDs for load balancers: processes that differ in it cannot find each other's connections.
pub(crate) fn describe(routable: Option<&RoutableConfig>) -> Option<String> {
    let RoutableConfig { parameters, server_id } = routable?;
    let key = u128::from_be_bytes(parameters.key.unwrap_or_default());
    Some(format!("{} {server_id} {} {key:032x}", parameters.config_id, parameters.nonce_len))
}

/// Form of connection IDs as [`describe`] writes it.
pub(crate) fn read_description(text: &str) -> Option<RoutableConfig> {
    let mut words = text.split(' ');
    let config_id = words.next()?.parse().ok()?;
    let server_id: ServerId = words.next()?.parse().ok()?;
    let nonce_len = words.next()?.parse().ok()?;
    let key = u128::from_str_radix(words.next()?, 16).ok()?.to_be_bytes();
    let server_id_len = server_id.as_slice().len();
    let parameters = QuicLbParameters { config_id, server_id_len, nonce_len, key: Some(key), encodes_len: false };
    Some(RoutableConfig { parameters, server_id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_connection_ids_are_read_as_they_were_written() {
        let parameters =
            QuicLbParameters { config_id: 5, server_id_len: 2, nonce_len: 14, key: Some([7; 16]), encodes_len: false };
        let config = RoutableConfig { parameters, server_id: "0a01".parse().unwrap() };
        let text = describe(Some(&config)).unwrap();
        assert_eq!(read_description(&text), Some(config));
        assert_eq!(read_description(&text[..10]), None);
    }
}
