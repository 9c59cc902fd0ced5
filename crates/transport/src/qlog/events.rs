//! Data of events, in the order of the draft, as far as this crate can fill it.

use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};
use units::Duration;
use wire::{PreferredAddress, TransportParameters};

use super::{
    frames::{FrameList, QuicFrame, UNKNOWN},
    header::PacketHeader,
    value::{ErrorName, Hex, Raw, Version, is_false, millis},
};
use crate::{
    acks::Ecn,
    error::Code,
    events::CloseReason,
    observe::{DatagramsEvent, Ending, Initiator, RecoveryMetrics},
};

#[derive(Serialize)]
pub(super) struct ConnectionStarted<'a> {
    pub(super) local: TupleEndpointInfo<'a>,
    pub(super) remote: TupleEndpointInfo<'a>,
}

#[derive(Default, Serialize)]
pub(super) struct TupleEndpointInfo<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    ip_v4: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port_v4: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip_v6: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port_v6: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_ids: Option<[Hex<'a>; 1]>,
}

impl<'a> TupleEndpointInfo<'a> {
    pub(super) fn new(ip: Option<IpAddr>, port: Option<u16>, id: Option<&'a [u8]>) -> Self {
        let (v4, v6) = (ip.is_some_and(|ip| ip.is_ipv4()), ip.is_some_and(|ip| ip.is_ipv6()));
        Self {
            ip_v4: ip.filter(|_| v4),
            port_v4: port.filter(|_| v4),
            ip_v6: ip.filter(|_| v6),
            port_v6: port.filter(|_| v6),
            // An end may do without IDs, and the list may not be empty of meaning.
            connection_ids: id.filter(|id| !id.is_empty()).map(|id| [Hex(id)]),
        }
    }

    pub(super) fn at(address: SocketAddr, id: Option<&'a [u8]>) -> Self {
        Self::new(Some(address.ip()), Some(address.port()), id)
    }
}

#[derive(Default, Serialize)]
pub(super) struct ConnectionClosed<'a> {
    initiator: Option<InitiatorName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_error: Option<ErrorName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    application_error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<std::borrow::Cow<'a, str>>,
    trigger: &'static str,
}

impl<'a> ConnectionClosed<'a> {
    pub(super) fn new(why: &'a CloseReason, ending: Ending) -> Self {
        let local = Self { initiator: Some(InitiatorName::Local), ..Self::default() };
        let remote = Self { initiator: Some(InitiatorName::Remote), ..Self::default() };
        let with = |side: Self, error: &'a crate::TransportError, trigger| Self {
            connection_error: Some(ErrorName(error.code.0)),
            error_code: ErrorName(error.code.0).code_if_unknown(),
            reason: Some(error.reason.as_ref().into()),
            trigger,
            ..side
        };
        let application = |side: Self, code| Self {
            application_error: Some(UNKNOWN),
            error_code: Some(code),
            trigger: "application",
            ..side
        };
        match why {
            CloseReason::ThisApplication { code } => application(local, *code),
            CloseReason::PeerApplication { code, reason } => {
                Self { reason: Some(String::from_utf8_lossy(reason)), ..application(remote, *code) }
            }
            CloseReason::PeerMisbehaved(error) | CloseReason::HandshakeFailed { error, .. } => {
                with(local, error, "error")
            }
            CloseReason::PeerClosed { error } => {
                with(remote, error, if error.code.0 == 0 { "unspecified" } else { "error" })
            }
            CloseReason::Memory { .. } => Self { trigger: "error", ..local },
            CloseReason::StateLost => {
                Self { trigger: "aborted", reason: Some("state lost by a panic".into()), ..local }
            }
            CloseReason::Reset => Self { trigger: "stateless_reset", ..remote },
            CloseReason::IdleTimeout => Self { trigger: "idle_timeout", ..local },
            // The draft has no word for it. A peer that is told reads NO_ERROR.
            CloseReason::HandshakeTimeout => Self {
                trigger: "aborted",
                reason: Some("handshake timeout".into()),
                connection_error: (ending == Ending::Closing).then_some(ErrorName(Code::NO_ERROR.0)),
                ..local
            },
            CloseReason::Stranded(_) => {
                Self { trigger: "aborted", reason: Some("no way to follow the client".into()), ..local }
            }
            CloseReason::VersionMismatch { .. } => Self { trigger: "version_mismatch", ..local },
        }
    }
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum InitiatorName {
    Local,
    Remote,
}

impl From<Initiator> for InitiatorName {
    fn from(initiator: Initiator) -> Self {
        match initiator {
            Initiator::Local => Self::Local,
            Initiator::Remote => Self::Remote,
        }
    }
}

/// `connection_state_updated` and `congestion_state_updated`.
#[derive(Serialize)]
pub(super) struct StateUpdated {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) old: Option<&'static str>,
    pub(super) new: &'static str,
}

