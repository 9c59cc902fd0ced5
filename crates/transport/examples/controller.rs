//! Congestion controller in sixty lines: what docs/guides/controller.md quotes, on a bottleneck of a few lines.
//!
//! ```text
//! cargo run -p tiderace-transport --example controller
//! ```
//!
//! [`Delay`] holds the queue at the bottleneck near a target. It is an example, not an algorithm to use: beside a controller that fills the
//! queue, it gives way until it has nothing.

use transport::congestion::{
    AckSample, CeSample, Controller, LossSample, Parameters, SentSample, SpuriousSample, episode::Episode,
    minimum_window,
};
use units::{Duration, Instant};

// guide begins: state
/// Queueing delay that the controller aims at.
const TARGET: Duration = Duration::from_millis(10);

/// Window of one path, led by the queueing delay.
#[derive(Clone, Debug)]
struct Delay {
    mtu: u16,
    window: u64,
    /// Bytes acknowledged since the window last moved.
    acked: u64,
    slow_start: bool,
    /// The last reaction to loss: its flight is answered once.
    episode: Episode,
}

impl Delay {
    fn new(parameters: &Parameters) -> Self {
        let (mtu, window) = (parameters.mtu, parameters.window());
        Self { mtu, window, acked: 0, slow_start: true, episode: Episode::default() }
    }

    /// Leaves slow start and halves the window.
    fn reduce(&mut self) {
        self.slow_start = false;
        self.acked = 0;
        self.window = (self.window / 2).max(minimum_window(self.mtu));
    }
}
// guide ends: state

// guide begins: controller
impl Controller for Delay {
    fn name(&self) -> &'static str {
        "delay"
    }

    fn on_sent(&mut self, _now: Instant, _sent: &SentSample) {}

    fn on_acked(&mut self, _now: Instant, ack: &AckSample) {
        // A window that was not used says nothing about the path; packets from before a reaction say nothing about its result.
        if !ack.window_limited || self.episode.covers(ack.largest_acked_sent_at) {
            return;
        }
        let queueing = ack.adjusted_rtt.saturating_sub(ack.min_rtt.unwrap_or(ack.adjusted_rtt));
        if self.slow_start && queueing < TARGET {
            self.window += ack.bytes;
            return;
        }
        self.slow_start = false;
        // One datagram up or down for each window that was acknowledged.
        self.acked += ack.bytes;
        if self.acked >= self.window {
            self.acked = 0;
            let step = u64::from(self.mtu);
            self.window = if queueing < TARGET { self.window + step } else { self.window - step };
            self.window = self.window.max(minimum_window(self.mtu));
        }
    }

    fn on_lost(&mut self, now: Instant, loss: &LossSample) {
        if self.episode.on_lost(now, loss) {
            self.reduce();
        }
        if loss.persistent {
            self.window = minimum_window(self.mtu);
        }
    }

    fn on_spurious_loss(&mut self, _now: Instant, _spurious: &SpuriousSample) {}

    fn on_ecn_ce(&mut self, now: Instant, ce: &CeSample) {
        if self.episode.on_ecn_ce(now, ce.largest_acked_sent_at) {
            self.reduce();
        }
    }

    fn on_mtu(&mut self, mtu: u16) {
        self.mtu = mtu;
        self.window = self.window.max(minimum_window(mtu));
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn in_slow_start(&self) -> bool {
        self.slow_start
    }

    fn state(&self) -> &'static str {
        if self.slow_start { "slow_start" } else { "steady" }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}
// guide ends: controller

/// Datagram size.
const MTU: u16 = 1200;
/// Round trip without a queue.
const PROPAGATION: Duration = Duration::from_millis(40);
/// Bytes that the bottleneck passes on in a millisecond: 20 Mbit/s.
const BYTES_PER_MILLI: u64 = 2500;

// guide begins: bottleneck
/// Round trips of a sender that always has data, on a bottleneck of 20 Mbit/s and 40 ms: window and queueing delay of each.
fn round_trips(controller: &mut dyn Controller, count: u32) -> Vec<(u64, Duration)> {
    let (mut now, mut pn, mut delivered, mut seen) = (Instant::ZERO, 0, 0, Vec::new());
    let capacity = BYTES_PER_MILLI * u64::try_from(PROPAGATION.as_millis()).expect("a short time");
    for _ in 0..count {
        let (sent_at, window) = (now, controller.window());
        let queueing = Duration::from_micros(1000 * window.saturating_sub(capacity) / BYTES_PER_MILLI);
        now += PROPAGATION + queueing;
        let mut in_flight = 0;
        while in_flight + u64::from(MTU) <= window {
            let sent = SentSample { pn, bytes: MTU, in_flight_before: in_flight, app_limited: false, pto_probe: false };
            controller.on_sent(sent_at, &sent);
            (pn, in_flight) = (pn + 1, in_flight + u64::from(MTU));
        }
        delivered += in_flight;
        controller.on_acked(now, &sample(in_flight, delivered, pn - 1, sent_at, PROPAGATION + queueing));
        seen.push((controller.window(), queueing));
    }
    seen
}
// guide ends: bottleneck

/// One acknowledgement of a whole flight.
fn sample(bytes: u64, delivered: u64, largest_acked: u64, sent_at: Instant, rtt: Duration) -> AckSample {
    AckSample {
        packets: bytes / u64::from(MTU),
        bytes,
        bytes_after_recovery: bytes,
        newly_lost: 0,
        rtt: Some(rtt),
        adjusted_rtt: rtt,
        min_rtt: Some(PROPAGATION),
        smoothed_rtt: rtt,
        rate: None,
        prior_in_flight: bytes,
        in_flight: 0,
        largest_acked,
        largest_acked_sent_at: sent_at,
        delivered,
        lost: 0,
        window_limited: true,
        window_full: true,
        app_limited: false,
    }
}

fn main() {
    let mut controller = Delay::new(&Parameters::for_mtu(MTU));
    println!("round trip  window (bytes)  queueing delay");
    for (round, (window, queueing)) in round_trips(&mut controller, 60).into_iter().enumerate() {
        if round < 6 || round % 10 == 9 {
            println!("{:>10}  {window:>14}  {queueing:>14.1?}", round + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_stays_near_the_target() {
        let mut controller = Delay::new(&Parameters::for_mtu(MTU));
        let seen = round_trips(&mut controller, 200);
        let step = Duration::from_micros(1000 * u64::from(MTU) / BYTES_PER_MILLI);
        for (window, queueing) in &seen[150..] {
            assert!(queueing.abs_diff(TARGET) <= 2 * step, "window {window}, queue {queueing:?}");
        }
        assert_eq!(controller.state(), "steady");
    }

    #[test]
    fn a_flight_with_losses_is_answered_once() {
        let mut controller = Delay::new(&Parameters::for_mtu(MTU));
        let before = controller.window();
        let mut loss = LossSample {
            packets: 1,
            bytes: 1200,
            largest_lost: 0,
            largest_lost_sent_at: Instant::ZERO,
            persistent: false,
            random: false,
            in_flight: 0,
        };
        controller.on_lost(Instant::from_millis(100), &loss);
        loss.largest_lost_sent_at = Instant::from_millis(50);
        controller.on_lost(Instant::from_millis(101), &loss);
        assert_eq!(controller.window(), before / 2);
        loss.persistent = true;
        controller.on_lost(Instant::from_millis(102), &loss);
        assert_eq!(controller.window(), minimum_window(MTU));
    }
}
