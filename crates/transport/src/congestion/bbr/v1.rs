//! BBRv1, as described by draft-cardwell-iccrg-bbr-congestion-control-00. The first version takes the largest delivery rate of the last ten
//! rounds as the bandwidth, and ignores losses.
//!
//! It serves comparisons. Its pacing cycle sends a quarter more for one round in eight. So it keeps its rate under every loss below 1 - 1 /
//! 1.25 = 20 %, and keeps queues full that are shorter than one and a half bandwidth-delay products.

use units::{Bitrate, Duration, Instant};

use super::dice::Dice;
use super::full_pipe::FullPipe;
use super::min_rtt::MinRtt;
use super::model::{bytes_in, scaled};
use super::rounds::{RoundMax, Rounds};
use super::tuning::{MIN_PIPE_PACKETS, UNITY};
use crate::congestion::rate::mul_div;
use crate::congestion::{
    AckSample, CeSample, Controller, LossSample, Parameters, PathModel, SentSample, SpuriousSample, initial_window,
};

/// 2 / ln 2: the least that lets the rate double in each round.
const HIGH_GAIN: u64 = 289;
const DRAIN_GAIN: u64 = 35;
/// The window: twice the bandwidth-delay product, so that late and collected acknowledgements do not stall the sender.
const CWND_GAIN: u64 = 200;
/// One round faster, one slower, six as fast as the path.
const CYCLE: [u64; 8] = [125, 75, 100, 100, 100, 100, 100, 100];
/// Rounds over which the bandwidth is remembered.
const BANDWIDTH_ROUNDS: u64 = 10;
/// Lifetime of a minimum RTT, after which ProbeRTT measures it again.
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(10);
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
/// The largest burst.
const MAX_QUANTUM: u64 = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    ProbeBw,
    ProbeRtt,
}

/// Loss recovery. In its first round the sender sends as much as was delivered; afterwards the window grows again. It lasts until a flight
/// is sent and arrives without a loss. If it ended after one round, as RFC 9002 §7.3.2 does for controllers that reduce once per round, the
/// next loss would begin another one, and each would reduce the flight by its losses without ever restoring it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recovery {
    started_at: Instant,
    /// Time at which the last loss that belongs to it was found.
    lost_at: Instant,
    conservation_ends_at: u64,
    conserving: bool,
    active: bool,
    /// Losses that still stand.
    standing: u64,
}

/// BBRv1 controller: the model of one path, and the resulting control parameters.
#[derive(Clone, Debug)]
pub struct BbrV1 {
    dice: Dice,
    mtu: u64,
    initial_window: u64,
    /// Set if the initial window was not configured: it follows the datagram size until the first acknowledgement.
    follows_mtu: bool,
    rounds: Rounds,
    max_bw: RoundMax,
    min_rtt: MinRtt,
    full_pipe: FullPipe,
    state: State,
    /// The place in [`CYCLE`], and since when.
    phase: usize,
    phase_since: Instant,
    probe_rtt_done_at: Option<Instant>,
    probe_rtt_round_done: bool,
    /// Range of the delivered bytes, first and last, in which ProbeRTT limited the sender: packets of this range show nothing about the
    /// bandwidth.
    quiet: (u64, u64),
    idle_restart: bool,
    recovery: Option<Recovery>,
    delivered: u64,
    lost_since_ack: u64,
    pacing_gain: u64,
    cwnd_gain: u64,
    pacing_rate: u64,
    quantum: u64,
    window: u64,
    prior_window: u64,
}

impl BbrV1 {
    /// BBRv1 in Startup.
    pub fn new(parameters: &Parameters) -> Self {
        let mut bbr = Self {
            dice: Dice::new(&parameters.seed),
            mtu: parameters.mtu.into(),
            initial_window: parameters.window(),
            follows_mtu: parameters.initial_window.is_none(),
            rounds: Rounds::default(),
            max_bw: RoundMax::default(),
            min_rtt: MinRtt::new(parameters.now, PROBE_RTT_INTERVAL),
            full_pipe: FullPipe::default(),
            state: State::Startup,
            phase: 0,
            phase_since: parameters.now,
            probe_rtt_done_at: None,
            probe_rtt_round_done: false,
            quiet: (1, 0),
            idle_restart: false,
            recovery: None,
            delivered: 0,
            lost_since_ack: 0,
            pacing_gain: HIGH_GAIN,
            cwnd_gain: HIGH_GAIN,
            pacing_rate: 0,
            quantum: 0,
            window: parameters.window(),
            prior_window: 0,
        };
        bbr.init_pacing_rate(Duration::from_millis(1));
        bbr
    }

