//! From the text of a standard to its requirements: every sentence with a keyword, by section, with a fingerprint.
//!
//! The rules are simple, so that they find the same requirements again: sections are counted by their headings, figures and
//! code are skipped, a sentence ends at a full stop before a capital letter. A sentence with two keywords is two
//! requirements.

use std::collections::BTreeMap;

use anyhow::Result;

use super::id::{Keyword, Place, Section};

/// A requirement as it stands in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) section: Section,
    pub(crate) place: Place,
    pub(crate) print: String,
    pub(crate) sentence: String,
}

/// All requirements of a text in their order. `markdown`: kramdown as the working group writes it; otherwise the plain text
/// of the RFC editor.
pub(crate) fn requirements(text: &str, markdown: bool) -> Result<Vec<Found>> {
    let paragraphs = if markdown { markdown_paragraphs(text) } else { plain_paragraphs(text) };
    let mut numbers: BTreeMap<(String, Keyword), u32> = BTreeMap::new();
    let mut found = Vec::new();
    for (section, paragraph) in paragraphs {
        for sentence in sentences(&paragraph) {
            // The sentence that says what the keywords mean uses each of them, and asks for nothing.
            if sentence.contains("key words") {
                continue;
            }
            for keyword in keywords(&sentence) {
                let number = numbers.entry((section.clone(), keyword)).or_default();
                *number += 1;
                found.push(Found {
                    section: section.parse()?,
                    place: Place { keyword, number: *number },
                    print: fingerprint(&sentence),
                    sentence: sentence.clone(),
                });
            }
        }
    }
    Ok(found)
}

/// Collects lines into paragraphs, each with the section that it stands in.
struct Paragraphs {
    section: String,
    lines: Vec<String>,
    done: Vec<(String, String)>,
}

impl Paragraphs {
    fn new() -> Self {
        Self { section: "0".to_owned(), lines: Vec::new(), done: Vec::new() }
    }

    fn end(&mut self) {
        if !self.lines.is_empty() {
            self.done.push((self.section.clone(), std::mem::take(&mut self.lines).join(" ")));
        }
    }
}

fn markdown_paragraphs(text: &str) -> Vec<(String, String)> {
    let mut paragraphs = Paragraphs::new();
    let mut counts: Vec<u32> = Vec::new();
    let mut appendix = false;
    let mut fence: Option<&str> = None;
    for line in text.lines().skip_while(|line| !line.starts_with("--- middle")).skip(1) {
        let trimmed = line.trim();
        if let Some(mark) = fence {
            if trimmed.starts_with(mark) {
                fence = None;
            }
        } else if trimmed.starts_with("~~~") || trimmed.starts_with("```") {
            paragraphs.end();
            fence = Some(&trimmed[..3]);
        } else if line.starts_with("--- back") {
            appendix = true;
            counts.clear();
        } else if let Some(depth) = heading(line) {
            paragraphs.end();
            counts.resize(depth, 0);
            counts[depth - 1] += 1;
            let letter = |n: u32| char::from(b'@' + u8::try_from(n).unwrap_or(26)).to_string();
            let number = |(index, n): (usize, &u32)| match appendix && index == 0 {
                true => letter(*n),
                false => n.to_string(),
            };
            paragraphs.section = counts.iter().enumerate().map(number).collect::<Vec<_>>().join(".");
        } else if trimmed.is_empty() || trimmed.starts_with("{:") {
            paragraphs.end();
        } else {
            let item = list_item(trimmed);
            if item.is_some() {
                paragraphs.end();
            }
            paragraphs.lines.push(item.unwrap_or(trimmed).to_owned());
        }
    }
    paragraphs.end();
    paragraphs.done
}

/// The depth of a heading.
fn heading(line: &str) -> Option<usize> {
    let depth = line.len() - line.trim_start_matches('#').len();
    (depth > 0 && line[depth..].starts_with(' ')).then_some(depth)
}

/// Text behind the sign of a list item, a definition or a row of a table.
fn list_item(line: &str) -> Option<&str> {
    if let Some(row) = line.strip_prefix('|') {
        return Some(row.trim_start_matches(' '));
    }
    let rest = match line.strip_prefix(['*', '+', '-', ':']) {
        Some(rest) => rest,
        None => line.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix('.').filter(|rest| {
            // A number and a full stop, not a full stop alone.
            rest.len() + 1 < line.len()
        })?,
    };
    rest.starts_with(char::is_whitespace).then(|| rest.trim_start_matches(' '))
}

