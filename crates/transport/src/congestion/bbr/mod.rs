//! BBRv3, after draft-ietf-ccwg-bbr (the working group's text of 3 August 2026, which follows version -06), and BBRv2, which differs in
//! constants (`tuning`). `v1` is the first version on the same estimators.
//!
//! BBR measures bandwidth and propagation delay of the path, and keeps their product in flight. Each estimator and each state has a file;
//! names in capitals in comments are the draft's functions. In the order in which an acknowledgement meets them: rounds, the bandwidth
//! (`max_bw`), congestion (`bounds`), `aggregation`, detection of the plateau (`full_pipe`), the states (`startup`, `drain`, `probe_bw`,
//! `probe_rtt` with `min_rtt`), and the resulting control parameters (`output`).
//!
//! Rates are bits per second, volumes bytes, times nanoseconds, gains per cent. All are integers, and divisors are constants, so a run
//! repeats bit for bit.

mod aggregation;
mod bounds;
mod dice;
mod drain;
mod full_pipe;
mod max_bw;
mod min_rtt;
mod model;
mod output;
mod probe_bw;
mod probe_rtt;
mod recovery;
mod rounds;
mod startup;
#[cfg(test)]
mod tests;
mod tuning;
mod v1;

use units::{Bitrate, Duration, Instant};

use self::aggregation::Aggregation;
use self::bounds::{Bounds, UNBOUNDED};
use self::dice::Dice;
use self::full_pipe::FullPipe;
use self::max_bw::MaxBandwidth;
use self::min_rtt::MinRtt;
use self::probe_bw::Cycle;
use self::probe_rtt::ProbeRtt;
use self::recovery::LossRecovery;
use self::rounds::Rounds;
use self::startup::Startup;
use self::tuning::{Tuning, UNITY};
pub use self::v1::BbrV1;
use super::{
    AckSample, CeSample, Controller, LossSample, LostPacket, Parameters, PathModel, SentSample, SpuriousSample,
    initial_window,
};

/// The states of the draft; ProbeBW has four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

impl State {
    const ALL: [Self; Self::COUNT] =
        [Self::Startup, Self::Drain, Self::Down, Self::Cruise, Self::Refill, Self::Up, Self::ProbeRtt];
    const COUNT: usize = 7;

    const fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Drain => "drain",
            Self::Down => "probe_bw_down",
            Self::Cruise => "probe_bw_cruise",
            Self::Refill => "probe_bw_refill",
            Self::Up => "probe_bw_up",
            Self::ProbeRtt => "probe_rtt",
        }
    }
}

/// Rate sample of an acknowledgement (the draft's RS).
#[derive(Clone, Copy, Debug)]
struct Sample {
    now: Instant,
    /// RS.delivery_rate in bits per second; 0 without one.
    rate: u64,
    /// RS.delivered: since the packet left.
    delivered_since: u64,
    prior_delivered: u64,
    tx_in_flight: u64,
    /// RS.lost: since the packet left.
    lost: u64,
    app_limited: bool,
    newly_acked: u64,
    /// In nanoseconds.
    rtt: Option<u64>,
    in_flight: u64,
    /// C.delivered.
    delivered: u64,
    /// C.is_cwnd_limited.
    window_full: bool,
}

/// BBR controller: the model of one path, and the resulting control parameters.
#[derive(Clone, Debug)]
pub struct Bbr {
    tuning: &'static Tuning,
    dice: Dice,
    mtu: u64,
    initial_window: u64,
    /// Set if the initial window was not configured: it follows the datagram size until the first acknowledgement.
    follows_mtu: bool,

    rounds: Rounds,
    max_bw: MaxBandwidth,
    min_rtt: MinRtt,
    aggregation: Aggregation,
    full_pipe: FullPipe,
    bounds: Bounds,
    recovery: LossRecovery,
    /// C.delivered, as of the last acknowledgement.
    delivered: u64,

    state: State,
    /// Number of times each state was entered.
    state_entries: [u32; State::COUNT],
    startup: Startup,
    drain_start_round: u64,
    cycle: Cycle,
    probe_rtt: ProbeRtt,
    /// The connection sends again after idling: that was silence enough to measure the propagation delay.
    idle_restart: bool,
    /// Time at which the connection last sent with no more in flight than a probe leaves, because the application had been silent.
    /// `None` where such silence takes the place of no probe.
    silent_at: Option<Option<Instant>>,

    /// BBR.bw: the bandwidth within its bounds.
    bw: u64,
    pacing_gain: u64,
    cwnd_gain: u64,
    pacing_rate: u64,
    quantum: u64,
    window: u64,
    prior_window: u64,
}

impl Bbr {
    /// BBRv3 in Startup.
    pub fn v3(parameters: &Parameters) -> Self {
        Self::new(&tuning::V3, parameters)
    }

