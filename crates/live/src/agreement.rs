//! The same scenario by both clocks: figures of the simulator beside those measured in real time.

use lab::{
    contender::Contender,
    figure::Figure,
    record::{Record, RunOutcome},
    report::{BothClocks, ByClock},
    run::run_one,
    scenario::Scenario,
    stats::{interval::median_interval, quantile::median},
};
use units::Duration;

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
    /// 95 % interval of the median over the seeds of goodput in real time less the simulated one, as a share of that.
    pub goodput_interval: Option<[f64; 2]>,
    /// Median RTT in seconds, where the contender tells it.
    pub rtt: Option<[f64; 2]>,
    /// The same interval of the median RTT, in seconds.
    pub rtt_interval: Option<[f64; 2]>,
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
        let interval = |figure: Figure, difference: fn(f64, f64) -> f64| {
            let same_seed = |one: &Record| simulated.iter().find(|other| other.seed == one.seed);
            let pairs = real.iter().filter_map(|one| Some([value(one, figure)?, value(same_seed(one)?, figure)?]));
            let differences: Vec<f64> = pairs.map(|[real, simulated]| difference(real, simulated)).collect();
            median_interval(&differences, 0.95).map(|interval| [interval.low, interval.high])
        };
        Some(Self {
            contender: contender.to_owned(),
            goodput: both(Figure::Goodput)?,
            goodput_interval: interval(Figure::Goodput, |real, simulated| real / simulated - 1.0),
            rtt: both(Figure::RttP50),
            rtt_interval: interval(Figure::RttP50, |real, simulated| real - simulated),
        })
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
            goodput_interval: self.goodput_interval,
            rtt_p50: self.rtt.map(by_clock),
            rtt_interval: self.rtt_interval,
            agrees: self.holds(),
            may_be_chance: self.may_be_chance(),
        }
    }

    /// True if both clocks agree.
    pub fn holds(&self) -> bool {
        self.goodput_difference().abs() <= GOODPUT && self.rtt_difference().is_none_or(|late| late.abs() <= RTT)
    }

    /// True if they do not, and the interval of each difference that is too large reaches to one that is not: more seeds decide.
    pub fn may_be_chance(&self) -> bool {
        let reaches = |difference: f64, interval: Option<[f64; 2]>, limit: f64| {
            difference.abs() <= limit || interval.is_some_and(|[low, high]| low <= limit && high >= -limit)
        };
        !self.holds()
            && reaches(self.goodput_difference(), self.goodput_interval, GOODPUT)
            && self.rtt_difference().is_none_or(|late| reaches(late, self.rtt_interval, RTT))
    }
}

fn valid<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<&'a Record> {
    records.filter(|record| record.outcome == RunOutcome::Valid).collect()
}

fn value(record: &Record, figure: Figure) -> Option<f64> {
    record.figures.get(&figure)?.value
}

fn middle(records: &[&Record], figure: Figure) -> Option<f64> {
    let mut values: Vec<f64> = records.iter().filter_map(|record| value(record, figure)).collect();
    values.sort_by(f64::total_cmp);
    median(&values)
}

