//! `tiderace lab run SCENARIO --real-time`: contenders on an emulated network of this machine, the kernel's TCP among them.

pub(super) mod matrix;
pub(super) mod tables;

use std::{net::SocketAddr, process::ExitCode};

use clap::Parser;
use emu::network::{Network, Privilege, controllers};
use indicatif::ProgressBar;
use lab::{
    contender::Contender,
    experiment::{Experiment, keep_whole_seeds, store},
    record::{LAB, REAL_TIME, RealTime, Record},
    report::Report,
    scenario::{Overrides, Programs, Scenario, Workload},
};
use live::{
    Agreement, Conditions, KERNEL, Kernel, Repeats, Watch, agreements, find_program, run_one, run_watched,
    runs_to_simulate,
};
use units::duration_text;

use self::tables::{agreement, checks, costs, tell_discarded};
use super::{
    RunArgs, contenders,
    device::DeviceChoice,
    figures::{Beginning, Figures, Watching},
    outputs::Outputs,
    outside, print, progress, shell, writable,
};
use crate::{
    failure::{Failure, UNSOUND},
    stdout::write_out,
};

/// Options of runs in real time.
#[derive(Debug, Default, Parser)]
pub(super) struct RealTimeArgs {
    /// Run in real time, on an emulated network of this machine, with the kernel's TCP beside our stacks (Linux; see below)
    #[arg(long)]
    pub(super) real_time: bool,
    /// In real time: accept runs during which other programs used much of the CPU
    #[arg(long, requires = "real_time")]
    accept_busy: bool,
    /// In real time: devices of the emulated network
    #[arg(long, value_name = "KIND", default_value = "auto", requires = "real_time")]
    device: DeviceChoice,
    /// In real time: one more contender, named `command`. Run this with `sh -c` as its server; {server}, {port}, {bytes} and other placeholders
    /// are filled in (docs/lab.md)
    #[arg(long, value_name = "COMMAND", requires = "real_time", requires = "client")]
    server: Option<String>,
    /// In real time: the client of that contender, one for each connection; measured until it ends with exit code 0
    #[arg(long, value_name = "COMMAND", requires = "real_time", requires = "server")]
    client: Option<String>,
    /// In real time: show goodput, RTT, window, losses and state of the contender that runs on a screen of its own; the last line has the
    /// keys. Without a terminal, or with --json, lines every 5 s
    #[arg(long, requires = "real_time")]
    screen: bool,
    /// In real time: serve metrics for Prometheus there while the runs go on, such as at 127.0.0.1:9465
    #[arg(long, value_name = "ADDRESS:PORT", requires = "real_time")]
    prometheus: Option<SocketAddr>,
}

/// Contenders of the kernel that join when none is named.
const USUAL: [&str; 2] = ["kernel-cubic", "kernel-bbr"];

impl RealTimeArgs {
    fn conditions(&self) -> Conditions {
        Conditions { accept_busy: self.accept_busy, device: self.device.kind(), ..Conditions::default() }
    }

    const fn watching(&self, json: bool) -> Watching {
        Watching { screen: self.screen, json, prometheus: self.prometheus }
    }
}

/// Splits the names in `--cc` into controllers of this stack and contenders of the kernel.
pub(super) fn split(named: &[String]) -> (Vec<String>, Vec<String>) {
    let (kernel, own): (Vec<_>, Vec<_>) = named.iter().cloned().partition(|name| name.starts_with(KERNEL));
    (own, kernel)
}

/// Name of the contender of `--server` and `--client`.
const COMMAND: &str = "command";

/// Adds the contender of `--server` and `--client`, and leaves those commands that `--cc` names, if it names anybody. Their names are taken from
/// the controllers in `overrides`.
pub(super) fn select_commands(
    args: &RealTimeArgs,
    named: &[String],
    scenario: &mut Scenario,
    overrides: &mut Overrides,
) {
    let commands = &mut scenario.contenders.commands;
    overrides.congestion.retain(|name| !commands.iter().any(|one| one.name == *name));
    if !named.is_empty() {
        commands.retain(|one| named.contains(&one.name));
    }
    if let (Some(server), Some(client)) = (args.server.clone(), args.client.clone()) {
        commands.push(Programs { name: COMMAND.to_owned(), server, client, port: Programs::PORT });
    }
}

