//! Changes between two files of records of one scenario.

use serde::Serialize;

use crate::{
    figure::Figure,
    stats::{
        compare::{
            Comparison, Pair, Rule, Verdict, agreement, beyond_over_points, compare_over_points, compare_unpaired,
        },
        interval::{Interval, RUNS_MIN, centre, extended_option},
    },
    summary::Summary,
    versus::{Presupposed, name_presupposed},
};

/// A contender's figure after against before.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Contender.
    pub contender: String,
    /// Key of the figure.
    pub figure: &'static str,
    /// Base unit of medians and differences.
    pub unit: &'static str,
    /// Median before over the runs of all points; `None` where it is unknown.
    #[serde(serialize_with = "extended_option")]
    pub before: Option<f64>,
    /// Median after.
    #[serde(serialize_with = "extended_option")]
    pub after: Option<f64>,
    /// After against before.
    #[serde(flatten)]
    pub result: Comparison,
    /// The figure that this one presupposes, where that has changed too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presupposes: Option<Presupposed>,
    /// Pairs, or points when there are many, that are worse by more than the tolerance, and all of them. `None` without a seed
    /// in common.
    pub beyond: Option<(usize, usize)>,
    /// Every run has the same value before and after.
    pub identical: bool,
    /// Of several points each: where it is, the runs that are worse by more than the tolerance, and all of them.
    #[serde(skip)]
    points: Vec<(String, usize, usize)>,
    /// The whole interval lies beyond the tolerance.
    #[serde(skip)]
    wholly: bool,
    /// Neither more nor less is better: chance has two ways.
    #[serde(skip)]
    two_sided: bool,
}

impl Change {
    /// The figure.
    pub fn figure(&self) -> Option<Figure> {
        Figure::from_key(self.figure)
    }

    /// Place where it is worse by more than the tolerance, if it is, with at most the probability `tail` of a false result by chance if
    /// there are enough runs; otherwise all of them have to agree. The second value is the probability.
    ///
    /// A single point of several counts only where its runs are enough.
    pub fn certain(&self, tail: f64) -> (Option<String>, f64) {
        let Some((beyond, all)) = self.beyond else {
            // Without seeds in common there is the interval, of 2.5 % on either side.
            let worse = self.result.pairs >= RUNS_MIN && self.wholly;
            return (worse.then(String::new), 0.025);
        };
        let ways = if self.two_sided { 2.0 } else { 1.0 };
        let parts = if self.points.is_empty() { 1.0 } else { 2.0 };
        let (mut place, mut chance) = (None, 0.0);
        if let Some((needed, by_chance)) = agreement(all, tail / ways / parts) {
            chance += by_chance * ways;
            place = (beyond >= needed).then(|| format!(" in {beyond} of {all} runs"));
        }
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        let share = tail / ways / parts / self.points.len().max(1) as f64;
        for (at, beyond, all) in &self.points {
            let Some((needed, by_chance)) = agreement(*all, share).filter(|(_, chance)| *chance <= share) else {
                continue;
            };
            chance += by_chance * ways;
            if *beyond >= needed && place.is_none() {
                place = Some(format!(" at {at}, in {beyond} of {all} runs"));
            }
        }
        (place, chance)
    }
}

/// A figure of a contender that runs had before and do not have after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Contender.
    pub contender: String,
    /// Key of the figure.
    pub figure: &'static str,
    /// Runs with a value, among those that both sides have.
    pub before: usize,
    /// Of these, runs that do not have it after.
    pub gone: usize,
}

/// Changes between two files.
#[derive(Clone, Debug, Serialize)]
pub struct Changes {
    /// Every contender that both have, in every figure that both have.
    pub changes: Vec<Change>,
    /// Figures that are gone, wholly or in some runs.
    pub lost: Vec<Lost>,
}

/// Every contender that both have, in every figure of the scenario. `rule` is the method of comparison of a figure.
///
/// # Errors
/// When the two are not of the same scenario; the reason in words.
pub fn changes(before: &Summary, after: &Summary, rule: &dyn Fn(Figure) -> Rule) -> Result<Changes, String> {
    if before.manifest.digest != after.manifest.digest || before.points != after.points {
        return Err(format!(
            "these are two scenarios: `{}` ({}) and `{}` ({})",
            before.manifest.scenario.name, before.manifest.digest, after.manifest.scenario.name, after.manifest.digest
        ));
    }
    let mut found = Changes { changes: Vec::new(), lost: Vec::new() };
    for (index, name) in after.contenders.iter().enumerate() {
        let Some(other) = before.contenders.iter().position(|other| other == name) else { continue };
        let both = Both { before, after, old: other, new: index };
        let mut own: Vec<Change> = Vec::new();
        for figure in after.manifest.scenario.figures() {
            own.extend(both.change(figure, &rule(figure)));
            found.lost.extend(both.lost(figure));
        }
        let results: Vec<(Figure, Comparison)> =
            own.iter().filter_map(|change| Some((change.figure()?, change.result))).collect();
        for (change, (.., presupposes)) in own.iter_mut().zip(name_presupposed(&results)) {
            change.presupposes = presupposes;
        }
        found.changes.append(&mut own);
    }
    if found.changes.is_empty() {
        return Err("they have no contender with a figure in common".to_owned());
    }
    Ok(found)
}

