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
    for part in [
        "Self-test: 3 passed",
        "auto  auto+repair",
        "goodput (Mbit/s)",
        "Jain's index",
        "because 2 seeds decide nothing",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    let path = report.lines().find_map(|line| line.strip_prefix("Records: ")).unwrap();
    assert_eq!(report.lines().last(), Some(&*format!("All figures: tiderace lab report --all {path}")));
    assert_eq!(scratch.files(), [scratch.0.join(path)]);
    let first = fs::read(scratch.0.join(path)).unwrap();
    assert_eq!(first.iter().filter(|&&byte| byte == b'\n').count(), 9, "a manifest and eight runs");

    // The same again in another process: the same bytes. And the report can be made from them.
    scratch.lab(&[&["run", "--seeds", "2"][..], &SMALL].concat());
    assert!(fs::read(scratch.0.join(path)).unwrap() == first);
    let again = scratch.lab(&["report", path]);
    // The stored records know nothing of the self-test.
    let figures = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with("Self-test"));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(figures(&text(&again.stdout)), figures(&report));
    let all = text(&scratch.lab(&["report", path, "--all"]).stdout);
    for part in ["queue delay p99 (ms)", "tiderace bbr3 compared with tiderace cubic", "drop-tail queue 125 kB (50 ms)"]
    {
        assert!(all.contains(part), "{part}: {all}");
    }
    assert!(all.lines().all(|line| line.chars().count() <= 80), "{all}");

    // Of records that end early, the seeds count with which all contenders have run.
    let lines: Vec<&str> = std::str::from_utf8(&first).unwrap().lines().collect();
    let cut = |count: usize| {
        fs::write(scratch.0.join("cut.jsonl"), lines[..count].join("\n") + "\n").unwrap();
        let output = scratch.lab(&["report", "cut.jsonl"]);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, report, error) = cut(8);
    assert_eq!((code, &*error), (Some(1), "interrupted: the report is of 1 of 2 seeds\n"), "{report}");
    assert!(report.contains("One seed.") && !report.contains("2 seeds"), "{report}");
    let (code, report, error) = cut(3);
    assert_eq!((code, &*report), (Some(2), ""));
    assert!(error.contains("not every contender has run"), "{error}");
}

#[test]
fn colours_only_when_they_are_wanted() {
    let scratch = Scratch::new("colours");
    let small = [&["run", "--seeds", "1", "--cc", "cubic,bbr3"][..], &SMALL].concat();
    let coloured = text(&scratch.lab(&[&small[..], &["--color", "always"]].concat()).stdout);
    assert!(coloured.contains("\x1b[1m") && coloured.contains('█'), "{coloured}");
    let plain = text(&scratch.lab(&small).stdout);
    assert!(!plain.contains('\x1b') && !plain.contains('█'), "a pipe is no terminal: {plain}");
    let fresh = |line: &str| line.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    let mut bare = coloured.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "");
    bare.retain(|c| !('▁'..='█').contains(&c));
    assert_eq!(fresh(&bare), fresh(&plain), "colour says nothing that the text does not say");
    assert_eq!(scratch.lab(&["run", "mobile", "--color", "red"]).status.code(), Some(2));
}

/// The words and the shape of a report. Numbers follow the transport, which other tests watch, so they are masked here.
fn shape(report: &str) -> String {
    let mut out = String::new();
    for line in report.lines() {
        let words = line.split_whitespace().map(|word| {
            let number = word.trim_matches(|c: char| !c.is_ascii_digit() && !c.is_alphabetic());
            if !number.is_empty() && number.parse::<f64>().is_ok() {
                word.replace(number, "N")
            } else {
                word.to_owned()
            }
        });
        out += &words.collect::<Vec<_>>().join(" ");
        out.push('\n');
    }
    // The name of the records is a fingerprint of everything that was run.
    let fingerprint = out.find(".jsonl").map(|end| out[end - 8..end].to_owned());
    fingerprint.map_or(out.clone(), |name| out.replace(&name, "FINGERPRINT"))
}

#[test]
fn presets_print_what_they_are_about() {
    let scratch = Scratch::new("presets");
    for (name, options) in [
        ("mobile", &["--connections", "3", "--duration", "1s"][..]),
        ("page", &["--connections", "2", "--duration", "45s"]),
        ("fec-iid", &["--duration", "1s"]),
        ("claims-pacing", &["--connections", "4", "--duration", "25s"]),
    ] {
        let output = scratch.lab(&[&["run", name, "--seeds", "2"][..], options].concat());
        let report = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{report}{}", text(&output.stderr));
        assert!(report.lines().all(|line| line.chars().count() <= 80), "{report}");
        insta::assert_snapshot!(name, shape(&report));
    }
}

