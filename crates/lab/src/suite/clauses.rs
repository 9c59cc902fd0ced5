//! Building blocks of clauses: searches for moments.

use transport::congestion::PathModel;
use units::{Bitrate, Duration, Instant};

use super::{Moment, Seen, Verdict, millis};

/// A change of state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// The last moment before.
    pub(super) before: usize,
    /// The first moment after.
    pub(super) after: usize,
}

impl<'a> Seen<'a> {
    pub(super) fn model(&self, moment: usize) -> Option<&'a PathModel> {
        self.moments.get(moment)?.view.model.as_ref()
    }

    fn state(&self, moment: usize) -> &'static str {
        self.moments[moment].view.state
    }

    /// The first moment at or after a time.
    pub(super) fn from(&self, at: Instant) -> usize {
        self.moments.partition_point(|moment| moment.at < at)
    }

    /// The first moment from `start` on that shows this state.
    pub(super) fn enters(&self, state: &str, start: usize) -> Option<usize> {
        (start..self.moments.len()).find(|&moment| self.state(moment) == state)
    }

    /// Exit of the sender from the state that it is in at `start`.
    pub(super) fn leaves(&self, start: usize) -> Option<Change> {
        let state = self.state(start);
        let after = (start..self.moments.len()).find(|&moment| self.state(moment) != state)?;
        Some(Change { before: after - 1, after })
    }

    /// The first entry into a state from `start` on: when it is entered and how it is left.
    pub(super) fn first_entry(&self, state: &str, start: usize) -> Option<(usize, Change)> {
        let entered = self.enters(state, start)?;
        Some((entered, self.leaves(entered)?))
    }

    /// Time at which a step happened.
    pub(super) fn step(&self, index: usize) -> Option<Instant> {
        self.steps.get(index).copied().flatten()
    }

    pub(super) fn moment(&self, index: usize) -> &'a Moment {
        &self.moments[index]
    }

    /// Bytes of a QUIC packet per byte on the link: what controllers count does not include IP and UDP headers.
    pub(super) fn share_of_payload(&self) -> f64 {
        let last = self.link.last().copied().unwrap_or_default();
        if last.packets == 0 {
            return 1.0;
        }
        1.0 - f64::from(netem::IPV4_OVERHEAD) * number(last.packets) / number(last.delivered).max(1.0)
    }

    /// A link's rate as a controller can see it.
    pub(super) fn visible(&self, kbps: u64) -> f64 {
        number(kbps) * 1e3 * self.share_of_payload()
    }

    /// Rate at which packets passed the bottleneck between two moments, in bits per second.
    pub(super) fn delivered(&self, from: Instant, to: Instant) -> f64 {
        let at = |time: Instant| {
            let place = self.link.partition_point(|moment| moment.at <= time);
            self.link.get(place.saturating_sub(1)).copied().unwrap_or_default()
        };
        let (a, b) = (at(from), at(to));
        let span = b.at.saturating_since(a.at).as_secs_f64();
        if span <= 0.0 { 0.0 } else { number(b.delivered - a.delivered) * 8.0 / span }
    }

    /// Packets dropped between two moments, and packets that passed.
    pub(super) fn drops(&self, from: Instant, to: Instant) -> (u64, u64) {
        let at = |time: Instant| {
            let place = self.link.partition_point(|moment| moment.at <= time);
            self.link.get(place.saturating_sub(1)).copied().unwrap_or_default()
        };
        let (a, b) = (at(from), at(to));
        (b.dropped - a.dropped, b.packets - a.packets)
    }

    /// Time at which the run ended.
    pub(super) fn end(&self) -> Instant {
        Instant::ZERO + Duration::from_secs(self.scene.seconds)
    }
}

/// A verdict from a search that finds nothing when the thing never happened. Unsupported when the sender shows nothing.
pub(super) fn found(seen: &Seen<'_>, missing: &str, verdict: impl FnOnce() -> Option<Verdict>) -> Verdict {
    if seen.moments.is_empty() || seen.moments.iter().all(|moment| moment.view.model.is_none()) {
        return Verdict::Unsupported;
    }
    verdict().unwrap_or_else(|| Verdict::Fail(format!("never seen: {missing}")))
}

/// `from` is left for `to`.
pub(super) fn goes(seen: &Seen<'_>, from: &str, to: &str, start: usize) -> Verdict {
    found(seen, from, || {
        let (_, change) = seen.first_entry(from, start)?;
        let (at, next) = (seen.moment(change.after).at, seen.moment(change.after).view.state);
        // One acknowledgement may lead through a state and out of it again.
        let entries = |moment| Some(seen.model(moment)?.state_entries.iter().find(|entry| entry.0 == to)?.1);
        let through = next != to && entries(change.after) > entries(change.before);
        let way = if through { format!("{to} → {next}") } else { next.to_owned() };
        Some(Verdict::of(through || next == to, format!("{from} → {way} at {:.1} ms", millis(at))))
    })
}

pub(super) fn bps(rate: Bitrate) -> f64 {
    number(rate.as_bps())
}

#[expect(clippy::cast_precision_loss, reason = "rates and volumes of a simulation")]
pub(super) fn number(value: u64) -> f64 {
    value as f64
}

/// A rate in Mbit/s for texts.
pub(super) fn mbps(rate: f64) -> String {
    format!("{:.2} Mbit/s", rate / 1e6)
}
