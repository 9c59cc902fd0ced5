//! Functions, copies and documentation of the sources.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;

use super::{
    Context,
    command::cargo,
    house::sources,
    row::{Row, Target},
};

/// Lines of a function, at most: the limit of clippy's `too_many_lines`.
const FUNCTION: f64 = 100.0;
/// Lines of code from which on two equal pieces count as copies.
const COPY: usize = 20;
/// Crates whose public modules each have an example that is compiled.
const EXAMPLES: [&str; 3] = ["tiderace", "client", "h3"];

/// Sources of all crates that are no tests, with the tests inside of files cut off; paths from the root.
pub(super) fn product(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut all = sources(&root.join("crates"))?;
    all.retain(|(path, _)| {
        let inside = path.strip_prefix(root).unwrap_or(path);
        let is_test = |part: &std::ffi::OsStr| part == "tests" || part == "tests.rs";
        inside.iter().any(|part| part == "src") && !inside.iter().any(is_test)
    });
    for (path, text) in &mut all {
        *path = path.strip_prefix(root).unwrap_or(path).to_owned();
        if let Some((code, _)) = text.split_once("\n#[cfg(test)]\nmod ") {
            *text = code.to_owned();
        }
    }
    Ok(all)
}

/// Lines of each function, from its signature to its closing brace, with the line where it begins.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let begins = |line: &str| {
        let words = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        let words = words.trim_start_matches("pub(super) ").trim_start_matches("const ").trim_start_matches("async ");
        words.trim_start_matches("unsafe ").starts_with("fn ")
    };
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| begins(line)) {
        let depth = indent(line);
        let end = lines[at..].iter().position(|line| indent(line) == depth && (*line).trim_end().ends_with('}'));
        let declared = lines[at..].iter().position(|line| line.trim_end().ends_with(';') && indent(line) == depth);
        if let Some(end) = end.filter(|end| declared.is_none_or(|declared| *end < declared)) {
            found.push((at + 1, end + 1));
        }
    }
    found
}

/// Rows about functions.
pub(super) fn longest(context: &Context) -> Result<Vec<Row>> {
    let mut all: Vec<(usize, String)> = Vec::new();
    for (path, text) in product(&context.root)? {
        all.extend(functions(&text).into_iter().map(|(at, lines)| (lines, format!("{}:{at}", path.display()))));
    }
    anyhow::ensure!(!all.is_empty(), "there is no function");
    all.sort_by(|a, b| b.cmp(a));
    let detail: Vec<String> = all.iter().take(5).map(|(lines, place)| format!("{lines} {place}")).collect();
    #[expect(clippy::cast_precision_loss, reason = "a count of lines")]
    let row = Row::new("lines of the longest function", all[0].0 as f64, "", Target::AtMost(FUNCTION));
    Ok(vec![row.detail(detail.join("\n"))])
}

/// Pieces of at least [`COPY`] equal lines of code in two places: both places, and how many lines.
fn duplicates(files: &[(PathBuf, String)]) -> Vec<(String, String, usize)> {
    let code: Vec<(usize, usize, &str)> = files
        .iter()
        .enumerate()
        .flat_map(|(file, (_, text))| text.lines().enumerate().map(move |(at, line)| (file, at + 1, line.trim())))
        .filter(|(_, _, line)| !line.is_empty() && !line.starts_with("//") && !line.starts_with("use "))
        .collect();
    let mut places: BTreeMap<Vec<&str>, Vec<usize>> = BTreeMap::new();
    for at in 0..code.len().saturating_sub(COPY - 1) {
        let window = &code[at..at + COPY];
        if window[0].0 == window[COPY - 1].0 {
            places.entry(window.iter().map(|line| line.2).collect()).or_default().push(at);
        }
    }
    let mut starts: BTreeSet<(usize, usize)> = BTreeSet::new();
    for of_window in places.values().filter(|of_window| of_window.len() > 1) {
        starts.extend(of_window.windows(2).map(|pair| (pair[0], pair[1])));
    }
    let place = |at: usize| format!("{}:{}", files[code[at].0].0.display(), code[at].1);
    let mut found = Vec::new();
    for &(one, two) in starts.iter().filter(|(one, two)| {
        // In the middle of a longer piece.
        !(one.checked_sub(1).is_some_and(|before| starts.contains(&(before, two.wrapping_sub(1)))))
    }) {
        let more = (1..).take_while(|more| starts.contains(&(one + more, two + more))).count();
        found.push((place(one), place(two), COPY + more));
    }
    found
}

