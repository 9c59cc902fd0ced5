//! HyStart++ (RFC 9406): leave slow start when the RTT rises, before packets are lost.
//!
//! The variant for senders that pace: without a limit on the growth per acknowledgement (`L` is infinite).

use units::Duration;

use super::AckSample;

/// RFC 9406 §4.3, the recommended constants.
const MIN_RTT_THRESHOLD: Duration = Duration::from_millis(4);
const MAX_RTT_THRESHOLD: Duration = Duration::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;
const RTT_SAMPLES: u32 = 8;
const CSS_GROWTH_DIVISOR: u64 = 4;
const CSS_ROUNDS: u32 = 5;
/// The least threshold on a path whose smallest RTT is below a millisecond: four of these RTTs, but at least a millisecond. At 10 Gbit/s
/// the recommended 4 ms are 5 MB of growth in one round, more than most sockets and switches hold.
const SHORT_PATH_RTTS: u32 = 4;
const SHORT_PATH_THRESHOLD: Duration = Duration::from_millis(1);

/// Effect of an acknowledgement on slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Grow by this many bytes.
    By(u64),
    /// Grow by this many bytes, and leave slow start: the threshold becomes the window.
    Exit(u64),
}

/// Conservative slow start: the RTT has risen, and it is being watched whether it stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Conservative {
    baseline_min_rtt: Duration,
    rounds: u32,
}

/// Owns the observation of RTTs during the first slow start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HyStart {
    /// The round ends with the first packet that left when at least this much had been delivered.
    round_ends_at: u64,
    /// Of all rounds.
    min_rtt: Option<Duration>,
    last_round_min: Option<Duration>,
    current_round_min: Option<Duration>,
    samples: u32,
    conservative: Option<Conservative>,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            round_ends_at: 1,
            min_rtt: None,
            last_round_min: None,
            current_round_min: None,
            samples: 0,
            conservative: None,
        }
    }
}

impl HyStart {
    /// Processes an acknowledgement during slow start; `bytes` is the permitted growth of the window.
    pub fn on_acked(&mut self, bytes: u64, ack: &AckSample) -> Growth {
        // RFC 9406 §4.2: rounds are delimited by a packet sent after the previous round ended. The bytes that had been
        // delivered when a packet left say the same as its number, and do so across packet number spaces.
        let sent_at_delivery = ack.rate.map_or(0, |rate| rate.prior_delivered);
        if sent_at_delivery >= self.round_ends_at {
            self.round_ends_at = ack.delivered;
            self.last_round_min = self.current_round_min.take();
            self.samples = 0;
            if let Some(conservative) = &mut self.conservative {
                conservative.rounds += 1;
                if conservative.rounds >= CSS_ROUNDS {
                    return Growth::Exit(bytes / CSS_GROWTH_DIVISOR);
                }
            }
        } else if self.round_ends_at == 1 {
            // The first round ends with the first packet sent after the first delivery.
            self.round_ends_at = ack.delivered.max(1);
        }
        if let Some(rtt) = ack.rtt {
            self.min_rtt = Some(self.min_rtt.map_or(rtt, |min| min.min(rtt)));
            self.current_round_min = Some(self.current_round_min.map_or(rtt, |min| min.min(rtt)));
            self.samples += 1;
        }
        self.judge();
        match self.conservative {
            Some(_) => Growth::By(bytes / CSS_GROWTH_DIVISOR),
            None => Growth::By(bytes),
        }
    }

    /// Compares the RTTs of this round with those of the last round.
    fn judge(&mut self) {
        if self.samples < RTT_SAMPLES {
            return;
        }
        let Some(current) = self.current_round_min else { return };
        match self.conservative {
            // RFC 9406 §4.2: the rise was no lasting one: slow start continues.
            Some(conservative) if current < conservative.baseline_min_rtt => self.conservative = None,
            Some(_) => {}
            None => {
                let Some(last) = self.last_round_min else { return };
                let short = self.min_rtt.map_or(MIN_RTT_THRESHOLD, |min| min.saturating_mul(SHORT_PATH_RTTS));
                let least = short.clamp(SHORT_PATH_THRESHOLD, MIN_RTT_THRESHOLD);
                let threshold = (last / MIN_RTT_DIVISOR).clamp(least, MAX_RTT_THRESHOLD);
                if current >= last + threshold {
                    // The partial round in which conservative slow start begins counts as one of its rounds.
                    self.conservative = Some(Conservative { baseline_min_rtt: current, rounds: 0 });
                }
            }
        }
    }