    fn init_pacing_rate(&mut self, rtt: Duration) {
        let nanos = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.pacing_rate = scaled(mul_div(self.initial_window, 8_000_000_000, nanos), HIGH_GAIN);
        self.set_quantum();
    }

    fn set_quantum(&mut self) {
        self.quantum = (self.pacing_rate / 8000).min(MAX_QUANTUM).max(2 * self.mtu);
    }

    fn min_pipe(&self) -> u64 {
        MIN_PIPE_PACKETS * self.mtu
    }

    fn bdp(&self, gain: u64) -> u64 {
        match self.min_rtt.get() {
            Some(rtt) => scaled(bytes_in(self.max_bw.best(), rtt), gain),
            None => self.initial_window,
        }
    }

    /// BBRInflight: with room for three quanta in the sender and the receiver.
    fn target(&self, gain: u64) -> u64 {
        self.bdp(gain) + 3 * self.quantum
    }

    /// Returns whether a packet was sent while ProbeRTT or a lack of data limited the sender: it does not lower the estimate.
    fn hides_bandwidth(&self, prior_delivered: u64) -> bool {
        prior_delivered >= self.quiet.0 && prior_delivered <= self.quiet.1
    }

    fn enter_startup(&mut self) {
        self.state = State::Startup;
        (self.pacing_gain, self.cwnd_gain) = (HIGH_GAIN, HIGH_GAIN);
    }

    /// BBREnterProbeBW: at a place of the cycle that is drawn, but not where it slows down.
    fn enter_probe_bw(&mut self, now: Instant) {
        self.state = State::ProbeBw;
        self.cwnd_gain = CWND_GAIN;
        let drawn = self.dice.below(CYCLE.len() as u64 - 1) as usize;
        self.start_phase(now, if drawn == 0 { 0 } else { drawn + 1 });
    }

    fn start_phase(&mut self, now: Instant, phase: usize) {
        self.phase = phase % CYCLE.len();
        self.phase_since = now;
        self.pacing_gain = CYCLE[self.phase];
    }

    /// BBRCheckCyclePhase.
    fn check_cycle(&mut self, now: Instant, ack: &AckSample) {
        let elapsed = now.nanos_since(self.phase_since) > self.min_rtt.get().unwrap_or_default();
        let over = match self.pacing_gain {
            UNITY => elapsed,
            // Faster until the flight shows it, or the path says that it was too much.
            gain if gain > UNITY => {
                elapsed && (ack.newly_lost > 0 || ack.prior_in_flight >= self.target(self.pacing_gain))
            }
            // Slower until the queue is gone.
            _ => elapsed || ack.prior_in_flight <= self.target(UNITY),
        };
        if over {
            self.start_phase(now, self.phase + 1);
        }
    }

    fn check_probe_rtt(&mut self, now: Instant, ack: &AckSample) {
        if self.state != State::ProbeRtt && self.min_rtt.is_due() && !self.idle_restart {
            self.save_window();
            self.state = State::ProbeRtt;
            (self.pacing_gain, self.cwnd_gain) = (UNITY, UNITY);
            self.probe_rtt_done_at = None;
            self.quiet = (ack.delivered.max(1), 0);
        }
        if self.state == State::ProbeRtt {
            self.quiet.1 = ack.delivered + ack.in_flight;
            match self.probe_rtt_done_at {
                None if ack.in_flight <= self.min_pipe() => {
                    self.probe_rtt_done_at = Some(now + PROBE_RTT_DURATION);
                    self.probe_rtt_round_done = false;
                    self.rounds.restart(ack.delivered);
                }
                None => {}
                Some(done_at) => {
                    self.probe_rtt_round_done |= self.rounds.started();
                    if self.probe_rtt_round_done && now > done_at {
                        self.exit_probe_rtt(now);
                    }
                }
            }
        }
        self.idle_restart = false;
    }

