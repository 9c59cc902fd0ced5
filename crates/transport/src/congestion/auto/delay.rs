//! Delay mode: a window for a queueing delay of a few milliseconds.
//!
//! Once per round trip the window moves half of the way to `w * (propagation + target) / (propagation + wait)`, upwards by a part of a packet
//! at least. The target falls with the fourth root of the flow's own rate. Flows that share a queue see the same queueing delay. So their
//! equilibrium has equal targets, and therefore equal rates, whatever their round-trip times. The queueing delay grows with the fourth root
//! of the number of flows.

use units::{Bitrate, Duration, Instant};

use super::super::{AckSample, initial_window, minimum_window};
use super::crowding::Crowding;
use super::dip::Dip;
use super::noise::Noise;
use super::probe_loss::{Cause, ProbeLoss};
use super::probe_rtt::ProbeRtt;
use super::random_loss::RandomLoss;
use super::rivalry::Rivalry;
use super::rounds::Round;
use super::target::target;
use super::{bytes, whole};

/// Pacing rate as a share of window per round trip.
const PACING: f64 = 1.1;
/// Round trips after a decrease until its effect is seen.
const SETTLING: u32 = 2;
/// Round trips without queueing delay after which the window grows faster and faster.
const RAMP_AFTER: u32 = 3;
/// Growth added in each of these round trips, and the largest growth in one round trip.
const RAMP: (f64, f64) = (0.05, 0.25);
/// Packets by which a window grows in a round trip without queueing delay, at least; none at the target. The growth by a share of the window
/// is the same for all flows of a queue, so that unequal ones would stay unequal. With this, flows of a few packets catch up with the others.
const CATCH_UP: f64 = 0.5;
/// The largest growth in one round trip close to a window that overflowed.
const CAREFUL_RAMP: f64 = 0.02;
/// Ratio to the window of the last probe up to which a short queue is trusted.
const VERIFIED: f64 = 2.0;
/// Round trips after startup until delays and losses reflect the window.
const DRAINING: u32 = 2;
/// Share of the window that fits, with which the flow continues after an overflow.
const AFTER_OVERFLOW: f64 = 0.95;
/// Ratio to the window that overflowed at which growth is unrestricted again.
const FAR: f64 = 1.5;
/// Ratio to the window that overflowed at which new losses are expected.
const BEYOND: f64 = 1.03;
/// Number of returns to that window before the cause is determined again.
const MOST_RETURNS: u32 = 3;
/// Time for which a window that overflowed is not exceeded; doubles when the same window overflows again.
const HOLDS: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(32));
/// Time between two experiments on the cause of losses.
const EXPERIMENT_BREAK: Duration = Duration::from_secs(5);
/// Share of random loss from which on the experiment is repeated, and the time until then: doubles from the first to the
/// second. Flows that share a policer may all have found that sending less does not help.
const WORTH_REPEATING: f64 = 0.02;
const REPEAT_BREAKS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// Time without an empty queue after which the queue is probed: doubles from the first to the second.
const PROBE_BREAKS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Lower bound of the second in round trips: a probe takes two to four.
const PROBE_BREAK_ROUNDS: f64 = 40.0;
/// Share of the mean delay below which others leave the queue, and the mean in targets from which on that shows.
const DIP: f64 = 0.4;
const DIP_OF: f64 = 0.2;
/// Number of probes of its own after which a flow joins those of others no longer: it knows the propagation delay.
const JOINS: u32 = 2;
/// Shortest time from a probe to one that a dip triggers, and the same in round trips.
const JOIN_BREAK: (Duration, f64) = (Duration::from_millis(400), 10.0);
/// Delay in targets after a probe at which other flows certainly fill the queue.
const LONG_QUEUE: f64 = 3.0;
/// Round trips in a row in which the window held data back, before a flow probes or goes below the initial window: short
/// answers do not fill a queue.
const STEADY: u32 = 6;

