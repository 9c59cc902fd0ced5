//! Names of requirements: document, section, keyword and its number in the section, as in `RFC 9000 §8.1 MUST-2`.

use core::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

/// A keyword of RFC 2119. Longer ones stand before those that they begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Keyword {
    MustNot,
    Must,
    ShallNot,
    Shall,
    Required,
    ShouldNot,
    Should,
    NotRecommended,
    Recommended,
}

impl Keyword {
    pub(crate) const ALL: [Self; 9] = [
        Self::MustNot,
        Self::Must,
        Self::ShallNot,
        Self::Shall,
        Self::Required,
        Self::ShouldNot,
        Self::Should,
        Self::NotRecommended,
        Self::Recommended,
    ];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::MustNot => "MUST NOT",
            Self::Must => "MUST",
            Self::ShallNot => "SHALL NOT",
            Self::Shall => "SHALL",
            Self::Required => "REQUIRED",
            Self::ShouldNot => "SHOULD NOT",
            Self::Should => "SHOULD",
            Self::NotRecommended => "NOT RECOMMENDED",
            Self::Recommended => "RECOMMENDED",
        }
    }

    /// The keyword of the same force that counts are grouped under (RFC 2119: SHALL and REQUIRED are MUST, RECOMMENDED is
    /// SHOULD).
    pub(crate) fn force(self) -> Self {
        match self {
            Self::Must | Self::Shall | Self::Required => Self::Must,
            Self::MustNot | Self::ShallNot => Self::MustNot,
            Self::Should | Self::Recommended => Self::Should,
            Self::ShouldNot | Self::NotRecommended => Self::ShouldNot,
        }
    }

    /// The keyword that `text` begins with, as whole words, and what follows.
    pub(crate) fn at_start(text: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|keyword| {
            let rest = text.strip_prefix(keyword.text())?;
            let whole = !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
            whole.then_some((keyword, rest))
        })
    }
}

/// A section number: `8.1.2`, or `B.3` in an appendix. Ordered as in the document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Section(Vec<(bool, u32)>);

impl FromStr for Section {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let part = |part: &str| match part.as_bytes() {
            [letter @ b'A'..=b'Z'] => Ok((true, u32::from(letter - b'A'))),
            _ => part.parse().map(|n| (false, n)),
        };
        let parts = text.split('.').map(part).collect::<Result<Vec<_>, _>>();
        parts.map(Self).map_err(|_| anyhow::anyhow!("{text:?} is not the number of a section"))
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (letter, number)) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            match letter {
                true => write!(f, "{}", char::from(b'A' + u8::try_from(*number).unwrap_or(25)))?,
                false => write!(f, "{number}")?,
            }
        }
        Ok(())
    }
}

/// Keyword and number: what tells the requirements of a section apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) keyword: Keyword,
    pub(crate) number: u32,
}

impl Place {
    /// The place that `text` begins with, as in `MUST NOT-2`, and what follows.
    pub(crate) fn at_start(text: &str) -> Option<(Self, &str)> {
        let (keyword, rest) = Keyword::at_start(text)?;
        let rest = rest.strip_prefix('-')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number = rest[..end].parse().ok().filter(|number| *number > 0)?;
        Some((Self { keyword, number }, &rest[end..]))
    }
}

impl FromStr for Place {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let whole = Self::at_start(text).filter(|(_, rest)| rest.is_empty());
        whole.map(|(place, _)| place).ok_or_else(|| anyhow::anyhow!("{text:?} is not a keyword and a number"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.keyword.text(), self.number)
    }
}

/// The name of a requirement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    pub(crate) document: u32,
    pub(crate) section: Section,
    pub(crate) place: Place,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RFC {} §{} {}", self.document, self.section, self.place)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The names in a line of text. One section may be followed by several places, with commas between them:
/// `RFC 9000 §19.8 MUST-1, MUST-2`. A section without a number is a reference and no mark.
pub(crate) fn ids(line: &str) -> Vec<Id> {
    let mut found = Vec::new();
    for start in line.match_indices("RFC ").map(|(at, _)| &line[at + 4..]) {
        let digits = start.find(|c: char| !c.is_ascii_digit()).unwrap_or(start.len());
        let Ok(document) = start[..digits].parse() else { continue };
        let Some(rest) = start[digits..].strip_prefix(" §") else { continue };
        let end =
            rest.find(|c: char| !(c.is_ascii_digit() || c.is_ascii_uppercase() || c == '.')).unwrap_or(rest.len());
        let Ok(section) = rest[..end].parse::<Section>() else { continue };
        let mut next = rest[end..].strip_prefix(' ');
        while let Some((place, rest)) = next.and_then(Place::at_start) {
            found.push(Id { document, section: section.clone(), place });
            next = rest.strip_prefix(", ");
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Vec<String> {
        ids(line).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn marks_are_read_with_all_their_places() {
        assert_eq!(texts("// RFC 9000 §8.1 MUST-2: at most three times"), ["RFC 9000 §8.1 MUST-2"]);
        assert_eq!(
            texts("/// RFC 9000 §19.8 MUST-1, MUST NOT-12, RFC 9002 §B.3 SHOULD-1."),
            ["RFC 9000 §19.8 MUST-1", "RFC 9000 §19.8 MUST NOT-12", "RFC 9002 §B.3 SHOULD-1"]
        );
    }

    #[test]
    fn references_are_not_marks() {
        for line in ["RFC 9000 §8.1", "RFC 9000 §8.1 MUST:", "RFC 9000 MUST-1", "RFC 9000 §8.1 MUST-0", "§8.1 MUST-1"]
        {
            assert_eq!(texts(line), [""; 0], "{line}");
        }
    }

    #[test]
    fn sections_are_in_the_order_of_the_document() {
        let mut sections = ["B.1", "10.1", "9.6.1", "9.6", "9", "A"].map(|text| text.parse::<Section>().unwrap());
        sections.sort();
        assert_eq!(sections.map(|section| section.to_string()), ["9", "9.6", "9.6.1", "10.1", "A", "B.1"]);
        assert!("8.".parse::<Section>().is_err() && "8.AB".parse::<Section>().is_err());
    }
}
