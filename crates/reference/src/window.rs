//! Congestion windows packet by packet on a path of one round-trip time that loses every n-th packet: AIMD and CUBIC as recursions of a few
//! lines.

use std::collections::VecDeque;

/// A law of growth, in packets and seconds.
pub trait Law {
    /// A packet that left after the last reaction was acknowledged.
    fn grow(&mut self, window: &mut f64, now: f64);
    /// A loss that begins a new reaction.
    fn fall(&mut self, window: &mut f64, now: f64);
    /// The round trip was measured, in seconds.
    fn measured(&mut self, _rtt: f64) {}
    /// Slow start ended at this window without a loss.
    fn resume(&mut self, _window: f64) {}
}

/// One more per window, a half after a loss (RFC 5681 §3.1, RFC 9002 §7.3).
#[derive(Clone, Copy, Debug, Default)]
pub struct NewReno;

impl Law for NewReno {
    fn grow(&mut self, window: &mut f64, _now: f64) {
        *window += 1.0 / *window;
    }
    fn fall(&mut self, window: &mut f64, _now: f64) {
        *window /= 2.0;
    }
}

/// The cubic function of RFC 9438 §4.2 beside the Reno-friendly window of §4.3, with fast convergence (§4.7).
#[derive(Clone, Copy, Debug, Default)]
pub struct Cubic {
    plateau: f64,
    begin: Option<f64>,
    k: f64,
    friendly: f64,
    prior: f64,
    /// Round-trip time, for the target one round ahead.
    rtt: f64,
}

impl Cubic {
    /// Before the first loss, on a path with this round-trip time.
    pub fn new(rtt: f64) -> Self {
        Self { rtt, ..Self::default() }
    }
}

impl Law for Cubic {
    fn grow(&mut self, window: &mut f64, now: f64) {
        if self.plateau == 0.0 {
            *window += 1.0;
            return;
        }
        if self.begin.is_none() {
            self.k = ((self.plateau - *window).max(0.0) / 0.4).cbrt();
            self.friendly = *window;
        }
        let t = now - *self.begin.get_or_insert(now);
        let alpha = if self.friendly >= self.prior { 1.0 } else { 3.0 * 0.3 / 1.7 };
        self.friendly += alpha / *window;
        let at = |t: f64| 0.4 * (t - self.k).powi(3) + self.plateau;
        if at(t) < self.friendly {
            *window = window.max(self.friendly);
        } else {
            *window += (at(t + self.rtt).clamp(*window, 1.5 * *window) - *window) / *window;
        }
    }
    fn fall(&mut self, window: &mut f64, _now: f64) {
        self.prior = *window;
        self.plateau = if *window < self.plateau { *window * 0.85 } else { *window };
        *window *= 0.7;
        self.begin = None;
    }
    fn measured(&mut self, rtt: f64) {
        self.rtt += (rtt - self.rtt) / 8.0;
    }
    fn resume(&mut self, window: f64) {
        self.plateau = window;
    }
}

/// Packets that arrive in a round trip, on average over `rounds` after as many again: a packet leaves as soon as the window has room,
/// its fate is known a round-trip time later, and a loss of what left before the last reaction changes nothing.
pub fn per_round(law: &mut impl Law, period: u64, rtt: f64, rounds: u32) -> f64 {
    let mut window = 10.0f64;
    let mut flight: VecDeque<(f64, bool)> = VecDeque::new();
    let (mut sent, mut now, mut arrived, mut reaction) = (0u64, 0.0, 0u64, f64::NEG_INFINITY);
    let (from, to) = (f64::from(rounds) * rtt, 2.0 * f64::from(rounds) * rtt);
    while now < to {
        while flight.len() as f64 + 1.0 <= window {
            sent += 1;
            flight.push_back((now, sent.is_multiple_of(period)));
        }
        let Some((left, lost)) = flight.pop_front() else { break };
        now = left + rtt;
        if lost && left > reaction {
            reaction = now;
            law.fall(&mut window, now);
        } else if !lost && left > reaction {
            law.grow(&mut window, now);
        }
        arrived += u64::from(!lost && now > from);
    }
    arrived as f64 / f64::from(rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The deterministic model of Mathis and others (1997): sqrt(3/2 / p) packets for a receiver that acknowledges each.
    #[test]
    fn newreno_follows_the_square_root() {
        for period in [200, 800, 3_200] {
            let seen = per_round(&mut NewReno, period, 0.1, 2_000);
            let model = (1.5 * period as f64).sqrt();
            assert!((seen / model - 1.0).abs() < 0.12, "{period}: {seen} {model}");
        }
    }

    /// RFC 9438 §5.1: 1.054 (RTT / p)^0.75 where the cubic function decides.
    #[test]
    fn cubic_follows_its_response_function() {
        for period in [10_000, 40_000] {
            let law = &mut Cubic::new(0.1);
            let seen = per_round(law, period, 0.1, 4_000);
            let model = 1.054 * (0.1 * period as f64).powf(0.75);
            assert!((seen / model - 1.0).abs() < 0.12, "{period}: {seen} {model}");
        }
    }
}
