//! Competitive mode: other flows keep the queue filled, so the window is CUBIC's until the queue is empty.

use units::{Duration, Instant};

use super::super::{AckSample, CeSample, Controller, Cubic, LossSample, Parameters, SentSample, SpuriousSample};
use super::delay::DelayMode;
use super::dip::Dip;
use super::probe_rtt::ProbeRtt;
use super::rounds::Round;
use super::{bytes, whole};

/// Shortest time between two probes that an empty queue triggers, and the same in round trips.
const SHORTEST_BREAK: (Duration, f64) = (Duration::from_secs(1), 16.0);
/// Share of the mean delay below which others leave the queue, so that this flow joins their probe.
const DIP: f64 = 0.5;
/// Shortest time from a probe to one that a dip triggers; CUBIC's losses are dips as well.
const DIP_BREAK: Duration = Duration::from_secs(2);
/// Round trips in a row with a mean delay below the target after which nobody competes: a flow that goes on would be the rival of those that
/// have stopped.
const QUIET: u32 = 3;
/// Smallest number of round trips between two probes: a probe takes two to four.
const PATIENCE_ROUNDS: f64 = 24.0;
/// Upper bound of their duration, so that the end of the competition is detected.
const LONGEST_PATIENCE: Duration = Duration::from_secs(30);

/// Owns CUBIC and the detection of the end of the competition.
#[derive(Clone, Debug)]
pub(super) struct Competitive {
    cubic: Cubic,
    since: Instant,
    /// The shortest queueing delay in seconds, and when it was seen: all flows of a queue see it at the same time.
    lowest: (f64, Instant),
    probed_at: Instant,
    probe: Option<ProbeRtt>,
    dip: Dip,
    /// Round trips in a row with a mean delay below the target.
    quiet: u32,
}

impl Competitive {
    pub(super) fn new(now: Instant, window: f64, round: &Round, parameters: &Parameters) -> Self {
        let parameters = Parameters { initial_window: Some(whole(window)), now, ..*parameters };
        let cubic = Cubic::resume(&parameters);
        let lowest = (round.wait, now);
        Self { cubic, since: now, lowest, probed_at: now, probe: None, dip: Dip::new(round.wait), quiet: 0 }
    }

    pub(super) fn window(&self) -> u64 {
        self.probe.map_or_else(|| self.cubic.window(), |probe| whole(probe.window()))
    }

    /// Window of CUBIC in bytes.
    pub(super) fn competing_window(&self) -> f64 {
        bytes(self.cubic.window())
    }

    pub(super) fn state(&self) -> &'static str {
        if self.probe.is_some() { "competitive_probe_rtt" } else { "competitive" }
    }

    /// Processes a round trip. Returns the window to continue with when the queue is empty.
    pub(super) fn on_round(&mut self, now: Instant, round: &Round, delay: &mut DelayMode) -> Option<f64> {
        let target = delay.usual_target();
        if let Some(probe) = &mut self.probe {
            let outcome = probe.on_round(now, round, target, delay.mtu())?;
            delay.rivalry().on_probed(now, self.since, outcome.is_some());
            self.probe = None;
            self.lowest = (round.wait, now);
            return outcome;
        }
        let rounds = Duration::from_secs_f64(PATIENCE_ROUNDS * round.rtt()).min(LONGEST_PATIENCE);
        let patience = delay.rivalry().patience().max(rounds);
        let is_due = now >= self.lowest.1 + patience;
        let pause = SHORTEST_BREAK.0.max(Duration::from_secs_f64(SHORTEST_BREAK.1 * round.rtt()));
        let is_empty = round.least_wait < target / 2.0 && now >= self.probed_at + pause;
        let is_dip = self.dip.on_round(round, DIP, 0.0) && now >= self.probed_at + rounds.max(DIP_BREAK);
        self.quiet = if round.wait < target { self.quiet + 1 } else { 0 };
        let may_end = (is_due || is_empty || is_dip) && now >= self.since + delay.rivalry().stay();
        if round.limited && (may_end || self.quiet >= QUIET) {
            self.probed_at = now;
            self.probe = Some(ProbeRtt::new(now, bytes(self.cubic.window()), delay.minimum(), round));
        } else if round.wait < self.lowest.0 * 0.95 - 0.0005 {
            self.lowest = (round.wait, now);
        }
        None
    }

    pub(super) fn on_sent(&mut self, now: Instant, sent: &SentSample) {
        self.cubic.on_sent(now, sent);
    }

    pub(super) fn on_acked(&mut self, now: Instant, ack: &AckSample) {
        // The window does not grow while another one is in use.
        if self.probe.is_none() {
            self.cubic.on_acked(now, ack);
        }
    }

    pub(super) fn on_lost(&mut self, now: Instant, loss: &LossSample) {
        self.cubic.on_lost(now, loss);
    }

    pub(super) fn on_spurious_loss(&mut self, now: Instant, spurious: &SpuriousSample) {
        self.cubic.on_spurious_loss(now, spurious);
    }

    pub(super) fn on_ecn_ce(&mut self, now: Instant, ce: &CeSample) {
        self.cubic.on_ecn_ce(now, ce);
    }

    pub(super) fn on_mtu(&mut self, mtu: u16) {
        self.cubic.on_mtu(mtu);
    }

    pub(super) fn recovery_started_at(&self) -> Option<Instant> {
        self.cubic.recovery_started_at()
    }
}
