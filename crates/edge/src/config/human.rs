//! Values in the form that people write: `30 s`, `64 kB`, one item in place of a list.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tiderace::units::{DataSize, ParseUnitError};

/// A time with its unit: `250 ms`, `30 s`, `5 min`, `2 h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// Seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }
}

/// Splits a number from its unit.
fn parts(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no time; expected a number with a unit, as in `250 ms`, `30 s`, `5 min`");
        let (number, unit) = parts(text).ok_or_else(wrong)?;
        let seconds = match unit {
            "ms" => number / 1e3,
            "s" => number,
            "min" => number * 60.0,
            "h" => number * 3_600.0,
            "d" => number * 86_400.0,
            _ => return Err(wrong()),
        };
        Duration::try_from_secs_f64(seconds).map(Self).map_err(|_| wrong())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        match ms {
            _ if !ms.is_multiple_of(1_000) => write!(f, "{ms} ms"),
            _ if ms >= 3_600_000 && ms.is_multiple_of(3_600_000) => write!(f, "{} h", ms / 3_600_000),
            _ if ms >= 60_000 && ms.is_multiple_of(60_000) => write!(f, "{} min", ms / 60_000),
            _ => write!(f, "{} s", ms / 1_000),
        }
    }
}

/// A number of bytes: `64 kB`, `1 MiB`, `1500 B`; `64k` is `64 kB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |hint: Option<&str>| {
            let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
            format!("`{text}` is no size; expected a number with a unit, as in `64 kB`, `1 MiB`{hint}")
        };
        // A number alone may have been meant in any unit.
        if text.trim().ends_with(|last: char| last.is_ascii_digit() || last == '.') {
            return Err(wrong(None));
        }
        text.parse().map(|size: DataSize| Self(size.as_bytes())).map_err(|error: ParseUnitError| wrong(error.hint()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n > 0 && n % 1_048_576 == 0 => write!(f, "{} MiB", n / 1_048_576),
            n if n > 0 && n % 1_024 == 0 => write!(f, "{} KiB", n / 1_024),
            n => write!(f, "{n} B"),
        }
    }
}

/// A part of the whole: `10 %`, `0.5 %`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Part(pub f64);

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no part; expected 0 % to 100 %, as in `10 %`, `0.5 %`");
        let (number, unit) = parts(text).ok_or_else(wrong)?;
        if unit == "%" && (0.0..=100.0).contains(&number) { Ok(Self(number / 100.0)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the digits that come from counting in binary.
        write!(f, "{} %", (self.0 * 1e8).round() / 1e6)
    }
}

macro_rules! as_text {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

as_text!(Span);
as_text!(Size);
as_text!(Part);

/// One or many: `"a"` or `["a", "b"]`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Many(pub Vec<String>);

impl Serialize for Many {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [one] => one.serialize(serializer),
            all => all.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Many {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Many;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Many, E> {
                Ok(Many(vec![text.to_owned()]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Many, A::Error> {
                let mut all = Vec::new();
                while let Some(text) = list.next_element()? {
                    all.push(text);
                }
                Ok(Many(all))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_come_back_as_they_were_written() {
        for text in ["250 ms", "30 s", "5 min", "2 h", "1500 ms"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("1.5 s".parse::<Span>().unwrap().0, Duration::from_millis(1_500));
        for text in ["64 KiB", "1 MiB", "1500 B"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        for bad in ["", "5", "s", "-1 s", "5 years", "1e99 h"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
        assert_eq!(
            ("64k".parse(), "1Mi".parse(), "1.5G".parse()),
            (Ok(Size(64_000)), Ok(Size(1 << 20)), Ok(Size(1_500_000_000)))
        );
        for (bad, said) in
            [("5", "a number with a unit"), ("5 Mb", "bits"), ("5 MB/s", "no time"), ("-5 kB", "is no size")]
        {
            let error = bad.parse::<Size>().unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        for text in ["10 %", "0.5 %", "0 %", "100 %", "33.3 %"] {
            assert_eq!(text.parse::<Part>().unwrap().to_string(), text);
        }
        for bad in ["10", "101 %", "-1 %", "%"] {
            assert!(bad.parse::<Part>().is_err(), "{bad}");
        }
    }
}