#[derive(Default, Serialize)]
pub(super) struct VersionInformation<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_versions: Option<&'a [Version]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) client_versions: Option<&'a [Version]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chosen_version: Option<Version>,
}

#[derive(Serialize)]
pub(super) struct AlpnInformation<'a> {
    pub(super) chosen_alpn: AlpnIdentifier<'a>,
}

#[derive(Serialize)]
pub(super) struct AlpnIdentifier<'a> {
    pub(super) byte_value: Hex<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) string_value: Option<&'a str>,
}

/// The suite, which is neither end's own setting.
#[derive(Serialize)]
pub(super) struct CipherSet {
    pub(super) tls_cipher: &'static str,
}

#[derive(Serialize)]
pub(super) struct ParametersSet<'a> {
    initiator: InitiatorName,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_destination_connection_id: Option<Hex<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    initial_source_connection_id: Option<Hex<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_source_connection_id: Option<Hex<'a>>,
    disable_active_migration: bool,
    max_idle_timeout: u64,
    max_udp_payload_size: u64,
    ack_delay_exponent: u64,
    max_ack_delay: u64,
    active_connection_id_limit: u64,
    initial_max_data: u64,
    initial_max_stream_data_bidi_local: u64,
    initial_max_stream_data_bidi_remote: u64,
    initial_max_stream_data_uni: u64,
    initial_max_streams_bidi: u64,
    initial_max_streams_uni: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    preferred_address: Option<PreferredAddressInfo<'a>>,
    max_datagram_frame_size: u64,
    grease_quic_bit: bool,
    #[serde(skip_serializing_if = "is_false")]
    reset_stream_at: bool,
}

/// `PreferredAddress` without its reset token.
#[derive(Serialize)]
struct PreferredAddressInfo<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    ip_v4: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port_v4: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip_v6: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port_v6: Option<u16>,
    connection_id: Hex<'a>,
}

impl<'a> ParametersSet<'a> {
    pub(super) fn new(by: Initiator, p: &'a TransportParameters) -> Self {
        let address = |a: &'a PreferredAddress| PreferredAddressInfo {
            ip_v4: a.ipv4.map(|v4| (*v4.ip()).into()),
            port_v4: a.ipv4.map(|v4| v4.port()),
            ip_v6: a.ipv6.map(|v6| (*v6.ip()).into()),
            port_v6: a.ipv6.map(|v6| v6.port()),
            connection_id: Hex(a.cid.as_slice()),
        };
        Self {
            initiator: by.into(),
            original_destination_connection_id: p.original_dcid.as_ref().map(|id| Hex(id.as_slice())),
            initial_source_connection_id: p.initial_source_cid.as_ref().map(|id| Hex(id.as_slice())),
            retry_source_connection_id: p.retry_source_cid.as_ref().map(|id| Hex(id.as_slice())),
            disable_active_migration: p.disable_active_migration,
            max_idle_timeout: p.max_idle_timeout_ms,
            max_udp_payload_size: p.max_udp_payload_size,
            ack_delay_exponent: p.ack_delay_exponent,
            max_ack_delay: p.max_ack_delay_ms,
            active_connection_id_limit: p.active_connection_id_limit,
            initial_max_data: p.initial_max_data,
            initial_max_stream_data_bidi_local: p.initial_max_stream_data_bidi_local,
            initial_max_stream_data_bidi_remote: p.initial_max_stream_data_bidi_remote,
            initial_max_stream_data_uni: p.initial_max_stream_data_uni,
            initial_max_streams_bidi: p.initial_max_streams_bidi,
            initial_max_streams_uni: p.initial_max_streams_uni,
            preferred_address: p.preferred_address.as_ref().map(address),
            max_datagram_frame_size: p.max_datagram_frame_size,
            grease_quic_bit: p.grease_quic_bit,
            reset_stream_at: p.reset_stream_at,
        }
    }
}

/// `packet_sent` and `packet_received`.
#[derive(Serialize)]
pub(super) struct PacketEventData<'a> {
    pub(super) header: PacketHeader<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) frames: Option<FrameList<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) supported_versions: Option<&'a [Version]>,
    pub(super) raw: Raw,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trigger: Option<&'static str>,
}

/// `packet_dropped` and `packet_buffered`.
#[derive(Serialize)]
pub(super) struct PacketUnread<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) header: Option<PacketHeader<'a>>,
    pub(super) raw: Raw,
    pub(super) trigger: &'static str,
}

/// `udp_datagrams_sent` and `udp_datagrams_received`.
#[derive(Serialize)]
pub(super) struct UdpDatagrams {
    count: usize,
    raw: Sizes,
    #[serde(skip_serializing_if = "Option::is_none")]
    ecn: Option<Marks>,
}

struct Sizes(DatagramsEvent);

impl Serialize for Sizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.sizes().map(Raw::of))
    }
}

