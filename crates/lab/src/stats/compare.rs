//! Comparison of two contenders, paired by seed, because both met the same path.
//!
//! The estimate is the median of the pairs, the interval is by ranks (see [`super::interval`]). A difference excludes 0 exactly when the
//! ratio of the same pairs excludes 1, so the two never disagree. A pair with a zero, with a value that never occurred or with an unknown
//! value is included like any other.

use serde::Serialize;

use super::{
    distribution::{normal_quantile, to_f64},
    interval::{
        CONFIDENCE, Interval, RUNS_MIN, median_interval, median_interval_with_unknown, median_ranks, shift_ranks,
    },
    quantile::median,
};

/// Ratios closer to 1 than this make no difference in practice: 3 %.
pub const MARGIN: f64 = 0.03;

/// Direction in which a figure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better: goodput, fairness.
    Higher,
    /// Less is better: delay, loss.
    Lower,
}

/// Scale on which two values of a figure are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// By their ratio: the size of the values is that of the path.
    Ratio,
    /// By their difference: a share, an index or a value that may be below zero.
    Difference,
    /// By ratio and difference: shares of which both may be asked.
    Both,
}

/// Differences that do not matter: what lies within either part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// As a share of the smaller value. Has no meaning for [`Scale::Difference`].
    pub relative: f64,
    /// In the base unit.
    pub absolute: f64,
}

/// Rule for comparing values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Direction of improvement; `None` when neither is better.
    pub better: Option<Better>,
    /// By ratio or by difference.
    pub scale: Scale,
    /// Tolerance: differences that do not matter.
    pub tolerance: Tolerance,
}

/// Verdict of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Better, and by an amount that the interval separates from none.
    Better,
    /// Worse, likewise.
    Worse,
    /// The whole interval lies within the tolerance: no difference that matters.
    Equivalent,
    /// The runs do not decide.
    Undecided,
    /// Different, in a figure of which neither more nor less is better.
    Different,
}

impl Verdict {
    /// Number of verdicts there that are.
    pub const COUNT: usize = 5;
}

/// Values of a contender and a baseline in one run each. A value may be infinite (it never occurred); `None` is unknown.
pub type Pair = (Option<f64>, Option<f64>);

/// The result of comparing a contender with a baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Contender minus baseline, the median of the pairs, with its interval; without bounds below [`RUNS_MIN`] pairs.
    pub difference: Interval,
    /// Contender over baseline, likewise. `None` where a ratio has no meaning: by the figure's scale, or against zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Interval>,
    /// Number of pairs.
    pub pairs: usize,
    /// Pairs with an unknown value: the interval holds for any value of it.
    #[serde(skip_serializing_if = "is_zero")]
    pub unknown: usize,
    /// Verdict that follows.
    pub verdict: Verdict,
    /// About how many pairs would decide with 80 % probability, if the pairs to come are like these.
    /// Given when the verdict is [`Verdict::Undecided`].
    pub pairs_needed: Option<usize>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Rule {
    /// Returns whether a value is worse than another by more than the tolerance. Of a figure without better and worse: in either
    /// direction, which `way` names.
    fn is_beyond(&self, own: f64, other: f64, way: Better) -> bool {
        let (more, less) = match way {
            Better::Lower => (own, other),
            Better::Higher => (other, own),
        };
        let relative = self.scale == Scale::Difference || more > less * (1.0 + self.tolerance.relative);
        relative && difference(more, less) > self.tolerance.absolute
    }

    /// Returns whether the whole interval lies on the bad side, beyond the tolerance.
    pub fn is_wholly_beyond(&self, result: &Comparison) -> bool {
        let (difference, relative) = (result.difference, 1.0 + self.tolerance.relative);
        let beyond = |way: Better| {
            let (least, ratio) = match way {
                Better::Lower => (difference.low, result.ratio.is_none_or(|ratio| ratio.low > relative)),
                Better::Higher => (-difference.high, result.ratio.is_none_or(|ratio| ratio.high * relative < 1.0)),
            };
            ratio && least > self.tolerance.absolute
        };
        match self.better {
            Some(way) => beyond(way),
            None => beyond(Better::Lower) || beyond(Better::Higher),
        }
    }

    /// Pairs in which the contender is worse by more than the tolerance. An unknown value is not counted.
    pub fn beyond(&self, pairs: &[Pair]) -> usize {
        let count = |way| {
            let known = pairs.iter().filter_map(|(own, other)| Some(((*own)?, (*other)?)));
            known.filter(|(own, other)| self.is_beyond(*own, *other, way)).count()
        };
        match self.better {
            Some(way) => count(way),
            None => count(Better::Lower).max(count(Better::Higher)),
        }
    }
}

