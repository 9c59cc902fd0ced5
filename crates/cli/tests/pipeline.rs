//! The script of docs/ci.md: two builds in a scenario, and the report for a pull request.
#![cfg(unix)]

mod scratch;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use scratch::Scratch;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tiderace");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A scenario whose only contender has this controller, under a name that does not tell it.
fn scenario(file: &Path, controller: &str) {
    let text = format!(
        "name = \"small\"\ntitle = \"Small | path\"\nabout = \"For tests.\"\n[path.down]\nrate = \"10 Mbit/s\"\nqueue = \"50 kB\"\n\
         delay = \"20 ms\"\nloss = \"1 %\"\n[traffic]\nworkload = \"bulk\"\nconnections = 1\n[run]\nwarmup = \"1 s\"\nduration = \"2 s\"\n\
         [contenders]\nprofiles = [{{ name = \"ours\", congestion = \"{controller}\" }}]\n"
    );
    fs::write(file, text).unwrap();
}

fn gate(scratch: &Scratch, base: &str, new: &str, seeds: &str) -> Output {
    let mut command = Command::new(root().join("deploy/ci/lab-gate"));
    let summary = scratch.0.join("summary.md");
    command.args([base, new]).arg(scratch.0.join("small.toml")).arg(scratch.0.join("out"));
    command.env("SEEDS", seeds).env("GITHUB_STEP_SUMMARY", summary).env_remove("RUST_LOG").env_remove("DURATION");
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn the_same_build_passes_and_says_that_nothing_has_changed() {
    let scratch = Scratch::new("pipeline-same");
    scenario(&scratch.0.join("small.toml"), "bbr3");
    let output = gate(&scratch, PROGRAM, PROGRAM, "6");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let report = fs::read_to_string(scratch.0.join("out/report.md")).unwrap();
    assert!(report.starts_with("### `small`: ✅ passes") && report.contains("Nothing has changed"), "{report}");
    assert!(report.contains("Noise (A/A): the baseline against another run of itself"), "{report}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), report);
    assert_eq!(fs::read_to_string(scratch.0.join("summary.md")).unwrap(), report);
}

#[test]
fn a_build_that_is_slower_fails_with_its_intervals_and_the_noise() {
    let scratch = Scratch::new("pipeline-slower");
    scenario(&scratch.0.join("small.toml"), "bbr3");
    scenario(&scratch.0.join("slower.toml"), "newreno");
    // A build whose contender is slower: it reads the other scenario in place of the one that it is given.
    let slower = scratch.0.join("slower");
    let script = format!(
        "#!/usr/bin/env bash\nargs=()\nfor arg in \"$@\"; do args+=(\"${{arg/small.toml/slower.toml}}\"); done\nexec {PROGRAM} \"${{args[@]}}\"\n"
    );
    fs::write(&slower, script).unwrap();
    fs::set_permissions(&slower, fs::Permissions::from_mode(0o755)).unwrap();
    let output = gate(&scratch, PROGRAM, slower.to_str().unwrap(), "12");
    assert_eq!(output.status.code(), Some(99), "{}", text(&output));
    let report = fs::read_to_string(scratch.0.join("out/report.md")).unwrap();
    assert!(report.starts_with("### `small`: ❌ fails\n\nSmall \\| path"), "{report}");
    assert!(
        report.contains("**It fails because**") && report.contains("goodput is worse by more than 3 %"),
        "{report}"
    );
    let row = report.lines().find(|line| line.starts_with("| ❌") && line.contains("| goodput |")).unwrap();
    let cells: Vec<&str> = row.split(" | ").collect();
    assert_eq!(cells.len(), 8, "{row}");
    // Change and noise have intervals, and those of the noise cover no difference.
    assert!(cells[5].starts_with("x 0.") && cells[5].contains('['), "{row}");
    assert!(cells[6].starts_with("worse") && cells[7].contains('['), "{row}");
}

#[test]
fn what_is_missing_is_said() {
    let scratch = Scratch::new("pipeline-wrong");
    let usage = Command::new(root().join("deploy/ci/lab-gate")).arg("one").output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
    assert!(text(&usage).contains("lab-gate BASE NEW SCENARIO OUT"), "{}", text(&usage));
    let output = gate(&scratch, PROGRAM, PROGRAM, "2");
    assert!(output.status.code() != Some(0) && text(&output).contains("small.toml"), "{}", text(&output));
}

#[test]
fn the_document_has_the_workflow_that_uses_the_script() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let workflow = read("deploy/ci/lab-gate.yml");
    assert!(workflow.contains("deploy/ci/lab-gate ./base ./new"), "{workflow}");
    assert!(read("docs/ci.md").contains(&format!("```yaml\n{workflow}```")), "docs/ci.md has another workflow");
}
