//! Bounds of rate and bytes in flight set by congestion: short-term for the present cycle, long-term for all cycles (draft "Updating the
//! Model Upon Packet Loss").
//!
//! An ECN-CE mark counts as the loss of its packet, without a retransmission: RFC 9002 §7.1 requires the same reaction to both, and the
//! draft does not mention marks.

use super::tuning::{BETA, LOSS_THRESHOLD};
use super::{Bbr, Sample, State};

/// No bound.
pub(super) const UNBOUNDED: u64 = u64::MAX;

/// The largest share of losses that is passed over, in tenths of a per cent: a profile takes no more either.
const MOST_TOLERATED: u64 = 150;

/// Owns the bounds and their inputs.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// bw_shortterm, bits per second.
    pub(super) bw_short: u64,
    /// inflight_shortterm, bytes.
    pub(super) inflight_short: u64,
    /// inflight_longterm, bytes.
    pub(super) inflight_long: u64,
    /// The best delivery within a round: rate and volume.
    bw_latest: u64,
    pub(super) inflight_latest: u64,
    /// A loss was noted in this round of losses.
    pub(super) loss_in_round: bool,
    /// The round of losses ends with a packet that left when at least this much was delivered.
    loss_round_ends_at: u64,
    pub(super) loss_round_started: bool,
    /// Bytes marked with congestion in the present packet-timed round and in the last.
    marked: [u64; 2],
    /// The present acknowledgement reports marks.
    marked_now: bool,
    /// The share of a flight, in tenths of a per cent, of which the loss shows no congestion at the moment; 0 when all of it
    /// does.
    tolerated: u64,
}

impl Bounds {
    pub(super) fn new() -> Self {
        Self {
            bw_short: UNBOUNDED,
            inflight_short: UNBOUNDED,
            inflight_long: UNBOUNDED,
            bw_latest: 0,
            inflight_latest: 0,
            loss_in_round: false,
            loss_round_ends_at: 0,
            loss_round_started: false,
            marked: [0; 2],
            marked_now: false,
            tolerated: 0,
        }
    }

    /// UpdateLatestDeliverySignals: near the start of an acknowledgement.
    #[inline]
    pub(super) fn begin_ack(&mut self, sample: &Sample) {
        self.bw_latest = self.bw_latest.max(sample.rate);
        self.inflight_latest = self.inflight_latest.max(sample.delivered_since);
        self.loss_round_started = sample.prior_delivered >= self.loss_round_ends_at;
        if self.loss_round_started {
            self.loss_round_ends_at = sample.delivered;
        }
    }

    /// AdvanceLatestDeliverySignals: near its end.
    #[inline]
    pub(super) fn end_ack(&mut self, sample: &Sample) {
        if self.loss_round_started {
            self.bw_latest = sample.rate;
            self.inflight_latest = sample.delivered_since;
        }
    }

    /// NoteLoss: the round of losses begins with the first of them.
    pub(super) fn note_loss(&mut self, delivered: u64) {
        if !self.loss_in_round {
            self.loss_round_ends_at = delivered;
        }
        self.loss_in_round = true;
    }

    /// ResetCongestionSignals.
    pub(super) fn reset_signals(&mut self) {
        self.loss_in_round = false;
        self.bw_latest = 0;
        self.inflight_latest = 0;
    }

    /// ResetShortTermModel.
    pub(super) fn reset_short_term(&mut self) {
        self.bw_short = UNBOUNDED;
        self.inflight_short = UNBOUNDED;
    }

    /// LossLowerBounds: down to the delivered amount, by at most the reduction of CUBIC.
    fn lower(&mut self, max_bw: u64, window: u64) {
        if self.bw_short == UNBOUNDED {
            self.bw_short = max_bw;
        }
        if self.inflight_short == UNBOUNDED {
            self.inflight_short = window;
        }
        self.bw_short = self.bw_latest.max(percent(self.bw_short, BETA));
        self.inflight_short = self.inflight_latest.max(percent(self.inflight_short, BETA));
    }

    /// Packets were marked.
    pub(super) fn on_marked(&mut self, bytes: u64) {
        self.marked[0] += bytes;
        self.marked_now = true;
    }

    /// Returns whether the present acknowledgement reported marks; asked once.
    #[inline]
    pub(super) fn take_marked(&mut self) -> bool {
        std::mem::take(&mut self.marked_now)
    }

    /// A packet-timed round has begun.
    #[inline]
    pub(super) fn on_round(&mut self) {
        self.marked = [0, self.marked[0]];
    }

