//! Licences of everything that is linked into the program, with their texts from the sources of the crates.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use super::finish;

/// Package whose dependencies are listed.
const PROGRAM: &str = "tiderace-cli";
/// Beginnings of the names of files with licences, in capitals.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];
/// Notice for code that rustc adds to a program by itself.
const RUNTIME: &str = "The program contains the standard library of Rust (MIT OR Apache-2.0; https://github.com/rust-lang/rust), and, where it is built \
                       for musl, musl libc (MIT; Copyright © 2005-2020 Rich Felker, et al.; https://musl.libc.org).";

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Clone, Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    license_file: Option<PathBuf>,
    authors: Vec<String>,
    repository: Option<String>,
    manifest_path: PathBuf,
    /// `None` of what lies in the workspace.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    /// `None` of what the program itself needs: not its build, not its tests.
    kind: Option<String>,
}

impl Package {
    fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }

    fn label(&self) -> String {
        format!("{} {}", self.name, self.version)
    }
}

/// Document with all licences of the program for a target.
pub(super) fn collect(root: &Path, triple: &str) -> Result<String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", triple]).current_dir(root);
    let metadata: Metadata =
        serde_json::from_slice(&finish(&mut cargo)?).context("cargo metadata said something else")?;
    let packages = linked(&metadata)?;
    let mut own = HashMap::new();
    for package in &packages {
        own.insert(package.id.as_str(), texts(package)?);
    }
    let mut by_text: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in &packages {
        let texts = match &own[package.id.as_str()] {
            texts if texts.is_empty() => substitute(package, &packages, &own, root)?,
            texts => texts.clone(),
        };
        for text in texts {
            by_text.entry(text).or_default().insert(package.label());
        }
    }
    Ok(write(&packages, &by_text))
}

/// Packages from elsewhere that the program is linked from, by name.
fn linked(metadata: &Metadata) -> Result<Vec<&Package>> {
    let packages: HashMap<&str, &Package> = metadata.packages.iter().map(|one| (one.id.as_str(), one)).collect();
    let nodes: HashMap<&str, &Node> = metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let program = metadata.packages.iter().find(|package| package.name == PROGRAM && package.source.is_none());
    let mut open = vec![program.with_context(|| format!("there is no package {PROGRAM}"))?.id.as_str()];
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            let node = nodes.get(id).with_context(|| format!("cargo metadata lacks {id}"))?;
            let needed = node.deps.iter().filter(|one| one.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            open.extend(needed.map(|dependency| dependency.pkg.as_str()));
        }
    }
    let mut linked: Vec<&Package> =
        seen.into_iter().map(|id| packages[id]).filter(|package| package.source.is_some()).collect();
    linked.sort_by_key(|package| package.label());
    Ok(linked)
}

/// Texts in the sources of a package, and one folder below: there lies what it brings of other languages.
fn texts(package: &Package) -> Result<BTreeSet<String>> {
    let mut files: BTreeSet<PathBuf> = package.license_file.iter().map(|file| package.folder().join(file)).collect();
    let mut folders = vec![package.folder().to_owned()];
    for entry in fs::read_dir(package.folder()).with_context(|| format!("{} has no sources", package.label()))? {
        folders.extend(Some(entry?.path()).filter(|path| path.is_dir()));
    }
    for folder in folders {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            let is_text = !name.ends_with(".RS") && NAMES.iter().any(|start| name.starts_with(start));
            if path.is_file() && is_text {
                files.insert(path);
            }
        }
    }
    let read = |file: &PathBuf| fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    let mut texts = BTreeSet::new();
    for file in &files {
        texts.insert(plain(&String::from_utf8_lossy(&read(file)?)));
    }
    Ok(texts)
}

/// A text without what differs between copies of it: line ends, spaces at ends of lines, empty lines around it.
fn plain(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned()
}

