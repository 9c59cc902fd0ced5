//! The test binaries of the workspace, as cargo lists them.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// A test binary.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Binary {
    /// PACKAGE::TARGET, where the target of a library is `lib`.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    /// The folder of its package, where cargo would run it.
    pub(crate) folder: PathBuf,
}

/// Part of cargo's messages that is read.
#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// The folder that cargo builds into.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Builds the tests of the workspace; gives the binaries that `only` names, or all.
pub(super) fn build(root: &Path, only: &[String]) -> Result<Vec<Binary>> {
    // The whole workspace, so that features are those of `cargo test --workspace`.
    let output = Command::new(env!("CARGO"))
        .args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "the tests do not build");
    let found = list(&String::from_utf8_lossy(&output.stdout))?;
    choose(found, only)
}

/// The test binaries among cargo's messages.
pub(crate) fn list(messages: &str) -> Result<Vec<Binary>> {
    let mut found = BTreeSet::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).with_context(|| format!("cargo said: {line}"))?;
        let (Some(program), Some(manifest), Some(target)) = (message.executable, message.manifest_path, message.target)
        else {
            continue;
        };
        if message.reason != "compiler-artifact" || !message.profile.is_some_and(|profile| profile.test) {
            continue;
        }
        let folder = manifest.parent().context("a manifest lies in a folder")?.to_owned();
        let package = package(&manifest)?;
        let kind = target.kind.first().map_or("", String::as_str);
        let name = match kind {
            "test" => target.name,
            "bin" | "example" | "bench" => format!("{kind}-{}", target.name),
            _ => "lib".to_owned(),
        };
        found.insert(Binary { name: format!("{package}::{name}"), program, folder });
    }
    Ok(found.into_iter().collect())
}

/// Links the programs into `folder`, so that a build that comes meanwhile changes nothing for the rounds that are left.
pub(super) fn keep(binaries: &mut [Binary], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot write to {}", folder.display()))?;
    for binary in binaries {
        let link = folder.join(binary.name.replace("::", "-"));
        // Of a run before.
        let _ = std::fs::remove_file(&link);
        std::fs::hard_link(&binary.program, &link)
            .with_context(|| format!("cannot link {} to {}", link.display(), binary.program.display()))?;
        binary.program = link;
    }
    Ok(())
}

/// The name of the package of a manifest.
fn package(manifest: &Path) -> Result<String> {
    let text = std::fs::read_to_string(manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    let manifest: toml::Table = toml::from_str(&text)?;
    let name = manifest.get("package").and_then(|package| package.get("name")).and_then(toml::Value::as_str);
    name.map(str::to_owned).context("a package has a name")
}

/// The binaries that `only` names, or all. A name that none has is an error: what was asked for and does not run would look as if it
/// had passed.
fn choose(found: Vec<Binary>, only: &[String]) -> Result<Vec<Binary>> {
    let fits = |binary: &Binary, name: &str| {
        binary.name == name || binary.name.split_once("::").is_some_and(|(package, _)| package == name)
    };
    for name in only {
        if !found.iter().any(|binary| fits(binary, name)) {
            let all: Vec<_> = found.iter().map(|binary| binary.name.as_str()).collect();
            bail!("no test binary has the name {name}\nhint: one of {}", all.join(", "));
        }
    }
    Ok(found.into_iter().filter(|b| only.is_empty() || only.iter().any(|name| fits(b, name))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(reason: &str, name: &str, kind: &str, test: bool, executable: &str) -> String {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        serde_json::json!({
            "reason": reason, "manifest_path": manifest, "target": {"name": name, "kind": [kind]},
            "profile": {"test": test}, "executable": (!executable.is_empty()).then_some(executable),
        })
        .to_string()
    }

    #[test]
    fn only_tests_that_can_run_are_listed() {
        let messages = [
            message("compiler-artifact", "xtask", "bin", true, "/t/xtask-1"),
            message("compiler-artifact", "xtask", "bin", false, "/t/xtask"),
            message("compiler-artifact", "some", "test", true, "/t/some-2"),
            message("compiler-artifact", "xtask", "lib", true, "/t/lib-3"),
            message("compiler-artifact", "other", "lib", false, ""),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let names: Vec<_> = list(&messages.join("\n")).unwrap().into_iter().map(|binary| binary.name).collect();
        assert_eq!(names, ["xtask::bin-xtask", "xtask::lib", "xtask::some"]);
    }

    #[test]
    fn a_name_that_no_binary_has_is_an_error() {
        let binary = |name: &str| Binary { name: name.to_owned(), program: PathBuf::new(), folder: PathBuf::new() };
        let all = || vec![binary("a::lib"), binary("a::x"), binary("b::lib")];
        let chosen = |only: &[&str]| {
            let only: Vec<_> = only.iter().map(|&name| name.to_owned()).collect();
            choose(all(), &only).map(|found| found.into_iter().map(|binary| binary.name).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&[]).unwrap().len(), 3);
        assert_eq!(chosen(&["a"]).unwrap(), ["a::lib", "a::x"]);
        assert_eq!(chosen(&["b::lib", "a::x"]).unwrap(), ["a::x", "b::lib"]);
        assert!(chosen(&["a", "c"]).unwrap_err().to_string().contains("no test binary has the name c"));
    }
}