    /// The profile allows this share of losses to be passed over, and there is no sign of congestion; `None`: there is.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share below one, in tenths of a per cent"
    )]
    pub(super) fn tolerate(&mut self, share: Option<f64>) {
        self.tolerated = share.map_or(0, |share| (share * 1000.0) as u64).min(MOST_TOLERATED);
    }

    /// Returns whether losses are tolerated: few losses without a queue do not bound rate and flight.
    #[inline]
    pub(super) fn is_tolerant(&self) -> bool {
        self.tolerated > 0
    }

    /// LossThresh in tenths of a per cent: the draft's threshold plus the share of random loss.
    #[inline]
    fn threshold(&self) -> u64 {
        10 * LOSS_THRESHOLD + self.tolerated
    }

    /// IsInflightTooHigh: of a flight of `tx_in_flight` bytes more were lost than the path may be asked to bear.
    #[inline]
    pub(super) fn is_too_high(&self, lost: u64, tx_in_flight: u64) -> bool {
        (lost + self.marked[0] + self.marked[1]) * 1000 > tx_in_flight * self.threshold()
    }

    /// InflightAtLoss: how much of the flight that ended with this packet had left when the losses exceeded the threshold.
    pub(super) fn inflight_at_loss(&self, size: u64, tx_in_flight: u64, lost: u64) -> u64 {
        let before = tx_in_flight.saturating_sub(size);
        let lost_before = lost.saturating_sub(size);
        let threshold = self.threshold();
        before + (before * threshold).saturating_sub(lost_before * 1000) / (1000 - threshold)
    }
}

fn percent(value: u64, share: u64) -> u64 {
    // Bounds are rates below 10^12 or volumes below 2^40.
    value / 100 * share + value % 100 * share / 100
}

impl Bbr {
    /// AdaptLowerBoundsFromCongestion, once per round of losses: outside of probing the bounds follow what is delivered.
    pub(super) fn adapt_short_term(&mut self) {
        if !self.bounds.loss_round_started {
            return;
        }
        if self.bounds.loss_in_round && !self.probes() {
            self.bounds.lower(self.max_bw.get(), self.window);
        }
        self.bounds.loss_in_round = false;
    }

    /// IsProbingBW: a probe expects losses.
    pub(super) fn probes(&self) -> bool {
        matches!(self.state, State::Startup | State::Refill | State::Up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flight_at_which_losses_exceeded_the_threshold() {
        // 100 packets of 1000 bytes, the last of them the third one lost: two had been tolerable.
        let mut bounds = Bounds::new();
        assert_eq!(bounds.inflight_at_loss(1000, 100_000, 3000), 99_000);
        // Nothing was lost before: a part of the packet itself would have been tolerable.
        let at = bounds.inflight_at_loss(1000, 10_000, 1000);
        assert_eq!(at, 9000 + 9000 * 2 / 98);
        assert_eq!(bounds.inflight_at_loss(1000, 500, 1000), 0);
        // With 8 % that are passed over it is the eleventh.
        bounds.tolerate(Some(0.08));
        assert_eq!(bounds.inflight_at_loss(1000, 100_000, 11_000), 99_000);
    }

    #[test]
    fn bounds_fall_no_faster_than_beta() {
        let mut bounds = Bounds::new();
        bounds.bw_latest = 10;
        bounds.inflight_latest = 95;
        bounds.lower(1000, 100);
        assert_eq!((bounds.bw_short, bounds.inflight_short), (700, 95));
        bounds.lower(1000, 100);
        assert_eq!((bounds.bw_short, bounds.inflight_short), (490, 95));
        bounds.reset_short_term();
        assert_eq!(bounds.bw_short, UNBOUNDED);
    }

    #[test]
    fn losses_at_random_come_on_top_of_the_threshold_and_not_for_ever() {
        let mut bounds = Bounds::new();
        bounds.tolerate(Some(0.08));
        assert!(bounds.is_tolerant() && !bounds.is_too_high(10_000, 100_000));
        assert!(bounds.is_too_high(10_001, 100_000));
        bounds.tolerate(Some(1.0));
        assert!(bounds.is_too_high(17_001, 100_000), "no more than a profile may ask for");
        bounds.tolerate(None);
        assert!(!bounds.is_tolerant() && bounds.is_too_high(2001, 100_000));
    }

    #[test]
    fn more_than_two_per_cent_is_too_much() {
        let mut bounds = Bounds::new();
        assert!(!bounds.is_too_high(2000, 100_000));
        assert!(bounds.is_too_high(2001, 100_000));
        bounds.on_marked(1500);
        bounds.on_round();
        assert!(bounds.is_too_high(501, 100_000), "marks of the round before count");
        bounds.on_round();
        assert!(!bounds.is_too_high(2000, 100_000));
    }
}
