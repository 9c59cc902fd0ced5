//! Shape of the sources: the connection as a composition, the vocabulary, modules that use one another in circles.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Case, Context, hardening, house_items, house_work,
    row::{Row, Target},
};

/// Fields of `Connection`, lines of its `impl` blocks, and lines of a file of the transport, at most.
const FIELDS: f64 = 25.0;
const LINES: f64 = 2_500.0;
const LONGEST: f64 = 600.0;

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("connection", "fields and lines of Connection, and the longest file of the transport", connection),
        case("words", "share of doc comments that begin with a pronoun", words),
        case("cycles", "modules that use one another in circles, by crate", cycles),
        case("control-frame", "files that know a control frame, counted in the sources", house_work::control_frame),
        case("functions", "lines of the longest function of the crates", house_items::longest),
        case("copies", "equal pieces of code in two places", house_items::copies),
        case("documentation", "`cargo doc` without warnings, examples of public modules", house_items::documentation),
        case("instructions", "growth of the instruction table", |context| {
            hardening::growth_of_instructions(context, 1.0)
        }),
        case("builds", "time of builds after a change, and of the README's first (--long)", house_work::builds),
    ]
}

/// Sources below a folder, with their text.
pub(super) fn sources(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
                found.push((path, text));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Lines of the items that begin with `head` at the beginning of a line, up to their closing brace there; without those two.
fn items<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if inside && line.starts_with('}') {
            inside = false;
        } else if inside {
            lines.push(line);
        } else if line.starts_with(head) && line.ends_with('{') {
            inside = true;
        }
    }
    lines
}

/// True if a line of a struct declares a field.
fn is_field(line: &str) -> bool {
    let line =
        line.trim().trim_start_matches("pub ").trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
    let name = line.split(':').next().unwrap_or_default();
    line.contains(':')
        && !name.is_empty()
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn connection(context: &Context) -> Result<Vec<Row>> {
    let all = sources(&context.root.join("crates/transport/src"))?;
    let (mut fields, mut lines, mut longest) = (0, 0, (0, PathBuf::new()));
    for (path, text) in &all {
        if path.parent().is_some_and(|folder| folder.ends_with("connection")) {
            fields += items(text, "pub struct Connection ").into_iter().filter(|line| is_field(line)).count();
            lines += items(text, "impl Connection ").len();
        }
        longest = longest.max((text.lines().count(), path.clone()));
    }
    ensure!(fields > 0 && lines > 0, "there is no Connection");
    let name = longest.1.strip_prefix(&context.root).unwrap_or(&longest.1).display().to_string();
    #[expect(clippy::cast_precision_loss, reason = "counts of lines")]
    let row = |what: &str, count: usize, most: f64| Row::new(what, count as f64, "", Target::AtMost(most));
    Ok(vec![
        row("fields of Connection", fields, FIELDS),
        row("lines of impl Connection", lines, LINES).detail("blank lines and comments included"),
        row("lines of the longest file of the transport", longest.0, LONGEST).detail(name),
    ])
}

fn words(context: &Context) -> Result<Vec<Row>> {
    let program = std::env::current_exe().context("the name of this program")?;
    let mut command = Command::new(program);
    command.current_dir(&context.root).args(["words", "--json"]);
    let ended = context.commands.run("words", &mut command, Duration::from_secs(120))?;
    let report: Value = serde_json::from_str(&ended.stdout).with_context(|| format!("words: {}", ended.reason()))?;
    let share = report["workspace_share_percent"].as_f64().context("no share")?;
    let faults = report["faults"].as_array().context("no faults")?;
    let said: Vec<&str> = faults.iter().filter_map(Value::as_str).collect();
    #[expect(clippy::cast_precision_loss, reason = "a count")]
    let count = said.len() as f64;
    Ok(vec![
        Row::new("doc comments that begin with a pronoun", share, "%", Target::AtMost(6.0)),
        Row::new("faults of `cargo xtask words`", count, "", Target::Exactly(0.0)).detail(said.join("\n")),
    ])
}

fn cycles(context: &Context) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for name in ["transport", "tiderace", "h3", "client", "edge", "lab"] {
        let folder = context.root.join("crates").join(name).join("src");
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (path, text) in sources(&folder)? {
            let module = module(path.strip_prefix(&folder)?);
            // Tests may look at everything.
            if path.file_stem().is_some_and(|stem| stem == "tests") || matches!(module.as_str(), "lib" | "main") {
                continue;
            }
            let code = text.split("\n#[cfg(test)]").next().unwrap_or_default();
            uses.entry(module.clone()).or_default().extend(used(code).into_iter().filter(|used| *used != module));
        }
        let circle = in_circles(&uses);
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        let row = Row::new(format!("modules in circles: {name}"), circle.len() as f64, "", Target::Exactly(0.0));
        rows.push(row.detail(circle.into_iter().collect::<Vec<_>>().join(", ")));
    }
    Ok(rows)
}

/// The module below the crate's root that a file belongs to.
fn module(path: &Path) -> String {
    let first = path.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned());
    first.unwrap_or_default().trim_end_matches(".rs").to_owned()
}

/// Modules named after `crate::`, in paths and in braces, outside comments.
fn used(code: &str) -> BTreeSet<String> {
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        if let Some(rest) = rest.strip_prefix('{') {
            let (mut depth, mut name) = (0, String::new());
            for letter in rest.chars() {
                match letter {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        found.insert(first_name(&name));
                        name.clear();
                    }
                    _ if depth == 0 => name.push(letter),
                    _ => {}
                }
            }
            found.insert(first_name(&name));
        } else {
            found.insert(first_name(rest));
        }
    }
    found
}

fn first_name(path: &str) -> String {
    path.trim().chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

/// Modules that reach themselves through others.
fn in_circles(uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let reaches = |start: &String| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&String> = uses[start].iter().collect();
        while let Some(module) = open.pop() {
            if seen.insert(module) {
                open.extend(uses.get(module).into_iter().flatten());
            }
        }
        seen.contains(start)
    };
    uses.keys().filter(|module| reaches(module)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_found() {
        let code =
            "use crate::{\n    a::{b, c},\n    d,\n    e::f::{self, g},\n};\nfn x() { crate::h::y() }\n// crate::i\n";
        assert_eq!(used(code).into_iter().collect::<Vec<_>>(), ["", "a", "d", "e", "h"]);
        let graph = |edges: &[(&str, &[&str])]| -> BTreeMap<String, BTreeSet<String>> {
            edges.iter().map(|(from, to)| ((*from).to_owned(), to.iter().map(|&to| to.to_owned()).collect())).collect()
        };
        assert!(in_circles(&graph(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])).is_empty());
        let circle = in_circles(&graph(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])]));
        assert_eq!(circle.into_iter().collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn items_and_fields_are_counted() {
        let text = "pub struct Connection {\n    /// a: b\n    side: Side,\n    pub(crate) b2: u8,\n}\nimpl Connection {\n    fn x() {\n    }\n}\n";
        assert_eq!(items(text, "pub struct Connection ").into_iter().filter(|line| is_field(line)).count(), 2);
        assert_eq!(items(text, "impl Connection ").len(), 2);
    }
}
