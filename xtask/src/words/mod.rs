//! `cargo xtask words`: the vocabulary, counted.
//!
//! A doc comment that begins with a pronoun names nothing, and a metaphor of our own has to be translated back into the term of the
//! RFC. Both are counted per crate, against the ceilings and terms of `xtask/words.toml`.

mod count;
mod list;

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;

use self::{
    count::{Counts, Hit, Survey},
    list::List,
};

/// Count doc comments that begin with a pronoun, and metaphors of our own, against xtask/words.toml.
///
/// Faults: a share of pronoun starts above the limit, a listed word outside the list of exceptions, a crate above its declared ceiling,
/// and an exception that nothing needs.
///
/// Exit code 0: no fault. 1: faults. 2: the list or the tree cannot be read.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Print each place, of all crates or of those whose path contains TEXT
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "")]
    places: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Counts and faults, as printed.
#[derive(Debug, Serialize)]
struct Report<'a> {
    crates: &'a [(String, Counts)],
    /// Percent of doc comments that begin with a listed word, over all crates without a ceiling.
    share_percent: f64,
    /// Percent over the whole workspace.
    workspace_share_percent: f64,
    faults: &'a [String],
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match check(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn check(args: &Args) -> Result<bool> {
    let list = List::read(Path::new(list::PATH))?;
    let survey = Survey::of(&list, &count::files(Path::new("."))?);
    let faults = survey.faults(&list);
    if args.json {
        let report = Report {
            crates: &survey.crates,
            share_percent: survey.share(&list).percent(),
            workspace_share_percent: survey.total().percent(),
            faults: &faults,
        };
        println!("{}", serde_json::to_string_pretty(&report).context("cannot write the report")?);
        return Ok(faults.is_empty());
    }
    if let Some(part) = &args.places {
        for Hit { path, line, text } in survey.hits.iter().filter(|hit| hit.path.contains(part.as_str())) {
            println!("{path}:{line}: {text}");
        }
    }
    println!("{:14} {:>12} {:>14} {:>7} {:>6}", "crate", "doc comments", "pronoun starts", "share", "terms");
    for (name, counts) in &survey.crates {
        println!(
            "{name:14} {:>12} {:>14} {:>6.1}% {:>6}",
            counts.comments,
            counts.starts,
            counts.percent(),
            counts.terms
        );
    }
    let (share, total) = (survey.share(&list), survey.total());
    println!("workspace      {:>12} {:>14} {:>6.1}% {:>6}", total.comments, total.starts, total.percent(), total.terms);
    println!(
        "without declared ceilings: {:.1} % of {} doc comments (limit {} %)",
        share.percent(),
        share.comments,
        list.doc_comments.share_percent_max
    );
    for ceiling in &list.ceiling {
        let counts = survey.of_crate(&ceiling.name);
        if counts.starts < ceiling.starts || counts.terms < ceiling.terms {
            println!(
                "hint: lower the ceiling of {}: {} starts and {} terms are left",
                ceiling.name, counts.starts, counts.terms
            );
        }
    }
    for fault in &faults {
        eprintln!("fault: {fault}");
    }
    Ok(faults.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree obeys its own list: `cargo test` says so before `.ci/run` does.
    #[test]
    fn the_tree_obeys_the_list() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let list = List::read(&root.join(list::PATH)).unwrap();
        let survey = Survey::of(&list, &count::files(root).unwrap());
        assert_eq!(survey.faults(&list), Vec::<String>::new());
        assert!(survey.total().comments > 5_000, "the survey misses files: {:?}", survey.total());
    }
}
