//! Minimum amounts of data per minute.

use core::str::FromStr;

use crate::{Bitrate, DataSize, Duration, ParseUnitError};

/// Bytes in a minute. As text: a size, with or without `/min` (`"1024"`, `"64Ki"`, `"1.5 MB/min"`), or a rate in bits
/// (`"1.5Mbit"`, `"64 kbit/s"`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BytesPerMinute(u64);

impl BytesPerMinute {
    /// Span that the bytes are counted in.
    pub const SPAN: Duration = Duration::from_secs(60);

    /// An amount in bytes per minute.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Bytes per minute.
    pub const fn as_bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for BytesPerMinute {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let size = text.trim_end();
        match size.strip_suffix("/min").unwrap_or(size).parse::<DataSize>() {
            Ok(size) => Ok(Self(size.as_bytes())),
            // What names bits is a rate. Anything else is a size that could not be read, which its own hint says best.
            Err(error) if error.names_bits() => {
                text.parse::<Bitrate>().map(|rate| Self(rate.in_time(Self::SPAN).as_bytes()))
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1_024),
            ("64Ki", 65_536),
            ("20M", 20_000_000),
            ("1.5 MB/min", 1_500_000),
            ("8 bit/s", 60),
            ("1.5Mbit", 11_250_000),
            ("64kbps", 480_000),
        ] {
            assert_eq!(text.parse(), Ok(BytesPerMinute::from_bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_neither_is_refused() {
        for text in ["", "fast", "-1", "20 MB/s", "20 Mbit/min", "1 Mibit/s", "/min"] {
            assert!(text.parse::<BytesPerMinute>().is_err(), "{text}");
        }
    }
}
