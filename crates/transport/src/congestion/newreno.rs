//! NewReno (RFC 9002 §7): slow start, halving on congestion, one more datagram per window.

use units::Instant;

use super::episode::Episode;
use super::{
    AckSample, CeSample, Controller, LossSample, Parameters, SentSample, SpuriousSample, initial_window, minimum_window,
};

/// Owns the window of one path.
#[derive(Clone, Debug)]
pub struct NewReno {
    mtu: u16,
    /// Set if the initial window was not configured: it follows the datagram size until the first acknowledgement.
    follows_mtu: bool,
    window: u64,
    /// `u64::MAX` until the first congestion.
    ssthresh: u64,
    /// Bytes acknowledged in congestion avoidance since the window last grew.
    acked: u64,
    episode: Episode,
    /// Window and threshold before the last reaction, for the case that it was spurious.
    undo: Option<(u64, u64)>,
}

impl NewReno {
    /// A controller in slow start.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            mtu: parameters.mtu,
            follows_mtu: parameters.initial_window.is_none(),
            window: parameters.window(),
            ssthresh: u64::MAX,
            acked: 0,
            episode: Episode::default(),
            undo: None,
        }
    }

    /// A controller in congestion avoidance, at the initial window of the parameters: it takes over from another one that knew
    /// the path.
    pub fn resume(parameters: &Parameters) -> Self {
        Self { ssthresh: parameters.window(), ..Self::new(parameters) }
    }

    /// RFC 9002 §7.3.2 MUST-1, MUST-2: on congestion, threshold and window become half of the window.
    fn reduce(&mut self) {
        self.undo = Some((self.window, self.ssthresh));
        self.window = (self.window / 2).max(minimum_window(self.mtu));
        self.ssthresh = self.window;
        self.acked = 0;
    }
}

