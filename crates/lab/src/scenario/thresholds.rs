//! Thresholds: limits of figures, in the units of scenario files.

use serde::{Deserialize, Serialize};
use units::{Bitrate, DataSize, Probability, duration_text};

use super::{Fault, check::fault, nearest};
use crate::figure::{Figure, Unit};

/// A limit for a figure's median over the seeds, in every point of the matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Threshold {
    /// Key of the figure, as in records: `goodput`.
    pub figure: String,
    /// Contender that the threshold holds for; without it, all contenders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contender: Option<String>,
    /// The median must reach this: `"5 Mbit/s"`, `"100 ms"`, `"1 %"`, or a number for figures without a unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<String>,
    /// The median must not exceed this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<String>,
}

impl Threshold {
    /// The figure; `None` only before the check of the scenario.
    pub fn of(&self) -> Option<Figure> {
        Figure::from_key(&self.figure)
    }

    /// Lower and upper limit in the figure's base unit.
    pub fn limits(&self) -> (Option<f64>, Option<f64>) {
        let value =
            |text: &Option<String>| self.of().zip(text.as_deref()).and_then(|(of, text)| quantity(of.unit(), text));
        (value(&self.at_least), value(&self.at_most))
    }

    pub(super) fn check(&self, index: usize) -> Result<(), Fault> {
        let field = format!("thresholds.{index}");
        let Some(figure) = self.of() else {
            let fault = fault(&field, format!("there is no figure `{}`", self.figure));
            let meant = nearest(&self.figure, Figure::all().map(Figure::key));
            return Err(match meant {
                Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
                None => {
                    fault.hint(format!("there are {}", Figure::all().map(Figure::key).collect::<Vec<_>>().join(", ")))
                }
            });
        };
        if self.at_least.is_none() && self.at_most.is_none() {
            return Err(fault(&field, "needs `at-least` or `at-most`"));
        }
        for text in [&self.at_least, &self.at_most].into_iter().flatten() {
            if quantity(figure.unit(), text).is_none() {
                let example = match figure.unit() {
                    Unit::BitsPerSecond => "5 Mbit/s",
                    Unit::Seconds => "100 ms",
                    Unit::Share => "1 %",
                    Unit::Index | Unit::PerSecond => "0.95",
                    Unit::Bytes => "100 kB",
                };
                return Err(fault(&field, format!("cannot read `{text}`: expected for example `{example}`")));
            }
        }
        Ok(())
    }
}

/// A value as people write it, in the base unit.
#[expect(clippy::cast_precision_loss, reason = "limits, not counts")]
pub(crate) fn quantity(unit: Unit, text: &str) -> Option<f64> {
    match unit {
        Unit::BitsPerSecond => text.parse::<Bitrate>().ok().map(|rate| rate.as_bps() as f64),
        Unit::Seconds => duration_text::parse(text).ok().map(|span| span.as_secs_f64()),
        Unit::Share => text.parse::<Probability>().ok().map(Probability::get),
        Unit::Bytes => text.parse::<DataSize>().ok().map(|size| size.as_bytes() as f64),
        Unit::Index | Unit::PerSecond => text.trim().parse().ok().filter(|x: &f64| x.is_finite()),
    }
}