/// Simulates every contender that can be, with the seeds of its runs in real time, and compares both. `simulated` is called after each run:
/// the simulator takes minutes for long scenarios.
///
/// Unless the scenario has a `phase-jitter` of its own, the simulator adds none: a machine has no such delays, and on a slow link they are
/// milliseconds of the median RTT.
pub fn agreements(
    scenario: &Scenario,
    contenders: &[Box<dyn Contender>],
    real: &[Record],
    mut simulated: impl FnMut(),
) -> Vec<Agreement> {
    let mut scenario = scenario.clone();
    scenario.path.phase_jitter.get_or_insert(Duration::ZERO);
    let compared = simulable(contenders).filter_map(|contender| {
        let identity = contender.identity();
        let own: Vec<&Record> = real.iter().filter(|record| record.contender == identity).collect();
        let mut runs = Vec::new();
        for record in valid(own.iter().copied()) {
            runs.push(run_one(&scenario, contender, record.seed, None));
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
    use lab::{scenario::parse, tiderace::contender};

    use super::*;

    /// Two connections with requests over 1 Mbit/s: the simulator's own jitter there is up to 6 ms.
    const PATH: &str = r#"
name = "slow-return"
title = "10 Mbit/s, back 1 Mbit/s"
about = "A test."
[path.down]
rate = "10 Mbit/s"
queue = "50 kB"
delay = "20 ms"
[path.up]
rate = "1 Mbit/s"
queue = "50 kB"
delay = "20 ms"
[traffic]
workload = "requests"
response-size = "1 kB"
connections = 2
[run]
warmup = "1 s"
duration = "2 s"
seeds = 6
"#;

    fn simulated(scenario: &Scenario) -> Vec<Record> {
        (1..=6).map(|seed| run_one(scenario, contender("cubic").unwrap().as_ref(), seed, None)).collect()
    }

    #[test]
    fn both_clocks_are_compared_without_jitter_of_the_simulator() {
        let scenario = parse(PATH, "a test").unwrap();
        let mut quiet = scenario.clone();
        quiet.path.phase_jitter = Some(Duration::ZERO);
        let contenders = [contender("cubic").unwrap()];
        let (real, mut runs) = (simulated(&quiet), 0);
        let agreements = agreements(&scenario, &contenders, &real, || runs += 1);
        assert_eq!((agreements.len(), runs, runs_to_simulate(&contenders, &real)), (1, 6, 6));
        assert_eq!((agreements[0].goodput_interval, agreements[0].rtt_interval), (Some([0.0; 2]), Some([0.0; 2])));
        let jittered = simulated(&scenario);
        let one = Agreement::of("cubic", real.iter(), jittered.iter()).unwrap();
        assert!(one.rtt_difference().unwrap() < -0.002 && !one.holds(), "{one:?}");
    }

    #[test]
    fn differences_of_the_same_seed_have_an_interval() {
        let scenario = parse(PATH, "a test").unwrap();
        let mut longer = scenario.clone();
        longer.path.down.delay = Duration::from_millis(25);
        let (real, mut other) = (simulated(&longer), simulated(&scenario));
        other.reverse();
        let one = Agreement::of("cubic", real.iter(), other.iter()).unwrap();
        let [low, high] = one.rtt_interval.unwrap();
        assert!(0.003 < low && high < 0.007 && low < high, "{one:?}");
        assert!(one.goodput_interval.is_some(), "{one:?}");
        let few = Agreement::of("cubic", real[..5].iter(), other.iter()).unwrap();
        assert_eq!((few.goodput_interval, few.rtt_interval), (None, None));
    }

    #[test]
    fn either_difference_breaks_the_agreement() {
        let agreement = |goodput, rtt| Agreement {
            contender: "tiderace cubic".to_owned(),
            goodput: [goodput, 10e6],
            goodput_interval: None,
            rtt: Some([rtt, 0.050]),
            rtt_interval: None,
        };
        assert!(agreement(9.6e6, 0.0515).holds());
        assert!(!agreement(9.4e6, 0.050).holds() && !agreement(10.6e6, 0.050).holds());
        assert!(!agreement(10e6, 0.0525).holds());
        assert!(Agreement { rtt: None, ..agreement(10e6, 9.0) }.holds());
    }

    #[test]
    fn a_difference_whose_interval_reaches_the_limit_may_be_chance() {
        let agreement = |goodput: [f64; 2], rtt: [f64; 2]| Agreement {
            contender: "tiderace cubic".to_owned(),
            goodput: [10.4e6, 10e6],
            goodput_interval: Some(goodput),
            rtt: Some([0.053, 0.050]),
            rtt_interval: Some(rtt),
        };
        assert!(agreement([0.01, 0.09], [-0.001, 0.007]).may_be_chance());
        assert!(agreement([0.01, 0.09], [0.0019, 0.004]).may_be_chance());
        assert!(!agreement([0.01, 0.09], [0.0021, 0.004]).may_be_chance(), "the RTT differs");
        let both = Agreement { goodput: [11e6, 10e6], ..agreement([0.06, 0.14], [-0.001, 0.007]) };
        assert!(!both.may_be_chance(), "the goodput differs");
        assert!(!Agreement { rtt_interval: None, ..agreement([0.0; 2], [0.0; 2]) }.may_be_chance(), "too few seeds");
        assert!(
            !Agreement { rtt: Some([0.051, 0.050]), ..agreement([0.0; 2], [0.0; 2]) }.may_be_chance(),
            "both agree"
        );
    }
}
