//! Socket activation: listening sockets that the service manager has opened (sd_listen_fds(3)).
//!
//! They outlive the process. While it restarts, the kernel queues connections and Initials in them.
//!
//! 1. [`ActivationSockets::from_environment`] takes the descriptors, and checks the kind of each socket.
//! 2. `assign` gives each to the address of the configuration to which it is bound. One that fits none is an error: nobody would read it.
//! 3. `Listener` and `PlainListener` serve on them as on the sockets that an older process hands over.

use std::{
    collections::HashMap,
    fmt, io,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use tiderace::Endpoint;

use crate::worker::TakenCount;

/// Environment variables of socket activation.
pub(crate) const VARIABLES: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Transport protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SocketKind {
    /// A listening TCP socket.
    Tcp,
    /// A UDP socket.
    Udp,
}

impl fmt::Display for SocketKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

impl SocketKind {
    /// Setting of a socket unit.
    fn setting(self) -> &'static str {
        match self {
            Self::Tcp => "ListenStream",
            Self::Udp => "ListenDatagram",
        }
    }
}

/// Sockets of the service manager that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActivationError {
    /// The environment does not name open descriptors.
    #[error("the sockets of the service manager cannot be taken: {0}")]
    Environment(#[source] io::Error),
    /// A descriptor that is no socket for clients.
    #[error("descriptor {descriptor} ({name}) of the service manager is {what}")]
    Unsuitable {
        /// Number of the descriptor.
        descriptor: RawFd,
        /// Name that the service manager gives it.
        name: String,
        /// Kind of the descriptor.
        what: &'static str,
    },
    /// A socket whose address is not in the configuration.
    #[error(
        "descriptor {descriptor} ({name}) of the service manager is for {kind} at {address}, which is not in the configuration ({configured})"
    )]
    Unconfigured {
        /// Number of the descriptor.
        descriptor: RawFd,
        /// Name that the service manager gives it.
        name: String,
        /// Protocol of the socket.
        kind: SocketKind,
        /// Local address of the socket.
        address: SocketAddr,
        /// Addresses of the configuration.
        configured: String,
    },
    /// More sockets at an address than can be read.
    #[error("the service manager has opened {count} {kind} sockets at {address}, and at most {most} can be used")]
    TooMany {
        /// Protocol of the sockets.
        kind: SocketKind,
        /// Address of the sockets.
        address: SocketAddr,
        /// Number of sockets.
        count: usize,
        /// Largest number.
        most: usize,
    },
    /// Several UDP sockets of which one would get all packets.
    #[error("the service manager has opened {count} UDP sockets at {address} without SO_REUSEPORT")]
    NotShared {
        /// Address of the sockets.
        address: SocketAddr,
        /// Number of sockets.
        count: usize,
    },
    /// Different numbers of UDP sockets, beside which this user cannot open others.
    #[error("the service manager has opened {count} UDP sockets at {address}, and {most} at another address")]
    Uneven {
        /// Address with fewer sockets.
        address: SocketAddr,
        /// Number of sockets.
        count: usize,
        /// Number at another address.
        most: usize,
    },
}

impl ActivationError {
    /// Advice for the operator.
    pub fn hint(&self) -> String {
        match self {
            Self::Environment(_) => {
                "LISTEN_FDS is the number of open descriptors from 3 on, and LISTEN_FDNAMES has a name for each (sd_listen_fds(3))".to_owned()
            }
            Self::Unsuitable { .. } => "a socket unit has ListenStream= and ListenDatagram= with IP addresses, and Accept=no".to_owned(),
            Self::Unconfigured { kind, .. } => {
                format!("write the same address in `listen` and in {}= of the socket unit", kind.setting())
            }
            Self::TooMany { kind: SocketKind::Udp, most, .. } => {
                format!("write ListenDatagram= for each worker, {most} times, or set `workers`: packets in the others would be lost")
            }
            Self::TooMany { kind: SocketKind::Tcp, .. } => {
                "write ListenStream= once: the workers share the socket".to_owned()
            }
            Self::NotShared { .. } => "ReusePort=yes in the socket unit".to_owned(),
            Self::Uneven { most, .. } => format!("write ListenDatagram= {most} times for each address"),
        }
    }
}

/// Listening sockets of the service manager.
#[derive(Debug, Default)]
pub struct ActivationSockets(Vec<ActivationSocket>);

