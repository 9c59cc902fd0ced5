//! Truth of README.md and docs/README.md: links lead somewhere, every document is in the index, the configuration of
//! the gateway is taken, and the table of the laboratory is what it prints.

mod scratch;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use scratch::Scratch;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Targets of Markdown links to files.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets.filter(|target| !target.starts_with("http") && !target.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn links_lead_somewhere_and_the_index_is_complete() {
    let mut linked = Vec::new();
    for (file, folder) in [("README.md", root()), ("docs/README.md", root().join("docs"))] {
        for target in links(&read(file)) {
            let path = folder.join(target.split('#').next().unwrap_or_default());
            let found = path.canonicalize().unwrap_or_else(|error| panic!("{file}: {target}: {error}"));
            if file.starts_with("docs") {
                linked.push(found);
            }
        }
    }
    let folders = ["docs", "docs/guides"].map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let documents = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let documents = documents.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let further = ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "interop/README.md"];
    let further = further.into_iter().chain(["bench/README.md", "python/README.md", "fuzz", "deploy", "scenarios"]);
    for path in documents.chain(further.map(|name| root().join(name))) {
        let path = path.canonicalize().unwrap();
        let is_index = path.ends_with("docs/README.md") || path.ends_with("docs/SUMMARY.md");
        assert!(is_index || linked.contains(&path), "{} is in no index", path.display());
    }
}

#[test]
fn the_configuration_of_the_gateway_is_taken() {
    let readme = read("README.md");
    let (_, rest) = readme.split_once("cat > edge.toml <<END\n").expect("README.md makes an edge.toml");
    let (config, _) = rest.split_once("END\n").unwrap();
    assert_eq!(config.lines().count(), 5, "five lines of TOML: {config}");
    let scratch = Scratch::new("readme");
    scratch.certificate("localhost");
    fs::create_dir(scratch.0.join("site")).unwrap();
    fs::write(scratch.0.join("edge.toml"), config).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_tiderace"));
    let output = check.args(["edge", "check", "--config", "edge.toml"]).current_dir(&scratch.0).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Figures of the table in README.md.
const SHOWN: [&str; 5] = ["goodput", "rtt_p95", "link_loss", "jain", "overhead"];

/// Goodput and the other figures of the first seed, a line for each contender.
fn of_the_first_seed(scratch: &Scratch) -> String {
    let output = scratch.lab(&["run", "mobile", "--seeds", "1", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let mut out = String::new();
    for contender in report["contenders"].as_array().unwrap() {
        out += contender["name"].as_str().unwrap();
        for figure in SHOWN {
            let cell = contender["figures"].as_array().unwrap().iter().find(|cell| cell["figure"] == figure);
            let value = cell.unwrap_or_else(|| panic!("no {figure}: {contender}"))["median"].as_f64().unwrap();
            out += &format!(" {figure} {value:.4e}");
        }
        out += "\n";
    }
    out
}

/// All seeds take too long for a test. So the figures of the first one stand in a file, beside the table as it was when they were taken:
/// when they change, the table has to be made again.
#[test]
fn the_table_of_the_laboratory_is_not_stale() {
    let scratch = Scratch::new("readme-table");
    let of_seed = of_the_first_seed(&scratch);
    let readme = read("README.md");
    let begin = readme.find("```text\nmobile: ").expect("README.md shows `lab run mobile`") + "```text\n".len();
    let length = readme[begin..].find("```").unwrap();
    let name = "crates/cli/tests/snapshots/readme-mobile.txt";
    if std::env::var_os("WRITE_DOCUMENTS").is_some() {
        let output = scratch.lab(&["run", "mobile"]);
        assert!(output.status.success());
        let table = String::from_utf8(output.stdout).unwrap();
        fs::write(root().join("README.md"), format!("{}{table}{}", &readme[..begin], &readme[begin + length..]))
            .unwrap();
        fs::write(root().join(name), format!("{of_seed}\n{table}")).unwrap();
        return;
    }
    let kept = read(name);
    let (figures, table) = kept.split_once("\n\n").unwrap();
    let hint = "hint: WRITE_DOCUMENTS=1 cargo test -p tiderace-cli --test readme makes the table of README.md again";
    assert_eq!(of_seed.trim_end(), figures, "`lab run mobile` prints other figures\n{hint}");
    assert_eq!(table, &readme[begin..begin + length], "README.md shows another table than was made\n{hint}");
}