    /// Returns whether growth is slowed down because the RTT has risen.
    pub fn is_conservative(&self) -> bool {
        self.conservative.is_some()
    }
}

#[cfg(test)]
mod tests {
    use units::Instant;

    use super::super::RateSample;
    use super::super::tests::ack;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// One round of ten acknowledgements of 1200 bytes with this RTT; what each made of it.
    fn round(hystart: &mut HyStart, delivered: &mut u64, rtt: Duration) -> Vec<Growth> {
        let sent_at_delivery = *delivered;
        (0..10)
            .map(|_| {
                *delivered += 1200;
                let rate = RateSample {
                    delivered: 0,
                    interval: rtt,
                    delivery_rate: None,
                    prior_delivered: sent_at_delivery,
                    prior_at: Instant::ZERO,
                    send_elapsed: rtt,
                    ack_elapsed: rtt,
                    is_app_limited: false,
                    tx_in_flight: 0,
                    lost: 0,
                };
                let sample = AckSample { rate: Some(rate), delivered: *delivered, ..ack(1200, Instant::ZERO, rtt) };
                hystart.on_acked(1200, &sample)
            })
            .collect()
    }

    #[test]
    fn a_path_below_a_millisecond_has_a_lower_threshold() {
        let tenth = Duration::from_micros(100);
        for (base, rise, is_noticed) in [
            (tenth, 9 * tenth, false),
            (tenth, 10 * tenth, true),
            (5 * tenth, 19 * tenth, false),
            (5 * tenth, 20 * tenth, true),
            (MS, 39 * tenth, false),
            (MS, 4 * MS, true),
        ] {
            let (mut hystart, mut delivered) = (HyStart::default(), 0);
            round(&mut hystart, &mut delivered, base);
            round(&mut hystart, &mut delivered, base);
            round(&mut hystart, &mut delivered, base + rise);
            assert_eq!(hystart.is_conservative(), is_noticed, "{base:?} {rise:?}");
        }
    }

    #[test]
    fn steady_rtt_stays_in_slow_start() {
        let (mut hystart, mut delivered) = (HyStart::default(), 0);
        for _ in 0..20 {
            assert!(round(&mut hystart, &mut delivered, 50 * MS).iter().all(|growth| *growth == Growth::By(1200)));
        }
    }

    #[test]
    fn risen_rtt_slows_down_and_then_exits() {
        let (mut hystart, mut delivered) = (HyStart::default(), 0);
        round(&mut hystart, &mut delivered, 50 * MS);
        // The threshold is an eighth of 50 ms: 6.25 ms.
        round(&mut hystart, &mut delivered, 56 * MS);
        assert!(!hystart.is_conservative());
        let growth = round(&mut hystart, &mut delivered, 63 * MS);
        assert_eq!(growth[6..8], [Growth::By(1200), Growth::By(300)], "from the eighth sample on");
        for _ in 0..4 {
            let growth = round(&mut hystart, &mut delivered, 63 * MS);
            assert!(growth.iter().all(|growth| *growth == Growth::By(300)), "{growth:?}");
        }
        let growth = round(&mut hystart, &mut delivered, 63 * MS);
        assert_eq!(growth[0], Growth::Exit(300));
    }

    #[test]
    fn falling_rtt_resumes() {
        let (mut hystart, mut delivered) = (HyStart::default(), 0);
        round(&mut hystart, &mut delivered, 50 * MS);
        round(&mut hystart, &mut delivered, 70 * MS);
        assert!(hystart.is_conservative());
        round(&mut hystart, &mut delivered, 60 * MS);
        assert!(!hystart.is_conservative());
    }

    #[test]
    fn thresholds_are_bounded() {
        for (base, quiet, rise) in [(8, 3, 4), (400, 15, 16)] {
            let (mut hystart, mut delivered) = (HyStart::default(), 0);
            round(&mut hystart, &mut delivered, base * MS);
            round(&mut hystart, &mut delivered, (base + quiet) * MS);
            assert!(!hystart.is_conservative());
            round(&mut hystart, &mut delivered, (base + quiet + rise) * MS);
            assert!(hystart.is_conservative());
        }
    }
}
