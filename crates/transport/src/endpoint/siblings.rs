//! Endpoints of other processes that serve the same address: older generations of one program, which drain their connections.
//!
//! One process reads the socket. A packet of a sibling's connection is returned by [`Endpoint::poll_foreign`], and this endpoint does not
//! answer it: no stateless reset may end a connection that a sibling may know.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use units::Instant;
use wire::{ConnectionId, Header, LongType};

use super::{Endpoint, Target};
use crate::udp::Datagram;

/// Datagrams that wait to be handed to another process.
const QUEUE_LIMIT: usize = 256;

/// Shard of an endpoint of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiblingShard {
    /// Generation of the process.
    pub generation: u8,
    /// Number of the shard.
    pub shard: u8,
}

/// Other processes that serve the same address.
#[derive(Clone, Debug, Default)]
pub struct Siblings {
    /// Generations that live, this process's own excluded.
    living: [u64; 4],
    /// Connection IDs of their handshakes, with those that clients have chosen.
    handshakes: BTreeMap<ConnectionId, SiblingShard>,
}

impl Siblings {
    /// Adds a generation.
    pub fn add(&mut self, generation: u8) {
        self.living[usize::from(generation / 64)] |= 1 << (generation % 64);
    }

    /// Adds an ID of a handshake that began in another process.
    pub fn add_handshake(&mut self, id: ConnectionId, shard: SiblingShard) {
        self.handshakes.insert(id, shard);
    }

    /// Forgets all handshakes: none takes longer than the time since they were added.
    pub fn forget_handshakes(&mut self) {
        self.handshakes.clear();
    }

    /// Returns whether a generation lives.
    pub fn is_living(&self, generation: u8) -> bool {
        self.living[usize::from(generation / 64)] & 1 << (generation % 64) != 0
    }

    /// Returns the handshakes that are known.
    pub fn handshakes(&self) -> impl Iterator<Item = (ConnectionId, SiblingShard)> + '_ {
        self.handshakes.iter().map(|(id, shard)| (*id, *shard))
    }

    fn is_empty(&self) -> bool {
        self.living == [0; 4]
    }
}

/// Owner of the datagrams that wait for another process.
#[derive(Default)]
pub(super) struct Foreign {
    siblings: Arc<Siblings>,
    queue: VecDeque<(SiblingShard, Datagram)>,
    /// Last result, because consecutive datagrams are often of one connection.
    last: Option<(ConnectionId, SiblingShard)>,
}

impl Endpoint {
    /// Replaces what is known of the processes beside this one.
    pub fn set_siblings(&mut self, siblings: Arc<Siblings>) {
        self.foreign.siblings = siblings;
        self.foreign.last = None;
    }

    /// Returns the next datagram for another process. Drain it after each [`handle_datagram`](Self::handle_datagram).
    pub fn poll_foreign(&mut self) -> Option<(SiblingShard, Datagram)> {
        self.foreign.queue.pop_front()
    }

    /// Answers datagrams from [`poll_foreign`](Self::poll_foreign) whose process has ended, or has lost the shard, as those of no
    /// connection: a stateless reset for each packet.
    pub fn answer_unclaimed(&mut self, now: Instant, datagram: &Datagram) {
        for payload in datagram.payload.chunks(datagram.segment_size.max(1)) {
            let Ok(Header::Short { dcid, .. }) = Header::parse(payload, self.id_len(payload)) else { continue };
            let part = Datagram { payload: payload.into(), ..*datagram };
            self.maybe_reset(now, &part, &dcid);
        }
    }

    /// Takes a datagram that the kernel has steered to this process, which has handed over and has the generation `own`. Payloads of
    /// processes that it does not know, such as newer ones, are dropped: a stateless reset would end connections that live. Returns their
    /// number.
    pub fn handle_steered(&mut self, now: Instant, datagram: Datagram, own: u8) -> u64 {
        let size = datagram.segment_size.max(1);
        let strangers = datagram.payload.chunks(size).filter(|payload| self.is_of_stranger(payload, own)).count();
        if strangers == 0 {
            self.handle_datagram(now, datagram);
            return 0;
        }
        for payload in datagram.payload.chunks(size) {
            if !self.is_of_stranger(payload, own) {
                self.handle_datagram(now, Datagram { payload: payload.into(), ..datagram });
            }
        }
        strangers as u64
    }

    /// Returns whether a payload is for a process that is neither this one nor known.
    fn is_of_stranger(&self, payload: &[u8], own: u8) -> bool {
        if payload.first().is_none_or(|first| first & wire::bits::LONG_FORM != 0) {
            return false;
        }
        let generation = wire::short_dcid(payload, self.id_len(payload)).and_then(|id| self.ids.generation_of(id));
        generation.is_some_and(|generation| generation != own && !self.foreign.siblings.is_living(generation))
    }

    /// Connection IDs of clients' incomplete handshakes, with those that the clients have chosen.
    pub fn handshake_ids(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        let connections = self.slots.iter().filter_map(|slot| slot.connection.as_deref());
        connections.filter(|connection| !connection.was_connected()).flat_map(|connection| connection.local_ids())
    }

    /// Finds the process of a payload that names no connection of this one.
    pub(super) fn sibling_of(&mut self, payload: &[u8], id: &[u8]) -> Option<Target> {
        let siblings = &self.foreign.siblings;
        if siblings.is_empty() {
            return None;
        }
        if payload[0] & wire::bits::LONG_FORM != 0 {
            return self.sibling_of_long(payload, id).map(Target::Sibling);
        }
        if let Some((last, shard)) = &self.foreign.last
            && last.as_slice() == id
        {
            return Some(Target::Sibling(*shard));
        }
        let generation = self.ids.generation_of(id).filter(|generation| siblings.is_living(*generation))?;
        let shard = SiblingShard { generation, shard: self.ids.shard_of(id)? };
        self.foreign.last = ConnectionId::new(id).map(|id| (id, shard));
        Some(Target::Sibling(shard))
    }

    /// Finds the process of a handshake.
    ///
    /// An ID chosen by a client names no generation, and an ID chosen by a Retry of another process begins a connection here: the process
    /// that began a handshake has reported it. Handshake packets can only be for the process that chose their ID.
    fn sibling_of_long(&self, payload: &[u8], id: &[u8]) -> Option<SiblingShard> {
        let siblings = &self.foreign.siblings;
        if let Some(shard) = siblings.handshakes.get(&ConnectionId::new(id)?) {
            return Some(*shard);
        }
        let generation = self.ids.generation_of(id).filter(|generation| siblings.is_living(*generation))?;
        let header = Header::parse(payload, self.id_len(payload)).ok()?;
        let is_handshake = matches!(header, Header::Long { ty: LongType::Handshake, .. });
        is_handshake.then_some(SiblingShard { generation, shard: self.ids.shard_of(id)? })
    }

    /// Queues a datagram for another process. The buffer is not copied: the queue is drained before the next read.
    pub(super) fn hand_to_sibling(&mut self, shard: SiblingShard, datagram: Datagram) {
        if self.foreign.queue.len() < QUEUE_LIMIT {
            self.foreign.queue.push_back((shard, datagram));
        } else {
            self.stats.dropped += 1;
        }
    }
}
