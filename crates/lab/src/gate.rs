//! Gate for records: against a baseline in every figure of the workload, and against the limits of the scenario.
//!
//! A figure fails if so many runs are worse by more than its tolerance that chance alone causes it in at most one of twenty gates, all
//! comparisons together; with too few seeds for that, if all runs are worse. A figure that is missing after it was measured before fails
//! too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    breach::breaches,
    compare::{Change, Changes, Lost, changes},
    figure::{Figure, Unit},
    scenario::{nearest, quantity},
    stats::{
        compare::{Rule, Scale, Tolerance},
        interval::{RUNS_MIN, RUNS_RECOMMENDED},
    },
    summary::Summary,
    versus::{effect, plain},
};

/// Schema of the JSON form.
pub const GATE_SCHEMA: &str = "tiderace-lab-gate/1";

/// Gates of a hundred that chance alone may fail, when there are enough seeds.
const CHANCE: f64 = 0.05;

/// Tolerances of figures, in place of the declared ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tolerances {
    /// By figure's key, or `all` for the share of all figures: `"5 %"` is a share of the value before, `"10 ms"`, `"0.5 points"`
    /// or `"0.02"` an amount.
    pub by_figure: BTreeMap<String, String>,
}

/// Name that gives all figures a tolerance.
const ALL: &str = "all";

impl Tolerances {
    /// Takes one more.
    ///
    /// # Errors
    /// When there is no such figure, or the value cannot be read; the reason in words.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let scale = match Figure::from_key(name) {
            Some(figure) => figure.declaration().scale,
            None if name == ALL => Scale::Ratio,
            None => {
                let meant = nearest(name, Figure::all().map(Figure::key));
                let hint = meant.map_or_else(String::new, |meant| format!(": did you mean `{meant}`?"));
                return Err(format!("there is no figure `{name}`{hint}"));
            }
        };
        let parsed = parse(name, value);
        let fits = match parsed {
            Some(Amount::Relative(_)) => scale != Scale::Difference,
            Some(Amount::Absolute(_)) => name != ALL,
            None => false,
        };
        if !fits {
            let figure = Figure::from_key(name);
            let example = match (figure.map(Figure::unit), scale) {
                (None, _) => "`5 %`",
                (Some(Unit::Share), Scale::Difference) => "`0.5 points`",
                (Some(Unit::Share), _) => "`5 %` or `0.5 points`",
                (Some(Unit::Seconds), _) => "`5 %` or `10 ms`",
                (Some(Unit::BitsPerSecond), _) => "`5 %` or `1 Mbit/s`",
                (Some(Unit::Bytes), _) => "`5 %` or `10 kB`",
                (Some(Unit::Index | Unit::PerSecond), Scale::Difference) => "`0.02`",
                (Some(Unit::Index | Unit::PerSecond), _) => "`5 %` or `0.02`",
            };
            return Err(format!("the tolerance of {name} cannot be `{value}`: expected for example {example}"));
        }
        self.by_figure.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    /// Reads a TOML file with a line for each: `goodput = "5 %"`.
    ///
    /// # Errors
    /// When it is none, or as of [`Self::set`]; the reason in words.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let stated: Self = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let mut checked = Self::default();
        stated.by_figure.iter().try_for_each(|(name, value)| checked.set(name, value))?;
        Ok(checked)
    }

    /// The rule of a figure with its tolerance.
    pub fn rule(&self, figure: Figure) -> Rule {
        let mut rule = figure.declaration().rule();
        for name in [ALL, figure.key()] {
            match self.by_figure.get(name).and_then(|value| parse(name, value)) {
                Some(Amount::Relative(share)) if rule.scale != Scale::Difference => rule.tolerance.relative = share,
                Some(Amount::Absolute(amount)) => rule.tolerance.absolute = amount,
                _ => {}
            }
        }
        rule
    }
}

#[derive(Clone, Copy)]
enum Amount {
    Relative(f64),
    Absolute(f64),
}

fn parse(name: &str, text: &str) -> Option<Amount> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|value| (0.0..1e12).contains(value));
    if let Some(share) = text.trim().strip_suffix('%') {
        return Some(Amount::Relative(number(share)? / 100.0));
    }
    let figure = Figure::from_key(name)?;
    if figure.unit() == Unit::Share {
        return Some(Amount::Absolute(number(text.trim().strip_suffix("points")?)? / 100.0));
    }
    quantity(figure.unit(), text).filter(|value| *value >= 0.0).map(Amount::Absolute)
}

