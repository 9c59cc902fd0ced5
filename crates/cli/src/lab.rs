//! `tiderace lab`: runs scenarios, lists them, and prints reports from stored records.

mod campaign;
#[cfg(target_os = "linux")]
mod device;
#[cfg(target_os = "linux")]
mod figures;
mod judge;
mod list;
#[cfg(target_os = "linux")]
mod live;
mod metadata;
mod new;
mod outputs;
#[cfg(target_os = "linux")]
mod outside;
mod play;
mod real_time;
mod sample;
#[cfg(target_os = "linux")]
mod shell;
mod suite;
#[cfg(target_os = "linux")]
mod table;
mod tools;
mod trust;

use std::{
    fs,
    io::{BufReader, IsTerminal},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{ColorChoice, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use lab::{
    contender::Contender,
    experiment::{Experiment, Yield, keep_whole_seeds, qlog_path, store},
    qlog::Logs,
    record,
    report::{Report, Style, brief, text},
    run::Execution,
    scenario::{Overrides, QueueSize, Scenario, load},
};
use transport::{ack_frequency::AckFrequency, qlog::Format};
use units::{Bitrate, Probability, duration_text};

use crate::{
    failure::{Failure, UNSOUND},
    stdout::write_out,
};

use lab::record::LAB;

/// Compare transports on modelled network paths.
///
/// Real protocol code runs in virtual time over a modelled path. It uses no network of this machine and needs no privileges. The same
/// seed gives the same packets, bit for bit.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<RunArgs>),
    Matrix(Box<campaign::MatrixArgs>),
    Resume(campaign::ResumeArgs),
    Replay(campaign::ReplayArgs),
    Report(ReportArgs),
    Compare(judge::CompareArgs),
    Gate(judge::GateArgs),
    Selftest(trust::SelftestArgs),
    Audit(trust::AuditArgs),
    #[cfg(target_os = "linux")]
    Shell(shell::ShellArgs),
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Supervise(shell::SuperviseArgs),
    Suite(suite::SuiteArgs),
    /// List the built-in scenarios by subject.
    List {
        /// Print one JSON array: name, group, title and factors of each scenario.
        #[arg(long)]
        json: bool,
    },
    New(Box<new::NewArgs>),
    Play(play::PlayArgs),
    /// Print the JSON Schema of scenario files.
    Schema,
    Series(tools::SeriesArgs),
    Fit(tools::FitArgs),
    Tc(tools::TcArgs),
}

/// Run a scenario and report which contender is best.
///
/// Every contender meets the same path with the same random numbers, once for each seed. The report has the medians of the workload's
/// main figures, marks the best of each where the seeds decide it, and summarizes the result in a sentence: the best contender, its
/// price, and the confidence. With --all it has every figure with its interval, compares the contenders pair by pair, and describes the
/// simulation. A scenario with factors is run at every point. The records behind the report are written to a file as lines of JSON.
///
/// With --real-time the contenders run on this machine, one after the other: our stacks over real UDP sockets, and the kernel's TCP with TLS
/// 1.3 and HTTP/2 (kernel-cubic and kernel-bbr, unless --cc or the scenario name others; kernel-reno; settings follow in the name:
/// kernel-cubic:http1:6 has six connections with HTTP/1.1; :fast-open, :tls1.2, :x25519, :mptcp, :buffer=SIZE and :mss=BYTES are others). All meet the path of
/// the scenario on an emulated network, as in `tiderace lab shell`, as root or in a user namespace. A figure that a contender cannot
/// report is a dash. --server and --client, or `[[contenders.commands]]` of a scenario with the workload flows or bulk, add servers and clients of
/// any kind: of these a run has completion times, exit codes, CPU time, and the bytes of the path. A run is discarded if packets were late or
/// lost on this machine, or if other programs used much of the CPU. It is made again then, up to twice, but not more than half of all runs.
///
/// Exit code 0: the report may be used. 1: a run or the self-test failed; the report names it. 2: the scenario or an option is wrong, and
/// nothing was written.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  tiderace lab run mobile
  tiderace lab run mobile --all
  tiderace lab run mobile --loss '1 %' --queue '2 BDP' --cc cubic,bbr3
  tiderace lab run production --cc cubic --ack off,fixed:10,adaptive
  tiderace lab run mobile --seeds 1 --qlog logs --qlog-format 0.3 --pcapng
  tiderace lab run okru-mobile --real-time --seeds 6 --duration 20s --screen
  tiderace lab run mobile --real-time --cc cubic,kernel-cubic,kernel-reno
  tiderace lab run ./fetch.toml --real-time --server 'python3 -m http.server {port} -d {directory}' \\
      --client 'curl -so /dev/null http://{server}:{port}/{file}'
  tiderace lab run ./my-path.toml --seeds 30 --json > report.json")]
struct RunArgs {
    /// Preset (see `tiderace lab list`) or scenario file
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    /// Seeds, each a run of every contender; 6 or more give intervals
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
    /// First seed; the others count up from it
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    #[command(flatten)]
    shown: Shown,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Write a qlog file for each end of each connection to a new directory below DIR
    #[arg(long, value_name = "DIR")]
    qlog: Option<PathBuf>,
    /// Version of the qlog files: `newest`, or `0.3`, which qvis opens
    #[arg(long, value_name = "VERSION", default_value_t, requires = "qlog")]
    qlog_format: Format,
    /// Write the packets of each run beside its qlog files (packets.pcapng), with the keys that decrypt them, for Wireshark
    #[arg(long, requires = "qlog")]
    pcapng: bool,
    /// Directory for the records
    #[arg(long, value_name = "DIR", default_value = "lab-out")]
    out: PathBuf,
    /// Threads to run on [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    live: live::RealTimeArgs,
    #[command(flatten)]
    settings: Settings,
}

/// Settings that replace those of the scenario.
#[derive(Debug, Parser)]
#[command(next_help_heading = "Replace settings of the scenario")]
struct Settings {
    /// Independent packet loss in both directions, such as '1 %' or 0.01
    #[arg(long, value_name = "SHARE")]
    loss: Option<Probability>,
    /// One-way delay of both directions, such as 25ms; the round trip is twice that
    #[arg(long, value_name = "TIME", value_parser = duration_text::parse)]
    delay: Option<Duration>,
    /// Rate of each direction that has one, such as 20M (bits per second)
    #[arg(long, value_name = "RATE")]
    rate: Option<Bitrate>,
    /// Queue of each direction that has a rate, in bytes ('125 kB') or in rate x round trip ('2 BDP')
    #[arg(long, value_name = "SIZE")]
    queue: Option<QueueSize>,
    /// Connections that share the path
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// Streams per connection; for requests: how many are in flight
    #[arg(long, value_name = "N")]
    streams: Option<u32>,
    /// Measured time, after the scenario's warm-up, such as 30s
    #[arg(long, value_name = "TIME", value_parser = duration_text::parse)]
    duration: Option<Duration>,
    /// Congestion controllers in place of the scenario's contenders, separated by commas; the first is the baseline
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    cc: Vec<String>,
    /// Acknowledgement frequencies requested of each peer, separated by commas: off, fixed:N (packets per
    /// acknowledgement), adaptive
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',')]
    ack: Vec<AckFrequency>,
}

