//! Cost of work on the sources: files that a control frame touches, and the time of builds.

use std::{
    collections::BTreeSet,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::{
    Context,
    command::{cargo, load},
    house_items::product,
    row::{Row, Target},
};

/// The table of control frames: its rows say which frames there are.
const TABLE: &str = "crates/transport/src/sent/control.rs";
/// Files that a new control frame touches, at most: the wire crate's table, the owner, qlog, the row.
const FILES: f64 = 4.0;
/// Seconds of a build after a change of the transport, at most.
const AFTER_A_CHANGE: f64 = 60.0;
/// Seconds of the first build from nothing, at most.
const FIRST_BUILD: f64 = 150.0;

/// A row of the table: the variant, and the method that obeys the peer's frame, if it names one.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    name: String,
    obey: Option<String>,
}

/// Rows of the table, from the text of its file.
fn frames(table: &str) -> Vec<Frame> {
    let Some((_, rows)) = table.split_once("$to! {") else { return Vec::new() };
    let rows = rows.split_once("\n        }").map_or(rows, |(rows, _)| rows);
    let code: Vec<&str> = rows.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
    let code = code.join(" ");
    let code = code.strip_prefix("$($args)*").unwrap_or(&code);
    let row = |row: &str| {
        let name: String = row.trim().chars().take_while(char::is_ascii_alphanumeric).collect();
        let obey = row.split_once("=>").map(|(_, obey)| obey.trim().to_owned());
        (!name.is_empty()).then_some(Frame { name, obey })
    };
    code.split(';').filter_map(row).collect()
}

/// True if a line of code outside of comments has the word.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.lines().filter_map(|line| line.split("//").next()).any(|line| {
        line.match_indices(word).any(|(at, _)| {
            !line[..at].chars().next_back().is_some_and(is_part)
                && !line[at + word.len()..].chars().next().is_some_and(is_part)
        })
    })
}

/// Files of the wire crate and the transport that know a frame: by its variant, or by the method that obeys it. Other types
/// of the transport may have the name of a frame, so that there a variant counts only behind the name of its enum.
fn touched<'a>(frame: &Frame, files: &'a [(PathBuf, String)]) -> BTreeSet<&'a Path> {
    let knows = |path: &Path, text: &str| {
        if path.starts_with("crates/wire/src") {
            return has_word(text, &frame.name);
        }
        path == Path::new(TABLE)
            || path.starts_with("crates/transport/src")
                && (["Frame", "ControlFrame", "QuicFrame"]
                    .iter()
                    .any(|of| has_word(text, &format!("{of}::{}", frame.name)))
                    || frame.obey.as_ref().is_some_and(|obey| has_word(text, &format!("fn {obey}"))))
    };
    files.iter().filter(|(path, text)| knows(path, text)).map(|(path, _)| path.as_path()).collect()
}

/// Rows about the exercise of CONTRIBUTING.md, "Add a control frame".
pub(super) fn control_frame(context: &Context) -> Result<Vec<Row>> {
    let files = product(&context.root)?;
    let table = std::fs::read_to_string(context.root.join(TABLE)).with_context(|| format!("cannot read {TABLE}"))?;
    let frames = frames(&table);
    ensure!(!frames.is_empty(), "{TABLE} has no rows");
    let rows = frames.iter().map(|frame| {
        let touched = touched(frame, &files);
        let names: Vec<String> = touched.iter().map(|path| path.display().to_string()).collect();
        #[expect(clippy::cast_precision_loss, reason = "a count of files")]
        let count = touched.len() as f64;
        Row::new(format!("files that know {}, tests aside", frame.name), count, "", Target::AtMost(FILES))
            .detail(names.join(", "))
    });
    Ok(rows.collect())
}

