//! One value beside its target, and the document that holds them all.

use core::fmt;

use lab::{reference::Finding, stats::quantile::median};
use serde::Serialize;

/// One value beside its target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The case that it belongs to.
    pub(crate) case: &'static str,
    /// Name of the measurement.
    pub(crate) what: String,
    /// The value in `unit`; `None` when it could not be measured.
    pub(crate) value: Option<f64>,
    /// 95 % interval over runs, where there were enough runs for one.
    pub(crate) interval: Option<[f64; 2]>,
    /// Unit of value, interval and target.
    pub(crate) unit: String,
    /// The target, for people.
    pub(crate) target: String,
    /// Result: `true` when the value meets the target.
    pub(crate) passed: bool,
    /// Method, or the reason why there is no value.
    pub(crate) detail: String,
}

impl Row {
    /// A value and where it has to lie.
    pub(crate) fn new(what: impl Into<String>, value: f64, unit: &str, target: Target) -> Self {
        Self {
            case: "",
            what: what.into(),
            value: Some(value),
            interval: None,
            unit: unit.to_owned(),
            passed: target.holds(value),
            target: target.to_string(),
            detail: String::new(),
        }
    }

    /// The median of several runs with its interval.
    pub(crate) fn median(what: impl Into<String>, values: &[f64], unit: &str, target: Target) -> Self {
        let mut ascending = values.to_vec();
        ascending.sort_by(f64::total_cmp);
        let what = what.into();
        let Some(value) = median(&ascending) else {
            return Self::unmeasured(&what, &anyhow::anyhow!("there is no value"));
        };
        let interval = lab::stats::interval::median_interval(values, 0.95);
        Self {
            interval: interval.map(|interval| [interval.low, interval.high]),
            ..Self::new(what, value, unit, target)
        }
    }

    /// Row of a figure that could not be measured: a miss.
    pub(crate) fn unmeasured(what: &str, why: &anyhow::Error) -> Self {
        Self {
            case: "",
            what: what.to_owned(),
            value: None,
            interval: None,
            unit: String::new(),
            target: "measured".to_owned(),
            passed: false,
            detail: format!("not measured: {why:#}"),
        }
    }

    /// Row of a figure that nobody asks for where a program is missing: no miss.
    pub(crate) fn absent(what: &str, why: &anyhow::Error) -> Self {
        Self { target: Target::Printed.to_string(), passed: true, ..Self::unmeasured(what, why) }
    }

    /// Says how it was measured.
    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }
}

impl From<Finding> for Row {
    fn from(finding: Finding) -> Self {
        let target = match (*finding.target.start(), *finding.target.end()) {
            (f64::NEG_INFINITY, f64::INFINITY) => Target::Printed,
            (low, f64::INFINITY) => Target::AtLeast(low),
            (f64::NEG_INFINITY, high) => Target::AtMost(high),
            (low, high) => Target::Between(low, high),
        };
        Self {
            interval: finding.interval.map(|interval| [interval.low, interval.high]),
            ..Self::new(finding.name, finding.value, finding.unit, target).detail(finding.detail)
        }
    }
}

/// Range in which a value has to lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
    Between(f64, f64),
    Exactly(f64),
    /// No target: it has to be measured.
    Printed,
}

impl Target {
    #[expect(clippy::float_cmp, reason = "exact targets are counts")]
    pub(super) fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(high) => value <= high,
            Self::AtLeast(low) => value >= low,
            Self::Between(low, high) => (low..=high).contains(&value),
            Self::Exactly(exact) => value == exact,
            Self::Printed => value.is_finite(),
        }
    }
}

impl From<f64> for Target {
    /// At most this.
    fn from(most: f64) -> Self {
        Self::AtMost(most)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(high) => write!(f, "≤ {}", number(*high)),
            Self::AtLeast(low) => write!(f, "≥ {}", number(*low)),
            Self::Between(low, high) => write!(f, "{} to {}", number(*low), number(*high)),
            Self::Exactly(exact) => write!(f, "= {}", number(*exact)),
            Self::Printed => f.write_str("printed"),
        }
    }
}

/// A number with up to three decimals, and none that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.passed { "pass" } else { "MISS" };
        let mut value = self.value.map_or_else(|| "–".to_owned(), number);
        if let Some([low, high]) = self.interval {
            value = format!("{value} [{}, {}]", number(low), number(high));
        }
        if !self.unit.is_empty() {
            value = format!("{value} {}", self.unit);
        }
        writeln!(f, "{mark}  {:<9}  {:<44}  {value:<28}  {}", self.case, self.what, self.target)?;
        for line in self.detail.lines() {
            writeln!(f, "                 {line}")?;
        }
        Ok(())
    }
}

/// Measured rows, as one document.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    schema: &'static str,
    part: &'static str,
    long: bool,
    passed: usize,
    missed: usize,
    pub(crate) rows: Vec<Row>,
}

impl Document {
    pub(crate) fn new(part: &'static str, long: bool) -> Self {
        Self { schema: "tiderace-shows/1", part, long, passed: 0, missed: 0, rows: Vec::new() }
    }

    /// Counts; whether everything passed.
    pub(crate) fn finish(&mut self) -> bool {
        self.passed = self.rows.iter().filter(|row| row.passed).count();
        self.missed = self.rows.len() - self.passed;
        self.missed == 0
    }

    /// The last line of the table.
    pub(crate) fn summary(&self) -> String {
        let missed: Vec<&str> = self.rows.iter().filter(|row| !row.passed).map(|row| row.what.as_str()).collect();
        match missed.len() {
            0 => format!("{} values, all pass.", self.rows.len()),
            count => format!("{} values, {count} MISSED: {}.", self.rows.len(), missed.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_beyond_its_target_is_a_miss_and_shows() {
        let good = Row::new("ratio", 0.7, "x", Target::AtMost(0.7));
        let bad = Row { case: "cpu", ..Row::new("ratio", 0.7001, "x", Target::AtMost(0.7)).detail("7 rounds") };
        assert!(good.passed && !bad.passed);
        let text = bad.to_string();
        assert!(text.starts_with("MISS  cpu") && text.contains("≤ 0.7\n") && text.contains("7 rounds"), "{text}");
        let mut document = Document::new("transport", false);
        document.rows = vec![good, bad];
        assert!(!document.finish());
        assert_eq!(document.summary(), "2 values, 1 MISSED: ratio.");
    }

    #[test]
    fn nothing_and_not_a_number_are_misses() {
        assert!(!Row::median("x", &[], "", Target::AtLeast(0.0)).passed);
        assert!(!Row::new("x", f64::NAN, "", Target::AtLeast(0.0)).passed);
        assert!(!Row::new("x", f64::NAN, "", Target::Printed).passed);
        assert!(!Row::unmeasured("x", &anyhow::anyhow!("no network")).passed);
    }

    #[test]
    fn intervals_need_enough_runs() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(Row::median("x", &values, "", Target::AtMost(9.0)).interval, Some([1.0, 6.0]));
        assert_eq!(Row::median("x", &values[..5], "", Target::AtMost(9.0)).interval, None);
    }
}
