//! Amounts of data, and rates.

use core::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bits per second. As text: `"20 Mbit/s"`, or shorter `"20M"`, `"20mbit"`, `"20Mbps"`. Prefixes are decimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bitrate(u64);

/// Bytes. As text: `"125 kB"`, `"64 KiB"`, `"1500 B"`, or shorter `"125k"`, `"64Ki"`, `"1500"`. `k`, `M`, `G`, `T` are
/// decimal; `Ki`, `Mi`, `Gi`, `Ti` are powers of 1024.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DataSize(u64);

/// A rate or size that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read `{text}` as {what}: {}expected for example {example}", .hint.map(|hint| format!("{hint}; ")).unwrap_or_default())]
pub struct ParseUnitError {
    text: String,
    what: &'static str,
    example: &'static str,
    hint: Option<&'static str>,
}

impl ParseUnitError {
    /// The likely mistake, where the text shows one.
    pub const fn hint(&self) -> Option<&'static str> {
        self.hint
    }

    /// Returns whether a size was expected, and the text names bits.
    pub(crate) fn names_bits(&self) -> bool {
        self.hint == Some(BITS_IN_A_SIZE)
    }
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

/// Hint for a size where a rate belongs.
const BYTES_IN_A_RATE: &str = "`B` is bytes, and a rate is in bits: multiply by 8, and write `bit` or nothing";
/// Hint for a rate or a number of bits where a size belongs.
const BITS_IN_A_SIZE: &str = "`b` and `bit` are bits, and a size is in bytes: write `B` or nothing";
/// Hint for a rate without a unit.
const BARE_RATE: &str = "a rate needs a unit";
/// Hint for a binary prefix in a rate.
const BINARY_RATE: &str = "prefixes of rates are decimal: `k`, `M`, `G`, `T`";
/// Hint for a size with a time.
const TIME_IN_A_SIZE: &str = "a size has no time";

/// Splits `Mbit` into the power of its prefix (2 for `M`) and the rest.
fn prefix(unit: &str) -> (i32, &str) {
    let power = match unit.as_bytes().first() {
        Some(b'k' | b'K') => 1,
        Some(b'm' | b'M') => 2,
        Some(b'g' | b'G') => 3,
        Some(b't' | b'T') => 4,
        _ => return (0, unit),
    };
    (power, &unit[1..])
}

/// Bits per second in a unit of rates, or a hint if the mistake is a known one.
fn rate_unit(unit: &str) -> Result<f64, Option<&'static str>> {
    let (power, rest) = prefix(unit);
    let without_time = rest.strip_suffix("/s").or_else(|| rest.strip_suffix("ps"));
    let noun = without_time.unwrap_or(rest);
    match noun {
        // A case decides between bits and bytes, which differ by 8.
        "b" => {}
        _ if noun.eq_ignore_ascii_case("bit") || noun.eq_ignore_ascii_case("bits") => {}
        // `20M` and `20M/s`: as iperf and tc have it.
        "" if power > 0 => {}
        "" => return Err(without_time.is_none().then_some(BARE_RATE)),
        _ if is_bytes(noun) => return Err(Some(BYTES_IN_A_RATE)),
        _ if power > 0 && noun.starts_with('i') => return Err(Some(BINARY_RATE)),
        _ => return Err(None),
    }
    Ok(1e3f64.powi(power))
}

/// Bytes in a unit of sizes, or a hint if the mistake is a known one.
fn size_unit(unit: &str) -> Result<f64, Option<&'static str>> {
    let (power, rest) = prefix(unit);
    let (base, noun) = match rest.strip_prefix('i') {
        Some(noun) if power > 0 => (1024f64, noun),
        _ => (1e3, rest),
    };
    match noun {
        "" => Ok(base.powi(power)),
        _ if is_bytes(noun) => Ok(base.powi(power)),
        "b" | "bit" | "bits" | "bps" | "b/s" | "bit/s" => Err(Some(BITS_IN_A_SIZE)),
        _ if noun.ends_with("/s") => Err(Some(TIME_IN_A_SIZE)),
        _ => Err(None),
    }
}

