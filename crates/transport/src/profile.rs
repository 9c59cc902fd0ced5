//! Profile: the transport settings of a connection.

use serde::{Deserialize, Serialize};
use units::Duration;

use crate::{
    ack_frequency::AckFrequency,
    acks,
    congestion::Algorithm,
    datagrams::DatagramsConfig,
    fec::FecPolicy,
    keys::{KeyLimits, KeyUpdatePolicy},
    path::MtuDiscovery,
    recovery::{self, LossTolerance},
    streams::StreamsConfig,
};

/// Named set of transport settings. Settings that the lab compares can be deployed unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// Name in reports.
    pub name: String,
    /// Congestion control.
    pub congestion: Algorithm,
    /// Policy by which the peer's packets are acknowledged.
    pub acks: AckPolicy,
    /// Acknowledgement frequency requested of the peer.
    pub ack_frequency: AckFrequency,
    /// Largest number of receive timestamps that the peer is asked to report in an acknowledgement (draft-ietf-quic-receive-ts-02). They
    /// give the variation of the delay in each direction. 0 requests none; 64 suffice, more than 128 are not accepted.
    pub receive_timestamps: u16,
    /// Forward error correction: `off`, `receive`, a code such as `rlc:1/5:40`, or `auto` (docs/fec.md).
    pub fec: FecPolicy,
    /// Share of packets that may be lost without a reaction of congestion control, as long as no queue builds: from 0, which is
    /// off, to 15 %. Applies to CUBIC, BBRv2 and BBRv3; `auto` finds the share itself.
    pub random_loss_tolerance: LossTolerance,
    /// Windows and limits of streams, in bytes and numbers of streams.
    pub streams: StreamsConfig,
    /// Bytes that each of the two queues of unreliable datagrams may hold. 0 refuses DATAGRAM frames.
    pub datagram_queue: u64,
    /// Idle timeout: the connection ends after this time without received packets; the smaller of both endpoints' values holds. Zero:
    /// never.
    pub idle_timeout: Duration,
    /// Silence after which a PING is sent, as a keep-alive. `None` lets an idle connection time out.
    pub keep_alive: Option<Duration>,
    /// PINGs of a client that waits for data and receives nothing, so that the server learns its address after a NAT rebinding: the first
    /// after two probe timeouts and 250 ms, then at most one a second, at most 12 in one silence. An idle connection sends none.
    pub silence_pings: bool,
    /// Time limit of the handshake. After it the handshake is abandoned, with CONNECTION_CLOSE to a peer with a validated address.
    pub handshake_timeout: Duration,
    /// UDP payload that is sent on a new path without proof that it arrives, in bytes; at least 1,200, which every path
    /// for QUIC carries. Mobile networks commonly pass 1,350.
    pub initial_mtu: u16,
    /// Largest UDP payload of MTU discovery (RFC 8899), in bytes. Ethernet carries 1,452 over IPv6 and 1,472 over IPv4. At most
    /// `initial_mtu`: no discovery.
    pub max_mtu: u16,
    /// Time after which a size below `max_mtu` is probed again, and after a failure `max_mtu`.
    pub mtu_search_interval: Duration,
    /// RTT that is assumed before the first sample (RFC 9002 §6.2.2).
    pub initial_rtt: Duration,
    /// Spread packets over the round trip instead of sending bursts.
    pub pacing: bool,
    /// Mark packets ECT(0), and react to congestion marks.
    pub ecn: bool,
    /// Let the spin bit show round trips to observers of the path (RFC 9000 §17.4); one path in 16 does not.
    // RFC 9000 §17.4 MUST-2: the spin bit can be switched off
    pub spin: bool,
    /// Offer and use greasing of the fixed bit (RFC 9287), so that the network does not come to depend on it.
    pub grease: bool,
    /// Policy of key updates that this end starts.
    pub key_update: KeyUpdatePolicy,
    /// Limits of the use of keys, for tests that cannot send 2^23 packets.
    #[serde(skip)]
    pub key_limits: KeyLimits,
}

