//! Tables and marks, compared: what is covered, what is open, what is wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use serde::Serialize;

use super::{
    id::{Id, Keyword},
    marks::{Kind, Mark},
    table::{Document, Requirement},
};

/// Number of requirements there that are, and what is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) all: usize,
    /// Not ours to obey, or not obeyed, with the reason.
    pub(crate) excepted: usize,
    /// Cited in code.
    pub(crate) implemented: usize,
    /// Cited in a test.
    pub(crate) tested: usize,
    /// Cited in code, and no test can show it, with the reason.
    pub(crate) untestable: usize,
    /// Neither excepted nor cited in both.
    pub(crate) open: usize,
}

/// Tables and marks.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) documents: Vec<Document>,
    /// Faults to be mended, in sentences.
    pub(crate) faults: Vec<String>,
    code: BTreeSet<Id>,
    tests: BTreeSet<Id>,
}

impl Survey {
    pub(crate) fn new(documents: Vec<Document>, marks: Vec<Mark>) -> Self {
        let known: BTreeMap<&Id, &Requirement> =
            documents.iter().flat_map(|document| &document.requirements).map(|r| (&r.id, r)).collect();
        let mut faults = Vec::new();
        let mut sides = [BTreeSet::new(), BTreeSet::new()];
        for Mark { id, kind, file, line } in marks {
            let place = format!("{}:{line}", file.display());
            if !known.contains_key(&id) {
                faults.push(format!("{place} cites {id}, which no table has"));
                continue;
            }
            match kind {
                Kind::Code => sides[0].insert(id),
                Kind::Test => sides[1].insert(id),
                Kind::Misplaced => {
                    faults.push(format!("{place} cites {id} in test code outside of a test, where it shows nothing"));
                    continue;
                }
            };
        }
        let [code, tests] = sides;
        for (id, requirement) in known {
            let (in_code, in_tests) = (code.contains(id), tests.contains(id));
            if requirement.except.is_some() && in_code && in_tests {
                faults.push(format!("{id} is excepted, and yet cited in code and tests"));
            }
            if requirement.untested.is_some() && in_tests {
                faults.push(format!("{id} is said to have no test, and has one"));
            }
        }
        Self { documents, faults, code, tests }
    }

