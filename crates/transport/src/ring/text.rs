//! Text form of a ring, for a file that machines share: one key per line.
//!
//! ```text
//! # number, secret in hexadecimal, and optionally when it begins and ends, in Unix seconds
//! key 7 6f0c…(64 digits) from 1793491200 until 1794096000
//! ```

use super::{KeyRing, RingKey};

/// A ring that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// Text without a key.
    #[error("the ring has no key")]
    Empty,
    /// Too many keys.
    #[error("the ring has {0} keys, at most {max} are possible", max = super::MAX_KEYS)]
    TooMany(usize),
    /// Two keys have the same number.
    #[error("two keys have the number {0}")]
    Twice(u32),
    /// A key ends before it begins.
    #[error("key {0} ends before it begins")]
    Never(u32),
    /// A line cannot be read.
    #[error("line {line}: {fault}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// Fault of the line.
        #[source]
        fault: LineFault,
    },
}

/// Fault of a line in the text of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineFault {
    /// Line that is neither a key nor a comment.
    #[error("a line begins with `key`, or with `#` when it is a comment")]
    NoKey,
    /// Number of the key missing or too large.
    #[error("after `key` comes its number, below 2^32")]
    Number,
    /// Secret missing, or of another length, or not in hexadecimal.
    #[error("after the number come 64 hexadecimal digits")]
    Secret,
    /// Word other than `from` and `until` after the secret.
    #[error("after the secret come `from` and `until`")]
    UnknownWord,
    /// Time missing or not a number.
    #[error("a time is a number of Unix seconds")]
    Time,
    /// `from` or `until` twice.
    #[error("`from` or `until` comes twice")]
    Repeated,
}

impl KeyRing {
    /// Reads a ring from its text form.
    ///
    /// # Errors
    /// When a line cannot be read, or the keys make no ring. No message shows any part of a secret.
    pub fn parse(text: &str) -> Result<Self, RingError> {
        Self::new(parse_keys(text)?)
    }

    /// The text form, secrets included: for a file that only the server may read.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for RingKey { id, secret, from, until } in self.keys() {
            text.push_str(&format!("key {id} "));
            secret.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
            for (word, time) in [("from", from), ("until", until)] {
                if let Some(time) = time {
                    text.push_str(&format!(" {word} {time}"));
                }
            }
            text.push('\n');
        }
        text
    }
}

/// Reads keys, for [`KeyRing::replace`].
///
/// # Errors
/// When a line cannot be read.
fn parse_keys(text: &str) -> Result<Vec<RingKey>, RingError> {
    let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.split('#').next().unwrap_or("").trim()));
    lines
        .filter(|(_, content)| !content.is_empty())
        .map(|(line, content)| parse_key(content).map_err(|fault| RingError::Line { line, fault }))
        .collect()
}

fn parse_key(line: &str) -> Result<RingKey, LineFault> {
    let mut words = line.split_whitespace();
    if words.next() != Some("key") {
        return Err(LineFault::NoKey);
    }
    let id = words.next().and_then(|word| word.parse().ok()).ok_or(LineFault::Number)?;
    let secret = words.next().and_then(secret).ok_or(LineFault::Secret)?;
    let mut key = RingKey::new(id, secret);
    while let Some(word) = words.next() {
        let place = match word {
            "from" => &mut key.from,
            "until" => &mut key.until,
            _ => return Err(LineFault::UnknownWord),
        };
        let time = words.next().and_then(|word| word.parse().ok()).ok_or(LineFault::Time)?;
        if place.replace(time).is_some() {
            return Err(LineFault::Repeated);
        }
    }
    Ok(key)
}

fn secret(digits: &str) -> Option<[u8; 32]> {
    let mut secret = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    for (byte, pair) in secret.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let digit = |c: u8| char::from(c).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    Some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let text = format!(
            "# a comment\nkey 7 {} from 100 until 200\n\n  key 8 {} # no end\n",
            "0f".repeat(32),
            "A0".repeat(32)
        );
        let ring = KeyRing::parse(&text).unwrap();
        let keys = ring.keys();
        assert_eq!((keys[0].id, keys[0].from, keys[0].until), (7, Some(100), Some(200)));
        assert_eq!((keys[1].id, keys[1].from, keys[1].until), (8, None, None));
        assert_eq!((keys[0].secret, keys[1].secret), ([0x0f; 32], [0xa0; 32]));
        assert_eq!(KeyRing::parse(&ring.to_text()).unwrap().keys(), keys);
        assert!(!format!("{ring:?}").contains("15"), "no secret in debug output: {ring:?}");
    }

    #[test]
    fn errors_name_the_line_and_no_secret() {
        let good = "ab".repeat(32);
        for (line, fault) in [
            ("kez 1", LineFault::NoKey),
            ("key", LineFault::Number),
            ("key x", LineFault::Number),
            ("key 1", LineFault::Secret),
            ("key 1 abc", LineFault::Secret),
            (&format!("key 1 {}", "zz".repeat(32)), LineFault::Secret),
            (&format!("key 1 {good} since 9"), LineFault::UnknownWord),
            (&format!("key 1 {good} from"), LineFault::Time),
            (&format!("key 1 {good} from 1 from 2"), LineFault::Repeated),
        ] {
            let error = KeyRing::parse(&format!("\n{line}\n")).unwrap_err();
            assert_eq!(error, RingError::Line { line: 2, fault }, "{line}");
            assert!(!error.to_string().contains("abab"), "{error}");
        }
        assert_eq!(KeyRing::parse("# nothing\n").unwrap_err(), RingError::Empty);
    }
}