/// Reaction of delay mode to a round trip, as far as the caller needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reaction {
    /// None, or one of the window alone.
    None,
    /// The window was reduced because of loss.
    Reduced,
    /// Other flows fill the queue: compete, starting from this window in bytes.
    Compete(f64),
}

/// Owns the window of delay mode, its probes and their results.
#[derive(Clone, Debug)]
pub(super) struct DelayMode {
    mtu: f64,
    minimum: f64,
    /// RFC 9002 §7.2: the initial window, permitted on every path.
    initial: f64,
    window: f64,
    /// Growth for each byte acknowledged.
    gain: f64,
    /// RTT of the last round trip in seconds; 0 before the first.
    rtt: f64,
    /// Window in bytes up to which a short queue permits fast growth, and whether it is exceeded: then the queue has to be probed.
    verified: f64,
    is_unverified: bool,
    /// Remaining round trips in which delays and losses reflect an earlier window.
    draining: u32,
    /// Round trips left until the effect of the last decrease is seen.
    settling: u32,
    /// Round trips without queueing delay.
    quiet: u32,
    /// Round trips in a row in which the window held data back.
    limited: u32,
    /// Window at which the path overflowed, infinite without one, and until when it is not exceeded.
    ceiling: f64,
    ceiling_until: Instant,
    hold: Duration,
    /// Number of returns to this window without an experiment.
    returns: u32,
    crowding: Crowding,
    probe_rtt: Option<ProbeRtt>,
    /// The current probe was triggered by crowding.
    is_crowded: bool,
    dip: Dip,
    /// Number of probes, and the end of the last.
    probes: u32,
    probed_at: Instant,
    /// Time at which the queue was last seen empty, or probed.
    empty_at: Instant,
    probe_break: Duration,
    rivalry: Rivalry,
    noise: Noise,
    probe_loss: Option<ProbeLoss>,
    experiment_after: Instant,
    /// Time at which random loss is verified again.
    repeat_at: Instant,
    repeat_break: Duration,
    /// Batches in a row with more loss than chance explains.
    strikes: u32,
}

impl DelayMode {
    pub(super) fn new(now: Instant, mtu: u16) -> Self {
        Self {
            mtu: f64::from(mtu),
            minimum: bytes(minimum_window(mtu)),
            initial: bytes(initial_window(mtu)),
            window: 0.0,
            gain: 0.0,
            rtt: 0.0,
            verified: 0.0,
            is_unverified: false,
            draining: 0,
            settling: 0,
            quiet: 0,
            limited: 0,
            ceiling: f64::INFINITY,
            ceiling_until: now,
            hold: HOLDS.0,
            returns: 0,
            crowding: Crowding::default(),
            probe_rtt: None,
            is_crowded: false,
            dip: Dip::new(0.0),
            probes: 0,
            probed_at: now,
            empty_at: now,
            probe_break: PROBE_BREAKS.0,
            rivalry: Rivalry::new(now),
            noise: Noise::default(),
            probe_loss: None,
            experiment_after: now,
            repeat_at: now,
            repeat_break: REPEAT_BREAKS.0,
            strikes: 0,
        }
    }

    /// Begins with this window.
    pub(super) fn enter(&mut self, now: Instant, window: f64) {
        self.window = window.max(self.minimum);
        self.verified = VERIFIED * self.window;
        self.is_unverified = false;
        self.gain = 0.0;
        self.draining = DRAINING;
        self.settling = SETTLING;
        self.quiet = 0;
        self.probe_rtt = None;
        self.probe_loss = None;
        self.empty_at = now;
    }

    /// Returns from competitive mode, where the window was `competed`, to a window that fills the path.
    pub(super) fn leave_competitive(&mut self, now: Instant, window: f64, competed: f64) {
        self.rivalry.leave(now, competed);
        self.crowding.restart(window);
        self.ceiling = f64::INFINITY;
    }

