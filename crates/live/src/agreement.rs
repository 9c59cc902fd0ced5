//! The same scenario by both clocks: figures of the simulator beside those measured in real time.

use lab::{
    contender::Contender,
    figure::Figure,
    record::{Record, RunOutcome},
    report::{BothClocks, ByClock},
    run::run_one,
    scenario::Scenario,
    stats::quantile::median,
};

use crate::Kernel;

/// Largest difference of goodput that counts as agreement, as a share of the simulated one.
pub(crate) const GOODPUT: f64 = 0.05;
/// Largest difference of the median RTT that does, in seconds.
pub(crate) const RTT: f64 = 0.002;

/// One contender by both clocks: medians over the runs that count, in real time and simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    /// Name of the figure.
    pub contender: String,
    /// Goodput in bits per second.
    pub goodput: [f64; 2],
    /// Median RTT in seconds, where the contender tells it.
    pub rtt: Option<[f64; 2]>,
}

impl Agreement {
    /// Compares runs; `None` when there are none that count.
    pub fn of<'a>(
        contender: &str,
        real: impl Iterator<Item = &'a Record>,
        simulated: impl Iterator<Item = &'a Record>,
    ) -> Option<Self> {
        let [real, simulated] = [valid(real), valid(simulated)];
        let both = |figure: Figure| Some([middle(&real, figure)?, middle(&simulated, figure)?]);
        Some(Self { contender: contender.to_owned(), goodput: both(Figure::Goodput)?, rtt: both(Figure::RttP50) })
    }

    /// Goodput in real time less the simulated one, as a share of that.
    pub fn goodput_difference(&self) -> f64 {
        let [real, simulated] = self.goodput;
        real / simulated - 1.0
    }

    /// Median RTT in real time less the simulated one, in seconds.
    pub fn rtt_difference(&self) -> Option<f64> {
        self.rtt.map(|[real, simulated]| real - simulated)
    }

    /// The same for a report.
    pub fn reported(&self) -> BothClocks {
        let by_clock = |[real_time, simulated]: [f64; 2]| ByClock { real_time, simulated };
        BothClocks {
            contender: self.contender.clone(),
            goodput: by_clock(self.goodput),
            rtt_p50: self.rtt.map(by_clock),
            agrees: self.holds(),
        }
    }

    /// True if both clocks agree.
    pub fn holds(&self) -> bool {
        self.goodput_difference().abs() <= GOODPUT && self.rtt_difference().is_none_or(|late| late.abs() <= RTT)
    }
}

fn valid<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<&'a Record> {
    records.filter(|record| record.outcome == RunOutcome::Valid).collect()
}

fn middle(records: &[&Record], figure: Figure) -> Option<f64> {
    let mut values: Vec<f64> = records.iter().filter_map(|record| record.figures.get(&figure)?.value).collect();
    values.sort_by(f64::total_cmp);
    median(&values)
}

/// Simulates every contender that can be, with the seeds of its runs in real time, and compares both. `simulated` is called after each run:
/// the simulator takes minutes for long scenarios.
pub fn agreements(
    scenario: &Scenario,
    contenders: &[Box<dyn Contender>],
    real: &[Record],
    mut simulated: impl FnMut(),
) -> Vec<Agreement> {
    let compared = simulable(contenders).filter_map(|contender| {
        let identity = contender.identity();
        let own: Vec<&Record> = real.iter().filter(|record| record.contender == identity).collect();
        let mut runs = Vec::new();
        for record in valid(own.iter().copied()) {
            runs.push(run_one(scenario, contender, record.seed, None));
            simulated();
        }
        Agreement::of(&identity.name, own.into_iter(), runs.iter())
    });
    compared.collect()
}

/// Number of runs that [`agreements`] simulates.
pub fn runs_to_simulate(contenders: &[Box<dyn Contender>], real: &[Record]) -> usize {
    let runs = simulable(contenders).map(|contender| {
        let identity = contender.identity();
        valid(real.iter().filter(|record| record.contender == identity)).len()
    });
    runs.sum()
}

/// Contenders that the simulator has, too: all but kernel TCP.
fn simulable(contenders: &[Box<dyn Contender>]) -> impl Iterator<Item = &dyn Contender> {
    contenders.iter().map(Box::as_ref).filter(|contender| Kernel::named(&contender.identity().name).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_difference_breaks_the_agreement() {
        let agreement = |goodput, rtt| Agreement {
            contender: "tiderace cubic".to_owned(),
            goodput: [goodput, 10e6],
            rtt: Some([rtt, 0.050]),
        };
        assert!(agreement(9.6e6, 0.0515).holds());
        assert!(!agreement(9.4e6, 0.050).holds() && !agreement(10.6e6, 0.050).holds());
        assert!(!agreement(10e6, 0.0525).holds());
        assert!(Agreement { rtt: None, ..agreement(10e6, 9.0) }.holds());
    }
}
