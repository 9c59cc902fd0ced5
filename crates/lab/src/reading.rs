//! Value of a figure in one run, and its origin.

use serde::{Deserialize, Serialize};

use crate::figure::{Figure, Missing};

/// A figure of one run, and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Value in the figure's base unit. `None` without a value: the provenance has the reason.
    pub value: Option<f64>,
    /// Provenance of the value.
    pub provenance: Provenance,
    /// Number of samples behind the value, if any, including missing ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
    /// Number of samples that never occurred, if any: each counts as larger than any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub never: Option<usize>,
    /// Reason why there is no value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Provenance of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// Counted by the stack or the application while it ran.
    Measured,
    /// Computed from measured values.
    Derived,
    /// Counted in the model of the network.
    Simulated,
    /// The contender cannot report it.
    Unsupported,
    /// Could be computed, but from too few samples.
    Refused,
    /// Nothing to measure: no packet was sent, no connection was established.
    Empty,
    /// The percentile falls among missing samples: larger than any value.
    Censored,
}

impl Reading {
    /// Value for comparisons: infinite if it never occurred, `None` if it is unknown.
    pub fn ranked(&self, figure: Figure) -> Option<f64> {
        match (self.provenance, figure.declaration().missing) {
            (Provenance::Censored, _) | (Provenance::Empty, Missing::Never) if self.value.is_none() => {
                Some(f64::INFINITY)
            }
            _ => self.value,
        }
    }

    pub(crate) const fn of(value: f64, provenance: Provenance) -> Self {
        Self { value: Some(value), provenance, samples: None, never: None, reason: None }
    }

    pub(crate) const fn none(provenance: Provenance) -> Self {
        Self { value: None, provenance, samples: None, never: None, reason: None }
    }

    pub(crate) fn from_option(value: Option<f64>, provenance: Provenance) -> Self {
        value.map_or(Self::none(Provenance::Empty), |value| Self::of(value, provenance))
    }
}

/// A part of a whole; `None` if the whole is 0.
pub(crate) fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| count(part) / count(whole))
}

/// A count as a number to compute with.
#[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53")]
pub(crate) fn count(count: u64) -> f64 {
    count as f64
}
