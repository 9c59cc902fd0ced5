//! A copy of the workspace in which all faults are planted, each behind a switch, so that one build serves all of them.
//!
//! The sources of the project know nothing of it: the copy gets a module `planted` in each crate, and every old text becomes
//! `if planted::on(NUMBER) { new } else { old }`. The number comes from the environment of the program that is run.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::list::{Mutant, planted};

/// Names the fault that a program has, by its number; without it there is none.
pub(crate) const SWITCH: &str = "TIDERACE_PLANTED";

/// Module that each crate of the copy gets.
const MODULE: &str = r#"
/// Faults that the environment switches on.
#[doc(hidden)]
pub mod planted {
    /// Returns whether the program runs with this fault.
    #[allow(clippy::disallowed_methods)]
    pub fn on(number: u32) -> bool {
        static CHOSEN: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
            std::env::var("TIDERACE_PLANTED").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
        });
        *CHOSEN == number
    }
}
"#;

/// Brings the copy in `tree` up to date. Files that are as they should be keep their time, so that cargo builds only what changed.
pub(crate) fn plant(root: &Path, tree: &Path, mutants: &[Mutant]) -> Result<()> {
    let mut sources = planted(root, mutants)?;
    for file in sources.keys().cloned().collect::<Vec<_>>() {
        let library = library(&file)?;
        let text = match sources.get(&library) {
            Some(text) => text.clone(),
            None => std::fs::read_to_string(root.join(&library)).with_context(|| format!("no {library}"))?,
        };
        if !text.ends_with(MODULE) {
            // The switches are no code that anybody reads.
            sources.insert(library, format!("#![allow(warnings)]\n{text}{MODULE}"));
        }
    }
    let mut kept = BTreeSet::new();
    for file in files(root)? {
        let content = match sources.get(&file) {
            Some(source) => source.clone().into_bytes(),
            // A file that is listed and gone was removed and is not committed so far.
            None => match std::fs::read(root.join(&file)) {
                Ok(content) => content,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error).with_context(|| format!("cannot read {file}")),
            },
        };
        write(&tree.join(&file), &content)?;
        kept.insert(tree.join(&file));
    }
    sweep(tree, &kept)
}

/// The root of the crate that a source file belongs to.
fn library(file: &str) -> Result<String> {
    let (krate, _) = file.split_once("/src/").with_context(|| format!("{file} lies in no crate"))?;
    Ok(format!("{krate}/src/lib.rs"))
}

/// Files of the workspace, committed or not, without what is ignored.
fn files(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).context("names of files are text")?;
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    if std::fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let folder = path.parent().context("a file lies in a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot write to {}", folder.display()))?;
    std::fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Removes what the workspace no longer has.
fn sweep(folder: &Path, kept: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            sweep(&path, kept)?;
        } else if !kept.contains(&path) {
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_file_belongs_to_a_crate() {
        assert_eq!(library("crates/netem/src/config/loss.rs").unwrap(), "crates/netem/src/lib.rs");
        assert!(library("README.md").is_err());
    }

    #[test]
    fn files_that_are_as_they_should_be_are_left_alone() {
        let folder = std::env::temp_dir().join(format!("tiderace-mutants-{}", std::process::id()));
        let (kept, gone) = (folder.join("a/kept"), folder.join("a/gone"));
        write(&kept, b"1").unwrap();
        write(&gone, b"2").unwrap();
        let before = std::fs::metadata(&kept).unwrap().modified().unwrap();
        write(&kept, b"1").unwrap();
        assert_eq!(std::fs::metadata(&kept).unwrap().modified().unwrap(), before);
        sweep(&folder, &BTreeSet::from([kept.clone()])).unwrap();
        assert!(kept.exists() && !gone.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
