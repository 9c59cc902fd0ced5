//! Progress of the handshake: installs keys, applies transport parameters, discards encryption levels.

use units::{Duration, Instant};
use wire::Side;

use super::{Connection, PeerPromises, spaces::SpaceId};
use crate::{
    error::TransportError,
    events::Event,
    observe::Initiator,
    timers::Timer,
    tls::{Level, TlsEvent},
};

impl Connection {
    /// Lets TLS process the bytes that have arrived, and handles its events.
    pub(super) fn progress_handshake(&mut self, now: Instant) {
        loop {
            let outcome = match self.packets.advance_handshake(self.side) {
                Ok(None) => return,
                Ok(Some(event)) => self.on_tls_event(now, event),
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                self.fail(now, error);
                return;
            }
        }
    }

    fn on_tls_event(&mut self, now: Instant, event: TlsEvent) -> Result<(), TransportError> {
        match event {
            // The CRYPTO streams have taken it.
            TlsEvent::Write { .. } => {}
            TlsEvent::Secret { level, direction, suite, secret, keys } => {
                if level == Level::OneRtt && self.side == Side::Client {
                    self.stop_early(now);
                }
                self.packets.keys.install_with(level, direction, suite, &secret, keys.as_ref());
                self.observation.tell_client_random(now, &self.packets.sources.handshake);
                self.observation.tell(now, |observer, at| observer.key_installed(at, level, direction, suite));
            }
            TlsEvent::PeerParameters(raw) => self.on_peer_parameters(now, &raw)?,
            TlsEvent::RememberedParameters(raw) => self.on_remembered_parameters(&raw)?,
            TlsEvent::EarlyData { accepted } => self.on_early_verdict(now, accepted),
            TlsEvent::Complete => self.on_complete(now),
        }
        Ok(())
    }

    fn on_peer_parameters(&mut self, now: Instant, raw: &[u8]) -> Result<(), TransportError> {
        let peer = self.packets.sources.handshake.check_parameters(
            raw,
            &self.packets.identity.expected,
            self.packets.identity.original_dcid,
        )?;
        self.observation.tell(now, |observer, at| observer.parameters_set(at, Initiator::Remote, &peer));
        self.packets.identity.check_versions(self.side, &peer)?;
        if let Some(token) = peer.stateless_reset_token {
            self.packets.identity.remote_ids.set_first_token(token);
        }
        if let Some(preferred) = peer.preferred_address {
            // RFC 9000 §5.1.1: its ID has the sequence number 1.
            self.packets.identity.remote_ids.on_new(1, 0, preferred.cid, preferred.reset_token)?;
            self.paths.set_preferred_address(Some(Box::new(preferred)));
        }
        self.packets.random.set_grease(self.profile.grease && peer.grease_quic_bit);
        self.early.check_remembered(&peer)?;
        self.stop_early(now);
        let code = self.packets.sources.set_peer_parameters(&peer, self.profile.fec)?;
        // RFC 9000 §7.4.1 MUST-2: of what a client must not remember, what the server says in this handshake counts, and
        // what it does not say has its default.
        self.peer = PeerPromises::of(&peer)?;
        if let Some(space) = self.packets.spaces.get_mut(SpaceId::DATA) {
            space.report_times(now, &peer);
        }
        if let Some(code) = code {
            self.observation.tell(now, |observer, at| observer.code_updated(at, None, Some(code)));
        }
        // RFC 9000 §18.2: datagrams beyond this size may be dropped by the peer.
        self.paths.on_peer_limits(now, self.peer.max_udp_payload_size, Duration::from_millis(peer.max_ack_delay_ms));
        self.fit_datagrams();
        self.idle.agree(Duration::from_millis(peer.max_idle_timeout_ms));
        Ok(())
    }

    /// TLS has verified the peer's Finished message.
    fn on_complete(&mut self, now: Instant) {
        // Until here the idle timer is the limit of the handshake, and tells when that began.
        let begun = self.timers.get(Timer::Idle).map(|limit| limit.saturating_sub(self.profile.handshake_timeout));
        let took = begun.map_or(Duration::ZERO, |begun| now.saturating_since(begun));
        self.stats.handshake_time = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.stats.resumed =
            self.packets.sources.handshake.session().is_some_and(|session| session.is_resumed()).into();
        self.lifecycle.connect();
        self.packets.identity.local_ids.start(self.peer.active_connection_id_limit);
        self.push(Event::Connected);
        self.restart_idle(now);
        if let Some(observer) = &mut self.observation.observer {
            observer
                .connected(now, self.packets.sources.handshake.session().and_then(|s| s.alpn()).unwrap_or_default());
        }
        if self.side == Side::Server {
            // RFC 9000 §19.20 MUST NOT-1, RFC 9001 §4.1.2 MUST-1: for a server complete means confirmed, and it says
            // so.
            self.packets.sources.control.handshake_done.request();
            self.paths.active_mut().amplification.validate();
            let remote = self.paths.active().remote;
            // RFC 9000 §19.7 MUST NOT-1: NEW_TOKEN is not empty
            // RFC 9000 §19.7 MUST NOT-2: clients send no NEW_TOKEN
            if let Some(token) = self.packets.identity.new_token(&mut self.packets.random.stream, now, remote) {
                self.packets.sources.control.token.send(token);
            }
            self.early.forget_keys_later(now, &self.packets.keys, self.paths.active().recovery.pto());
            self.on_confirmed(now);
            self.packets.sources.handshake.settle();
        }
        if self.packets.sources.fec.covers_ends() {
            self.paths.active_mut().recovery.count_silence();
        }
        self.packets.sources.fec.begin(self.paths.active().recovery.rtt(), self.stats.bytes_sent);
    }

    /// Sets the size of DATAGRAM frames to the room in a packet of the active path.
    pub(super) fn fit_datagrams(&mut self) {
        self.packets.sources.fit_datagrams(self.paths.active().mtu, self.packets.identity.remote_ids.current().len());
    }

    /// Discards the keys of the handshake, because both endpoints have 1-RTT keys.
    pub(super) fn on_confirmed(&mut self, now: Instant) {
        if !self.packets.sources.handshake.confirm() {
            return;
        }
        self.packets.keys.on_handshake_confirmed();
        self.observation.tell(now, |observer, at| observer.confirmed(at));
        self.packets.identity.versions = None;
        self.consider_preferred_address(now);
        self.packets.discard_space(now, SpaceId::Initial, &mut self.paths, &mut self.observation);
        // RFC 9001 §4.9.2 MUST-1: the Handshake keys go when the handshake is confirmed.
        self.packets.discard_space(now, SpaceId::Handshake, &mut self.paths, &mut self.observation);
    }
}
