//! Marks in the sources: which requirement is cited where, in code or in a test.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::id::{Id, ids};

/// Place of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// In code that is built into the product.
    Code,
    /// In a test, or in the comment above it.
    Test,
    /// In test code that is no test: it shows nothing.
    Misplaced,
}

/// A mark.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) id: Id,
    pub(crate) kind: Kind,
    /// From the root of the workspace.
    pub(crate) file: PathBuf,
    /// From 1.
    pub(crate) line: usize,
}

/// All marks in the crates.
pub(crate) fn read(root: &Path) -> Result<Vec<Mark>> {
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files)?;
    files.sort();
    let texts: Vec<(PathBuf, String)> = files
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok((path, text))
        })
        .collect::<Result<_>>()?;
    // A module that its parent builds for tests only: the file or folder of its name.
    let test_modules: BTreeSet<PathBuf> = texts.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    let mut marks = Vec::new();
    for (path, text) in &texts {
        let file = path.strip_prefix(root).unwrap_or(path);
        let under_tests = file.components().any(|part| part.as_os_str() == "tests");
        let test = under_tests || path.ancestors().any(|part| test_modules.contains(&part.with_extension("")));
        marks.extend(in_text(file, text, test));
    }
    Ok(marks)
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "target" && name != "examples" {
            sources(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The modules that a file declares for tests only, as paths without extension.
fn test_modules(path: &Path, text: &str) -> Vec<PathBuf> {
    let folder = match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") => path.with_file_name(""),
        _ => path.with_extension(""),
    };
    let mut modules = Vec::new();
    let mut only_tests = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod ")).filter(|_| only_tests) {
            modules.push(folder.join(name.1));
        }
        only_tests = line.starts_with("#[cfg(test)]") || only_tests && line.starts_with("#[");
    }
    modules
}

/// The marks of one file.
fn in_text(file: &Path, text: &str, test_file: bool) -> Vec<Mark> {
    let mut marks: Vec<Mark> = Vec::new();
    let mut test_code = test_file;
    let mut for_tests = false;
    // Marks in comments of test code whose function has not come yet.
    let mut waiting = Vec::new();
    let mut attribute = false;
    // The indentation of the function in which the line stands, and whether it is a test.
    let mut function: Option<(usize, bool)> = None;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let indentation = line.len() - trimmed.len();
        // An inline module of tests; it stands at the end.
        test_code |= for_tests && is_inline_module(trimmed);
        for_tests = trimmed.starts_with("#[cfg(test)]") || for_tests && trimmed.starts_with("#[");
        attribute |= trimmed.starts_with("#[test]") || trimmed.starts_with("#[tokio::test");
        if function.is_none() && is_function(trimmed) {
            let kind = if attribute { Kind::Test } else { Kind::Misplaced };
            for at in waiting.drain(..) {
                let mark: &mut Mark = &mut marks[at];
                mark.kind = kind;
            }
            function = Some((indentation, attribute));
            attribute = false;
        }
        // A comment belongs to what follows it without a gap.
        if !(trimmed.starts_with("//") || trimmed.starts_with("#[")) {
            waiting.clear();
        }
        for id in trimmed.find("//").map(|at| ids(&trimmed[at..])).unwrap_or_default() {
            let kind = match (test_code, function) {
                (false, _) => Kind::Code,
                (true, Some((_, true))) => Kind::Test,
                (true, _) => Kind::Misplaced,
            };
            if test_code && function.is_none() && !trimmed.starts_with("//!") {
                waiting.push(marks.len());
            }
            marks.push(Mark { id, kind, file: file.to_owned(), line: index + 1 });
        }
        if function.is_some_and(|(own, _)| indentation == own && trimmed.starts_with('}') || ends_at_once(own, line)) {
            function = None;
        }
    }
    marks
}

/// Returns whether a line begins a module with its content.
fn is_inline_module(line: &str) -> bool {
    line.ends_with('{') && line.split_whitespace().any(|word| word == "mod")
}

/// Returns whether a line begins a function.
fn is_function(line: &str) -> bool {
    !line.starts_with("//") && line.split_whitespace().any(|word| word == "fn")
}

/// Returns whether a function of this indentation begins and ends in the line.
fn ends_at_once(indentation: usize, line: &str) -> bool {
    line.len() - line.trim_start().len() == indentation
        && is_function(line.trim_start())
        && (line.trim_end().ends_with('}') || line.trim_end().ends_with(';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str, test_file: bool) -> Vec<(usize, Kind)> {
        in_text(Path::new("a.rs"), text, test_file).iter().map(|mark| (mark.line, mark.kind)).collect()
    }

    // The marks below are put together, so that this file has none of its own.
    fn source(text: &str) -> String {
        text.replace("MARK", "RFC 9000 §8.1 MUST-2")
    }

    #[test]
    fn code_before_the_tests_is_code() {
        let text = source(
            "// MARK: do\nfn f() {\n    let a = 1; // MARK\n}\n#[cfg(test)]\nmod tests {\n    /// MARK\n    #[test]\n    fn t() {\n        // MARK\n    }\n}\n",
        );
        let expected = [(1, Kind::Code), (3, Kind::Code), (7, Kind::Test), (10, Kind::Test)];
        assert_eq!(kinds(&text, false), expected);
    }

    #[test]
    fn a_line_for_tests_does_not_make_the_rest_tests() {
        let text = source(
            "#[cfg(test)]\nmod tests;\n// MARK\nstruct S {\n    #[cfg(test)]\n    steps: u8,\n    // MARK\n    a: u8,\n}\n",
        );
        assert_eq!(kinds(&text, false), [(3, Kind::Code), (7, Kind::Code)]);
    }

    #[test]
    fn a_mark_in_test_code_belongs_to_a_test() {
        let text = source(
            "//! MARK\n\n#[test]\nfn t() {}\n\n// MARK\nfn setup() {\n    // MARK\n}\n\n/// MARK\n#[test]\nfn u() {\n    let x = || {\n        1\n    };\n    // MARK\n}\n// MARK\nconst A: u8 = 1;\n",
        );
        let expected = [
            (1, Kind::Misplaced),
            (6, Kind::Misplaced),
            (8, Kind::Misplaced),
            (11, Kind::Test),
            (17, Kind::Test),
            (19, Kind::Misplaced),
        ];
        assert_eq!(kinds(&text, true), expected);
    }

    #[test]
    fn text_is_no_mark() {
        assert_eq!(kinds(&source("fn f() {\n    let a = \"MARK\";\n}\n"), false), []);
    }

    #[test]
    fn modules_for_tests_are_known_by_their_parents() {
        let modules = test_modules(
            Path::new("src/keys/mod.rs"),
            "mod phases;\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\npub(crate) mod vectors;\n",
        );
        assert_eq!(modules, [PathBuf::from("src/keys/tests"), PathBuf::from("src/keys/vectors")]);
        assert_eq!(
            test_modules(Path::new("src/acks.rs"), "#[cfg(test)]\nmod tests;\n"),
            [PathBuf::from("src/acks/tests")]
        );
    }
}
