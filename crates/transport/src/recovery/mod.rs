//! Loss recovery, congestion control and pacing of one path (RFC 9002).
//!
//! `Recovery` owns the state of a path. Packets are in the `Ledger` of their packet number space, and name their path. Functions
//! combine both: `on_ack_received`, `on_loss_timer`, `on_recovered` and `discard_space`. They report the fate of each frame through
//! a callback, so that nothing is collected in between.
//!
//! In the order in which a packet meets it: `Recovery::allowance` permits it, `Recovery::on_packet_sent` records it, and
//! `on_ack_received` ends it. Otherwise `Recovery::deadline` passes, and `on_loss_timer` or `Recovery::on_probe_timeout` processes
//! it.

mod ack;
mod black_hole;
mod discrimination;
mod loss;
mod one_way;
mod reordering;
mod rtt;
mod standing_queue;
#[cfg(test)]
mod tests;
mod timer;

use units::{Bitrate, Duration, Instant, Seed};

pub(crate) use ack::{AckOutcome, on_ack_received};
pub(crate) use discrimination::{Cause, Discrimination};
pub use discrimination::{LossTolerance, ToleranceOutOfRange};
pub use loss::LossTrigger;
pub(crate) use loss::{abandon_path, discard_space, on_loss_timer, on_recovered};
pub(crate) use one_way::OneWay;
pub use one_way::PathDirection;
pub(crate) use reordering::Reordering;
pub(crate) use rtt::{GRANULARITY, INITIAL_RTT, Rtt};
pub(crate) use timer::{Deadline, Progress, Reason};

use crate::congestion::rate::mul_div;
use crate::congestion::{
    Algorithm, Auto, Bbr, Controller, Cubic, NewReno, Parameters, RateEstimator, SentSample, Snapshot,
};
use crate::pacing::Pacer;
pub(crate) use crate::sent::{EcnFeedback, SpaceId};
use crate::sent::{Ledger, PathIndex, SentFrame, SentPacket, Verdict};

/// Map from paths to their recovery, for packets that name a path.
pub(crate) trait Paths {
    /// Recovery of a path; `None` if the path was removed: its packets count as lost, and no path is charged.
    fn recovery(&mut self, path: PathIndex) -> Option<&mut Recovery>;

    /// One more than the highest index in use, at most 64.
    fn count(&self) -> usize;
}

/// Receiver of the decisions of acknowledgements and timeouts. A function that takes the fate of each frame is one.
pub(crate) trait Fates {
    /// Reports the fate of a frame.
    fn frame(&mut self, verdict: Verdict, frame: SentFrame);

    /// A packet in flight counts as lost; its frames follow.
    fn packet_lost(&mut self, _pn: u64, _size: u16, _mtu_probe: bool, _trigger: LossTrigger, _after: Duration) {}
}

impl<F: FnMut(Verdict, SentFrame)> Fates for F {
    #[inline]
    fn frame(&mut self, verdict: Verdict, frame: SentFrame) {
        self(verdict, frame);
    }
}

impl Paths for Recovery {
    #[inline]
    fn recovery(&mut self, path: PathIndex) -> Option<&mut Recovery> {
        (path == PathIndex::FIRST).then_some(self)
    }

    fn count(&self) -> usize {
        1
    }
}

impl Paths for [Recovery] {
    #[inline]
    fn recovery(&mut self, path: PathIndex) -> Option<&mut Recovery> {
        self.get_mut(path.get())
    }

    fn count(&self) -> usize {
        self.len()
    }
}

/// Parameters that the recovery of a path is built from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Config {
    /// The congestion controller.
    pub(crate) algorithm: Algorithm,
    /// The RTT assumed before the first sample.
    pub(crate) initial_rtt: Duration,
    /// The window to start with in bytes; `None` for that of RFC 9002 §7.2.
    pub(crate) initial_window: Option<u64>,
    /// Spread packets over the RTT.
    pub(crate) pacing: bool,
    /// The peer is asked to report when packets arrive.
    pub(crate) receive_times: bool,
    /// Share of packets that may be lost without a reaction, as long as no queue builds.
    pub(crate) random_loss_tolerance: LossTolerance,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::default(),
            initial_rtt: INITIAL_RTT,
            initial_window: None,
            pacing: true,
            receive_times: false,
            random_loss_tolerance: LossTolerance::OFF,
        }
    }
}

