//! Getters of a connection.

use std::net::SocketAddr;

use units::Duration;
use wire::{ConnectionId, Side};

use super::{
    Connection,
    sources::Sources,
    spaces::{SpaceId, Spaces},
};
use crate::{
    ack_frequency::AckFrequency,
    congestion::PathModel,
    fec::FecPolicy,
    memory::ConnectionBudget,
    observe::RecoveryMetrics,
    path::Path,
    recovery::{PathDirection, Recovery},
    stats::Stats,
    tls::Session,
};

/// Getters.
impl Connection {
    /// Client or server.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The version of QUIC, see [`wire::version`]; until the handshake is complete the server may choose another.
    pub fn version(&self) -> u32 {
        self.packets.identity.version
    }

    /// The address of the peer on the path in use, validated or not: one authentic packet with a forged source makes it a
    /// foreign one until the validation of that path fails. To name the peer use [`validated_remote`](Self::validated_remote).
    pub fn remote(&self) -> SocketAddr {
        self.paths.active().remote
    }

    /// The last address at which the peer has shown that it receives (RFC 9000 §8).
    ///
    /// Tokens, the first Handshake packet, and after a change of address a response to a challenge validate a server's path to a client.
    /// Until the first of these, the result is the address of the Initial packets, which anyone can forge: see
    /// [`has_validated_remote`](Self::has_validated_remote). It cannot change before the handshake is confirmed. A client chose the address
    /// of its server, and the handshake authenticates it.
    pub fn validated_remote(&self) -> SocketAddr {
        self.paths.validated_remote()
    }

    /// Returns whether the peer has shown that it receives at [`validated_remote`](Self::validated_remote).
    pub fn has_validated_remote(&self) -> bool {
        self.paths.has_validated_remote()
    }

    /// The handshake is complete and the connection is open.
    pub fn is_connected(&self) -> bool {
        self.lifecycle.is_connected()
    }

    /// Returns whether the connection has ended: only CONNECTION_CLOSE is sent any more.
    pub fn is_closed(&self) -> bool {
        !self.lifecycle.is_open()
    }

    /// The TLS session: application protocol, server name, certificates, exported keys.
    pub fn tls(&self) -> Option<&dyn Session> {
        self.packets.sources.handshake.session()
    }

    /// The ID that the client addressed first: names the connection in logs of both ends.
    pub fn original_dcid(&self) -> Option<ConnectionId> {
        self.packets.identity.original_dcid
    }

    /// Name of the congestion controller that is attached to the path in use.
    pub fn congestion_control(&self) -> &'static str {
        self.paths.active().recovery.controller().name()
    }

    /// The model of the path in use, where the congestion controller has one.
    pub fn path_model(&self) -> Option<PathModel> {
        self.paths.active().recovery.controller().model()
    }

    /// Acknowledgement frequency requested of the peer; [`AckFrequency::Off`] also if the peer does not support requests.
    pub fn ack_frequency(&self) -> AckFrequency {
        self.packets.sources.ack_requests.policy()
    }

    /// The forward error correction in force; off also when the peer does not understand it.
    pub fn fec(&self) -> FecPolicy {
        match (&self.packets.sources.fec.sender, &self.packets.sources.fec.receiver) {
            (Some(_), _) => self.profile.fec,
            (None, Some(_)) => FecPolicy::Receive,
            (None, None) => FecPolicy::Off,
        }
    }

    /// Smoothed RTT of the path in use.
    pub fn rtt(&self) -> Duration {
        self.paths.active().recovery.rtt().smoothed()
    }

    /// Budget of the memory that a peer can make this connection hold: the layers above charge what they hold to it too.
    pub fn memory_budget(&self) -> &ConnectionBudget {
        &self.memory.budget
    }

    /// Returns whether unread data takes half of the flow control window, or more: all streams may soon be blocked (RFC 9000 §4.1).
    pub fn is_mostly_unread(&self) -> bool {
        self.packets.sources.streams.is_mostly_unread()
    }

    /// All figures at this moment.
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats.stats();
        report_path(self.paths.active(), &mut stats);
        stats.congestion_events += self.paths.congestion_events();
        self.packets.spaces.report(&mut stats);
        self.packets.sources.report(&mut stats);
        stats.waiting_bytes_received = self.reception.unopened_bytes() as u64;
        stats
    }

    /// Bytes of memory that the records of packets hold: those sent and not yet accounted for, and those received.
    pub fn records_memory(&self) -> usize {
        self.packets.spaces.records_memory() + self.packets.sources.fec.memory()
    }

    /// Bytes of memory that the connection takes: its state, the records of packets, streams, and their data that waits to be
    /// acknowledged or to be read. What the application has written ahead is not in it, nor what the TLS library holds.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.records_memory() + self.packets.sources.streams.figures().memory() as usize
    }

    /// The state of recovery and congestion control of the path in use.
    pub fn metrics(&self) -> RecoveryMetrics {
        metrics(&self.paths.active().recovery)
    }
}

