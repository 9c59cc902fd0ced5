//! Durations as text: `"50 ms"`, `"1.5 s"`, `"200 µs"`.
//!
//! Use on a field: `#[serde(with = "units::duration_text")]`, or `units::duration_text::option` for an `Option`. Parsing and printing are
//! exact to the nanosecond and use no floating point.

use core::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, Serializer};

/// A span of time that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read `{0}` as a span of time: expected for example `50 ms`, `1.5 s` or `200 us`")]
pub struct ParseDurationError(String);

/// Nanoseconds in each unit, largest first; the first spelling of a unit is the one that is printed.
const UNITS: [(&str, u64); 7] = [
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("ns", 1),
];

/// Reads a number with a unit (`ns`, `us`, `µs`, `ms`, `s`, `min`, `h`); a bare `0` needs no unit.
///
/// # Errors
/// When the text is not a duration, more precise than a nanosecond, or longer than 584 years.
pub fn parse(text: &str) -> Result<Duration, ParseDurationError> {
    read(text.trim()).map(Duration::from_nanos).ok_or_else(|| ParseDurationError(text.to_owned()))
}

/// Parses `text` into nanoseconds.
fn read(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let (number, unit) = (text[..end].replace('_', ""), text[end..].trim_start());
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.len() > 12 {
        return None;
    }
    let (whole, tenths): (u64, u64) = (whole.parse().ok()?, fraction.parse().ok()?);
    if unit.is_empty() {
        return (whole == 0 && tenths == 0).then_some(0);
    }
    let scale = UNITS.iter().find(|(name, _)| *name == unit)?.1;
    let parts = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let rest = u128::from(tenths) * u128::from(scale);
    if rest % parts != 0 {
        return None;
    }
    whole.checked_mul(scale)?.checked_add(u64::try_from(rest / parts).ok()?)
}

/// Prints a duration in the largest of h, min, s, ms, us, ns that it fills, so that it parses as the same duration. Hours and minutes are
/// used only for whole numbers.
pub fn display(span: Duration) -> impl fmt::Display {
    Text(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

struct Text(u64);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0 s");
        }
        for (unit, scale) in UNITS {
            let (whole, rest) = (self.0 / scale, self.0 % scale);
            if whole == 0 || (rest != 0 && scale > 1_000_000_000) {
                continue;
            }
            if rest == 0 {
                return write!(f, "{whole} {unit}");
            }
            let digits = scale.ilog10() as usize;
            let fraction = format!("{rest:0digits$}");
            return write!(f, "{whole}.{} {unit}", fraction.trim_end_matches('0'));
        }
        Ok(())
    }
}

/// Writes a span as text.
///
/// # Errors
/// Only the serializer's own.
pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&display(*span))
}

/// Reads a span from text.
///
/// # Errors
/// When the text is not a span of time.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
    parse(&text).map_err(serde::de::Error::custom)
}

/// The same for `Option<Duration>`; add `#[serde(default)]` so that the field may be missing.
pub mod option {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    /// Serializes a duration as text, or `None`.
    ///
    /// # Errors
    /// Only the serializer's own.
    pub fn serialize<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => serializer.collect_str(&super::display(*span)),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a span from text, if there is one.
    ///
    /// # Errors
    /// When there is text and it is not a span of time.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.map(|text| super::parse(&text)).transpose().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, nanos) in [
            ("50 ms", 50_000_000),
            ("1.5 s", 1_500_000_000),
            ("1.5s", 1_500_000_000),
            ("200 µs", 200_000),
            ("200us", 200_000),
            (" 7 ns ", 7),
            ("2 min", 120_000_000_000),
            ("1 h", 3_600_000_000_000),
            ("0", 0),
            ("0.001 us", 1),
        ] {
            assert_eq!(parse(text).unwrap(), Duration::from_nanos(nanos), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for bad in
            ["", "5", "ms", "-5 ms", "1e3 ms", "5 m", "1.5 ns", "5 ms 3", ".5 s", "5. s", "99999999999 h", "1.2.3 s"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn prints_for_people() {
        for (nanos, text) in
            [(0, "0 s"), (50_000_000, "50 ms"), (90_000_000_000, "90 s"), (120_000_000_000, "2 min"), (1_500, "1.5 us")]
        {
            assert_eq!(display(Duration::from_nanos(nanos)).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(nanos: u64) {
            let span = Duration::from_nanos(nanos);
            prop_assert_eq!(parse(&display(span).to_string()).unwrap(), span);
        }

        #[test]
        fn never_panics(text in ".{0,20}") {
            let _ = parse(&text);
        }
    }
}
