//! `cargo xtask dependencies`: licences, known defects and duplicates of everything that the workspace is built from.
//!
//! Cargo says what there is; `xtask/dependencies.toml` says what is allowed, each with its reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde::{Deserialize, Serialize};

/// Check licences and versions of all dependencies against xtask/dependencies.toml.
///
/// Three things are faults: a licence that is not in the list, a version with a known defect, and a crate in two versions without a
/// reason. So is an entry of the list that nothing needs. The list of defects is kept by hand, and is no substitute for the RustSec
/// database: `cargo deny check advisories` asks that where the network allows it.
///
/// Exit code 0: no fault. 1: faults. 2: cargo or the list cannot be read.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

const LIST: &str = "xtask/dependencies.toml";

/// Allowed licences, duplicates, advisories.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    licence: Vec<Licence>,
    duplicate: Vec<Duplicate>,
    advisory: Vec<Advisory>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Licence {
    /// SPDX identifier.
    id: String,
    why: String,
}

/// A crate that may be there in several versions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Duplicate {
    name: String,
    why: String,
}

/// Versions with a known defect.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Advisory {
    id: String,
    name: String,
    /// Ranges: from the first version, and below the second.
    affected: Vec<[String; 2]>,
    date: String,
    about: String,
}

/// Package, as cargo describes it.
#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` of what lies in the workspace.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Serialize)]
struct Report {
    packages: usize,
    licences: BTreeMap<String, usize>,
    faults: Vec<String>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match execute() {
        Ok(report) => {
            if args.json {
                println!("{}", serde_json::to_string_pretty(&report).expect("a report is JSON"));
            } else {
                for (licence, count) in &report.licences {
                    println!("{count:>5}  {licence}");
                }
                println!("{} packages, {} faults", report.packages, report.faults.len());
            }
            for fault in &report.faults {
                eprintln!("error: {fault}");
            }
            ExitCode::from(u8::from(!report.faults.is_empty()))
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn execute() -> Result<Report> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata said something else")?;
    let text = std::fs::read_to_string(root.join(LIST)).with_context(|| format!("cannot read {LIST}"))?;
    let list = toml::from_str(&text).with_context(|| format!("{LIST} is not such a list"))?;
    Ok(judge(&metadata.packages, &list))
}

fn judge(packages: &[Package], list: &List) -> Report {
    let foreign: Vec<_> = packages.iter().filter(|package| package.source.is_some()).collect();
    let mut faults = Vec::new();
    let mut licences = BTreeMap::new();
    let mut used = BTreeSet::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let allowed: BTreeSet<&str> = list.licence.iter().map(|licence| licence.id.as_str()).collect();
    for package in &foreign {
        let Package { name, version, license, .. } = package;
        versions.entry(name).or_default().insert(version);
        let license = license.as_deref().unwrap_or("");
        *licences.entry(license.to_owned()).or_default() += 1;
        match accept(license, &allowed) {
            Some(by) => used.extend(by),
            None => faults.push(format!("{name} {version}: the licence `{license}` is not in {LIST}")),
        }
        for advisory in list.advisory.iter().filter(|advisory| advisory.name == *name) {
            if advisory
                .affected
                .iter()
                .any(|[from, below]| number(version) >= number(from) && number(version) < number(below))
            {
                let Advisory { id, about, date, .. } = advisory;
                faults.push(format!("{name} {version}: {id} of {date}, {about}"));
            }
        }
    }
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        if !list.duplicate.iter().any(|duplicate| duplicate.name == **name) {
            let versions: Vec<_> = versions.iter().copied().collect();
            faults.push(format!(
                "{name} is there in several versions, {}, without a reason in {LIST}",
                versions.join(", ")
            ));
        }
    }
    for duplicate in &list.duplicate {
        if versions.get(duplicate.name.as_str()).is_none_or(|versions| versions.len() < 2) {
            faults.push(format!("{LIST} allows several versions of {}, and there is no second one", duplicate.name));
        }
    }
    for id in allowed.difference(&used) {
        faults.push(format!("{LIST} allows the licence {id}, and nothing needs it"));
    }
    for (what, why) in list
        .licence
        .iter()
        .map(|l| (&l.id, &l.why))
        .chain(list.duplicate.iter().map(|d| (&d.name, &d.why)))
        .filter(|(_, why)| why.trim().is_empty())
    {
        faults.push(format!("{LIST}: {what} has no reason{why}"));
    }
    Report { packages: foreign.len(), licences, faults }
}

/// The first three numbers of a version.
fn number(version: &str) -> [u64; 3] {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

/// The identifiers by which an SPDX expression is acceptable; `None` when it is not. An old slash is an OR.
fn accept<'a>(expression: &str, allowed: &BTreeSet<&'a str>) -> Option<BTreeSet<&'a str>> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let found = any(&mut words, allowed)?;
    if words.next().is_some() { None } else { found }
}