/// Rows about copies.
pub(super) fn copies(context: &Context) -> Result<Vec<Row>> {
    let found = duplicates(&product(&context.root)?);
    let detail: Vec<String> = found.iter().map(|(one, two, lines)| format!("{lines} lines: {one}, {two}")).collect();
    #[expect(clippy::cast_precision_loss, reason = "a count")]
    let count = found.len() as f64;
    let what = format!("pieces of {COPY} and more equal lines of code");
    Ok(vec![Row::new(what, count, "", Target::Exactly(0.0)).detail(detail.join("\n"))])
}

/// Public modules that `text`, the root of a crate, declares; hidden ones aside.
fn public_modules(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if let Some(name) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';'))
            && !lines[..at]
                .iter()
                .rev()
                .take_while(|above| above.starts_with('#'))
                .any(|above| above.contains("hidden"))
        {
            found.push(name);
        }
    }
    found
}

/// True if the text has an example that `cargo test` compiles.
fn has_example(text: &str) -> bool {
    let fences = text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("//! ```").or_else(|| line.strip_prefix("/// ```"))
    });
    // Every other fence ends an example.
    fences.step_by(2).any(|kind| matches!(kind, "" | "rust" | "no_run"))
}

/// Rows about documentation.
pub(super) fn documentation(context: &Context) -> Result<Vec<Row>> {
    let mut command = cargo(&context.root, ["doc", "--locked", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings -D missing_docs");
    let ended = context.commands.run("house-doc", &mut command, Duration::from_secs(1_800))?;
    let reason = if ended.succeeded() { String::new() } else { ended.reason() };
    let mut bare = Vec::new();
    let mut modules = 0;
    for name in EXAMPLES {
        let folder = context.root.join("crates").join(name).join("src");
        let root = std::fs::read_to_string(folder.join("lib.rs"))?;
        let mut texts = vec![("lib".to_owned(), root.clone())];
        for module in public_modules(&root) {
            let file = folder.join(format!("{module}.rs"));
            let file = if file.exists() { file } else { folder.join(module).join("mod.rs") };
            texts.push((module.to_owned(), std::fs::read_to_string(file)?));
        }
        modules += texts.len();
        bare.extend(texts.iter().filter(|(_, text)| !has_example(text)).map(|(module, _)| format!("{name}::{module}")));
    }
    #[expect(clippy::cast_precision_loss, reason = "a count")]
    let without = bare.len() as f64;
    Ok(vec![
        Row::new("`cargo doc` with warnings", f64::from(!ended.succeeded()), "", Target::Exactly(0.0)).detail(reason),
        Row::new("public modules without a compiled example", without, "", Target::Exactly(0.0)).detail(format!(
            "{modules} modules of {}; {}",
            EXAMPLES.join(", "),
            bare.join(", ")
        )),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured() {
        let text = "impl A {\n    pub(super) fn long(\n        a: u8,\n    ) {\n        x();\n    }\n\n    fn declared();\n}\nfn short() {}\n";
        assert_eq!(functions(text), [(2, 5), (10, 1)]);
    }

    #[test]
    fn copies_are_found_whole_and_once() {
        let piece: String = (0..25).map(|n| format!("    step({n});\n")).collect();
        let file = |name: &str, before: &str| (PathBuf::from(name), format!("{before}{piece}"));
        let files = [file("a.rs", "fn a() {\n"), file("b.rs", "// a comment\nfn b() {\n    // another\n")];
        assert_eq!(duplicates(&files), [("a.rs:2".to_owned(), "b.rs:4".to_owned(), 25)]);
        assert!(duplicates(&files[..1]).is_empty());
    }

    #[test]
    fn examples_are_seen() {
        assert!(has_example("//! ```no_run\n//! x\n//! ```\n"));
        assert!(!has_example("//! ```toml\n//! x\n//! ```\n"));
        assert_eq!(public_modules("pub mod a;\n#[doc(hidden)]\npub mod b;\nmod c;\n"), ["a"]);
    }
}
