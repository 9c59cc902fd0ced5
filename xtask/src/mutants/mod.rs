//! `cargo xtask mutants`: plants faults into a copy of the workspace and sees that each is caught by what is said to catch it.

mod list;
mod programs;
mod tree;

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde::Serialize;

use self::{
    list::{CaughtBy, Mutant},
    programs::{Ended, Programs},
};

/// Plant faults into a copy of the workspace and see that each is caught.
///
/// The faults stand in xtask/mutants/*.toml: a file, a text that stands there exactly once, the text in its place, and what has to
/// catch it. All of them are built into one copy, target/mutants/tree, each behind a switch; then the self-test and the stated check run
/// once without any fault and once with each.
///
/// Exit code 0: every fault is caught by what is said to catch it. 1: one is not. 2: the list does not fit the source, the copy does
/// not build, or something fails without a fault.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Plant only faults whose name or file has this text in it; may be given again
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Faults that are tried at the same time [default: one per core]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
    /// Only see that the list fits the source; build nothing
    #[arg(long)]
    check: bool,
}

/// A fault and what became of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Tried {
    /// Name.
    pub(crate) fault: String,
    /// The source file.
    pub(crate) file: String,
    /// Figures that it falsifies.
    pub(crate) falsifies: String,
    /// The check that has to catch it.
    pub(crate) stated: String,
    /// Caught by the stated check.
    pub(crate) as_stated: bool,
    /// The check that caught it; nothing when none did.
    pub(crate) caught_by: Option<String>,
    /// Caught by the self-test on its own.
    pub(crate) by_selftest: bool,
    /// Seconds that it took.
    pub(crate) seconds: f64,
}

/// The workspace.
fn root() -> PathBuf {
    let xtask = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().map_or_else(|| xtask.clone(), Path::to_owned)
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> ExitCode {
    let tried = if args.check { check().map(|()| Vec::new()) } else { try_all(&args.only, args.jobs) };
    match tried {
        Ok(tried) => {
            print(&tried, args.json);
            ExitCode::from(u8::from(!tried.iter().all(|one| one.as_stated)))
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn check() -> Result<()> {
    let mutants = list::read(&root())?;
    list::planted(&root(), &mutants)?;
    eprintln!("{} faults fit the source", mutants.len());
    Ok(())
}

/// The names of all faults.
#[cfg(test)]
pub(crate) fn names() -> Result<Vec<String>> {
    Ok(list::read(&root())?.into_iter().map(|mutant| mutant.name).collect())
}

/// Plants, builds and tries the faults that `only` names, or all.
pub(crate) fn try_all(only: &[String], jobs: Option<NonZeroUsize>) -> Result<Vec<Tried>> {
    let root = root();
    let mutants = list::read(&root)?;
    let folder = crate::flaky::binaries::target(&root).join("mutants");
    let (tree, target) = (folder.join("tree"), folder.join("build"));
    std::fs::create_dir_all(&tree).with_context(|| format!("cannot write to {}", tree.display()))?;
    let chosen = |mutant: &Mutant| {
        only.is_empty() || only.iter().any(|text| mutant.name.contains(text) || mutant.file.contains(text))
    };
    let numbered: Vec<(usize, &Mutant)> = (1..).zip(&mutants).filter(|(_, mutant)| chosen(mutant)).collect();
    ensure!(!numbered.is_empty(), "no fault has a name or a file with {} in it", only.join(" or "));
    eprintln!("Planting {} faults in {} and building once …", mutants.len(), tree.display());
    tree::plant(&root, &tree, &mutants)?;
    let began = Instant::now();
    let programs = Programs::build(&tree, &target, &mutants)?;
    eprintln!("built in {:.0} s", began.elapsed().as_secs_f64());
    let limit = without(&programs, &numbered)?;

    let jobs = jobs.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((number, mutant)) = numbered.get(index) else { return };
            let tried = try_one(&programs, *number, mutant, limit);
            if let Ok(tried) = &tried {
                let what = tried.caught_by.as_deref().unwrap_or("NOT CAUGHT");
                eprintln!("{}/{} {} ({:.0} s): {what}", index + 1, numbered.len(), tried.fault, tried.seconds);
            }
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, tried));
        }
    };
    thread::scope(|scope| {
        for _ in 1..jobs {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, tried)| tried).collect()
}

/// Checks that everything passes without a fault. Returns the time that a fault may take: twenty times what it took, and two
/// minutes at least.
fn without(programs: &Programs, numbered: &[(usize, &Mutant)]) -> Result<Duration> {
    const PATIENCE: Duration = Duration::from_secs(3_600);
    let began = Instant::now();
    let ended = programs.selftest(0, PATIENCE)?;
    let took = began.elapsed();
    ensure!(ended == Ended::Passed, "the self-test fails without any fault: {ended:?}");
    eprintln!("without a fault the self-test passes in {:.0} s", took.as_secs_f64());
    let mut stated: Vec<&CaughtBy> = numbered.iter().map(|(_, mutant)| &mutant.caught_by).collect();
    stated.sort();
    stated.dedup();
    for by in stated {
        let ended = programs.stated(by, 0, PATIENCE)?;
        ensure!(ended.as_ref().is_none_or(|ended| *ended == Ended::Passed), "{by} fails without any fault: {ended:?}");
    }
    Ok((took * 20).max(Duration::from_secs(120)))
}

fn try_one(programs: &Programs, number: usize, mutant: &Mutant, limit: Duration) -> Result<Tried> {
    let began = Instant::now();
    let stated = programs.stated(&mutant.caught_by, number, limit)?.map(|ended| ended.caught());
    let selftest = programs.selftest(number, limit)?.caught();
    let by_selftest = selftest.is_some();
    let as_stated = match &stated {
        None => by_selftest,
        Some(caught) => caught.is_some(),
    };
    Ok(Tried {
        fault: mutant.name.clone(),
        file: mutant.file.clone(),
        falsifies: mutant.falsifies.clone(),
        stated: mutant.caught_by.to_string(),
        as_stated,
        caught_by: selftest.or(stated.flatten()),
        by_selftest,
        seconds: began.elapsed().as_secs_f64(),
    })
}

fn print(tried: &[Tried], json: bool) {
    if json {
        println!("{}", serde_json::to_string_pretty(tried).unwrap_or_default());
        return;
    }
    if tried.is_empty() {
        return;
    }
    let width = tried.iter().map(|one| one.fault.len()).max().unwrap_or(0);
    for one in tried {
        let mark = if one.as_stated { "caught" } else { "MISSED" };
        let who = if one.by_selftest { "selftest" } else { "        " };
        let what = one.caught_by.as_deref().unwrap_or("nothing");
        println!("{mark}  {:<width$}  {who}  {:>4.0} s  {what}", one.fault, one.seconds);
    }
    let caught = tried.iter().filter(|one| one.as_stated).count();
    let alone = tried.iter().filter(|one| one.by_selftest).count();
    println!("{caught} of {} faults are caught as stated, {alone} by the self-test on its own.", tried.len());
}
