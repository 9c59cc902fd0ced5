//! `cargo xtask shows`: measures what the project promises and prints each value beside its target.
//!
//! [`transport`], [`standards`], [`congestion::cases`] and [`speed::cases`] are the lists of cases; each group of cases has a file. A case
//! yields [`Row`]s, or an error that says why it could not be measured, which counts as a miss: what was not seen was not
//! shown.

mod ack_frequency;
mod auto;
mod bad_input;
mod bbr;
mod cold;
mod command;
mod compliance;
mod congestion;
mod continuity;
mod continuity_faults;
mod continuity_peers;
mod continuity_upgrades;
mod cost;
mod counts;
mod early_data;
mod edge;
mod edge_acme;
mod edge_clients;
mod edge_cost;
mod edge_load;
mod edge_rest;
mod edge_servers;
mod edge_unit;
mod edge_watch;
mod face;
mod face_lab;
mod fec;
mod flood;
mod fuzz;
mod hardening;
mod hazards;
mod house;
mod house_cycles;
mod house_items;
mod house_work;
mod interop;
mod laboratory;
mod laboratory_stacks;
mod link;
mod live_arms;
mod live_paths;
mod matrices;
mod one_way;
mod page;
mod paths;
mod perf;
mod post_quantum;
mod probe;
mod random_loss;
mod real_interop;
mod realtime;
mod regret;
mod relay;
mod row;
mod signer_gain;
mod soak;
mod speed;
mod speed_shards;
mod tcp_claim_sets;
mod tcp_claims;
mod tests;
mod truth;
mod tunnel_cost;
mod tunnel_cost_ip;
mod tunnels;
mod web;
mod why;
pub(crate) mod why_hole;
mod why_plant;
mod wrong_settings;

use std::{io::Write, path::PathBuf, process::ExitCode, time::Instant};

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};

use self::{
    command::Commands,
    row::{Document, Row},
};

/// Measure what the project promises and print each value beside its target.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Promises of the transport, the link model and the laboratory
    #[command(after_help = after_help("transport", &transport()))]
    Transport(Options),
    /// Promises of congestion control and its feedback, in virtual time
    #[command(after_help = after_help("congestion", &congestion::cases()))]
    Congestion(Options),
    /// Promises of the controller `auto`, and of repair `auto` on new and sparsely used connections, in virtual time
    #[command(after_help = after_help("auto", &auto::cases()))]
    Auto(Options),
    /// Promises of forward error correction, most of them in virtual time
    #[command(after_help = after_help("fec", &fec::cases()))]
    Fec(Options),
    /// Cost of bytes, handshakes, requests and connections beside other stacks, measured by bench/
    #[command(after_help = after_help("speed", &speed::cases()))]
    Speed(SpeedOptions),
    /// Promises of the laboratory about matrices, statistics and records
    #[command(after_help = after_help("lab", &laboratory()))]
    Lab(Options),
    /// Promises of the edge and the client
    #[command(after_help = after_help("edge", &edge::cases()))]
    Edge(Options),
    /// Web pages and tunnels through the gateway: WebTransport, MASQUE, Chromium
    #[command(after_help = after_help("web", &web::cases()))]
    Web(Options),
    /// Connections of the gateway that outlive its program
    #[command(after_help = after_help("continuity", &continuity::cases()))]
    Continuity(Options),
    /// The product as users meet it: archive, package, container image, site, README, reports, log files in viewers, captures
    #[command(after_help = after_help("face", &face::cases()))]
    Face(Options),
    /// Memory and work under attack, the cost to others, and tests that never fail by chance
    #[command(after_help = after_help("hardening", &hardening::cases()))]
    Hardening(Options),
    /// Truth of every number: comparisons, gates, intervals, the self-test, and books that balance
    #[command(after_help = after_help("truth", &truth::cases()))]
    Truth(Options),
    /// Emulated networks for any program, and the kernel's TCP on them, in real time (Linux, as root or with user namespaces)
    #[command(after_help = after_help("realtime", &realtime::cases()))]
    Realtime(Options),
    /// Shape of the sources: the connection, the vocabulary, circles of modules, control frames, builds
    #[command(after_help = after_help("house", &house::cases()))]
    House(Options),
    /// Requirements of the standards, and the proof of them
    #[command(after_help = after_help("standards", &standards()))]
    Standards(Options),
}

