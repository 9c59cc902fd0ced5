//! Codes by name: rate of repair, and covered symbols.

use std::{fmt, str::FromStr};

use crate::{coefficient::ROWS, repair::MAX_SPAN};

/// A code: the symbols that repair combines, and the rate of repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `repairs` for every `sources`. With a depth above 1, so many blocks are in progress at a time, and neighbouring symbols
    /// belong to different ones. One repair is XOR; any number of them replaces as many losses in the block.
    Block {
        /// Source symbols of a block.
        sources: u8,
        /// Repair symbols of a block.
        repairs: u8,
        /// Blocks that are interleaved.
        depth: u8,
    },
    /// `repairs` for every `sources`, spread evenly, each over the `window` latest source symbols.
    Window {
        /// Repair symbols …
        repairs: u8,
        /// … for so many source symbols.
        sources: u8,
        /// Source symbols in a repair symbol at most.
        window: u8,
    },
}

impl Scheme {
    /// Repair symbols for a source symbol.
    pub fn overhead(&self) -> f64 {
        let (Self::Block { sources, repairs, .. } | Self::Window { repairs, sources, .. }) = *self;
        f64::from(repairs) / f64::from(sources)
    }

    /// The farthest that a repair symbol reaches.
    pub fn span(&self) -> u64 {
        match *self {
            Self::Block { sources, depth, .. } => u64::from(sources) * u64::from(depth),
            Self::Window { window, .. } => window.into(),
        }
    }

    /// Returns whether the scheme is within the bounds of the codes.
    fn is_possible(&self) -> bool {
        let (Self::Block { sources, repairs, .. } | Self::Window { repairs, sources, .. }) = *self;
        let nothing = sources == 0 || repairs == 0 || self.span() == 0;
        let twice = matches!(self, Self::Block { .. }) && repairs > ROWS;
        // A window of one is a copy of a packet now and then; any other covers every packet.
        let thin =
            matches!(*self, Self::Window { window: 2.., .. }) && self.span() * u64::from(repairs) < sources.into();
        !nothing && !twice && !thin && repairs <= sources && self.span() <= MAX_SPAN
    }
}

/// A text that names no code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSchemeError(String);

impl fmt::Display for ParseSchemeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no code: expected xor:10, rs:10+2, rs:20+4/6 (six blocks interleaved) or rlc:1/5:40 (one repair for \
             five packets over the latest 40), dup:5 (a copy of every fifth packet), with no more repair than data and a reach of at most {MAX_SPAN}",
            self.0
        )
    }
}

impl std::error::Error for ParseSchemeError {}

impl FromStr for Scheme {
    type Err = ParseSchemeError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseSchemeError(text.to_owned());
        parse(text).filter(Self::is_possible).ok_or_else(error)
    }
}

fn parse(text: &str) -> Option<Scheme> {
    let (name, rest) = text.split_once(':')?;
    let number = |text: &str| text.parse::<u8>().ok();
    Some(match name {
        "xor" | "rs" => {
            let (block, depth) = rest.split_once('/').unwrap_or((rest, "1"));
            let (sources, repairs) = if name == "xor" { (block, "1") } else { block.split_once('+')? };
            Scheme::Block { sources: number(sources)?, repairs: number(repairs)?, depth: number(depth)? }
        }
        "dup" => Scheme::Window { repairs: 1, sources: number(rest)?, window: 1 },
        "rlc" => {
            let (rate, window) = rest.split_once(':')?;
            let (repairs, sources) = rate.split_once('/')?;
            Scheme::Window { repairs: number(repairs)?, sources: number(sources)?, window: number(window)? }
        }
        _ => return None,
    })
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Block { sources, repairs, depth } => {
                match repairs {
                    1 => write!(f, "xor:{sources}")?,
                    _ => write!(f, "rs:{sources}+{repairs}")?,
                }
                if depth > 1 { write!(f, "/{depth}") } else { Ok(()) }
            }
            Self::Window { repairs: 1, sources, window: 1 } => write!(f, "dup:{sources}"),
            Self::Window { repairs, sources, window } => write!(f, "rlc:{repairs}/{sources}:{window}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for name in ["xor:10", "rs:10+2", "rs:20+4/6", "rlc:1/5:40", "rlc:3/20:120", "xor:4/3", "dup:5"] {
            assert_eq!(name.parse::<Scheme>().map(|scheme| scheme.to_string()).as_deref(), Ok(name));
        }
        assert_eq!("rs:10+1".parse::<Scheme>().unwrap(), "xor:10".parse().unwrap());
    }

    #[test]
    fn what_is_no_code_is_refused() {
        for name in
            ["", "xor", "xor:0", "rs:10", "rs:2+3", "rs:20+4/10", "rlc:1/5:200", "rlc:0/5:40", "rlc:1/50:10", "lt:5"]
        {
            assert!(name.parse::<Scheme>().is_err(), "{name}");
        }
    }
}
