//! Acknowledgements, losses and probes: passes the decisions of recovery to the parts.

use units::{Bitrate, Duration, Instant};
use wire::{Ack, Side, frame_type};

use super::{
    Connection,
    packets::Packets,
    receive::PacketSeen,
    sources::Sources,
    spaces::{Space, SpaceId},
    verdicts::Carriers,
    watch::Observation,
};
use crate::{
    ack_frequency::{AckRequests, View},
    acks::MAX_TIMES,
    error::{Code, TransportError},
    observe::Observer,
    path::{Path, Paths},
    recovery::{self, AckOutcome, Deadline, EcnFeedback, OneWay, PathDirection, Progress, Reason},
    sent::{Ledger, PathIndex, SentFrame, Verdict},
    stats::Counts,
    tls::Level,
};

/// Unit of requested receive timestamps: 2^3 microseconds, as for acknowledgement delays. The distance of two packets then takes one byte
/// up to 0.5 ms.
pub(super) const RECEIVE_TIMES_EXPONENT: u64 = 3;
/// Probes that a timeout sends (RFC 9002 §6.2.4 permits two).
const PROBES: u8 = 2;
/// Packets whose content an application data probe repeats without new data.
const REPEATED: usize = 2;

impl Connection {
    /// Progress of the handshake, as far as probe timeouts depend on it.
    pub(super) fn recovery_progress(&self) -> Progress {
        let has_handshake_keys = self.packets.keys.can_seal(Level::Handshake);
        self.packets.sources.recovery_progress(self.side, has_handshake_keys, self.datagram_room() == 0)
    }

    /// The receive times in an ACK frame, before the packets that they are about leave the ledger.
    #[cold]
    pub(super) fn on_receive_times(
        &mut self,
        now: Instant,
        seen: &PacketSeen<'_>,
        ack: &Ack<'_>,
    ) -> Result<(), TransportError> {
        check_receive_times(ack, self.profile.receive_times())?;
        // The acknowledgement left the peer when it had held the largest packet back for so long.
        let held = Duration::from_micros(ack.delay.saturating_mul(1 << self.peer.ack_delay_exponent));
        let active = self.paths.active_index();
        let one_way = self.paths.active_mut().recovery.one_way_mut();
        if let (Some(space), Some(one_way)) = (self.packets.spaces.get(seen.space), one_way) {
            let Self { observation, stats, .. } = self;
            let mut times = ReceiveTimes { now, ledger: &space.ledger, active, one_way, observation, stats };
            times.read(seen, ack, held);
        }
        Ok(())
    }

    /// An ACK frame.
    #[inline]
    pub(super) fn on_ack(&mut self, now: Instant, seen: &PacketSeen<'_>, ack: &Ack<'_>) -> Result<(), TransportError> {
        let id = seen.space;
        self.stats.ack_frames_received += 1;
        // RFC 9000 §19.3: the delay counts in units that the peer chose.
        let delay = Duration::from_micros(ack.delay.saturating_mul(1 << self.peer.ack_delay_exponent));
        let mut progress = self.recovery_progress();
        // What waited arrived before the handshake was confirmed.
        if seen.arrival.waited {
            progress.waited_for_keys = now.saturating_since(seen.arrival.received_at);
        }
        if let SpaceId::Data(path) = id {
            self.early.check_refused(ack)?;
            self.packets.keys.on_acked(path, ack.largest, now, seen.old_keys)?;
        }
        let Some((mut carriers, ledger, paths)) = self.carriers(id, Some(now)) else { return Ok(()) };
        let outcome = recovery::on_ack_received(ledger, paths, id, ack, now, delay, &progress, &mut carriers)?;
        carriers.settle();
        // RFC 9002 §A.6: only a Handshake packet's acknowledgement proves that the server has validated us.
        if id == SpaceId::Handshake && outcome.acked_packets > 0 {
            self.packets.sources.handshake.on_acked();
        }
        self.on_outcome(now, &outcome);
        Ok(())
    }

    /// Receivers of verdicts, beside the ledger of a space and the paths.
    #[inline]
    pub(super) fn carriers(
        &mut self,
        id: SpaceId,
        observed_at: Option<Instant>,
    ) -> Option<(Carriers<'_>, &mut Ledger, &mut Paths)> {
        let observer = observed_at.zip(self.observation.observer.as_deref_mut());
        let (carriers, ledger) = self.packets.carriers(id, observer)?;
        Some((carriers, ledger, &mut self.paths))
    }