    /// Missing parts of a requirement: `code`, `test`, or both; empty when nothing is.
    pub(crate) fn missing(&self, requirement: &Requirement) -> &'static str {
        let test = self.tests.contains(&requirement.id) || requirement.untested.is_some();
        match (requirement.except.is_some(), self.code.contains(&requirement.id), test) {
            (true, ..) | (_, true, true) => "",
            (_, true, false) => "test",
            (_, false, true) => "code",
            (_, false, false) => "code, no test",
        }
    }

    /// The requirements that lack something.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Requirement> {
        let all = self.documents.iter().flat_map(|document| &document.requirements);
        all.filter(|requirement| !self.missing(requirement).is_empty())
    }

    /// Counts of the requirements of one force in a document.
    pub(crate) fn counts(&self, document: &Document, force: Keyword) -> Counts {
        let mut counts = Counts::default();
        for requirement in document.requirements.iter().filter(|r| r.id.place.keyword.force() == force) {
            counts.all += 1;
            if requirement.except.is_some() {
                counts.excepted += 1;
                continue;
            }
            counts.implemented += usize::from(self.code.contains(&requirement.id));
            counts.tested += usize::from(self.tests.contains(&requirement.id));
            counts.untestable += usize::from(requirement.untested.is_some());
            counts.open += usize::from(!self.missing(requirement).is_empty());
        }
        counts
    }

    /// The forces that requirements have.
    const FORCES: [Keyword; 4] = [Keyword::Must, Keyword::MustNot, Keyword::Should, Keyword::ShouldNot];

    /// Documents and keywords, one line each.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{:<10} {:<11} {:>5} {:>9} {:>12} {:>7} {:>10} {:>5}\n",
            "document", "keyword", "all", "excepted", "implemented", "tested", "untestable", "open"
        );
        for document in &self.documents {
            let mut name = format!("RFC {}", document.number);
            for force in Self::FORCES {
                let c = self.counts(document, force);
                if c.all == 0 {
                    continue;
                }
                let _ = writeln!(
                    text,
                    "{name:<10} {:<11} {:>5} {:>9} {:>12} {:>7} {:>10} {:>5}",
                    force.text(),
                    c.all,
                    c.excepted,
                    c.implemented,
                    c.tested,
                    c.untestable,
                    c.open
                );
                name.clear();
            }
        }
        text
    }

    /// The same for programs; with `open`, also what is open.
    pub(crate) fn json(&self, open: bool) -> serde_json::Value {
        let documents: Vec<_> = self
            .documents
            .iter()
            .map(|document| {
                let counts: BTreeMap<_, _> =
                    Self::FORCES.iter().map(|force| (force.text(), self.counts(document, *force))).collect();
                serde_json::json!({ "document": document.number, "title": document.title, "counts": counts })
            })
            .collect();
        let mut all =
            serde_json::json!({ "schema": "tiderace-compliance/1", "documents": documents, "faults": self.faults });
        if open {
            let line = |r: &Requirement| {
                serde_json::json!({
                    "requirement": r.id, "applies": r.applies, "asks": r.asks,
                    "implemented": self.code.contains(&r.id), "tested": self.tests.contains(&r.id),
                })
            };
            all["open"] = self.open().map(line).collect();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::compliance::id::ids;

    fn id(place: &str) -> Id {
        ids(&format!("RFC 9 §1 {place}")).remove(0)
    }

    fn requirement(place: &str, except: Option<&str>, untested: Option<&str>) -> Requirement {
        Requirement {
            id: id(place),
            print: "00000000".to_owned(),
            applies: "endpoint".to_owned(),
            asks: "do".to_owned(),
            except: except.map(str::to_owned),
            untested: untested.map(str::to_owned),
        }
    }

    fn survey(requirements: Vec<Requirement>, marks: &[(&str, Kind)]) -> Survey {
        let mark =
            |(place, kind): &(&str, Kind)| Mark { id: id(place), kind: *kind, file: PathBuf::from("a.rs"), line: 7 };
        let document = Document { number: 9, title: "T".to_owned(), requirements };
        Survey::new(vec![document], marks.iter().map(mark).collect())
    }

    #[test]
    fn what_lacks_code_or_test_is_open() {
        let all = vec![
            requirement("MUST-1", None, None),
            requirement("MUST-2", None, None),
            requirement("SHALL-1", None, Some("timing")),
            requirement("REQUIRED-1", Some("reason"), None),
            requirement("SHOULD-1", None, None),
        ];
        let marks = [("MUST-1", Kind::Code), ("MUST-1", Kind::Test), ("MUST-2", Kind::Code), ("SHALL-1", Kind::Code)];
        let survey = survey(all, &marks);
        assert_eq!(survey.faults, [""; 0]);
        let counts = survey.counts(&survey.documents[0], Keyword::Must);
        assert_eq!(counts, Counts { all: 4, excepted: 1, implemented: 3, tested: 1, untestable: 1, open: 1 });
        let open: Vec<_> = survey.open().map(|r| (r.id.to_string(), survey.missing(r))).collect();
        assert_eq!(open, [("RFC 9 §1 MUST-2".to_owned(), "test"), ("RFC 9 §1 SHOULD-1".to_owned(), "code, no test")]);
        assert!(
            survey.table().contains("RFC 9      MUST            4         1            3       1          1     1\n")
        );
        assert_eq!(survey.json(true)["open"][0]["requirement"], "RFC 9 §1 MUST-2");
    }

    #[test]
    fn a_mark_that_points_nowhere_and_a_stale_reason_are_faults() {
        let one = || vec![requirement("MUST-1", None, None)];
        assert_eq!(survey(one(), &[("MUST-1", Kind::Misplaced)]).faults.len(), 1);
        let nowhere = survey(one(), &[("MUST-2", Kind::Code)]);
        assert_eq!(nowhere.faults, ["a.rs:7 cites RFC 9 §1 MUST-2, which no table has"]);
        let both = [("MUST-1", Kind::Code), ("MUST-1", Kind::Test)];
        assert_eq!(survey(vec![requirement("MUST-1", Some("reason"), None)], &both).faults.len(), 1);
        assert_eq!(survey(vec![requirement("MUST-1", None, Some("reason"))], &both).faults.len(), 1);
    }
}