/// The difference of two values; 0 for two missing ones.
#[expect(clippy::float_cmp, reason = "equal values, infinite ones among them, differ by nothing")]
fn difference(own: f64, other: f64) -> f64 {
    if own == other { 0.0 } else { own - other }
}

/// The logarithm of the ratio of two values that are not below zero.
#[expect(clippy::float_cmp, reason = "equal values, zero and infinity among them, have the ratio 1")]
fn log_ratio(own: f64, other: f64) -> f64 {
    if own == other { 0.0 } else { own.ln() - other.ln() }
}

/// Points, or pairs where there are few points, of which the contender is worse by more than the tolerance, and all of them.
pub fn beyond_over_points(points: &[Vec<Pair>], rule: &Rule) -> (usize, usize) {
    let known: Vec<&Vec<Pair>> = points.iter().filter(|pairs| middle(pairs, difference).is_some()).collect();
    if known.len() < RUNS_MIN {
        let pairs = points.concat();
        return (rule.beyond(&pairs), pairs.len());
    }
    (known.iter().filter(|pairs| 2 * rule.beyond(pairs) > pairs.len()).count(), known.len())
}

/// Number of `count` pairs that have to agree so that chance alone makes them agree with at most the probability `tail`, and that
/// probability. When no number of them is enough, all have to agree. `None` below [`RUNS_MIN`].
pub fn agreement(count: usize, tail: f64) -> Option<(usize, f64)> {
    if count < RUNS_MIN {
        return None;
    }
    let all = || (1, 1.0 - 2.0 * 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX)));
    let (rank, coverage) = median_ranks(count, 1.0 - 2.0 * tail).unwrap_or_else(all);
    Some((count - rank + 1, (1.0 - coverage) / 2.0))
}

/// Compares pair by pair: `pairs` holds (contender, baseline) of one seed each.
///
/// `None` when no pair has both values. With fewer than [`RUNS_MIN`] pairs the verdict is always undecided.
pub fn compare(pairs: &[Pair], rule: &Rule) -> Option<Comparison> {
    let of = |measure: fn(f64, f64) -> f64| -> Vec<Option<f64>> {
        pairs.iter().map(|(own, other)| Some(measure((*own)?, (*other)?))).collect()
    };
    let known: Vec<f64> = of(difference).into_iter().flatten().collect();
    if known.is_empty() {
        return None;
    }
    let interval = |measure: fn(f64, f64) -> f64| {
        let few = || Interval::unbounded(middle(pairs, measure).unwrap_or(0.0));
        median_interval_with_unknown(&of(measure), CONFIDENCE).unwrap_or_else(few)
    };
    let values = pairs.iter().flat_map(|(own, other)| [own, other]).copied().flatten();
    let log = rule.takes_ratios(values).then(|| interval(log_ratio));
    let needed = pairs_needed(&known, |upwards| {
        let within = |(own, other): &Pair| {
            let (own, other) = ((*own)?, (*other)?);
            Some(!rule.is_beyond(own, other, if upwards { Better::Lower } else { Better::Higher }))
        };
        pairs.iter().filter_map(within).filter(|within| *within).count()
    });
    Some(rule.conclude(interval(difference), log, (pairs.len(), pairs.len() - known.len()), needed))
}

