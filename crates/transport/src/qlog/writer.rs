//! Conversion of events to records.

use std::io::{self, Write};

use fec::Scheme;
use serde::Serialize;
use units::{Duration, Instant};
use wire::{ConnectionId, TransportParameters};

use super::{
    events::{
        AlpnIdentifier, AlpnInformation, CipherSet, CodeUpdated, ConnectionClosed, ConnectionStarted, KeyEvent,
        Limited, MarkedForRetransmit, MigrationStateUpdated, MtuUpdated, PacketEventData, PacketLost, PacketRecovered,
        PacketUnread, ParametersSet, RecoveryMetricsUpdated, RecoveryParametersSet, StateUpdated, SymbolRecovered,
        TimerUpdated, TupleEndpointInfo, UdpDatagrams, VersionInformation,
    },
    frames::{FrameList, QuicFrame},
    header::{PacketHeader, packet_type},
    record::Records,
    trace::{FileHeader, Vantage, rfc3339},
    value::{Hex, Raw, Version, millis},
};
use crate::{
    acks::Ecn,
    congestion::minimum_window,
    crypto::CipherSuite,
    events::CloseReason,
    observe::{
        DatagramsEvent, DropReason, Ending, Initiator, Limit, LossEvent, Migration, Observer, PacketEvent, PacketSpace,
        RecoveryMetrics, Start, Unsealed,
    },
    recovery::{GRANULARITY, LossTrigger},
    sent::SentFrame,
    timers::Timer,
    tls::{Direction, Level},
};

/// Writes what one end of a connection does as qlog.
///
/// Records are buffered and written 32 KiB at a time, when the connection closes, on [`flush`](Self::flush), and when the writer is
/// dropped. The first error ends the writing; the connection continues, and [`error`](Self::error) returns the error.
pub struct QlogWriter<W: Write + Send> {
    records: Records<W>,
    /// The first record has been written.
    begun: bool,
    vantage: Vantage,
    title: String,
    original_dcid: ConnectionId,
    wall_clock: Option<String>,
    state: Option<&'static str>,
    metrics: Option<RecoveryMetrics>,
    limit: Option<Limit>,
    /// The marks of the datagrams sent and received last.
    marks: [Option<Option<Ecn>>; 2],
    /// Of this end, and of the peer.
    ack_delay_exponents: [u8; 2],
}

impl<W: Write + Send> QlogWriter<W> {
    /// Writes to `writer`. Times count from `reference`; what happened before counts as happening then. `original_dcid`
    /// is the ID that the client addressed first, which names the connection at both ends.
    pub fn new(
        writer: W,
        vantage: Vantage,
        title: impl Into<String>,
        original_dcid: ConnectionId,
        reference: Instant,
    ) -> Self {
        Self {
            records: Records::new(writer, reference),
            begun: false,
            vantage,
            title: title.into(),
            original_dcid,
            wall_clock: None,
            state: None,
            metrics: None,
            limit: None,
            marks: [None; 2],
            ack_delay_exponents: [3; 2],
        }
    }

    /// Sets the wall-clock time of the reference, as the time since 1970 (UTC). Without effect after the first write.
    #[must_use]
    pub fn with_wall_clock(mut self, since_1970: Duration) -> Self {
        self.wall_clock = Some(rfc3339(since_1970));
        self
    }

    /// Writes the buffered records.
    pub fn flush(&mut self) {
        self.begin();
        self.records.flush();
    }

