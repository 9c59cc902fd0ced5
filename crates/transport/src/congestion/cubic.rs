//! CUBIC (RFC 9438) with HyStart++ (RFC 9406).
//!
//! Windows are bytes and times are seconds, both in floating point. Only the four basic operations are used, once per acknowledgement, so
//! the results are bit-identical on every machine.

use units::{Duration, Instant};

use super::episode::Episode;
use super::hystart::{Growth, HyStart};
use super::{
    AckSample, CeSample, Controller, LossSample, Parameters, SentSample, SpuriousSample, initial_window, minimum_window,
};

/// RFC 9438 §4.6: the window falls to this share.
const BETA: f64 = 0.7;
/// RFC 9438 §5.1: how fast the cubic function grows, in datagrams per cubic second.
const C: f64 = 0.4;
/// RFC 9438 §4.3: additive increase at which the decrease by [`BETA`] is fair to Reno's halving.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// A stage of congestion avoidance: the cubic function that the window follows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Epoch {
    /// Seconds of the stage in which the window was used.
    elapsed: f64,
    /// Up to when `elapsed` has been counted.
    counted_to: Instant,
    /// Seconds until the function reaches `plateau` again.
    k: f64,
    /// The window around which the function is flat, in bytes (W_max).
    plateau: f64,
    /// The window that Reno would have, in bytes (W_est).
    reno: f64,
}

/// State that a congestion event changes, saved to be restored when the loss proves spurious (RFC 9438 §4.9).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Saved {
    window: f64,
    prior: f64,
    ssthresh: f64,
    plateau: f64,
    epoch: Option<Epoch>,
    hystart: bool,
}

/// Owns the window of one path.
#[derive(Clone, Debug)]
pub struct Cubic {
    mtu: f64,
    /// Set if the initial window was not configured: it follows the datagram size until the first acknowledgement.
    follows_mtu: bool,
    window: f64,
    /// Infinite until slow start has ended.
    ssthresh: f64,
    /// The window before the last reduction, or at the end of the first slow start (cwnd_prior).
    prior: f64,
    /// The window at which congestion was met last, lowered by fast convergence (W_max); 0 before.
    plateau: f64,
    /// `None` until the first growth of a stage.
    epoch: Option<Epoch>,
    /// The stage to come starts at its plateau: it follows persistent congestion, or a slow start without loss.
    from_plateau: bool,
    hystart: Option<HyStart>,
    episode: Episode,
    undo: Option<Saved>,
    minimum: f64,
}