/// Compares over the points of a matrix, of which each has its pairs.
///
/// From [`RUNS_MIN`] points on the interval is over the medians of the points, because the result has to hold for points; with fewer it is
/// over all their pairs.
pub fn compare_over_points(points: &[Vec<Pair>], rule: &Rule) -> Option<Comparison> {
    let known = points.iter().filter(|pairs| middle(pairs, difference).is_some()).count();
    if known < RUNS_MIN {
        return compare(&points.concat(), rule);
    }
    let over = |measure: fn(f64, f64) -> f64| -> Option<Interval> {
        let values: Vec<f64> = points.iter().filter_map(|pairs| middle(pairs, measure)).collect();
        median_interval(&values, CONFIDENCE)
    };
    let values = points.iter().flatten().flat_map(|(own, other)| [own, other]).copied().flatten();
    let log = if rule.takes_ratios(values) { over(log_ratio) } else { None };
    Some(rule.conclude(over(difference)?, log, (known, 0), None))
}

/// The median of what is measured of each pair that is known.
fn middle(pairs: &[Pair], measure: fn(f64, f64) -> f64) -> Option<f64> {
    let known = pairs.iter().filter_map(|(own, other)| Some(measure((*own)?, (*other)?)));
    let mut ascending: Vec<f64> = known.collect();
    ascending.sort_by(f64::total_cmp);
    median(&ascending)
}

