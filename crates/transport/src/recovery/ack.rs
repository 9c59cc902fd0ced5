//! Effect of an acknowledgement on the path: RTT, losses, congestion control (RFC 9002 §5, appendix A.7).

use units::{Duration, Instant};
use wire::Ack;

use super::loss::{detect_losses, forget_path_probes};
use super::{Cause, Fates, Paths, Progress, Recovery, SpaceId};
use crate::congestion::{AckSample, CeSample, LossSample, SpuriousSample};
use crate::error::TransportError;
use crate::sent::{EcnFeedback, Entry, Found, LatePacket, Ledger, PathIndex, Verdict};

/// Result of an acknowledgement or a timeout, over all paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AckOutcome {
    /// Newly acknowledged packets, ACK-only packets included.
    pub(crate) acked_packets: u64,
    /// Bytes in flight newly acknowledged.
    pub(crate) acked_bytes: u64,
    /// An ack-eliciting packet is among them.
    pub(crate) ack_eliciting: bool,
    /// The highest number among them.
    pub(crate) largest_newly_acked: Option<u64>,
    /// The RTT sample, and the path it belongs to.
    pub(crate) rtt: Option<(PathIndex, Duration)>,
    /// Packets in flight newly declared lost, probes of the datagram size excluded.
    pub(crate) lost_packets: u64,
    /// Bytes of these packets.
    pub(crate) lost_bytes: u64,
    /// Time from the departure of each of them to this verdict, together.
    pub(crate) loss_detection_time: Duration,
    /// Lost packets that the controller may ignore: they were lost without a sign of congestion.
    pub(crate) random_packets: u64,
    /// Packets that had been declared lost and arrived.
    pub(crate) spurious_packets: u64,
    /// Persistent congestion was established (RFC 9002 §7.6).
    pub(crate) persistent_congestion: bool,
    /// A probe of the datagram size that was acknowledged: its path and its size. A path has one in progress at a time.
    pub(crate) mtu_probe_acked: Option<(PathIndex, u16)>,
    /// A probe of the datagram size that was lost.
    pub(crate) mtu_probe_lost: Option<(PathIndex, u16)>,
    /// ECN feedback of the acknowledgement, on the path of its largest packet.
    pub(crate) ecn: EcnFeedback,
    /// Path of the ECN feedback.
    pub(crate) ecn_path: PathIndex,
}

/// Result of one acknowledgement or timeout for one path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Batch {
    prior_in_flight: u64,
    prior_delivered: u64,
    recovery_started_at: Option<Instant>,
    pub(super) packets: u64,
    in_flight_packets: u64,
    bytes: u64,
    bytes_after_recovery: u64,
    pub(super) ack_eliciting: bool,
    ecn_marked: u64,
    largest: Option<(u64, Instant)>,
    /// The packet in flight that was sent last: the rate is measured from it.
    newest: Option<(u64, Instant)>,
    pub(super) lost_packets: u64,
    pub(super) lost_bytes: u64,
    pub(super) largest_lost: Option<(u64, Instant)>,
    /// First departure and last number of the present run of losses without an acknowledgement in between.
    pub(super) run: Option<(Instant, u64)>,
    pub(super) persistent: bool,
    rtt: Option<Duration>,
}

impl Recovery {
    /// Begins the processing of an acknowledgement or a timeout.
    pub(super) fn begin_batch(&mut self) {
        self.batch = Batch {
            prior_in_flight: self.bytes_in_flight,
            prior_delivered: self.rate.delivered(),
            recovery_started_at: self.controller.recovery_started_at(),
            ..Batch::default()
        };
    }