struct Marks(DatagramsEvent);

impl Serialize for Marks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = match self.0.ecn {
            None => "Not-ECT",
            Some(Ecn::Ect0) => "ECT(0)",
            Some(Ecn::Ect1) => "ECT(1)",
            Some(Ecn::Ce) => "CE",
        };
        serializer.collect_seq(self.0.sizes().map(|_| name))
    }
}

impl UdpDatagrams {
    /// ECN marks are left out if they are those of the last such event.
    pub(super) fn new(datagrams: &DatagramsEvent, with_marks: bool) -> Self {
        let raw = Sizes(*datagrams);
        Self { count: datagrams.sizes().len(), raw, ecn: with_marks.then_some(Marks(*datagrams)) }
    }
}

#[derive(Serialize)]
pub(super) struct MigrationStateUpdated<'a> {
    pub(super) new: &'static str,
    pub(super) tuple_remote: TupleEndpointInfo<'a>,
}

#[derive(Serialize)]
pub(super) struct MtuUpdated {
    pub(super) old: u16,
    pub(super) new: u16,
}

#[derive(Serialize)]
pub(super) struct TimerUpdated {
    pub(super) timer_type: &'static str,
    pub(super) event_type: &'static str,
}

/// `key_updated` and `key_discarded`.
#[derive(Serialize)]
pub(super) struct KeyEvent {
    pub(super) key_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key_phase: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trigger: Option<&'static str>,
}

#[derive(Serialize)]
pub(super) struct RecoveryParametersSet {
    pub(super) reordering_threshold: u64,
    pub(super) timer_granularity: u64,
    pub(super) initial_rtt: f32,
    pub(super) max_datagram_size: u16,
    pub(super) initial_congestion_window: u64,
    pub(super) minimum_congestion_window: u64,
    /// Not of the draft, which permits any further field.
    pub(super) congestion_control: &'static str,
}

/// Metrics that have changed.
#[derive(Default, PartialEq, Serialize)]
pub(super) struct RecoveryMetricsUpdated {
    #[serde(skip_serializing_if = "Option::is_none")]
    min_rtt: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    smoothed_rtt: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latest_rtt: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_variance: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pto_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    congestion_window: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_in_flight: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ssthresh: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pacing_rate: Option<u64>,
}

impl RecoveryMetricsUpdated {
    /// Values that changed since `old`; `None` when none did. Values that were not measured are left out.
    pub(super) fn new(old: Option<&RecoveryMetrics>, new: &RecoveryMetrics) -> Option<Self> {
        fn changed<T: PartialEq>(
            old: Option<&RecoveryMetrics>,
            new: T,
            get: impl Fn(&RecoveryMetrics) -> T,
        ) -> Option<T> {
            old.is_none_or(|old| get(old) != new).then_some(new)
        }
        let measured = |get: fn(&RecoveryMetrics) -> Duration| {
            changed(old, get(new), get).filter(|_| !new.latest_rtt.is_zero()).map(millis)
        };
        let data = Self {
            min_rtt: measured(|m| m.min_rtt),
            smoothed_rtt: measured(|m| m.smoothed_rtt),
            latest_rtt: measured(|m| m.latest_rtt),
            rtt_variance: measured(|m| m.rtt_variation),
            pto_count: changed(old, new.pto_count, |m| m.pto_count),
            congestion_window: changed(old, new.window, |m| m.window),
            bytes_in_flight: changed(old, new.in_flight, |m| m.in_flight),
            ssthresh: changed(old, new.ssthresh, |m| m.ssthresh).flatten(),
            pacing_rate: changed(old, new.pacing_rate, |m| m.pacing_rate).flatten().map(units::Bitrate::as_bps),
        };
        (data != Self::default()).then_some(data)
    }
}

#[derive(Serialize)]
pub(super) struct PacketLost<'a> {
    pub(super) header: PacketHeader<'a>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) is_mtu_probe_packet: bool,
    pub(super) trigger: &'static str,
}

#[derive(Serialize)]
pub(super) struct MarkedForRetransmit<'a> {
    pub(super) frames: [QuicFrame<'a>; 1],
}

/// Not of the draft: docs/fec.md.
#[derive(Serialize)]
pub(super) struct SymbolRecovered {
    pub(super) symbol_id: u64,
    /// Milliseconds since the symbol was first missed.
    pub(super) delay: f32,
}

/// Not of the draft: docs/fec.md.
#[derive(Serialize)]
pub(super) struct PacketRecovered {
    pub(super) packet_number: u64,
}

/// Limit of the sender until the next such event. Not in the draft.
#[derive(Serialize)]
pub(super) struct Limited {
    pub(super) by: &'static str,
}

/// Not of the draft: docs/fec.md.
#[derive(Serialize)]
pub(super) struct CodeUpdated {
    pub(super) old: String,
    pub(super) new: String,
}
