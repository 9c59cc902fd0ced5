//! Promises of the laboratory about others: the Python package on a local Ray, stacks of others in the same simulator, the law of
//! loss, and real time.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{figure::Figure, journal::Records, record::RunOutcome};
use serde_json::Value;

use super::{
    Context,
    command::load,
    matrices::program,
    row::{Row, Target},
};

const LIMIT: Duration = Duration::from_secs(3_600);

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn holds(what: &str, held: bool) -> Row {
    Row::new(what, f64::from(u8::from(held)), "", Target::Exactly(1.0))
}

/// The package in a virtual environment of its own: one matrix by threads, on a local Ray of two workers, and by the program.
pub(crate) fn ray(context: &Context) -> Result<Vec<Row>> {
    let program = program(context)?;
    let target = context.commands.target();
    let (venv, wheels) = (target.join("python-venv"), target.join("python-wheels"));
    let run = |name: &str, command: &mut Command| context.commands.run(name, command, LIMIT)?.ok();
    if !venv.join("bin/maturin").exists() {
        run("lab-venv", Command::new("python3").args(["-m", "venv"]).arg(&venv)).context("python3 with venv")?;
        let wanted = ["install", "--quiet", "maturin", "ray", "pyarrow", "pandas", "polars"];
        run("lab-pip", Command::new(venv.join("bin/pip")).args(wanted)).context("packages from PyPI")?;
    }
    let package = context.root.join("python");
    let mut build = Command::new(venv.join("bin/maturin"));
    build.args(["build", "--release", "--manifest-path"]).arg(package.join("Cargo.toml")).arg("--out").arg(&wheels);
    build.env("CARGO_TARGET_DIR", target.join("python")).env("VIRTUAL_ENV", &venv);
    run("lab-wheel", &mut build)?;
    let wheel = newest(&wheels, "whl")?;
    let mut install = Command::new(venv.join("bin/pip"));
    run("lab-install", install.args(["install", "--quiet", "--force-reinstall", "--no-deps"]).arg(wheel))?;
    let mut test = Command::new(venv.join("bin/python"));
    let ended = run("lab-ray", test.arg(package.join("tests/test_lab.py")).arg(&program))?;
    let line = ended.stdout.lines().rfind(|line| line.starts_with('{')).context("no values")?;
    let values: Value = serde_json::from_str(line)?;
    let digests = values["digests"].as_object().context("no digests")?;
    let mut different: Vec<&str> = digests.values().filter_map(Value::as_str).collect();
    different.sort_unstable();
    different.dedup();
    let count = |field: &str| values[field].as_f64().unwrap_or(f64::NAN);
    let workers = values["workers"].as_array().map_or(0, Vec::len);
    Ok(vec![
        Row::new(
            "different files from threads, Ray and the program",
            number(different.len()),
            "",
            Target::Exactly(1.0),
        )
        .detail(format!("{digests:?}; {} runs; {:.0} s", count("runs"), ended.seconds)),
        Row::new("ways the matrix was run", number(digests.len()), "", Target::Exactly(3.0)),
        Row::new("Ray workers that took part", number(workers), "", Target::Exactly(2.0)),
        Row::new("rows that pandas.read_parquet loads", count("pandas"), "", Target::Exactly(count("runs"))),
        Row::new("rows that polars.read_parquet loads", count("polars"), "", Target::Exactly(count("runs"))),
    ])
}

/// The newest file with this ending in a directory.
fn newest(directory: &std::path::Path, ending: &str) -> Result<PathBuf> {
    let files = fs::read_dir(directory)?.filter_map(|entry| Some(entry.ok()?.path()));
    let files = files.filter(|path| path.extension().is_some_and(|end| end == ending));
    let age = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    files.max_by_key(age).with_context(|| format!("there is no .{ending} in {}", directory.display()))
}