    /// The error that ended the writing, if there was one.
    pub fn error(&self) -> Option<&io::Error> {
        self.records.error()
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            let odcid = self.original_dcid;
            let header = FileHeader::new(&self.title, self.vantage, odcid.as_slice(), self.wall_clock.as_deref());
            self.records.append(&header);
        }
    }

    fn event(&mut self, now: Instant, name: &'static str, data: &impl Serialize) {
        self.begin();
        self.records.event(now, name, data);
    }

    fn enter(&mut self, now: Instant, new: &'static str) {
        let old = self.state.replace(new);
        if old != Some(new) {
            self.event(now, "quic:connection_state_updated", &StateUpdated { old, new });
        }
    }

    fn packet(
        &mut self,
        now: Instant,
        name: &'static str,
        packet: &PacketEvent<'_>,
        sender: usize,
        trigger: &'static str,
    ) {
        if packet.space == PacketSpace::Handshake && self.state == Some("attempted") {
            self.enter(now, "handshake_started");
        }
        let data = PacketEventData {
            header: PacketHeader::read(packet.space, packet.pn, packet.key_phase, packet.header),
            frames: Some(FrameList { payload: packet.payload, ack_delay_exponent: self.ack_delay_exponents[sender] }),
            supported_versions: None,
            raw: Raw { length: Some(packet.size), payload_length: Some(packet.payload.len()) },
            trigger: packet.out_of_turn.then_some(trigger),
        };
        self.event(now, name, &data);
    }

    fn datagrams(&mut self, now: Instant, name: &'static str, datagrams: &DatagramsEvent, sender: usize) {
        let news = self.marks[sender].replace(datagrams.ecn) != Some(datagrams.ecn);
        self.event(now, name, &UdpDatagrams::new(datagrams, news));
    }

    /// The name of the keys that `sender` seals with at a level.
    fn key_type(&self, level: Level, sender: Direction) -> &'static str {
        let by_client = (self.vantage == Vantage::Client) == (sender == Direction::Local);
        match (level, by_client) {
            (Level::Initial, true) => "client_initial_secret",
            (Level::Initial, false) => "server_initial_secret",
            (Level::Handshake, true) => "client_handshake_secret",
            (Level::Handshake, false) => "server_handshake_secret",
            (Level::ZeroRtt, true) => "client_0rtt_secret",
            (Level::ZeroRtt, false) => "server_0rtt_secret",
            (Level::OneRtt, true) => "client_1rtt_secret",
            (Level::OneRtt, false) => "server_1rtt_secret",
        }
    }

    fn keys(
        &mut self,
        now: Instant,
        name: &'static str,
        level: Level,
        phase: Option<u64>,
        trigger: Option<&'static str>,
    ) {
        for sender in [Direction::Local, Direction::Remote] {
            // Servers have no 0-RTT keys.
            let key_type = self.key_type(level, sender);
            if key_type != "server_0rtt_secret" {
                self.event(now, name, &KeyEvent { key_type, key_phase: phase, trigger });
            }
        }
    }
}

const LOCAL: usize = 0;
const REMOTE: usize = 1;

impl<W: Write + Send> Observer for QlogWriter<W> {
    fn started(&mut self, now: Instant, start: &Start) {
        let data = ConnectionStarted {
            local: TupleEndpointInfo::new(start.local, None, Some(start.local_id.as_slice())),
            remote: TupleEndpointInfo::at(start.remote, Some(start.remote_id.as_slice())),
        };
        self.event(now, "quic:connection_started", &data);
        let (ours, chosen) = ([Version(start.version)], Some(Version(start.version)));
        let mut data = VersionInformation { chosen_version: chosen, ..VersionInformation::default() };
        match self.vantage {
            Vantage::Client => data.client_versions = Some(&ours),
            Vantage::Server => data.server_versions = Some(&ours),
        }
        self.event(now, "quic:version_information", &data);
        let data = RecoveryParametersSet {
            reordering_threshold: start.reordering_threshold,
            timer_granularity: GRANULARITY.as_millis().try_into().unwrap_or(1),
            initial_rtt: super::value::millis(start.initial_rtt),
            max_datagram_size: start.mtu,
            initial_congestion_window: start.window,
            minimum_congestion_window: minimum_window(start.mtu),
            congestion_control: start.controller,
        };
        self.event(now, "quic:recovery_parameters_set", &data);
        self.enter(now, "attempted");
    }

    fn parameters_set(&mut self, now: Instant, by: Initiator, parameters: &TransportParameters) {
        let sender = if by == Initiator::Local { LOCAL } else { REMOTE };
        self.ack_delay_exponents[sender] = u8::try_from(parameters.ack_delay_exponent).unwrap_or(20).min(20);
        self.event(now, "quic:parameters_set", &ParametersSet::new(by, parameters));
    }