    fn exit_probe_rtt(&mut self, now: Instant) {
        self.min_rtt.probed(now);
        self.window = self.window.max(self.prior_window);
        if self.full_pipe.is_reached() { self.enter_probe_bw(now) } else { self.enter_startup() }
    }

    fn save_window(&mut self) {
        let lowered = self.recovery.is_some_and(|recovery| recovery.active) || self.state == State::ProbeRtt;
        self.prior_window = if lowered { self.prior_window.max(self.window) } else { self.window };
    }

    /// BBRSetCwnd with BBRModulateCwndForRecovery.
    fn set_window(&mut self, ack: &AckSample) {
        let lost = std::mem::take(&mut self.lost_since_ack);
        let conserving = self.recovery.is_some_and(|recovery| recovery.conserving);
        if lost > 0 {
            self.window = self.window.saturating_sub(lost).max(self.mtu);
        }
        if conserving {
            self.window = self.window.max(ack.in_flight + ack.bytes);
        } else {
            let target = self.target(self.cwnd_gain);
            if self.full_pipe.is_reached() {
                self.window = (self.window + ack.bytes).min(target);
            } else if self.window < target || ack.delivered < self.initial_window {
                self.window += ack.bytes;
            }
            self.window = self.window.max(self.min_pipe());
        }
        if self.state == State::ProbeRtt {
            self.window = self.window.min(self.min_pipe());
        }
    }

    fn set_pacing_rate(&mut self, gain: u64) {
        let rate = scaled(self.max_bw.best(), gain);
        if self.full_pipe.is_reached() || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    fn on_round_in_recovery(&mut self, prior_delivered: u64, largest_acked_sent_at: Instant) {
        let Some(recovery) = &mut self.recovery else { return };
        if recovery.conserving && prior_delivered >= recovery.conservation_ends_at {
            recovery.conserving = false;
        }
        if recovery.active && largest_acked_sent_at > recovery.lost_at {
            recovery.active = false;
            recovery.conserving = false;
            self.window = self.window.max(self.prior_window);
        }
    }
}

impl Controller for BbrV1 {
    fn name(&self) -> &'static str {
        "bbr1"
    }

    #[inline]
    fn on_sent(&mut self, now: Instant, sent: &SentSample) {
        if sent.in_flight_before == 0 && sent.app_limited {
            self.idle_restart = true;
            match self.state {
                State::ProbeBw => self.set_pacing_rate(UNITY),
                State::ProbeRtt if self.probe_rtt_done_at.is_some_and(|done_at| now > done_at) => {
                    self.exit_probe_rtt(now);
                }
                _ => {}
            }
        }
    }

