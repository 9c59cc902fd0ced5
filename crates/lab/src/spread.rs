//! Distribution of the samples of one run in a few numbers, for pictures: equidistant quantiles.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use units::Duration;

use crate::contender::{Flow, Measured};

/// Quantiles of a run at most: a picture shows no more.
const STEPS: u64 = 60;

/// Kinds of samples that a run has a distribution of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampled {
    /// RTT samples of all connections.
    Rtt,
    /// Times of requests or flows, or delays of datagrams.
    Latency,
}

impl Sampled {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 2] = [Self::Rtt, Self::Latency];

    /// Heading of pictures.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Rtt => "RTT",
            Self::Latency => "Latency",
        }
    }

    /// Name in reports.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Rtt => "RTT",
            Self::Latency => "latency",
        }
    }
}

/// Equidistant quantiles, in seconds and ascending; with fewer than 60 samples all of them. `None` is a sample that never occurred.
pub type Quantiles = Vec<Option<f64>>;

/// Samples of a run, and the number of missing ones.
#[derive(Default)]
struct Samples {
    came: Vec<Duration>,
    never: u64,
}

/// The distributions of a run's samples, of each kind that it has.
pub(crate) fn distributions(connections: &[Measured]) -> BTreeMap<Sampled, Quantiles> {
    let kinds = [(Sampled::Rtt, rtt(connections)), (Sampled::Latency, latency(connections))];
    let some = kinds.into_iter().filter_map(|(kind, samples)| Some((kind, samples?.quantiles())));
    some.filter(|(_, quantiles)| !quantiles.is_empty()).collect()
}

fn rtt(connections: &[Measured]) -> Option<Samples> {
    let mut samples = Samples::default();
    for connection in connections {
        samples.came.extend(connection.rtt.as_ref()?);
    }
    Some(samples)
}

/// Samples of the workload's latency: responses, flows or datagrams.
fn latency(connections: &[Measured]) -> Option<Samples> {
    let mut samples = Samples::default();
    for connection in connections {
        if let Some(times) = &connection.requests {
            samples.came.extend(times);
        } else if let Some(flow) = connection.flow {
            match flow {
                Flow::Took(time) => samples.came.push(time),
                Flow::Unfinished => samples.never += 1,
                Flow::Early => {}
            }
        } else {
            let datagrams = connection.datagrams.as_ref()?;
            samples.came.extend(&datagrams.delays);
            samples.never += datagrams.due.saturating_sub(datagrams.arrived);
        }
    }
    Some(samples)
}

impl Samples {
    #[expect(clippy::cast_possible_truncation, reason = "below the number of samples")]
    fn quantiles(mut self) -> Quantiles {
        self.came.sort_unstable();
        let all = self.came.len() as u64 + self.never;
        let steps = all.min(STEPS);
        // Nearest rank in the middle of each step; what never came is longer than anything else.
        let rank = |step: u64| ((2 * step + 1) * all / (2 * steps)) as usize;
        (0..steps).map(|step| self.came.get(rank(step)).map(Duration::as_secs_f64)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::DatagramsMeasured;

    fn millis(values: impl Iterator<Item = u64>) -> Vec<Duration> {
        values.map(Duration::from_millis).collect()
    }

    #[test]
    fn many_samples_leave_sixty_quantiles() {
        let one = Measured { rtt: Some(millis(1..=600)), ..Measured::default() };
        let two = Measured { rtt: Some(millis(601..=1200)), ..Measured::default() };
        let found = distributions(&[two, one]);
        assert_eq!(found.keys().collect::<Vec<_>>(), [&Sampled::Rtt]);
        let rtt = &found[&Sampled::Rtt];
        assert_eq!((rtt.len(), rtt[0], rtt[59]), (60, Some(0.011), Some(1.191)));
        assert!(rtt.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn few_samples_stay_as_they_are() {
        let requests = Measured { requests: Some(millis([30, 10, 20].into_iter())), ..Measured::default() };
        assert_eq!(distributions(&[requests])[&Sampled::Latency], [Some(0.01), Some(0.02), Some(0.03)]);
        assert!(distributions(&[Measured { rtt: Some(Vec::new()), ..Measured::default() }]).is_empty());
        let unknown = [Measured { rtt: Some(millis(1..9)), ..Measured::default() }, Measured::default()];
        assert!(distributions(&unknown).is_empty(), "a connection that reports nothing leaves no distribution of all");
    }

    #[test]
    fn what_never_came_is_longer_than_anything() {
        let delays = millis(1..=90);
        let datagrams = DatagramsMeasured { due: 120, arrived: 90, delays, ..DatagramsMeasured::default() };
        let found = distributions(&[Measured { datagrams: Some(datagrams), ..Measured::default() }]);
        let latency = &found[&Sampled::Latency];
        assert_eq!((latency.len(), latency[44], latency[45]), (60, Some(0.09), None));
        let flows = [Flow::Took(Duration::from_millis(5)), Flow::Unfinished, Flow::Early];
        let flows = flows.map(|flow| Measured { flow: Some(flow), ..Measured::default() });
        assert_eq!(distributions(&flows)[&Sampled::Latency], [Some(0.005), None]);
    }
}
