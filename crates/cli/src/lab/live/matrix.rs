//! `tiderace lab matrix --real-time`: every point of a matrix on emulated networks of this machine, one run after the other.
//!
//! Runs have the order of the plan: all points with the first seed, then all with the second, with the contenders in turning order at each
//! point. A matrix that is ended early so has all points with fewer seeds, and slow drift of the machine affects all points alike.

use std::{io::IsTerminal, path::Path, process::ExitCode, time::Duration};

use emu::network::{DeviceKind, Network, Privilege, TRUSTED_LATENESS};
use indicatif::{ProgressBar, ProgressStyle};
use lab::{
    contender::Contender,
    journal::{Journal, Records},
    plan::Plan,
    record::{LAB, REAL_TIME, Record, RunOutcome},
    report::LISTED,
    scenario::{Point, Scenario, Workload},
};
use live::{Conditions, KERNEL, Kernel, Repeats, Watch, agreements, run_watched, runs_to_simulate};

use super::{
    RealTimeArgs, refuse_missing, refuse_unknown, simulating, states,
    tables::{agreement, checks, costs, tell_discarded},
};
use crate::{
    failure::{Failure, UNSOUND},
    lab::{
        campaign,
        figures::{Beginning, Figures, Watching},
        metadata,
        outputs::{Outputs, publish},
        outside, shell, writable,
    },
    stdout::write_out,
};

/// Time that a run takes beside its own: two namespaces, the calibration of the timer, and the end.
const BESIDE: Duration = Duration::from_millis(300);
/// Exit code of a matrix that was ended before it was complete.
const ENDED: u8 = 130;

/// Execution of a matrix in real time.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::lab) struct Options {
    /// Conditions of the runs.
    pub(in crate::lab) conditions: Conditions,
    /// Figures while it runs.
    pub(in crate::lab) watching: Watching,
}

/// Runs all points of a scenario from the beginning.
pub(in crate::lab) fn start(
    scenario: Scenario,
    out: &Path,
    args: &RealTimeArgs,
    outputs: &Outputs,
) -> Result<ExitCode, Failure> {
    outputs.possible()?;
    let plan = Plan::new(scenario)?;
    possible(&plan)?;
    let manifest = plan.manifest(&format!("{LAB}{REAL_TIME}"))?;
    // While this process has one thread.
    let privilege = Privilege::acquire()?;
    let all: Vec<usize> = (0..plan.points().len()).collect();
    calibrate(&plan, &all, args.device.kind())?;
    writable(out, "--out")?;
    let path = campaign::path_of_new(out, &manifest, plan.len())?;
    let journal = Journal::create(&path, &manifest, plan.len())
        .map_err(|error| Failure::new(format_args!("cannot write {}: {error}", path.display())))?;
    metadata::store(&path, &metadata::collect(&manifest.lab));
    let options = Options { conditions: args.conditions(), watching: args.watching(outputs.json) };
    execute(&plan, journal, privilege, options, outputs)
}

/// Runs what an interrupted matrix is missing.
pub(in crate::lab) fn resume(
    plan: &Plan,
    journal: Journal,
    conditions: Conditions,
    outputs: &Outputs,
) -> Result<ExitCode, Failure> {
    possible(plan)?;
    let privilege = Privilege::acquire()?;
    let mut points: Vec<usize> = journal.missing().map(|index| plan.job(index).point).collect();
    points.sort_unstable();
    points.dedup();
    calibrate(plan, &points, conditions.device)?;
    execute(plan, journal, privilege, Options { conditions, ..Options::default() }, outputs)
}

/// Refuses a point that one of the kernel's contenders or a command cannot run.
fn possible(plan: &Plan) -> Result<(), Failure> {
    for (number, point) in plan.points().iter().enumerate() {
        let scenario = plan.scenario(number)?;
        refuse_unknown(&scenario)?;
        let kernel = scenario.contenders.stacks.iter().find(|name| name.starts_with(KERNEL));
        let Some(name) = kernel else { continue };
        Kernel::check(scenario.traffic.workload).map_err(|reason| {
            let place = if point.is_empty() { scenario.name.clone() } else { levels(point) };
            Failure::new(format_args!("`{name}` cannot run `{place}`: {reason}")).hint("leave it out of --cc")
        })?;
    }
    Ok(())
}

/// Starts the network of each of these points once: its settings have to be possible here, and its timer on time.
fn calibrate(plan: &Plan, points: &[usize], device: Option<DeviceKind>) -> Result<(), Failure> {
    let mut worst = (Duration::ZERO, 0);
    for &point in points {
        let scenario = plan.scenario(point)?;
        let probe = Network::start(&shell::settings(&scenario, scenario.run.seed, device)?)?;
        refuse_missing(&plan.contenders(&scenario)?, &probe)?;
        let late = probe.stop()?.emulator.calibration.quantile_duration(0.99).unwrap_or_default();
        worst = worst.max((late, point));
    }
    let (late, point) = worst;
    eprintln!(
        "{} paths calibrated: p99 of the timer's lateness {:.3} ms at most",
        points.len(),
        late.as_secs_f64() * 1e3
    );
    if late > TRUSTED_LATENESS {
        let place = levels(&plan.points()[point]);
        eprintln!("warning: the timer was late at {place}: runs with late packets will not count");
    }
    Ok(())
}

