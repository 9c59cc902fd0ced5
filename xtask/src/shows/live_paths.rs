//! Runs in real time on emulated paths: presets by both clocks, our CUBIC beside the kernel's, and a mobile network with TCP and HTTP/3.

use std::{collections::BTreeMap, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::scenario::{PRESETS, Scenario, load as scenario};
use serde_json::Value;
use units::Bitrate;

use super::{
    Context,
    command::load,
    matrices::program,
    row::{Row, Target},
};

/// A scenario takes some minutes.
const LIMIT: Duration = Duration::from_secs(3_600);
/// Fastest loaded link that the agreement of both clocks is asked for.
const FASTEST: Bitrate = Bitrate::from_bps(100_000_000);
/// Largest difference of goodput between both clocks, in percent, and of the median RTT in milliseconds.
const AGREEMENT: (f64, f64) = (5.0, 2.0);
/// Seeds of a preset whose first ones disagree.
const MORE: &str = "8";
/// Presets that run without `--long`.
const FEW: [&str; 4] = ["mobile", "dsl-uplink", "lte-walking", "video"];

/// Every preset that fits in 100 Mbit/s, in real time and in the simulator with the same seeds.
pub(crate) fn presets(context: &Context) -> Result<Vec<Row>> {
    let program = program(context)?;
    let fits = |one: &Scenario| {
        let rate = one.loaded_link().mean_rate();
        !one.has_points() && !one.name.starts_with("claims-") && rate.is_some_and(|rate| rate <= FASTEST)
    };
    let mut rows = Vec::new();
    for preset in PRESETS.iter().filter(|preset| context.long || FEW.contains(&preset.name)) {
        let loaded = scenario(preset.name).map_err(|error| anyhow::anyhow!("{error}"))?;
        if !fits(&loaded) {
            continue;
        }
        eprintln!("  {} …", preset.name);
        // A queue that fills and drains slowly has no median in a short time: all of the preset's, then.
        let (first, short): (&str, &[&str]) = if context.long { ("2", &[]) } else { ("1", &["--duration", "8 s"]) };
        let of_seeds = |seeds: &str| {
            let options = [&["--cc", "cubic", "--seeds", seeds], short].concat();
            Ok(both_clocks(preset.name, &run(context, &program, &["run", preset.name], &options)?.0))
        };
        // A difference of few seeds may be chance: more of them tell, and count alone.
        let again = |rows: Vec<Row>| if rows.iter().all(|row| row.passed) { Ok(rows) } else { of_seeds(MORE) };
        match of_seeds(first).and_then(again) {
            Ok(measured) => rows.extend(measured),
            Err(error) => rows.push(Row::unmeasured(&format!("{}: both clocks", preset.name), &error)),
        }
    }
    Ok(rows)
}

/// Difference of goodput, and of the median RTT where there is one.
fn both_clocks(preset: &str, report: &Value) -> Vec<Row> {
    let (name, clocks) = (format!("{preset}: goodput in real time less the simulator's"), &report["both_clocks"][0]);
    let both = |figure: &str| Some((clocks[figure]["real_time"].as_f64()?, clocks[figure]["simulated"].as_f64()?));
    let Some((real, simulated)) = both("goodput") else {
        let why = report["failures"][0]["reason"].as_str().unwrap_or("no run counts");
        return vec![Row::unmeasured(&name, &anyhow::anyhow!("{why}"))];
    };
    let chance = if clocks["may_be_chance"] == true { "; may be chance: more seeds decide" } else { "" };
    let runs = &report["contenders"][0]["runs"];
    let detail = |text: String| format!("{text}{chance}; cubic, medians of {runs} runs that count; {}", load());
    let interval = |of: &str, scale: f64, unit: &str| {
        let bound = |at: usize| Some(clocks[of][at].as_f64()? * scale);
        bound(0).zip(bound(1)).map_or_else(String::new, |(low, high)| {
            format!(", differences seed by seed {low:+.1} to {high:+.1} {unit} (95 % interval of their median)")
        })
    };
    let difference = (real / simulated - 1.0) * 100.0;
    let mut rows = vec![Row::new(name, difference, "%", Target::Between(-AGREEMENT.0, AGREEMENT.0)).detail(detail(
        format!("{:.3} and {:.3} Mbit/s{}", real / 1e6, simulated / 1e6, interval("goodput_interval", 100.0, "%")),
    ))];
    if let Some((real, simulated)) = both("rtt_p50") {
        let (real, simulated) = (real * 1e3, simulated * 1e3);
        let name = format!("{preset}: RTT p50 in real time less the simulator's");
        let row = Row::new(name, real - simulated, "ms", Target::Between(-AGREEMENT.1, AGREEMENT.1));
        rows.push(row.detail(detail(format!(
            "{real:.2} and {simulated:.2} ms, {:+.1} %{}",
            (real / simulated - 1.0) * 100.0,
            interval("rtt_interval", 1e3, "ms")
        ))));
    }
    rows
}

/// Goodput of our CUBIC over that of the kernel's, on ten paths.
pub(crate) fn cubic(context: &Context) -> Result<Vec<Row>> {
    let program = program(context)?;
    let options: &[&str] = if context.long { &[] } else { &["--seeds", "1", "--duration", "6 s"] };
    let (_, records) = run(context, &program, &["matrix", "scenarios/real-time/cubic.toml"], options)?;
    let mut paths: BTreeMap<String, BTreeMap<u64, [Option<f64>; 2]>> = BTreeMap::new();
    for record in records {
        let path = record["point"]["cell"].as_str().context("a record without a cell")?.to_owned();
        let seed = record["seed"].as_u64().context("a record without a seed")?;
        let is_kernel = record["contender"]["name"].as_str().is_some_and(|name| name.starts_with("kernel-"));
        let valid = record["outcome"].as_str() == Some("valid");
        let goodput = record["figures"]["goodput"]["value"].as_f64().filter(|_| valid);
        paths.entry(path).or_default().entry(seed).or_default()[usize::from(is_kernel)] = goodput;
    }
    let rows = paths.into_iter().map(|(path, seeds)| {
        let pairs = seeds.values().filter_map(|[ours, theirs]| Some(((*ours)?, (*theirs)?)));
        let ratios: Vec<f64> = pairs.clone().map(|(ours, theirs)| ours / theirs).collect();
        let told: Vec<String> = pairs.map(|(ours, theirs)| format!("{:.2}/{:.2}", ours / 1e6, theirs / 1e6)).collect();
        Row::median(format!("{path}: goodput of ours over the kernel's"), &ratios, "×", Target::Between(0.9, 1.1))
            .detail(format!("{} of {} pairs count; Mbit/s {}; {}", ratios.len(), seeds.len(), told.join(" "), load()))
    });
    Ok(rows.collect())
}

/// Rows of `lab run okru-mobile --real-time`: TCP with HTTP/2 beside HTTP/3, as root and as an ordinary user.
pub(crate) fn mobile(context: &Context) -> Result<Vec<Row>> {
    let program = program(context)?;
    let options: &[&str] =
        if context.long { &["--seeds", "6", "--duration", "20 s"] } else { &["--seeds", "1", "--duration", "5 s"] };
    let (report, _) = run(context, &program, &["run", "okru-mobile"], options)?;
    let mut rows = Vec::new();
    for contender in report["contenders"].as_array().into_iter().flatten() {
        let name = contender["name"].as_str().unwrap_or_default();
        let figure = |key: &str| contender["figures"].as_array()?.iter().find(|cell| cell["figure"] == key);
        let goodput = figure("goodput").context("no goodput")?;
        let Some(median) = goodput["median"].as_f64() else {
            let why = goodput["reason"].as_str().unwrap_or("no run counts").to_owned();
            rows.push(Row::unmeasured(&format!("goodput of {name}"), &anyhow::anyhow!(why)));
            continue;
        };
        let bound = |key: &str| Some(goodput["interval"][key].as_f64()? / 1e6);
        let row = Row::new(format!("goodput of {name}"), median / 1e6, "Mbit/s", Target::Printed);
        let row = Row { interval: bound("low").zip(bound("high")).map(|(low, high)| [low, high]), ..row };
        rows.push(row.detail(format!("okru-mobile, {} runs; {}", contender["runs"], load())));
    }
    ensure!(rows.len() >= 3, "only {} contenders", rows.len());
    rows.push(as_ordinary_user(context, &program)?);
    Ok(rows)
}

/// The same for the user `nobody`, in a user namespace.
fn as_ordinary_user(context: &Context, program: &Path) -> Result<Row> {
    let name = "contenders with a goodput, as an ordinary user";
    // A directory that the user may enter.
    let scratch = std::env::temp_dir().join(format!("tiderace-shows-{}", std::process::id()));
    std::fs::create_dir(&scratch)?;
    let row = as_nobody(context, program, &scratch);
    std::fs::remove_dir_all(&scratch)?;
    let (measured, all) = row?;
    Ok(Row::new(name, measured, "", Target::Exactly(3.0)).detail(format!("of {all}; {}", load())))
}

/// Contenders that have runs which count, and all.
fn as_nobody(context: &Context, program: &Path, scratch: &Path) -> Result<(f64, usize)> {
    let copy = scratch.join("tiderace");
    std::fs::copy(program, &copy)?;
    std::os::unix::fs::chown(scratch, Some(65_534), Some(65_534))?;
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set=-all"]).arg(&copy);
    command.args([
        "lab",
        "run",
        "okru-mobile",
        "--real-time",
        "--json",
        "--seeds",
        "1",
        "--duration",
        "5 s",
        "--cc",
        "cubic,kernel-cubic,kernel-bbr",
    ]);
    command.arg("--accept-busy").current_dir(scratch).env("HOME", scratch).arg("--out").arg(scratch.join("out"));
    let ended = context.commands.run("real-time-ordinary-user", &mut command, LIMIT)?;
    ensure!(matches!(ended.code, Some(0 | 1)), "{}", ended.reason());
    let report: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.reason())?;
    let all = report["contenders"].as_array().context("no contenders")?;
    let measured = all.iter().filter(|one| one["runs"].as_u64().is_some_and(|runs| runs > 0)).count();
    Ok((f64::from(u32::try_from(measured)?), all.len()))
}

/// Runs a subcommand of `tiderace lab` in real time: its report, and the records of the runs. What others slowed down does not count: beside
/// three lanes of such runs, goodput on `wifi` was 11 % lower than without them.
fn run(context: &Context, program: &Path, what: &[&str], options: &[&str]) -> Result<(Value, Vec<Value>)> {
    let name = what.last().and_then(|name| Path::new(name).file_stem()).unwrap_or_default().to_string_lossy();
    let name = format!("live-paths-{name}");
    let out = context.commands.scratch(&name)?;
    let mut command = Command::new(program);
    command.arg("lab").args(what).args(["--real-time", "--json", "--out"]).arg(&out).args(options);
    let ended = context.commands.run(&name, command.current_dir(&context.root), LIMIT)?;
    // A report of which some runs do not count is one nevertheless.
    ensure!(matches!(ended.code, Some(0 | 1)), "{}", ended.reason());
    let report: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.reason())?;
    let files = std::fs::read_dir(&out)?.map(|file| anyhow::Ok(file?.path())).collect::<Result<Vec<_>>>()?;
    let path = files.iter().find(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
    let path = path.with_context(|| format!("there are no records in {}", out.display()))?;
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let records = text.lines().skip(1).map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    Ok((report, records))
}