/// Verbosity and colour of a report.
#[derive(Clone, Copy, Debug, Parser)]
pub(crate) struct Shown {
    /// Print every figure with its interval, all comparisons and a description of the simulation
    #[arg(long)]
    all: bool,
    /// Colours and bars; `auto` means on a terminal, unless NO_COLOR is set
    #[arg(long, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
}

impl Shown {
    fn style(self) -> Style {
        let wanted = || {
            let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            let dumb = std::env::var_os("TERM").is_none_or(|value| value == "dumb");
            std::io::stdout().is_terminal() && !refused && !dumb
        };
        Style {
            colour: match self.color {
                ColorChoice::Always => true,
                ColorChoice::Never => false,
                ColorChoice::Auto => wanted(),
            },
        }
    }
}

/// Print the report of stored records.
#[derive(Debug, Parser)]
struct ReportArgs {
    /// File of records that `tiderace lab run` wrote
    #[arg(value_name = "RECORDS")]
    records: PathBuf,
    #[command(flatten)]
    shown: Shown,
    #[command(flatten)]
    outputs: outputs::Outputs,
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    #[cfg(target_os = "linux")]
    lab::roster::join(::live::others());
    match args.command {
        Command::Run(args) => run_scenario(&args),
        Command::Matrix(args) => campaign::matrix(&args),
        Command::Resume(args) => campaign::resume(&args),
        Command::Replay(args) => campaign::replay(&args),
        Command::Report(args) => report(&args),
        Command::Compare(args) => judge::compare(&args),
        Command::Gate(args) => judge::gate(&args),
        Command::Selftest(args) => trust::selftest(&args),
        Command::Audit(args) => trust::audit_table(&args),
        #[cfg(target_os = "linux")]
        Command::Shell(args) => shell::run(&args),
        #[cfg(target_os = "linux")]
        Command::Supervise(args) => shell::supervise(&args),
        Command::Suite(args) => suite::suite(&args),
        Command::List { json } => list::list(json),
        Command::New(args) => new::new(&args),
        Command::Play(args) => play::play(&args),
        Command::Schema => tools::print_schema(),
        Command::Series(args) => tools::draw_series(&args),
        Command::Fit(args) => tools::fit_trace(&args),
        Command::Tc(args) => tools::print_tc(&args),
    }
}

