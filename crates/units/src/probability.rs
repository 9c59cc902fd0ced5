//! Probability: a number between zero and one, checked once.

use core::fmt;

use serde::{Deserialize, Deserializer, Serialize};

/// A probability: a finite number in `0..=1`. In files it is written as a number (`0.05`) or in percent (`"5 %"`).
#[derive(Clone, Copy, PartialEq, PartialOrd, Default, Serialize)]
#[serde(transparent)]
pub struct Probability(f64);

/// The number is not a probability.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{0}` is not a probability: expected a number from 0 to 1, or a percentage from 0 % to 100 %")]
pub struct ProbabilityError(String);

impl Probability {
    /// Never.
    pub const ZERO: Self = Self(0.0);
    /// Always.
    pub const ONE: Self = Self(1.0);

    /// A probability from a number.
    ///
    /// # Errors
    /// When `value` is not a number from 0 to 1.
    pub fn new(value: f64) -> Result<Self, ProbabilityError> {
        if (0.0..=1.0).contains(&value) { Ok(Self(value)) } else { Err(ProbabilityError(value.to_string())) }
    }

    /// The number, from 0 to 1.
    #[inline]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl core::str::FromStr for Probability {
    type Err = ProbabilityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ProbabilityError(text.to_owned());
        let trimmed = text.trim();
        let value = match trimmed.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map_err(|_| bad())? / 100.0,
            None => trimmed.parse::<f64>().map_err(|_| bad())?,
        };
        Self::new(value).map_err(|_| bad())
    }
}

impl fmt::Debug for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded to a millionth of a percent, so that 5 % does not print as 5.000000000000001 %.
        write!(f, "{} %", (self.0 * 1e8).round() / 1e6)
    }
}

impl<'de> Deserialize<'de> for Probability {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(f64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(value) => Self::new(value).map_err(serde::de::Error::custom),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_and_percentages() {
        assert_eq!("5 %".parse::<Probability>().unwrap().get(), 0.05);
        assert_eq!("0.05".parse::<Probability>().unwrap().get(), 0.05);
        for bad in ["-1", "1.1", "101%", "NaN", "", "five"] {
            assert!(bad.parse::<Probability>().is_err(), "{bad}");
        }
    }

    #[test]
    fn prints_in_percent() {
        assert_eq!(Probability::new(0.006).unwrap().to_string(), "0.6 %");
    }
}
