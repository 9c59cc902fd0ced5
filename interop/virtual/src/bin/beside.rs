//! `cargo run --release -p virtual --bin beside -- SCENARIO [--stacks NAME,...]`: a scenario of the laboratory with other stacks beside ours.

use std::{
    fs,
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, Result, anyhow};
use clap::Parser;
use lab::{
    campaign::{self, Effort},
    experiment::records_path,
    journal::Journal,
    plan::Plan,
    record::LAB,
    report::{MatrixReport, Samples, csv, html, markdown},
    roster::{Others, join},
    scenario::{Overrides, load},
    selftest,
    summary::Summary,
};
use virtual_interop::contender::{Peers, names};

/// Run a scenario of the laboratory with the stacks of others beside ours, on the same paths and random numbers.
///
/// The records are those of `tiderace lab matrix`, and `tiderace lab report`, `compare` and `gate` read them. A figure that a stack
/// does not report is left out and never guessed; what links and applications count is there for all.
///
/// Stacks: quinn, noq, and quiche in a build with --features quiche, each with its controllers; --help names them. quiche draws from
/// the randomness of BoringSSL, so its runs do not repeat bit for bit.
///
/// Exit code 0: everything was run and may be used. 1: a run failed. 2: something is wrong with the request. 3: the self-test failed.
#[derive(Parser)]
#[command(after_help = format!("Stacks of this build: {}", names().join(", ")))]
struct Arguments {
    /// A preset or a scenario file
    scenario: String,
    /// Stacks and controllers, separated by commas, in addition to those of the scenario
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    stacks: Vec<String>,
    /// Controllers of ours, separated by commas; the first is the baseline
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    cc: Vec<String>,
    /// Pairs that share the path, such as cubic+quinn-cubic, separated by commas
    #[arg(long, value_name = "A+B,...", value_delimiter = ',')]
    rivals: Vec<String>,
    /// Seeds of each point
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
    /// Directory for the records
    #[arg(long, value_name = "DIR", default_value = "lab-out")]
    out: PathBuf,
    /// Write the report as one HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write every point as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    join(Others {
        names,
        has: |name| names().contains(&name),
        make: |name| match Peers::named(name) {
            Ok(Some(peers)) => Ok(Box::new(lab::stack::SansIo(peers))),
            Ok(None) => Err(format!("there is no `{name}`")),
            Err(error) => Err(error.to_string()),
        },
    });
    let overrides = Overrides { seeds: arguments.seeds, congestion: arguments.cc.clone(), ..Overrides::default() };
    let mut scenario = overrides.apply(load(&arguments.scenario)?)?;
    scenario.contenders.stacks.extend(arguments.stacks.iter().cloned());
    for pair in &arguments.rivals {
        let (first, second) = pair.split_once('+').ok_or_else(|| anyhow!("`{pair}`: expected A+B"))?;
        for name in [first, second].into_iter().filter(|name| names().contains(name)) {
            if !scenario.contenders.stacks.iter().any(|known| known == name) {
                scenario.contenders.stacks.push(name.to_owned());
            }
        }
        scenario.contenders.rivals.push([first.to_owned(), second.to_owned()]);
    }
    let absent = lab::roster::absent(&scenario.contenders);
    if !absent.is_empty() {
        return Err(anyhow!("there is no {}\nhint: there are {}", absent.join(", "), names().join(", ")));
    }
    scenario.check().map_err(|fault| anyhow!("{}: {}", fault.field, fault.message))?;
    let plan = Plan::new(scenario)?;
    let mut first = plan.scenario(0)?;
    first.run.duration = first.run.duration.min(units::Duration::from_secs(2));
    first.run.warmup = first.run.warmup.min(units::Duration::from_secs(1));
    first.traffic.start_spread = first.traffic.start_spread.min(first.run.warmup);
    let contenders = plan.contenders(&first)?;
    let record = lab::run::run_one(&first, contenders[0].as_ref(), first.run.seed, None);
    let checks = selftest::run(&first, &contenders, &[record]);
    for check in checks.iter().filter(|check| !check.passed) {
        eprintln!("error: the self-test failed: {}: {}", check.name, check.detail);
    }
    if checks.iter().any(|check| !check.passed) {
        return Ok(ExitCode::from(3));
    }
    fs::create_dir_all(&arguments.out).with_context(|| format!("cannot create {}", arguments.out.display()))?;
    let manifest = plan.manifest(LAB)?;
    let path = records_path(&arguments.out, &manifest);
    let mut journal = Journal::create(&path, &manifest, plan.len())?;
    let done = std::sync::atomic::AtomicUsize::new(0);
    campaign::run(&plan, &mut journal, &Effort::default(), &AtomicBool::new(false), &|_| {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(100) {
            eprintln!("{done} of {} runs", plan.len());
        }
    })?;
    let path = journal.tidy()?;
    let summary = Summary::read(&path)?;
    let report = MatrixReport::new(&summary, checks);
    if let Some(file) = &arguments.html {
        fs::write(file, html(&report, &summary.manifest.scenario, &[], &Samples::default()))?;
    }
    if let Some(file) = &arguments.csv {
        fs::write(file, csv(&report))?;
    }
    println!("{}\nRecords (JSON lines): {}", markdown(&report), path.display());
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
