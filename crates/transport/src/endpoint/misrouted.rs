//! Misrouted datagrams: their connection ID is unknown here, and names another shard.

use std::collections::VecDeque;

use bytes::BytesMut;

use super::Endpoint;
use crate::udp::Datagram;

/// Datagrams that wait to be handed over.
const QUEUE_LIMIT: usize = 256;

/// Owner of the datagrams that wait to be handed over.
#[derive(Default)]
pub(super) struct Misrouted {
    own: u8,
    /// Number of shards; 0 where there is only this one.
    count: u8,
    queue: VecDeque<(u8, Datagram)>,
}

impl Misrouted {
    /// Returns whether this is the number of another shard.
    pub(super) fn is_other(&self, shard: u8) -> bool {
        shard < self.count && shard != self.own
    }
}

impl Endpoint {
    /// Makes this endpoint shard `own` of `count` that share an address and a secret. [`poll_misrouted`](Self::poll_misrouted) returns
    /// datagrams for other shards.
    pub fn set_shard(&mut self, own: u8, count: u8) {
        (self.misrouted.own, self.misrouted.count) = (own, count);
    }

    /// Returns the next datagram for another shard, with the number of that shard.
    pub fn poll_misrouted(&mut self) -> Option<(u8, Datagram)> {
        self.misrouted.queue.pop_front()
    }

    pub(super) fn forward(&mut self, shard: u8, datagram: Datagram) {
        if self.misrouted.queue.len() < QUEUE_LIMIT {
            self.stats.forwarded += 1;
            // Two queues of them must not keep buffers in memory that they do not fill.
            let payload = BytesMut::from(&datagram.payload[..]);
            let datagram = Datagram { payload, ..datagram };
            self.misrouted.queue.push_back((shard, datagram));
        } else {
            self.stats.dropped += 1;
        }
    }
}