    /// Takes in a packet newly acknowledged.
    #[inline]
    fn on_packet_acked(&mut self, space: SpaceId, pn: u64, entry: &Entry) {
        let batch = &mut self.batch;
        batch.packets += 1;
        if batch.largest.is_none_or(|largest| largest.0 < pn) {
            batch.largest = Some((pn, entry.sent_at));
        }
        if !entry.is_in_flight() {
            return;
        }
        let bytes = u64::from(entry.size);
        self.bytes_in_flight = self.bytes_in_flight.saturating_sub(bytes);
        batch.in_flight_packets += 1;
        batch.bytes += bytes;
        if batch.recovery_started_at.is_none_or(|start| entry.sent_at > start) {
            batch.bytes_after_recovery += bytes;
        }
        if batch.newest.is_none_or(|newest| newest.0 < pn) {
            batch.newest = Some((pn, entry.sent_at));
        }
        batch.ecn_marked += u64::from(entry.is_ecn_marked());
        self.black_hole.on_acked(entry.size);
        if entry.is_ack_eliciting() {
            batch.ack_eliciting = true;
            let in_flight = &mut self.spaces[space.index()].eliciting_in_flight;
            *in_flight = in_flight.saturating_sub(1);
        }
    }

    /// Takes in a packet that was declared lost and arrived.
    fn on_packet_late(&mut self, now: Instant, largest_acked: u64, packet: &LatePacket) {
        self.rate.on_spurious_loss(packet.size);
        let distance = largest_acked.saturating_sub(packet.pn);
        self.reordering.on_spurious_loss(distance, now - packet.sent_at, &self.rtt);
        self.controller.on_spurious_loss(
            now,
            &SpuriousSample { pn: packet.pn, bytes: packet.size, sent_at: packet.sent_at, lost_at: packet.lost_at },
        );
    }

    /// RFC 9002 §5.1 SHOULD NOT-1, MUST NOT-1: an RTT sample, when the largest acknowledged is newly so and something
    /// ack-eliciting is too.
    fn sample_rtt(&mut self, ack: &Ack<'_>, space: SpaceId, now: Instant, ack_delay: Duration, progress: &Progress) {
        let Some((pn, sent_at)) = self.batch.largest else { return };
        if pn != ack.largest || !self.batch.ack_eliciting {
            return;
        }
        let delay = match space {
            // RFC 9002 §5.3: Initial packets are not delayed on purpose.
            SpaceId::Initial => Duration::ZERO,
            // RFC 9002 §5.3 SHOULD-1, SHOULD-2, MUST-1: after the handshake the peer is held to the delay that it
            // promised.
            _ if progress.confirmed => ack_delay.min(self.max_ack_delay),
            _ => ack_delay,
        };
        // RFC 9002 §5.3 SHOULD-3: the time that an acknowledgement waited for our own keys is taken off a sample
        let latest = (now - sent_at).saturating_sub(progress.waited_for_keys);
        self.rtt.sample(now, latest, delay);
        self.batch.rtt = Some(latest);
    }

    /// Looks for signs of congestion, before the losses of the acknowledgement are classified.
    fn look_for_congestion(&mut self, now: Instant) {
        let Some(signs) = &mut self.discrimination else { return };
        if self.batch.rtt.is_some() {
            signs.on_rtt(&self.rtt, self.one_way.as_deref());
        }
        let growing = self.controller.in_slow_start();
        self.controller.tolerate_loss(signs.tolerated(now, &self.rtt, growing));
    }

    /// Notes up to where the peer has got.
    fn advance_largest(&mut self, space: SpaceId) -> bool {
        let Some((pn, sent_at)) = self.batch.largest else { return false };
        let state = &mut self.spaces[space.index()];
        state.last_acked_sent_at = state.last_acked_sent_at.max(Some(sent_at));
        let advanced = state.largest_acked.is_none_or(|largest| largest < pn);
        if advanced {
            state.largest_acked = Some(pn);
        }
        advanced
    }