    /// Counts what an acknowledgement or a timeout brought.
    pub(super) fn on_outcome(&mut self, now: Instant, outcome: &AckOutcome) {
        count_outcome(&mut self.stats, outcome);
        if let Some((before, after)) = self.packets.sources.fec.review(now, self.paths.active_mut(), outcome) {
            self.observation.tell(now, |observer, at| observer.code_updated(at, before, after));
        }
        if self.packets.sources.ack_requests.is_on() && outcome.acked_packets > 0 {
            self.packets.sources.apply_ack_delay(&mut self.paths);
            if self.packets.sources.handshake.is_confirmed() {
                review_requests(&mut self.packets.sources.ack_requests, self.paths.active(), now);
            }
        }
        self.paths[outcome.ecn_path].on_ecn(outcome.ecn);
        self.on_mtu_outcome(now, outcome);
        if self.observation.observer.is_some() {
            if let Some((path, latest)) = outcome.rtt {
                let adjusted = self.paths[path].recovery.rtt().adjusted();
                self.observation.tell(now, |observer, at| observer.rtt_sample(at, latest, adjusted));
            }
            self.observe_metrics(now);
        }
    }

    /// Time and reason of the next look of recovery.
    pub(super) fn recovery_deadline(&self) -> Option<(PathIndex, Deadline)> {
        self.paths.recovery_deadline(&self.recovery_progress())
    }

    /// The deadline of recovery has passed.
    pub(super) fn on_recovery_timeout(&mut self, now: Instant) {
        let Some((path, deadline)) = self.recovery_deadline().filter(|(_, d)| d.at <= now) else { return };
        let id = deadline.space;
        match deadline.reason {
            Reason::LossTime => {
                let Some((mut carriers, ledger, paths)) = self.carriers(id, Some(now)) else { return };
                let outcome = recovery::on_loss_timer(ledger, paths, deadline.space, now, &mut carriers);
                carriers.settle();
                self.on_outcome(now, &outcome);
            }
            Reason::Probe | Reason::AntiDeadlock => {
                self.stats.probe_timeouts += 1;
                self.paths[path].recovery.on_probe_timeout(now);
                self.stats.ecn_failures += u64::from(self.paths[path].marks.on_timeout());
                if !self.packets.sources.handshake.is_confirmed() {
                    // What was trusted without proof may be what does not arrive.
                    let mtu = self.paths[path].discovery.distrust();
                    self.set_path_mtu(now, path, mtu);
                }
                self.packets.probe(now, id, deadline.reason == Reason::AntiDeadlock, &self.paths);
                self.observe_metrics(now);
            }
        }
    }
}

