//! What observers are told, where that takes more than a call.

use std::sync::Arc;

use units::Instant;
use wire::{Side, TransportParameters};

use super::Connection;
use crate::{
    crypto::CipherSuite,
    endpoint::Datagram,
    observe::{
        Both, DatagramsEvent, DropReason, Initiator, Observer, ObserverFactory, PacketSpace, RecoveryMetrics, Start,
    },
    tls::{Direction, Level},
};

/// A connection that nobody watches yet: a server's whose first packet may be forged.
pub(super) struct Unwatched {
    factory: Arc<dyn ObserverFactory>,
    /// The parameters of this end, encoded.
    parameters: Vec<u8>,
    /// The datagram that the first packet came in.
    first: Option<DatagramsEvent>,
}

impl Unwatched {
    pub(super) fn new(factory: Option<&Arc<dyn ObserverFactory>>, parameters: &[u8]) -> Option<Box<Self>> {
        let factory = factory?.clone();
        Some(Box::new(Self { factory, parameters: parameters.to_vec(), first: None }))
    }
}

impl Connection {
    /// Watches the connection from here on, beside those who do so already.
    pub fn set_observer(&mut self, observer: Box<dyn Observer>) {
        self.observer = Some(match self.observer.take() {
            Some(first) => Box::new(Both(first, observer)),
            None => observer,
        });
    }

    /// Lets the configured observer watch, if there is one, and tells it how the connection begins.
    pub(super) fn start_watching(&mut self, now: Instant) {
        let Some(unwatched) = self.unwatched.take() else { return };
        let Unwatched { factory, parameters, first } = *unwatched;
        let start = self.start_event();
        let Some(mut observer) = factory.observe(now, &start) else { return };
        observer.started(now, &start);
        for sender in [Direction::Local, Direction::Remote] {
            observer.key_installed(now, Level::Initial, sender, CipherSuite::Aes128Gcm);
        }
        if let Ok(parameters) = TransportParameters::decode(self.side, &parameters) {
            observer.parameters_set(now, Initiator::Local, &parameters);
        }
        observer.metrics(now, &self.metrics());
        if let Some(datagram) = first {
            observer.datagrams_received(now, &datagram);
        }
        self.set_observer(observer);
    }

    fn start_event(&self) -> Start {
        let path = &self.paths[self.active];
        let remote_id = *self.remote_ids.current();
        Start {
            side: self.side,
            version: self.version,
            original_dcid: self.original_dcid.unwrap_or(remote_id),
            local_id: self.local_ids.first(),
            remote_id,
            local: path.local,
            remote: path.remote,
            mtu: path.mtu,
            window: path.recovery.window(),
            initial_rtt: path.recovery.rtt().smoothed(),
            reordering_threshold: path.recovery.reordering().packet_threshold(),
            controller: path.recovery.controller().name(),
        }
    }

    /// Calls the observer, if there is one.
    #[inline]
    pub(super) fn observe(&mut self, now: Instant, tell: impl FnOnce(&mut dyn Observer, Instant)) {
        if let Some(observer) = &mut self.observer {
            tell(&mut **observer, now);
        }
    }

    /// Reports the state of recovery.
    #[inline]
    pub(super) fn observe_metrics(&mut self, now: Instant) {
        if self.observer.is_some() {
            let metrics: RecoveryMetrics = self.metrics();
            self.observe(now, |observer, at| observer.metrics(at, &metrics));
        }
    }

    /// Reports what a socket read.
    #[inline]
    pub(super) fn observe_datagrams(&mut self, now: Instant, datagram: &Datagram) {
        if self.observer.is_some() || self.unwatched.is_some() {
            let Datagram { segment_size, ecn, ref payload, .. } = *datagram;
            let event = DatagramsEvent { len: payload.len(), segment_size, ecn };
            self.observe(now, |observer, at| observer.datagrams_received(at, &event));
            if let Some(unwatched) = &mut self.unwatched {
                unwatched.first = Some(event);
            }
        }
    }

    /// Counts and reports updates of the 1-RTT keys that have happened, at the wish of `by`.
    #[inline]
    pub(super) fn note_key_updates(&mut self, now: Instant, by: Initiator) {
        let phase = self.keys.updates();
        if phase != self.stats.key_updates {
            self.stats.key_updates = phase;
            self.rekey.restart(&self.stats);
            self.observe(now, |observer, at| observer.keys_updated(at, phase, by));
        }
    }

    /// Counts and reports a packet that is not looked at.
    #[cold]
    pub(super) fn drop_packet(&mut self, now: Instant, space: Option<PacketSpace>, size: usize, reason: DropReason) {
        match reason {
            DropReason::Duplicate => self.stats.packets_duplicate += 1,
            DropReason::Invalid | DropReason::Undecryptable | DropReason::UnknownAddress => {
                self.stats.packets_undecryptable += 1;
            }
            DropReason::NoRoom => {}
        }
        self.observe(now, |observer, at| observer.packet_dropped(at, space, size, reason));
    }

    /// Secrets of TLS have become keys.
    pub(super) fn observe_keys(&mut self, now: Instant, level: Level, sender: Direction, suite: CipherSuite) {
        self.observe(now, |observer, at| observer.key_installed(at, level, sender, suite));
    }

    /// A Retry voids the Initial keys; others follow from the ID that the server has chosen.
    pub(super) fn observe_initial_keys(&mut self, now: Instant) {
        debug_assert_eq!(self.side, Side::Client);
        self.observe(now, |observer, at| observer.keys_discarded(at, Level::Initial, None));
        for sender in [Direction::Local, Direction::Remote] {
            self.observe_keys(now, Level::Initial, sender, CipherSuite::Aes128Gcm);
        }
    }
}