/// The stacks of the workspace interop/ in a scenario of ours, alone and as rivals.
pub(crate) fn beside(context: &Context) -> Result<Vec<Row>> {
    let scratch = context.commands.scratch("lab-beside")?;
    let interop = context.root.join("interop");
    // libclang for the bindings of BoringSSL is found by the script that the other runs of this workspace use.
    let script =
        "set -e; . ./libclang.sh; exec cargo build --locked --release -p virtual --features quiche --bin beside";
    let mut build = Command::new("sh");
    context.commands.run("lab-beside-build", build.args(["-c", script]).current_dir(&interop), LIMIT)?.ok()?;
    let beside = interop.join("target/release/beside");
    let stacks = "quinn-cubic,quinn-bbr,noq-cubic,noq-bbr3,quiche-cubic,quiche-bbr2";
    let page = scratch.join("beside.html");
    let mut command = Command::new(&beside);
    command.args([
        "mobile",
        "--cc",
        "cubic,bbr3",
        "--stacks",
        stacks,
        "--rivals",
        "cubic+quinn-cubic,bbr3+quiche-cubic",
    ]);
    command.args(["--seeds", "6", "--out"]).arg(scratch.join("records")).arg("--html").arg(&page);
    let ended = context.commands.run("lab-beside", &mut command, LIMIT)?.ok()?;
    let (manifest, records) = Records::open(&newest(&scratch.join("records"), "jsonl")?)?;
    let records = records.collect::<Result<Vec<_>, _>>()?;
    let usable = records.iter().filter(|record| record.outcome == RunOutcome::Valid).count();
    let named = manifest.contenders.iter().filter(|one| !one.version.is_empty() && !one.parameters.is_empty()).count();
    let harmed = records.iter().filter(|record| {
        let value = |figure: Figure| record.figures.get(&figure).and_then(|reading| reading.value);
        value(Figure::HarmFirst).is_some() && value(Figure::HarmSecond).is_some() && value(Figure::Share).is_some()
    });
    let versions: Vec<String> =
        manifest.contenders.iter().map(|one| format!("{} ({})", one.name, one.version)).collect();
    let program = program(context)?;
    let mut unsupported = Command::new(&program);
    let file = scratch.join("others.toml");
    fs::write(&file, lab_text("quinn-cubic"))?;
    unsupported.args(["lab", "matrix"]).arg(&file).arg("--out").arg(scratch.join("none"));
    let refused = context.commands.run("lab-beside-77", &mut unsupported, LIMIT)?;
    Ok(vec![
        Row::new(
            "contenders of four stacks and their rivals",
            number(manifest.contenders.len()),
            "",
            Target::Exactly(10.0),
        )
        .detail(versions.join(", ")),
        Row::new("of them with version and parameters", number(named), "", Target::Exactly(10.0)),
        Row::new("their runs with usable figures", number(usable), "", Target::Exactly(60.0)).detail(format!(
            "`mobile`, 6 seeds; {:.0} s; page {}",
            ended.seconds,
            page.display()
        )),
        Row::new("runs of rivals with share and harm", number(harmed.count()), "", Target::Exactly(12.0)),
        Row::new(
            "exit code of a program without a stack",
            refused.code.map_or(f64::NAN, f64::from),
            "",
            Target::Exactly(77.0),
        )
        .detail(refused.stderr.lines().next().unwrap_or_default().to_owned()),
    ])
}

fn lab_text(stack: &str) -> String {
    format!(
        "name = \"others\"\ntitle = \"Others\"\nabout = \"A stack of others.\"\n[path.down]\nrate = \"10 Mbit/s\"\nqueue = \"50 kB\"\n\
         delay = \"20 ms\"\n[traffic]\nworkload = \"bulk\"\nconnections = 1\n[run]\nduration = \"1 s\"\nseeds = 1\n[contenders]\n\
         congestion = [\"cubic\"]\nstacks = [\"{stack}\"]\n"
    )
}

/// The order of controllers on a lossy path, for independent loss and bursts of 3 and 6.
pub(crate) fn burst(context: &Context) -> Result<Vec<Row>> {
    let (program, scratch) = (program(context)?, context.commands.scratch("lab-burst")?);
    let mut command = Command::new(&program);
    command.args(["lab", "matrix", "high-loss", "--cc", "newreno,cubic,bbr1,bbr2,bbr3", "--seeds", "6", "--json"]);
    command
        .args(["--duration", "20s", "--loss", "1 %", "--vary", "path.loss-burst=1,3,6", "--out"])
        .arg(scratch.join("records"));
    let ended = context.commands.run("lab-burst", &mut command, LIMIT)?.ok()?;
    let report: Value = serde_json::from_str(ended.stdout.trim())?;
    let orders = report["ranking"]["orders"].as_array().context("the report has no ranking")?;
    let said = report["ranking"]["holds"].as_bool().context("the report does not say whether the order holds")?;
    let names = |order: &Value| -> Vec<String> {
        let names = order[1].as_array().into_iter().flatten().filter_map(Value::as_str);
        names.map(|name| name.trim_start_matches("tiderace ").to_owned()).collect()
    };
    let lists: Vec<Vec<String>> = orders.iter().map(names).collect();
    ensure!(lists.iter().all(|list| list.len() == 5), "an order lacks contenders: {lists:?}");
    let same = lists.windows(2).all(|pair| pair[0] == pair[1]);
    let words: Vec<String> =
        orders.iter().zip(&lists).map(|(order, list)| format!("burst {}: {}", order[0], list.join(" > "))).collect();
    Ok(vec![
        Row::new("laws of loss under which contenders are ranked", number(lists.len()), "", Target::Exactly(3.0))
            .detail(words.join("\n")),
        holds("the report says rightly whether the order holds", said == same).detail(if same {
            "it holds"
        } else {
            "it does not: the law of loss decides who wins"
        }),
    ])
}

/// V14, by the program.
pub(crate) fn real_time(context: &Context) -> Result<Vec<Row>> {
    let program = program(context)?;
    let mut command = Command::new(&program);
    let ended =
        context.commands.run("lab-real-time", command.args(["lab", "selftest", "--real-time", "--json"]), LIMIT)?;
    let checks: Vec<Value> = serde_json::from_str(&ended.stdout).with_context(|| ended.reason())?;
    let name = |check: &Value| check["name"].as_str().unwrap_or_default().to_owned();
    let real: Vec<&Value> = checks.iter().filter(|check| name(check).starts_with("V14")).collect();
    ensure!(real.len() == 2, "V14 has {} checks, not 2", real.len());
    Ok(real
        .into_iter()
        .map(|check| {
            let detail = format!("{}; {}", check["detail"].as_str().unwrap_or_default(), load());
            holds(&name(check), check["passed"] == true).detail(detail)
        })
        .collect())
}