impl Packets {
    /// Receivers of verdicts, beside the ledger of a space.
    #[inline]
    pub(super) fn carriers<'a>(
        &'a mut self,
        id: SpaceId,
        observer: Option<(Instant, &'a mut (dyn Observer + 'static))>,
    ) -> Option<(Carriers<'a>, &'a mut Ledger)> {
        let Space { ledger, acks, .. } = self.spaces.get_mut(id)?;
        Some((Carriers::new(id, acks, &mut self.sources, &mut self.identity, observer), ledger))
    }

    /// Asks for probes in a space. RFC 9002 §6.2.4 MUST-1, SHOULD-2: they carry something new, or else repeat what is
    /// missing.
    fn probe(&mut self, now: Instant, id: SpaceId, anti_deadlock: bool, paths: &Paths) {
        let new_data = self.sources.wants_to_send(id, &self.identity);
        if let Some(space) = self.spaces.get_mut(id) {
            space.probes = if anti_deadlock { 1 } else { PROBES };
        }
        if id == SpaceId::DATA {
            // Repair of all that is missing does more than a copy of a part of it.
            let repaired =
                !new_data && self.sources.fec.sender.as_mut().is_some_and(|sender| sender.probe(now, PROBES));
            if !new_data && !repaired {
                self.repeat_oldest(id, REPEATED);
            }
            return;
        }
        // The whole flight of the handshake is missing, most likely; all of it goes again, as far as the limits permit.
        self.sources.repeat_handshake();
        // RFC 9002 §6.2.4 SHOULD-1: other spaces with packets in flight join, and those with something to say: the
        // peer may need just that to read the rest, which fills the window meanwhile.
        let other = if id == SpaceId::Initial { SpaceId::Handshake } else { SpaceId::Initial };
        let in_flight = paths.active().recovery.ack_eliciting_in_flight(other);
        let joins = in_flight > 0 || self.sources.handshake.wants_to_send(other.level());
        if let Some(space) = self.spaces.get_mut(other).filter(|_| joins) {
            space.probes = space.probes.max(PROBES);
        }
    }

    /// Queues the frames of the oldest packets in flight again; the packets stay in flight.
    fn repeat_oldest(&mut self, id: SpaceId, packets: usize) {
        let Some((mut carriers, ledger)) = self.carriers(id, None) else { return };
        ledger.oldest_unacked(packets, |frame| carriers.repeat(&frame));
    }

    /// Moves the content in flight on an abandoned path to the active one.
    pub(super) fn abandon_path(&mut self, path: PathIndex) {
        let Some((mut carriers, ledger)) = self.carriers(SpaceId::DATA, None) else { return };
        recovery::abandon_path(ledger, path, &mut |verdict, frame| carriers.tell(verdict, &frame));
    }

    /// Forgets what was sent in a space whose keys are gone, or sends it again where a Retry voids it.
    fn settle_space(&mut self, now: Instant, id: SpaceId, space: &mut Space, paths: &mut Paths) {
        let mut carriers = Carriers::new(id, &mut space.acks, &mut self.sources, &mut self.identity, None);
        recovery::discard_space(&mut space.ledger, paths, id, now, &mut |_: Verdict, frame: SentFrame| {
            carriers.tell(Verdict::Lost, &frame);
        });
    }

    /// Repeats the content of Initial packets after a Retry, with continuing packet numbers (RFC 9000 §17.2.5.3 MUST-1, MUST NOT-1).
    pub(super) fn resend_initial(&mut self, now: Instant, paths: &mut Paths) {
        if let Some(mut space) = self.spaces.take(SpaceId::Initial) {
            self.settle_space(now, SpaceId::Initial, &mut space, paths);
            self.spaces.put_initial(space);
        }
    }

    /// Forgets a level of the handshake with everything that was sent in it (RFC 9002 §6.4).
    pub(super) fn discard_space(
        &mut self,
        now: Instant,
        id: SpaceId,
        paths: &mut Paths,
        observation: &mut Observation,
    ) {
        let level = id.level();
        if let Some(mut space) = self.spaces.take(id) {
            self.keys.discard(level);
            observation.tell(now, |observer, at| observer.keys_discarded(at, level, None));
            self.sources.handshake.discard(level);
            self.settle_space(now, id, &mut space, paths);
        }
        if level == Level::Initial {
            self.identity.token = Vec::new();
        }
    }

    /// Takes all 0-RTT packets out of the account: after a Retry, to send their content again
    /// (RFC 9000 §17.2.3 SHOULD-1, MUST-1), or because the server has refused them, when the parts know by other
    /// means.
    pub(super) fn void_early(&mut self, now: Instant, again: bool, paths: &mut Paths) {
        let Some((mut carriers, ledger)) = self.carriers(SpaceId::DATA, None) else { return };
        let mut tell = |_: Verdict, frame: SentFrame| {
            if again {
                carriers.tell(Verdict::Lost, &frame);
            }
        };
        recovery::discard_space(ledger, paths, SpaceId::DATA, now, &mut tell);
    }
}

/// Updates the requests with an acknowledgement on `path`, and decides whether another is due.
fn review_requests(requests: &mut AckRequests, path: &Path, now: Instant) {
    let recovery = &path.recovery;
    let Some(min_rtt) = recovery.rtt().min() else { return };
    let mtu = u64::from(path.mtu);
    let controller = recovery.controller();
    let in_min_rtt = |rate: Bitrate| rate.in_time(min_rtt).as_bytes() / mtu;
    let view = View {
        window: recovery.window() / mtu,
        smoothed_rtt: recovery.rtt().smoothed(),
        min_rtt,
        rate: controller.pacing_rate().map(in_min_rtt),
        probing: controller.is_probing(),
        packet_threshold: recovery.reordering().packet_threshold(),
    };
    requests.review(now, &view);
}

/// Counts what an acknowledgement or a timeout brought.
fn count_outcome(stats: &mut Counts, outcome: &AckOutcome) {
    stats.packets_acked += outcome.acked_packets;
    stats.packets_lost += outcome.lost_packets;
    stats.bytes_lost += outcome.lost_bytes;
    stats.loss_detection_time += u64::try_from(outcome.loss_detection_time.as_nanos()).unwrap_or(0);
    stats.packets_lost_randomly += outcome.random_packets;
    stats.packets_lost_spuriously += outcome.spurious_packets;
    stats.persistent_congestion += u64::from(outcome.persistent_congestion);
    match outcome.ecn {
        EcnFeedback::Valid { newly_ce } => {
            stats.ecn_confirmed += 1;
            stats.ecn_ce_marks += newly_ce;
        }
        EcnFeedback::Failed => stats.ecn_failures += 1,
        EcnFeedback::None => {}
    }
}

