//! FEC policy of an endpoint, a setting of profiles.

use std::{fmt, str::FromStr};

use fec::Scheme;
use serde::{Deserialize, Serialize};

/// Forward error correction: off, receive only, at a fixed rate, or adaptive.
///
/// In text: `off`, `receive`, `xor:10`, `rs:10+2`, `rs:20+4/6` (six blocks interleaved), `rlc:1/5:40` (one repair for five
/// packets, over the latest 40), `auto`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FecPolicy {
    /// Neither offered nor used: plain QUIC.
    #[default]
    Off,
    /// Recovers the peer's data; protects no data itself.
    Receive,
    /// All that is sent is protected with this code.
    Fixed(Scheme),
    /// Protects sent data where that gains more than it costs.
    Auto,
}

impl FecPolicy {
    /// Returns whether this end understands forward error correction.
    pub const fn is_on(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// Returns whether this end may send repair symbols.
    pub const fn protects(self) -> bool {
        matches!(self, Self::Fixed(_) | Self::Auto)
    }
}

/// A text that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; or off, receive, auto")]
pub struct ParseFecError(fec::ParseSchemeError);

impl FromStr for FecPolicy {
    type Err = ParseFecError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "off" => Self::Off,
            "receive" => Self::Receive,
            "auto" => Self::Auto,
            code => Self::Fixed(code.parse().map_err(ParseFecError)?),
        })
    }
}

impl TryFrom<String> for FecPolicy {
    type Error = ParseFecError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<FecPolicy> for String {
    fn from(policy: FecPolicy) -> Self {
        policy.to_string()
    }
}

impl fmt::Display for FecPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Receive => f.write_str("receive"),
            Self::Fixed(scheme) => scheme.fmt(f),
            Self::Auto => f.write_str("auto"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back() {
        for text in ["off", "receive", "auto", "xor:10", "rs:10+2", "rlc:1/5:40"] {
            assert_eq!(text.parse::<FecPolicy>().unwrap().to_string(), text);
        }
        let error = "xor".parse::<FecPolicy>().unwrap_err().to_string();
        assert!(error.contains("xor:10") && error.contains("auto"), "{error}");
    }
}
