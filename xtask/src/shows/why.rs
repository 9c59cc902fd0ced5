//! `tiderace why` behind the emulator: causes that are planted, and whether they are named.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    Context,
    command::{cargo, load},
    edge_servers,
    row::{Row, Target},
    why_plant::{Between, CAUSES, Plant, scenario},
};

/// Seeds for each cause, and runs without one.
const SLICE: (u64, u64) = (1, 3);
const LONG: (u64, u64) = (5, 20);
/// Longest run of one.
const LIMIT: Duration = Duration::from_secs(150);

/// Outcome of a run.
struct Found {
    /// First causes of completion and of the small requests.
    first: [Option<String>; 2],
    /// For the line under the value.
    detail: String,
}

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let build = &mut cargo(&context.root, ["build", "-p", "tiderace-cli"]);
    context.commands.run("why-build", build, Duration::from_secs(3_600))?.ok()?;
    let program = context.commands.target().join("debug/tiderace");
    let scratch = context.commands.scratch("why")?;
    edge_servers::site(&scratch, &[])?;
    let (seeds, without) = if context.long { LONG } else { SLICE };
    let (mut rows, mut named) = (Vec::new(), 0_u32);
    for cause in CAUSES {
        let mut right = 0_u32;
        let mut details = Vec::new();
        for seed in 1..=seeds {
            let plant = Plant::draw(cause, seed);
            match explain(context, &program, &scratch, &format!("{cause}-{seed}"), seed, &plant) {
                Ok(found) => {
                    right += u32::from(found.first[question(cause)].as_deref() == Some(cause));
                    details.push(format!("seed {seed}: {}; {}", plant.told(), found.detail));
                }
                Err(error) => details.push(format!("seed {seed}: {}; {error:#}", plant.told())),
            }
        }
        named += right;
        let row = Row::new(format!("{cause}: named"), right.into(), &format!("of {seeds}"), Target::Printed);
        rows.push(row.detail(details.join("\n")));
    }
    #[expect(clippy::cast_precision_loss, reason = "some dozens of runs")]
    let all = seeds as f64 * CAUSES.len() as f64;
    // 55 of 60.
    let row = Row::new("planted causes that were named first", named.into(), "", Target::AtLeast(all * 55.0 / 60.0));
    rows.push(row.detail(format!("of {all}; {}", load())));
    rows.extend(nothing(context, &program, &scratch, without));
    Ok(rows)
}

/// The question whose answer has this cause: completion, or small requests.
fn question(cause: &str) -> usize {
    usize::from(["bufferbloat", "head_of_line"].contains(&cause))
}

/// Runs without a cause.
fn nothing(context: &Context, program: &Path, scratch: &Path, runs: u64) -> [Row; 2] {
    let (mut wrong, mut details) = ([0_u32; 2], [Vec::new(), Vec::new()]);
    for seed in 1..=runs {
        let plant = Plant::draw("none", seed);
        match explain(context, program, scratch, &format!("none-{seed}"), seed, &plant) {
            Ok(found) => {
                for place in 0..2 {
                    if found.first[place].is_some() {
                        wrong[place] += 1;
                        details[place].push(format!("seed {seed}: {}; {}", plant.told(), found.detail));
                    }
                }
            }
            Err(error) => {
                wrong[0] += 1;
                details[0].push(format!("seed {seed}: {error:#}"));
            }
        }
    }
    let [completion, response] = details.map(|details| details.join("\n"));
    let row = Row::new("causes named where none was planted", wrong[0].into(), "", Target::AtMost(1.0));
    // TCP's own start fills the queue, and small requests wait in it or behind losses: that is so without a plant.
    let beside = "causes named for small requests where none was planted";
    let beside = Row::new(beside, wrong[1].into(), "", Target::Printed);
    [row.detail(format!("of {runs} runs; {}; {completion}", load())), beside.detail(response)]
}

/// Plants, and asks why.
fn explain(context: &Context, program: &Path, scratch: &Path, name: &str, seed: u64, plant: &Plant) -> Result<Found> {
    let folder = scratch.join(name);
    fs::create_dir_all(&folder)?;
    fs::write(scratch.join("www/object"), vec![b'x'; plant.size])?;
    let write =
        |file: &str, text: String| fs::write(folder.join(file), text).with_context(|| format!("cannot write {file}"));
    write("path.toml", plant.scenario())?;
    write("server.sh", servers(program, scratch, &folder, seed, plant)?)?;
    write("client.sh", client(program, &folder, plant))?;
    let mut command = Command::new(program);
    command.args(["lab", "shell"]).arg(folder.join("path.toml")).args(["--seed", &seed.to_string(), "--server"]);
    command.arg(format!("sh {}", folder.join("server.sh").display())).args(["--", "sh"]).arg(folder.join("client.sh"));
    let ended = context.commands.run(&format!("why-{name}"), &mut command, LIMIT)?.ok()?;
    let report: Value = serde_json::from_str(&ended.stdout).context("the report is no JSON")?;
    let judgement = |question: &str| {
        let judgement = &report["diagnosis"][question];
        let causes: Vec<String> = judgement["causes"].as_array().into_iter().flatten().map(told).collect();
        let ratio = judgement["comparison"]["ratio"]["value"].as_f64();
        let ratio = ratio.map_or_else(String::new, |ratio| format!(" {ratio:.2}"));
        let first = judgement["causes"][0]["cause"].as_str().map(str::to_owned);
        (first, format!("{question} {}{ratio} {}", judgement["outcome"], causes.join(", ")))
    };
    let (completion, response) = (judgement("completion"), judgement("response"));
    Ok(Found { first: [completion.0, response.0], detail: format!("{}; {}", completion.1, response.1) })
}

