//! Truth of ARCHITECTURE.md: files and tests that it names exist.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Texts between backticks, outside of code blocks, with the heading that they stand under.
fn quoted(text: &str) -> Vec<(String, String)> {
    let (mut heading, mut is_block, mut quoted) = (String::new(), false, Vec::new());
    for line in text.lines() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if let Some(title) = line.strip_prefix('#') {
            heading = title.trim_start_matches('#').trim().to_owned();
        } else if !is_block {
            quoted.extend(line.split('`').skip(1).step_by(2).map(|one| (heading.clone(), one.to_owned())));
        }
    }
    quoted
}

/// Paths among quoted texts: they have a slash, and nothing that a path of this repository lacks.
fn is_path(text: &str) -> bool {
    text.contains('/') && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c))
}

/// Names of tests in the last column of the tables: a table row whose last cell is quoted names.
fn tests_named(text: &str) -> BTreeSet<String> {
    let from = text.find("## Invariants").map_or("", |at| &text[at..]);
    let rows = from.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|line| line.trim_end_matches('|').rsplit('|').next());
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .filter(|name| name.contains('_'))
        .collect()
}

/// Sources of the product and of this program.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// Names of functions marked as tests in a source.
fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        if line.starts_with("#[test") || line.starts_with("#[tokio::test") {
            is_test = true;
            return None;
        }
        let at = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
        std::mem::take(&mut is_test).then(|| at.split(['(', '<']).next().unwrap_or(at))
    })
}

#[test]
fn files_and_tests_that_the_document_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let paths: Vec<_> = quoted(&text).into_iter().filter(|(_, one)| is_path(one)).collect();
    let lost: Vec<_> = paths.iter().filter(|(_, path)| !root.join(path).exists()).collect();
    assert!(paths.len() > 30, "the document names files: {paths:?}");
    assert!(lost.is_empty(), "named under a heading, but not there: {lost:?}");
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files);
    let texts: Vec<_> = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let tests: BTreeSet<&str> = texts.iter().flat_map(|text| tests_in(text)).collect();
    let named = tests_named(&text);
    let lost: Vec<_> = named.iter().filter(|name| !tests.contains(name.as_str())).collect();
    assert!(named.len() > 15, "the document names tests: {named:?}");
    assert!(lost.is_empty(), "named as tests, but not there: {lost:?}");
}

#[test]
fn terms_of_the_glossary_are_few() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let glossary = text.split("## Glossary").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let terms = glossary.lines().filter(|line| line.starts_with("| ")).count() - 1;
    assert!((20..=40).contains(&terms), "{terms} terms");
}

#[test]
fn what_is_missing_is_noticed() {
    let text = "# A\n## Invariants\n| rule | why | test |\n|---|---|---|\n| a `b/c.rs` | b | `some_test`, `other_one` |\n| a | b | – |\n";
    assert_eq!(tests_named(text).into_iter().collect::<Vec<_>>(), ["other_one", "some_test"]);
    assert!(quoted(text).contains(&("Invariants".to_owned(), "b/c.rs".to_owned())));
    assert!(is_path("crates/a.rs") && !is_path("a::b") && !is_path("rate / delay"));
    let source =
        "#[tokio::test(flavor = \"x\")]\n    async fn some_test() {}\nfn helper() {}\n#[test]\nfn third() {}\n";
    assert_eq!(tests_in(source).collect::<Vec<_>>(), ["some_test", "third"]);
}