    fn on_acked(&mut self, now: Instant, ack: &AckSample) {
        let Some(rate) = &ack.rate else { return };
        if let (None, Some(rtt)) = (self.min_rtt.get(), ack.rtt) {
            self.init_pacing_rate(rtt);
        }
        self.delivered = ack.delivered;
        self.on_round_in_recovery(rate.prior_delivered, ack.largest_acked_sent_at);
        self.rounds.on_acked(rate.prior_delivered, ack.delivered);
        let bps = rate.delivery_rate.map_or(0, Bitrate::as_bps);
        let app_limited = rate.is_app_limited || self.hides_bandwidth(rate.prior_delivered);
        if bps > 0 && (!app_limited || bps >= self.max_bw.best()) {
            self.max_bw.update(self.rounds.count(), BANDWIDTH_ROUNDS, bps);
        }
        if self.state == State::ProbeBw {
            self.check_cycle(now, ack);
        }
        if self.rounds.started() {
            self.full_pipe.on_round(self.max_bw.best(), app_limited);
        }
        if self.state == State::Startup && self.full_pipe.is_reached() {
            self.state = State::Drain;
            (self.pacing_gain, self.cwnd_gain) = (DRAIN_GAIN, HIGH_GAIN);
        }
        if self.state == State::Drain && ack.in_flight <= self.target(UNITY) {
            self.enter_probe_bw(now);
        }
        let rtt = ack.rtt.map(|rtt| u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX));
        self.min_rtt.update(now, rtt);
        self.check_probe_rtt(now, ack);
        self.set_pacing_rate(self.pacing_gain);
        self.set_quantum();
        self.set_window(ack);
    }

    fn on_lost(&mut self, now: Instant, loss: &LossSample) {
        self.lost_since_ack += loss.bytes;
        let begins =
            self.recovery.is_none_or(|recovery| !recovery.active && loss.largest_lost_sent_at > recovery.lost_at);
        if begins {
            self.save_window();
            self.recovery = Some(Recovery {
                started_at: now,
                lost_at: now,
                conservation_ends_at: self.delivered,
                conserving: true,
                active: true,
                standing: 0,
            });
            // What is in flight, and one packet that sends the first loss again.
            self.window = loss.in_flight + self.mtu;
            self.lost_since_ack = 0;
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.standing += loss.packets;
            recovery.lost_at = now;
        }
        if loss.persistent {
            self.window = self.mtu.max(loss.in_flight + self.mtu);
        }
    }

    fn on_spurious_loss(&mut self, _now: Instant, spurious: &SpuriousSample) {
        let Some(recovery) =
            self.recovery.as_mut().filter(|recovery| recovery.standing > 0 && spurious.lost_at >= recovery.started_at)
        else {
            return;
        };
        recovery.standing -= 1;
        if recovery.standing == 0 {
            recovery.active = false;
            recovery.conserving = false;
            self.window = self.window.max(self.prior_window);
        }
    }

    /// BBRv1 knows no marks. RFC 9002 §7.1 wants them answered like losses, and this is how it answers those: not at all.
    fn on_ecn_ce(&mut self, _now: Instant, _ce: &CeSample) {}

    fn on_mtu(&mut self, mtu: u16) {
        if self.follows_mtu && self.delivered == 0 && self.window == self.initial_window {
            // RFC 9002 §7.2: the initial window follows the datagram size.
            self.initial_window = initial_window(mtu);
            self.window = self.initial_window;
        }
        self.mtu = mtu.into();
        self.set_quantum();
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn pacing_rate(&self) -> Option<Bitrate> {
        Some(Bitrate::from_bps(self.pacing_rate))
    }

    fn send_quantum(&self) -> u64 {
        self.quantum
    }

    fn recovery_started_at(&self) -> Option<Instant> {
        self.recovery.map(|recovery| recovery.started_at)
    }

    fn in_slow_start(&self) -> bool {
        self.state == State::Startup
    }

    fn is_probing(&self) -> bool {
        self.pacing_gain > UNITY
    }

    fn state(&self) -> &'static str {
        match self.state {
            State::Startup => "startup",
            State::Drain => "drain",
            State::ProbeBw => "probe_bw",
            State::ProbeRtt => "probe_rtt",
        }
    }

    fn model(&self) -> Option<PathModel> {
        let bandwidth = Bitrate::from_bps(self.max_bw.best());
        Some(PathModel {
            max_bandwidth: bandwidth,
            bandwidth,
            bandwidth_shortterm: None,
            inflight_shortterm: None,
            inflight_longterm: None,
            min_rtt: self.min_rtt.get().map(Duration::from_nanos),
            extra_acked: 0,
            pacing_gain_percent: self.pacing_gain,
            cwnd_gain_percent: self.cwnd_gain,
            bdp: self.bdp(UNITY),
            target: self.target(UNITY),
            target_with_headroom: None,
            state_entries: [("", 0); 7],
            rounds: self.rounds.count(),
            plateau_rounds: self.full_pipe.count(),
            full_now: self.full_pipe.is_full_now(),
            full_reached: self.full_pipe.is_reached(),
            idle_restart: self.idle_restart,
            undo_state: None,
            undo_bandwidth_shortterm: None,
            undo_inflight_shortterm: None,
            undo_inflight_longterm: None,
        })
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}