/// One of them.
#[derive(Debug)]
struct ActivationSocket {
    descriptor: RawFd,
    name: String,
    address: SocketAddr,
    kind: SocketKind,
    socket: OwnedFd,
}

/// Sockets of an address of the configuration.
#[derive(Debug, Default)]
pub(crate) struct AddressSockets {
    pub(crate) tcp: Vec<TcpListener>,
    pub(crate) udp: Vec<UdpSocket>,
}

/// Sockets of the service manager by the addresses of the configuration.
#[derive(Debug, Default)]
pub(crate) struct AssignedSockets {
    /// With TLS.
    pub(crate) secure: HashMap<SocketAddr, AddressSockets>,
    /// Plain HTTP.
    pub(crate) plain: HashMap<SocketAddr, TcpListener>,
}

impl ActivationSockets {
    /// Takes the sockets that the environment names for this process; none if there are none, or they are for another process. Must be called
    /// before the program opens its first descriptor, which the environment could name by mistake. A second call returns none.
    ///
    /// # Errors
    /// When the environment names something else.
    pub fn from_environment() -> Result<Self, ActivationError> {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        if TAKEN.swap(true, Ordering::Relaxed) {
            return Ok(Self::default());
        }
        let count = sd_notify::listen_fds().map_err(ActivationError::Environment)?.len();
        // The names may be those of another process.
        if count == 0 {
            return Ok(Self::default());
        }
        let all = sd_notify::listen_fds_with_names().map_err(ActivationError::Environment)?;
        let take = |(descriptor, name)| {
            #[expect(unsafe_code, reason = "the environment has the numbers of descriptors")]
            // SAFETY: the descriptor is open, since its flags were set. It came with the program, and this function takes it once.
            let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
            ActivationSocket::new(name, socket)
        };
        all.map(take).collect::<Result<_, _>>().map(Self)
    }

    /// Gives each socket to its address: `secure` ones with TLS, and `plain` ones, which have only TCP.
    pub(crate) fn assign(
        self,
        secure: &[SocketAddr],
        plain: &[SocketAddr],
    ) -> Result<AssignedSockets, ActivationError> {
        let mut assigned = AssignedSockets::default();
        for ActivationSocket { descriptor, name, address, kind, socket } in self.0 {
            let has_ipv4 = || secure.iter().chain(plain).any(|other| other.is_ipv4() && other.port() == address.port());
            let is_ipv6_only = address.ip().is_unspecified() && sockopt::ipv6_v6only(&socket).unwrap_or(false);
            let takes_no_ipv4 = is_ipv6_only && !has_ipv4();
            let (is_secure, is_plain) = (secure.contains(&address), plain.contains(&address));
            match kind {
                SocketKind::Tcp if is_secure => {
                    assigned.secure.entry(address).or_default().tcp.push(socket.into());
                }
                SocketKind::Udp if is_secure => {
                    assigned.secure.entry(address).or_default().udp.push(socket.into());
                }
                SocketKind::Tcp if is_plain => {
                    if assigned.plain.insert(address, socket.into()).is_some() {
                        return Err(ActivationError::TooMany { kind, address, count: 2, most: 1 });
                    }
                }
                _ => {
                    let configured = secure.iter().chain(plain).map(ToString::to_string).collect::<Vec<_>>().join(", ");
                    return Err(ActivationError::Unconfigured { descriptor, name, kind, address, configured });
                }
            }
            if takes_no_ipv4 {
                tracing::warn!(
                    "the service manager's {kind} socket at {address} takes no IPv4: BindIPv6Only=both in the socket unit"
                );
            }
            tracing::info!("{kind} at {address}: descriptor {descriptor} ({name}) of the service manager");
        }
        assigned.check_groups()?;
        assigned.log_others(secure, plain);
        Ok(assigned)
    }
}

impl ActivationSocket {
    /// Checks a socket. Its calls do not block from here on.
    fn new(name: String, socket: OwnedFd) -> Result<Self, ActivationError> {
        let descriptor = socket.as_raw_fd();
        match examine(&socket) {
            Ok((kind, address)) => Ok(Self { descriptor, name, address, kind, socket }),
            Err(what) => Err(ActivationError::Unsuitable { descriptor, name, what }),
        }
    }
}

