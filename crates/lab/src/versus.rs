//! Wording of a comparison's result: the same in every output.

use serde::Serialize;

use crate::{
    figure::{Figure, Unit},
    stats::{
        compare::{Comparison, Scale, Verdict},
        interval::{Interval, RUNS_MIN},
    },
};

/// A figure on which another one depends, and its result in the same comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Presupposed {
    /// Key.
    pub figure: &'static str,
    /// Verdict on the figure.
    pub verdict: Verdict,
}

/// Adds the figures that results depend on, if those are not equivalent: a delay of arrived data says little if less arrived.
pub fn name_presupposed(
    results: &[(Figure, Comparison)],
) -> impl Iterator<Item = (Figure, Comparison, Option<Presupposed>)> + '_ {
    results.iter().map(|(figure, result)| {
        let told = figure.declaration().presupposes.and_then(|other| {
            let (_, on) = results.iter().find(|(figure, _)| *figure == other)?;
            (on.verdict != Verdict::Equivalent).then(|| Presupposed { figure: other.key(), verdict: on.verdict })
        });
        (*figure, *result, told)
    })
}

/// A verdict in a word.
pub const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Equivalent => "equivalent",
        Verdict::Undecided => "undecided",
        Verdict::Different => "different",
    }
}

/// A verdict in words: with the number of runs that would decide, and the figure that it presupposes.
pub fn words(result: &Comparison, presupposes: Option<Presupposed>) -> String {
    let mut text = word(result.verdict).to_owned();
    match result.pairs_needed {
        _ if result.pairs < RUNS_MIN => text += &format!(": too few seeds, {RUNS_MIN} at least"),
        Some(needed) if needed <= 1_000 => text += &format!("; about {needed} seeds would decide"),
        _ => {}
    }
    if let Some(on) = presupposes {
        let label = Figure::from_key(on.figure).map_or(on.figure, |figure| figure.label().trim());
        text += &format!(", while {label} is {}", word(on.verdict));
    }
    if result.unknown > 0 {
        text += &format!(" (unknown in {} of {} runs)", result.unknown, result.pairs);
    }
    text
}

/// The size of an effect: `x 0.961 [0.950, 0.970]`, or `+1.97 [+1.80, +2.10] points` where there is no ratio.
pub fn effect(figure: Figure, result: &Comparison) -> String {
    let Some(ratio) = result.ratio else { return difference(figure, &result.difference, true) };
    let text = format!("x {}{}", times(ratio.value), brackets(&ratio, times));
    match figure.declaration().scale {
        Scale::Both => format!("{text}, {}", difference(figure, &result.difference, false)),
        Scale::Ratio | Scale::Difference => text,
    }
}

/// `+1.97 [+1.80, +2.10] points`.
fn difference(figure: Figure, difference: &Interval, bounds: bool) -> String {
    let (unit, scale) = figure.unit().printed();
    let unit = if figure.unit() == Unit::Share { "points" } else { unit };
    let shown = difference.map(|value| value * scale);
    let text = |value: f64| if value == 0.0 { "0".to_owned() } else { format!("{:+}", Digits(value)) };
    let bounds = if bounds { brackets(&shown, text) } else { String::new() };
    let space = if unit.is_empty() { "" } else { " " };
    format!("{}{bounds}{space}{unit}", text(shown.value))
}

/// ` [low, high]`; empty when neither end is known.
fn brackets(interval: &Interval, text: impl Fn(f64) -> String) -> String {
    if interval.low == f64::NEG_INFINITY && interval.high == f64::INFINITY || interval.coverage >= 1.0 {
        return String::new();
    }
    format!(" [{}, {}]", text(interval.low), text(interval.high))
}

/// A ratio with three decimals, or fewer when it is large.
fn times(ratio: f64) -> String {
    match ratio {
        _ if ratio.is_infinite() => "∞".to_owned(),
        _ if ratio >= 1_000.0 => format!("{ratio:.0}"),
        _ if ratio >= 10.0 => format!("{ratio:.1}"),
        _ => format!("{ratio:.3}"),
    }
}

/// A number with three digits that count, and infinity as its sign.
pub struct Digits(pub f64);

impl Digits {
    /// The number, and 0 without decimals.
    pub fn short(&self) -> String {
        if self.0 == 0.0 { "0".to_owned() } else { self.to_string() }
    }
}

/// A declared number without trailing digits: `3`, `0.02`.
pub fn plain(value: f64) -> String {
    ((value * 1e6).round() / 1e6).to_string()
}

impl core::fmt::Display for Digits {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self(value) = *self;
        if value.is_infinite() {
            let sign = if value < 0.0 {
                "-"
            } else if f.sign_plus() {
                "+"
            } else {
                ""
            };
            return write!(f, "{sign}∞");
        }
        let decimals = if value == 0.0 { 0.0 } else { 2.0 - value.abs().log10().floor() };
        let decimals = decimals.clamp(0.0, 4.0) as usize;
        if f.sign_plus() { write!(f, "{value:+.decimals$}") } else { write!(f, "{value:.decimals$}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::compare::{Pair, compare};

    fn told(figure: Figure, pairs: &[(f64, f64)]) -> String {
        let pairs: Vec<Pair> = pairs.iter().map(|(own, other)| (Some(*own), Some(*other))).collect();
        let result = compare(&pairs, &figure.declaration().rule()).unwrap();
        format!("{}: {}", effect(figure, &result), words(&result, None))
    }

    #[test]
    fn ratios_and_differences() {
        assert_eq!(told(Figure::Goodput, &[(9e6, 10e6); 6]), "x 0.900 [0.900, 0.900]: worse");
        assert_eq!(told(Figure::ResidualLoss, &[(0.0197, 0.0); 6]), "+1.97 [+1.97, +1.97] points: worse");
        assert_eq!(told(Figure::ResidualLoss, &[(0.02, 0.01); 6]), "x 2.000 [2.000, 2.000], +1.00 points: worse");
        assert_eq!(told(Figure::Jain, &[(0.8, 0.9); 6]), "-0.100 [-0.100, -0.100]: worse");
        assert_eq!(told(Figure::DelayP99, &[(f64::INFINITY, 0.1); 6]), "+∞ [+∞, +∞] ms: worse");
        assert_eq!(told(Figure::Goodput, &[(0.0, 1e6); 6]), "x 0.000 [0.000, 0.000]: worse");
        assert_eq!(told(Figure::RttP50, &[(0.02, 0.01)]), "x 2.000: undecided: too few seeds, 6 at least");
    }

    #[test]
    fn what_a_verdict_presupposes_is_named() {
        let same = |figure: Figure, pairs: [Pair; 6]| (figure, compare(&pairs, &figure.declaration().rule()).unwrap());
        let delay = same(Figure::ArrivedP95, [(Some(0.02), Some(0.04)); 6]);
        let worse = same(Figure::ResidualLoss, [(Some(0.05), Some(0.0)); 6]);
        let level = same(Figure::ResidualLoss, [(Some(0.0), Some(0.0)); 6]);
        let of = |results: &[(Figure, Comparison)]| {
            let (_, result, told) = name_presupposed(results).next().unwrap();
            words(&result, told)
        };
        assert_eq!(of(&[delay, worse]), "better, while residual loss is worse");
        assert_eq!(of(&[delay, level]), "better");
    }
}