/// State of a path for one packet number space.
#[derive(Clone, Copy, Debug, Default)]
struct PathSpace {
    largest_acked: Option<u64>,
    /// Time at which the packet acknowledged last (by departure) left.
    last_acked_sent_at: Option<Instant>,
    /// Time at which the next packet counts as lost by time.
    loss_time: Option<Instant>,
    last_eliciting_at: Instant,
    eliciting_in_flight: u64,
}

/// Permission to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// Number of bytes that may be sent.
    Bytes(u64),
    /// The congestion window is full, until an acknowledgement or a loss.
    WindowFull,
    /// Pacing permits the next packet at this time.
    PacedUntil(Instant),
}

/// Owns RTT, bytes in flight, congestion window and pacing of one path.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    rtt: Rtt,
    controller: Box<dyn Controller>,
    pacer: Pacer,
    rate: RateEstimator,
    reordering: Reordering,
    spaces: [PathSpace; 3],
    bytes_in_flight: u64,
    /// The controller's window, as it was after the last event.
    window: u64,
    mtu: u16,
    pto_count: u32,
    /// The peer's, of 1-RTT packets.
    max_ack_delay: Duration,
    /// Start of the anti-deadlock timer: time of the last event that restarts it.
    last_event_at: Instant,
    /// Until this much is delivered, acknowledgements come from a flight in which the window held data back.
    limited_until: u64,
    /// The same for pacing, as long as data does not run out.
    paced_until: u64,
    /// RFC 9002 §7.3.2: one packet may leave although the window was just reduced below what is in flight.
    one_packet_more: bool,
    /// Times the controller began to react to congestion.
    congestion_events: u64,
    pacing: bool,
    /// Detector of paths that lose large packets only.
    black_hole: black_hole::BlackHole,
    /// Delay of each direction, when the peer reports it.
    one_way: Option<Box<OneWay>>,
    /// Signs of congestion, when loss without them is passed over.
    discrimination: Option<Box<Discrimination>>,
    /// Result of the acknowledgement that is being processed.
    batch: ack::Batch,
}

impl Recovery {
    /// The recovery of a path that comes into use at `now` with datagrams of `mtu` bytes of UDP payload.
    pub(crate) fn new(config: &Config, mtu: u16, seed: Seed, now: Instant) -> Self {
        let controller = config.algorithm.build(&Parameters { initial_window: config.initial_window, mtu, seed, now });
        Self {
            rtt: Rtt::new(config.initial_rtt),
            window: controller.window(),
            controller,
            pacer: Pacer::new(mtu, now),
            rate: RateEstimator::default(),
            reordering: Reordering::default(),
            spaces: Default::default(),
            bytes_in_flight: 0,
            mtu,
            pto_count: 0,
            max_ack_delay: Duration::from_millis(25),
            last_event_at: now,
            limited_until: 0,
            paced_until: 0,
            one_packet_more: false,
            congestion_events: 0,
            pacing: config.pacing,
            one_way: config.receive_times.then(Box::default),
            discrimination: Discrimination::new(config.random_loss_tolerance).map(Box::new),
            black_hole: black_hole::BlackHole::default(),
            batch: ack::Batch::default(),
        }
    }

    /// Recovery of a path that differs from this one only in the peer's port: estimates and window stay, nothing is in flight (RFC 9000
    /// §9.4).
    pub(crate) fn continued(&self, now: Instant) -> Self {
        let mut next = Self {
            spaces: Default::default(),
            bytes_in_flight: 0,
            pto_count: 0,
            last_event_at: now,
            one_packet_more: false,
            congestion_events: 0,
            black_hole: black_hole::BlackHole::default(),
            batch: ack::Batch::default(),
            ..self.clone()
        };
        if self.bytes_in_flight > 0 {
            next.controller.on_discarded(now, self.bytes_in_flight, 0);
            next.update_outputs(now);
        }
        next
    }