/// Refuses commands in virtual time.
pub(super) fn refuse_commands(scenario: &Scenario) -> Result<(), Failure> {
    match scenario.contenders.commands.first() {
        None => Ok(()),
        Some(one) => Err(Failure::new(format_args!("`{}` is a command, and runs in real time only", one.name)).hint(
            format_args!("`tiderace lab run {} --real-time` runs it; `--cc` chooses other contenders", scenario.name),
        )),
    }
}

/// Adds the kernel's contenders: the named ones, or in real time the default ones.
pub(super) fn select(scenario: &mut Scenario, named: &[String], real_time: bool) -> Result<(), Failure> {
    let (mut own, kernel) = split(named);
    let selection = &mut scenario.contenders;
    own.retain(|name| !selection.commands.iter().any(|one| one.name == *name));
    if !named.is_empty() && own.is_empty() {
        selection.congestion.clear();
        selection.profiles.clear();
    }
    if !kernel.is_empty() {
        selection.stacks.retain(|name| !name.starts_with(KERNEL));
        selection.stacks.extend(kernel);
    }
    let workload = scenario.traffic.workload;
    let has_kernel = selection.stacks.iter().any(|name| name.starts_with(KERNEL));
    if real_time && named.is_empty() && !has_kernel && Kernel::check(workload).is_ok() {
        selection.stacks.extend(USUAL.map(str::to_owned));
    }
    let stacks: Vec<String> = selection.stacks.iter().filter(|name| name.starts_with(KERNEL)).cloned().collect();
    if real_time {
        let with = if stacks.is_empty() { String::new() } else { format!(" with {}", stacks.join(", ")) };
        scenario.add_to_title(&format!("in real time{with}"));
    }
    if !real_time {
        refuse_commands(scenario)?;
    }
    let kernel: Vec<&String> = stacks.iter().filter(|name| name.starts_with(KERNEL)).collect();
    if let Some(reason) = kernel.iter().find_map(|name| Kernel::named(name).err()) {
        let (known, settings) = ((live::others().names)().join(", "), Kernel::SETTINGS);
        return Err(Failure::new(reason).hint(format_args!("there are {known}, each with {settings}")));
    }
    match kernel.first() {
        Some(name) if !real_time => {
            Err(Failure::new(format_args!("`{name}` is the kernel's, and runs in real time only"))
                .hint("add --real-time"))
        }
        Some(name) => Kernel::check(workload).map_err(|reason| {
            Failure::new(format_args!("`{name}` cannot run `{}`: {reason}", scenario.name)).hint("leave it out of --cc")
        }),
        None => Ok(()),
    }
}