    fn datagrams_sent(&mut self, now: Instant, datagrams: &DatagramsEvent) {
        self.datagrams(now, "quic:udp_datagrams_sent", datagrams, LOCAL);
    }

    fn datagrams_received(&mut self, now: Instant, datagrams: &DatagramsEvent) {
        self.datagrams(now, "quic:udp_datagrams_received", datagrams, REMOTE);
    }

    fn packet_sent(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        self.packet(now, "quic:packet_sent", packet, LOCAL, "pto_probe");
    }

    fn packet_received(&mut self, now: Instant, packet: &PacketEvent<'_>) {
        self.packet(now, "quic:packet_received", packet, REMOTE, "keys_available");
    }

    fn packet_buffered(&mut self, now: Instant, space: PacketSpace, size: usize) {
        let header = Some(PacketHeader::of_type(packet_type(space)));
        let data = PacketUnread { header, raw: Raw::of(size), trigger: "keys_unavailable" };
        self.event(now, "quic:packet_buffered", &data);
    }

    fn packet_dropped(&mut self, now: Instant, space: Option<PacketSpace>, size: usize, reason: DropReason) {
        let trigger = match reason {
            DropReason::Invalid => "invalid",
            DropReason::Undecryptable => "decryption_failure",
            DropReason::Duplicate => "duplicate",
            DropReason::UnknownAddress => "rejected",
            DropReason::NoRoom => "key_unavailable",
        };
        let header = space.map(|space| PacketHeader::of_type(packet_type(space)));
        self.event(now, "quic:packet_dropped", &PacketUnread { header, raw: Raw::of(size), trigger });
    }

    fn unsealed_received(&mut self, now: Instant, packet: &Unsealed<'_>, size: usize) {
        let versions: Vec<Version>;
        let (header, supported_versions) = match packet {
            Unsealed::Retry { scid, token_len } => (PacketHeader::retry(scid.as_slice(), *token_len), None),
            Unsealed::VersionNegotiation { versions: offered } => {
                versions = offered.iter().copied().map(Version).collect();
                (PacketHeader::of_type("version_negotiation"), Some(&versions[..]).filter(|v| !v.is_empty()))
            }
            Unsealed::StatelessReset => (PacketHeader::of_type("stateless_reset"), None),
        };
        let raw = Raw::of(size);
        let data = PacketEventData { header, frames: None, supported_versions, raw, trigger: None };
        self.event(now, "quic:packet_received", &data);
        if supported_versions.is_some() {
            let data = VersionInformation { server_versions: supported_versions, ..VersionInformation::default() };
            self.event(now, "quic:version_information", &data);
        }
    }

    fn packet_lost(&mut self, now: Instant, lost: &LossEvent) {
        let data = PacketLost {
            header: PacketHeader::numbered(lost.space, lost.pn),
            is_mtu_probe_packet: lost.mtu_probe,
            trigger: match lost.trigger {
                LossTrigger::ReorderingThreshold => "reordering_threshold",
                LossTrigger::TimeThreshold => "time_threshold",
            },
        };
        self.event(now, "quic:packet_lost", &data);
    }

    fn frame_lost(&mut self, now: Instant, frame: &SentFrame) {
        if let Some(frame) = QuicFrame::of_record(frame) {
            self.event(now, "quic:marked_for_retransmit", &MarkedForRetransmit { frames: [frame] });
        }
    }

    fn metrics(&mut self, now: Instant, metrics: &RecoveryMetrics) {
        let old = self.metrics.replace(*metrics);
        if let Some(data) = RecoveryMetricsUpdated::new(old.as_ref(), metrics) {
            self.event(now, "quic:recovery_metrics_updated", &data);
        }
        let old = old.map(|old| old.state);
        if old != Some(metrics.state) {
            self.event(now, "quic:congestion_state_updated", &StateUpdated { old, new: metrics.state });
        }
    }

    fn symbol_recovered(&mut self, now: Instant, id: u64, delay: Duration) {
        self.event(now, "fec:symbol_recovered", &SymbolRecovered { symbol_id: id, delay: millis(delay) });
    }

    fn packet_recovered(&mut self, now: Instant, pn: u64) {
        self.event(now, "fec:packet_recovered", &PacketRecovered { packet_number: pn });
    }

