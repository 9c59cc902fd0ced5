//! `tiderace lab matrix`, `resume` and `replay`: many runs, in a file that survives an interruption at any time.

use std::{
    io::IsTerminal,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use lab::{
    campaign::{self, CampaignError, Effort, Ended},
    experiment::records_path,
    journal::{Journal, JournalError, Records},
    plan::Plan,
    qlog::Logs,
    record::{Manifest, REAL_TIME},
    scenario::{Scenario, load},
    selftest::{self, Check},
};

use transport::qlog::Format;

use super::{
    LAB, Settings, metadata,
    outputs::{Outputs, publish},
    present, writable,
};
#[cfg(target_os = "linux")]
use super::{device::DeviceChoice, live};
use crate::{
    failure::{Failure, SELF_TEST, UNSOUND},
    stdout::write_out,
};

/// Run a scenario in every combination of its factors' levels.
///
/// Records are stored while the matrix runs. Ctrl-C ends it after the runs in progress; `tiderace lab resume FILE` continues. With --html
/// the report is also written as a page.
///
/// With --real-time the runs are made on this machine, one after the other, on emulated networks, with the kernel's TCP beside our stacks, as in
/// `tiderace lab run --real-time`. The time that this takes is printed first. Ctrl-C drops the run in progress, and the report of the others is
/// marked as partial.
///
/// Exit code 0: all runs are complete and may be used. 1: a run failed. 2: the scenario or an option is wrong, or the records cannot be
/// written. 3: the self-test failed, and nothing was run. 130: ended before it was complete.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  tiderace lab matrix claims-rtt --html report.html
  tiderace lab matrix okru-mobile --vary path.loss-burst=1,3,6
  tiderace lab matrix mobile --real-time --vary path.rtt=20ms,80ms --cc cubic,kernel-cubic")]
pub(super) struct MatrixArgs {
    /// Preset (see `tiderace lab list`) or scenario file
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    /// Seeds of each point; 6 or more give intervals, 12 or more the A/A control
    #[arg(long, value_name = "N")]
    pub(super) seeds: Option<u32>,
    /// First seed; the others count up from it
    #[arg(long, value_name = "S")]
    pub(super) seed: Option<u64>,
    /// Vary a field in addition to the scenario's factors; may be repeated
    #[arg(long, value_name = "FIELD=VALUE,...", value_parser = factor)]
    vary: Vec<(String, Vec<serde_json::Value>)>,
    /// Directory for the records
    #[arg(long, value_name = "DIR", default_value = "lab-out")]
    out: PathBuf,
    #[command(flatten)]
    effort: EffortArgs,
    #[command(flatten)]
    outputs: Outputs,
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    live: live::RealTimeArgs,
    #[command(flatten)]
    settings: Settings,
}

/// Continue a matrix that was interrupted.
///
/// Complete records are kept; missing and damaged ones are run again. A complete file has the same bytes whether the matrix was interrupted
/// or not. Exit codes are those of `tiderace lab matrix`.
#[derive(Debug, Parser)]
pub(super) struct ResumeArgs {
    /// File of records that `tiderace lab matrix` wrote
    #[arg(value_name = "RECORDS")]
    records: PathBuf,
    #[command(flatten)]
    effort: EffortArgs,
    #[command(flatten)]
    outputs: Outputs,
    /// Of a matrix in real time: accept runs during which other programs used much of the CPU
    #[cfg(target_os = "linux")]
    #[arg(long)]
    accept_busy: bool,
    #[cfg(target_os = "linux")]
    /// Of a matrix in real time: devices of the emulated networks
    #[arg(long, value_name = "KIND", default_value = "auto")]
    device: DeviceChoice,
}

/// Repeat a stored run, and compare it with its record.
///
/// Exit code 0: packets and figures are the same. 1: they differ. 2: there is no such run.
#[derive(Debug, Parser)]
pub(super) struct ReplayArgs {
    /// File of records
    #[arg(value_name = "RECORDS")]
    records: PathBuf,
    /// Number of the run, as in the field `run` of its record
    #[arg(long, value_name = "N", default_value_t = 0)]
    run: u64,
    /// Write qlog files into this directory
    #[arg(long, value_name = "DIR")]
    qlog: Option<PathBuf>,
    /// Version of the qlog files: `newest`, or `0.3`, which qvis opens
    #[arg(long, value_name = "VERSION", default_value_t, requires = "qlog")]
    qlog_format: Format,
    /// Write the packets too (packets.pcapng), with the keys that decrypt them, for Wireshark
    #[arg(long, requires = "qlog")]
    pcapng: bool,
}

/// Number of cores.
#[derive(Debug, Parser)]
struct EffortArgs {
    /// Threads to run on [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

/// `FIELD=VALUE,...` with numbers as numbers.
fn factor(text: &str) -> Result<(String, Vec<serde_json::Value>), String> {
    let (name, values) = text.split_once('=').ok_or("expected FIELD=VALUE,...")?;
    let value = |text: &str| match text.trim().parse::<i64>() {
        Ok(number) => number.into(),
        Err(_) => serde_json::Value::from(text.trim()),
    };
    Ok((name.trim().to_owned(), values.split(',').map(value).collect()))
}

pub(super) fn matrix(args: &MatrixArgs) -> Result<ExitCode, Failure> {
    #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "commands are for Linux"))]
    let (mut scenario, mut overrides) = (load(&args.scenario)?, args.settings.overrides(args.seeds, args.seed));
    #[cfg(target_os = "linux")]
    live::select_commands(&args.live, &args.settings.cc, &mut scenario, &mut overrides);
    let mut scenario = overrides.apply(scenario)?;
    #[cfg(target_os = "linux")]
    live::select(&mut scenario, &args.settings.cc, args.live.real_time)?;
    for (name, values) in &args.vary {
        scenario.vary(name, values.clone());
    }
    #[cfg(target_os = "linux")]
    if args.live.real_time {
        return live::matrix::start(scenario, &args.out, &args.live, &args.outputs);
    }
    start(scenario, &args.out, args.effort.threads, &args.outputs)
}

/// Runs all points of a scenario from the beginning.
pub(super) fn start(
    scenario: Scenario,
    out: &Path,
    threads: Option<NonZeroUsize>,
    outputs: &Outputs,
) -> Result<ExitCode, Failure> {
    present(&scenario)?;
    #[cfg(target_os = "linux")]
    super::live::refuse_commands(&scenario)?;
    outputs.possible()?;
    let plan = Plan::new(scenario)?;
    let manifest = manifest(&plan)?;
    writable(out, "--out")?;
    let path = path_of_new(out, &manifest, plan.len())?;
    let checks = self_test(&plan)?;
    if let Some(code) = refused(&checks) {
        return Ok(code);
    }
    let journal = Journal::create(&path, &manifest, plan.len())
        .map_err(|error| Failure::new(format_args!("cannot write {}: {error}", path.display())))?;
    metadata::store(&path, &metadata::collect(LAB));
    execute(&plan, journal, &EffortArgs { threads }, outputs, checks)
}

/// Path of the records of a matrix that begins. Refuses to replace one that is not complete.
pub(super) fn path_of_new(out: &Path, manifest: &Manifest, runs: usize) -> Result<PathBuf, Failure> {
    let path = records_path(out, manifest);
    if path.exists() && Journal::open(&path, |_| runs).is_ok_and(|(journal, ..)| journal.missing().next().is_some()) {
        return Err(Failure::new(format_args!("{} is there and not complete", path.display()))
            .hint(format_args!("go on with `tiderace lab resume {}`, or remove it", path.display())));
    }
    Ok(path)
}

pub(super) fn resume(args: &ResumeArgs) -> Result<ExitCode, Failure> {
    let mut plan = None;
    let opened = Journal::open(&args.records, |manifest| {
        let made = Plan::new(manifest.scenario.clone());
        let runs = made.as_ref().map_or(0, Plan::len);
        plan = Some(made);
        runs
    });
    // A scenario that this version refuses is the better message than records without a place.
    let plan = match plan {
        Some(Err(error)) => return Err(error.into()),
        Some(Ok(plan)) => Some(plan),
        None => None,
    };
    let (journal, stored, damage) = opened.map_err(|error| unusable(&args.records, &error))?;
    let Some(plan) = plan else { return Err(Failure::new("the manifest was not read")) };
    present(plan.base())?;
    args.outputs.possible()?;
    let mut manifest = manifest(&plan)?;
    if stored.is_real_time() {
        manifest.lab += REAL_TIME;
    }
    if manifest.contenders != stored.contenders || manifest.lab != stored.lab {
        return Err(Failure::new(format_args!(
            "{} was written by {}, this is {}",
            args.records.display(),
            stored.lab,
            manifest.lab
        ))
        .hint("records of two versions must not be mixed: run the matrix again"));
    }
    if damage.torn {
        eprintln!("The last line has no end: that run is run again.");
    }
    if !damage.lines.is_empty() {
        eprintln!("Damaged lines: {:?}: their runs are run again.", damage.lines);
    }
    eprintln!("{} of {} runs are there.", journal.stored(), plan.len());
    #[cfg(target_os = "linux")]
    if stored.is_real_time() {
        let conditions = ::live::Conditions {
            accept_busy: args.accept_busy,
            device: args.device.kind(),
            ..::live::Conditions::default()
        };
        return live::matrix::resume(&plan, journal, conditions, &args.outputs);
    }
    #[cfg(not(target_os = "linux"))]
    if stored.is_real_time() {
        return Err(
            Failure::unsupported("runs in real time need Linux").hint("continue it on the machine that began it")
        );
    }
    let checks = self_test(&plan)?;
    if let Some(code) = refused(&checks) {
        return Ok(code);
    }
    execute(&plan, journal, &args.effort, &args.outputs, checks)
}

pub(super) fn replay(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let (manifest, records) = Records::open(&args.records)
        .map_err(|error| Failure::new(format_args!("{}: {error}", args.records.display())))?;
    if manifest.is_real_time() {
        return Err(Failure::new("a run in real time cannot be repeated: the machine is part of it")
            .hint("`tiderace lab matrix` without --real-time makes runs that can be"));
    }
    present(&manifest.scenario)?;
    let plan = Plan::new(manifest.scenario)?;
    let mut found = None;
    for record in records {
        let record = record.map_err(|error| Failure::new(format_args!("{}: {error}", args.records.display())))?;
        if record.run == args.run {
            found = Some(record);
            break;
        }
    }
    let index = usize::try_from(args.run).ok().filter(|index| *index < plan.len());
    let (Some(stored), Some(index)) = (found, index) else {
        return Err(Failure::new(format_args!("{} has no run {}", args.records.display(), args.run))
            .hint(format_args!("its runs are 0 to {}", plan.len().saturating_sub(1))));
    };
    let qlog = args.qlog.clone().map(|directory| Logs { directory, format: args.qlog_format, packets: args.pcapng });
    let effort = Effort { threads: None, qlog };
    let again = campaign::one(&plan, index, &effort)?;
    let point: Vec<String> = stored.point.iter().map(|(name, level)| format!(", {name} {level}")).collect();
    let same = again == stored;
    let verdict = match (same, again.trace == stored.trace) {
        (true, _) => "the same packets and figures",
        (false, true) => "the same packets, other figures",
        (false, false) => "OTHER packets",
    };
    write_out(&format!(
        "run {} ({}, seed {}{}): {verdict}\n  stored  {}  {} packets\n  again   {}  {} packets\n",
        args.run,
        stored.contender.name,
        stored.seed,
        point.concat(),
        stored.trace.hash,
        stored.trace.packets,
        again.trace.hash,
        again.trace.packets
    ))?;
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}

/// First line of a plan's file.
pub(super) fn manifest(plan: &Plan) -> Result<Manifest, Failure> {
    Ok(plan.manifest(LAB)?)
}

/// The checks that need no run of the matrix, at its first point, and a run of it twice.
fn self_test(plan: &Plan) -> Result<Vec<Check>, Failure> {
    let mut scenario: Scenario = plan.scenario(0)?;
    let contenders = plan.contenders(&scenario)?;
    scenario.run.duration = scenario.run.duration.min(Duration::from_secs(2));
    scenario.run.warmup = scenario.run.warmup.min(Duration::from_secs(1));
    scenario.traffic.start_spread = scenario.traffic.start_spread.min(scenario.run.warmup);
    let record = lab::run::run_one(&scenario, contenders[0].as_ref(), scenario.run.seed, None);
    Ok(selftest::run(&scenario, &contenders, &[record]))
}

/// The exit code when the laboratory's self-test failed: no run is made.
fn refused(checks: &[Check]) -> Option<ExitCode> {
    let failed: Vec<&Check> = checks.iter().filter(|check| !check.passed).collect();
    for check in &failed {
        eprintln!("error: the self-test failed: {}: {}", check.name, check.detail);
    }
    (!failed.is_empty()).then(|| ExitCode::from(SELF_TEST))
}

fn unusable(path: &Path, error: &JournalError) -> Failure {
    Failure::new(format_args!("{}: {error}", path.display()))
        .hint("is it a file that `tiderace lab matrix` has written?")
}

/// Runs the missing runs and prints the report.
fn execute(
    plan: &Plan,
    mut journal: Journal,
    effort: &EffortArgs,
    outputs: &Outputs,
    checks: Vec<Check>,
) -> Result<ExitCode, Failure> {
    static STOP: AtomicBool = AtomicBool::new(false);
    stop_on_interrupt(&STOP)?;
    let bar = progress(plan.len(), journal.stored());
    let effort = Effort { threads: effort.threads, qlog: None };
    let ended = campaign::run(plan, &mut journal, &effort, &STOP, &|_| bar.inc(1));
    bar.finish_and_clear();
    let (stored, path) = (journal.stored(), journal.path().to_owned());
    let go_on =
        format!("{stored} of {} runs are stored; go on with `tiderace lab resume {}`", plan.len(), path.display());
    match ended {
        Ok(Ended::Complete) => {}
        Ok(Ended::Stopped) => {
            eprintln!("Ended. {go_on}");
            return Ok(ExitCode::from(130));
        }
        Err(CampaignError::Io(error)) => {
            return Err(Failure::new(format_args!("cannot write {}: {error}", path.display())).hint(go_on));
        }
        Err(CampaignError::Scenario(error)) => return Err(error.into()),
    }
    let path = journal.tidy().map_err(|error| {
        Failure::new(format_args!("cannot write {} again in the order of the runs: {error}", path.display()))
            .hint("every run is stored; with room on the disk `tiderace lab resume` orders them")
    })?;
    let report = publish(&path, outputs, checks)?;
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}

/// The first Ctrl-C requests an orderly end; the second ends the program at once and loses only the runs in progress.
fn stop_on_interrupt(stop: &'static AtomicBool) -> Result<(), Failure> {
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::Builder::new()
        .name("interrupt".to_owned())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else {
                let _ = told.send(Err(Failure::new("cannot listen for signals")));
                return;
            };
            runtime.block_on(async {
                let mut interrupt = match crate::interrupt::Interrupt::listen() {
                    Ok(interrupt) => interrupt,
                    Err(error) => {
                        let _ = told.send(Err(error));
                        return;
                    }
                };
                let _ = told.send(Ok(()));
                interrupt.wait().await;
                stop.store(true, Ordering::Relaxed);
                eprintln!("\nEnding after the runs in progress. Again ends at once.");
                interrupt.wait().await;
                std::process::exit(130);
            });
        })
        .map_err(|error| Failure::new(format_args!("cannot start a thread: {error}")))?;
    heard.recv().unwrap_or(Ok(()))
}

/// A progress bar on standard error, with the time left; hidden without a terminal.
fn progress(runs: usize, stored: usize) -> ProgressBar {
    let bar = ProgressBar::new(runs as u64);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left").expect("the template is valid");
    bar.set_style(style);
    bar.set_position(stored as u64);
    bar.reset_eta();
    if std::io::stderr().is_terminal() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}