/// Returns whether this names the byte.
fn is_bytes(noun: &str) -> bool {
    noun == "B" || noun.eq_ignore_ascii_case("byte") || noun.eq_ignore_ascii_case("bytes")
}

/// Reads a number and its unit.
fn read(text: &str, unit: fn(&str) -> Result<f64, Option<&'static str>>) -> Result<u64, Option<&'static str>> {
    let (number, name) = split(text).ok_or(None)?;
    scaled(number, unit(name)?).ok_or(Some("the number is too large"))
}

impl FromStr for Bitrate {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        read(text, rate_unit).map(Self).map_err(|hint| ParseUnitError {
            text: text.to_owned(),
            what: "a rate",
            example: "`20 Mbit/s`, `64 kbit/s` or `1 Gbit/s`",
            hint,
        })
    }
}

impl FromStr for DataSize {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        read(text, size_unit).map(Self).map_err(|hint| ParseUnitError {
            text: text.to_owned(),
            what: "a size",
            example: "`1500 B`, `125 kB` or `10 MiB`",
            hint,
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
        for bad in
            ["", "20", "Mbit/s", "20 Mbyte/s", "-1 Mbit/s", "1e3 Mbit/s", "20/s", "1.2.3M", "20 Mbit/s/s", "20 Pbit/s"]
        {
            assert!(bad.parse::<Bitrate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_are_read_as_people_write_them() {
        for text in [
            "20M",
            "20m",
            "20 M",
            "20M/s",
            "20mbit",
            "20Mbit",
            "20 MBIT",
            "20Mb",
            "20Mbps",
            "20mbps",
            "20Mb/s",
            "20 Mbit/s",
            "20mbit/s",
            "20 Mbits/s",
            "20000k",
            "20000Kbit",
            "0.02G",
            " 20 Mbit/s ",
            "20_000_000 bit/s",
            "20000000b",
            "20000000bps",
        ] {
            assert_eq!(text.parse(), Ok(Bitrate::from_mbps(20)), "{text}");
        }
        assert_eq!("1.5G".parse(), Ok(Bitrate::from_mbps(1_500)));
        assert_eq!("2T".parse(), Ok(Bitrate::from_mbps(2_000_000)));
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (texts, bytes) in [
            (
                &["20M", "20MB", "20 MB", "20m", "20 Mbyte", "20000k", "20000KB", "20000000", "20000000B", "20 Mbytes"]
                    [..],
                20_000_000,
            ),
            (&["64Ki", "64 KiB", "64kiB", "64ki"], 65_536),
            (&["1.5G", "1500 MB"], 1_500_000_000),
            (&["2Gi", "2 GiB", "2048Mi"], 2_147_483_648),
            (&["0", "0 B"], 0),
        ] {
            for text in texts {
                assert_eq!(text.parse(), Ok(DataSize::from_bytes(bytes)), "{text}");
            }
        }
    }

    #[test]
    fn mistakes_have_hints() {
        for (text, hint) in [
            ("20", Some(BARE_RATE)),
            ("20 MB/s", Some(BYTES_IN_A_RATE)),
            ("20MBps", Some(BYTES_IN_A_RATE)),
            ("20 Mbyte/s", Some(BYTES_IN_A_RATE)),
            ("20MB", Some(BYTES_IN_A_RATE)),
            ("20 Mibit/s", Some(BINARY_RATE)),
            ("99999999T", Some("the number is too large")),
            ("fast", None),
        ] {
            let error = text.parse::<Bitrate>().unwrap_err();
            assert_eq!(error.hint(), hint, "{text}");
            assert!(error.to_string().contains(hint.unwrap_or("20 Mbit/s")), "{error}");
        }
        for (text, hint) in [
            ("20Mb", Some(BITS_IN_A_SIZE)),
            ("20mbit", Some(BITS_IN_A_SIZE)),
            ("20 Mbit/s", Some(BITS_IN_A_SIZE)),
            ("20 MB/s", Some(TIME_IN_A_SIZE)),
            ("99999999T", Some("the number is too large")),
            ("", None),
            ("M", None),
            ("-1 kB", None),
            ("5 apples", None),
            ("5i", None),
        ] {
            let error = text.parse::<DataSize>().unwrap_err();
            assert_eq!(error.hint(), hint, "{text}");
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