    fn code_updated(&mut self, now: Instant, old: Option<Scheme>, new: Option<Scheme>) {
        let name = |code: Option<Scheme>| code.map_or_else(|| "off".to_owned(), |code| code.to_string());
        self.event(now, "fec:code_updated", &CodeUpdated { old: name(old), new: name(new) });
    }

    fn limited(&mut self, now: Instant, by: Limit) {
        if self.limit.replace(by) != Some(by) {
            self.event(now, "sender:limited", &Limited { by: by.name() });
        }
    }

    fn timer_expired(&mut self, now: Instant, timer: Timer) {
        let timer_type = match timer {
            Timer::LossDetection => "loss_timeout",
            Timer::PathValidation => "path_validation",
            Timer::Idle if matches!(self.state, Some("attempted" | "handshake_started")) => "handshake_timeout",
            Timer::Idle => "idle_timeout",
            // The draft has no names for these, and those of them that matter show in what follows.
            Timer::AckDelay
            | Timer::Pacing
            | Timer::Repair
            | Timer::KeepAlive
            | Timer::Silence
            | Timer::Rest
            | Timer::DiscardKeys
            | Timer::Close => {
                return;
            }
        };
        self.event(now, "quic:timer_updated", &TimerUpdated { timer_type, event_type: "expired" });
    }

    fn connected(&mut self, now: Instant, alpn: &[u8]) {
        let string_value = std::str::from_utf8(alpn).ok();
        let chosen_alpn = AlpnIdentifier { byte_value: Hex(alpn), string_value };
        self.event(now, "quic:alpn_information", &AlpnInformation { chosen_alpn });
        self.enter(now, "handshake_complete");
    }

    fn confirmed(&mut self, now: Instant) {
        self.enter(now, "handshake_confirmed");
    }

    fn key_installed(&mut self, now: Instant, level: Level, sender: Direction, suite: CipherSuite) {
        if (level, sender) == (Level::OneRtt, Direction::Local) {
            let tls_cipher = match suite {
                CipherSuite::Aes128Gcm => "AES_128_GCM_SHA256",
                CipherSuite::Aes256Gcm => "AES_256_GCM_SHA384",
                CipherSuite::ChaCha20Poly1305 => "CHACHA20_POLY1305_SHA256",
            };
            self.event(now, "quic:parameters_set", &CipherSet { tls_cipher });
        }
        let key_type = self.key_type(level, sender);
        let key_phase = (level == Level::OneRtt).then_some(0);
        self.event(now, "quic:key_updated", &KeyEvent { key_type, key_phase, trigger: Some("tls") });
    }

    fn keys_updated(&mut self, now: Instant, phase: u64, by: Initiator) {
        let trigger = match by {
            Initiator::Local => "local_update",
            Initiator::Remote => "remote_update",
        };
        self.keys(now, "quic:key_updated", Level::OneRtt, Some(phase), Some(trigger));
    }

    fn keys_discarded(&mut self, now: Instant, level: Level, phase: Option<u64>) {
        let trigger = phase.is_none().then_some("tls");
        self.keys(now, "quic:key_discarded", level, phase, trigger);
    }

    fn migration(&mut self, now: Instant, state: Migration, remote: std::net::SocketAddr) {
        let new = match state {
            Migration::Started => "migration_started",
            Migration::Validated => "migration_complete",
            Migration::Abandoned => "migration_abandoned",
        };
        let data = MigrationStateUpdated { new, tuple_remote: TupleEndpointInfo::at(remote, None) };
        self.event(now, "quic:migration_state_updated", &data);
    }

    fn mtu_updated(&mut self, now: Instant, old: u16, new: u16) {
        self.event(now, "quic:mtu_updated", &MtuUpdated { old, new });
    }

    fn closed(&mut self, now: Instant, reason: &CloseReason, ending: Ending) {
        self.event(now, "quic:connection_closed", &ConnectionClosed::new(reason, ending));
        let state = match ending {
            Ending::Closing => "closing",
            Ending::Draining => "draining",
            Ending::Silent => "closed",
        };
        self.enter(now, state);
        self.flush();
    }
}
