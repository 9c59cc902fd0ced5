//! Scope of a request for an IP tunnel (RFC 9484 §4.6).

use std::fmt;

use percent_encoding::percent_decode_str;

use super::{Prefix, protocol};

/// Addresses that a request is limited to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeTarget {
    /// All hosts.
    Any,
    /// The hosts of a prefix.
    Prefix(Prefix),
    /// The addresses of a name.
    Name(String),
}

/// Targets and protocol that a request is limited to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Targets.
    pub target: ScopeTarget,
    /// Internet Protocol Number; `None` for all. ICMP is always permitted.
    pub protocol: Option<u8>,
}

impl Default for Scope {
    /// No limits.
    fn default() -> Self {
        Self { target: ScopeTarget::Any, protocol: None }
    }
}

impl ScopeTarget {
    /// Reads a target as a user writes it: `*`, an address, a prefix or a name.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Any);
        }
        if let Ok(prefix) = text.parse() {
            return Some(Self::Prefix(prefix));
        }
        let is_sane = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_name = !text.is_empty() && text.len() <= 253 && text.bytes().all(is_sane);
        is_name.then(|| Self::Name(text.to_owned()))
    }
}

impl fmt::Display for ScopeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Prefix(prefix) if prefix.is_single() => write!(f, "{}", prefix.address()),
            Self::Prefix(prefix) => write!(f, "{prefix}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Scope {
    /// Reads the encoded values of the variables of a request; `None` when they break the rules. What is not there is a wildcard.
    // RFC 9484 §3 MUST NOT-1, RFC 9484 §4.6 MUST-1, MUST-5
    pub(super) fn decode(target: Option<&str>, number: Option<&str>) -> Option<Self> {
        let decode = |value: &str| Some(percent_decode_str(value).decode_utf8().ok()?.into_owned());
        let target = match target {
            None => ScopeTarget::Any,
            Some(target) => ScopeTarget::parse(&decode(target)?)?,
        };
        let protocol = match number.map(decode) {
            None => None,
            Some(text) => match text?.as_str() {
                "*" => None,
                text => Some(Self::parse_protocol(text)?),
            },
        };
        Some(Self { target, protocol })
    }

    /// Reads an Internet Protocol Number. Those of extension headers are refused: no packet has them as its protocol.
    // RFC 9484 §4.8
    pub fn parse_protocol(text: &str) -> Option<u8> {
        let is_number = (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|number| is_number && !protocol::is_extension(*number))
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            None => write!(f, "{}", self.target),
            Some(number) => write!(f, "{} (protocol {number})", self.target),
        }
    }
}