/// Runs the scenario in real time.
pub(super) fn run(args: &RunArgs, mut scenario: Scenario) -> Result<ExitCode, Failure> {
    let seeds = u64::from(scenario.run.seeds);
    if args.qlog.is_some() {
        return Err(Failure::new("--qlog is for runs in virtual time").hint("leave out --real-time, or --qlog"));
    }
    if scenario.has_points() {
        return matrix::start(scenario, &args.out, &args.live, &Outputs::headlines(args.shown, args.json));
    }
    let settings = shell::settings(&scenario, scenario.run.seed, args.live.device.kind())?;
    // While this process has one thread.
    let privilege = Privilege::acquire()?;
    let all = contenders(&scenario)?;
    let probe = Network::start(&settings)?;
    refuse_missing(&all, &probe)?;
    refuse_unknown(&scenario)?;
    probe.stop()?;
    writable(&args.out, "--out")?;
    let span = scenario.run.end().as_secs_f64();
    let experiment = Experiment::new(scenario.clone(), contenders(&scenario)?);
    let mut manifest = experiment.manifest(&format!("{LAB}{REAL_TIME}"));
    let cells = experiment.cells();
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 runs")]
    let minutes = cells.len() as f64 * span / 60.0;
    let user =
        if privilege == Privilege::UserNamespace { " in a user namespace, without real-time priority" } else { "" };
    eprintln!(
        "{} contenders x {seeds} seeds, {} each: about {minutes:.0} min in real time{user}",
        all.len(),
        duration_text::display(std::time::Duration::from_secs_f64(span)),
    );
    let names: Vec<String> = all.iter().map(|contender| contender.identity().name).collect();
    let runs = cells.len();
    // Commands have files, which somebody has to remove after Ctrl-C.
    let watched = args.live.screen || args.live.prometheus.is_some() || !scenario.contenders.commands.is_empty();
    let begin = || {
        let (title, spans) =
            (format!("lab run {}", scenario.name), vec![std::time::Duration::from_secs_f64(span); runs]);
        Figures::start(args.live.watching(args.json), &title, &names, scenario.traffic.connections, spans)
    };
    let figures = watched.then(begin).transpose()?;
    let is_shown = figures.as_ref().is_some_and(Figures::shows);
    let bar = if is_shown { ProgressBar::hidden() } else { progress(runs) };
    let (mut records, mut path, mut repeats) = (Vec::new(), None, Repeats::of(runs));
    for (place, cell) in cells.into_iter().enumerate() {
        let contender = all[cell.contender].as_ref();
        let conditions = Conditions { repeats: repeats.next(), ..args.live.conditions() };
        let record = match &figures {
            None => run_one(&scenario, contender, cell.seed, conditions),
            Some(figures) => {
                let watched = |watch: &Watch<'_>| run_watched(&scenario, contender, cell.seed, conditions, watch);
                let beginning = Beginning {
                    place,
                    contender: cell.contender,
                    stage: &format!("seed {}", cell.seed),
                    has_streams: scenario.traffic.workload != Workload::Datagrams,
                };
                match figures.run(beginning, watched) {
                    Some(record) => record,
                    // A run that was broken off has no figures of its whole time.
                    None => break,
                }
            }
        };
        repeats.needed(&record);
        if !is_shown {
            tell_discarded(&bar, &record);
        }
        records.push(record);
        // After each, so that what was run is kept when somebody ends this.
        let stored = store(&args.out, &manifest, &records);
        path = Some(stored.map_err(|error| Failure::new(format_args!("cannot write the records: {error}")))?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    drop(figures);
    let is_partial = records.len() < runs;
    if is_partial {
        eprintln!("interrupted: {} of {runs} runs are complete", records.len());
        scenario.run.seeds = keep_whole_seeds(&mut manifest, &mut records);
        if scenario.run.seeds == 0 {
            eprintln!("there is no report, since not every contender has run");
            return Ok(ExitCode::from(UNSOUND));
        }
    }
    let bar = simulating(runs_to_simulate(&all, &records));
    let compared = agreements(&scenario, &all, &records, || bar.inc(1));
    bar.finish_and_clear();
    let mut report = Report::new(manifest, &records);
    (report.self_test, report.records) = (checks(states(&records), args.live.accept_busy), path);
    report.both_clocks = compared.iter().map(Agreement::reported).collect();
    print(&report, args.shown, args.json)?;
    if !args.json {
        let label = |record: &Record| record.contender.name.clone();
        write_out(&(costs(&records, &label) + &outside::table(&records, &label) + &agreement(&compared)))?;
    }
    Ok(if report.is_sound() && !is_partial { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}

/// Progress of the runs that the simulator makes for the table of both clocks, which take minutes for long scenarios.
fn simulating(runs: usize) -> ProgressBar {
    if runs > 0 {
        eprintln!("simulating the same {runs} runs to compare both clocks");
    }
    progress(runs)
}

/// Refuses a contender whose controller the kernel does not have.
fn refuse_missing(all: &[Box<dyn Contender>], network: &Network) -> Result<(), Failure> {
    let known = controllers(network.server())
        .map_err(|error| Failure::new(format_args!("the kernel does not list its congestion controllers: {error}")))?;
    for contender in all {
        let name = contender.identity().name;
        let Ok(controller) = Kernel::named(&name).map(Kernel::controller) else { continue };
        if !known.iter().any(|one| one == controller) {
            let message = format!("`{name}`: this kernel has no `{controller}` loaded, only {}", known.join(", "));
            return Err(Failure::new(message)
                .hint(format_args!("`modprobe tcp_{controller}` as root loads it; `--cc` chooses other contenders")));
        }
    }
    Ok(())
}

/// Refuses a command whose program does not exist.
fn refuse_unknown(scenario: &Scenario) -> Result<(), Failure> {
    for one in &scenario.contenders.commands {
        for (role, command) in [("server", &one.server), ("client", &one.client)] {
            find_program(command).map_err(|word| {
                Failure::new(format_args!("the {role} of `{}`: there is no program `{word}`", one.name))
                    .hint("install it, or write its path; commands run with `sh -c` in the directory of this one")
            })?;
        }
    }
    Ok(())
}

/// State of the machine in each run that has one.
fn states(records: &[Record]) -> impl Iterator<Item = &RealTime> + Clone {
    records.iter().filter_map(|record| record.real_time.as_ref())
}
