//! What observers are told, where that takes more than a call.

use std::sync::Arc;

use units::Instant;
use wire::{Side, TransportParameters};

use super::Connection;
use crate::{
    crypto::CipherSuite,
    observe::{
        Both, DatagramsEvent, DropReason, Initiator, Limit, Observer, ObserverFactory, PacketSpace, RecoveryMetrics,
        Start,
    },
    recovery::Allowance,
    tls::{Direction, Level},
    udp::Datagram,
};

/// Owns the observer of a connection.
#[derive(Default)]
pub(super) struct Observation {
    pub(super) observer: Option<Box<dyn Observer>>,
    /// Asked for an observer once a packet has proved authentic.
    pub(super) unwatched: Option<Box<Unwatched>>,
    /// The observer knows by what name key logs know this connection.
    client_random_told: bool,
}

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
        self.observation.observer = Some(match self.observation.observer.take() {
            Some(first) => Box::new(Both(first, observer)),
            None => observer,
        });
    }

    /// As [`set_observer`](Self::set_observer), for an observer that wants to know where the connection stands: it is told of the
    /// start as of something that happens now, then what has been reached since.
    pub fn watch(&mut self, now: Instant, mut observer: Box<dyn Observer>) {
        observer.started(now, &self.start_event());
        observer.metrics(now, &self.metrics());
        if self.lifecycle.was_connected() {
            observer.connected(now, self.sources.handshake.session().and_then(|s| s.alpn()).unwrap_or_default());
        }
        if self.sources.handshake.is_confirmed() {
            observer.confirmed(now);
        }
        self.set_observer(observer);
    }

    /// The IDs by which others may know this connection: the one that the client addressed first, then those of this end.
    pub fn ids(&self) -> impl Iterator<Item = wire::ConnectionId> + '_ {
        self.identity.known_ids()
    }

    /// Lets the configured observer watch, if there is one, and tells it how the connection begins.
    pub(super) fn start_watching(&mut self, now: Instant) {
        let Some(unwatched) = self.observation.unwatched.take() else { return };
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
        let path = self.paths.active();
        let remote_id = *self.identity.remote_ids.current();
        Start {
            side: self.side,
            version: self.identity.version,
            original_dcid: self.identity.original_dcid.unwrap_or(remote_id),
            local_id: self.identity.local_ids.first(),
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
        if let Some(observer) = &mut self.observation.observer {
            tell(&mut **observer, now);
        }
    }

    /// Reports the state of recovery.
    #[inline]
    pub(super) fn observe_metrics(&mut self, now: Instant) {
        if self.observation.observer.is_some() {
            let metrics: RecoveryMetrics = self.metrics();
            self.observe(now, |observer, at| observer.metrics(at, &metrics));
        }
    }

    /// Reports what a socket read.
    #[inline]
    pub(super) fn observe_datagrams(&mut self, now: Instant, datagram: &Datagram) {
        if self.observation.observer.is_some() || self.observation.unwatched.is_some() {
            let Datagram { segment_size, ecn, ref payload, .. } = *datagram;
            let event = DatagramsEvent { len: payload.len(), segment_size, ecn };
            self.observe(now, |observer, at| observer.datagrams_received(at, &event));
            if let Some(unwatched) = &mut self.observation.unwatched {
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
            self.key_updates.restart(&self.stats);
            self.observe(now, |observer, at| observer.keys_updated(at, phase, by));
        }
    }

    /// Counts and reports a packet that is not looked at.
    #[cold]
    pub(super) fn drop_packet(&mut self, now: Instant, space: Option<PacketSpace>, size: usize, reason: DropReason) {
        let bytes = size as u64;
        let stats = &mut self.stats;
        match reason {
            DropReason::Duplicate => {
                stats.packets_duplicate += 1;
                stats.duplicate_bytes_received += bytes;
            }
            DropReason::Invalid | DropReason::Undecryptable => {
                stats.packets_undecryptable += 1;
                stats.undecryptable_bytes_received += bytes;
            }
            DropReason::UnknownAddress => {
                stats.packets_undecryptable += 1;
                stats.unknown_address_bytes_received += bytes;
            }
            DropReason::NoRoom => stats.unopened_bytes_received += bytes,
        }
        self.observe(now, |observer, at| observer.packet_dropped(at, space, size, reason));
    }

    /// Secrets of TLS have become keys.
    pub(super) fn observe_keys(&mut self, now: Instant, level: Level, sender: Direction, suite: CipherSuite) {
        self.observe(now, |observer, at| observer.key_installed(at, level, sender, suite));
    }

    /// Tells the observer, once, by what name key logs know the connection.
    pub(super) fn observe_client_random(&mut self, now: Instant) {
        if self.observation.observer.is_none() || self.observation.client_random_told {
            return;
        }
        let random = self.sources.handshake.session().and_then(|session| session.client_random());
        if let Some(random) = random {
            self.observation.client_random_told = true;
            self.observe(now, |observer, at| observer.client_random(at, &random));
        }
    }

    /// Tells the observer why nothing more leaves, when that is known.
    pub(super) fn observe_limit(&mut self, now: Instant) {
        if self.observation.observer.is_none() {
            return;
        }
        let by = if self.has_data() {
            if self.datagram_room() == 0 {
                Limit::Amplification
            } else {
                match self.paths.active_mut().recovery.allowance(now, u64::MAX) {
                    Allowance::WindowFull => Limit::CongestionWindow,
                    Allowance::PacedUntil(_) => Limit::Pacing,
                    // TLS is at work elsewhere, for example: none of these.
                    Allowance::Bytes(_) => return,
                }
            }
        } else if self.sources.streams.is_blocked() {
            Limit::FlowControl
        } else {
            Limit::Application
        };
        self.observe(now, |observer, at| observer.limited(at, by));
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