/// The state of recovery and congestion control of a path.
fn metrics(recovery: &Recovery) -> RecoveryMetrics {
    let (rtt, controller) = (recovery.rtt(), recovery.controller());
    RecoveryMetrics {
        min_rtt: rtt.min().unwrap_or_default(),
        smoothed_rtt: rtt.smoothed(),
        latest_rtt: rtt.latest(),
        rtt_variation: rtt.variation(),
        window: recovery.window(),
        ssthresh: controller.ssthresh(),
        in_flight: recovery.bytes_in_flight(),
        pacing_rate: recovery.pacing_rate(),
        pto_count: recovery.pto_count(),
        state: controller.state(),
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Figures of the path in use.
fn report_path(path: &Path, stats: &mut Stats) {
    let metrics = metrics(&path.recovery);
    stats.min_rtt = nanos(metrics.min_rtt);
    stats.latest_rtt = nanos(metrics.latest_rtt);
    stats.smoothed_rtt = nanos(metrics.smoothed_rtt);
    stats.rtt_variation = nanos(metrics.rtt_variation);
    stats.congestion_window = metrics.window;
    stats.bytes_in_flight = metrics.in_flight;
    stats.pacing_rate = metrics.pacing_rate.map_or(0, units::Bitrate::as_bps);
    // Read from what the controller keeps in any case: packets pay nothing for it.
    let model = path.recovery.controller().model();
    stats.delivery_rate = model.map_or(0, |model| model.max_bandwidth.as_bps());
    stats.mtu = path.mtu.into();
    if let Some(one_way) = path.recovery.one_way() {
        stats.forward_delay_variation = nanos(one_way.smoothed(PathDirection::Forward));
        stats.reverse_delay_variation = nanos(one_way.smoothed(PathDirection::Reverse));
        stats.forward_delay_variation_latest = nanos(one_way.latest(PathDirection::Forward));
        stats.reverse_delay_variation_latest = nanos(one_way.latest(PathDirection::Reverse));
    }
}

impl Spaces {
    /// Figures of acknowledgements.
    fn report(&self, stats: &mut Stats) {
        if let Some(space) = self.get(SpaceId::DATA) {
            stats.receive_times_sent = space.acks.times_reported();
            stats.packets_per_ack_obeyed = u64::from(space.acks.policy().ack_eliciting_threshold);
        }
    }
}

impl Sources {
    /// Figures of the parts.
    fn report(&self, stats: &mut Stats) {
        let asked = self.ack_requests.newest();
        stats.packets_per_ack_asked = asked.packets;
        stats.ack_requests_acked = self.ack_requests.acked();
        stats.ack_delay_asked = nanos(asked.delay);
        if let Some(sender) = &self.fec.sender {
            let figures = sender.figures;
            stats.fec_symbols_sent = figures.symbols;
            stats.fec_repairs_sent = figures.repairs;
            stats.fec_repair_bytes_sent = figures.repair_bytes;
            stats.fec_repairs_dropped = figures.dropped;
            stats.fec_packets_recovered = figures.recovered;
            stats.fec_packets_recovered_late = figures.recovered_late;
            stats.fec_reviews = figures.reviews;
            let repair = if sender.is_on() { sender.scheme().overhead() } else { 0.0 };
            stats.fec_repair_rate = (repair * 1000.0).round() as u64;
        }
        if let Some(receiver) = &self.fec.receiver {
            let figures = receiver.figures();
            stats.fec_symbols_received = figures.sources;
            stats.fec_repairs_received = figures.repairs;
            stats.fec_symbols_recovered = figures.recovered;
            stats.fec_symbols_unrecovered = figures.unrecovered;
            stats.fec_symbols_recovered_needlessly = figures.recovered_needlessly;
            stats.fec_repairs_spare = figures.spare;
            stats.fec_repairs_late = figures.late;
            stats.fec_repairs_refused = figures.refused;
            stats.fec_work = figures.work;
            stats.fec_recovery_delay = nanos(receiver.recovery_delay());
        }
        let streams = self.streams.figures();
        stats.stream_bytes_sent = streams.sent_bytes + streams.resent_bytes;
        stats.stream_bytes_retransmitted = streams.resent_bytes;
        stats.stream_bytes_delivered = streams.delivered_bytes;
        stats.stream_header_bytes_sent = streams.header_bytes;
        stats.control_bytes_sent += streams.control_bytes;
        stats.stream_bytes_duplicate = streams.duplicate_bytes;
        stats.stream_bytes_unwanted = streams.unwanted_bytes;
        stats.stream_bytes_unread = streams.receive_buffered_bytes;
        let datagrams = self.datagrams.figures();
        stats.datagram_frames_sent = datagrams.sent;
        stats.datagram_frames_lost = datagrams.lost;
        stats.datagram_frames_expired = datagrams.expired;
        stats.datagram_frames_dropped = datagrams.send_dropped + datagrams.receive_dropped;
        stats.datagram_frames_dropped_unsent = datagrams.send_dropped;
        stats.datagram_frames_abandoned = datagrams.abandoned;
        stats.datagram_frames_queued = datagrams.queued;
        stats.datagram_frames_waiting = datagrams.waiting;
        stats.datagram_bytes_sent = datagrams.sent_bytes;
        stats.datagram_header_bytes_sent = datagrams.header_bytes;
        stats.datagram_frames_received = datagrams.received;
        stats.datagram_frames_delivered = datagrams.delivered;
        stats.datagram_frames_unread = datagrams.unread;
    }
}
