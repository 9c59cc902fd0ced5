//! Runs of a matrix: points of the matrix × contenders × seeds, numbered.
//!
//! Runs are numbered round by round: all points with the first seed, then all with the second. So an interrupted matrix has all points,
//! with fewer seeds.

use crate::{
    contender::Contender,
    record::{MANIFEST_SCHEMA, Manifest},
    roster,
    scenario::{Point, Scenario, ScenarioError},
};

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Number of the point.
    pub point: usize,
    /// Number of the contender.
    pub contender: usize,
    /// The seed as a person writes it.
    pub seed: u64,
}

/// All runs of a scenario. The plan is small for any number of runs: the data of a run is created when it starts.
#[derive(Clone, Debug)]
pub struct Plan {
    scenario: Scenario,
    points: Vec<Point>,
    contenders: usize,
}

impl Plan {
    /// The plan of a scenario. Every point is made once, so that a mistake shows before the first run.
    ///
    /// # Errors
    /// When a factor or a contender makes no sense.
    pub fn new(scenario: Scenario) -> Result<Self, ScenarioError> {
        let points = scenario.points().map_err(|fault| at(&scenario, fault))?;
        let plan = Self { points, contenders: 0, scenario };
        let mut contenders = 0;
        for point in 0..plan.points.len() {
            contenders = plan.contenders(&plan.scenario(point)?)?.len();
        }
        Ok(Self { contenders, ..plan })
    }

    /// First line of the file of its records. `lab` names the program and its version.
    ///
    /// # Errors
    /// Never for a plan that could be made.
    pub fn manifest(&self, lab: &str) -> Result<Manifest, ScenarioError> {
        // The names of contenders are the same at all points.
        let contenders = self.contenders(&self.scenario(0)?)?;
        Ok(Manifest {
            schema: MANIFEST_SCHEMA.to_owned(),
            lab: lab.to_owned(),
            scenario: self.scenario.clone(),
            digest: self.scenario.digest(),
            contenders: contenders.iter().map(|contender| contender.identity()).collect(),
        })
    }

    /// The scenario with its factors.
    pub const fn base(&self) -> &Scenario {
        &self.scenario
    }

    /// The points in order.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Contenders in each point.
    pub const fn contender_count(&self) -> usize {
        self.contenders
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.points.len() * self.contenders * self.scenario.run.seeds as usize
    }

    /// Returns whether there are no runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The run with a number below [`Self::len`]. Contenders take turns in going first.
    pub fn job(&self, index: usize) -> Job {
        let (round, rest) =
            (index / (self.points.len() * self.contenders), index % (self.points.len() * self.contenders));
        let (point, place) = (rest / self.contenders, rest % self.contenders);
        let contender = if round % 2 == 1 { self.contenders - 1 - place } else { place };
        Job { point, contender, seed: self.scenario.run.seed + round as u64 }
    }

    /// The scenario at a point.
    ///
    /// # Errors
    /// Never for a plan that could be made.
    pub fn scenario(&self, point: usize) -> Result<Scenario, ScenarioError> {
        self.scenario.at(&self.points[point])
    }

    /// The contenders of a scenario that a point yielded.
    ///
    /// # Errors
    /// When a controller or a field of a profile does not exist.
    pub fn contenders(&self, scenario: &Scenario) -> Result<Vec<Box<dyn Contender>>, ScenarioError> {
        roster::contenders(&scenario.contenders).map_err(|fault| at(scenario, fault))
    }
}

fn at(scenario: &Scenario, fault: crate::scenario::Fault) -> ScenarioError {
    ScenarioError {
        origin: scenario.name.clone(),
        line: None,
        field: Some(fault.field),
        message: fault.message,
        hint: fault.hint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::load;

    #[test]
    fn every_run_has_a_number_and_rounds_turn() {
        let mut scenario = load("mobile").unwrap();
        scenario.run.seeds = 3;
        scenario.contenders = crate::scenario::Selection::default();
        let levels = serde_json::from_str(r#"["20 ms", "200 ms"]"#).unwrap();
        scenario.factors.insert("path.rtt".to_owned(), levels);
        let plan = Plan::new(scenario).unwrap();
        assert_eq!((plan.len(), plan.contender_count()), (12, 2));
        let jobs: Vec<_> =
            (0..12).map(|index| plan.job(index)).map(|job| (job.point, job.contender, job.seed)).collect();
        assert_eq!(jobs[..4], [(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)]);
        assert_eq!(jobs[4..6], [(0, 1, 2), (0, 0, 2)]);
        let mut sorted = jobs;
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 12);
    }
}
