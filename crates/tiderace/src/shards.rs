//! One endpoint on several sockets of one address, each with its own driver.
//!
//! The kernel passes a datagram to the shard that its connection ID names. Where it cannot (another system, an old kernel), the receiving
//! shard forwards the datagram through a bounded queue.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    num::NonZeroU8,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use bytes::BytesMut;
use tokio::sync::mpsc;
use transport::{Datagram, Endpoint, EndpointConfig};

/// Datagrams that wait to be taken over by a shard.
const INBOX: usize = 256;
/// Datagrams taken over before the shard's own socket gets its turn.
const TAKEN_PER_PASS: usize = 64;

/// Number of sockets of an endpoint, each with its own thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    pub(crate) count: NonZeroU8,
    pub(crate) steered: bool,
}

impl Shards {
    /// Shards of this number.
    pub fn new(count: NonZeroU8) -> Self {
        Self { count, steered: true }
    }

    /// One shard for each processor.
    pub fn per_core() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        Self::new(NonZeroU8::new(u8::try_from(cores).unwrap_or(u8::MAX)).unwrap_or(NonZeroU8::MIN))
    }

    /// Leaves the choice of socket to the kernel's hash; shards forward misrouted datagrams. For measurements of steering; systems without
    /// steering behave like this.
    #[must_use]
    pub fn without_steering(self) -> Self {
        Self { steered: false, ..self }
    }
}

impl Default for Shards {
    /// One socket, driven by a task of the caller's runtime.
    fn default() -> Self {
        Self::new(NonZeroU8::MIN)
    }
}

/// Configurations of all shards: one ring, so that tokens and resets are valid at each; separate streams of randomness and connection IDs.
pub(crate) fn configs(config: EndpointConfig, count: u8) -> io::Result<Vec<EndpointConfig>> {
    let mut configs = Vec::with_capacity(count.into());
    for shard in 1..count {
        let ids = config.ids.for_shard(shard).ok_or_else(|| {
            let reason = "the layout of connection IDs does not name shards\nhint: give it `for_shard`";
            io::Error::new(io::ErrorKind::InvalidInput, reason)
        })?;
        configs.push(EndpointConfig {
            seed: config.seed.child("shard", shard.into()),
            ids,
            ring: config.ring.clone(),
            used_tokens: config.used_tokens.clone(),
            memory: config.memory.clone(),
        });
    }
    configs.insert(0, config);
    Ok(configs)
}

/// Sockets of all shards, with the kernel's program for the choice among them.
#[cfg(target_os = "linux")]
pub(crate) fn sockets(
    address: SocketAddr,
    shards: Shards,
    config: &EndpointConfig,
    has_balancers: bool,
) -> io::Result<Vec<UdpSocket>> {
    let sockets = crate::reuseport::bind(address, shards.count.get())?;
    if shards.steered {
        let place = config.ids.shard_place().map(|place| (place, config.ids.len()));
        if place.is_some() || has_balancers {
            crate::reuseport::steer(&sockets[0], place, shards.count.get())?;
        }
        if place.is_none() {
            tracing::info!("connection IDs do not show the shard: datagrams of clients are handed over between shards");
        }
    }
    Ok(sockets)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn sockets(_: SocketAddr, _: Shards, _: &EndpointConfig, _: bool) -> io::Result<Vec<UdpSocket>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "several shards need SO_REUSEPORT as Linux has it"))
}

/// Sockets that have joined those that were taken over, once there are any.
pub(crate) type Joined = Arc<OnceLock<Vec<UdpSocket>>>;

/// A driver's link to the shards beside it.
pub(crate) struct ShardLink {
    inbox: mpsc::Receiver<Datagram>,
    inboxes: Arc<[mpsc::Sender<Datagram>]>,
    /// All sockets stay open while any shard works: the kernel's numbers of sockets follow from which ones are open.
    _sockets: Arc<[UdpSocket]>,
    _joined: Joined,
}

impl ShardLink {
    /// The links of all shards.
    pub(crate) fn all(sockets: &[UdpSocket], joined: &Joined) -> io::Result<Vec<Self>> {
        let copies = sockets.iter().map(UdpSocket::try_clone).collect::<io::Result<Arc<[_]>>>()?;
        let (inboxes, receivers): (Vec<_>, Vec<_>) = sockets.iter().map(|_| mpsc::channel(INBOX)).unzip();
        let inboxes: Arc<[_]> = inboxes.into();
        let link = |inbox| Self { inbox, inboxes: inboxes.clone(), _sockets: copies.clone(), _joined: joined.clone() };
        Ok(receivers.into_iter().map(link).collect())
    }

    /// Takes datagrams that other shards received for this one. `true` when there may be more; otherwise the next one wakes the
    /// task of `cx`.
    pub(crate) fn receive(&mut self, cx: &mut Context<'_>, mut take: impl FnMut(Datagram)) -> bool {
        for _ in 0..TAKEN_PER_PASS {
            match self.inbox.poll_recv(cx) {
                Poll::Ready(Some(datagram)) => take(datagram),
                Poll::Ready(None) | Poll::Pending => return false,
            }
        }
        true
    }

    /// The shard of a hint, where it is not `own`.
    pub(crate) fn other(&self, hint: u8, own: u8) -> Option<usize> {
        let shard = usize::from(hint) % self.inboxes.len();
        (shard != usize::from(own)).then_some(shard)
    }

    /// Hands a datagram to a shard. `false` when it finds no room.
    pub(crate) fn send(&self, shard: usize, datagram: Datagram) -> bool {
        // A queue of them must not keep buffers in memory that they do not fill.
        let payload = BytesMut::from(&datagram.payload[..]);
        self.inboxes.get(shard).is_some_and(|inbox| inbox.try_send(Datagram { payload, ..datagram }).is_ok())
    }

    /// Hands misrouted datagrams to their shards; returns how many found no room.
    pub(crate) fn hand_over(&mut self, endpoint: &mut Endpoint) -> u64 {
        let mut dropped = 0;
        while let Some((shard, datagram)) = endpoint.poll_misrouted() {
            let sent = self.inboxes.get(usize::from(shard)).is_some_and(|inbox| inbox.try_send(datagram).is_ok());
            dropped += u64::from(!sent);
        }
        dropped
    }
}
