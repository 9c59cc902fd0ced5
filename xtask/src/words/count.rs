//! Counting: files of the tree, doc comments in them, words.

use std::{collections::BTreeMap, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::list::{Allowed, List, Place};

/// Files whose words count.
const ENDINGS: [&str; 9] = ["rs", "md", "toml", "yml", "yaml", "json", "sh", "py", "service"];

/// Files that list the terms themselves, or what their names were in the past.
const EXEMPT: [&str; 3] = ["CHANGELOG.md", "xtask/words.toml", "xtask/src/words/"];

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Counts {
    /// Doc comments: runs of `///` or `//!` lines.
    pub(super) comments: usize,
    /// Doc comments that begin with a listed word.
    pub(super) starts: usize,
    /// Uses of listed terms outside the exceptions.
    pub(super) terms: usize,
}

impl Counts {
    /// Share of doc comments with a listed first word, in percent.
    pub(super) fn percent(&self) -> f64 {
        100.0 * self.starts as f64 / self.comments.max(1) as f64
    }

    fn add(&mut self, other: Self) {
        self.comments += other.comments;
        self.starts += other.starts;
        self.terms += other.terms;
    }
}

/// One place that counts against a rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) path: String,
    pub(super) line: usize,
    pub(super) text: String,
}

#[derive(Debug)]
pub(super) struct Survey {
    /// Counts by crate; what lies in no crate, by top folder.
    pub(super) crates: Vec<(String, Counts)>,
    pub(super) hits: Vec<Hit>,
    /// For each exception: uses that it covers.
    covered: Vec<usize>,
}

/// Tracked files whose words count, with their text.
pub(super) fn files(root: &Path) -> Result<Vec<(String, String)>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    ensure!(output.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    let list = String::from_utf8(output.stdout).context("git names a file that is not UTF-8")?;
    let mut files = Vec::new();
    for path in list.split_terminator('\0') {
        let wanted = path.rsplit_once('.').is_some_and(|(_, ending)| ENDINGS.contains(&ending));
        let exempt = EXEMPT.iter().any(|exempt| path.starts_with(exempt));
        // A deleted file stays in the index until it is staged; a file that is no text has no words.
        if wanted
            && !exempt
            && let Ok(text) = std::fs::read_to_string(root.join(path))
        {
            files.push((path.to_owned(), text));
        }
    }
    Ok(files)
}

impl Survey {
    pub(super) fn of(list: &List, files: &[(String, String)]) -> Self {
        let mut crates = BTreeMap::<String, Counts>::new();
        let mut hits = Vec::new();
        let mut covered = vec![0; list.allowed.len()];
        for (path, text) in files {
            let counts = crates.entry(group(path)).or_default();
            if path.ends_with(".rs") {
                counts.add(doc_comments(list, path, text, &mut hits));
            }
            counts.terms += terms(list, path, text, &mut hits, &mut covered);
        }
        Self { crates: crates.into_iter().collect(), hits, covered }
    }

    pub(super) fn of_crate(&self, name: &str) -> Counts {
        self.crates.iter().find(|(known, _)| known == name).map(|(_, counts)| *counts).unwrap_or_default()
    }

