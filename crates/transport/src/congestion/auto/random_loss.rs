//! Share of packets that the path loses whatever the load, and loss beyond it.
//!
//! One lost packet does not tell whether loss is congestion. An experiment does (`probe_loss`): it sets the share. Between
//! experiments the share follows what is seen, and loss that chance does not explain is reported as excess.

/// The largest share that is taken for random.
const LARGEST_SHARE: f64 = 0.15;
/// Packets of a batch: fewer say nothing about a share.
const BATCH: u64 = 32;
/// Weight of a batch in the share.
const GAIN: f64 = 1.0 / 16.0;
/// Bursts of losses that a measurement waits for: fewer say nothing about a share.
const BURSTS: u32 = 5;

/// Packets of a measurement, and its bursts of losses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Measurement {
    acked: u64,
    lost: u64,
    bursts: u32,
}

/// Owns the estimate of the share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RandomLoss {
    /// Share of packets lost whatever the load.
    share: f64,
    /// Share that the last experiment found; estimates do not move far from it.
    confirmed: f64,
    /// Share lost lately, whatever the cause.
    recent: f64,
    /// Packets of the batch that runs.
    batch: Measurement,
    /// Packets since the experiment that runs began to count.
    measurement: Measurement,
    /// Mean length of a burst of losses in packets, 0 before the first.
    burst: f64,
    /// Length of the burst that runs, and the packet number that would continue it.
    run: f64,
    continues_at: u64,
}

impl RandomLoss {
    /// The share of packets lost whatever the load.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// Returns whether the last round trip completed a batch.
    pub(super) fn is_batch_complete(&self) -> bool {
        self.batch == Measurement::default()
    }

    /// Begins the count of an experiment.
    pub(super) fn begin_measurement(&mut self) {
        self.measurement = Measurement::default();
    }

    /// The share lost since [`Self::begin_measurement`]; `None` while there are too few packets for a verdict.
    #[expect(clippy::cast_precision_loss, reason = "packets of a few round trips")]
    pub(super) fn measured(&self, is_late: bool) -> Option<f64> {
        let Measurement { acked, lost, bursts } = self.measurement;
        let packets = (acked + lost) as f64;
        let enough = (f64::from(BURSTS) * self.burst.max(1.0) / self.recent.max(0.005)).clamp(96.0, 1500.0);
        let is_enough = packets >= 32.0 && (packets >= enough || bursts >= BURSTS || is_late);
        is_enough.then(|| lost as f64 / packets)
    }

    /// Sets the share that an experiment has found.
    pub(super) fn confirm(&mut self, share: f64) {
        let share = share.min(LARGEST_SHARE);
        (self.share, self.confirmed, self.recent) = (share, share, share);
        self.batch = Measurement::default();
    }

    /// The largest share that is taken for random.
    pub(super) fn is_plausible(share: f64) -> bool {
        share <= LARGEST_SHARE
    }

    /// A packet was lost.
    pub(super) fn on_packet_lost(&mut self, pn: u64) {
        if pn == self.continues_at {
            self.run += 1.0;
        } else {
            self.burst += (self.run.min(10.0) - self.burst) / 16.0;
            self.run = 1.0;
            self.measurement.bursts += 1;
        }
        self.continues_at = pn + 1;
    }

    /// Takes a round trip in. Returns the share lost beyond what is random: 0 while chance explains it.
    #[expect(clippy::cast_precision_loss, reason = "packets of a few round trips")]
    pub(super) fn on_round(&mut self, acked: u64, lost: u64) -> f64 {
        for count in [&mut self.batch, &mut self.measurement] {
            count.acked += acked;
            count.lost += lost;
        }
        let Measurement { acked, lost, .. } = self.batch;
        if acked + lost < BATCH {
            return 0.0;
        }
        self.batch = Measurement::default();
        let packets = (acked + lost) as f64;
        let share = lost as f64 / packets;
        self.recent += (share - self.recent) * (packets / 256.0).min(0.5);
        // Losses that come in bursts vary more than independent ones.
        let deviation = (self.share * (2.0 * self.burst.max(1.0) - 1.0) / packets).sqrt();
        if lost >= 3 && share > self.share + 3.0 * deviation + 2.0 / packets {
            return share - self.share;
        }
        self.share = (self.share + (share - self.share) * GAIN).min(1.5 * self.confirmed);
        0.0
    }
}