    /// Returns how many of `want` bytes may be sent at `now` (`u64::MAX` if more is ready than fits). Call it only with data to send: the
    /// answer decides whether the window counts as used. Does not apply to probes and to ACK-only packets (RFC 9002 §7, §7.5).
    #[inline]
    pub(crate) fn allowance(&mut self, now: Instant, want: u64) -> Allowance {
        let datagram = want.min(u64::from(self.mtu));
        let room = self.window.saturating_sub(self.bytes_in_flight);
        if room < datagram {
            self.mark_limited();
            return if self.one_packet_more { Allowance::Bytes(u64::from(self.mtu)) } else { Allowance::WindowFull };
        }
        match self.pacer.budget(now, want) {
            0 => {
                // RFC 9002 §7.8 SHOULD NOT-2: a sender that pacing holds back is not application-limited, if it goes
                // on to fill the window.
                self.paced_until = self.rate.delivered() + self.bytes_in_flight.max(1);
                Allowance::PacedUntil(self.pacer.next_release(now, want).unwrap_or(now))
            }
            budget => Allowance::Bytes(budget.min(room)),
        }
    }

    /// Enters a packet that leaves into the ledger of its space; returns its number. The frames were recorded there.
    #[inline]
    pub(crate) fn on_packet_sent(&mut self, ledger: &mut Ledger, space: SpaceId, packet: &SentPacket) -> u64 {
        if !packet.in_flight {
            return ledger.push(packet, Snapshot::default());
        }
        let now = packet.sent_at;
        let in_flight_before = self.bytes_in_flight;
        let snapshot = self.rate.on_sent(now, packet.size, in_flight_before);
        let pn = ledger.push(packet, snapshot);
        // RFC 9002 §7.5 MUST-1: probes count as in flight
        self.bytes_in_flight += u64::from(packet.size);
        self.last_event_at = now;
        if packet.ack_eliciting {
            let state = &mut self.spaces[space.index()];
            state.last_eliciting_at = now;
            state.eliciting_in_flight += 1;
        }
        self.one_packet_more = false;
        self.pacer.on_sent(packet.size);
        self.controller.on_sent(
            now,
            &SentSample {
                pn,
                bytes: packet.size,
                in_flight_before,
                app_limited: snapshot.app_limited,
                pto_probe: packet.pto_probe,
            },
        );
        if in_flight_before == 0 {
            // A controller may change its mind when it restarts from idle.
            self.update_outputs(now);
        }
        if self.bytes_in_flight + u64::from(self.mtu) > self.window {
            self.mark_limited();
        }
        pn
    }

    /// Marks the sender as application-limited: it has no data although [`Recovery::allowance`] permits more. Call it at the end of each
    /// such round of sending.
    pub(crate) fn on_app_limited(&mut self, now: Instant) {
        self.paced_until = 0;
        if self.bytes_in_flight < self.window {
            self.rate.on_app_limited(self.bytes_in_flight);
            self.controller.on_app_limited(now, self.bytes_in_flight);
        }
    }

    /// The datagram size changed, by discovery or because a smaller one turned out to be necessary.
    pub(crate) fn set_mtu(&mut self, now: Instant, mtu: u16) {
        self.mtu = mtu;
        self.controller.on_mtu(mtu);
        self.pacer.set_mtu(mtu);
        self.update_outputs(now);
    }

    /// Returns whether the path has begun to lose packets above the base size (RFC 8899 §4.3). To be asked after losses;
    /// reported once.
    #[inline]
    pub(crate) fn take_black_hole(&mut self) -> bool {
        self.black_hole.take()
    }

    /// The peer's `max_ack_delay`, from its transport parameters.
    pub(crate) fn set_max_ack_delay(&mut self, delay: Duration) {
        self.max_ack_delay = delay;
    }

    /// The RTT estimates.
    #[inline]
    pub(crate) fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// Estimates from receive timestamps; `None` if the peer is not asked for them.
    pub(crate) fn one_way(&self) -> Option<&OneWay> {
        self.one_way.as_deref()
    }

    /// As [`Recovery::one_way`], to take receive times in.
    pub(crate) fn one_way_mut(&mut self) -> Option<&mut OneWay> {
        self.one_way.as_deref_mut()
    }

    /// The congestion controller.
    pub(crate) fn controller(&self) -> &dyn Controller {
        &*self.controller
    }