    /// Passes the result of the batch to the controller, and adds it to the outcome.
    pub(super) fn end_batch(&mut self, now: Instant, ecn: EcnFeedback, ledger: &Ledger, outcome: &mut AckOutcome) {
        let batch = self.batch;
        if let Some(signs) = &mut self.discrimination {
            signs.on_packets(batch.in_flight_packets, batch.lost_packets);
            if matches!(ecn, EcnFeedback::Valid { newly_ce: 1.. }) {
                signs.on_ecn_ce(now);
            }
        }
        let random = self.on_losses(now, &batch);
        if let (EcnFeedback::Valid { newly_ce: newly_marked @ 1.. }, Some((_, sent_at))) = (ecn, batch.largest) {
            // RFC 9000 §19.3 SHOULD-1, RFC 9002 §7.3.1 MUST-1: marks count as a loss of the largest packet
            // acknowledged.
            self.controller.on_ecn_ce(
                now,
                &CeSample {
                    newly_marked,
                    newly_acked: batch.ecn_marked,
                    largest_acked_sent_at: sent_at,
                    in_flight: self.bytes_in_flight,
                },
            );
            self.note_new_episode(now, &batch);
        }
        if let (Some((pn, sent_at)), Some(entry)) = (batch.newest, batch.newest.and_then(|(pn, _)| ledger.entry(pn))) {
            self.rate.on_delivered(batch.bytes);
            let min_rtt = self.rtt.min();
            let rate = self.rate.sample(now, sent_at, &entry.snapshot, min_rtt.unwrap_or_default());
            self.controller.on_acked(
                now,
                &AckSample {
                    packets: batch.in_flight_packets,
                    bytes: batch.bytes,
                    bytes_after_recovery: batch.bytes_after_recovery,
                    newly_lost: batch.lost_bytes,
                    rtt: batch.rtt,
                    adjusted_rtt: self.rtt.adjusted(),
                    min_rtt,
                    smoothed_rtt: self.rtt.smoothed(),
                    rate: Some(rate),
                    prior_in_flight: batch.prior_in_flight,
                    in_flight: self.bytes_in_flight,
                    largest_acked: pn,
                    largest_acked_sent_at: sent_at,
                    delivered: self.rate.delivered(),
                    lost: self.rate.lost(),
                    window_limited: batch.prior_delivered < self.limited_until.max(self.paced_until),
                    window_full: batch.prior_delivered < self.limited_until,
                    app_limited: self.rate.is_app_limited(),
                },
            );
        }
        self.update_outputs(now);

        outcome.acked_packets += batch.packets;
        outcome.acked_bytes += batch.bytes;
        outcome.ack_eliciting |= batch.ack_eliciting;
        outcome.largest_newly_acked = outcome.largest_newly_acked.max(batch.largest.map(|largest| largest.0));
        outcome.lost_packets += batch.lost_packets;
        outcome.lost_bytes += batch.lost_bytes;
        outcome.random_packets += if random { batch.lost_packets } else { 0 };
        outcome.persistent_congestion |= batch.persistent;
    }

    /// Reports the losses of the batch to the controller. Returns whether they are random.
    fn on_losses(&mut self, now: Instant, batch: &Batch) -> bool {
        // RFC 9000 §13.3 MUST-3: congestion control hears of losses
        let Some((largest_lost, largest_lost_sent_at)) = batch.largest_lost else { return false };
        let signs = self.discrimination.as_ref().filter(|_| !batch.persistent);
        let growing = self.controller.in_slow_start();
        let random = signs.is_some_and(|signs| signs.cause(now, &self.rtt, growing) == Cause::Random);
        self.controller.on_lost(
            now,
            &LossSample {
                packets: batch.lost_packets,
                bytes: batch.lost_bytes,
                largest_lost,
                largest_lost_sent_at,
                persistent: batch.persistent,
                random,
                in_flight: self.bytes_in_flight,
            },
        );
        if batch.persistent {
            self.rtt.restart_min();
        }
        self.note_new_episode(now, batch);
        random
    }

    /// Lets one packet leave at once when the controller has just reacted to congestion.
    fn note_new_episode(&mut self, now: Instant, batch: &Batch) {
        if self.controller.recovery_started_at() == Some(now) && batch.recovery_started_at != Some(now) {
            self.one_packet_more = true;
            self.congestion_events += 1;
            self.reordering.on_episode();
        }
    }
}