/// Texts for a package that has none: those of its repository's other packages, or those of the licence that its manifest names.
fn substitute(
    package: &Package,
    packages: &[&Package],
    own: &HashMap<&str, BTreeSet<String>>,
    root: &Path,
) -> Result<BTreeSet<String>> {
    let siblings = packages.iter().filter(|one| one.repository.is_some() && one.repository == package.repository);
    if let Some(texts) = siblings.map(|one| &own[one.id.as_str()]).find(|texts| !texts.is_empty()) {
        return Ok(texts.clone());
    }
    let expression = package.license.as_deref().unwrap_or_default();
    let read = |name: &str| fs::read_to_string(root.join(name)).map(|text| plain(&text));
    Ok(BTreeSet::from([match expression.split([' ', '/']).collect::<Vec<_>>().as_slice() {
        ["Apache-2.0"] | [_, "OR", "Apache-2.0"] | ["Apache-2.0", "OR", _] | [_, "Apache-2.0"] => {
            read("LICENSE-APACHE")?
        }
        ["MIT"] => mit(&read("LICENSE-MIT")?, &package.authors)?,
        _ => bail!("{} has no text of its licence, {expression}", package.label()),
    }]))
}

/// The MIT licence with the names of these holders.
fn mit(ours: &str, authors: &[String]) -> Result<String> {
    ensure!(!authors.is_empty(), "a package under the MIT licence names nobody who holds the rights");
    let at = ours.find("Permission is hereby granted").context("LICENSE-MIT has another text")?;
    Ok(format!("Copyright (c) {}\n\n{}", authors.join(", "), &ours[at..]))
}

fn write(packages: &[&Package], by_text: &BTreeMap<String, BTreeSet<String>>) -> String {
    let mut document = format!(
        "Licences of what is linked into tiderace\n========================================\n\n{RUNTIME}\n\n{} crates, with the licences that \
         their manifests name; the texts follow.\n\n",
        packages.len()
    );
    for package in packages {
        let licence = package.license.as_deref().unwrap_or("see its text");
        let repository = package.repository.as_deref().unwrap_or("https://crates.io");
        _ = writeln!(document, "{:<40} {licence}\n{:<40} {repository}", package.label(), "");
    }
    for (text, users) in by_text {
        let users: Vec<&str> = users.iter().map(String::as_str).collect();
        _ = write!(document, "\n{}\n{}\n\n{text}\n", "-".repeat(100), users.join(", "));
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_of_the_program_has_a_text() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let document = collect(root, "x86_64-unknown-linux-gnu").unwrap();
        // Code in C comes inside of crates, with licences of its own.
        for named in ["aws-lc-sys 0.", "zstd-sys 2.", "rustls 0.", "Zstandard", "OpenSSL"] {
            assert!(document.contains(named), "{named}");
        }
        // What only tests, builds and other systems need is not linked.
        for other in ["\nproptest ", "\ncmake ", "\nwindows-sys "] {
            assert!(!document.contains(other), "{other}");
        }
    }

    #[test]
    fn a_licence_without_a_text_is_found_or_refused() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let package = |name: &str, license: &str, repository: &str| Package {
            id: name.to_owned(),
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: Some(license.to_owned()),
            license_file: None,
            authors: vec!["Ada".to_owned()],
            repository: Some(repository.to_owned()),
            manifest_path: PathBuf::from("/nowhere/Cargo.toml"),
            source: Some("registry".to_owned()),
        };
        let (sibling, rare) = (package("a", "Zlib", "x"), package("b", "Zlib", "y"));
        let packages = [&sibling, &rare];
        let own = HashMap::from([("a", BTreeSet::from(["its text".to_owned()])), ("b", BTreeSet::new())]);
        let text =
            |one: &Package| substitute(one, &packages, &own, root).map(|texts| texts.into_iter().collect::<String>());
        assert_eq!(text(&package("c", "Zlib", "x")).unwrap(), "its text");
        assert!(text(&package("c", "MIT OR Apache-2.0", "z")).unwrap().contains("Apache License"));
        assert!(text(&package("c", "MIT", "z")).unwrap().starts_with("Copyright (c) Ada\n\nPermission is hereby"));
        assert!(text(&rare).unwrap_err().to_string().contains("b 1.0.0 has no text"));
    }
}
