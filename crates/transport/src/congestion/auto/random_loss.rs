//! Share of packets that the path loses whatever the load, and loss beyond it.
//!
//! One lost packet does not tell whether loss is congestion. An experiment (`probe_loss`) does, and sets the share. Between experiments the
//! share follows observed loss. Loss that chance does not explain is reported as excess.

/// The largest share that is taken for random.
const LARGEST_SHARE: f64 = 0.15;
/// Packets of a batch: fewer do not determine a share.
const BATCH: u64 = 32;
/// Weight of a batch in the share.
const GAIN: f64 = 1.0 / 16.0;
/// Packets over which the losses of late are averaged.
const RECENT: f64 = 256.0;

/// Packets whose fate was counted, and the bursts of losses among them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Count {
    pub(super) acked: u64,
    pub(super) lost: u64,
    pub(super) bursts: u32,
}

impl Count {
    /// Packets of which it is known whether they arrived.
    #[expect(clippy::cast_precision_loss, reason = "packets of a few round trips")]
    pub(super) fn packets(&self) -> f64 {
        (self.acked + self.lost).max(1) as f64
    }

    /// Share of them that was lost.
    #[expect(clippy::cast_precision_loss, reason = "packets of a few round trips")]
    pub(super) fn share(&self) -> f64 {
        self.lost as f64 / self.packets()
    }
}

/// Owns the estimate of the share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RandomLoss {
    /// Share of packets lost independently of the load.
    share: f64,
    /// Share that the last experiment found; estimates do not move far from it.
    confirmed: f64,
    /// Share of packets lost lately, for any cause.
    recent: f64,
    /// Packets of the batch that runs.
    batch: Count,
    /// Packets of the phase of an experiment that runs.
    experiment: Count,
    /// Mean length of a burst of losses in packets, 0 before the first.
    burst: f64,
    /// Length of the burst that runs, and the packet number that would continue it.
    run: f64,
    continues_at: u64,
}

impl RandomLoss {
    /// Share of packets lost independently of the load.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// Returns whether the losses of late are no more than the share found by experiment.
    pub(super) fn explains_losses(&self) -> bool {
        self.recent <= 1.5 * self.confirmed
    }

    /// Returns whether the last round trip completed a batch.
    pub(super) fn is_batch_complete(&self) -> bool {
        self.batch == Count::default()
    }

    /// Begins the count of a phase of an experiment.
    pub(super) fn begin_count(&mut self) {
        self.experiment = Count::default();
    }

    /// Packets since [`Self::begin_count`].
    pub(super) fn count(&self) -> Count {
        self.experiment
    }

    /// Packets that would show five bursts of losses at the share lost lately: none among them is no chance.
    pub(super) fn telling(&self) -> f64 {
        5.0 * self.burst.max(1.0) / self.recent.max(0.005)
    }

    /// Variance of the number of losses over that of independent ones: losses in bursts vary more.
    ///
    /// That of a chain with two states, good and bad. Where much is lost, independent losses stand beside each other as well.
    pub(super) fn dispersion(&self) -> f64 {
        (2.0 * self.burst * (1.0 - self.recent) - 1.0).max(1.0)
    }

    /// Begins the average of the losses of late anew: the load is another one.
    pub(super) fn on_reduced(&mut self) {
        self.recent = self.share;
    }

    /// Sets the share that an experiment has found.
    pub(super) fn confirm(&mut self, share: f64) {
        let share = share.min(LARGEST_SHARE);
        (self.share, self.confirmed, self.recent) = (share, share, share);
        self.batch = Count::default();
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
            self.experiment.bursts += 1;
        }
        self.continues_at = pn + 1;
    }

    /// Takes a round trip in. Returns the share lost beyond what is random: 0 while chance explains it.
    pub(super) fn on_round(&mut self, acked: u64, lost: u64) -> f64 {
        for count in [&mut self.batch, &mut self.experiment] {
            count.acked += acked;
            count.lost += lost;
        }
        let batch = self.batch;
        if batch.acked + batch.lost < BATCH {
            return 0.0;
        }
        self.batch = Count::default();
        let (share, packets) = (batch.share(), batch.packets());
        self.recent += (share - self.recent) * (packets / RECENT).min(0.5);
        let variance = self.share * self.dispersion();
        // A batch shows what is sudden, the average what a batch of losses in bursts does not tell from chance. The average counts
        // only where it is beyond all that is taken for random: a share that an experiment has found is uncertain itself.
        let is_beyond =
            |share: f64, packets: f64| share > self.share + 3.0 * (variance / packets).sqrt() + 2.0 / packets;
        if batch.lost >= 3 && is_beyond(share, packets) {
            return share - self.share;
        }
        if batch.lost > 0 && self.recent > LARGEST_SHARE && is_beyond(self.recent, RECENT) {
            return self.recent - self.share;
        }
        self.share = (self.share + (share - self.share) * GAIN).min(1.5 * self.confirmed).min(LARGEST_SHARE);
        0.0
    }
}
