//! `cargo xtask compliance`: which requirements of the standards are obeyed, where, and which test shows it.
//!
//! Three things meet here: the tables in `compliance/` ([`table`]), the marks in the sources ([`marks`]), and, where they
//! are at hand, the texts of the standards ([`extract`]). [`count`] compares them; `docs/compliance.md` is for people.

mod count;
mod extract;
mod id;
mod marks;
mod table;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::Parser;

use self::table::Document;
pub(crate) use self::{count::Survey, id::Keyword};

/// Count which requirements of the standards are implemented, tested, or excepted with a reason.
///
/// Reads the tables in compliance/ and the marks in crates/. Fails when a mark names no requirement, when a mark stands in
/// test code that is no test, when an exception has no reason or is out of date, and, with --specs, when a table does not
/// fit the text.
///
/// Exit code 0: all is in order. 1: something is wrong. 2: the request is wrong.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:\n  cargo xtask compliance\n  cargo xtask compliance --open --document 9000\n  \
                        cargo xtask compliance --specs ../shared/specs\n  \
                        cargo xtask compliance --specs ../shared/specs --draft 9110 > compliance/rfc9110.toml")]
pub(crate) struct Args {
    /// List the requirements that lack code, test or reason
    #[arg(long)]
    open: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Only this document, by its RFC number
    #[arg(long, value_name = "RFC")]
    document: Option<u32>,
    /// Compare the tables with the texts in this folder (rfc9000.md, rfc8899.txt, …); --open then quotes them
    #[arg(long, value_name = "DIR")]
    specs: Option<PathBuf>,
    /// Print the table of a document as far as its text gives it; what each line asks is left to you
    #[arg(long, value_name = "RFC", requires = "specs")]
    draft: Option<u32>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> ExitCode {
    match report(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The workspace.
fn root() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map_or_else(|| own.clone(), PathBuf::from)
}

/// Tables and marks of a workspace, compared.
pub(crate) fn survey(root: &Path) -> Result<Survey> {
    Ok(Survey::new(table::read(&root.join("compliance"))?, marks::read(root)?))
}

/// Prints what was asked for; whether all is in order.
fn report(args: &Args) -> Result<bool> {
    if let (Some(number), Some(specs)) = (args.draft, &args.specs) {
        return draft(number, specs).map(|()| true);
    }
    let mut survey = survey(&root())?;
    if let Some(number) = args.document {
        if survey.documents.iter().all(|document| document.number != number) {
            bail!("compliance/ has no table of RFC {number}\nhint: make one with --draft {number}");
        }
        survey.documents.retain(|document| document.number == number);
    }
    let mut sentences = std::collections::BTreeMap::new();
    if let Some(specs) = &args.specs {
        for document in &survey.documents {
            let found = standard(document.number, specs)?;
            survey.faults.extend(differences(document, &found));
            sentences.extend(found.into_iter().map(|f| ((document.number, f.section, f.place), f.sentence)));
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&survey.json(args.open))?);
    } else {
        print!("{}", survey.table());
        if args.open {
            for requirement in survey.open() {
                let missing = survey.missing(requirement);
                println!("{} ({}, no {missing}): {}", requirement.id, requirement.applies, requirement.asks);
                let id = &requirement.id;
                if let Some(sentence) = sentences.get(&(id.document, id.section.clone(), id.place)) {
                    println!("    {sentence}");
                }
            }
        }
    }
    for fault in &survey.faults {
        eprintln!("error: {fault}");
    }
    Ok(survey.faults.is_empty())
}

/// The requirements in the text of a document.
fn standard(number: u32, specs: &Path) -> Result<Vec<extract::Found>> {
    let files = fs::read_dir(specs).with_context(|| format!("cannot read {}", specs.display()))?;
    let prefix = format!("rfc{number}");
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix(&prefix).is_some_and(|rest| rest.starts_with(['.', '-']))
    };
    let path = files.filter_map(|entry| entry.ok().map(|entry| entry.path())).find(ours);
    let path = path.with_context(|| format!("{} has no text of RFC {number}", specs.display()))?;
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    extract::requirements(&text, path.extension().is_some_and(|extension| extension == "md"))
}

/// Differences between a table and its text.
fn differences(document: &Document, found: &[extract::Found]) -> Vec<String> {
    let number = document.number;
    let mut faults = Vec::new();
    for f in found {
        let place = (&f.section, f.place);
        match document.requirements.iter().find(|requirement| (&requirement.id.section, requirement.id.place) == place)
        {
            None => faults.push(format!("the table lacks RFC {number} §{} {}", f.section, f.place)),
            Some(known) if known.print != f.print => {
                faults.push(format!("{} has another fingerprint in the text: {}", known.id, f.print));
            }
            Some(_) => {}
        }
    }
    for requirement in &document.requirements {
        let id = &requirement.id;
        if found.iter().all(|f| (&f.section, f.place) != (&id.section, id.place)) {
            faults.push(format!("the text has no {id}"));
        }
    }
    faults
}

/// Prints a table without words.
fn draft(number: u32, specs: &Path) -> Result<()> {
    println!("title = \"\"");
    let mut section = None;
    for f in standard(number, specs)? {
        if section.as_ref() != Some(&f.section) {
            println!("\n[sections.\"{}\"]", f.section);
            section = Some(f.section.clone());
        }
        println!("# {}", f.sentence);
        println!("\"{}\" = {{ print = \"{}\", applies = \"endpoint\", asks = \"\" }}", f.place, f.print);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables and marks of this repository are in order: the check of CI, as a test.
    #[test]
    fn the_tables_and_marks_of_this_repository_are_in_order() {
        let survey = survey(&root()).unwrap();
        assert_eq!(survey.faults, [""; 0]);
        assert!(survey.documents.iter().any(|document| document.number == 9000));
    }

    #[test]
    fn a_table_that_does_not_fit_its_text_is_told() {
        let text = "--- middle\n# One\nEnds MUST do a. Ends MUST do b.\n";
        let found = extract::requirements(text, true).unwrap();
        let requirement = |place: &str, print: &str| table::Requirement {
            id: id::Id { document: 9, section: "1".parse().unwrap(), place: place.parse().unwrap() },
            print: print.to_owned(),
            applies: "endpoint".to_owned(),
            asks: "do".to_owned(),
            except: None,
            untested: None,
        };
        let right = requirement("MUST-1", &found[0].print);
        let document = |requirements| Document { number: 9, title: "T".to_owned(), requirements };
        let faults = differences(
            &document(vec![right, requirement("MUST-2", "00000000"), requirement("SHOULD-1", "0")]),
            &found,
        );
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert_eq!(differences(&document(vec![]), &found).len(), 2);
    }
}