fn told(verdict: &Value) -> String {
    let word = |name: &str| verdict[name].as_str().unwrap_or_default().to_owned();
    format!("{} ({})", word("cause"), word("confidence"))
}

/// Script of the server side: gateways, and what stands before the UDP port.
fn servers(program: &Path, scratch: &Path, folder: &Path, seed: u64, plant: &Plant) -> Result<String> {
    let (program, at) = (program.display(), folder.display());
    let gateway = |name: &str, port: u16| {
        let text = format!(
            "listen = \"10.2.0.1:{port}\"\ncertificate = \"{0}/cert.pem\"\nkey = \"{0}/key.pem\"\n\
             [transport]\ncongestion = \"{1}\"\n[[route]]\nfiles = \"{0}/www\"\n",
            scratch.display(),
            plant.congestion[0]
        );
        fs::write(folder.join(format!("{name}.toml")), text)
    };
    gateway("both", 4_433)?;
    let mut script = String::from("cd /proc/sys/net/ipv4 || exit 1\n");
    script += &format!("echo {} > tcp_congestion_control\n", plant.congestion[1]);
    if let Some(bytes) = plant.unsent {
        script += &format!("echo {bytes} > tcp_notsent_lowat\n");
    }
    script += &format!("{program} edge run --config {at}/both.toml > {at}/both.ready &\n");
    let mut port = 4_433;
    if let Some([off, on]) = plant.pauses {
        gateway("quic", 4_443)?;
        port = 4_443;
        script += &format!("{program} edge run --config {at}/quic.toml > {at}/quic.ready &\nquic=$!\n");
        script += &format!(
            "{}while :; do kill -STOP $quic; sleep {off:.3}; kill -CONT $quic; sleep {on:.3}; done &\n",
            wait_for(folder, "quic")
        );
    }
    match &plant.between {
        None => {}
        Some(Between::Links(down, up)) => {
            let down = format!("rate = \"200 Mbit/s\"\nqueue = \"4 MB\"\n{down}");
            fs::write(folder.join("relay.toml"), scenario(&down, up))?;
            script += &format!(
                "{program} relay --json --path {at}/relay.toml --listen 10.2.0.1:4434 --to 10.2.0.1:{port} --seed {seed} > {at}/relay.ready &\n"
            );
        }
        Some(Between::Hole(after)) => {
            let this = std::env::current_exe()?;
            script += &format!(
                "{} udp-hole 10.2.0.1:4434 10.2.0.1:{port} {after} 1252 > {at}/relay.ready &\n",
                this.display()
            );
        }
    }
    Ok(script + "wait\n")
}

/// Waits until a server has printed a line.
fn wait_for(folder: &Path, name: &str) -> String {
    let file = folder.join(format!("{name}.ready"));
    format!("n=0; until [ -s {} ]; do n=$((n+1)); [ $n -gt 400 ] && exit 9; sleep 0.05; done\n", file.display())
}

/// Script of the client side.
fn client(program: &Path, folder: &Path, plant: &Plant) -> String {
    let mut script = wait_for(folder, "both");
    let mut options: Vec<String> = plant.options.iter().map(|option| format!("'{option}'")).collect();
    if plant.pauses.is_some() {
        script += &wait_for(folder, "quic");
        options.push("--udp 10.2.0.1:4443".to_owned());
    }
    if plant.between.is_some() {
        script += &wait_for(folder, "relay");
        options.push("--udp 10.2.0.1:4434".to_owned());
    }
    let mut lead = String::new();
    if let Some(nice) = plant.busy {
        script += "taskset -c 0 sh -c 'while :; do :; done' &\n";
        lead = format!("taskset -c 0 nice -n {nice} ");
        options.push(format!("--qlog {}/qlog", folder.display()));
    }
    script += &format!(
        "{lead}{} why -k https://localhost:4433/object --resolve localhost:4433:10.2.0.1 --rounds 9 --time '30 s' --json {}\n",
        program.display(),
        options.join(" ")
    );
    script
}
