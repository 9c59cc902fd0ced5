//! Delay noise: queueing delay that the window of this flow does not explain.
//!
//! Two observations show it. The delay changes from one round trip to the next by more than the change of the window explains, and delay
//! remains while a probe halves the window. The second alone could be the queue of other flows, and the first alone could hide a queue of
//! this flow: so each bounds what is subtracted.

/// Weight of a round trip.
const GAIN: f64 = 0.125;
/// Noise in mean differences, with few packets and with more. Uniform independent delays have a mean of 1.5 mean differences. A delay that
/// wanders from one round trip to the next has smaller ones.
const COUNTS: (f64, f64) = (1.5, 3.0);
/// Mean difference in targets that a queue without noise has.
const ORDINARY: f64 = 0.1;
/// Most of the delay that remained in a probe that counts as noise, in mean differences beyond the ordinary. Many packets in a row delay each
/// other, so that the delay of each is close to the largest: their differences become small, the delay does not.
const EVIDENT: f64 = 12.0;
/// Packets of a round trip below which their delays show nothing.
const FEW: f64 = 20.0;

/// Owns the mean difference of the queueing delays of successive round trips, and the delay that remained in the last probe.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noise {
    /// Mean difference in seconds.
    mean: f64,
    /// Queueing delay of the last round trip in seconds, and its packets.
    last: f64,
    packets: f64,
    /// Queueing delay in seconds that remained in the last probe.
    remaining: f64,
    /// Most of it that counts.
    evident: f64,
}

impl Noise {
    /// Records the queueing delay of a round trip of so many packets. Returns it without noise. Differences of up to half of the target are not
    /// subtracted.
    pub(super) fn take_off(&mut self, wait: f64, target: f64, packets: f64, rtt: f64) -> f64 {
        // Where the path is full, packets added to the window wait as long as those before them took.
        let own = if packets > 0.0 { (packets - self.packets) / packets * rtt } else { 0.0 };
        let change = wait - self.last;
        let unexplained = change - change.clamp(own.min(0.0), own.max(0.0));
        self.mean += (unexplained.abs() - self.mean) * GAIN;
        (self.last, self.packets) = (wait, packets);
        // The delays of a few packets vary with the order in which packets of other flows arrive.
        let (counts, evident) = if packets < FEW { (COUNTS.0, 0.0) } else { (COUNTS.1, EVIDENT) };
        self.evident = evident * (self.mean - ORDINARY * target).max(0.0);
        let varying = (counts * self.mean - target / 2.0).max(0.0);
        (wait - varying.max(self.constant())).max(0.0)
    }

    /// A probe has ended, in which so much queueing delay in seconds remained with half of the window.
    pub(super) fn on_probed(&mut self, remaining: f64) {
        self.remaining = remaining;
    }

    /// Noise in seconds that every packet has.
    pub(super) fn constant(&self) -> f64 {
        self.remaining.min(self.evident)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: f64 = 0.003;

    /// Round trips with these delays in turns and a window of 50 packets.
    fn after(waits: [f64; 2], remaining: f64) -> f64 {
        let mut noise = Noise::default();
        noise.on_probed(remaining);
        let rounds = (0..50).flat_map(|_| waits).map(|wait| noise.take_off(wait, TARGET, 50.0, 0.03));
        rounds.last().expect("100 round trips")
    }

    #[test]
    fn delay_that_remains_in_a_probe_is_noise_where_it_varies() {
        assert!(after([0.0065, 0.0075], 0.006) < 0.003);
        // The queue of others is as long in a probe, but even.
        assert_eq!(after([0.006, 0.006], 0.006), 0.006);
        // A queue of this flow varies, but is gone in a probe.
        assert!(after([0.0065, 0.0075], 0.0) > 0.004);
    }

    #[test]
    fn changes_that_the_window_explains_are_no_noise() {
        let mut noise = Noise::default();
        noise.on_probed(0.006);
        // One packet takes 0.6 ms: ten more wait for 6 ms, and every second round trip has them.
        for (wait, packets) in [(0.0, 50.0), (0.006, 60.0)].into_iter().cycle().take(100) {
            noise.take_off(wait, TARGET, packets, 0.036);
        }
        assert!(noise.constant() < 0.0001, "{}", noise.constant());
    }
}
