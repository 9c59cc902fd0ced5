//! Cost of work on the sources: files that a control frame touches, and the time of builds.

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, ensure};

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

/// Rows about the time of builds. They depend on the machine: there is no target but that they are measured.
pub(super) fn builds(context: &Context) -> Result<Vec<Row>> {
    const LIMIT: Duration = Duration::from_secs(3_600);
    let check = || cargo(&context.root, ["check", "--locked", "--workspace"]);
    context.commands.run("house-check", &mut check(), LIMIT)?.ok()?;
    let touched = File::options().append(true).open(context.root.join("crates/transport/src/lib.rs"))?;
    touched.set_modified(SystemTime::now())?;
    let again = context.commands.run("house-check-again", &mut check(), LIMIT)?.ok()?;
    ensure!(again.stderr.contains("tiderace-transport"), "the second check did not look at the transport");
    let what = "`cargo check --workspace` after a change of the transport";
    let mut rows = vec![Row::new(what, again.seconds, "s", Target::Printed).detail(load())];
    if context.long {
        let mut build = cargo(&context.root, ["build", "--locked", "-p", "tiderace-cli"]);
        build.env("CARGO_TARGET_DIR", context.commands.scratch("house-build")?);
        let first = context.commands.run("house-first-build", &mut build, LIMIT)?.ok()?;
        let what = "first `cargo build -p tiderace-cli`, dependencies fetched";
        rows.push(Row::new(what, first.seconds, "s", Target::Printed).detail(load()));
    }
    Ok(rows)
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