    pub(super) fn on_mtu(&mut self, mtu: u16) {
        self.mtu = f64::from(mtu);
        self.minimum = bytes(minimum_window(mtu));
        self.initial = bytes(initial_window(mtu));
        self.window = self.window.max(self.minimum);
    }

    pub(super) fn mtu(&self) -> f64 {
        self.mtu
    }

    pub(super) fn minimum(&self) -> f64 {
        self.minimum
    }

    /// History of past competitions.
    pub(super) fn rivalry(&mut self) -> &mut Rivalry {
        &mut self.rivalry
    }

    /// The window in bytes.
    pub(super) fn window(&self) -> f64 {
        self.probe_rtt.map_or(self.window, |probe| probe.window())
    }

    pub(super) fn pacing_rate(&self) -> Option<Bitrate> {
        (self.rtt > 0.0).then(|| Bitrate::from_bps(whole(self.window() * 8.0 * PACING / self.rtt)))
    }

    pub(super) fn state(&self) -> &'static str {
        match (self.probe_rtt, self.probe_loss) {
            (Some(_), _) => "probe_rtt",
            (None, Some(_)) => "probe_loss",
            (None, None) => "delay",
        }
    }

    /// Target queueing delay in seconds of a flow with this window in bytes and RTT in seconds.
    pub(super) fn target(&self, window: f64, rtt: f64) -> f64 {
        target(window / self.mtu, rtt)
    }

    /// Queueing delay in seconds aimed at with the window of the last seconds.
    pub(super) fn usual_target(&self) -> f64 {
        self.target(self.crowding.usual_window().max(self.minimum), self.rtt)
    }

    pub(super) fn on_acked(&mut self, ack: &AckSample) {
        if ack.window_limited {
            self.window += self.gain * bytes(ack.bytes);
        }
    }

    /// Processes a round trip, with the share of packets lost beyond random loss.
    pub(super) fn on_round(
        &mut self,
        now: Instant,
        round: &Round,
        excess: f64,
        random_loss: &mut RandomLoss,
    ) -> Reaction {
        self.rtt = round.rtt();
        self.gain = 0.0;
        let target = self.target(self.window(), self.rtt);
        let usual_target = self.usual_target();
        let wait = self.noise.take_off(round.queueing(target), target, round.packets(), self.rtt);
        if let Some(probe) = &mut self.probe_rtt {
            let Some(outcome) = probe.on_round(now, round, usual_target, self.mtu) else { return Reaction::None };
            self.noise.on_probed(probe.remaining());
            return self.end_probe_rtt(now, round, outcome);
        }
        if !round.limited {
            // The delay is of others' making, and a smaller window would not change it.
            self.limited = 0;
            self.empty_at = now;
            // Less than the window permits is less load as well.
            return self.go_on_with_probe_loss(now, random_loss);
        }
        self.limited += 1;
        if self.draining > 0 {
            // Queueing delay and losses result from packets sent before the window changed.
            self.draining -= 1;
            random_loss.on_reduced();
            self.strikes = 0;
            return Reaction::None;
        }
        self.crowding.on_round(round, wait, self.window, target, usual_target);
        if round.least_wait < target / 4.0 {
            self.empty_at = now;
        }
        let joins = self.joins(now, round, target);
        let is_crowded = self.crowding.is_crowded();
        if is_crowded && let Some(reaction) = self.compete_without_probe(now, round, usual_target) {
            return reaction;
        }
        let is_due = std::mem::take(&mut self.is_unverified) || now >= self.empty_at + self.probe_break();
        if self.limited > STEADY && (is_crowded || is_due || joins) {
            self.begin_probe_rtt(now, round, is_crowded);
            return Reaction::None;
        }
        if self.probe_loss.is_some() {
            return self.go_on_with_probe_loss(now, random_loss);
        }
        let reaction = self.react_to_loss(now, round, excess, target, random_loss);
        if self.probe_loss.is_none() {
            self.follow_target(now, round, wait, target);
        }
        reaction
    }

    /// Returns whether a flow that does not know the path yet joins the probe of others.
    fn joins(&mut self, now: Instant, round: &Round, target: f64) -> bool {
        let pause = JOIN_BREAK.0.max(Duration::from_secs_f64(JOIN_BREAK.1 * self.rtt));
        self.dip.on_round(round, DIP, DIP_OF * target) && self.probes < JOINS && now >= self.probed_at + pause
    }

    /// Time without an empty queue after which the queue is probed.
    fn probe_break(&self) -> Duration {
        let rounds = Duration::from_secs_f64(PROBE_BREAK_ROUNDS * self.rtt);
        if self.probe_break == PROBE_BREAKS.1 { self.probe_break.max(rounds) } else { self.probe_break }
    }

    /// Competes for a queue that other flows certainly fill: that of a recent competition, or one that this flow no longer contributes to.
    fn compete_without_probe(&mut self, now: Instant, round: &Round, usual_target: f64) -> Option<Reaction> {
        let window = match self.rivalry.relapse(now, &self.crowding, round) {
            Some(window) => window,
            None if self.limited > STEADY && self.crowding.is_certain(self.window, usual_target) => {
                self.rivalry.begin(&self.crowding, round)
            }
            None => return None,
        };
        self.crowding.on_probed(None);
        self.empty_at = now;
        Some(Reaction::Compete(window))
    }

    fn begin_probe_rtt(&mut self, now: Instant, round: &Round, is_crowded: bool) {
        if let Some(probe) = self.probe_loss.take() {
            self.window = probe.before();
        }
        self.probe_rtt = Some(ProbeRtt::new(now, self.window, self.minimum, round));
        self.is_crowded = is_crowded;
    }

    fn end_probe_rtt(&mut self, now: Instant, round: &Round, outcome: Option<f64>) -> Reaction {
        self.probe_rtt = None;
        self.probes += 1;
        self.probed_at = now;
        self.crowding.on_probed(outcome);
        self.empty_at = now;
        self.probe_break = (self.probe_break * 2).min(PROBE_BREAKS.1);
        (self.settling, self.quiet) = (0, 0);
        match outcome {
            Some(filling) => {
                // The delay that remained is no queue, and holds packets as the propagation delay does.
                let filling = filling * (round.propagation + self.noise.constant()) / round.propagation;
                self.window = filling;
                self.verified = VERIFIED * filling;
            }
            // The queue stayed: others fill it.
            None if self.is_crowded || round.floor > LONG_QUEUE * self.usual_target() => {
                return Reaction::Compete(self.rivalry.begin(&self.crowding, round));
            }
            None => {}
        }
        Reaction::None
    }

    fn go_on_with_probe_loss(&mut self, now: Instant, random_loss: &mut RandomLoss) -> Reaction {
        let Some(probe) = &mut self.probe_loss else { return Reaction::None };
        let before = probe.before();
        let Some(cause) = probe.on_round(random_loss) else {
            self.window = probe.window().max(self.minimum);
            return Reaction::None;
        };
        self.probe_loss = None;
        self.window = before;
        (self.settling, self.quiet) = (0, 0);
        self.returns = 0;
        match cause {
            Cause::Random(share) => {
                random_loss.confirm(share);
                self.ceiling = f64::INFINITY;
                self.experiment_after = now + EXPERIMENT_BREAK;
                self.repeat_at = now + self.repeat_break;
                self.repeat_break = (self.repeat_break * 2).min(REPEAT_BREAKS.1);
                Reaction::None
            }
            Cause::Overflow { left, fits } => {
                random_loss.confirm(left.min(random_loss.share()));
                self.experiment_after = now + EXPERIMENT_BREAK;
                self.repeat_break = REPEAT_BREAKS.0;
                self.hold_at(now, fits)
            }
        }
    }

    /// Two batches in a row lost more than chance explains: determine the cause, or send less.
    fn react_to_loss(
        &mut self,
        now: Instant,
        round: &Round,
        excess: f64,
        target: f64,
        random_loss: &mut RandomLoss,
    ) -> Reaction {
        if excess > 0.0 {
            self.strikes += 1;
        } else if random_loss.is_batch_complete() {
            self.strikes = 0;
        }
        // Beyond a window that overflowed before, there is nothing to find out; but that verdict may have been wrong.
        let is_known = self.window > BEYOND * self.ceiling && self.window < FAR * self.ceiling;
        if excess > 0.0 && is_known && self.returns < MOST_RETURNS {
            self.returns += 1;
            self.strikes = 0;
            self.settling = SETTLING;
            random_loss.on_reduced();
            return self.hold_at(now, self.ceiling);
        }
        let is_repeated = random_loss.share() > WORTH_REPEATING && now >= self.repeat_at;
        if self.settling > 0 || (self.strikes < 2 && !is_repeated) {
            self.settling = self.settling.saturating_sub(1);
            return Reaction::None;
        }
        let is_excess = self.strikes >= 2;
        self.strikes = 0;
        self.quiet = 0;
        if round.queueing(target) < 2.0 * target && now >= self.experiment_after {
            let probe = ProbeLoss::new(self.window, excess + random_loss.share());
            self.window = probe.window().max(self.minimum);
            self.probe_loss = Some(probe);
        } else if is_excess {
            self.settling = SETTLING;
            random_loss.on_reduced();
            return self.hold_at(now, self.window * (1.0 - excess));
        }
        Reaction::None
    }

    /// Reduces the window below the one at which the path overflows, and does not exceed it for a while.
    fn hold_at(&mut self, now: Instant, ceiling: f64) -> Reaction {
        let is_same = (ceiling - self.ceiling).abs() < self.ceiling / 4.0;
        self.hold = if is_same { (self.hold * 2).min(HOLDS.1) } else { HOLDS.0 };
        self.ceiling = ceiling;
        self.ceiling_until = now + self.hold;
        self.window = (ceiling * AFTER_OVERFLOW).max(self.minimum);
        Reaction::Reduced
    }

    fn follow_target(&mut self, now: Instant, round: &Round, wait: f64, target: f64) {
        let wanted = self.window * (round.propagation + target) / (round.propagation + wait);
        self.quiet = if wait > target / 4.0 { 0 } else { self.quiet + 1 };
        if wanted < self.window {
            let floor = if self.limited > STEADY { self.minimum } else { self.initial };
            let floor = floor.max(self.crowding.usual_window() / 4.0);
            self.window = (self.window + (wanted - self.window) / 2.0).max(floor).min(self.window);
        } else if self.settling == 0 {
            let is_held = now < self.ceiling_until && self.window > 0.97 * self.ceiling;
            // Close to a window that overflowed before, or with the first sign of loss, larger steps would lose more before
            // the loss is known.
            let is_careful = self.window < FAR * self.ceiling && self.ceiling.is_finite();
            if is_held || self.strikes > 0 {
                self.quiet = 0;
                return;
            }
            let steps = self.quiet.saturating_sub(RAMP_AFTER);
            // A flow that started on a filled queue includes it in the propagation delay, and would starve the other flows.
            self.is_unverified = steps > 0 && self.window > self.verified;
            let ramp = (f64::from(steps) * RAMP.0).min(if is_careful { CAREFUL_RAMP } else { RAMP.1 });
            let catch_up =
                if is_careful { 0.0 } else { CATCH_UP * self.mtu / self.window * (1.0 - wait / target).max(0.0) };
            self.gain = ((wanted / self.window - 1.0) / 2.0).max(catch_up).clamp(ramp, RAMP.1);
        }
    }
}