impl Cubic {
    /// A controller in slow start.
    #[expect(clippy::cast_precision_loss, reason = "windows are far below 2^53 bytes")]
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            mtu: f64::from(parameters.mtu),
            follows_mtu: parameters.initial_window.is_none(),
            window: parameters.window() as f64,
            ssthresh: f64::INFINITY,
            prior: 0.0,
            plateau: 0.0,
            epoch: None,
            from_plateau: false,
            hystart: Some(HyStart::default()),
            episode: Episode::default(),
            undo: None,
            minimum: minimum_window(parameters.mtu) as f64,
        }
    }

    /// A controller in congestion avoidance, at the initial window of the parameters as its plateau: it takes over from
    /// another one that knew the path.
    pub fn resume(parameters: &Parameters) -> Self {
        let mut cubic = Self::new(parameters);
        cubic.ssthresh = cubic.window;
        cubic.prior = cubic.window;
        cubic.leave_slow_start();
        cubic.from_plateau = true;
        cubic
    }

    /// RFC 9438 §4.6, §4.7: the reaction to congestion.
    fn reduce(&mut self) {
        self.undo = Some(Saved {
            window: self.window,
            prior: self.prior,
            ssthresh: self.ssthresh,
            plateau: self.plateau,
            epoch: self.epoch,
            hystart: self.hystart.is_some(),
        });
        // RFC 9438 §4.7: below the last plateau the path has less to give: leave room for the flow that joined.
        self.plateau = if self.window < self.plateau { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.prior = self.window;
        self.window = (self.window * BETA).max(self.minimum);
        self.ssthresh = self.window;
        self.leave_slow_start();
        self.from_plateau = false;
    }

    /// HyStart++ belongs to the first slow start only (RFC 9406 §4.3).
    fn leave_slow_start(&mut self) {
        self.hystart = None;
        self.epoch = None;
    }

    /// Grows in slow start; returns the bytes acknowledged beyond the threshold.
    #[expect(clippy::cast_precision_loss, reason = "bytes of one acknowledgement")]
    fn slow_start(&mut self, bytes: u64, ack: &AckSample) -> f64 {
        let growth = match &mut self.hystart {
            Some(hystart) => hystart.on_acked(bytes, ack),
            None => Growth::By(bytes),
        };
        match growth {
            Growth::By(bytes) => {
                let step = (bytes as f64).min(self.ssthresh - self.window);
                self.window += step;
                bytes as f64 - step
            }
            Growth::Exit(bytes) => {
                // RFC 9438 §4.10: slow start ended without a loss: the plateau is here.
                self.window += bytes as f64;
                self.ssthresh = self.window;
                self.prior = self.window;
                self.leave_slow_start();
                self.from_plateau = true;
                0.0
            }
        }
    }

    /// Grows in congestion avoidance (RFC 9438 §4.2 to §4.5).
    fn avoid_congestion(&mut self, now: Instant, acked: f64, smoothed_rtt: Duration) {
        let (window, mtu) = (self.window, self.mtu);
        let epoch = match &mut self.epoch {
            Some(epoch) => epoch,
            None => {
                if self.from_plateau || self.plateau < window {
                    self.plateau = window;
                    self.from_plateau = false;
                }
                let plateau = self.plateau;
                let k = cube_root((plateau - window) / mtu / C);
                self.epoch.insert(Epoch { elapsed: 0.0, counted_to: now, k, plateau, reno: window })
            }
        };
        epoch.elapsed += (now - epoch.counted_to).as_secs_f64();
        epoch.counted_to = now;

        // RFC 9438 §4.3: once Reno would be where the last reduction began, it grows as fast as Reno itself.
        let alpha = if epoch.reno >= self.prior { 1.0 } else { ALPHA };
        epoch.reno += alpha * acked * mtu / window;

        if epoch.at(epoch.elapsed, mtu) < epoch.reno {
            self.window = window.max(epoch.reno);
        } else {
            // RFC 9438 §4.2: towards the function's value one RTT ahead, by the share of the window acknowledged.
            let target = epoch.at(epoch.elapsed + smoothed_rtt.as_secs_f64(), mtu).clamp(window, 1.5 * window);
            self.window = (window + (target - window) * acked / window).min(target);
        }
    }
}

impl Epoch {
    /// The cubic function `elapsed` seconds into the stage, in bytes.
    fn at(&self, elapsed: f64, mtu: f64) -> f64 {
        let t = elapsed - self.k;
        C * t * t * t * mtu + self.plateau
    }
}

/// The cube root, by Newton's method on basic operations. The library's may differ between platforms in the last bit.
fn cube_root(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    // A third of the exponent is within a factor of two of the root.
    let mut root = f64::from_bits(value.to_bits() / 3 + (1023_u64 << 52) / 3 * 2);
    for _ in 0..6 {
        root = (2.0 * root + value / (root * root)) / 3.0;
    }
    root
}