/// A tolerance in words: `3 % or 0.1 points`.
pub fn tolerance_words(figure: Figure, tolerance: Tolerance) -> String {
    let (unit, scale) = figure.unit().printed();
    let unit = if figure.unit() == Unit::Share { "points" } else { unit };
    let amount = format!("{} {unit}", plain(tolerance.absolute * scale)).trim_end().to_owned();
    let share = format!("{} %", plain(tolerance.relative * 100.0));
    match figure.declaration().scale {
        Scale::Difference => amount,
        _ if tolerance.absolute > 0.0 => format!("{share} or {amount}"),
        _ => share,
    }
}

/// Reason why records do not pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failing {
    /// Of which kind the reason is.
    pub kind: Kind,
    /// Contender, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contender: Option<String>,
    /// Key of the figure, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figure: Option<&'static str>,
    /// The reason in words.
    pub reason: String,
}

/// Kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Runs are not there.
    MissingRuns,
    /// Runs failed.
    FailedRuns,
    /// A limit of the scenario does not hold.
    Limit,
    /// A contender of the baseline is not there.
    MissingContender,
    /// A figure has become worse by more than its tolerance.
    Worse,
    /// A figure of the baseline is not there, or not in every run that had it.
    MissingFigure,
}

/// Result of a gate.
#[derive(Clone, Debug, Serialize)]
pub struct Gate {
    /// [`GATE_SCHEMA`].
    pub schema: &'static str,
    /// Set if nothing fails.
    pub passed: bool,
    /// Reasons why the gate does not pass.
    pub failing: Vec<Failing>,
    /// Every comparison with the baseline.
    pub changes: Vec<Change>,
    /// Figures that are gone.
    pub lost: Vec<Lost>,
    /// Largest probability that chance alone fails this gate; 1 with too few seeds.
    pub chance: f64,
    /// Seeds from which on it is at most 5 %; `None` when there are enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seeds_needed: Option<usize>,
}

/// Judges records. `None` for the baseline judges by the limits of the scenario alone.
///
/// # Errors
/// When the baseline is of another scenario; the reason in words.
pub fn judge(after: &Summary, baseline: Option<&Summary>, tolerances: &Tolerances) -> Result<Gate, String> {
    let mut failing = incomplete(after);
    failing.extend(breaches(after).into_iter().map(|breach| {
        let found = breach
            .value
            .map_or_else(|| "nothing was measured".to_owned(), |value| format!("the median is {value} in base units"));
        Failing {
            kind: Kind::Limit,
            contender: None,
            figure: None,
            reason: format!("{}: {}: {found}", breach.limit, breach.place),
        }
    }));
    let (mut chance, mut seeds_needed) = (0.0, None);
    let found = match baseline {
        Some(before) => {
            let found = changes(before, after, &|figure| tolerances.rule(figure))?;
            let (worse, all, needed) = worse(&found.changes, tolerances);
            (chance, seeds_needed) = (all, needed);
            failing.extend(worse);
            failing.extend(gone(before, after, &found.lost));
            found
        }
        None => Changes { changes: Vec::new(), lost: Vec::new() },
    };
    Ok(Gate {
        schema: GATE_SCHEMA,
        passed: failing.is_empty(),
        failing,
        changes: found.changes,
        lost: found.lost,
        chance,
        seeds_needed,
    })
}

/// Runs that are not there, or failed.
fn incomplete(after: &Summary) -> Vec<Failing> {
    let whole = |kind, reason| Failing { kind, contender: None, figure: None, reason };
    let mut failing = Vec::new();
    if after.stored() < after.runs() {
        let reason = format!("{} of {} runs are missing", after.runs() - after.stored(), after.runs());
        failing.push(whole(Kind::MissingRuns, reason));
    }
    if let Some(first) = after.failures.first() {
        let (count, who, seed) = (after.failures.len(), &first.contender, first.seed);
        let reason = format!("{count} runs failed; the first: {who}, seed {seed}: {}", first.reason);
        failing.push(whole(Kind::FailedRuns, reason));
    }
    failing
}