impl Controller for NewReno {
    fn name(&self) -> &'static str {
        "newreno"
    }

    fn on_sent(&mut self, _now: Instant, _sent: &SentSample) {}

    fn on_acked(&mut self, _now: Instant, ack: &AckSample) {
        // RFC 9002 §7.8 SHOULD NOT-1: a window that was not used does not grow.
        // RFC 9002 §7.3.2: nor does it during recovery, that is for packets sent before the reaction.
        if !ack.window_limited || self.episode.covers(ack.largest_acked_sent_at) {
            return;
        }
        let mut bytes = ack.bytes_after_recovery;
        if self.window < self.ssthresh {
            // RFC 9002 §7.3.1: slow start grows by what is acknowledged; what goes beyond the threshold counts below.
            let step = bytes.min(self.ssthresh - self.window);
            self.window += step;
            bytes -= step;
        }
        if self.window >= self.ssthresh {
            // RFC 9002 §7.3.3 MUST-1: at most one datagram per window acknowledged, however few acknowledgements say
            // so.
            self.acked += bytes;
            while self.acked >= self.window {
                self.acked -= self.window;
                self.window += u64::from(self.mtu);
            }
        }
    }

    // RFC 9002 §7.3.1 MUST-1: a loss or a CE mark ends slow start
    fn on_lost(&mut self, now: Instant, loss: &LossSample) {
        if self.episode.on_lost(now, loss) {
            self.reduce();
        }
        // RFC 9002 §7.6.2 MUST-2: persistent congestion brings the window down to its least
        if loss.persistent {
            // RFC 9002 §7.6.2: the window falls to its minimum, and slow start begins again.
            self.window = minimum_window(self.mtu);
            self.acked = 0;
            self.undo = None;
            self.episode.end();
        }
    }

    fn on_spurious_loss(&mut self, _now: Instant, spurious: &SpuriousSample) {
        if !self.episode.on_spurious_loss(spurious) {
            return;
        }
        self.episode.end();
        if let Some((window, ssthresh)) = self.undo.take()
            && self.window < window
        {
            (self.window, self.ssthresh) = (window, ssthresh);
        }
    }

    fn on_ecn_ce(&mut self, now: Instant, ce: &CeSample) {
        if self.episode.on_ecn_ce(now, ce.largest_acked_sent_at) {
            self.reduce();
        }
    }

    // RFC 9002 §7.2 SHOULD-2: the first window follows the size of datagrams
    fn on_mtu(&mut self, mtu: u16) {
        if self.follows_mtu && self.window == initial_window(self.mtu) && self.ssthresh == u64::MAX {
            // RFC 9002 §7.2: the initial window follows the datagram size.
            self.window = initial_window(mtu);
        }
        self.mtu = mtu;
        self.window = self.window.max(minimum_window(mtu));
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn ssthresh(&self) -> Option<u64> {
        (self.ssthresh != u64::MAX).then_some(self.ssthresh)
    }

    fn recovery_started_at(&self) -> Option<Instant> {
        self.episode.started_at()
    }

    fn in_slow_start(&self) -> bool {
        self.window < self.ssthresh
    }

    fn state(&self) -> &'static str {
        if self.in_slow_start() { "slow_start" } else { "congestion_avoidance" }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use units::Duration;

    use super::super::tests::{ack, loss};
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn reno() -> NewReno {
        NewReno::new(&Parameters::for_mtu(1200))
    }

    #[test]
    fn slow_start_doubles_per_round() {
        let mut cc = reno();
        cc.on_acked(at(100), &ack(12_000, at(100), RTT));
        assert_eq!((cc.window(), cc.state()), (24_000, "slow_start"));
    }

    // RFC 9002 §7.3.1 MUST-1; RFC 9002 §7.3.2 MUST-1, MUST-2; RFC 9002 §7.3.3 MUST-1
    #[test]
    fn halves_once_per_flight_and_then_grows_by_one_datagram_per_window() {
        let mut cc = reno();
        cc.on_lost(at(100), &loss(at(0)));
        cc.on_lost(at(101), &loss(at(50)));
        assert_eq!((cc.window(), cc.ssthresh()), (6000, Some(6000)));
        // Packets from before the reaction do not count.
        cc.on_acked(at(110), &ack(6000, at(110), RTT));
        assert_eq!(cc.window(), 6000);
        // One stretched acknowledgement or many: the same growth.
        cc.on_acked(at(210), &ack(6000, at(210), RTT));
        assert_eq!(cc.window(), 7200);
        for _ in 0..6 {
            cc.on_acked(at(310), &ack(1200, at(310), RTT));
        }
        assert_eq!(cc.window(), 8400);
    }

    // RFC 9002 §7.8 SHOULD NOT-1
    #[test]
    fn an_unused_window_does_not_grow() {
        let mut cc = reno();
        cc.on_acked(at(100), &AckSample { window_limited: false, ..ack(12_000, at(100), RTT) });
        assert_eq!(cc.window(), 12_000);
    }

    // RFC 9002 §7.2 RECOMMENDED-1
    #[test]
    fn never_below_two_datagrams() {
        let mut cc = reno();
        for round in 1..10 {
            cc.on_lost(at(100 * round), &loss(at(100 * round - 1)));
        }
        assert_eq!(cc.window(), 2400);
    }

    // RFC 9002 §7.6.2 MUST-2
    #[test]
    fn persistent_congestion_restarts() {
        let mut cc = reno();
        cc.on_lost(at(100), &LossSample { persistent: true, ..loss(at(0)) });
        assert_eq!((cc.window(), cc.state()), (2400, "slow_start"));
        // The recovery period has ended: what was sent before counts again.
        cc.on_acked(at(110), &ack(1200, at(110), RTT));
        assert_eq!(cc.window(), 3600);
    }

    #[test]
    fn spurious_reaction_is_undone() {
        let mut cc = reno();
        cc.on_lost(at(100), &loss(at(0)));
        cc.on_spurious_loss(at(120), &SpuriousSample { pn: 0, bytes: 1200, sent_at: at(0), lost_at: at(100) });
        assert_eq!((cc.window(), cc.ssthresh()), (12_000, None));
    }

    // RFC 9002 §7.3.1 MUST-1
    #[test]
    fn marks_count_as_loss_but_only_once() {
        let mut cc = reno();
        let ce = |sent_at| CeSample { newly_marked: 1, newly_acked: 1, largest_acked_sent_at: sent_at, in_flight: 0 };
        cc.on_ecn_ce(at(100), &ce(at(0)));
        cc.on_ecn_ce(at(110), &ce(at(10)));
        assert_eq!(cc.window(), 6000);
        cc.on_ecn_ce(at(210), &ce(at(110)));
        assert_eq!(cc.window(), 3000);
    }
}
