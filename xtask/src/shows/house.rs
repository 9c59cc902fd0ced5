//! Shape of the sources: the connection as a composition, the vocabulary, modules that use one another in circles.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Case, Context, hardening, house_cycles, house_items, house_work,
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
        case("cycles", "modules that use one another in circles, by crate", house_cycles::cycles),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_and_fields_are_counted() {
        let text = "pub struct Connection {\n    /// a: b\n    side: Side,\n    pub(crate) b2: u8,\n}\nimpl Connection {\n    fn x() {\n    }\n}\n";
        assert_eq!(items(text, "pub struct Connection ").into_iter().filter(|line| is_field(line)).count(), 2);
        assert_eq!(items(text, "impl Connection ").len(), 2);
    }
}