/// Policy of acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AckPolicy {
    /// Ack-eliciting packets after which an acknowledgement is sent at the latest.
    pub every: u32,
    /// … or after this time (RFC 9000 §13.2.1).
    pub max_delay: Duration,
    /// Obey a peer that requests another acknowledgement frequency (draft-ietf-quic-ack-frequency-14).
    pub obey: bool,
}

/// Bytes that a connection with repair `auto` begins with: 15 packets of 1,200.
const WINDOW_WITH_REPAIR: u64 = 18_000;

/// Shortest delay that this end can keep: its timers are no finer.
const MIN_ACK_DELAY: Duration = Duration::from_millis(1);

impl AckPolicy {
    pub(crate) fn policy(&self) -> acks::AckPolicy {
        acks::AckPolicy {
            ack_eliciting_threshold: self.every,
            max_ack_delay: self.max_delay,
            ..acks::AckPolicy::default()
        }
    }

    /// Smallest acknowledgement delay that the peer may request; `None` when it may not request any.
    // draft-ietf-quic-ack-frequency-14 §3 MUST: not above max_ack_delay.
    pub(crate) fn min_delay(&self) -> Option<Duration> {
        self.obey
            .then(|| MIN_ACK_DELAY.min(Duration::from_millis(u64::try_from(self.max_delay.as_millis()).unwrap_or(1))))
    }
}

impl Profile {
    /// Number of receive timestamps requested in an acknowledgement.
    pub(crate) fn receive_times(&self) -> usize {
        usize::from(self.receive_timestamps).min(acks::MAX_TIMES)
    }

    pub(crate) fn recovery_config(&self) -> recovery::Config {
        recovery::Config {
            algorithm: self.congestion,
            initial_rtt: self.initial_rtt,
            initial_window: self.initial_window(),
            pacing: self.pacing,
            receive_times: self.receive_timestamps > 0,
            random_loss_tolerance: self.random_loss_tolerance,
        }
    }

    /// Initial congestion window in bytes; `None` for that of RFC 9002 §7.2. It has room for its ten packets, two repair symbols at their
    /// end, and the handshake's packets in flight: a window filled by data alone would delay its repair. This is above the 14,720 bytes of
    /// RFC 9002 §7.2 SHOULD-1 by the repair.
    fn initial_window(&self) -> Option<u64> {
        (self.fec == FecPolicy::Auto).then(|| WINDOW_WITH_REPAIR.max(2 * u64::from(self.initial_mtu)))
    }

    pub(crate) fn mtu_discovery(&self) -> MtuDiscovery {
        MtuDiscovery::new(self.initial_mtu, self.max_mtu, self.mtu_search_interval)
    }

    pub(crate) fn datagrams_config(&self) -> DatagramsConfig {
        DatagramsConfig {
            send_buffer: self.datagram_queue,
            receive_buffer: self.datagram_queue,
            // One frame of any size that a packet can hold.
            max_frame_size: if self.datagram_queue > 0 { 65_535 } else { 0 },
        }
    }
}

impl Default for AckPolicy {
    fn default() -> Self {
        Self { every: 2, max_delay: Duration::from_millis(25), obey: true }
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            congestion: Algorithm::default(),
            acks: AckPolicy::default(),
            ack_frequency: AckFrequency::default(),
            receive_timestamps: 0,
            fec: FecPolicy::Off,
            random_loss_tolerance: LossTolerance::OFF,
            streams: StreamsConfig::default(),
            datagram_queue: 1024 * 1024,
            idle_timeout: Duration::from_secs(30),
            keep_alive: None,
            silence_pings: true,
            handshake_timeout: Duration::from_secs(10),
            initial_mtu: 1200,
            max_mtu: 1452,
            mtu_search_interval: Duration::from_secs(600),
            initial_rtt: Duration::from_millis(333),
            pacing: true,
            ecn: true,
            spin: true,
            grease: true,
            key_update: KeyUpdatePolicy::default(),
            key_limits: KeyLimits::default(),
        }
    }
}
