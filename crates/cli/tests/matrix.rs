//! `tiderace lab matrix` and what works on its files, from the outside: exit codes, files, what is printed.

mod scratch;

use std::fs;

use scratch::Scratch;

impl Scratch {
    /// Exit code, standard output and standard error.
    fn told(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output = self.lab(arguments);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn records(&self, directory: &str) -> String {
        let entries = fs::read_dir(self.0.join(directory)).unwrap().map(|entry| entry.unwrap().path());
        let path = entries.into_iter().find(|path| path.extension().is_some_and(|end| end == "jsonl")).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

const SMALL: [&str; 11] = [
    "matrix",
    "mobile",
    "--cc",
    "newreno,cubic",
    "--connections",
    "2",
    "--duration",
    "500ms",
    "--vary",
    "path.rtt=20ms,60ms",
    "--seeds",
];

#[test]
fn a_matrix_its_page_and_its_gate() {
    let scratch = Scratch::new("gate");
    let run =
        |seeds: &str, out: &str, more: &[&str]| scratch.told(&[&SMALL[..], &[seeds, "--out", out], more].concat());
    let (code, report, error) = run("2", "a", &["--html", "page.html", "--csv", "points.csv"]);
    assert_eq!((code, &*error), (Some(0), ""), "{report}");
    assert!(report.contains("2 points x 2 contenders x 2 seeds = 8 runs"), "{report}");
    assert!(report.contains("## By path.rtt"), "{report}");
    let page = fs::read_to_string(scratch.0.join("page.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg") && page.contains("Where it was run"));
    assert!(fs::read_to_string(scratch.0.join("points.csv")).unwrap().lines().count() > 8);
    let file = scratch.records("a");
    assert!(fs::read_to_string(file.replace(".jsonl", ".meta.json")).unwrap().contains("kernel"));

    // The same again, and a single run again.
    assert_eq!(run("2", "b", &["--threads", "1"]).0, Some(0));
    assert!(fs::read(&file).unwrap() == fs::read(scratch.records("b")).unwrap());
    let (code, told, _) = scratch.told(&["replay", &file, "--run", "5"]);
    assert!(code == Some(0) && told.contains("the same packets and figures"), "{told}");
    assert_eq!(scratch.told(&["replay", &file, "--run", "8"]).0, Some(2));

    // Against itself nothing has changed; without a baseline and limits there is nothing to judge by.
    let (code, told, _) = scratch.told(&["gate", &file, "--baseline", &scratch.records("b")]);
    assert!(code == Some(0) && told.ends_with("The gate passes.\n"), "{told}");
    assert!(scratch.told(&["compare", &file, &scratch.records("b")]).1.contains("every run is identical"));
    assert_eq!(scratch.told(&["gate", &file]).0, Some(2));
    // A file that lost its end is not complete, and the gate says so; resuming makes it what it was.
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 100]).unwrap();
    let (code, told, _) = scratch.told(&["gate", &file, "--baseline", &scratch.records("b")]);
    assert!(code == Some(99) && told.contains("1 of 8 runs are missing"), "{told}");
    let (code, _, error) = run("2", "a", &[]);
    assert!(code == Some(2) && error.contains("hint: go on with `tiderace lab resume"), "{error}");
    let (code, _, error) = scratch.told(&["resume", &file]);
    assert!(code == Some(0) && error.contains("7 of 8 runs are there"), "{error}");
    assert!(fs::read(&file).unwrap() == whole);
}

#[test]
fn mistakes_are_named() {
    let scratch = Scratch::new("mistakes");
    for (arguments, message, hint) in [
        (&["matrix", "mobile", "--vary", "path.rt=5ms"][..], "factors.path.rt: unknown field `rt`", "path.rtt"),
        (&["matrix", "mobile", "--vary", "profile.ack=1"], "a profile has no field `ack`", "did you mean `acks`?"),
        (&["run", "scaling", "--qlog", "logs"], "`scaling` is run at many points", "lab replay RECORDS --run N"),
        (&["resume", "no.jsonl"], "no.jsonl", "is it a file that"),
        (&["audit", "no.csv"], "cannot read no.csv", ""),
    ] {
        let (code, _, error) = scratch.told(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {error}");
        assert!(error.contains(message) && error.contains(hint), "{arguments:?}: {error}");
    }
}

#[test]
fn tools() {
    let scratch = Scratch::new("tools");
    let (code, schema, _) = scratch.told(&["schema"]);
    assert!(code == Some(0) && serde_json::from_str::<serde_json::Value>(&schema).is_ok());
    let (code, commands, _) = scratch.told(&["tc", "okru-mobile"]);
    assert!(code == Some(0) && commands.contains("loss gemodel 0.100604% 16.666667% 100% 0%"), "{commands}");
    let lost: String = (0..5_000).map(|n| if n % 100 < 3 { '1' } else { '0' }).collect();
    fs::write(scratch.0.join("loss.txt"), lost).unwrap();
    let (code, fit, _) = scratch.told(&["fit", "loss.txt"]);
    assert!(code == Some(0) && fit.contains("150 lost in 50 bursts") && fit.contains("gilbert-elliott"), "{fit}");
    fs::write(scratch.0.join("t.csv"), "name,goodput_mbps,link_mbps\nx,20,10\n").unwrap();
    let (code, told, _) = scratch.told(&["audit", "t.csv"]);
    assert!(code == Some(1) && told.contains("IMPOSSIBLE  row 1 (x): goodput <= link"), "{told}");
}

#[test]
fn a_broken_laboratory_says_so() {
    let scratch = Scratch::new("selftest");
    let (code, told, _) = scratch.told(&["selftest"]);
    assert!(code == Some(0) && told.contains("not checked"), "{told}");
    let (code, told, _) = scratch.told(&["selftest", "--inject", "loss-counter"]);
    assert!(code == Some(3) && told.contains("FAIL  loss is counted at the link"), "{told}");
}