    pub(super) fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.crates.iter().for_each(|(_, counts)| total.add(*counts));
        total
    }

    /// Counts over all crates without a ceiling of their own.
    pub(super) fn share(&self, list: &List) -> Counts {
        let mut total = Counts::default();
        for (name, counts) in &self.crates {
            if !list.ceiling.iter().any(|ceiling| ceiling.name == *name) {
                total.add(*counts);
            }
        }
        total
    }

    pub(super) fn faults(&self, list: &List) -> Vec<String> {
        let mut faults = Vec::new();
        let share = self.share(list);
        let limit = list.doc_comments.share_percent_max;
        if share.percent() >= limit {
            faults
                .push(format!("{:.1} % of doc comments begin with a pronoun, the limit is {limit} %", share.percent()));
        }
        for (name, counts) in &self.crates {
            let ceiling = list.ceiling.iter().find(|ceiling| ceiling.name == *name);
            if let Some(ceiling) = ceiling
                && counts.starts > ceiling.starts
            {
                faults.push(format!("{name}: {} pronoun starts, the ceiling is {}", counts.starts, ceiling.starts));
            }
            let allowed = ceiling.map_or(0, |ceiling| ceiling.terms);
            if counts.terms > allowed {
                faults.push(format!(
                    "{name}: {} uses of listed terms, {allowed} are allowed (--places names them)",
                    counts.terms
                ));
            }
        }
        for (allowed, covered) in list.allowed.iter().zip(&self.covered) {
            if *covered == 0 {
                faults.push(format!("exception {:?} in {} covers nothing", allowed.word, allowed.path));
            }
        }
        faults
    }
}

/// Crate of a file, or its top folder; `.` for files at the root.
fn group(path: &str) -> String {
    let path = path.strip_prefix("crates/").unwrap_or(path);
    path.split_once('/').map_or(".", |(first, _)| first).to_owned()
}

/// Text of a doc comment's line.
fn doc_line(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
    // Four slashes are no doc comment.
    (!text.starts_with('/')).then(|| text.trim())
}

fn doc_comments(list: &List, path: &str, text: &str, hits: &mut Vec<Hit>) -> Counts {
    let mut counts = Counts::default();
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        let Some(comment) = doc_line(line) else {
            inside = false;
            continue;
        };
        if inside || comment.is_empty() {
            continue;
        }
        inside = true;
        counts.comments += 1;
        let first = comment.trim_start_matches(|c: char| !c.is_alphabetic());
        let first = first.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default().to_lowercase();
        if list.doc_comments.starts.contains(&first) {
            counts.starts += 1;
            hits.push(Hit {
                path: path.to_owned(),
                line: number + 1,
                text: format!("starts with {first:?}: {comment}"),
            });
        }
    }
    counts
}

fn terms(list: &List, path: &str, text: &str, hits: &mut Vec<Hit>, covered: &mut [usize]) -> usize {
    let is_rust = path.ends_with(".rs");
    let mut found = 0;
    for (number, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        for term in &list.term {
            // Most lines hold none of the terms, whatever their parts are.
            let stem = term.word.strip_suffix('y').unwrap_or(&term.word).to_lowercase();
            if !lower.contains(&stem) {
                continue;
            }
            let uses = match term.place {
                Place::Anywhere => words(line).filter(|word| is_form_of(word, &term.word)).count(),
                Place::Names if is_rust => names(line).filter(|name| *name == term.word).count(),
                Place::Names => 0,
            };
            if uses == 0 {
                continue;
            }
            let is_allowed = |allowed: &Allowed| allowed.word == term.word && path.starts_with(&allowed.path);
            if let Some(index) = list.allowed.iter().position(is_allowed) {
                covered[index] += uses;
                continue;
            }
            found += uses;
            hits.push(Hit {
                path: path.to_owned(),
                line: number + 1,
                text: format!("{:?}, say {:?}: {}", term.word, term.instead, line.trim()),
            });
        }
    }
    found
}

/// Parts of names and words of prose in lower case: `VisitLog` and `visit_log` are `visit` and `log`.
fn words(line: &str) -> impl Iterator<Item = String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut after_lower = false;
    for c in line.chars() {
        if !c.is_alphabetic() || (c.is_uppercase() && after_lower) {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphabetic() {
            word.extend(c.to_lowercase());
        }
        after_lower = c.is_lowercase();
    }
    words.push(word);
    words.into_iter().filter(|word| !word.is_empty())
}

/// Returns whether a word is the term, or its plural.
fn is_form_of(word: &str, term: &str) -> bool {
    let plural = match term.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{term}s"),
    };
    word == term || word == plural
}

