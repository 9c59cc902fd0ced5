//! Context IDs of a tunnel, as one of its ends knows them.
//!
//! Every capsule of the other end passes [`Contexts::take`], which appends the answers. What the other end can make this one hold is
//! bounded: open contexts by a limit, and the IDs of closed ones by a number of ranges. A registration beyond either is rejected.

use std::{collections::BTreeMap, net::SocketAddr};

use super::{BoundFault, Compression, ContextHeader, ids::UsedIds, payload};
use crate::connect_udp::MAX_PAYLOAD;

/// Ranges of IDs that the other end has used. One that allocates in order has one.
const MAX_RANGES: usize = 256;
/// Memory of an open context: its entries by ID and by peer.
const CONTEXT: usize = 192;
/// Memory of a range of used IDs.
const RANGE: usize = 32;

/// End of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Client: its contexts have even IDs.
    Client,
    /// Proxy: its contexts have odd IDs.
    Proxy,
}

/// Content of an HTTP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A UDP payload of a peer, or for one.
    Payload(SocketAddr, &'a [u8]),
    /// A UDP payload of context 0: of the target of the request, or for it.
    Target(&'a [u8]),
    /// Payload of a context that is not open: it is dropped.
    Unknown,
    /// Payload of an uncompressed context without a whole address: it is dropped.
    Malformed,
}

#[derive(Clone, Copy, Debug)]
struct Context {
    /// Peer of a compressed context.
    peer: Option<SocketAddr>,
    /// The other end knows the context: it has registered it, or confirmed it.
    is_known: bool,
}

/// Context IDs of a tunnel.
#[derive(Debug)]
pub struct Contexts {
    end: End,
    has_target: bool,
    max: usize,
    open: BTreeMap<u64, Context>,
    by_peer: BTreeMap<SocketAddr, u64>,
    uncompressed: Option<u64>,
    /// Number of open contexts of this end.
    own: usize,
    next_id: u64,
    used: UsedIds,
}

impl Contexts {
    /// Contexts of a tunnel of which each end may have `max` open at a time. With `has_target`, context 0 has the payloads of the target
    /// of the request.
    pub fn new(end: End, max: usize, has_target: bool) -> Self {
        Self {
            end,
            has_target,
            max,
            open: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            uncompressed: None,
            own: 0,
            next_id: if end == End::Client { 2 } else { 1 },
            used: UsedIds::new(MAX_RANGES),
        }
    }

    /// Takes a capsule of the other end, and appends the answers. `permits` decides about the peer of a compressed context.
    ///
    /// # Errors
    /// When the stream has to be aborted.
    pub fn take(
        &mut self,
        capsule: &Compression,
        permits: impl FnOnce(SocketAddr) -> bool,
        answers: &mut Vec<Compression>,
    ) -> Result<(), BoundFault> {
        match *capsule {
            Compression::Assign { context, peer } => self.on_assign(context, peer, permits, answers)?,
            Compression::Ack(id) => {
                // §3.2: one that this end has not registered is malformed. One that it has closed meanwhile is late.
                if !self.is_own(id) || id >= self.next_id {
                    return Err(BoundFault::UnknownAck(id));
                }
                if let Some(context) = self.open.get_mut(&id) {
                    context.is_known = true;
                }
            }
            // §3.3: either end may close any context. One that is not open was closed by this end at the same time, or rejected.
            Compression::Close(id) => {
                self.remove(id);
            }
        }
        Ok(())
    }

    fn on_assign(
        &mut self,
        id: u64,
        peer: Option<SocketAddr>,
        permits: impl FnOnce(SocketAddr) -> bool,
        answers: &mut Vec<Compression>,
    ) -> Result<(), BoundFault> {
        // RFC 9298 §4: clients allocate even IDs, and proxies odd ones
        if self.is_own(id) {
            return Err(BoundFault::Parity(id));
        }
        // §3.1 MUST: a repeated context ID is malformed; also one that was closed or rejected
        if self.used.contains(id) {
            return Err(BoundFault::RepeatedContext(id));
        }
        let same = peer.and_then(|peer| Some((peer, *self.by_peer.get(&peer)?)));
        match (peer, self.end, same) {
            // §4 MUST, MUST: only clients open uncompressed contexts, one at a time
            (None, End::Client, _) => return Err(BoundFault::UncompressedByProxy),
            (None, End::Proxy, _) if self.uncompressed.is_some() => return Err(BoundFault::SecondUncompressed),
            // §3.1 MUST: the other end has an open context for this peer already
            (_, _, Some((peer, other))) if !self.is_own(other) => return Err(BoundFault::RepeatedTarget(peer)),
            _ => {}
        }
        let has_place = self.open.len() - self.own < self.max;
        // §3.1 MUST: of two contexts for one peer, that of the proxy is closed
        let is_lesser = same.is_some() && self.end == End::Client;
        // §3.1 MUST NOT: without an uncompressed context the proxy opens none. One that crosses its end on the way is rejected.
        let is_late = self.end == End::Client && self.uncompressed.is_none();
        let is_accepted = self.used.insert(id) && has_place && !is_lesser && !is_late && peer.is_none_or(permits);
        if !is_accepted {
            answers.push(Compression::Close(id));
            return Ok(());
        }
        if let Some((_, own)) = same {
            answers.extend(self.close(own));
        }
        self.insert(id, Context { peer, is_known: true });
        answers.push(Compression::Ack(id));
        Ok(())
    }

    /// Finds the content of an HTTP datagram of the other end.
    ///
    /// # Errors
    /// When the stream has to be aborted.
    pub fn receive<'a>(&self, datagram: &'a [u8]) -> Result<Received<'a>, BoundFault> {
        let mut reader = wire::Reader::new(datagram);
        let Ok(id) = reader.varint() else { return Ok(Received::Unknown) };
        let rest = reader.rest();
        let received = match (id, self.open.get(&id)) {
            // §3 MUST: without a target, context 0 aborts the stream
            (0, _) if !self.has_target => return Err(BoundFault::NoTarget),
            (0, _) => Received::Target(rest),
            // §3.3 MUST: what comes late in a closed context is discarded
            (_, None) => Received::Unknown,
            (_, Some(Context { peer: Some(peer), .. })) => Received::Payload(*peer, rest),
            (_, Some(Context { peer: None, .. })) => match payload::uncompressed(rest) {
                Some((peer, payload)) => Received::Payload(peer, payload),
                None => Received::Malformed,
            },
        };
        match received {
            // RFC 9298 §5 MUST-1
            Received::Payload(_, payload) | Received::Target(payload) if payload.len() > MAX_PAYLOAD => {
                Err(BoundFault::TooLong)
            }
            received => Ok(received),
        }
    }

    /// Header for a payload of a peer, or for one: that of its own context if the other end knows it, or else of the uncompressed one.
    pub fn header(&self, peer: SocketAddr) -> Option<ContextHeader> {
        let is_known = |id: &u64| self.open.get(id).is_some_and(|context| context.is_known);
        if let Some(id) = self.by_peer.get(&peer).copied().filter(is_known) {
            return Some(ContextHeader::compressed(id));
        }
        let id = self.uncompressed.filter(is_known)?;
        Some(ContextHeader::uncompressed(id, peer))
    }

    /// Registers the uncompressed context; `None` for a proxy, and when one is open.
    pub fn open_uncompressed(&mut self) -> Option<Compression> {
        let may_open = self.end == End::Client && self.uncompressed.is_none();
        may_open.then(|| self.register(None)).flatten()
    }

    /// Registers a context for a peer; `None` when it has one, there are too many, or this end is a proxy whose client has no uncompressed
    /// context.
    pub fn open_compressed(&mut self, peer: SocketAddr) -> Option<Compression> {
        // §3.1 MUST NOT, MUST NOT
        let is_prohibited = self.end == End::Proxy && self.uncompressed.is_none();
        if is_prohibited || self.by_peer.contains_key(&peer) {
            return None;
        }
        self.register(Some(peer))
    }

    fn register(&mut self, peer: Option<SocketAddr>) -> Option<Compression> {
        // §3.1 MUST NOT: no ID is used twice
        if self.own >= self.max || self.next_id > wire::varint::MAX {
            return None;
        }
        let context = self.next_id;
        self.next_id += 2;
        self.insert(context, Context { peer, is_known: false });
        Some(Compression::Assign { context, peer })
    }

    /// Closes a context; `None` when it is not open.
    pub fn close(&mut self, id: u64) -> Option<Compression> {
        self.remove(id).then_some(Compression::Close(id))
    }

    /// ID of the context of a peer.
    pub fn context_of(&self, peer: SocketAddr) -> Option<u64> {
        self.by_peer.get(&peer).copied()
    }

    /// ID of the uncompressed context.
    pub fn uncompressed(&self) -> Option<u64> {
        self.uncompressed
    }

    /// Returns whether a context is open, and the other end has registered or confirmed it.
    pub fn is_known(&self, id: u64) -> bool {
        self.open.get(&id).is_some_and(|context| context.is_known)
    }

    /// Number of open contexts.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Memory of contexts and used IDs, in bytes.
    pub fn held(&self) -> usize {
        self.open.len() * CONTEXT + self.used.ranges() * RANGE
    }

    fn is_own(&self, id: u64) -> bool {
        id.is_multiple_of(2) == (self.end == End::Client)
    }

    fn insert(&mut self, id: u64, context: Context) {
        match context.peer {
            Some(peer) => drop(self.by_peer.insert(peer, id)),
            None => self.uncompressed = Some(id),
        }
        self.own += usize::from(self.is_own(id));
        self.open.insert(id, context);
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(context) = self.open.remove(&id) else { return false };
        match context.peer {
            Some(peer) => drop(self.by_peer.remove(&peer)),
            None => self.uncompressed = None,
        }
        self.own -= usize::from(self.is_own(id));
        true
    }
}

#[cfg(test)]
#[path = "contexts_tests.rs"]
mod tests;