#[derive(Debug, Parser)]
struct SpeedOptions {
    #[command(flatten)]
    common: Options,
    /// Judge what `bench all --save FILE` has measured, instead of measuring
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

/// Prints a line per value: pass or MISS, the value with its 95 % interval over runs (medians of runs unless the line says
/// otherwise), the target, and under it what was measured and how. What cannot be measured on this machine is a miss too, with
/// the reason. Progress goes to the standard error; the output of every command that is started goes into
/// target/shows/*.log, and a miss names its file.
///
/// Timing cases (fresh-lab, relay, speed, cpu, matrix) need a machine that does nothing else; virtual time does not.
///
/// Exit code 0: everything passed. 1: something missed. 2: the request is wrong.
#[derive(Debug, Parser)]
struct Options {
    /// Run this case only; may be given again
    #[arg(long, value_name = "CASE")]
    only: Vec<String>,
    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,
    /// Store the values as a JSON document as well
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Take the full measure where the default is a slice: a clone of the last commit built from nothing, 1,000 seeds per pair
    /// of stacks with quiche among them, more and larger rounds of the benchmark. Takes hours
    #[arg(long)]
    long: bool,
}

fn after_help(part: &str, cases: &[Case]) -> String {
    let first = cases.first().map_or("", |case| case.name);
    let cases: Vec<String> = cases.iter().map(|case| format!("  {:<14} {}", case.name, case.about)).collect();
    format!(
        "Cases, in their order:\n{}\n\nExamples:\n  cargo xtask shows {part}\n  cargo xtask shows {part} --only {first}\n  \
         cargo xtask shows {part} --long --json > shows.json",
        cases.join("\n")
    )
}

/// A group of values that is measured together.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    about: &'static str,
    measure: fn(&Context) -> anyhow::Result<Vec<Row>>,
}

/// Context of a case.
struct Context {
    /// The workspace.
    root: PathBuf,
    /// Starts programs and keeps what they print.
    commands: Commands,
    /// Measure in full.
    long: bool,
    /// A report of `bench` to judge, instead of measuring.
    from: Option<PathBuf>,
}

/// The cases in their order: the long run of all tests comes last.
fn transport() -> [Case; 11] {
    let case = |name, about, measure| Case { name, about, measure };
    [
        case("fresh-lab", "`lab run mobile` prints its table within 60 s", laboratory::fresh),
        case("model", "NewReno and CUBIC against RFC 9438 at 0.1 % and 1 % loss", laboratory::model),
        case("queue", "CUBIC fills buffers of 0.5, 1, 2 and 4 BDP", laboratory::queue),
        case("speed", "virtual seconds per second and core", laboratory::speed),
        case("link", "arithmetic of a link, and bursty loss against its closed form", link::measure),
        case("interop", "pairs of QUIC stacks on bad networks in virtual time", interop::measure),
        case("relay", "loss and delay of the relay in real time", relay::measure),
        case("perf", "`tiderace perf` through the relay against the simulator", perf::measure),
        case("cpu", "CPU per GiB of a bulk transfer, beside quinn and the floor", cost::measure),
        case("bad-input", "malformed and forged packets, and wrong requests", bad_input::measure),
        case("tests", "`cargo test --workspace`", tests::measure),
    ]
}

/// The cases of the laboratory: the one that needs a machine for itself comes last.
fn laboratory() -> [Case; 12] {
    let case = |name, about, measure| Case { name, about, measure };
    [
        case("controls", "the self-test passes, and fails with each part broken", matrices::controls),
        case("truth", "planted differences, identical contenders, too few seeds", matrices::truth),
        case("a-a", "the same against the same over disjoint seeds", matrices::same),
        case("equal", "equal records from one thread, four, and a program that was killed", matrices::equal),
        case("full-disk", "a full disk loses the run in progress; needs the right to mount", matrices::full_disk),
        case("ray", "the Python package: records of a Ray of two workers, pandas and polars", laboratory_stacks::ray),
        case("stacks", "quinn, noq and quiche beside ours; exit code 77 where they are not", laboratory_stacks::beside),
        case("burst", "does the order of contenders hold for loss bursts of 1, 3 and 6?", laboratory_stacks::burst),
        case(
            "real-time",
            "V14: real time agrees with virtual time; needs an idle machine",
            laboratory_stacks::real_time,
        ),
        case("page", "reports in a real browser; needs chromium", page::browser),
        case("memory", "10,000 runs in the memory of 1,000", matrices::memory),
        case("matrix", "a preset, and the matrix of RTT, load, connections and ACK frequency", matrices::finish),
    ]
}

