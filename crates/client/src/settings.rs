//! Settings of a client.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use capture::PacketFile;
use rustls::KeyLog;
use tiderace::transport::{memory::ProcessBudget, observe::ObserverFactory};
use tokio::net::TcpStream;

use crate::{
    local::LocalAddress,
    network_changes::NetworkChanges,
    packets::PacketKeys,
    race::Plan,
    resolve::{KnownAddresses, RECORD_DELAY},
    roaming::OtherNetworks,
    timeouts::Timeouts,
    tls::{ClientIdentity, Trust},
};

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Roots that the client trusts.
    pub trust: Trust,
    /// Certificate that servers get that ask for one.
    pub identity: Option<ClientIdentity>,
    /// Name server for all queries, in place of the system's.
    pub dns: Option<SocketAddr>,
    /// Further wait for the HTTPS record when there are addresses.
    pub record_delay: Duration,
    /// Requests with a safe method and without content leave as early data when a session is resumed (RFC 8470).
    pub early_data: bool,
    /// Keep the tickets of QUIC in this file, for the next process. Needs a build with the feature `boringssl`; without a file
    /// tickets are kept in memory.
    pub tickets: Option<PathBuf>,
    /// Keep NAT mappings of open connections alive, by PINGs whose distance follows from measurements. The first silence is
    /// this long, and each is at most half of the idle timeout. `None`: an unused connection ends.
    pub keep_alive: Option<Duration>,
    /// Idle timeout: connections end after this time without received packets; servers may request less.
    pub idle_timeout: Duration,
    /// Head start of QUIC over TCP where the path is not known, and the wait for an answer on a silent path before TCP takes
    /// part. It is about what a fall-back costs.
    pub head_start: Duration,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Memory budget of all QUIC connections, which other clients may share.
    pub memory: ProcessBudget,
    /// Source of this host's address: when it changes, open connections migrate.
    pub local_address: LocalAddress,
    /// Notices that addresses or routes of this host have changed, upon which connections ask `local_address` at once.
    pub network_changes: NetworkChanges,
    /// Use of networks that the system has not chosen.
    pub other_networks: OtherNetworks,
    /// Versions of HTTP that are offered over TCP.
    pub tcp_versions: TcpVersions,
    /// Addresses of hosts and ports that are not looked up. There is no HTTPS record for them.
    pub addresses: Vec<KnownAddresses>,
    /// Write the secrets of connections into the file that `SSLKEYLOGFILE` names, where that is set. Readers of the file can decrypt
    /// captured packets.
    pub key_log: bool,
    /// Flow control window of QUIC, of a stream and of a connection, which does not grow. `None`: the windows follow the rate.
    pub receive_window: Option<u64>,
    /// Observers of connections.
    pub watch: Watch,
}

/// Observers of connections.
#[derive(Clone, Default)]
pub struct Watch {
    /// Observes each connection over QUIC.
    pub observe: Option<Arc<dyn ObserverFactory>>,
    /// File for UDP packets and the keys of all connections. Its readers can decrypt the content.
    pub packets: Option<Arc<PacketFile>>,
    /// Observer of TCP sockets, called when a socket is connected, before TLS: for the kernel's statistics.
    pub tcp: Option<Arc<dyn TcpObserver>>,
}

/// Observer of connections over TCP.
pub trait TcpObserver: Send + Sync {
    /// The socket is connected. It belongs to the client: an observer duplicates the descriptor to read statistics later.
    fn connected(&self, stream: &TcpStream);
}

impl<F: Fn(&TcpStream) + Send + Sync> TcpObserver for F {
    fn connected(&self, stream: &TcpStream) {
        self(stream);
    }
}

impl core::fmt::Debug for Watch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (observed, tcp) = (self.observe.is_some(), self.tcp.is_some());
        f.debug_struct("Watch").field("observed", &observed).field("packets", &self.packets).field("tcp", &tcp).finish()
    }
}

impl Settings {
    /// Checks of the server, and what it gets of the client.
    pub(crate) fn authentication(&self) -> (&Trust, Option<&ClientIdentity>) {
        (&self.trust, self.identity.as_ref())
    }

    /// Destination of the secrets of connections.
    pub(crate) fn keys(&self) -> Option<Arc<dyn KeyLog>> {
        let file = self.key_log.then(|| Arc::new(rustls::KeyLogFile::new()) as Arc<dyn KeyLog>);
        match &self.watch.packets {
            Some(packets) => Some(Arc::new(PacketKeys::new(packets.clone(), file))),
            None => file,
        }
    }
}

/// Versions of HTTP that a client offers over TCP (RFC 7301).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcpVersions {
    /// HTTP/2, and HTTP/1.1 where the server has no other.
    #[default]
    Both,
    /// HTTP/2 only.
    Http2,
    /// HTTP/1.1 only.
    Http11,
}

impl TcpVersions {
    pub(crate) const fn protocols(self) -> &'static [&'static [u8]] {
        match self {
            Self::Both => &[b"h2", b"http/1.1"],
            Self::Http2 => &[b"h2"],
            Self::Http11 => &[b"http/1.1"],
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            trust: Trust::Platform,
            identity: None,
            dns: None,
            record_delay: RECORD_DELAY,
            early_data: true,
            tickets: None,
            keep_alive: None,
            idle_timeout: Duration::from_secs(30),
            head_start: Plan::default().head_start,
            timeouts: Timeouts::default(),
            memory: ProcessBudget::default(),
            local_address: LocalAddress::default(),
            network_changes: NetworkChanges::default(),
            other_networks: OtherNetworks::default(),
            tcp_versions: TcpVersions::default(),
            addresses: Vec::new(),
            key_log: false,
            receive_window: None,
            watch: Watch::default(),
        }
    }
}
