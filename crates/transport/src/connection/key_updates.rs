//! Key updates that this endpoint starts, after a number of packets or bytes.

use units::{Duration, Instant};

use super::watch::Observation;
use crate::{
    error::TransportError,
    keys::{KeyUpdatePolicy, Keys},
    observe::Initiator,
    stats::Counts,
};

/// Owns when the keys are updated, and the error of a packet that they could not seal.
#[derive(Debug)]
pub(super) struct KeyUpdates {
    policy: KeyUpdatePolicy,
    /// Counts at which the next update is due.
    packets: u64,
    bytes: u64,
    /// An update is to be made as soon as that is allowed.
    pub(super) wanted: bool,
    /// A packet could not be sealed: the connection ends.
    pub(super) seal_error: Option<Box<TransportError>>,
}

impl KeyUpdates {
    pub(super) fn new(policy: KeyUpdatePolicy) -> Self {
        let mut updates = Self { policy, packets: 0, bytes: 0, wanted: false, seal_error: None };
        updates.restart(&Counts::default());
        updates
    }

    /// Returns whether the keys have been used enough. Asked once for each batch.
    #[inline]
    pub(super) fn is_due(&self, stats: &Counts) -> bool {
        stats.packets_sent >= self.packets || stats.bytes_sent >= self.bytes
    }

    /// Updates the keys if it is due and permitted. `heard`: the peer has acknowledged a packet.
    pub(super) fn try_update(
        &mut self,
        keys: &mut Keys,
        stats: &mut Counts,
        observation: &mut Observation,
        (now, pto, heard): (Instant, Duration, bool),
    ) {
        // The first update waits for an acknowledgement as every later one has to (RFC 9001 §6.1): a client that does not know yet
        // that the handshake is confirmed may not follow it, and some peers take a first packet under new keys for an error.
        if heard && keys.update(now, pto * 3) {
            self.wanted = false;
            self.note(keys, stats, observation, now, Initiator::Local);
        }
    }

    /// Counts and reports updates of the 1-RTT keys that have happened, at the wish of `by`.
    #[inline]
    pub(super) fn note(
        &mut self,
        keys: &Keys,
        stats: &mut Counts,
        observation: &mut Observation,
        now: Instant,
        by: Initiator,
    ) {
        let phase = keys.updates();
        if phase != stats.key_updates {
            stats.key_updates = phase;
            self.restart(stats);
            observation.tell(now, |observer, at| observer.keys_updated(at, phase, by));
        }
    }

    /// The keys are new, by the wish of either side.
    pub(super) fn restart(&mut self, stats: &Counts) {
        let after = |now: u64, span: Option<u64>| span.map_or(u64::MAX, |span| now.saturating_add(span.max(1)));
        self.packets = after(stats.packets_sent, self.policy.packets);
        self.bytes = after(stats.bytes_sent, self.policy.bytes);
    }
}