/// Rows about the time of builds. They hold for two cores that do nothing else; the detail of each row says how busy they were.
pub(super) fn builds(context: &Context) -> Result<Vec<Row>> {
    const LIMIT: Duration = Duration::from_secs(3_600);
    let mut rows = Vec::new();
    let after = [
        ("`cargo check --workspace`", "check", vec!["check", "--locked", "--workspace"]),
        (
            "`cargo test -p tiderace-transport`",
            "test-transport",
            vec!["test", "--locked", "--no-run", "-p", "tiderace-transport"],
        ),
        ("`cargo test -p tiderace-h3`", "test-h3", vec!["test", "--locked", "--no-run", "-p", "tiderace-h3"]),
    ];
    // In a clone, since what is changed is the source; with the dependencies that are built already.
    let tree = context.commands.scratch("house-change")?.join("clone");
    let mut clone = Command::new("git");
    clone.arg("clone").arg("--quiet").arg(&context.root).arg(&tree);
    context.commands.run("house-clone", &mut clone, LIMIT)?.ok().context("git clone")?;
    for (what, name, arguments) in after {
        let build = || {
            let mut build = cargo(&tree, arguments.iter().copied());
            build.env("CARGO_TARGET_DIR", context.commands.target());
            build
        };
        context.commands.run(&format!("house-{name}"), &mut build(), LIMIT)?.ok()?;
        // What others may call: everything that depends on the transport is built again.
        let mut changed = File::options().append(true).open(tree.join("crates/transport/src/lib.rs"))?;
        let function = name.replace('-', "_");
        writeln!(changed, "\n/// Change for a measurement.\npub fn {function}(of: u64) -> u64 {{\n    of + 1\n}}")?;
        let again = context.commands.run(&format!("house-{name}-again"), &mut build(), LIMIT)?.ok()?;
        ensure!(again.stderr.contains("tiderace-transport"), "the second build did not look at the transport");
        let what = format!("{what} after a new function in the transport, without the run");
        rows.push(Row::new(what, again.seconds, "s", Target::AtMost(AFTER_A_CHANGE)).detail(load()));
    }
    std::fs::remove_dir_all(&tree)?;
    if context.long {
        let mut build = cargo(&context.root, ["build", "--locked", "--release", "--timings"]);
        let target = context.commands.scratch("house-build")?;
        build.env("CARGO_TARGET_DIR", &target);
        let first = context.commands.run("house-first-build", &mut build, LIMIT)?.ok()?;
        let timings = std::fs::read_to_string(target.join("cargo-timings/cargo-timing.html"))?;
        let what = "first build of the README, `cargo build --release`, dependencies fetched";
        rows.push(Row::new(what, first.seconds, "s", Target::AtMost(FIRST_BUILD)).detail(format!(
            "{}; {}",
            slowest(&timings)?,
            load()
        )));
    }
    Ok(rows)
}

/// A unit of cargo's report on times.
#[derive(Debug, Deserialize)]
struct Unit {
    name: String,
    target: String,
    /// Seconds.
    duration: f64,
}

/// The units that took longest, by cargo's own report.
fn slowest(html: &str) -> Result<String> {
    let from = html.find("UNIT_DATA = ").context("the report of times has no units")? + "UNIT_DATA = ".len();
    let mut stream = serde_json::Deserializer::from_str(&html[from..]).into_iter::<Vec<Unit>>();
    let mut units = stream.next().context("the report of times is empty")??;
    units.sort_by(|a, b| b.duration.total_cmp(&a.duration));
    let sum: f64 = units.iter().map(|unit| unit.duration).sum();
    let longest = units.iter().take(8).map(|unit| format!("{}{} {:.0} s", unit.name, unit.target, unit.duration));
    Ok(format!("{} units, {sum:.0} s in all, the longest: {}", units.len(), longest.collect::<Vec<_>>().join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "macro_rules! m {\n    () => {\n        $to! { $($args)*\n            /// A; b.\n            Ping: a.b;\n            \
                        /// C.\n            Token(u64): a.c,\n                { x } => on_token;\n        }\n    };\n}\n";

    #[test]
    fn rows_of_the_table_are_read() {
        let frame = |name: &str, obey: Option<&str>| Frame { name: name.to_owned(), obey: obey.map(str::to_owned) };
        assert_eq!(frames(ROWS), [frame("Ping", None), frame("Token", Some("on_token"))]);
        assert!(frames("fn other() {}").is_empty());
    }

    #[test]
    fn the_slowest_units_are_read_from_the_report() {
        let html = r#"<script>DURATION = 3; const UNIT_DATA = [{"i":0,"name":"a","version":"1","target":"","duration":1.5,"x":[]},
            {"i":1,"name":"b","target":" build-script","duration":2.6}]; more"#;
        assert_eq!(slowest(html).unwrap(), "2 units, 4 s in all, the longest: b build-script 3 s, a 2 s");
        assert!(slowest("nothing").is_err());
    }

    #[test]
    fn every_file_that_knows_a_frame_counts_once() {
        let file = |path: &str, text: &str| (PathBuf::from(path), text.to_owned());
        let files = [
            file("crates/wire/src/frame/table.rs", "TOKEN = 7 => Token {"),
            file("crates/wire/src/frame/ack.rs", "struct TokenOther; // Token"),
            file(TABLE, ROWS),
            file("crates/transport/src/connection/owner.rs", "fn on_token() { Frame::Token }"),
            file("crates/transport/src/qlog/frames.rs", "Frame::Token { .. } => x"),
            file("crates/transport/src/verdicts.rs", "SentFrame::Tokens\n// Frame::Token\nenum Token {}"),
            file("crates/edge/src/lib.rs", "Frame::Token"),
        ];
        let frame = |name: &str, obey: &str| Frame { name: name.to_owned(), obey: Some(obey.to_owned()) };
        assert_eq!(touched(&frame("Token", "on_token"), &files).len(), 4);
        // One more place is seen.
        let more = [&files[..], &[file("crates/transport/src/sent.rs", "ControlFrame::Token => 1")]].concat();
        assert_eq!(touched(&frame("Token", "on_token"), &more).len(), 5);
    }
}
