//! Participants of a simulation: nodes and the datagrams between them.

use core::net::SocketAddr;

use bytes::BytesMut;
use netem::Ecn;
use units::Instant;

/// One UDP datagram, or a batch of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Source address.
    pub from: SocketAddr,
    /// Destination address.
    pub to: SocketAddr,
    /// The ECN bits of the IP header.
    pub ecn: Ecn,
    /// The UDP payload. The bytes are moved from node to node, never copied (except for a packet that the network
    /// duplicates).
    pub payload: BytesMut,
    /// A batch, as with generic segmentation offload: the payload is cut into packets of this many bytes (the last one
    /// may be shorter) where it enters the network. Always `None` on arrival.
    pub segment_size: Option<usize>,
    /// A mark for tests, copied into `PacketMeta::tag`. It does not travel: zero on arrival.
    pub tag: u64,
}

impl Datagram {
    /// A single datagram without ECN.
    pub fn new(from: SocketAddr, to: SocketAddr, payload: BytesMut) -> Self {
        Self { from, to, ecn: Ecn::NotEct, payload, segment_size: None, tag: 0 }
    }
}

/// Takes part in a simulation.
///
/// The simulation calls [`handle`](Self::handle) when a datagram arrives or the deadline has passed, and reads [`deadline`](Self::deadline)
/// and [`finished`](Self::finished) after each call.
pub trait Node {
    /// Takes an event: a datagram arrives, or (`None`) the deadline has come, or the node is started. Datagrams to be
    /// sent go into `out`. A call may come without a reason; it must then do no harm.
    fn handle(&mut self, now: Instant, datagram: Option<Datagram>, out: &mut Outbox);

    /// Deadline of the next call if nothing arrives before, and the reason (to explain a stall). A deadline in the past means at once; a
    /// node that repeatedly asks for "at once" is stopped with an error that names it.
    fn deadline(&self) -> Option<(Instant, &'static str)>;

    /// Returns whether the node is finished. The simulation ends when all are.
    fn finished(&self) -> bool;
}

impl<T: Node + ?Sized> Node for Box<T> {
    fn handle(&mut self, now: Instant, datagram: Option<Datagram>, out: &mut Outbox) {
        (**self).handle(now, datagram, out);
    }
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        (**self).deadline()
    }
    fn finished(&self) -> bool {
        (**self).finished()
    }
}

/// Outgoing datagrams of a node. Sent when the call returns, in this order, all at the same instant.
#[derive(Debug, Default)]
pub struct Outbox {
    pub(crate) datagrams: Vec<Datagram>,
}

impl Outbox {
    /// An empty one, for driving a node by hand in a test.
    pub const fn new() -> Self {
        Self { datagrams: Vec::new() }
    }

    /// Sends a datagram or a batch.
    #[inline]
    pub fn send(&mut self, datagram: Datagram) {
        self.datagrams.push(datagram);
    }

    /// Number of datagrams or batches that wait here.
    pub fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Returns whether nothing was sent.
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Takes out the datagrams sent, for a node that wraps another one and for tests.
    pub fn drain(&mut self) -> impl Iterator<Item = Datagram> {
        self.datagrams.drain(..)
    }
}
