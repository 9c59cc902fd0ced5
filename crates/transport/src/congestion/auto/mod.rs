//! `auto`: a controller for every path. It keeps a short queue where the path allows it, uses CUBIC where other flows fill the queue, and
//! does not react to loss that a lower rate would not reduce.
//!
//! | state | window | file |
//! |---|---|---|
//! | `startup` | doubles per round trip until delay, delivery rate or loss shows the end of the path | `startup` |
//! | `delay` | aims at a queueing delay of a few milliseconds | `delay` |
//! | `probe_rtt` | halved for four round trips, to see whether other flows fill the queue | `probe_rtt` |
//! | `probe_loss` | at 70 %, to see whether the loss disappears | `probe_loss` |
//! | `competitive` | CUBIC's, because the queue did not empty when this flow left it | `competitive` |
//!
//! Evidence decides each change. A queue that stays while this flow sends half as much is that of other flows: a delay-based window would
//! starve, so CUBIC competes. Loss that stays at a lower rate is not congestion. Loss that disappears was caused by a buffer or a policer.
//! Competitive mode ends when the queue is empty.
//!
//! Times are seconds and windows bytes in floating point. Only the four basic operations and square roots are used, so the results are
//! bit-identical on every machine.

use units::{Bitrate, Instant};

mod competitive;
mod crowding;
mod delay;
mod dip;
mod noise;
mod probe_loss;
mod probe_rtt;
mod random_loss;
mod rivalry;
mod rounds;
mod startup;
mod target;

use self::competitive::Competitive;
use self::delay::{DelayMode, Reaction};
use self::random_loss::RandomLoss;
use self::rounds::{Round, Rounds};
use self::startup::Startup;
use super::{
    AckSample, CeSample, Controller, LossSample, LostPacket, Parameters, SentSample, SpuriousSample, initial_window,
    minimum_window,
};

/// Share of the window that is left after congestion marks, where the queue is short: marks come long before loss
/// (RFC 8511 §3.1).
const AFTER_MARKS: f64 = 0.8;

/// The part that decides about the window.
#[derive(Clone, Debug)]
enum Mode {
    Startup(Startup),
    Delay,
    Competitive(Box<Competitive>),
}

/// Owns the mode, and the measurements that all modes share.
#[derive(Clone, Debug)]
pub struct Auto {
    parameters: Parameters,
    rounds: Rounds,
    random_loss: RandomLoss,
    mode: Mode,
    /// State of delay mode; kept while another mode decides.
    delay: DelayMode,
    recovery_started_at: Option<Instant>,
}

impl Auto {
    /// A controller in startup, without knowledge of the path.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            parameters: *parameters,
            rounds: Rounds::new(parameters.now),
            random_loss: RandomLoss::default(),
            mode: Mode::Startup(Startup::new(bytes(parameters.window()))),
            delay: DelayMode::new(parameters.now, parameters.mtu),
            recovery_started_at: None,
        }
    }

    /// A controller in delay mode with the initial window of the parameters: it takes over from another one that knew the
    /// path.
    pub fn resume(parameters: &Parameters) -> Self {
        let mut auto = Self::new(parameters);
        auto.enter_delay(parameters.now, bytes(parameters.window()));
        auto
    }

    fn enter_delay(&mut self, now: Instant, window: f64) {
        self.delay.enter(now, window);
        self.rounds.keep_propagation_delay(false);
        self.mode = Mode::Delay;
    }

    /// The end of a packet-timed round trip.
    fn on_round(&mut self, now: Instant, round: &Round) {
        let excess = self.random_loss.on_round(round.acked, round.lost);
        match &mut self.mode {
            Mode::Startup(startup) => {
                if let Some(window) = startup.on_round(round, self.delay.target(startup.window(), round.rtt())) {
                    self.recovery_started_at = Some(now);
                    // RFC 9002 §7.2: every path permits the initial window. A delay without loss may be of others' making.
                    let permitted = bytes(initial_window(self.parameters.mtu)).min(startup.window());
                    let window = if round.lost == 0 { window.max(permitted) } else { window };
                    self.enter_delay(now, window);
                }
            }
            Mode::Delay => match self.delay.on_round(now, round, excess, &mut self.random_loss) {
                Reaction::None => {}
                Reaction::Reduced => self.recovery_started_at = Some(now),
                Reaction::Compete(window) => {
                    let competitive = Competitive::new(now, window, round, &self.parameters);
                    self.rounds.keep_propagation_delay(true);
                    self.mode = Mode::Competitive(Box::new(competitive));
                }
            },
            Mode::Competitive(competitive) => {
                if let Some(window) = competitive.on_round(now, round, &mut self.delay) {
                    self.delay.leave_competitive(now, window, competitive.competing_window());
                    self.enter_delay(now, window);
                }
            }
        }
    }
}