/// Whole names in a line of code, without its comment.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split_once("//").map_or(line, |(code, _)| code);
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"
        [doc-comments]
        starts = ["it", "what"]
        share-percent-max = 30.0

        [[ceiling]]
        crate = "old"
        starts = 1
        terms = 1

        [[term]]
        word = "visit"
        place = "anywhere"
        instead = "connection attempt"

        [[term]]
        word = "story"
        place = "anywhere"
        instead = "record"

        [[term]]
        word = "Way"
        place = "names"
        instead = "direction"

        [[allowed]]
        word = "visit"
        path = "crates/config/"
        why = "serde's trait"
    "#;

    fn survey(files: &[(&str, &str)]) -> (Survey, Vec<String>) {
        let list: List = toml::from_str(LIST).unwrap();
        // The exception is used in every survey, so that only the test about it sees its fault.
        let mut all = vec![("crates/config/src/lib.rs".to_owned(), "fn visit_str() {}".to_owned())];
        all.extend(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
        let survey = Survey::of(&list, &all);
        let faults = survey.faults(&list);
        (survey, faults)
    }

    #[test]
    fn a_doc_comment_is_a_run_of_lines_and_counts_once() {
        let text = "//! What a file holds.\n//! It goes on.\n\n/// Rate in bits.\n/// It is one comment.\nfn a() {}\n//// It is none.\n// It is none.\n";
        let (survey, faults) = survey(&[("crates/new/src/lib.rs", text)]);
        assert_eq!(survey.of_crate("new"), Counts { comments: 2, starts: 1, terms: 0 });
        assert_eq!(faults, ["50.0 % of doc comments begin with a pronoun, the limit is 30 %"]);
    }

    #[test]
    fn first_words_count_whatever_marks_and_case_they_have() {
        let text = "/// *It* is.\nfn a() {}\n/// ITEM of a list.\nfn b() {}\n    /// What's left.\nfn c() {}\n///\n/// What comes after an empty line.\nfn d() {}";
        assert_eq!(survey(&[("crates/new/src/lib.rs", text)]).0.of_crate("new").starts, 3);
    }

    #[test]
    fn a_ceiling_takes_its_crate_out_of_the_share_and_is_a_limit() {
        let text = "/// It is.\nfn a() {}\n";
        assert_eq!(survey(&[("crates/old/src/a.rs", text)]).1, Vec::<String>::new());
        let twice = [("crates/old/src/a.rs", text), ("crates/old/src/b.rs", text)];
        assert_eq!(survey(&twice).1, ["old: 2 pronoun starts, the ceiling is 1"]);
    }

    #[test]
    fn terms_are_found_in_names_prose_and_data() {
        let text = "struct VisitLog;\nfn note_visits() {}\n// Visits, told as stories.\nlet revisited = historyOf;\n";
        let (found, faults) =
            survey(&[("crates/new/src/lib.rs", text), ("docs/a.md", "A visit."), ("deploy/b.json", "{\"visits\": 1}")]);
        assert_eq!(found.of_crate("new").terms, 4);
        assert_eq!((found.of_crate("docs").terms, found.of_crate("deploy").terms), (1, 1));
        assert_eq!(faults.len(), 3);
        assert_eq!(found.hits[0].line, 1);
    }

    #[test]
    fn names_are_found_in_code_alone() {
        let text = "enum Way { A }\n// Way back.\nlet way = Way::A; // Way\nstruct WayBack;\n";
        assert_eq!(survey(&[("crates/new/src/lib.rs", text), ("docs/a.md", "Way")]).0.of_crate("new").terms, 2);
        assert_eq!(survey(&[("docs/a.md", "Way")]).0.of_crate("docs").terms, 0);
    }

    #[test]
    fn an_exception_covers_its_path_and_has_to_be_needed() {
        let list: List = toml::from_str(LIST).unwrap();
        let other = [("crates/new/src/lib.rs".to_owned(), "fn visit_str() {}".to_owned())];
        let faults = Survey::of(&list, &other).faults(&list);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert_eq!(faults[1], "exception \"visit\" in crates/config/ covers nothing");
    }
}
