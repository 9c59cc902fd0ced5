//! Text of peers on a terminal: it must not move the cursor, change colours, or start a new line.

use std::borrow::Cow;

/// The text on one line, with control characters and bidirectional overrides (Trojan Source) escaped.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| letter.is_control() || turns(letter))
}

/// As [`printable`], for text of several lines.
pub(crate) fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| (letter.is_control() && letter != '\n' && letter != '\t') || turns(letter))
}

fn turns(letter: char) -> bool {
    matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}')
}

fn escaped(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_bad) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_bad(letter) {
            out.extend(letter.escape_default());
        } else {
            out.push(letter);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_but_letters() {
        let said = "a\u{1b}[2Jb\u{9b}31mc\rd\ne\u{202e}f\u{7f}\tg\u{7}";
        assert_eq!(printable(said), "a\\u{1b}[2Jb\\u{9b}31mc\\rd\\ne\\u{202e}f\\u{7f}\\tg\\u{7}");
        assert_eq!(printable_lines("a\n\tb\u{1b}c"), "a\n\tb\\u{1b}c");
        assert!(matches!(printable("größer als 3 € \u{1f980}"), Cow::Borrowed(_)));
    }
}
