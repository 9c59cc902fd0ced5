//! Commands of the documents: which are run, and why the others are not (`xtask/commands.toml`).

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

/// Documents beside those of `docs`.
const FURTHER: [&str; 6] =
    ["README.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md", "interop/README.md", "python/README.md"];

/// Reasons of `commands.toml`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Reasons {
    left_out: Vec<LeftOut>,
}

/// Commands that are not run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeftOut {
    document: String,
    /// Beginnings of commands; none for all of the document.
    #[serde(default)]
    commands: Vec<String>,
    because: String,
}

impl LeftOut {
    fn fits(&self, document: &str, command: &str) -> bool {
        self.document == document
            && (self.commands.is_empty() || self.commands.iter().any(|begin| command.starts_with(begin)))
    }
}

/// Commands of a document.
#[derive(Debug)]
pub(crate) struct Script {
    /// Path in the repository.
    pub(crate) document: String,
    /// Commands that are run, in their order.
    pub(crate) run: Vec<String>,
    /// Number of the others.
    pub(crate) left_out: usize,
}

/// Commands of all documents that have any.
///
/// # Errors
/// When a document cannot be read, or a reason is for nothing.
pub(crate) fn scripts(root: &Path) -> Result<Vec<Script>> {
    let reasons: Reasons =
        toml::from_str(&fs::read_to_string(root.join("xtask/commands.toml"))?).context("xtask/commands.toml")?;
    let mut paths: Vec<PathBuf> = FURTHER.iter().map(PathBuf::from).collect();
    documents(root, Path::new("docs"), &mut paths)?;
    let (mut scripts, mut used) = (Vec::new(), Vec::new());
    for path in paths {
        let document = path.to_str().context("names of documents are UTF-8")?.to_owned();
        let mut script = Script { run: Vec::new(), left_out: 0, document };
        for command in commands(&fs::read_to_string(root.join(&path))?) {
            match reasons.left_out.iter().position(|reason| reason.fits(&script.document, &command)) {
                None => script.run.push(command),
                Some(place) => {
                    script.left_out += 1;
                    used.extend(
                        reasons.left_out[place].commands.iter().filter(|begin| command.starts_with(*begin)).cloned(),
                    );
                    used.push(format!("{place}"));
                }
            }
        }
        if !script.run.is_empty() || script.left_out > 0 {
            scripts.push(script);
        }
    }
    for (place, reason) in reasons.left_out.iter().enumerate() {
        ensure!(!reason.because.trim().is_empty(), "{}: no reason", reason.document);
        ensure!(
            used.contains(&format!("{place}")),
            "{}: the reason `{}` is for nothing",
            reason.document,
            reason.because
        );
        for begin in &reason.commands {
            ensure!(used.contains(begin), "{}: no command begins with `{begin}`", reason.document);
        }
    }
    Ok(scripts)
}

fn documents(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(root.join(folder))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    entries.sort();
    for path in entries {
        let inside = path.strip_prefix(root)?.to_owned();
        if path.is_dir() {
            documents(root, &inside, found)?;
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(inside);
        }
    }
    Ok(())
}

/// Commands of the blocks of a shell, each with the lines that it goes on over: after a backslash, or to the end of a text that it is given.
fn commands(text: &str) -> Vec<String> {
    let (mut found, mut inside) = (Vec::new(), None::<bool>);
    let mut command = String::new();
    let mut end = None::<String>;
    for line in text.lines() {
        if let (None, Some(kind)) = (&end, line.strip_prefix("```")) {
            inside = if inside.is_none() { Some(kind == "sh") } else { None };
            continue;
        }
        if inside != Some(true) || (command.is_empty() && line.trim().is_empty()) {
            continue;
        }
        command.push_str(line);
        command.push('\n');
        if let Some(word) = &end {
            if line != word {
                continue;
            }
            end = None;
        } else if let Some((_, word)) = line.split_once("<<") {
            end = Some(word.trim().to_owned());
            continue;
        } else if line.ends_with('\\') || line.ends_with("&&") {
            continue;
        }
        found.push(std::mem::take(&mut command));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_run_or_has_a_reason() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let scripts = scripts(root).unwrap();
        let run: usize = scripts.iter().map(|script| script.run.len()).sum();
        assert!(run >= 25, "{run} commands are run");
        assert!(
            scripts.iter().any(|script| script.document == "README.md" && script.left_out == 0),
            "README.md is run as a whole"
        );
    }

    #[test]
    fn reasons_name_tests_and_cases_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let reasons: Reasons = toml::from_str(&fs::read_to_string(root.join("xtask/commands.toml")).unwrap()).unwrap();
        let mut tests = 0;
        for LeftOut { because, .. } in &reasons.left_out {
            let quoted: Vec<&str> = because.split('`').skip(1).step_by(2).collect();
            let Some(first) = quoted.iter().position(|text| text.starts_with("-p tiderace-cli --test ")) else {
                continue;
            };
            for name in &quoted[first..] {
                let name = name.trim_start_matches("-p tiderace-cli --test ");
                let file = root.join("crates/cli/tests").join(name);
                assert!(
                    file.with_extension("rs").exists() || file.join("main.rs").exists(),
                    "{because}: no test `{name}`"
                );
                tests += 1;
            }
        }
        assert!(tests >= 10, "{tests} tests are named");
    }

    #[test]
    fn commands_go_on_over_lines() {
        let text = "```sh\na \\\n  b\ncat > f <<END\nx\n\nEND\n\nc &&\n  d\n```\n```toml\ne\n```\n";
        assert_eq!(commands(text), ["a \\\n  b\n", "cat > f <<END\nx\n\nEND\n", "c &&\n  d\n"]);
    }
}