impl Sources {
    /// Progress of the handshake, as far as probe timeouts depend on it.
    fn recovery_progress(&self, side: Side, has_handshake_keys: bool, at_amplification_limit: bool) -> Progress {
        let confirmed = self.handshake.is_confirmed();
        Progress {
            has_handshake_keys,
            confirmed,
            // Early data that waits for its acknowledgement can fill the window, so that the client's last flight has to leave
            // as a probe; nothing else would bring it on its way.
            peer_validated_us: side == Side::Server
                || confirmed
                || self.handshake.is_acked() && !self.handshake.wants_to_send(Level::Handshake),
            at_amplification_limit,
            waited_for_keys: Duration::ZERO,
        }
    }

    /// Lets probe timeouts count with the delay that may be in force (draft-ietf-quic-ack-frequency-14 §7).
    pub(super) fn apply_ack_delay(&mut self, paths: &mut Paths) {
        if self.ack_requests.take_change() {
            paths.set_max_ack_delay(self.ack_requests.max_ack_delay());
        }
    }

    /// Sends all of the handshake again that was not acknowledged.
    pub(super) fn repeat_handshake(&mut self) {
        for level in [Level::Initial, Level::Handshake] {
            if let Some(crypto) = self.handshake.crypto(level) {
                crypto.send_again();
            }
        }
    }
}

/// Checks an ACK frame with receive timestamps, of which `most` were requested.
fn check_receive_times(ack: &Ack<'_>, most: usize) -> Result<(), TransportError> {
    let error = |code, what| Err(TransportError::new(code, what).in_frame(frame_type::ACK_RECEIVE_TIMESTAMPS));
    if most == 0 {
        // RFC 9000 §12.4 MUST: a type that was not negotiated is as good as unknown.
        return error(Code::FRAME_ENCODING_ERROR, "the frame type is unknown");
    }
    // draft-ietf-quic-receive-ts-02 §5 MUST: no more than we asked for.
    if ack.receive_times().is_some_and(|times| times.count() > most) {
        return error(Code::PROTOCOL_VIOLATION, "more receive times than were asked for");
    }
    Ok(())
}

/// Reader of receive timestamps, with the packets sent on the active path and its estimates.
struct ReceiveTimes<'a> {
    now: Instant,
    ledger: &'a Ledger,
    active: PathIndex,
    one_way: &'a mut OneWay,
    observation: &'a mut Observation,
    stats: &'a mut Counts,
}

impl ReceiveTimes<'_> {
    /// Reads the receive timestamps of an ACK frame. `held` is the peer's delay of its largest packet.
    fn read(&mut self, seen: &PacketSeen<'_>, ack: &Ack<'_>, held: Duration) {
        let Some(times) = ack.receive_times() else { return };
        // The frame goes back in time; the estimates go forward.
        let mut reported = [(0, 0); MAX_TIMES];
        let count = reported.iter_mut().zip(times).map(|(place, time)| *place = time).count();
        let mut newest = None;
        let mut smallest: Option<Duration> = None;
        for &(pn, units) in reported[..count].iter().rev() {
            let received = Duration::from_micros(units.saturating_mul(1 << RECEIVE_TIMES_EXPONENT));
            if pn == ack.largest {
                newest = Some(received);
            }
            let entry = self.ledger.entry(pn).filter(|e| e.path == self.active && e.is_ack_eliciting());
            let Some(entry) = entry else { continue };
            self.stats.receive_times_received += 1;
            let variation = self.one_way.on_forward(self.now, entry.sent_at, received);
            smallest = Some(smallest.map_or(variation, |smallest| smallest.min(variation)));
            self.observation
                .tell(self.now, |observer, at| observer.one_way_sample(at, PathDirection::Forward, pn, variation));
        }
        if let Some(smallest) = smallest {
            self.one_way.on_reported(smallest);
        }
        if let Some(received) = newest.filter(|_| seen.path == self.active) {
            let variation = self.one_way.on_reverse(seen.arrival.received_at, received.saturating_add(held));
            let pn = seen.pn;
            self.observation
                .tell(self.now, |observer, at| observer.one_way_sample(at, PathDirection::Reverse, pn, variation));
        }
    }
}