impl Controller for Cubic {
    fn name(&self) -> &'static str {
        "cubic"
    }

    fn on_sent(&mut self, now: Instant, sent: &SentSample) {
        // RFC 9438 §4.2, §5.8: the time of the stage does not include idling.
        if sent.in_flight_before == 0
            && let Some(epoch) = &mut self.epoch
        {
            epoch.counted_to = epoch.counted_to.max(now);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "bytes of one acknowledgement")]
    fn on_acked(&mut self, now: Instant, ack: &AckSample) {
        // RFC 9438 §5.8: an unused window does not grow, and the time does not count.
        // RFC 9002 §7.3.2: nor does it grow during recovery.
        if !ack.window_limited || self.episode.covers(ack.largest_acked_sent_at) {
            if let Some(epoch) = &mut self.epoch {
                epoch.counted_to = now;
            }
            return;
        }
        let mut bytes = ack.bytes_after_recovery as f64;
        if self.window < self.ssthresh {
            bytes = self.slow_start(ack.bytes_after_recovery, ack);
        }
        if self.window >= self.ssthresh && bytes > 0.0 {
            self.avoid_congestion(now, bytes, ack.smoothed_rtt);
        }
    }

    fn on_lost(&mut self, now: Instant, loss: &LossSample) {
        if loss.random && !self.episode.covers(loss.largest_lost_sent_at) {
            // Loss that comes without a queue says nothing about the window. Should it turn out to be none at all, that
            // says nothing about the last reaction either.
            self.episode.confirm();
            return;
        }
        if self.episode.on_lost(now, loss) {
            self.reduce();
        }
        if loss.persistent {
            // RFC 9438 §4.8: as after a timeout: slow start up to the reduced threshold, then a stage that begins at its
            // plateau.
            self.window = self.minimum;
            self.epoch = None;
            self.from_plateau = true;
            self.undo = None;
            self.episode.end();
        }
    }

    fn on_spurious_loss(&mut self, _now: Instant, spurious: &SpuriousSample) {
        if !self.episode.on_spurious_loss(spurious) {
            return;
        }
        self.episode.end();
        // RFC 9438 §4.9.2: back to where the window was, unless it has grown beyond by itself.
        if let Some(saved) = self.undo.take()
            && self.window < self.prior
        {
            self.window = saved.window;
            self.prior = saved.prior;
            self.ssthresh = saved.ssthresh;
            self.plateau = saved.plateau;
            self.epoch = saved.epoch;
            self.hystart = saved.hystart.then(HyStart::default);
        }
    }

    fn on_ecn_ce(&mut self, now: Instant, ce: &CeSample) {
        if self.episode.on_ecn_ce(now, ce.largest_acked_sent_at) {
            self.reduce();
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a few datagrams")]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the datagram size was given as u16")]
    fn on_mtu(&mut self, mtu: u16) {
        if self.follows_mtu && self.ssthresh.is_infinite() && self.window() == initial_window(self.mtu as u16) {
            // RFC 9002 §7.2: the initial window follows the datagram size.
            self.window = initial_window(mtu) as f64;
        }
        self.mtu = f64::from(mtu);
        self.minimum = minimum_window(mtu) as f64;
        self.window = self.window.max(self.minimum);
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a window is positive and rounds down")]
    fn window(&self) -> u64 {
        self.window as u64
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a window is positive and rounds down")]
    fn ssthresh(&self) -> Option<u64> {
        self.ssthresh.is_finite().then_some(self.ssthresh as u64)
    }

    fn recovery_started_at(&self) -> Option<Instant> {
        self.episode.started_at()
    }

    fn in_slow_start(&self) -> bool {
        self.window < self.ssthresh
    }

    fn state(&self) -> &'static str {
        match &self.hystart {
            _ if !self.in_slow_start() => "congestion_avoidance",
            Some(hystart) if hystart.is_conservative() => "conservative_slow_start",
            _ => "slow_start",
        }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ack, loss};
    use super::*;

    const MTU: u64 = 1200;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn cubic(window: u64) -> Cubic {
        Cubic::new(&Parameters { initial_window: Some(window * MTU), ..Parameters::for_mtu(1200) })
    }

    /// Runs a full window per RTT through the controller; returns the time.
    fn rounds(cc: &mut Cubic, from: u64, count: u64, rtt: u64) -> u64 {
        let mut now = from;
        for _ in 0..count {
            now += rtt;
            // Acknowledgements of two datagrams, spread over the round.
            let acks = (cc.window() / MTU / 2).max(1);
            for i in 0..acks {
                let time =
                    at(now) + Duration::from_millis(rtt) * u32::try_from(i).unwrap() / u32::try_from(acks).unwrap();
                cc.on_acked(time, &ack(2 * MTU, time, Duration::from_millis(rtt)));
            }
        }
        now
    }

    #[test]
    fn cube_roots() {
        for value in [1e-9, 0.3, 1.0, 2.0, 27.0, 1e3, 123_456.789, 1e15] {
            let root = cube_root(value);
            assert!((root * root * root / value - 1.0).abs() < 1e-12, "{value}: {root}");
        }
        assert_eq!(cube_root(-1.0), 0.0);
    }

    /// RFC 9438 §4.2: after a loss the window is back at its plateau after K = cbrt(W_max (1 - beta) / C) seconds, concave
    /// before and convex after.
    // RFC 9002 §7 MUST-1
    #[test]
    fn follows_the_cubic_function() {
        let mut cc = cubic(1000);
        cc.on_lost(at(1000), &loss(at(900)));
        assert_eq!(cc.window(), 700 * MTU);
        let k = (1000.0 * 0.3 / 0.4_f64).cbrt();
        // The stage begins one RTT after the loss, with the first packet sent after the reaction.
        let rtt = 100;
        let mut now = rounds(&mut cc, 1000, 1, rtt);
        let begin = now;
        let mut grown = Vec::new();
        while now < 20_000 {
            let before = cc.window();
            now = rounds(&mut cc, now, 1, rtt);
            grown.push(cc.window() - before);
            #[expect(clippy::cast_precision_loss)]
            let (t, window) = ((now - begin) as f64 / 1000.0 + 0.1, cc.window() as f64 / 1200.0);
            let expected = 0.4 * (t - k).powi(3) + 1000.0;
            assert!((window / expected - 1.0).abs() < 0.02, "t={t}: {window} instead of {expected}");
        }
        let flattest = grown.iter().enumerate().min_by_key(|(_, growth)| **growth).unwrap().0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let k_rounds = (k * 10.0) as usize;
        assert!(flattest.abs_diff(k_rounds) <= 3, "flattest in round {flattest}, K is {k_rounds} rounds");
    }

    /// RFC 9438 §4.3: with a small window and a short RTT the window grows as AIMD(0.53, 0.7), and as AIMD(1) beyond the
    /// window before the reduction.
    #[test]
    fn is_reno_friendly() {
        let mut cc = cubic(20);
        cc.on_lost(at(1000), &loss(at(900)));
        assert_eq!(cc.window(), 14 * MTU);
        let mut now = rounds(&mut cc, 1000, 1, 10);
        let begin = cc.window();
        now = rounds(&mut cc, now, 10, 10);
        #[expect(clippy::cast_precision_loss)]
        let per_round = (cc.window() - begin) as f64 / 1200.0 / 10.0;
        assert!((per_round - ALPHA).abs() < 0.04, "{per_round}");
        now = rounds(&mut cc, now, 5, 10);
        assert!(cc.window() > 20 * MTU);
        let begin = cc.window();
        rounds(&mut cc, now, 10, 10);
        #[expect(clippy::cast_precision_loss)]
        let per_round = (cc.window() - begin) as f64 / 1200.0 / 10.0;
        assert!((per_round - 1.0).abs() < 0.06, "{per_round}");
    }

    #[test]
    fn fast_convergence_lowers_the_plateau() {
        let mut cc = cubic(100);
        cc.on_lost(at(1000), &loss(at(900)));
        assert_eq!(cc.plateau, 100.0 * 1200.0);
        cc.on_lost(at(2000), &loss(at(1900)));
        assert!((cc.plateau - 70.0 * 0.85 * 1200.0).abs() < 1.0, "{}", cc.plateau / 1200.0);
        assert!(cc.window().abs_diff(49 * MTU) <= 1);
    }

    #[test]
    fn idle_and_unused_time_does_not_count() {
        let mut cc = cubic(1000);
        cc.on_lost(at(1000), &loss(at(900)));
        let now = rounds(&mut cc, 1000, 3, 100);
        let elapsed = cc.epoch.unwrap().elapsed;
        let sent = SentSample { pn: 0, bytes: 1200, in_flight_before: 0, app_limited: true, pto_probe: false };
        cc.on_sent(at(now + 60_000), &sent);
        let window = cc.window();
        cc.on_acked(
            at(now + 60_050),
            &AckSample { window_limited: false, ..ack(MTU, at(now + 60_050), Duration::ZERO) },
        );
        assert_eq!(cc.window(), window);
        let rtt = Duration::from_millis(100);
        cc.on_acked(at(now + 60_100), &ack(MTU, at(now + 60_100), rtt));
        let counted = cc.epoch.unwrap().elapsed - elapsed;
        assert!((counted - 0.05).abs() < 1e-9, "{counted}");
    }

    #[test]
    fn growth_does_not_depend_on_how_acks_are_spread() {
        let windows = [1, 10, 100].map(|acks_per_round: u64| {
            let mut cc = cubic(300);
            cc.on_lost(at(1000), &loss(at(900)));
            let mut now = at(1100);
            for _ in 0..100 {
                let bytes = cc.window() / acks_per_round;
                for _ in 0..acks_per_round {
                    now += Duration::from_millis(100) / u32::try_from(acks_per_round).unwrap();
                    cc.on_acked(now, &ack(bytes, now, Duration::from_millis(100)));
                }
            }
            cc.window()
        });
        for window in windows {
            assert!(window.abs_diff(windows[1]) * 50 < windows[1], "{windows:?}");
        }
    }

    #[test]
    fn spurious_loss_restores_everything() {
        let mut cc = cubic(500);
        cc.on_lost(at(1000), &loss(at(900)));
        rounds(&mut cc, 1000, 10, 100);
        let before = cc.clone();
        let now = at(2500);
        cc.on_lost(now, &loss(at(2400)));
        assert!(cc.window() < before.window());
        cc.on_spurious_loss(at(2510), &SpuriousSample { pn: 0, bytes: 1200, sent_at: at(2400), lost_at: now });
        assert_eq!(
            (cc.window, cc.ssthresh, cc.plateau, cc.prior),
            (before.window, before.ssthresh, before.plateau, before.prior)
        );
        assert_eq!(cc.epoch, before.epoch);
    }

    #[test]
    fn random_loss_is_passed_over() {
        let mut cc = cubic(100);
        let random = |sent_at| LossSample { random: true, ..loss(sent_at) };
        cc.on_lost(at(1000), &random(at(900)));
        assert_eq!((cc.window(), cc.recovery_started_at()), (100 * MTU, None));
        cc.on_lost(at(1100), &loss(at(1000)));
        let reduced = cc.window();
        assert!(reduced < 100 * MTU);
        // It belongs to the reaction when that is in progress, and does not take an older one back when it was none.
        cc.on_lost(at(1110), &random(at(1050)));
        cc.on_lost(at(1300), &random(at(1200)));
        for lost_at in [1100, 1110, 1300] {
            cc.on_spurious_loss(
                at(1400),
                &SpuriousSample { pn: 0, bytes: 1200, sent_at: at(1000), lost_at: at(lost_at) },
            );
        }
        assert_eq!(cc.window(), reduced);
    }

    // RFC 9002 §7.6.2 MUST-2
    #[test]
    fn persistent_congestion_starts_over() {
        let mut cc = cubic(100);
        cc.on_lost(at(1000), &LossSample { persistent: true, ..loss(at(0)) });
        assert_eq!((cc.window(), cc.ssthresh(), cc.state()), (2 * MTU, Some(70 * MTU), "slow_start"));
        let mut now = 1000;
        while cc.in_slow_start() {
            now = rounds(&mut cc, now, 1, 100);
        }
        rounds(&mut cc, now, 1, 100);
        // RFC 9438 §4.8: the stage starts at its plateau.
        assert_eq!(cc.epoch.unwrap().k, 0.0);
    }

    #[test]
    fn slow_start_ends_at_the_threshold() {
        let mut cc = cubic(100);
        cc.hystart = None;
        cc.ssthresh = 110.0 * 1200.0;
        cc.on_acked(at(100), &ack(20 * MTU, at(100), Duration::from_millis(50)));
        assert!(!cc.in_slow_start());
        assert!(cc.window() >= 110 * MTU && cc.window() <= 112 * MTU, "{}", cc.window());
    }
}
