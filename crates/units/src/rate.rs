//! Amounts of data and how fast they move.

use core::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bits per second. In files: `"20 Mbit/s"`, `"1.1 Mbit/s"`, `"64 kbit/s"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bitrate(u64);

/// Bytes. In files: `"125 kB"`, `"64 KiB"`, `"1500 B"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DataSize(u64);

/// A rate or size that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read `{text}` as {what}: expected for example {example}")]
pub struct ParseUnitError {
    text: String,
    what: &'static str,
    example: &'static str,
}

impl Bitrate {
    /// A rate in bits per second.
    #[inline]
    pub const fn from_bps(bits_per_second: u64) -> Self {
        Self(bits_per_second)
    }

    /// A rate in megabits (10^6 bits) per second.
    #[inline]
    pub const fn from_mbps(megabits_per_second: u64) -> Self {
        Self(megabits_per_second * 1_000_000)
    }

    /// Bits per second.
    #[inline]
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// Megabits per second, for reports.
    #[expect(clippy::cast_precision_loss, reason = "a report does not need 2^53 bit/s")]
    pub fn as_mbps(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Time that `size` takes at this rate, rounded up to a nanosecond. A rate of zero takes for ever.
    #[inline]
    pub fn time_for(self, size: DataSize) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let nanos = (u128::from(size.0) * 8 * 1_000_000_000).div_ceil(u128::from(self.0));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Data that passes within `span` at this rate, rounded down.
    #[inline]
    pub fn in_time(self, span: Duration) -> DataSize {
        let bytes = u128::from(self.0) * span.as_nanos() / 8_000_000_000;
        DataSize(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

impl DataSize {
    /// A size in bytes.
    #[inline]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Bytes.
    #[inline]
    pub const fn as_bytes(self) -> u64 {
        self.0
    }
}

/// Splits `12.5 kB` into its number and its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let number: f64 = text[..end].replace('_', "").parse().ok()?;
    Some((number, text[end..].trim()))
}

/// Scales and rounds, refusing what does not fit.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
fn scaled(number: f64, unit: f64) -> Option<u64> {
    let value = (number * unit).round();
    (value.is_finite() && (0.0..9e18).contains(&value)).then_some(value as u64)
}

impl FromStr for Bitrate {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let (number, unit) = split(text)?;
            let unit = match unit.trim_end_matches("/s").trim_end_matches("ps") {
                "bit" | "b" => 1.0,
                "kbit" | "kb" => 1e3,
                "Mbit" | "Mb" => 1e6,
                "Gbit" | "Gb" => 1e9,
                _ => return None,
            };
            scaled(number, unit)
        };
        read().map(Self).ok_or_else(|| ParseUnitError {
            text: text.to_owned(),
            what: "a rate",
            example: "`20 Mbit/s`, `64 kbit/s` or `1 Gbit/s`",
        })
    }
}

impl FromStr for DataSize {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let (number, unit) = split(text)?;
            let unit = match unit {
                "" | "B" => 1.0,
                "kB" => 1e3,
                "MB" => 1e6,
                "GB" => 1e9,
                "KiB" => 1024.0,
                "MiB" => 1_048_576.0,
                "GiB" => 1_073_741_824.0,
                _ => return None,
            };
            scaled(number, unit)
        };
        read().map(Self).ok_or_else(|| ParseUnitError {
            text: text.to_owned(),
            what: "a size",
            example: "`1500 B`, `125 kB` or `10 MiB`",
        })
    }
}

/// The largest unit that divides the value, so that what is printed reads back as the same value.
fn print(f: &mut fmt::Formatter<'_>, value: u64, units: &[(u64, &str)]) -> fmt::Result {
    for &(scale, unit) in units {
        if value >= scale {
            let (whole, rest) = (value / scale, value % scale);
            return if rest == 0 {
                write!(f, "{whole} {unit}")
            } else {
                let digits = scale.ilog10() as usize;
                let fraction = format!("{rest:0digits$}");
                write!(f, "{whole}.{} {unit}", fraction.trim_end_matches('0'))
            };
        }
    }
    write!(f, "{value} {}", units.last().map_or("", |u| u.1))
}

impl fmt::Display for Bitrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, self.0, &[(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1_000, "kbit/s"), (1, "bit/s")])
    }
}

impl fmt::Display for DataSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, self.0, &[(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"), (1, "B")])
    }
}

impl fmt::Debug for Bitrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for DataSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
as_text!(Bitrate);
as_text!(DataSize);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_packet_at_twenty_megabit() {
        let time = Bitrate::from_mbps(20).time_for(DataSize::from_bytes(1500));
        assert_eq!(time, Duration::from_micros(600));
    }

    #[test]
    fn refuses_what_is_no_rate() {
        for bad in ["", "20", "Mbit/s", "20 Mbyte/s", "-1 Mbit/s", "1e3 Mbit/s"] {
            assert!(bad.parse::<Bitrate>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(value in 0u64..1_000_000_000_000) {
            let rate = Bitrate::from_bps(value);
            prop_assert_eq!(rate.to_string().parse::<Bitrate>().unwrap(), rate);
            let size = DataSize::from_bytes(value);
            prop_assert_eq!(size.to_string().parse::<DataSize>().unwrap(), size);
        }

        #[test]
        fn time_and_amount_agree(bps in 1_000u64..100_000_000_000, bytes in 1u64..100_000_000) {
            let rate = Bitrate::from_bps(bps);
            let back = rate.in_time(rate.time_for(DataSize::from_bytes(bytes)));
            let slack = bps / 8_000_000_000 + 1;
            prop_assert!(back.as_bytes() >= bytes && back.as_bytes() <= bytes + slack);
        }
    }
}