/// The cases of the standards in their order.
fn standards() -> Vec<Case> {
    let case = |name, about, measure| Case { name, about, measure };
    vec![
        case("compliance", "every requirement in code and test, or excepted with a reason", compliance::measure),
        case("early-data", "0-RTT: what it gains, replays, refusals, and old tickets and tokens", early_data::measure),
        case("paths", "moves of clients, datagram sizes, versions, header bits and keys", paths::measure),
        case("post-quantum", "X25519MLKEM768 beside X25519 on the paths of the lab", post_quantum::measure),
        case("bad-input", "malformed and forged packets, and wrong requests", bad_input::measure),
        case("real-interop", "the interop runner's cases over real sockets, both roles", real_interop::measure),
        case("fuzz", "every fuzz target; two hours with --long, four minutes without", fuzz::measure),
    ]
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> ExitCode {
    let (part, options, cases, from) = match &args.part {
        Part::Transport(options) => ("transport", options, transport().to_vec(), None),
        Part::Congestion(options) => ("congestion", options, congestion::cases(), None),
        Part::Auto(options) => ("auto", options, auto::cases(), None),
        Part::Fec(options) => ("fec", options, fec::cases(), None),
        Part::Speed(options) => ("speed", &options.common, speed::cases(), options.from.as_ref()),
        Part::Lab(options) => ("lab", options, laboratory().to_vec(), None),
        Part::Edge(options) => ("edge", options, edge::cases(), None),
        Part::Web(options) => ("web", options, web::cases(), None),
        Part::Continuity(options) => ("continuity", options, continuity::cases(), None),
        Part::Face(options) => ("face", options, face::cases(), None),
        Part::Hardening(options) => ("hardening", options, hardening::cases(), None),
        Part::Truth(options) => ("truth", options, truth::cases(), None),
        Part::Realtime(options) => ("realtime", options, realtime::cases(), None),
        Part::House(options) => ("house", options, house::cases(), None),
        Part::Standards(options) => ("standards", options, standards(), None),
    };
    match show(part, options, &cases, from) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Measures the cases asked for; whether everything passed.
fn show(part: &'static str, options: &Options, cases: &[Case], from: Option<&PathBuf>) -> anyhow::Result<bool> {
    for name in &options.only {
        let known: Vec<&str> = cases.iter().map(|case| case.name).collect();
        ensure!(known.contains(&name.as_str()), "there is no case `{name}`: there are {}", known.join(", "));
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = root.parent().map_or_else(|| root.clone(), PathBuf::from);
    let context = Context { commands: Commands::new(&root)?, root, long: options.long, from: from.cloned() };
    context.commands.end_with_this_program()?;
    let mut document = Document::new(part, options.long);
    let chosen =
        cases.iter().filter(|case| options.only.is_empty() || options.only.iter().any(|name| name == case.name));
    for case in chosen {
        eprintln!("{}: {} …", case.name, case.about);
        let started = Instant::now();
        let rows = (case.measure)(&context).unwrap_or_else(|error| vec![Row::unmeasured(case.about, &error)]);
        eprintln!("{}: {:.0} s", case.name, started.elapsed().as_secs_f64());
        for mut row in rows {
            row.case = case.name;
            if !options.json {
                print!("{row}");
                std::io::stdout().flush()?;
            }
            document.rows.push(row);
        }
    }
    let passed = document.finish();
    if let Some(file) = &options.save {
        std::fs::write(file, serde_json::to_string_pretty(&document)? + "\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        println!("\n{}", document.summary());
    }
    Ok(passed)
}
