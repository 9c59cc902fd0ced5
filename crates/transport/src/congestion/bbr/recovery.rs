//! Effects of loss recovery on the model, and their reversal after a spurious loss (draft "Updating the Model Upon Detecting a Spurious
//! Loss Recovery", "Modulating cwnd in Loss Recovery").

use units::Instant;

use super::bounds::UNBOUNDED;
use super::{Bbr, State};

/// State that is restored when a recovery proves spurious.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saved {
    /// The state that the losses ended: Startup or ProbeBW_UP.
    pub(super) state: Option<State>,
    pub(super) bw_short: u64,
    pub(super) inflight_short: u64,
    pub(super) inflight_long: u64,
}

/// Owns the present or last recovery.
#[derive(Clone, Debug)]
pub(super) struct LossRecovery {
    started_at: Option<Instant>,
    active: bool,
    /// Losses that belong to it and still stand.
    standing: u64,
    /// Marks have confirmed that there was congestion.
    confirmed: bool,
    pub(super) saved: Saved,
}

impl LossRecovery {
    pub(super) fn new() -> Self {
        let saved = Saved { state: None, bw_short: UNBOUNDED, inflight_short: UNBOUNDED, inflight_long: UNBOUNDED };
        Self { started_at: None, active: false, standing: 0, confirmed: false, saved }
    }

    /// Takes in a loss (or a mark); true when it begins a recovery: RFC 9002 §7.3.2, the packet left after the last one
    /// began.
    fn begin(&mut self, now: Instant, sent_at: Instant, mark: bool) -> bool {
        let begins = self.started_at.is_none_or(|start| sent_at > start);
        if begins {
            self.started_at = Some(now);
            self.active = true;
            self.standing = 0;
            self.confirmed = false;
        }
        self.standing += u64::from(!mark);
        self.confirmed |= mark;
        begins
    }

    /// Takes a loss back; true when none of the recovery is left.
    fn take_back(&mut self, lost_at: Instant) -> bool {
        if self.confirmed || self.standing == 0 || self.started_at.is_none_or(|start| lost_at < start) {
            return false;
        }
        self.standing -= 1;
        self.standing == 0
    }

    /// Takes in an acknowledgement; true when it ends the recovery: RFC 9002 §7.3.2, the packet left after the begin.
    #[inline]
    pub(super) fn ends(&mut self, sent_at: Instant) -> bool {
        let ends = self.active && self.started_at.is_some_and(|start| sent_at > start);
        self.active &= !ends;
        ends
    }

    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    #[inline]
    pub(super) fn started_at(&self) -> Option<Instant> {
        self.started_at
    }
}

impl Bbr {
    /// OnEnterFastRecovery: remembers what a spurious recovery would have destroyed.
    ///
    /// The draft saves the state once per round with a loss. Its reaction to a probe that went too high begins a new round in the middle of
    /// these losses, and the next loss would save the reduced state. So the state is saved at the start of a recovery, as the draft's prose
    /// requires.
    pub(super) fn note_congestion(&mut self, now: Instant, sent_at: Instant, mark: bool) {
        let in_recovery = self.recovery.is_active();
        if self.recovery.begin(now, sent_at, mark) {
            self.save_window(in_recovery);
            self.recovery.saved = Saved {
                state: None,
                bw_short: self.bounds.bw_short,
                inflight_short: self.bounds.inflight_short,
                inflight_long: self.bounds.inflight_long,
            };
        }
    }

    /// SaveCwnd: the last window that neither recovery nor ProbeRTT had lowered.
    pub(super) fn save_window(&mut self, in_recovery: bool) {
        let lowered = in_recovery || self.state == State::ProbeRtt;
        self.prior_window = if lowered { self.prior_window.max(self.window) } else { self.window };
    }

    /// RestoreCwnd.
    pub(super) fn restore_window(&mut self) {
        self.window = self.window.max(self.prior_window);
    }

    /// HandleSpuriousLossDetection, when the last loss of a recovery is taken back.
    pub(super) fn take_back_loss(&mut self, lost_at: Instant) {
        if !self.recovery.take_back(lost_at) {
            return;
        }
        self.recovery.active = false;
        self.restore_window();
        let saved = self.recovery.saved;
        self.bounds.loss_in_round = false;
        self.full_pipe.restart(0);
        self.bounds.bw_short = self.bounds.bw_short.max(saved.bw_short);
        self.bounds.inflight_short = self.bounds.inflight_short.max(saved.inflight_short);
        self.bounds.inflight_long = self.bounds.inflight_long.max(saved.inflight_long);
        match saved.state {
            Some(State::Startup) if self.state != State::Startup => {
                self.full_pipe.unreach();
                if self.state != State::ProbeRtt {
                    self.enter_startup();
                }
            }
            Some(State::Up) if !matches!(self.state, State::Up | State::ProbeRtt) => self.start_refill(),
            _ => {}
        }
        self.recovery.saved.state = None;
    }

    /// OnEnterRTO: no packet of a long flight arrived. QUIC has no retransmission timeout; persistent congestion (RFC 9002 §7.6) is its
    /// equivalent.
    pub(super) fn on_persistent_congestion(&mut self, in_flight: u64) {
        self.save_window(true);
        self.window = in_flight + self.mtu;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn one_recovery_per_flight_and_spurious_when_all_its_losses_are() {
        let mut recovery = LossRecovery::new();
        assert!(recovery.begin(at(100), at(10), false));
        assert!(!recovery.begin(at(110), at(20), false));
        assert!(!recovery.ends(at(100)) && recovery.is_active());
        assert!(!recovery.take_back(at(90)), "of an earlier recovery");
        assert!(!recovery.take_back(at(100)));
        assert!(recovery.take_back(at(110)));
        assert!(recovery.ends(at(101)) && !recovery.is_active());
    }

    #[test]
    fn marks_confirm() {
        let mut recovery = LossRecovery::new();
        recovery.begin(at(100), at(10), false);
        assert!(!recovery.begin(at(101), at(11), true));
        assert!(!recovery.take_back(at(100)));
    }
}
