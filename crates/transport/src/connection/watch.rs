//! Reports to observers that take more than a call.

use std::sync::Arc;

use units::Instant;
use wire::{Side, TransportParameters};

use super::{Connection, identity::Identity};
use crate::{
    crypto::CipherSuite,
    handshake::Handshake,
    observe::{
        Both, DatagramsEvent, DropReason, Initiator, Limit, Migration, Observer, ObserverFactory, PacketSpace,
        RecoveryMetrics, Start,
    },
    path::Path,
    recovery::Allowance,
    stats::Counts,
    tls::{Direction, Level},
    udp::Datagram,
};

/// Owns the observer of a connection.
#[derive(Default)]
pub(super) struct Observation {
    pub(super) observer: Option<Box<dyn Observer>>,
    /// Source of an observer, asked once a packet was authenticated.
    pub(super) unwatched: Option<Box<Unwatched>>,
    /// Set once the observer knows the connection's name in key logs.
    client_random_told: bool,
}

/// Connection without an observer yet: a server's whose first packet may be forged.
pub(super) struct Unwatched {
    factory: Arc<dyn ObserverFactory>,
    /// The parameters of this end, encoded.
    parameters: Vec<u8>,
    /// Datagram of the first packet.
    first: Option<DatagramsEvent>,
}

impl Unwatched {
    pub(super) fn new(factory: Option<&Arc<dyn ObserverFactory>>, parameters: &[u8]) -> Option<Box<Self>> {
        let factory = factory?.clone();
        Some(Box::new(Self { factory, parameters: parameters.to_vec(), first: None }))
    }
}

impl Observation {
    fn add(&mut self, observer: Box<dyn Observer>) {
        self.observer = Some(match self.observer.take() {
            Some(first) => Box::new(Both(first, observer)),
            None => observer,
        });
    }

    /// Starts the configured observer, if it accepts the connection, with the start of the connection as its first event.
    fn begin(&mut self, now: Instant, unwatched: Unwatched, start: &Start, metrics: &RecoveryMetrics) {
        let Unwatched { factory, parameters, first } = unwatched;
        let Some(mut observer) = factory.observe(now, start) else { return };
        observer.started(now, start);
        for sender in [Direction::Local, Direction::Remote] {
            observer.key_installed(now, Level::Initial, sender, CipherSuite::Aes128Gcm);
        }
        if let Ok(parameters) = TransportParameters::decode(start.side, &parameters) {
            observer.parameters_set(now, Initiator::Local, &parameters);
        }
        observer.metrics(now, metrics);
        if let Some(datagram) = first {
            observer.datagrams_received(now, &datagram);
        }
        self.add(observer);
    }

    /// Calls the observer, if there is one.
    #[inline]
    pub(super) fn tell(&mut self, now: Instant, tell: impl FnOnce(&mut dyn Observer, Instant)) {
        if let Some(observer) = &mut self.observer {
            tell(&mut **observer, now);
        }
    }

    /// Reports what a socket read.
    #[inline]
    pub(super) fn datagrams_received(&mut self, now: Instant, datagram: &Datagram) {
        if self.observer.is_some() || self.unwatched.is_some() {
            let Datagram { segment_size, ecn, ref payload, .. } = *datagram;
            let event = DatagramsEvent { len: payload.len(), segment_size, ecn };
            self.tell(now, |observer, at| observer.datagrams_received(at, &event));
            if let Some(unwatched) = &mut self.unwatched {
                unwatched.first = Some(event);
            }
        }
    }

    /// Counts and reports a packet that is not looked at.
    #[cold]
    pub(super) fn drop_packet(
        &mut self,
        stats: &mut Counts,
        now: Instant,
        space: Option<PacketSpace>,
        size: usize,
        reason: DropReason,
    ) {
        let bytes = size as u64;
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
        self.tell(now, |observer, at| observer.packet_dropped(at, space, size, reason));
    }

    /// Reports a move of the peer to `path`, or away from it.
    pub(super) fn migrating(&mut self, now: Instant, state: Migration, path: &Path) {
        self.tell(now, |observer, at| observer.migration(at, state, path.remote));
    }

    /// Reports to the observer, once, the name by which key logs know the connection.
    pub(super) fn tell_client_random(&mut self, now: Instant, handshake: &Handshake) {
        if self.observer.is_none() || self.client_random_told {
            return;
        }
        let random = handshake.session().and_then(|session| session.client_random());
        if let Some(random) = random {
            self.client_random_told = true;
            self.tell(now, |observer, at| observer.client_random(at, &random));
        }
    }

    /// A Retry voids the Initial keys; others follow from the ID that the server has chosen.
    pub(super) fn initial_keys_replaced(&mut self, now: Instant) {
        self.tell(now, |observer, at| {
            observer.keys_discarded(at, Level::Initial, None);
            for sender in [Direction::Local, Direction::Remote] {
                observer.key_installed(at, Level::Initial, sender, CipherSuite::Aes128Gcm);
            }
        });
    }
}

impl Connection {
    /// Adds an observer of the connection.
    pub fn set_observer(&mut self, observer: Box<dyn Observer>) {
        self.observation.add(observer);
    }

    /// Adds an observer that also receives the state of the connection: the start as an event of this moment, then what has
    /// been reached since.
    pub fn watch(&mut self, now: Instant, mut observer: Box<dyn Observer>) {
        observer.started(now, &self.start_event());
        observer.metrics(now, &self.metrics());
        if self.lifecycle.was_connected() {
            observer
                .connected(now, self.packets.sources.handshake.session().and_then(|s| s.alpn()).unwrap_or_default());
        }
        if self.packets.sources.handshake.is_confirmed() {
            observer.confirmed(now);
        }
        self.set_observer(observer);
    }

    /// Connection IDs of this connection: the one that the client addressed first, then those of this endpoint.
    pub fn ids(&self) -> impl Iterator<Item = wire::ConnectionId> + '_ {
        self.packets.identity.known_ids()
    }

    /// Starts the configured observer, if there is one, with the start of the connection as its first event.
    pub(super) fn start_watching(&mut self, now: Instant) {
        if let Some(unwatched) = self.observation.unwatched.take() {
            let (start, metrics) = (self.start_event(), self.metrics());
            self.observation.begin(now, *unwatched, &start, &metrics);
        }
    }

    fn start_event(&self) -> Start {
        start_event(self.side, &self.packets.identity, self.paths.active())
    }

    /// Reports the state of recovery.
    #[inline]
    pub(super) fn observe_metrics(&mut self, now: Instant) {
        if self.observation.observer.is_some() {
            let metrics: RecoveryMetrics = self.metrics();
            self.observation.tell(now, |observer, at| observer.metrics(at, &metrics));
        }
    }

    /// Reports the limit of the sender to the observer, if it is known.
    pub(super) fn observe_limit(&mut self, now: Instant) {
        if self.observation.observer.is_none() {
            return;
        }
        let by = if self.packets.has_data() {
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
        } else if self.packets.sources.streams.is_blocked() {
            Limit::FlowControl
        } else {
            Limit::Application
        };
        self.observation.tell(now, |observer, at| observer.limited(at, by));
    }
}

/// Start of the connection, or its state at the moment, for observers.
fn start_event(side: Side, identity: &Identity, path: &Path) -> Start {
    let remote_id = *identity.remote_ids.current();
    Start {
        side,
        version: identity.version,
        original_dcid: identity.original_dcid.unwrap_or(remote_id),
        local_id: identity.local_ids.first(),
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