/// Compares two independent sets of runs: `contender` and `baseline` hold a value per run.
///
/// `None` when either has no value. The interval is that of the shift between two distributions of one shape.
pub fn compare_unpaired(contender: &[f64], baseline: &[f64], rule: &Rule) -> Option<Comparison> {
    if contender.is_empty() || baseline.is_empty() {
        return None;
    }
    let all = |measure: fn(f64, f64) -> f64| -> Vec<f64> {
        let mut all: Vec<f64> =
            contender.iter().flat_map(|own| baseline.iter().map(move |other| measure(*own, *other))).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let runs = contender.len().min(baseline.len());
    let interval = |ascending: Vec<f64>| {
        let value = median(&ascending).unwrap_or(0.0);
        match shift_ranks(contender.len(), baseline.len(), CONFIDENCE).filter(|_| runs >= RUNS_MIN) {
            Some((rank, coverage)) => {
                Interval { value, low: ascending[rank - 1], high: ascending[ascending.len() - rank], coverage }
            }
            None => Interval::unbounded(value),
        }
    };
    let ratios = rule.takes_ratios(contender.iter().chain(baseline).copied());
    // One run of each after the other, as good as pairs for a guess.
    let paired: Vec<f64> = contender.iter().zip(baseline).map(|(own, other)| difference(*own, *other)).collect();
    let needed = pairs_needed(&paired, |_| 0);
    let log = ratios.then(|| interval(all(log_ratio)));
    Some(rule.conclude(interval(all(difference)), log, (runs, 0), needed))
}

impl Rule {
    /// Returns whether ratios of these values are meaningful.
    fn takes_ratios(&self, mut values: impl Iterator<Item = f64>) -> bool {
        self.scale != Scale::Difference && values.all(|value| value >= 0.0)
    }

    /// Returns the result of intervals: difference and logarithm of the ratio, pairs and those of them that are unknown, and how many would
    /// decide.
    pub(super) fn conclude(
        &self,
        difference: Interval,
        log: Option<Interval>,
        (pairs, unknown): (usize, usize),
        needed: Option<usize>,
    ) -> Comparison {
        let verdict = if pairs < RUNS_MIN { Verdict::Undecided } else { self.verdict(&difference, log.as_ref()) };
        Comparison {
            difference,
            // Against a baseline that is mostly zero, or that never came, there is no ratio.
            ratio: log
                .filter(|log| log.value < f64::INFINITY && difference.value.is_finite())
                .map(|log| log.map(f64::exp)),
            pairs,
            unknown,
            verdict,
            pairs_needed: needed.filter(|_| verdict == Verdict::Undecided),
        }
    }

    /// The verdict of intervals. An effect that is certain but within the tolerance is no difference that matters, so
    /// equivalence is asked first.
    fn verdict(&self, difference: &Interval, log: Option<&Interval>) -> Verdict {
        let within = |interval: &Interval, margin: f64| interval.low >= -margin && interval.high <= margin;
        if within(difference, self.tolerance.absolute)
            || log.is_some_and(|log| within(log, self.tolerance.relative.ln_1p()))
        {
            return Verdict::Equivalent;
        }
        // Points of a matrix may have ratios alone.
        let (more, less) = match log {
            Some(log) => (difference.low > 0.0 || log.low > 0.0, difference.high < 0.0 || log.high < 0.0),
            None => (difference.low > 0.0, difference.high < 0.0),
        };
        match (self.better, more, less) {
            (Some(Better::Higher), true, _) | (Some(Better::Lower), _, true) => Verdict::Better,
            (Some(Better::Higher), _, true) | (Some(Better::Lower), true, _) => Verdict::Worse,
            (None, true, _) | (None, _, true) => Verdict::Different,
            _ => Verdict::Undecided,
        }
    }
}

/// Pairs that would decide with 80 % probability (Noether, 1987): enough to separate the direction that most pairs show from
/// none, or to show that most pairs lie within the tolerance, whichever comes first. `within` counts the pairs that do not
/// exceed it upwards or downwards.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded before the cast")]
fn pairs_needed(differences: &[f64], within: impl Fn(bool) -> usize) -> Option<usize> {
    let count = differences.len();
    let share = |part: f64| part / to_f64(count.max(1));
    let above = differences.iter().filter(|x| **x > 0.0).count();
    let ties = differences.iter().filter(|x| **x == 0.0).count();
    let one_way = share(to_f64(above) + to_f64(ties) / 2.0);
    let level = share(to_f64(within(true).min(within(false))));
    let lean = (one_way.max(1.0 - one_way) - 0.5).max(level - 0.5);
    let quantiles = normal_quantile(0.975) + normal_quantile(0.8);
    let needed = quantiles * quantiles / (4.0 * lean * lean);
    // The formula may say fewer than there are (they did not decide): at least one more.
    (lean > 0.0).then(|| (needed.ceil().min(1e6) as usize).max(RUNS_MIN).max(count + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::coverage::{Draws, Law};

    const MORE: Rule = rule(Some(Better::Higher), Scale::Ratio);
    const LESS: Rule = rule(Some(Better::Lower), Scale::Ratio);
    const SHARE: Rule = rule(Some(Better::Lower), Scale::Both);

    const fn rule(better: Option<Better>, scale: Scale) -> Rule {
        Rule { better, scale, tolerance: Tolerance { relative: MARGIN, absolute: 0.001 } }
    }

    fn normal(draws: &mut Draws) -> f64 {
        Law::Normal.runs(1, draws)[0] - 10.0
    }

    /// Pairs that share a path (spread 0.2) and differ by `effect` and independent noise.
    fn pairs(draws: &mut Draws, n: usize, effect: f64, noise: f64) -> Vec<Pair> {
        (0..n)
            .map(|_| {
                let path = 5.0 * (0.2 * normal(draws)).exp();
                (Some(path * (effect + noise * normal(draws)).exp()), Some(path))
            })
            .collect()
    }

    fn known(pairs: &[(f64, f64)]) -> Vec<Pair> {
        pairs.iter().map(|(own, other)| (Some(*own), Some(*other))).collect()
    }

    #[test]
    fn a_against_a_finds_nothing() {
        let mut draws = Draws::new(3);
        let (mut covered, mut called) = (0, 0);
        for _ in 0..400 {
            let result = compare(&pairs(&mut draws, 10, 0.0, 0.1), &MORE).unwrap();
            covered += u32::from(result.ratio.unwrap().covers(1.0));
            called += u32::from(matches!(result.verdict, Verdict::Better | Verdict::Worse));
        }
        assert!(covered >= 376, "the interval covers 1 in {covered} of 400: 94 % are asked");
        assert!(called <= 24, "{called} of 400 A/A comparisons claim a difference");
    }

    #[test]
    fn unpaired_sets_that_are_alike_are_rarely_told_apart() {
        let mut draws = Draws::new(5);
        let mut covered = 0;
        for _ in 0..400 {
            let mut set = || (0..30).map(|_| (0.2 * normal(&mut draws)).exp()).collect::<Vec<f64>>();
            let (one, other) = (set(), set());
            covered += u32::from(compare_unpaired(&one, &other, &MORE).unwrap().ratio.unwrap().covers(1.0));
        }
        assert!((368..=394).contains(&covered), "{covered} of 400");
        let twice: Vec<f64> = (1..=10).map(|x| f64::from(x) * 2.0).collect();
        let once: Vec<f64> = (1..=10).map(|x| f64::from(x) / 100.0 + 1.0).collect();
        assert_eq!(compare_unpaired(&twice, &once, &LESS).unwrap().verdict, Verdict::Worse);
        assert_eq!(compare_unpaired(&[1.0], &[], &LESS), None);
        // Zeros take part: here every run of one loses something, and none of the other.
        let result = compare_unpaired(&[0.02; 8], &[0.0; 8], &SHARE).unwrap();
        assert_eq!((result.verdict, result.ratio, result.difference.value), (Verdict::Worse, None, 0.02));
    }

    #[test]
    fn verdicts() {
        let mut draws = Draws::new(4);
        let mut say = |n, effect, noise, rule: &Rule| compare(&pairs(&mut draws, n, effect, noise), rule).unwrap();
        assert_eq!(say(10, 0.3, 0.05, &MORE).verdict, Verdict::Better);
        assert_eq!(say(10, 0.3, 0.05, &LESS).verdict, Verdict::Worse);
        assert_eq!(say(10, -0.3, 0.05, &LESS).verdict, Verdict::Better);
        assert_eq!(say(10, -0.3, 0.05, &MORE).verdict, Verdict::Worse);
        assert_eq!(say(10, -0.3, 0.05, &rule(None, Scale::Ratio)).verdict, Verdict::Different);
        assert_eq!(say(20, 0.0, 0.01, &MORE).verdict, Verdict::Equivalent);
        let undecided = say(8, 0.05, 0.3, &MORE);
        assert_eq!(undecided.verdict, Verdict::Undecided);
        assert!(undecided.pairs_needed.unwrap() > 8);
        let few = say(3, 1.0, 0.01, &MORE);
        assert_eq!((few.verdict, few.difference.low), (Verdict::Undecided, f64::NEG_INFINITY));
        assert!(few.pairs_needed.unwrap() >= RUNS_MIN);
    }

    #[test]
    fn zeros_take_part() {
        // Repair is switched off: nothing was missing, and 2 % are.
        let lost: Vec<Pair> = (0..8).map(|n| (Some(0.019 + 0.0002 * f64::from(n)), Some(0.0))).collect();
        let result = compare(&lost, &SHARE).unwrap();
        assert_eq!((result.verdict, result.ratio), (Verdict::Worse, None));
        assert!(result.difference.low >= 0.019 && result.difference.high <= 0.0205, "{result:?}");
        // A run that delivers nothing at all is worse by everything.
        let stopped = known(&[(0.0, 5.0), (0.0, 6.0), (0.0, 7.0), (0.0, 5.0), (0.0, 6.0), (0.0, 7.0)]);
        let result = compare(&stopped, &MORE).unwrap();
        assert_eq!((result.verdict, result.ratio.unwrap().value), (Verdict::Worse, 0.0));
        // Zero on both sides is no difference.
        assert_eq!(compare(&known(&[(0.0, 0.0); 6]), &SHARE).unwrap().verdict, Verdict::Equivalent);
        // Dropping the zeros would leave two pairs, and both are worse.
        let mixed = known(&[(0.0, 0.02), (0.0, 0.03), (0.0, 0.02), (0.0, 0.04), (0.09, 0.02), (0.09, 0.03)]);
        assert_eq!(compare(&mixed, &SHARE).unwrap().verdict, Verdict::Undecided);
    }

    #[test]
    fn what_never_came_is_longer_than_anything() {
        let never = f64::INFINITY;
        let result = compare(&known(&[(never, 0.05); 6]), &LESS).unwrap();
        assert_eq!((result.verdict, result.ratio, result.difference.value), (Verdict::Worse, None, never));
        let came = compare(&known(&[(0.05, never); 6]), &LESS).unwrap();
        assert_eq!((came.verdict, came.ratio, came.difference.value), (Verdict::Better, None, -never));
        assert_eq!(compare(&known(&[(never, never); 6]), &LESS).unwrap().verdict, Verdict::Equivalent);
    }

    #[test]
    fn an_unknown_value_may_be_any() {
        let mut some = known(&[(2.0, 1.0); 10]);
        some[3].0 = None;
        let result = compare(&some, &LESS).unwrap();
        assert_eq!((result.verdict, result.unknown, result.pairs), (Verdict::Worse, 1, 10));
        some[4].1 = None;
        assert_eq!(compare(&some, &LESS).unwrap().verdict, Verdict::Undecided, "two of ten may turn it round");
        assert_eq!(compare(&[(None, Some(1.0))], &LESS), None);
    }

    #[test]
    fn what_lies_beyond_the_tolerance() {
        let pairs = known(&[(1.02, 1.0), (1.04, 1.0), (0.0, 0.0), (0.0005, 0.0), (f64::INFINITY, 1.0)]);
        assert_eq!((LESS.beyond(&pairs), MORE.beyond(&pairs)), (2, 0));
        assert_eq!(rule(None, Scale::Difference).beyond(&known(&[(0.5, 0.4), (0.3, 0.4), (0.2, 0.4)])), 2);
        let wholly = |pairs: &[(f64, f64)], rule: &Rule| rule.is_wholly_beyond(&compare(&known(pairs), rule).unwrap());
        assert!(wholly(&[(1.04, 1.0); 6], &LESS) && !wholly(&[(1.02, 1.0); 6], &LESS));
        assert!(!wholly(&[(1.04, 1.0); 6], &MORE) && wholly(&[(1.0, 1.04); 6], &MORE));
        assert_eq!(agreement(5, 0.025), None);
        assert_eq!(agreement(10, 0.025).unwrap().0, 9);
        let (all, chance) = agreement(6, 1e-6).unwrap();
        assert!(all == 6 && (chance - 1.0 / 64.0).abs() < 1e-12);
    }

    #[test]
    fn the_predicted_number_decides() {
        let mut draws = Draws::new(5);
        // Effect 0.1, spread 0.15: three quarters of the pairs lie above, so about 31 decide in 80 %.
        let above = known(&[(2.0, 1.0), (2.0, 1.0), (2.0, 1.0), (1.0, 2.0)]);
        assert_eq!(compare(&above, &MORE).unwrap().pairs_needed, Some(32));
        let decided = (0..300)
            .filter(|_| compare(&pairs(&mut draws, 32, 0.1, 0.15), &MORE).unwrap().verdict == Verdict::Better)
            .count();
        assert!((195..=280).contains(&decided), "{decided} of 300");
    }
}