/// Kind and local address of a socket for clients, or what else it is.
fn examine(socket: &OwnedFd) -> Result<(SocketKind, SocketAddr), &'static str> {
    let Ok(kind) = sockopt::socket_type(socket) else { return Err("no socket") };
    let family = sockopt::socket_domain(socket);
    if !family.is_ok_and(|family| matches!(family, AddressFamily::INET | AddressFamily::INET6)) {
        return Err("a socket without an IP address");
    }
    let protocol = sockopt::socket_protocol(socket).ok().flatten();
    let kind = match (kind, protocol) {
        (SocketType::STREAM, Some(ipproto::TCP)) => SocketKind::Tcp,
        (SocketType::DGRAM, Some(ipproto::UDP)) => SocketKind::Udp,
        _ => return Err("a socket of a protocol other than TCP and UDP"),
    };
    if kind == SocketKind::Tcp && !sockopt::socket_acceptconn(socket).unwrap_or(false) {
        return Err("a TCP socket that does not listen");
    }
    if rustix::net::getpeername(socket).is_ok_and(|peer| peer.is_some()) {
        return Err("a UDP socket that is connected to one client");
    }
    let address = rustix::net::getsockname(socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
    let Some(address) = address else { return Err("a socket without an address") };
    if rustix::io::ioctl_fionbio(socket, true).is_err() {
        return Err("a socket that blocks");
    }
    Ok((kind, address))
}

impl AssignedSockets {
    /// Checks that the kernel spreads packets over several UDP sockets: SO_REUSEADDR, which systemd sets, lets them have one address as well.
    fn check_groups(&self) -> Result<(), ActivationError> {
        for (address, AddressSockets { udp, .. }) in &self.secure {
            let is_shared = |socket: &UdpSocket| sockopt::socket_reuseport(socket).unwrap_or(false);
            if udp.len() > 1 && !udp.iter().all(is_shared) {
                return Err(ActivationError::NotShared { address: *address, count: udp.len() });
            }
        }
        Ok(())
    }

    /// Logs the sockets that the gateway opens itself, beside those of the service manager.
    fn log_others(&self, secure: &[SocketAddr], plain: &[SocketAddr]) {
        if self.secure.is_empty() && self.plain.is_empty() {
            return;
        }
        let log = |kind: SocketKind, address: &SocketAddr| tracing::info!("{kind} at {address}: opened by the gateway");
        for address in secure {
            let of_address = self.secure.get(address);
            if of_address.is_none_or(|sockets| sockets.tcp.is_empty()) {
                log(SocketKind::Tcp, address);
            }
            if of_address.is_none_or(|sockets| sockets.udp.is_empty()) {
                log(SocketKind::Udp, address);
            }
        }
        for address in plain.iter().filter(|address| !self.plain.contains_key(address)) {
            log(SocketKind::Tcp, address);
        }
    }

    /// The number of UDP sockets at each address, and whether more may join them; `None` without any.
    pub(crate) fn count(&self) -> Result<Option<TakenCount>, ActivationError> {
        let counts = || self.secure.iter().map(|(address, sockets)| (*address, sockets.udp.len()));
        let Some(most) = counts().map(|(_, count)| count).max().filter(|most| *most > 0) else { return Ok(None) };
        let may_join = |socket: &UdpSocket| Endpoint::may_join(socket).unwrap_or(false);
        let may_grow = self.secure.values().flat_map(|sockets| &sockets.udp).all(may_join);
        if !may_grow && let Some((address, count)) = counts().find(|(_, count)| *count != 0 && *count != most) {
            return Err(ActivationError::Uneven { address, count, most });
        }
        Ok(Some(TakenCount { sockets: most, may_grow }))
    }

    /// Checks that each socket has a worker that reads it. `sockets` is the number of sockets of each kind at an address.
    pub(crate) fn check_workers(&self, workers: usize, sockets: usize) -> Result<(), ActivationError> {
        for (address, AddressSockets { tcp, udp }) in &self.secure {
            let limits = [(SocketKind::Udp, udp.len(), workers), (SocketKind::Tcp, tcp.len(), sockets.min(workers))];
            if let Some((kind, count, most)) = limits.into_iter().find(|(_, count, most)| count > most) {
                return Err(ActivationError::TooMany { kind, address: *address, count, most });
            }
        }
        Ok(())
    }
}