fn run_scenario(args: &RunArgs) -> Result<ExitCode, Failure> {
    #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "commands are for Linux"))]
    let (mut scenario, mut overrides) = (load(&args.scenario)?, args.settings.overrides(args.seeds, args.seed));
    #[cfg(target_os = "linux")]
    live::select_commands(&args.live, &args.settings.cc, &mut scenario, &mut overrides);
    let scenario = overrides.apply(scenario)?;
    #[cfg(target_os = "linux")]
    let scenario = {
        let mut scenario = scenario;
        live::select(&mut scenario, &args.settings.cc, args.live.real_time)?;
        if args.live.real_time {
            return live::run(args, scenario);
        }
        scenario
    };
    if scenario.has_points() {
        if args.qlog.is_some() {
            return Err(Failure::new(format_args!(
                "`{}` is run at many points, and --qlog would log all of them",
                scenario.name
            ))
            .hint("`tiderace lab replay RECORDS --run N --qlog DIR` logs one run of its records"));
        }
        let outputs = outputs::Outputs::headlines(args.shown, args.json);
        return campaign::start(scenario, &args.out, args.threads, &outputs);
    }
    let contenders = contenders(&scenario)?;
    let experiment = Experiment::new(scenario, contenders);
    let manifest = experiment.manifest(LAB);
    let qlog = args.qlog.as_deref().map(|root| Staged::new(root, &qlog_path(root, &manifest))).transpose()?;
    writable(&args.out, "--out")?;
    let logs =
        |staged: &Staged| Logs { directory: staged.partial.clone(), format: args.qlog_format, packets: args.pcapng };
    let execution = Execution { threads: args.threads, qlog: qlog.as_ref().map(logs) };

    let bar = progress(experiment.cells().len());
    let Yield { manifest, records, checks } = experiment.run(LAB, &execution, &|_| bar.inc(1));
    bar.finish_and_clear();

    let path = store(&args.out, &manifest, &records);
    let path = path.map_err(|error| Failure::new(format_args!("cannot write the records: {error}")))?;
    let qlog = qlog.map(Staged::publish).transpose()?;
    let mut report = Report::new(manifest, &records);
    (report.self_test, report.records) = (checks, Some(path));
    print(&report, args.shown, args.json)?;
    if let Some(directory) = qlog {
        eprintln!("qlog files: {}", directory.display());
    }
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}

impl Settings {
    fn overrides(&self, seeds: Option<u32>, seed: Option<u64>) -> Overrides {
        Overrides {
            loss: self.loss,
            delay: self.delay,
            rate: self.rate,
            queue: self.queue,
            connections: self.connections,
            streams: self.streams,
            duration: self.duration,
            seeds,
            seed,
            congestion: self.congestion(),
            ack: self.ack.clone(),
        }
    }
}

impl Settings {
    /// Controllers of ours among those that `--cc` names.
    #[cfg(target_os = "linux")]
    fn congestion(&self) -> Vec<String> {
        live::split(&self.cc).0
    }

    #[cfg(not(target_os = "linux"))]
    fn congestion(&self) -> Vec<String> {
        self.cc.clone()
    }
}

/// The contenders that the scenario names.
fn contenders(scenario: &Scenario) -> Result<Vec<Box<dyn Contender>>, Failure> {
    present(scenario)?;
    lab::roster::contenders(&scenario.contenders).map_err(|fault| {
        // A name is what people mistype; where it stands they know.
        let named = fault.field == "contenders.congestion";
        let failure = Failure::new(if named { fault.message } else { format!("{}: {}", fault.field, fault.message) });
        match fault.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })
}