type Words<'w> = std::iter::Peekable<std::str::SplitWhitespace<'w>>;
/// Outside `None`: no expression. Inside: not acceptable.
type Verdict<'a> = Option<Option<BTreeSet<&'a str>>>;

fn any<'a>(words: &mut Words<'_>, allowed: &BTreeSet<&'a str>) -> Verdict<'a> {
    let mut found = all(words, allowed)?;
    while words.next_if_eq(&"OR").is_some() {
        let next = all(words, allowed)?;
        found = found.or(next);
    }
    Some(found)
}

fn all<'a>(words: &mut Words<'_>, allowed: &BTreeSet<&'a str>) -> Verdict<'a> {
    let mut found = one(words, allowed)?;
    while words.next_if_eq(&"AND").is_some() {
        let next = one(words, allowed)?;
        found = found.zip(next).map(|(mut found, next)| {
            found.extend(next);
            found
        });
    }
    Some(found)
}

fn one<'a>(words: &mut Words<'_>, allowed: &BTreeSet<&'a str>) -> Verdict<'a> {
    let word = words.next()?;
    if word == "(" {
        let found = any(words, allowed)?;
        return words.next_if_eq(&")").map(|_| found);
    }
    let mut id = word.to_owned();
    if words.next_if_eq(&"WITH").is_some() {
        id = format!("{id} WITH {}", words.next()?);
    }
    Some(allowed.get(id.as_str()).map(|id| BTreeSet::from([*id])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, license: &str) -> Package {
        let (license, source) = (Some(license.to_owned()), Some("registry".to_owned()));
        Package { name: name.to_owned(), version: version.to_owned(), license, source }
    }

    fn list() -> List {
        toml::from_str(
            "[[licence]]\nid = 'MIT'\nwhy = 'ours'\n[[duplicate]]\nname = 'twice'\nwhy = 'a needs the old one'\n\
             [[advisory]]\nid = 'RUSTSEC-1'\nname = 'bad'\naffected = [['1.0.0', '1.2.3']]\ndate = '2024-01-01'\nabout = 'it breaks'\n",
        )
        .unwrap()
    }

    fn faults(more: &[Package]) -> Vec<String> {
        let base = [package("twice", "1.0.0", "MIT"), package("twice", "2.0.0", "MIT OR X")];
        let all: Vec<_> = base
            .into_iter()
            .chain(more.iter().map(|p| package(&p.name, &p.version, p.license.as_ref().unwrap())))
            .collect();
        judge(&all, &list()).faults
    }

    #[test]
    fn planted_faults_are_found() {
        assert_eq!(faults(&[]), Vec::<String>::new());
        assert_eq!(faults(&[package("bad", "1.2.3", "MIT"), package("bad2", "1.0.0", "MIT")]), Vec::<String>::new());
        for (planted, says) in [
            (package("new", "1.0.0", "GPL-3.0-only"), "the licence `GPL-3.0-only` is not in"),
            (package("new", "1.0.0", "MIT AND GPL-3.0-only"), "the licence"),
            (package("new", "1.0.0", ""), "the licence ``"),
            (package("bad", "1.2.2", "MIT"), "RUSTSEC-1 of 2024-01-01, it breaks"),
            (package("bad", "1.0.0+build", "MIT"), "RUSTSEC-1"),
        ] {
            let found = faults(&[planted]);
            assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        }
        let twice = faults(&[package("x", "1.0.0", "MIT"), package("x", "2.0.0", "MIT")]);
        assert!(twice.len() == 1 && twice[0].contains("x is there in several versions, 1.0.0, 2.0.0"), "{twice:?}");
        let unused = judge(&[package("twice", "1.0.0", "MIT")], &list()).faults;
        assert!(unused.len() == 1 && unused[0].contains("no second one"), "{unused:?}");
    }

    #[test]
    fn expressions_are_what_spdx_says() {
        let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]);
        for good in [
            "MIT",
            "X OR MIT",
            "X/MIT",
            "MIT AND ISC",
            "(X OR MIT) AND ISC",
            "Apache-2.0 WITH LLVM-exception OR X",
            "X AND Y OR MIT",
        ] {
            assert!(accept(good, &allowed).is_some(), "{good}");
        }
        for bad in ["X", "MIT AND X", "(X OR Y) AND MIT", "Apache-2.0", "", "(MIT", "MIT ISC", "MIT AND", "MIT WITH Y"]
        {
            assert!(accept(bad, &allowed).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_workspace_is_in_order() {
        let report = execute().unwrap();
        assert!(report.faults.is_empty() && report.packages > 100, "{:#?}", report.faults);
    }
}