/// Processes an ACK frame: passes each frame of a packet whose fate it decides to `out`, updates the paths, and returns the result.
/// `ack_delay` is the frame's delay, scaled by the peer's exponent.
///
/// # Errors
/// RFC 9000 §13.1, §21.4: PROTOCOL_VIOLATION when a packet is acknowledged that was never sent.
#[expect(clippy::too_many_arguments, reason = "what an acknowledgement depends on, each of its own kind")]
pub(crate) fn on_ack_received<P: Paths + ?Sized>(
    ledger: &mut Ledger,
    paths: &mut P,
    space: SpaceId,
    ack: &Ack<'_>,
    now: Instant,
    ack_delay: Duration,
    progress: &Progress,
    out: &mut impl Fates,
) -> Result<AckOutcome, TransportError> {
    let mut outcome = AckOutcome::default();
    for path in PathIndex::all(paths.count()) {
        if let Some(recovery) = paths.recovery(path) {
            recovery.begin_batch();
        }
    }
    ledger.acknowledge(ack.largest, ack.ranges(), |found| match found {
        Found::Acked { pn, entry, frames } => {
            if let Some(recovery) = paths.recovery(entry.path) {
                recovery.on_packet_acked(space, pn, entry);
            }
            if entry.is_mtu_probe() {
                outcome.mtu_probe_acked = Some((entry.path, entry.size));
            }
            frames.for_each(|frame| out.frame(Verdict::Acked, *frame));
        }
        Found::Late { packet, frames } => {
            outcome.spurious_packets += 1;
            if let Some(recovery) = paths.recovery(packet.path) {
                recovery.on_packet_late(now, ack.largest, packet);
            }
            frames.for_each(|frame| out.frame(Verdict::AckedLate, *frame));
        }
    })?;

    let (mut ecn_path, mut marked) = (None, 0);
    for path in PathIndex::all(paths.count()) {
        let Some(recovery) = paths.recovery(path).filter(|recovery| recovery.batch.packets > 0) else { continue };
        recovery.sample_rtt(ack, space, now, ack_delay, progress);
        recovery.look_for_congestion(now);
        if let Some(rtt) = recovery.batch.rtt {
            outcome.rtt = Some((path, rtt));
        }
        marked += recovery.batch.ecn_marked;
        // RFC 9000 §13.4.2.1 MUST NOT-1: frames that do not raise the largest acknowledged may be out of order.
        if recovery.advance_largest(space) && recovery.largest_acked(space) == Some(ack.largest) {
            ecn_path = Some(path);
        }
    }
    if let Some(path) = ecn_path {
        outcome.ecn_path = path;
        outcome.ecn = ledger.ecn.on_ack(ack.ecn, marked);
    }
    if outcome.spurious_packets > 0 || paths_acked(paths) {
        detect_losses(ledger, paths, space, now, &mut outcome, out);
    }
    for path in PathIndex::all(paths.count()) {
        let Some(recovery) = paths.recovery(path) else { continue };
        if recovery.batch.packets > 0 {
            // RFC 9002 §6.2.1: an acknowledgement ends the backoff, except at a client that cannot know yet whether the
            // server has validated its address: Initial packets do not prove that.
            if progress.peer_validated_us || space == SpaceId::Handshake {
                recovery.pto_count = 0;
            }
            recovery.last_event_at = now;
        }
        let ecn = if ecn_path == Some(path) { outcome.ecn } else { EcnFeedback::None };
        if recovery.batch.packets > 0 || recovery.batch.lost_packets > 0 || outcome.spurious_packets > 0 {
            recovery.end_batch(now, ecn, ledger, &mut outcome);
        }
    }
    forget_path_probes(ledger, paths, space, now);
    ledger.trim();
    Ok(outcome)
}

/// Returns whether any path had a packet newly acknowledged.
fn paths_acked<P: Paths + ?Sized>(paths: &mut P) -> bool {
    PathIndex::all(paths.count()).any(|path| paths.recovery(path).is_some_and(|recovery| recovery.batch.packets > 0))
}