/// Runs the missing runs and prints the report of all that are stored.
fn execute(
    plan: &Plan,
    mut journal: Journal,
    privilege: Privilege,
    options: Options,
    outputs: &Outputs,
) -> Result<ExitCode, Failure> {
    let missing: Vec<usize> = journal.missing().collect();
    let figures = begin(plan, &missing, privilege, options.watching)?;
    let progress = Progress::new(missing.len(), &figures);
    let mut repeats = Repeats::of(missing.len());
    for (place, &index) in missing.iter().enumerate() {
        progress.begin(place, &figures);
        let conditions = Conditions { repeats: repeats.next(), ..options.conditions };
        let Some(record) = one(plan, index, place, conditions, &figures)? else { break };
        repeats.needed(&record);
        journal.append(&record).map_err(|error| {
            let path = journal.path().display();
            Failure::new(format_args!("cannot write {path}: {error}"))
                .hint(format_args!("go on with `tiderace lab resume {path}`"))
        })?;
        progress.end(place, &record, &figures);
    }
    progress.bar.finish_and_clear();
    drop(figures);
    let (stored, path) = (journal.stored(), journal.path().to_owned());
    let is_partial = stored < plan.len();
    if is_partial {
        let (all, file) = (plan.len(), path.display());
        eprintln!("interrupted: {stored} of {all} runs are complete; go on with `tiderace lab resume {file}`");
        if stored == 0 {
            return Ok(ExitCode::from(ENDED));
        }
    } else {
        journal.tidy().map_err(|error| Failure::new(format_args!("cannot write {}: {error}", path.display())))?;
    }
    let records = slim(&path)?;
    let report = publish(&path, outputs, checks(states(&records), options.conditions.accept_busy))?;
    if !outputs.json {
        write_out(&both_clocks(plan, &records)?)?;
    }
    Ok(match (is_partial, report.is_sound()) {
        (true, _) => ExitCode::from(ENDED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(UNSOUND),
    })
}

/// Says how long it takes, and begins to listen for an early end.
fn begin(plan: &Plan, missing: &[usize], privilege: Privilege, watching: Watching) -> Result<Figures, Failure> {
    let scenarios: Vec<Scenario> =
        (0..plan.points().len()).map(|point| plan.scenario(point)).collect::<Result<_, _>>()?;
    let span =
        |index: &usize| Duration::from_secs_f64(scenarios[plan.job(*index).point].run.end().as_secs_f64()) + BESIDE;
    let spans: Vec<Duration> = missing.iter().map(span).collect();
    let user =
        if privilege == Privilege::UserNamespace { " in a user namespace, without real-time priority" } else { "" };
    let base = plan.base();
    eprintln!(
        "{} points x {} contenders x {} seeds, {} runs to make: about {} in real time{user}",
        plan.points().len(),
        plan.contender_count(),
        base.run.seeds,
        missing.len(),
        about(spans.iter().sum()),
    );
    let names: Vec<String> =
        plan.contenders(&scenarios[0])?.iter().map(|contender| contender.identity().name).collect();
    // Connections of which the number varies are followed as one.
    let connections = scenarios[0].traffic.connections;
    let same = scenarios.iter().all(|scenario| scenario.traffic.connections == connections);
    Figures::start(watching, &format!("lab matrix {}", base.name), &names, if same { connections } else { 1 }, spans)
}

/// One run of the plan, as it goes into the journal; `None` when somebody has asked to end.
fn one(
    plan: &Plan,
    index: usize,
    place: usize,
    conditions: Conditions,
    figures: &Figures,
) -> Result<Option<Record>, Failure> {
    let job = plan.job(index);
    let scenario = plan.scenario(job.point)?;
    let contenders: Vec<Box<dyn Contender>> = plan.contenders(&scenario)?;
    let point = &plan.points()[job.point];
    let stage = if point.is_empty() { String::new() } else { format!("{}, ", levels(point)) };
    let beginning = Beginning {
        place,
        contender: job.contender,
        stage: &format!("{stage}seed {}", job.seed),
        has_streams: scenario.traffic.workload != Workload::Datagrams,
    };
    let contender = contenders[job.contender].as_ref();
    let record =
        figures.run(beginning, |watch: &Watch<'_>| run_watched(&scenario, contender, job.seed, conditions, watch));
    Ok(record.map(|mut record| {
        record.run = index as u64;
        record.point.clone_from(point);
        record
    }))
}

/// Progress on the standard error: a bar on a terminal, a line for each run elsewhere.
struct Progress {
    bar: ProgressBar,
    has_lines: bool,
    runs: usize,
}

impl Progress {
    fn new(runs: usize, figures: &Figures) -> Self {
        let is_bar = std::io::stderr().is_terminal() && !figures.shows();
        let bar = if is_bar { ProgressBar::new(runs as u64) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, about {msg} left");
        bar.set_style(style.expect("the template is valid"));
        Self { bar, has_lines: !is_bar && !figures.shows(), runs }
    }

    fn begin(&self, place: usize, figures: &Figures) {
        self.bar.set_message(about(figures.left(place)));
        self.bar.tick();
    }

    fn end(&self, place: usize, record: &Record, figures: &Figures) {
        self.bar.inc(1);
        if !figures.shows() {
            tell_discarded(&self.bar, record);
        }
        if self.has_lines {
            let verdict = match &record.outcome {
                RunOutcome::Valid => "complete".to_owned(),
                RunOutcome::Failed(reason) => format!("does not count: {reason}"),
            };
            let (number, runs, left) = (place + 1, self.runs, about(figures.left(place + 1)));
            let (name, seed) = (label(record, true), record.seed);
            eprintln!("run {number} of {runs}, {name}, seed {seed}: {verdict}; about {left} left");
        }
    }
}

/// A time as people estimate it.
fn about(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..90.0 => format!("{seconds:.0} s"),
        ..5_400.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}

/// Levels of a point.
fn levels(point: &Point) -> String {
    point.iter().map(|(name, level)| format!("{name} {level}")).collect::<Vec<_>>().join(", ")
}

/// Contender of a run, with its point if wanted.
fn label(record: &Record, with_point: bool) -> String {
    let name = &record.contender.name;
    if record.point.is_empty() || !with_point { name.clone() } else { format!("{name}, {}", levels(&record.point)) }
}

/// Records of a file without what the tables of real time do not need.
fn slim(path: &Path) -> Result<Vec<Record>, Failure> {
    let unreadable = |error: &dyn core::fmt::Display| Failure::new(format_args!("{}: {error}", path.display()));
    let (_, records) = Records::open(path).map_err(|error| unreadable(&error))?;
    let slim = records.map(|record| {
        record.map(|record| Record {
            connections: Vec::new(),
            distributions: std::collections::BTreeMap::new(),
            ..record
        })
    });
    let mut records = slim.collect::<Result<Vec<_>, _>>().map_err(|error| unreadable(&error))?;
    records.sort_by_key(|record| record.run);
    Ok(records)
}

/// Costs and observations of commands in the stored runs of a matrix: by point if they fit a screen, or else over all points.
pub(in crate::lab) fn tables(path: &Path) -> Result<String, Failure> {
    let records = slim(path)?;
    let mut rows: Vec<String> = records.iter().map(|record| label(record, true)).collect();
    rows.sort_unstable();
    rows.dedup();
    let by_point = rows.len() <= LISTED;
    let label = |record: &Record| label(record, by_point);
    Ok(costs(&records, &label) + &outside::table(&records, &label))
}

/// Table of both clocks: all points if they fit a screen, or else those at which the clocks do not agree.
fn both_clocks(plan: &Plan, records: &[Record]) -> Result<String, Failure> {
    let mut points = Vec::new();
    for (number, point) in plan.points().iter().enumerate() {
        let own: Vec<Record> = records.iter().filter(|record| record.point == *point).cloned().collect();
        let scenario = plan.scenario(number)?;
        let contenders = plan.contenders(&scenario)?;
        points.push((point, scenario, contenders, own));
    }
    let bar = simulating(points.iter().map(|(_, _, contenders, own)| runs_to_simulate(contenders, own)).sum());
    let mut compared = Vec::new();
    for (point, scenario, contenders, own) in &points {
        for mut one in agreements(scenario, contenders, own, || bar.inc(1)) {
            if !point.is_empty() {
                one.contender = format!("{}, {}", one.contender, levels(point));
            }
            compared.push(one);
        }
    }
    bar.finish_and_clear();
    let (all, agreeing) = (compared.len(), compared.iter().filter(|one| one.holds()).count());
    let undecided = compared.iter().filter(|one| one.may_be_chance()).count();
    if all <= LISTED {
        return Ok(agreement(&compared));
    }
    compared.retain(|one| !one.holds());
    compared.truncate(LISTED);
    let count = format!(
        "Both clocks agree at {agreeing} of {all} points and contenders; at {undecided} the seeds do not decide."
    );
    Ok(format!("\n{count}\n{}", agreement(&compared)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_have_the_unit_that_people_use() {
        let text = |seconds| about(Duration::from_secs(seconds));
        assert_eq!(
            [text(0), text(89), text(90), text(5_399), text(9_000)],
            ["0 s", "89 s", "2 min", "90 min", "2.5 h"]
        );
    }
}