/// A contender in two files.
struct Both<'a> {
    before: &'a Summary,
    after: &'a Summary,
    old: usize,
    new: usize,
}

impl Both<'_> {
    /// The pairs (after, before) of each point. The same seed gives the same path; seeds on only one side are left out.
    fn pairs(&self, figure: Figure) -> Vec<Vec<Pair>> {
        let pair = |point: usize, index: usize| {
            let other = self.before.seeds.iter().position(|seed| *seed == self.after.seeds[index])?;
            let count = self.after.counts(point, self.new, index) && self.before.counts(point, self.old, other);
            let own = self.after.value(point, self.new, index, figure);
            count.then(|| (own, self.before.value(point, self.old, other, figure)))
        };
        let of = |point| (0..self.after.seeds.len()).filter_map(|index| pair(point, index)).collect();
        (0..self.after.points.len()).map(of).collect()
    }

    fn values(summary: &Summary, contender: usize, figure: Figure) -> Vec<Option<f64>> {
        (0..summary.points.len()).flat_map(|point| summary.values(point, contender, figure)).collect()
    }

    fn change(&self, figure: Figure, rule: &Rule) -> Option<Change> {
        let pairs = self.pairs(figure);
        let (own, other) = (Self::values(self.after, self.new, figure), Self::values(self.before, self.old, figure));
        let paired = pairs.iter().any(|pairs| !pairs.is_empty());
        let (mut result, beyond) = if paired {
            (compare_over_points(&pairs, rule)?, Some(beyond_over_points(&pairs, rule)))
        } else {
            // No seed in common: two sets of runs.
            let known = |values: &[Option<f64>]| values.iter().copied().flatten().collect::<Vec<f64>>();
            (compare_unpaired(&known(&own), &known(&other), rule)?, None)
        };
        let identical = paired && pairs.iter().flatten().all(|(own, other)| own == other);
        if identical {
            // Nothing has changed at all: however few the runs, more of them would say the same.
            let same = |value| Interval { value, low: value, high: value, coverage: 1.0 };
            result.difference = same(0.0);
            result.ratio = result.ratio.map(|_| same(1.0));
            (result.verdict, result.pairs_needed) = (Verdict::Equivalent, None);
        }
        let middle = |values: &[Option<f64>]| centre(values).map(|(median, _)| median);
        let place = |point: usize| {
            let levels = self.after.points[point].iter().map(|(name, level)| format!("{name} {level}"));
            levels.collect::<Vec<_>>().join(", ")
        };
        let several = pairs.len() > 1;
        let at = |(point, pairs): (usize, &Vec<Pair>)| (place(point), rule.beyond(pairs), pairs.len());
        let points = pairs.iter().enumerate().filter(|_| several).map(at).collect();
        Some(Change {
            contender: self.after.contenders[self.new].clone(),
            figure: figure.key(),
            unit: figure.unit().base(),
            before: middle(&other),
            after: middle(&own),
            result,
            presupposes: None,
            beyond,
            identical,
            points,
            wholly: rule.is_wholly_beyond(&result),
            two_sided: rule.better.is_none(),
        })
    }

    /// Runs that had a figure and no longer have it; of files without a seed in common, when none has it.
    fn lost(&self, figure: Figure) -> Option<Lost> {
        let mut pairs = self.pairs(figure).concat();
        if pairs.is_empty() {
            let before = Self::values(self.before, self.old, figure);
            let own = Self::values(self.after, self.new, figure).into_iter().find_map(|value| value);
            pairs = before.into_iter().map(|before| (own, before)).collect();
        }
        let had: Vec<&Pair> = pairs.iter().filter(|(_, before)| before.is_some()).collect();
        let gone = had.iter().filter(|(after, _)| after.is_none()).count();
        let contender = self.after.contenders[self.new].clone();
        (gone > 0).then(|| Lost { contender, figure: figure.key(), before: had.len(), gone })
    }
}
