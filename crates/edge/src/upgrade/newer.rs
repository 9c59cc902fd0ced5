//! Newer process of an upgrade: builds the gateway on the sockets of the older one, and serves when that has stopped.

use std::{
    collections::HashMap,
    fs::File,
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tiderace::{IdGeneration, KeyRing};

use super::{
    UpgradeError,
    channel::{Channel, is_gone},
    messages::{Answer, Built, Commit, Hello, Offer, PROTOCOL, Serving, Taken},
    siblings::SiblingProcess,
};
use crate::{Process, ProcessError, keys, listen::ListenerSockets};

/// The older process answers within this time, or is stuck: it decides how long this one may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Sockets and state of an older process. What is left when the gateway is built stays with that process.
pub(crate) struct TakenOver {
    pub(crate) process: u64,
    pub(crate) id_generation: IdGeneration,
    pub(crate) routable: Option<String>,
    pub(crate) ring: KeyRing,
    pub(crate) configuration: u64,
    pub(crate) workers: u8,
    pub(crate) addresses: HashMap<SocketAddr, ListenerSockets>,
    pub(crate) plain: HashMap<SocketAddr, TcpListener>,
    pub(crate) admin: Option<(String, UnixListener)>,
    pub(crate) metrics: Option<(String, TcpListener)>,
    siblings: Vec<SiblingProcess>,
}

impl TakenOver {
    /// Takes an offer apart. `channel` becomes the stream to the older process.
    fn new(offer: Offer, descriptors: Vec<OwnedFd>, channel: &UnixStream) -> io::Result<Self> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut descriptors = descriptors.into_iter();
        let workers = usize::from(offer.workers);
        let mut addresses = HashMap::new();
        for address in offer.addresses {
            let tcp = descriptors.by_ref().take(workers).map(TcpListener::from).collect();
            let udp = descriptors.by_ref().take(workers).map(UdpSocket::from).collect();
            addresses.insert(address, ListenerSockets { tcp, udp });
        }
        let mut next = || descriptors.next().ok_or_else(|| invalid("descriptors are missing"));
        let mut plain = HashMap::new();
        for address in offer.plain {
            plain.insert(address, next()?.into());
        }
        let admin = offer.admin.map(|path| Ok::<_, io::Error>((path, next()?.into()))).transpose()?;
        let metrics = offer.metrics.map(|address| Ok::<_, io::Error>((address, next()?.into()))).transpose()?;
        let mut siblings = Vec::new();
        let last = offer.siblings.len().saturating_sub(1);
        for (number, sibling) in offer.siblings.iter().enumerate() {
            // The older process itself is at the other end of the channel.
            let control = if number == last { channel.try_clone()? } else { next()?.into() };
            let count: usize = sibling.addresses.iter().map(|(_, shards)| *shards).sum();
            let senders: Vec<_> = (0..count).map(|_| next()).collect::<io::Result<_>>()?;
            siblings.push(SiblingProcess::new(sibling, control, senders.into_iter()));
        }
        Ok(Self {
            process: offer.process,
            id_generation: IdGeneration { number: offer.generation, key: offer.id_key },
            routable: offer.routable,
            ring: KeyRing::parse(&offer.ring).map_err(|error| invalid(&error.to_string()))?,
            configuration: offer.configuration,
            workers: offer.workers,
            addresses,
            plain,
            admin,
            metrics,
            siblings,
        })
    }
}

impl Offer {
    /// Number of descriptors that follow.
    pub(super) fn descriptors(&self) -> usize {
        let shards: usize = self.siblings.iter().flat_map(|sibling| &sibling.addresses).map(|(_, count)| *count).sum();
        let streams = self.siblings.len().saturating_sub(1);
        2 * usize::from(self.workers) * self.addresses.len()
            + self.plain.len()
            + usize::from(self.admin.is_some())
            + usize::from(self.metrics.is_some())
            + shards
            + streams
    }
}

impl Process {
    /// Starts the gateway of the configuration in `file` on the sockets of the process at the other end of `stream`, which started
    /// this one, and returns when it serves. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// As [`start`](Self::start), or when the older process refuses. It continues then.
    pub fn take_over(file: &Path, stream: UnixStream) -> Result<Arc<Self>, ProcessError> {
        let channel = Channel::new(stream);
        let built = Self::build_on(file, &channel);
        let (process, taken, siblings) = match built {
            Ok(built) => built,
            Err(error) => {
                let failed = Built::Failed { error: error.to_string(), hint: error.hint() };
                // It may be gone, and then nobody has to know.
                let _ = channel.send(&failed);
                return Err(error);
            }
        };
        let broken = |error: io::Error| match is_gone(&error) {
            true => UpgradeError::Broken(io::Error::new(error.kind(), "the process that serves has given this one up")),
            false => UpgradeError::Broken(error),
        };
        channel.send(&Built::Ready(taken)).map_err(broken)?;
        let commit: Commit = channel.receive().map_err(broken)?;
        process.siblings().set_handshakes(commit.handshakes);
        *process.siblings().all() = siblings.into_iter().map(Arc::new).collect();
        process.persistent().strikes.begin_after_another(keys::now());
        process.commence();
        if let Err(error) = channel.send(&Serving {}) {
            tracing::warn!("the process before this one is gone: {error}");
        }
        tracing::info!("process {} serves", process.number());
        Ok(process)
    }

    fn build_on(file: &Path, channel: &Channel) -> Result<(Arc<Self>, Taken, Vec<SiblingProcess>), ProcessError> {
        let broken = UpgradeError::Broken;
        channel.set_deadline(Instant::now() + PATIENCE).map_err(broken)?;
        let hello = Hello { from: PROTOCOL, to: PROTOCOL, program: env!("CARGO_PKG_VERSION").to_owned() };
        channel.send(&hello).map_err(broken)?;
        let offer = match channel.receive().map_err(broken)? {
            Answer::Offer(offer) => offer,
            Answer::Refused(error) => return Err(UpgradeError::Refused { error, hint: None }.into()),
        };
        let descriptors = channel.receive_descriptors(offer.descriptors()).map_err(broken)?;
        let mut offered = TakenOver::new(*offer, descriptors, channel.stream()).map_err(broken)?;
        let siblings = std::mem::take(&mut offered.siblings);
        let addresses: Vec<_> = offered.addresses.keys().copied().collect();
        let plain: Vec<_> = offered.plain.keys().copied().collect();
        let admin = offered.admin.is_some();
        let process = Self::build(file, Some(&mut offered))?;
        let taken = Taken {
            addresses: addresses.into_iter().filter(|address| !offered.addresses.contains_key(address)).collect(),
            plain: plain.into_iter().filter(|address| !offered.plain.contains_key(address)).collect(),
            admin: admin && offered.admin.is_none(),
        };
        Ok((process, taken, siblings))
    }
}

/// Returns the stream on the standard input, which is closed then: what the older process has left there for this one.
///
/// # Errors
/// When there is no such socket.
pub fn inherited_stream() -> io::Result<UnixStream> {
    use std::os::fd::AsFd;
    let copy = std::io::stdin().as_fd().try_clone_to_owned()?;
    let stream = UnixStream::from(copy);
    // Whatever else is there has no peer of this kind.
    stream.peer_addr().map_err(|error| {
        io::Error::new(
            error.kind(),
            "there is no process on the standard input to take over from\nhint: `tiderace edge upgrade`",
        )
    })?;
    stream.set_nonblocking(false)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(stream)
}
