//! Table of networks with names, such as those of operators and regions. The longest prefix that holds an address names it.
//!
//! One network a line, then its name; `#` begins a comment:
//!
//! ```text
//! 192.0.2.0/24     Example Mobile, north
//! 2001:db8::/32    Example Mobile, north
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    net::IpAddr,
};

/// Characters of a name, at most.
const NAME_MAX: usize = 64;

/// Line that is no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {message}")]
pub struct TableError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Fault of the line.
    pub message: String,
    /// Advice on how to write the line.
    pub hint: String,
}

/// Network prefix: its bits from the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Prefix {
    is_v4: bool,
    bits: u128,
}

/// The first `length` bits of an address.
fn prefix(address: IpAddr, length: u8) -> Prefix {
    let bits = match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
        IpAddr::V6(v6) => v6.into(),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
    Prefix { is_v4: address.is_ipv4(), bits: bits & mask }
}

impl Prefix {
    fn address(self) -> IpAddr {
        match u32::try_from(self.bits >> 96) {
            Ok(bits) if self.is_v4 => IpAddr::V4(bits.into()),
            _ => IpAddr::V6(self.bits.into()),
        }
    }
}

/// Names of networks.
#[derive(Clone, Default)]
pub struct NetworkTable {
    names: Vec<String>,
    /// By length of the prefix: number of the name, and the line.
    by_length: BTreeMap<u8, HashMap<Prefix, (u32, u32)>>,
}

impl fmt::Debug for NetworkTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkTable").field("names", &self.names.len()).field("networks", &self.len()).finish()
    }
}

/// An entry's address, length and name.
fn entry(text: &str) -> Result<(IpAddr, u8, &str), (String, String)> {
    let example = || "a line is a network and its name, as in `192.0.2.0/24 Example Mobile`".to_owned();
    let (network, name) = text
        .split_once(char::is_whitespace)
        .ok_or_else(|| (format!("expected a network and a name, found `{}`", shown(text)), example()))?;
    let wrong = || (format!("expected a network, found `{}`", shown(network)), example());
    let (address, length) =
        network.split_once('/').map_or((network, None), |(address, length)| (address, Some(length)));
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = length.map_or(Some(most), |length| length.parse().ok()).filter(|length| *length <= most);
    let length: u8 = length.ok_or_else(wrong)?;
    let first = prefix(address, length).address();
    if first != address {
        let message = format!("`{network}` has bits behind its {length} bits");
        return Err((message, format!("write `{first}/{length}`, or the length that is meant")));
    }
    let name = name.trim();
    if name.chars().count() > NAME_MAX || name.chars().any(char::is_control) {
        let message = format!("the name `{}` is too long, or has control characters", shown(name));
        return Err((message, format!("{NAME_MAX} characters at most")));
    }
    Ok((address, length, name))
}

/// The beginning of a text from a file, fit for a terminal.
fn shown(text: &str) -> String {
    text.chars().take(40).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

impl NetworkTable {
    /// Reads a table.
    ///
    /// # Errors
    /// With the first line that is no entry, or names a network differently than a line before.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let mut this = Self::default();
        let mut numbers: HashMap<String, u32> = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let line = number + 1;
            let refused = |(message, hint)| TableError { line, message, hint };
            let (address, length, name) = entry(content).map_err(refused)?;
            let next = u32::try_from(this.names.len()).unwrap_or(u32::MAX);
            let name_number = *numbers.entry(name.to_owned()).or_insert(next);
            if name_number == next {
                this.names.push(name.to_owned());
            }
            let of_length = this.by_length.entry(length).or_default();
            let place = (name_number, u32::try_from(line).unwrap_or(u32::MAX));
            let (known, first) = *of_length.entry(prefix(address, length)).or_insert(place);
            if known != name_number {
                let message =
                    format!("`{address}/{length}` has the name `{}` on line {first}", this.names[known as usize]);
                return Err(refused((message, "a network has one name: remove one of the lines".to_owned())));
            }
        }
        Ok(this)
    }

    /// Number of networks.
    pub fn len(&self) -> usize {
        self.by_length.values().map(HashMap::len).sum()
    }

    /// Returns whether there is no network.
    pub fn is_empty(&self) -> bool {
        self.by_length.is_empty()
    }

    /// Name of the longest prefix that holds an address.
    pub fn find(&self, address: IpAddr) -> Option<&str> {
        let address = address.to_canonical();
        let most = if address.is_ipv4() { 32 } else { 128 };
        let found = self.by_length.range(..=most).rev().find_map(|(length, of)| of.get(&prefix(address, *length)));
        found.map(|(name, _)| self.names[*name as usize].as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins() {
        let table = "# names of operators\n\n192.0.2.0/24 A\n192.0.2.128/25 B, south # half\n192.0.2.200 C\n\
                     0.0.0.0/0 rest\n2001:db8::/32\tA\n";
        let table = NetworkTable::parse(table).unwrap();
        for (address, name) in [
            ("192.0.2.1", Some("A")),
            ("192.0.2.129", Some("B, south")),
            ("192.0.2.200", Some("C")),
            ("::ffff:192.0.2.200", Some("C")),
            ("198.51.100.1", Some("rest")),
            ("2001:db8:1::1", Some("A")),
            ("2001:db9::1", None),
        ] {
            assert_eq!(table.find(address.parse().unwrap()), name, "{address}");
        }
        assert_eq!((table.len(), table.names.len()), (5, 4));
        assert!(NetworkTable::parse("# nothing\n").unwrap().is_empty());
    }

    #[test]
    fn bad_lines_are_named() {
        let long = format!("192.0.2.0/24 {}", "x".repeat(65));
        for (text, line, part) in [
            ("192.0.2.0/24 A\nnonsense", 2, "a network and a name"),
            ("192.0.2.0/33 A", 1, "expected a network"),
            ("192.0.2.0/-1 A", 1, "expected a network"),
            ("\n\n::/129 A", 3, "expected a network"),
            ("192.0.2.1/24 A", 1, "behind its 24 bits"),
            ("192.0.2.0/24 A\n192.0.2.0/24 A\n192.0.2.0/24 B", 3, "on line 1"),
            ("192.0.2.0/24", 1, "a network and a name"),
            (&long, 1, "too long"),
            ("\u{1b}[31m A", 1, "expected a network"),
        ] {
            let error = NetworkTable::parse(text).unwrap_err();
            assert!(error.line == line && error.message.contains(part) && !error.hint.is_empty(), "{text}: {error:?}");
            assert!(!error.message.contains('\u{1b}'));
        }
    }

    #[test]
    fn many_lines() {
        let line =
            |number: u32| format!("10.{}.{}.0/{} operator {}\n", number >> 8 & 255, number & 255, 24, number % 50);
        let v6 = |number: u32| format!("2001:{:x}:{:x}::/48 operator {}\n", number >> 16, number & 0xffff, number % 50);
        let text: String = (0..65_536).map(line).chain((0..134_464).map(v6)).collect();
        let table = NetworkTable::parse(&text).unwrap();
        assert_eq!((table.len(), table.names.len()), (200_000, 50));
        assert_eq!(table.find("10.1.2.3".parse().unwrap()), Some("operator 8"));
        assert_eq!(table.find("2001:2::1".parse().unwrap()), Some("operator 22"));
    }
}