#[test]
fn every_output_says_what_was_replaced() {
    let scratch = Scratch::new("replaced");
    let run = ["run", "mobile", "--seeds", "1", "--cc", "cubic", "--connections", "1", "--duration", "500ms"];
    let replaced = "replaced: --connections 1 --duration '500 ms' --seeds 1 --cc cubic";
    let report = text(&scratch.lab(&run).stdout).replace('\n', " ").replace("   ", " ");
    assert!(report.contains(&format!("20 connections on 20 Mbit/s; {replaced}")), "{report}");
    let json: serde_json::Value =
        serde_json::from_slice(&scratch.lab(&[&run[..], &["--json"]].concat()).stdout).unwrap();
    let title = json["manifest"]["scenario"]["title"].as_str().unwrap();
    assert!(title.ends_with(replaced), "{title}");
    let path = json["records"].as_str().unwrap();
    let records = fs::read_to_string(scratch.0.join(path)).unwrap();
    assert!(records.lines().next().unwrap().contains(replaced), "the records carry the title");
    let written = scratch.lab(&["report", path, "--html", "page.html", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&written.stdout).unwrap();
    assert!(json["title"].as_str().unwrap().ends_with(replaced), "{json}");
    let page = fs::read_to_string(scratch.0.join("page.html")).unwrap();
    assert!(page.contains(&format!("{replaced}</h1>")) && page.contains(&format!("{replaced}</title>")), "{page}");
    // A factor from the command line is in the title, too.
    let vary = ["matrix", "mobile", "--vary", "path.rtt=20ms,40ms", "--html", "varied.html"];
    assert!(scratch.lab(&[&vary[..], &run[2..]].concat()).status.success());
    let page = fs::read_to_string(scratch.0.join("varied.html")).unwrap();
    assert!(page.contains(&format!("{replaced}; varied: path.rtt</h1>")), "{page}");
}

#[test]
fn a_scenario_of_ones_own() {
    let scratch = Scratch::new("new");
    let new = ["new", "train", "--rate", "8M", "--rtt", "40ms", "--loss", "2%", "--connections", "2", "--seeds", "1"];
    let output = scratch
        .lab(&[&new[..], &["--duration", "500ms", "--contender", "cubic", "--contender", "bbr3+repair"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert_eq!(said, "train.toml is written. Run it:\n\n  tiderace lab run train.toml\n");
    let run = scratch.lab(&["run", "train.toml"]);
    let report = text(&run.stdout);
    assert!(run.status.success() && report.contains("bbr3+repair"), "{report}{}", text(&run.stderr));
    // Files of others are not replaced, and what is missing or wrong is named before there is a file.
    let again = scratch.lab(&new);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("hint: choose another NAME, or replace it with --force"));
    assert!(scratch.lab(&[&new[..], &["--force"]].concat()).status.success());
    for (arguments, message) in [
        (&["new", "x"][..], "a scenario needs --rate and --rtt\nhint: for example"),
        (&["new", "x", "--rate", "8M", "--rtt", "1ms", "--contender", "cubik"], "did you mean `cubic`?"),
        (&["new", "../x", "--rate", "8M", "--rtt", "1ms"], "name"),
    ] {
        let output = scratch.lab(arguments);
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(message), "{arguments:?}: {error}");
    }
    assert!(!scratch.0.join("x.toml").exists() && !scratch.0.join("../x.toml").exists());
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
    let old = ["--qlog", "old", "--qlog-format", "0.3"];
    assert!(scratch.lab(&[&["run", "--seeds", "1", "--cc", "cubic"][..], &old, &SMALL].concat()).status.success());
    for path in scratch.files().iter().filter(|path| path.starts_with(scratch.0.join("old"))) {
        let counts = lab::qlog::schema::check(std::io::BufReader::new(fs::File::open(path).unwrap()));
        let counts = counts.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for event in ["connectivity:connection_started", "transport:packet_sent", "recovery:metrics_updated"] {
            assert!(counts.contains_key(event), "{}: {counts:?}", path.display());
        }
    }
    // Logs are not replaced without being asked.
    let again = scratch.lab(&[&["run", "--seeds", "1", "--cc", "cubic", "--qlog", "logs"][..], &SMALL].concat());
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("is there already\nhint: remove it"), "{}", text(&again.stderr));
}

#[test]
fn lists_what_there_is() {
    let output = Scratch::new("list").lab(&["list"]);
    let list = text(&output.stdout);
    for part in ["mobile", "production", "satellite", "high-loss", "newreno, cubic", "\nWired\n", "varies fec (5)"] {
        assert!(list.contains(part), "{part}: {list}");
    }
    assert!(list.lines().all(|line| line.chars().count() <= 80), "{list}");
    let output = Scratch::new("list-json").lab(&["list", "--json"]);
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = all.as_array().unwrap();
    assert!(all.iter().all(|one| list.contains(one["name"].as_str().unwrap())), "the same scenarios: {all:?}");
    assert_eq!((&all[0]["name"], &all[0]["group"]), (&"mobile".into(), &"Mobile and wireless".into()));
    let varied = all.iter().find(|one| one["varies"] != serde_json::json!([])).unwrap();
    assert!(varied["varies"][0]["levels"].as_u64().unwrap() > 1, "{varied}");
}
