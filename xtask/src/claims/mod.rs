//! `cargo xtask claims`: measures what docs/claims.md and docs/congestion.md say again, and draws their pictures.
//!
//! [`numbers`] lists what is asked of the records of each scenario, [`pictures`] draws them. Everything is virtual time and fixed
//! seeds: the same build gives the same numbers.

mod numbers;
mod pictures;

use std::{
    collections::BTreeMap,
    fs,
    io::BufReader,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::AtomicBool,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use lab::{
    campaign::{self, Effort},
    figure::Figure,
    journal::Journal,
    plan::Plan,
    record::{MANIFEST_SCHEMA, Manifest, Record, RunOutcome, read},
    scenario::load,
};

/// Measure the claims of docs/claims.md again, and draw the pictures of docs/congestion.md.
///
/// Runs the scenarios claims-* and video with all their seeds, and prints every number with its 95 %
/// interval as a table in Markdown. Pictures go into docs/figures as SVG. Takes about an hour on two cores; records stay
/// in target/claims.
///
/// Exit code 0: everything was measured. 2: something could not be.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Run these scenarios only
    #[arg(long, value_name = "SCENARIO", value_parser = numbers::SCENARIOS)]
    only: Vec<String>,
    /// Use the records of an earlier run, where there are any
    #[arg(long)]
    keep: bool,
    /// Draw shares of a bottleneck from what `cargo xtask shows congestion --save FILE` stored
    #[arg(long, value_name = "FILE")]
    shows: Option<PathBuf>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> ExitCode {
    match execute(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn execute(args: &Args) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    let (records, figures) = (root.join("target/claims"), root.join("docs/figures"));
    fs::create_dir_all(&records)?;
    fs::create_dir_all(&figures)?;
    let chosen = |name: &&str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    for name in numbers::SCENARIOS.into_iter().filter(chosen) {
        let runs = Runs::of(name, &records, args.keep)?;
        println!("\n### {name}\n\n| what | value | 95 % interval | runs |\n|---|---|---|---|");
        for number in numbers::of(name) {
            println!("{}", number.measure(&runs)?);
        }
        for (file, picture) in pictures::of(name, &runs)? {
            fs::write(figures.join(file), picture)?;
        }
    }
    if let Some(file) = &args.shows {
        let document = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        for (file, picture) in pictures::of_shows(&document)? {
            fs::write(figures.join(file), picture)?;
        }
    }
    Ok(())
}

/// The runs of a scenario.
pub(super) struct Runs {
    records: Vec<Record>,
}

/// Some runs of a scenario: one contender at one point of it. A factor that is not named has to have one value.
pub(super) struct Cell<'a> {
    pub(super) contender: &'a str,
    pub(super) point: &'a [(&'a str, &'a str)],
    pub(super) figure: Figure,
}

impl Runs {
    fn of(name: &str, directory: &Path, keep: bool) -> Result<Self> {
        let plan = Plan::new(load(name)?)?;
        let contenders = plan.contenders(&plan.scenario(0)?)?;
        let manifest = Manifest {
            schema: MANIFEST_SCHEMA.to_owned(),
            lab: "claims".to_owned(),
            digest: plan.base().digest(),
            scenario: plan.base().clone(),
            contenders: contenders.iter().map(|contender| contender.identity()).collect(),
        };
        let path = directory.join(format!("{name}.jsonl"));
        let kept = Journal::open(&path, |_| plan.len()).ok().filter(|(_, before, _)| keep && *before == manifest);
        let mut journal = match kept {
            Some((journal, ..)) => journal,
            None => Journal::create(&path, &manifest, plan.len())?,
        };
        let (begin, missing) = (Instant::now(), plan.len() - journal.stored());
        eprintln!("{name}: {missing} runs …");
        campaign::run(&plan, &mut journal, &Effort::default(), &AtomicBool::new(false), &|_| {})?;
        journal.tidy()?;
        eprintln!("{name}: {:.0} s", begin.elapsed().as_secs_f64());
        let (_, records) = read(BufReader::new(fs::File::open(&path)?))?;
        for record in &records {
            if let RunOutcome::Failed(why) = &record.outcome {
                anyhow::bail!("{name}, {}, seed {}: {why}", record.contender.name, record.seed);
            }
        }
        Ok(Self { records })
    }

    /// The figure by seed, in the unit that people read.
    pub(super) fn by_seed(&self, cell: &Cell<'_>) -> Result<BTreeMap<u64, f64>> {
        let fits = |record: &&Record| {
            record.contender.name == format!("tiderace {}", cell.contender)
                && cell.point.iter().all(|(field, value)| record.point.get(*field).is_some_and(|at| at == value))
        };
        let scale = cell.figure.unit().printed().1;
        let mut values = BTreeMap::new();
        for record in self.records.iter().filter(fits) {
            let value = record.figures.get(&cell.figure).and_then(|reading| reading.value);
            let value = value.with_context(|| format!("{}: no {}", record.contender.name, cell.figure.label()))?;
            ensure!(
                values.insert(record.seed, value * scale).is_none(),
                "{}: {:?} names several points",
                cell.contender,
                cell.point
            );
        }
        ensure!(!values.is_empty(), "no run of {} at {:?}", cell.contender, cell.point);
        Ok(values)
    }

    /// The levels of a factor, as records write them, in the order of the plan.
    pub(super) fn levels(&self, field: &str) -> Vec<&str> {
        let mut levels: Vec<&str> = Vec::new();
        for level in self.records.iter().filter_map(|record| record.point.get(field)) {
            if !levels.contains(&level.as_str()) {
                levels.push(level);
            }
        }
        levels
    }
}