/// Refuses a scenario that names stacks which this program does not have: they belong to the workspace interop/.
fn present(scenario: &Scenario) -> Result<(), Failure> {
    let absent = lab::roster::absent(&scenario.contenders);
    if absent.is_empty() {
        return Ok(());
    }
    Err(Failure::unsupported(format_args!("this program does not have the stacks {}", absent.join(", ")))
        .hint("`cargo run --release -p virtual --bin beside -- SCENARIO` in interop/ runs them beside ours"))
}

/// Finds out before the runs whether their results can be stored, without leaving anything behind but the directory.
fn writable(directory: &Path, option: &str) -> Result<(), Failure> {
    let probe = directory.join(format!(".probe-{}", std::process::id()));
    let tried =
        fs::create_dir_all(directory).and_then(|()| fs::write(&probe, b"")).and_then(|()| fs::remove_file(&probe));
    tried.map_err(|error| {
        Failure::new(format_args!("cannot write to {}: {error}", directory.display()))
            .hint(format_args!("choose another directory with `{option} DIR`"))
    })
}

/// A directory that appears under its name only when it is complete.
struct Staged {
    partial: PathBuf,
    complete: PathBuf,
}

impl Staged {
    fn new(root: &Path, complete: &Path) -> Result<Self, Failure> {
        if complete.exists() {
            let message = format_args!("{} is there already", complete.display()).to_string();
            return Err(Failure::new(message).hint("remove it, or choose another directory with `--qlog DIR`"));
        }
        writable(root, "--qlog")?;
        let partial = complete.with_extension(format!("partial-{}", std::process::id()));
        Ok(Self { partial, complete: complete.to_owned() })
    }

    fn publish(self) -> Result<PathBuf, Failure> {
        let renamed = fs::create_dir_all(&self.partial).and_then(|()| fs::rename(&self.partial, &self.complete));
        renamed.map_err(|error| Failure::new(format_args!("cannot store the qlog files: {error}")))?;
        Ok(self.complete.clone())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What was not published is incomplete. After publishing there is nothing under this name.
        let _ = fs::remove_dir_all(&self.partial);
    }
}

/// A bar on the standard error, with the time left. Nothing when that is no terminal.
fn progress(runs: usize) -> ProgressBar {
    let bar = ProgressBar::new(runs as u64);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left").expect("the template is valid");
    bar.set_style(style);
    if std::io::stderr().is_terminal() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}

fn print(report: &Report, shown: Shown, json: bool) -> Result<(), Failure> {
    let output = if json {
        let json = report.json().map_err(|error| Failure::new(format_args!("cannot write the report: {error}")))?;
        json + "\n"
    } else if shown.all {
        text(report)
    } else {
        brief(report, shown.style())
    };
    write_out(&output)
}

fn report(args: &ReportArgs) -> Result<ExitCode, Failure> {
    let path = args.records.display();
    let unreadable = |error: record::ReadError| {
        Failure::new(format_args!("{path}: {error}")).hint("is it a file that `tiderace lab` has written?")
    };
    let file = fs::File::open(&args.records).map_err(|error| {
        Failure::new(format_args!("cannot read {path}: {error}"))
            .hint("`tiderace lab run` names the file that it writes")
    })?;
    let (manifest, _) = lab::journal::Records::open(&args.records).map_err(unreadable)?;
    if manifest.scenario.has_points() || args.outputs.needs_matrix() {
        let outputs = args.outputs.clone().with_headlines(args.shown);
        let report = outputs::publish(&args.records, &outputs, Vec::new())?;
        return Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) });
    }
    let (mut manifest, mut records) = record::read(BufReader::new(file)).map_err(unreadable)?;
    let planned = manifest.scenario.run.seeds;
    let whole = keep_whole_seeds(&mut manifest, &mut records);
    if whole == 0 {
        return Err(Failure::new(format_args!("{path}: not every contender has run"))
            .hint("it was interrupted: run the experiment again"));
    }
    if whole < planned {
        eprintln!("interrupted: the report is of {whole} of {planned} seeds");
    }
    let mut report = Report::new(manifest, &records);
    report.records = Some(args.records.clone());
    print(&report, args.shown, args.outputs.json)?;
    Ok(if report.is_sound() && whole == planned { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}
