//! Comparisons of a check: value, expected value and tolerance.

use core::fmt::Display;

use super::Check;

/// A check in the making: one comparison after another. It passes when all of them hold.
#[derive(Debug)]
pub(super) struct Card {
    name: &'static str,
    failed: Vec<String>,
    held: Vec<String>,
}

impl Card {
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, failed: Vec::new(), held: Vec::new() }
    }

    fn note(mut self, holds: bool, text: String) -> Self {
        if holds { &mut self.held } else { &mut self.failed }.push(text);
        self
    }

    /// A value may differ from the expected one by the tolerance.
    pub(super) fn near(self, what: &str, value: f64, expected: f64, tolerance: f64, unit: &str) -> Self {
        let holds = (value - expected).abs() <= tolerance;
        let digits = digits(tolerance);
        self.note(holds, format!("{what} {value:.digits$}{unit} ({expected:.digits$} ± {tolerance:.digits$})"))
    }

    /// A value lies between two bounds, both included.
    pub(super) fn within(self, what: &str, value: f64, low: f64, high: f64, unit: &str) -> Self {
        let holds = value >= low && value <= high;
        let digits = digits((high - low) / 2.0);
        self.note(holds, format!("{what} {value:.digits$}{unit} ({low:.digits$} to {high:.digits$})"))
    }

    /// A count, an order, a name: equal or wrong.
    pub(super) fn equal<T: PartialEq + Display>(self, what: &str, value: T, expected: T) -> Self {
        let holds = value == expected;
        self.note(holds, format!("{what} {value} ({expected})"))
    }

    /// Adds a statement that has to hold.
    pub(super) fn holds(self, what: &str, holds: bool) -> Self {
        let text = if holds { what.to_owned() } else { format!("NOT: {what}") };
        self.note(holds, text)
    }

    /// The check; what failed stands first.
    pub(super) fn done(self) -> Check {
        let passed = self.failed.is_empty();
        let all: Vec<String> = self.failed.into_iter().chain(self.held).collect();
        Check { name: self.name, passed, detail: all.join("; ") }
    }
}

/// Digits behind the point that show a tolerance.
fn digits(tolerance: f64) -> usize {
    match tolerance {
        t if t >= 10.0 => 0,
        t if t >= 1.0 => 1,
        t if t >= 0.1 => 2,
        t if t >= 0.01 => 3,
        t if t >= 0.001 => 4,
        _ => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_stands_first() {
        let check = Card::new("x").near("a", 1.0, 1.0, 0.1, " ms").equal("b", 2, 3).done();
        assert!(!check.passed);
        assert_eq!(check.detail, "b 2 (3); a 1.00 ms (1.00 ± 0.10)");
        let not_a_number = Card::new("x").near("a", f64::NAN, 1.0, 0.1, "").within("b", f64::NAN, 0.0, 1.0, "").done();
        assert!(!not_a_number.passed && not_a_number.detail.starts_with("a NaN"));
    }
}