/// Figures that are worse, the probability that chance alone finds any, and the seeds that would be enough.
fn worse(changes: &[Change], tolerances: &Tolerances) -> (Vec<Failing>, f64, Option<usize>) {
    // What is the same in every run cannot fail by chance.
    let changed: Vec<&Change> = changes.iter().filter(|change| !change.identical).collect();
    #[expect(clippy::cast_precision_loss, reason = "hundreds")]
    let tail = CHANCE / changed.len().max(1) as f64;
    let (mut failing, mut chance) = (Vec::new(), 0.0);
    for change in &changed {
        let (place, by_chance) = change.certain(tail);
        chance += by_chance;
        let Some((figure, place)) = change.figure().zip(place) else { continue };
        let rule = tolerances.rule(figure);
        let how = if rule.better.is_some() { "is worse" } else { "has changed" };
        let told = change.presupposes.map_or_else(String::new, |on| {
            let label = Figure::from_key(on.figure).map_or(on.figure, |figure| figure.label().trim());
            format!(", while {label} is {}", crate::versus::word(on.verdict))
        });
        failing.push(Failing {
            kind: Kind::Worse,
            contender: Some(change.contender.clone()),
            figure: Some(change.figure),
            reason: format!(
                "{}: {} {how} by more than {}{place}: {}{told}",
                change.contender,
                figure.label().trim(),
                tolerance_words(figure, rule.tolerance),
                effect(figure, &change.result)
            ),
        });
    }
    let pairs = changed.iter().map(|change| change.beyond.map_or(change.result.pairs, |(_, all)| all)).min();
    let needed = enough(tail);
    let few = pairs.filter(|pairs| *pairs < needed).map(|_| needed.max(RUNS_RECOMMENDED));
    if pairs.is_some_and(|pairs| pairs < RUNS_MIN) {
        chance = 1.0;
    }
    (failing, chance.min(1.0), few)
}

/// Pairs of which all agree by chance with at most this probability.
fn enough(tail: f64) -> usize {
    (RUNS_MIN..64).find(|count| 0.5_f64.powi(i32::try_from(*count).unwrap_or(64)) <= tail).unwrap_or(64)
}

/// Contenders and figures of the baseline that are not there.
fn gone(before: &Summary, after: &Summary, lost: &[Lost]) -> Vec<Failing> {
    let absent = before.contenders.iter().filter(|name| !after.contenders.contains(name)).map(|name| Failing {
        kind: Kind::MissingContender,
        contender: Some(name.clone()),
        figure: None,
        reason: format!("{name} is in the baseline and not in the records"),
    });
    let figures = lost.iter().map(|lost| {
        let label = Figure::from_key(lost.figure).map_or(lost.figure, |figure| figure.label().trim());
        let (gone, before) = (lost.gone, lost.before);
        let reason = format!("{}: {label} has no value in {gone} of {before} runs that had one", lost.contender);
        Failing {
            kind: Kind::MissingFigure,
            contender: Some(lost.contender.clone()),
            figure: Some(lost.figure),
            reason,
        }
    });
    absent.chain(figures).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerances_are_read_and_mistakes_named() {
        let mut tolerances = Tolerances::default();
        for (name, value) in [
            ("all", "5 %"),
            ("goodput", "10%"),
            ("delay_p95", "10 ms"),
            ("residual_loss", "0.2 points"),
            ("jain", "0.1"),
        ] {
            tolerances.set(name, value).unwrap();
        }
        let of = |figure| tolerances.rule(figure).tolerance;
        let close = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-12, "{value} {expected}");
        close(of(Figure::Goodput).relative, 0.1);
        close(of(Figure::RttP95).relative, 0.05);
        close(of(Figure::DelayP95).absolute, 0.01);
        close(of(Figure::ResidualLoss).absolute, 0.002);
        close(of(Figure::Jain).absolute, 0.1);
        close(of(Figure::Jain).relative, 0.0);
        assert_eq!(tolerance_words(Figure::ResidualLoss, of(Figure::ResidualLoss)), "5 % or 0.2 points");
        for (name, value, message) in [
            ("goodputs", "5 %", "there is no figure `goodputs`: did you mean `goodput`?"),
            ("jain", "5 %", "cannot be `5 %`: expected for example `0.02`"),
            ("rtt_p95", "fast", "expected for example `5 %` or `10 ms`"),
            ("all", "10 ms", "expected for example `5 %`"),
            ("link_loss", "-1 points", "expected for example `5 %` or `0.5 points`"),
        ] {
            let error = Tolerances::default().set(name, value).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn tolerances_stand_in_a_file() {
        let tolerances = Tolerances::from_toml("goodput = \"10 %\"\nrtt_p95 = \"20 ms\"\n").unwrap();
        assert!((tolerances.rule(Figure::RttP95).tolerance.absolute - 0.02).abs() < 1e-12);
        assert!(Tolerances::from_toml("goodput = 10").is_err());
        assert!(Tolerances::from_toml("speed = \"10 %\"").unwrap_err().contains("there is no figure `speed`"));
    }

    #[test]
    fn seeds_that_keep_chance_small() {
        assert_eq!((enough(0.05), enough(0.05 / 75.0)), (6, 11));
    }
}