    /// The congestion window in bytes.
    #[inline]
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Bytes sent that are neither acknowledged nor lost.
    #[inline]
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.bytes_in_flight
    }

    /// Ack-eliciting packets in flight in a space.
    #[inline]
    pub(crate) fn ack_eliciting_in_flight(&self, space: SpaceId) -> u64 {
        self.spaces[space.index()].eliciting_in_flight
    }

    /// Times the controller began to react to congestion.
    pub(crate) fn congestion_events(&self) -> u64 {
        self.congestion_events
    }

    /// Probe timeouts since the last acknowledgement.
    #[inline]
    pub(crate) fn pto_count(&self) -> u32 {
        self.pto_count
    }

    /// The largest packet number acknowledged in a space.
    #[inline]
    pub(crate) fn largest_acked(&self, space: SpaceId) -> Option<u64> {
        self.spaces[space.index()].largest_acked
    }

    /// Bytes delivered and lost in total.
    #[cfg(test)]
    pub(crate) fn rate(&self) -> &RateEstimator {
        &self.rate
    }

    /// The pacing rate; `None` while packets are not paced.
    pub(crate) fn pacing_rate(&self) -> Option<Bitrate> {
        self.pacer.rate()
    }

    /// Silence of the application counts for the controller: see [`Controller::count_silence`].
    pub(crate) fn count_silence(&mut self) {
        self.controller.count_silence();
    }

    /// Sets how long repair symbols take to arrive, in packets and time: losses are declared no sooner.
    pub(crate) fn set_patience(&mut self, packets: u64, time: Duration) {
        self.reordering.set_patience(packets, time);
    }

    /// Thresholds of reordering.
    pub(crate) fn reordering(&self) -> &Reordering {
        &self.reordering
    }

    /// Notes that the window holds back data that is ready.
    #[inline]
    fn mark_limited(&mut self) {
        self.limited_until = self.rate.delivered() + self.bytes_in_flight.max(1);
    }

    /// Changes the congestion controller. The new one begins with the knowledge of this path: the window in use or, after a controller with
    /// a path model, the flight that fills it; BBRv3 also with bandwidth and propagation delay. During a search of the path, the new one
    /// continues the search from the window in use. Packets in flight stay in flight.
    pub(crate) fn change_controller(&mut self, now: Instant, config: &Config, seed: Seed) {
        let model = self.controller.model().filter(|model| model.bdp > 0);
        let filled = model.map_or(self.window, |model| model.bdp.min(self.window));
        let parameters = Parameters { initial_window: Some(self.window), mtu: self.mtu, seed, now };
        let at_rest = Parameters { initial_window: Some(filled), ..parameters };
        let searching = self.controller.in_slow_start();
        self.controller = match (config.algorithm, self.rtt.min()) {
            (Algorithm::NewReno, _) if !searching => Box::new(NewReno::resume(&at_rest)),
            (Algorithm::Cubic, _) if !searching => Box::new(Cubic::resume(&at_rest)),
            (Algorithm::Auto, _) if !searching => Box::new(Auto::resume(&at_rest)),
            (Algorithm::Bbr3, Some(min_rtt)) if !searching => {
                let nanos = self.rtt.smoothed_nanos().max(1);
                let bandwidth = model.map_or_else(
                    || Bitrate::from_bps(mul_div(filled, 8_000_000_000, nanos)),
                    |model| model.max_bandwidth,
                );
                Box::new(Bbr::resume(&parameters, bandwidth, min_rtt, self.rate.delivered()))
            }
            (algorithm, _) => algorithm.build(&parameters),
        };
        self.update_outputs(now);
    }

    /// Reads what the controller decided, and paces accordingly.
    fn update_outputs(&mut self, now: Instant) {
        self.window = self.controller.window();
        if self.pacing {
            let rate = self.controller.pacing_rate().or_else(|| self.rate_of_window());
            self.pacer.set_rate(now, rate, self.controller.send_quantum());
        }
    }

    /// The rate that spreads the window over an RTT, with a margin (RFC 9002 §7.7).
    fn rate_of_window(&self) -> Option<Bitrate> {
        // Before the first sample the RTT is a guess that would hold back the second flight for no reason.
        self.rtt.min()?;
        // A timer costs more than it gains where a window lasts about as long as a timer takes.
        let rtt = self.rtt.smoothed_nanos();
        if u128::from(rtt) < GRANULARITY.as_nanos() {
            return None;
        }
        // Twice in slow start, so that the window can double in each round; a quarter more otherwise, so that variations
        // of the RTT do not leave the window unused.
        let quarters = if self.controller.in_slow_start() { 8 } else { 5 };
        Some(Bitrate::from_bps(mul_div(self.window, 8_000_000_000 / 4 * quarters, rtt)))
    }
}