    /// BBRv2 in Startup.
    pub fn v2(parameters: &Parameters) -> Self {
        Self::new(&tuning::V2, parameters)
    }

    /// BBRv3 in ProbeBW, on a path whose bandwidth and propagation delay another controller has estimated, with the initial window of the
    /// parameters. `delivered` is the number of bytes delivered on the path. Without a bandwidth it begins in Startup.
    pub fn resume(parameters: &Parameters, bandwidth: Bitrate, min_rtt: Duration, delivered: u64) -> Self {
        let mut bbr = Self::v3(parameters);
        bbr.delivered = delivered;
        bbr.rounds.restart(delivered);
        if bandwidth.as_bps() == 0 {
            return bbr;
        }
        bbr.min_rtt.update(parameters.now, Some(u64::try_from(min_rtt.as_nanos()).unwrap_or(u64::MAX)));
        bbr.max_bw.update(bandwidth.as_bps(), false);
        bbr.bw = bandwidth.as_bps();
        bbr.full_pipe.set_full();
        bbr.start_down(parameters.now, delivered);
        bbr.set_pacing_rate(bbr.pacing_gain);
        bbr.set_quantum();
        bbr
    }

    fn new(tuning: &'static Tuning, parameters: &Parameters) -> Self {
        let mut bbr = Self {
            tuning,
            dice: Dice::new(&parameters.seed),
            mtu: parameters.mtu.into(),
            initial_window: parameters.window(),
            follows_mtu: parameters.initial_window.is_none(),
            rounds: Rounds::default(),
            max_bw: MaxBandwidth::default(),
            min_rtt: MinRtt::new(parameters.now, probe_rtt::INTERVAL),
            aggregation: Aggregation::new(parameters.now),
            full_pipe: FullPipe::default(),
            bounds: Bounds::new(),
            recovery: LossRecovery::new(),
            delivered: 0,
            state: State::Startup,
            state_entries: [0; State::COUNT],
            startup: Startup::default(),
            drain_start_round: 0,
            cycle: Cycle::new(parameters.now),
            probe_rtt: ProbeRtt::default(),
            idle_restart: false,
            silent_at: None,
            bw: 0,
            pacing_gain: UNITY,
            cwnd_gain: UNITY,
            pacing_rate: 0,
            quantum: 0,
            window: parameters.window(),
            prior_window: 0,
        };
        bbr.enter_startup();
        bbr.init_pacing_rate(None);
        bbr
    }

    /// Returns the rate sample of an acknowledgement, application-limited when ProbeRTT held back the packet that it measures.
    /// `None` without a rate.
    #[inline]
    fn sample(&self, now: Instant, ack: &AckSample) -> Option<Sample> {
        let rate = ack.rate.as_ref()?;
        Some(Sample {
            now,
            rate: rate.delivery_rate.map_or(0, Bitrate::as_bps),
            delivered_since: rate.delivered,
            prior_delivered: rate.prior_delivered,
            tx_in_flight: rate.tx_in_flight,
            lost: rate.lost,
            app_limited: rate.is_app_limited || self.probe_rtt.hides_bandwidth(rate.prior_delivered),
            newly_acked: ack.bytes,
            rtt: ack.rtt.map(|rtt| u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX)),
            in_flight: ack.in_flight,
            delivered: ack.delivered,
            window_full: ack.window_full,
        })
    }

    /// Changes the state. One acknowledgement may lead through several states.
    fn enter(&mut self, state: State, pacing_gain: u64, cwnd_gain: u64) {
        self.state = state;
        self.state_entries[state as usize] += 1;
        self.pacing_gain = pacing_gain;
        self.cwnd_gain = cwnd_gain;
    }

    /// UpdateModelAndState.
    fn update_model(&mut self, sample: &Sample) {
        self.bounds.begin_ack(sample);
        self.rounds.on_acked(sample.prior_delivered, sample.delivered);
        self.max_bw.update(sample.rate, sample.app_limited);
        self.adapt_short_term();
        if self.bounds.take_marked()
            && self.cycle.is_probe_sample()
            && self.bounds.is_too_high(sample.lost, sample.tx_in_flight)
        {
            self.on_probe_too_high(sample.now, sample.tx_in_flight, sample.app_limited);
        }
        let (round, filled) = (self.rounds.count(), self.full_pipe.is_reached());
        self.aggregation.update(sample.now, self.bw, sample.newly_acked, self.window, round, filled);
        if self.rounds.started() {
            self.cycle.on_round();
            self.bounds.on_round();
            self.full_pipe.on_round(sample.rate, sample.app_limited);
        }
        self.check_startup_done(sample);
        self.check_drain_done(sample);
        self.update_cycle(sample);
        self.min_rtt.update(sample.now, sample.rtt);
        self.check_probe_rtt(sample);
        self.bounds.end_ack(sample);
        // BoundBWForModel.
        self.bw = self.max_bw.get().min(self.bounds.bw_short);
    }
}

