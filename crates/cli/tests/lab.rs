//! `tiderace lab` from the outside: what it prints, which exit code it has, what it leaves behind.

mod scratch;

use std::{
    fs,
    path::{Path, PathBuf},
};

use scratch::Scratch;

impl Scratch {
    /// All files below, by their paths.
    fn files(&self) -> Vec<PathBuf> {
        fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { collect(&path, files) } else { files.push(path) }
            }
        }
        let mut files = Vec::new();
        collect(&self.0, &mut files);
        files.sort();
        files
    }
}

const SMALL: [&str; 5] = ["mobile", "--connections", "2", "--duration", "500ms"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn mistakes_get_one_message_a_hint_and_exit_code_2() {
    let scratch = Scratch::new("mistakes");
    fs::write(scratch.0.join("bad.toml"), "name = \"x\"\ntitel = \"y\"\n").unwrap();
    fs::write(scratch.0.join("file"), "").unwrap();
    let before = scratch.files();
    for (arguments, message, hint) in [
        (&["run", "mobil"][..], "mobil: there is no preset with this name", "did you mean `mobile`?"),
        (&["run", "no.toml"], "no.toml: cannot read the file", "`tiderace lab list`"),
        (&["run", "bad.toml"], "bad.toml:2: titel: unknown field `titel`", "did you mean `title`?"),
        (&["run", "mobile", "--cc", "cubik"], "there is no congestion controller `cubik`", "did you mean `cubic`?"),
        (&["run", "mobile", "--queue", "10 B"], "--queue: 10 B has no room", "a queue of one bandwidth-delay product"),
        (&["run", "mobile", "--out", "file/x"], "cannot write to file/x", "choose another directory"),
        (&["report", "bad.toml"], "bad.toml: line 1: this is no line", "is it a file that"),
    ] {
        let output = scratch.lab(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        let (first, rest) = error.split_once('\n').unwrap();
        assert!(first.starts_with(&format!("error: {message}")), "{arguments:?}: {error}");
        assert!(rest.starts_with(&format!("hint: {hint}")) && rest.lines().count() == 1, "{arguments:?}: {error}");
        assert!(output.stdout.is_empty());
    }
    // What clap finds has its own form and the same exit code.
    assert_eq!(scratch.lab(&["run", "mobile", "--loss", "x"]).status.code(), Some(2));
    assert_eq!(scratch.files(), before, "nothing is left behind");
}

#[test]
fn a_run_prints_its_report_and_stores_its_records() {
    let scratch = Scratch::new("run");
    let output = scratch.lab(&[&["run", "--seeds", "2"][..], &SMALL].concat());
    let (report, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), &*error), (Some(0), ""), "{report}");
    for part in ["Self-test: 3 passed", "tiderace newreno", "tiderace cubic", "goodput (Mbit/s)", "Jain's index"] {
        assert!(report.contains(part), "{part}: {report}");
    }
    let path = report.lines().last().unwrap().strip_prefix("Records (JSON lines): ").unwrap();
    assert_eq!(scratch.files(), [scratch.0.join(path)]);
    let first = fs::read(scratch.0.join(path)).unwrap();
    assert_eq!(first.iter().filter(|&&byte| byte == b'\n').count(), 5, "a manifest and four runs");

    // The same again in another process: the same bytes. And the report can be made from them.
    scratch.lab(&[&["run", "--seeds", "2"][..], &SMALL].concat());
    assert!(fs::read(scratch.0.join(path)).unwrap() == first);
    let again = scratch.lab(&["report", path]);
    // The stored records know neither of the self-test nor of the file they are in.
    let figures = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with("Self-test") && !line.starts_with("Records"));
        lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    };
    assert_eq!(figures(&text(&again.stdout)), figures(&report));
}

#[test]
fn json_and_qlog() {
    let scratch = Scratch::new("json");
    let output =
        scratch.lab(&[&["run", "--seeds", "1", "--cc", "cubic", "--json", "--qlog", "logs"][..], &SMALL].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["contenders"][0]["name"], "tiderace cubic");
    assert_eq!(report["self_test"].as_array().unwrap().len(), 3);
    assert!(scratch.0.join(report["records"].as_str().unwrap()).exists());
    let logs = scratch.files().iter().filter(|path| path.extension().is_some_and(|end| end == "sqlog")).count();
    assert_eq!(logs, 4, "{:?}", scratch.files());
    // Logs are not replaced without being asked.
    let again = scratch.lab(&[&["run", "--seeds", "1", "--cc", "cubic", "--qlog", "logs"][..], &SMALL].concat());
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("is there already\nhint: remove it"), "{}", text(&again.stderr));
}

#[test]
fn lists_what_there_is() {
    let output = Scratch::new("list").lab(&["list"]);
    let list = text(&output.stdout);
    assert!(
        ["mobile", "production", "satellite", "high-loss", "newreno, cubic"].iter().all(|name| list.contains(name))
    );
}