/// A window as a number to calculate with.
#[expect(clippy::cast_precision_loss, reason = "windows are far below 2^53 bytes")]
fn bytes(window: u64) -> f64 {
    window as f64
}

/// A calculated window in whole bytes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "windows are positive and far below 2^53 bytes"
)]
fn whole(window: f64) -> u64 {
    window as u64
}

impl Controller for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    #[inline]
    fn on_sent(&mut self, now: Instant, sent: &SentSample) {
        if let Mode::Competitive(competitive) = &mut self.mode {
            competitive.on_sent(now, sent);
        }
    }

    fn on_acked(&mut self, now: Instant, ack: &AckSample) {
        match &mut self.mode {
            Mode::Startup(startup) => startup.on_acked(ack),
            Mode::Delay => self.delay.on_acked(ack),
            Mode::Competitive(competitive) => competitive.on_acked(now, ack),
        }
        if let Some(round) = self.rounds.on_acked(now, ack) {
            self.on_round(now, &round);
        }
    }

    fn on_packet_lost(&mut self, _now: Instant, packet: &LostPacket) {
        self.rounds.on_packet_lost();
        self.random_loss.on_packet_lost(packet.pn);
    }

    fn on_lost(&mut self, now: Instant, loss: &LossSample) {
        if loss.persistent {
            // RFC 9002 §7.6.2: persistent congestion reduces the window to the minimum.
            self.rounds.keep_propagation_delay(false);
            // The delivery rate from before would make every round trip of the new startup look flat.
            self.rounds.discard();
            self.mode = Mode::Startup(Startup::new(bytes(minimum_window(self.parameters.mtu))));
            self.recovery_started_at = Some(now);
        } else if let Mode::Competitive(competitive) = &mut self.mode {
            // Only what an experiment has found to be random is passed over: at a policer there is no queueing delay either.
            let random =
                self.rounds.least_wait() < 2.0 * self.delay.usual_target() && self.random_loss.explains_losses();
            competitive.on_lost(now, &LossSample { random, ..*loss });
        }
    }

    fn on_spurious_loss(&mut self, now: Instant, spurious: &SpuriousSample) {
        self.rounds.on_spurious_loss();
        if let Mode::Competitive(competitive) = &mut self.mode {
            competitive.on_spurious_loss(now, spurious);
        }
    }

    fn on_ecn_ce(&mut self, now: Instant, ce: &CeSample) {
        if let Mode::Competitive(competitive) = &mut self.mode {
            competitive.on_ecn_ce(now, ce);
        } else if self.recovery_started_at.is_none_or(|at| ce.largest_acked_sent_at > at) {
            let window = match &self.mode {
                Mode::Startup(startup) => startup.window(),
                _ => self.delay.window(),
            };
            self.enter_delay(now, window * AFTER_MARKS);
            self.recovery_started_at = Some(now);
        }
    }

    fn on_mtu(&mut self, mtu: u16) {
        if let Mode::Startup(startup) = &mut self.mode {
            let untouched = whole(startup.window()) == initial_window(self.parameters.mtu);
            if untouched && self.parameters.initial_window.is_none() && !self.rounds.is_measured() {
                *startup = Startup::new(bytes(initial_window(mtu)));
            }
            startup.keep_above(bytes(minimum_window(mtu)));
        }
        if let Mode::Competitive(competitive) = &mut self.mode {
            competitive.on_mtu(mtu);
        }
        self.parameters.mtu = mtu;
        self.delay.on_mtu(mtu);
    }

    fn window(&self) -> u64 {
        match &self.mode {
            Mode::Startup(startup) => whole(startup.window()),
            Mode::Delay => whole(self.delay.window()),
            Mode::Competitive(competitive) => competitive.window(),
        }
    }

    fn pacing_rate(&self) -> Option<Bitrate> {
        match &self.mode {
            Mode::Delay => self.delay.pacing_rate(),
            // The pacer takes the rate from the window.
            Mode::Startup(_) | Mode::Competitive(_) => None,
        }
    }

    fn recovery_started_at(&self) -> Option<Instant> {
        match &self.mode {
            Mode::Competitive(competitive) => competitive.recovery_started_at(),
            Mode::Startup(_) | Mode::Delay => self.recovery_started_at,
        }
    }

    fn in_slow_start(&self) -> bool {
        matches!(self.mode, Mode::Startup(_))
    }

    fn state(&self) -> &'static str {
        match &self.mode {
            Mode::Startup(_) => "startup",
            Mode::Delay => self.delay.state(),
            Mode::Competitive(competitive) => competitive.state(),
        }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests;