impl Controller for Bbr {
    fn name(&self) -> &'static str {
        self.tuning.name
    }

    #[inline]
    fn on_sent(&mut self, now: Instant, sent: &SentSample) {
        // Repair at the end of a message may not be acknowledged when the next begins.
        if self.silent_at.is_some() && sent.app_limited && sent.in_flight_before <= self.probe_rtt_window() {
            self.silent_at = Some(Some(now));
        }
        if sent.in_flight_before == 0 && sent.app_limited {
            self.restart_from_idle(now);
        }
    }

    fn count_silence(&mut self) {
        self.silent_at = Some(None);
    }

    fn on_acked(&mut self, now: Instant, ack: &AckSample) {
        let Some(sample) = self.sample(now, ack) else { return };
        if self.min_rtt.get().is_none() && ack.rtt.is_some() {
            self.init_pacing_rate(ack.rtt);
        }
        self.delivered = sample.delivered;
        if self.recovery.ends(ack.largest_acked_sent_at) {
            self.restore_window();
        }
        self.update_model(&sample);
        self.set_pacing_rate(self.pacing_gain);
        self.set_quantum();
        self.set_window(&sample);
    }

    /// HandleLostPacket.
    fn on_packet_lost(&mut self, now: Instant, packet: &LostPacket) {
        self.delivered = packet.delivered;
        self.note_congestion(now, packet.sent_at, false);
        if !self.bounds.is_tolerant() {
            self.bounds.note_loss(packet.delivered);
        }
        self.startup.on_packet_lost(packet.pn);
        if !self.cycle.is_probe_sample() {
            return;
        }
        let tx_in_flight = u64::from(packet.snapshot.tx_in_flight);
        if self.bounds.is_too_high(packet.lost_since_sent, tx_in_flight) {
            let at = self.bounds.inflight_at_loss(packet.bytes.into(), tx_in_flight, packet.lost_since_sent);
            let app_limited = packet.snapshot.app_limited || self.probe_rtt.hides_bandwidth(packet.snapshot.delivered);
            self.on_probe_too_high(now, at, app_limited);
        }
    }

    fn on_lost(&mut self, _now: Instant, loss: &LossSample) {
        if loss.persistent {
            self.on_persistent_congestion(loss.in_flight);
        }
    }

    fn on_spurious_loss(&mut self, _now: Instant, spurious: &SpuriousSample) {
        self.take_back_loss(spurious.lost_at);
    }

    fn tolerate_loss(&mut self, share: Option<f64>) {
        self.bounds.tolerate(share);
    }

    fn on_ecn_ce(&mut self, now: Instant, ce: &CeSample) {
        self.note_congestion(now, ce.largest_acked_sent_at, true);
        self.bounds.note_loss(self.delivered);
        self.bounds.on_marked(ce.newly_marked * self.mtu);
        self.startup.on_marked(ce.newly_marked);
    }

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
        Some(self.rate())
    }

    fn send_quantum(&self) -> u64 {
        self.quantum
    }

    fn recovery_started_at(&self) -> Option<Instant> {
        self.recovery.started_at()
    }

    fn in_slow_start(&self) -> bool {
        self.state == State::Startup
    }

    fn is_probing(&self) -> bool {
        self.probes()
    }

    fn state(&self) -> &'static str {
        self.state.name()
    }

    fn model(&self) -> Option<PathModel> {
        let bounded = |value: u64| (value != UNBOUNDED).then_some(value);
        let saved = self.recovery.saved;
        Some(PathModel {
            max_bandwidth: Bitrate::from_bps(self.max_bw.get()),
            bandwidth: Bitrate::from_bps(self.bw),
            bandwidth_shortterm: bounded(self.bounds.bw_short).map(Bitrate::from_bps),
            inflight_shortterm: bounded(self.bounds.inflight_short),
            inflight_longterm: bounded(self.bounds.inflight_long),
            min_rtt: self.min_rtt.get().map(Duration::from_nanos),
            extra_acked: self.aggregation.extra_acked(),
            pacing_gain_percent: self.pacing_gain,
            cwnd_gain_percent: self.cwnd_gain,
            bdp: self.bdp(self.bw, UNITY),
            target: self.target(self.bw),
            target_with_headroom: bounded(self.with_headroom()),
            state_entries: State::ALL.map(|state| (state.name(), self.state_entries[state as usize])),
            rounds: self.rounds.count(),
            plateau_rounds: self.full_pipe.count(),
            full_now: self.full_pipe.is_full_now(),
            full_reached: self.full_pipe.is_reached(),
            idle_restart: self.idle_restart,
            undo_state: saved.state.map(State::name),
            undo_bandwidth_shortterm: bounded(saved.bw_short).map(Bitrate::from_bps),
            undo_inflight_shortterm: bounded(saved.inflight_short),
            undo_inflight_longterm: bounded(saved.inflight_long),
        })
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}