fn plain_paragraphs(text: &str) -> Vec<(String, String)> {
    let mut paragraphs = Paragraphs::new();
    for line in text.lines() {
        let trimmed = line.trim();
        if let Some(section) = plain_heading(line) {
            paragraphs.end();
            paragraphs.section = section;
        } else if trimmed.is_empty() {
            paragraphs.end();
        } else {
            if trimmed.starts_with(['*', 'o', '-']) && trimmed[1..].starts_with(char::is_whitespace) {
                paragraphs.end();
            }
            paragraphs.lines.push(trimmed.to_owned());
        }
    }
    paragraphs.end();
    paragraphs.done
}

/// The number in a heading such as `4.6.1.  Title`.
fn plain_heading(line: &str) -> Option<String> {
    let line = line.strip_prefix("Appendix ").unwrap_or(line);
    let (number, title) = line.split_once(".  ")?;
    let ok = !title.starts_with(' ') && !title.is_empty() && number.parse::<Section>().is_ok();
    ok.then(|| number.to_owned())
}

/// The sentences of a paragraph, with single spaces.
fn sentences(paragraph: &str) -> Vec<String> {
    let text: Vec<char> = paragraph.split_whitespace().collect::<Vec<_>>().join(" ").chars().collect();
    let mut sentences = Vec::new();
    let mut start = 0;
    for at in 0..text.len() {
        if !matches!(text[at], '.' | '?' | '!')
            || text[..=at].ends_with(&['e', '.', 'g', '.'])
            || text[..=at].ends_with(&['i', '.', 'e', '.'])
        {
            continue;
        }
        let mut next = at + 1;
        for closing in [')', '"'] {
            next += usize::from(text.get(next) == Some(&closing));
        }
        let begins = |c: &char| c.is_ascii_uppercase() || "\"([{`".contains(*c);
        if text.get(next) == Some(&' ') && text.get(next + 1).is_some_and(begins) {
            sentences.push(text[start..=at].iter().collect());
            start = next + 1;
        }
    }
    sentences.push(text[start..].iter().collect());
    sentences
}

/// The keywords of a sentence in their order.
fn keywords(sentence: &str) -> Vec<Keyword> {
    let mut found = Vec::new();
    let mut rest = sentence;
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        let keyword = if before.is_alphanumeric() || before == '_' { None } else { Keyword::at_start(rest) };
        if let Some((keyword, after)) = keyword {
            found.push(keyword);
            rest = after;
            before = ' ';
        } else {
            before = c;
            rest = &rest[c.len_utf8()..];
        }
    }
    found
}

/// 32 bits of FNV-1a over the words of a sentence in lower case, without references and punctuation: equal for the same
/// words, however the lines are broken. It tells a changed sentence, not a forged one.
pub(crate) fn fingerprint(sentence: &str) -> String {
    let mut plain = String::new();
    let mut depth = 0_usize;
    for c in sentence.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let words = plain.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let words = words.map(str::to_lowercase).collect::<Vec<_>>().join(" ");
    let hash = words.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKDOWN: &str = "\
---
title: A MUST that is none
--- middle
# First

An end MUST do a,
and MUST NOT do b (see {{there}}). It may do c.

~~~ pseudocode
this MUST be skipped
~~~

## Second {#second}

* Ends SHOULD do d. Ends SHOULD
  NOT do e, i.e. E.
* Ends MUST do f.

--- back
# Appendix

## Inner
1. Ends MUST do g.
";

    fn names(text: &str, markdown: bool) -> Vec<String> {
        let found = requirements(text, markdown).unwrap();
        found.iter().map(|f| format!("{} {}", f.section, f.place)).collect()
    }

    #[test]
    fn requirements_are_numbered_by_section_and_keyword() {
        let expected = ["1 MUST-1", "1 MUST NOT-1", "1.1 SHOULD-1", "1.1 SHOULD NOT-1", "1.1 MUST-1", "A.1 MUST-1"];
        assert_eq!(names(MARKDOWN, true), expected);
    }

    #[test]
    fn sentences_of_plain_text_belong_to_their_headings() {
        let text = "1.  Introduction . . . 4\n   2.  Rules\n\n3.  Rules\n\n   Ends MUST\n   do a.\n\n3.1.  More\n\n   *  REQUIRED is b.\n";
        assert_eq!(names(text, false), ["3 MUST-1", "3.1 REQUIRED-1"]);
    }

    #[test]
    fn the_fingerprint_ignores_layout_and_references_and_nothing_else() {
        let print = fingerprint("An end MUST do `a`, see {{there}}.");
        assert_eq!(print, fingerprint("An  end must do a see {{Section 1 of OTHER}}"));
        assert_ne!(print, fingerprint("An end MUST do b, see {{there}}."));
        assert_eq!(fingerprint("a"), "e40c292c", "the published value of FNV-1a");
    }

    #[test]
    fn the_sentence_about_the_key_words_asks_for_nothing() {
        assert_eq!(
            names("--- middle\n# One\nThe key words \"MUST\" and \"SHOULD\" mean what they mean.\n", true),
            [""; 0]
        );
    }
}
