//! Promises of the laboratory about matrices: they finish in time, are the same however they were run, survive what happens to
//! files and programs, stay small in memory, and their verdicts are right where the truth is known.

use std::{
    fs,
    io::BufReader,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    campaign::{self, Effort},
    contender::{BuildError, Contender, Factor, Identity, Nodes, RunSpec},
    figure::Figure,
    journal::Journal,
    matrix::cells,
    plan::Plan,
    record::{MANIFEST_SCHEMA, Manifest, Record, RunOutcome, read},
    run::{Execution, run_all},
    scenario::{Overrides, Scenario, load, parse},
    selftest::{Fault, calibrate},
    stats::compare::{Pair, Verdict, compare, compare_unpaired},
    versus::{effect, words},
};

use super::{
    Context,
    command::{cargo, load as machine_load},
    row::{Row, Target},
};

const BUILD: Duration = Duration::from_secs(3_600);

/// The program, built with optimisation.
pub(super) fn program(context: &Context) -> Result<PathBuf> {
    let mut build = cargo(&context.root, ["build", "--release", "-p", "tiderace-cli"]);
    context.commands.run("lab-build", &mut build, BUILD)?.ok()?;
    Ok(context.commands.target().join("release/tiderace"))
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// `lab run okru-mobile`, and the matrix of RTT, load, connections and ACK frequency.
pub(crate) fn finish(context: &Context) -> Result<Vec<Row>> {
    let (program, scratch) = (program(context)?, context.commands.scratch("lab-matrix")?);
    let mut rows = Vec::new();
    let mut preset = Command::new(&program);
    preset.args(["lab", "run", "okru-mobile"]).current_dir(&scratch);
    let ended = context.commands.run("lab-okru", &mut preset, BUILD)?.ok()?;
    let reported = ended.stdout.contains("Self-test") && ended.stdout.contains("goodput (Mbit/s)");
    rows.push(
        Row::new("`lab run okru-mobile` ends with a report", f64::from(u8::from(reported)), "", Target::Exactly(1.0))
            .detail(format!("{:.0} s; {}", ended.seconds, machine_load())),
    );
    let mut sizes = vec![("1", 600.0)];
    if context.long {
        sizes.push(("6", 3_600.0));
    }
    for (seeds, limit) in sizes {
        let page = scratch.join(format!("matrix-{seeds}.html"));
        let mut matrix = Command::new(&program);
        matrix.args(["lab", "matrix", "matrix-rtt-load", "--seeds", seeds, "--html"]).arg(&page).current_dir(&scratch);
        let ended = context.commands.run(&format!("lab-matrix-{seeds}"), &mut matrix, BUILD * 2)?.ok()?;
        let plan = Plan::new(load("matrix-rtt-load")?)?;
        let cells = plan.points().len() * plan.contender_count();
        let seconds = plan.base().run.warmup + plan.base().run.duration;
        let megabytes = fs::metadata(&page)?.len() as f64 / 1e6;
        rows.push(
            Row::new(format!("matrix with {seeds} seeds, running time"), ended.seconds, "s", Target::AtMost(limit))
                .detail(format!("{}; --long runs six seeds as well", machine_load())),
        );
        rows.push(
            Row::new("its cells", number(cells), "", Target::AtLeast(1_260.0))
                .detail(format!("each {:.0} virtual seconds", seconds.as_secs_f64())),
        );
        rows.push(Row::new("its page", megabytes, "MB", Target::AtMost(5.0)).detail(page.display().to_string()));
    }
    Ok(rows)
}

/// The matrix of RTT, load, connections and ACK frequency once, each cell for a few seconds: that one file runs it.
pub(crate) fn seed_matrix(context: &Context) -> Result<Vec<Row>> {
    let (program, scratch) = (program(context)?, context.commands.scratch("seed-matrix")?);
    let plan = Plan::new(load("matrix-rtt-load")?)?;
    let cells = plan.points().len() * plan.contender_count();
    let (seeds, length) = if context.long { ("6", "26s") } else { ("1", "6s") };
    let mut matrix = Command::new(&program);
    matrix.args(["lab", "matrix", "matrix-rtt-load", "--seeds", seeds, "--duration", length, "--out", "records"]);
    let ended = context.commands.run("seed-matrix", matrix.current_dir(&scratch), BUILD * 2)?.ok()?;
    let mut files = fs::read_dir(scratch.join("records"))?.filter_map(|entry| Some(entry.ok()?.path()));
    let file = files.find(|path| path.extension().is_some_and(|end| end == "jsonl")).context("no records")?;
    let (_, records) = read(BufReader::new(fs::File::open(file)?))?;
    let failed = records.iter().filter(|record| record.outcome != RunOutcome::Valid).count();
    let detail = format!(
        "RTT 5 to 500 ms, 100 to 2000 packets per second, 1 to 16 connections, cubic, bbr2 and bbr3, 1 to 5 packets per ACK; \
         {seeds} seeds x {length}; {:.0} s",
        ended.seconds
    );
    Ok(vec![
        Row::new("cells of scenarios/matrix-rtt-load.toml", number(cells), "", Target::AtLeast(1_260.0)).detail(detail),
        Row::new("runs of it with usable figures", number(records.len() - failed), "", Target::AtLeast(1_260.0)),
        Row::new("runs of it without", number(failed), "", Target::Exactly(0.0)),
    ])
}

/// The self-test, and the same with each part broken.
pub(crate) fn controls(_: &Context) -> Result<Vec<Row>> {
    let failed =
        |fault| calibrate(fault).iter().filter(|check| !check.passed).map(|check| check.name).collect::<Vec<_>>();
    let sound = failed(None);
    let mut rows = vec![
        Row::new("failures of the self-test", number(sound.len()), "", Target::Exactly(0.0)).detail(sound.join(", ")),
    ];
    for (fault, name) in Fault::ALL {
        let red = failed(Some(fault));
        rows.push(
            Row::new(format!("red checks with fault {name}"), number(red.len()), "", Target::AtLeast(1.0))
                .detail(red.join(", ")),
        );
    }
    Ok(rows)
}

const PATH: &str = r#"
name = "known"
title = "Known truth"
about = "For `shows`."
[path.down]
rate = "10 Mbit/s"
queue = "50 kB"
delay = "20 ms"
loss = "0.5 %"
[path.up]
rate = "10 Mbit/s"
queue = "50 kB"
delay = "20 ms"
[traffic]
workload = "bulk"
connections = 2
start-spread = "200 ms"
[run]
warmup = "1 s"
duration = "4 s"
seeds = 60
"#;

fn known() -> Result<Scenario> {
    Ok(parse(PATH, "shows")?)
}

/// A contender of which a share of the delivered bytes does not count: the truth is planted.
struct Slower {
    inner: Box<dyn Contender>,
    share: f64,
}

impl Contender for Slower {
    fn identity(&self) -> Identity {
        let inner = self.inner.identity();
        Identity { name: format!("{} x {}", inner.name, self.share), ..inner }
    }
    fn factors(&self) -> Vec<Factor> {
        self.inner.factors()
    }
    fn build(&self, spec: &RunSpec<'_>) -> Result<Nodes, BuildError> {
        let nodes = self.inner.build(spec)?;
        let (measured, share) = (nodes.measured, self.share);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "megabytes"
        )]
        let slower = move || {
            let mut all = measured();
            all.iter_mut().for_each(|one| one.delivered = (one.delivered as f64 * share) as u64);
            all
        };
        Ok(Nodes { pairs: nodes.pairs, measured: Box::new(slower), views: nodes.views, rtts: nodes.rtts })
    }
}

fn goodputs(contender: Box<dyn Contender>, seeds: std::ops::Range<u64>) -> Result<Vec<f64>> {
    let cells = cells(1, seeds);
    let records = run_all(&known()?, &[contender], &cells, &Execution::default(), &|_| {});
    records.iter().map(|record| value(record, Figure::Goodput)).collect()
}

fn value(record: &Record, figure: Figure) -> Result<f64> {
    reading(record, figure)?.context("no value")
}

/// The value of a figure, if it has one in this run.
fn reading(record: &Record, figure: Figure) -> Result<Option<f64>> {
    ensure!(record.outcome == RunOutcome::Valid, "{:?}", record.outcome);
    Ok(record.figures.get(&figure).and_then(|reading| reading.value))
}

/// A planted difference is found, an identical contender is equivalent, and few seeds do not decide.
pub(crate) fn truth(_: &Context) -> Result<Vec<Row>> {
    let own = |name: &str| lab::tiderace::contender(name).context("no such controller");
    let base = goodputs(own("cubic")?, 1..21)?;
    let slower = goodputs(Box::new(Slower { inner: own("cubic")?, share: 0.97 }), 1..21)?;
    let again = goodputs(own("cubic")?, 1..21)?;
    let other = goodputs(own("newreno")?, 1..21)?;
    let judge = |contender: &[f64], baseline: &[f64]| {
        let pairs: Vec<Pair> = contender.iter().zip(baseline).map(|(own, base)| (Some(*own), Some(*base))).collect();
        compare(&pairs, &Figure::Goodput.declaration().rule()).context("no pair")
    };
    let is = |what: &str, found: &lab::stats::compare::Comparison, expected: Verdict| {
        Row::new(what, f64::from(u8::from(found.verdict == expected)), "", Target::Exactly(1.0)).detail(format!(
            "{} over {} pairs: {}",
            effect(Figure::Goodput, found),
            found.pairs,
            words(found, None)
        ))
    };
    let few = judge(&other[..4], &base[..4])?;
    Ok(vec![
        is("a contender made 3 % slower is worse", &judge(&slower, &base)?, Verdict::Worse),
        is("an identical one is equivalent", &judge(&again, &base)?, Verdict::Equivalent),
        is("four seeds do not decide", &few, Verdict::Undecided),
        Row::new(
            "… and the number that would is given",
            f64::from(u8::from(few.pairs_needed.is_some())),
            "",
            Target::Exactly(1.0),
        ),
    ])
}

/// A against A over two disjoint sets of thirty seeds, in every figure, for several paths.
pub(crate) fn same(_: &Context) -> Result<Vec<Row>> {
    const FIGURES: [Figure; 7] = [
        Figure::Goodput,
        Figure::RttP50,
        Figure::RttP95,
        Figure::Bufferbloat,
        Figure::Retransmitted,
        Figure::QueueDelayP99,
        Figure::Overhead,
    ];
    let (mut covered, mut all, mut refused) = (0, 0, 0);
    for (index, loss) in ["none", "0.1 %", "0.5 %", "1 %", "2 %", "5 %"].iter().enumerate() {
        for (place, delay) in ["5 ms", "20 ms", "60 ms"].iter().enumerate() {
            let text = PATH.replace("\"0.5 %\"", &format!("\"{loss}\"")).replace("\"20 ms\"", &format!("\"{delay}\""));
            let scenario = parse(&text, "shows")?;
            let contender = lab::tiderace::contender("cubic").context("no such controller")?;
            let first = 1_000 * (3 * index + place) as u64;
            let records =
                run_all(&scenario, &[contender], &cells(1, first..first + 60), &Execution::default(), &|_| {});
            for figure in FIGURES {
                let values = records.iter().map(|record| reading(record, figure)).collect::<Result<Vec<_>>>()?;
                // A 99th percentile of few packets, on the slowest paths: the laboratory names none.
                let Some(values) = values.into_iter().collect::<Option<Vec<f64>>>() else {
                    refused += 1;
                    continue;
                };
                let Some(result) = compare_unpaired(&values[..30], &values[30..], &figure.declaration().rule()) else {
                    continue;
                };
                all += 1;
                covered += usize::from(result.difference.covers(0.0));
            }
        }
    }
    Ok(vec![
        Row::new(
            "A/A: intervals that cover no difference",
            100.0 * number(covered) / number(all),
            "%",
            Target::AtLeast(93.0),
        )
        .detail(format!(
            "{covered} of {all}: 18 paths, {} figures, two disjoint sets of 30 seeds; {refused} more have too few samples \
             for a value in every run",
            FIGURES.len()
        )),
    ])
}

/// The small matrix as a file.
pub(super) fn small_scenario() -> Result<String> {
    Ok(toml::to_string(small(4)?.base())?)
}

/// A small matrix: sixteen points of half a virtual second.
fn small(seeds: u32) -> Result<Plan> {
    let mut scenario = parse(
        &PATH.replace("warmup = \"1 s\"\nduration = \"4 s\"", "warmup = \"100 ms\"\nduration = \"400 ms\""),
        "shows",
    )?;
    for (name, levels) in [("path.rtt", "[\"10 ms\", \"40 ms\"]"), ("profile.acks.every", "[1, 2, 4, 8]")] {
        scenario.factors.insert(name.to_owned(), serde_json::from_str(levels)?);
    }
    let overrides = Overrides { seeds: Some(seeds), ..Overrides::default() };
    Ok(Plan::new(overrides.apply(scenario)?)?)
}

fn manifest(plan: &Plan) -> Result<Manifest> {
    let contenders = plan.contenders(&plan.scenario(0)?)?;
    Ok(Manifest {
        schema: MANIFEST_SCHEMA.to_owned(),
        lab: "shows".to_owned(),
        digest: plan.base().digest(),
        scenario: plan.base().clone(),
        contenders: contenders.iter().map(|contender| contender.identity()).collect(),
    })
}

fn whole(plan: &Plan, path: &Path, threads: usize) -> Result<Vec<u8>> {
    let mut journal = Journal::create(path, &manifest(plan)?, plan.len())?;
    let effort = Effort { threads: threads.try_into().ok(), qlog: None };
    campaign::run(plan, &mut journal, &effort, &std::sync::atomic::AtomicBool::new(false), &|_| {})?;
    journal.tidy()?;
    Ok(fs::read(path)?)
}

/// Equal bytes from one thread, from four, and from a program that was killed three times.
pub(crate) fn equal(context: &Context) -> Result<Vec<Row>> {
    let scratch = context.commands.scratch("lab-equal")?;
    let plan = small(4)?;
    let one = whole(&plan, &scratch.join("one.jsonl"), 1)?;
    let four = whole(&plan, &scratch.join("four.jsonl"), 4)?;
    let row = |what: &str, same: bool, detail: String| {
        Row::new(what, f64::from(u8::from(same)), "", Target::Exactly(1.0)).detail(detail)
    };
    let mut rows =
        vec![row("one thread and four: equal files", one == four, format!("{} runs, {} bytes", plan.len(), one.len()))];

    // The program itself, killed while it runs, repeatedly.
    let program = program(context)?;
    let file = scratch.join("scenario.toml");
    fs::write(&file, toml::to_string(plan.base())?)?;
    let matrix = |out: &str| {
        let mut command = Command::new(&program);
        command.args(["lab", "matrix"]).arg(&file).args(["--seeds", "40", "--out", out]).current_dir(&scratch);
        command
    };
    let reference = context.commands.run("lab-equal-whole", &mut matrix("whole"), BUILD)?.ok()?;
    let records = |out: &str| -> Result<PathBuf> {
        let entries = fs::read_dir(scratch.join(out))?.filter_map(|entry| Some(entry.ok()?.path()));
        entries.into_iter().find(|path| path.extension().is_some_and(|end| end == "jsonl")).context("no records")
    };
    let mut kills = Vec::new();
    let mut command = matrix("killed");
    for _ in 0..3 {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let wait = Duration::from_secs_f64((reference.seconds / 5.0).clamp(0.1, 20.0));
        let begin = Instant::now();
        while begin.elapsed() < wait && child.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Killed without a chance to write anything more.
        let _ = child.kill();
        child.wait()?;
        kills.push(fs::read(records("killed")?)?.iter().filter(|byte| **byte == b'\n').count().saturating_sub(1));
        command = Command::new(&program);
        command.args(["lab", "resume"]).arg(records("killed")?).current_dir(&scratch);
    }
    // And a bit of it turns over.
    let path = records("killed")?;
    let mut bytes = fs::read(&path)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&path, &bytes)?;
    let ended = context.commands.run("lab-equal-resume", &mut command, BUILD)?.ok()?;
    let same = fs::read(&path)? == fs::read(records("whole")?)?;
    rows.push(row(
        "killed three times, damaged, resumed: equal file",
        same,
        format!("runs stored at each kill: {kills:?} of {}; {:.0} s for the rest", plan.len() * 10, ended.seconds),
    ));
    rows.push(row("the damage is named", ended_says_damage(&ended.log)?, ended.log.display().to_string()));
    Ok(rows)
}

fn ended_says_damage(log: &Path) -> Result<bool> {
    Ok(fs::read_to_string(log)?.contains("Damaged lines"))
}

/// A disk without room: what was stored stays, and the program says how to continue.
pub(crate) fn full_disk(context: &Context) -> Result<Vec<Row>> {
    let (program, scratch) = (program(context)?, context.commands.scratch("lab-full")?);
    let file = scratch.join("scenario.toml");
    fs::write(&file, toml::to_string(small(4)?.base())?)?;
    // A file system of its own in a name space of its own, with room for some of the records.
    let script = format!(
        "mount -t tmpfs -o size=64k none \"$1\" && cd \"$1\" && \"{0}\" lab matrix \"$2\" --seeds 20 --out out; echo code $?; \
         cp out/*.jsonl \"$2.kept\"",
        program.display()
    );
    let room = scratch.join("room");
    fs::create_dir_all(&room)?;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script, "sh"]).arg(&room).arg(&file);
    let ended = context.commands.run("lab-full", &mut command, BUILD)?;
    let stopped = ended.stdout.contains("code 2") && ended.stderr.contains("runs are stored; go on with");
    let kept = PathBuf::from(format!("{}.kept", file.display()));
    let plan =
        Plan::new(Overrides { seeds: Some(20), ..Overrides::default() }.apply(load(&file.display().to_string())?)?)?;
    let (journal, _, damage) = Journal::open(&kept, |_| plan.len()).context("the file cannot be opened")?;
    Ok(vec![
        Row::new(
            "a full disk ends a matrix and says how to go on",
            f64::from(u8::from(stopped)),
            "",
            Target::Exactly(1.0),
        )
        .detail(ended.stderr.lines().take(2).collect::<Vec<_>>().join("\n")),
        Row::new("damaged lines left by it", number(damage.lines.len()), "", Target::Exactly(0.0)).detail(format!(
            "{} of {} runs are there, the last line is torn: {}",
            journal.stored(),
            plan.len(),
            damage.torn
        )),
    ])
}

/// Peak memory of ten thousand runs beside that of a thousand.
pub(crate) fn memory(context: &Context) -> Result<Vec<Row>> {
    let (program, scratch) = (program(context)?, context.commands.scratch("lab-memory")?);
    let file = scratch.join("scenario.toml");
    fs::write(&file, toml::to_string(small(4)?.base())?)?;
    let peak = |name: &str, seeds: &str| -> Result<f64> {
        let mut command = Command::new(&program);
        command.args(["lab", "matrix"]).arg(&file).args(["--seeds", seeds, "--out", name]).current_dir(&scratch);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let status = format!("/proc/{}/status", child.id());
        let mut peak = 0.0_f64;
        while child.try_wait()?.is_none() {
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
            peak = peak.max(kilobytes.unwrap_or(0.0) / 1e3);
            std::thread::sleep(Duration::from_millis(20));
        }
        ensure!(child.wait()?.success(), "the matrix failed");
        Ok(peak)
    };
    // 8 points x 2 contenders x seeds.
    let (small, large) = (peak("small", "63")?, peak("large", "625")?);
    Ok(vec![
        Row::new("peak memory, 10,000 runs / 1,000 runs", large / small, "x", Target::AtMost(1.25)).detail(format!(
            "{large:.1} MB and {small:.1} MB; the figures for the report are in it, 360 bytes per run"
        )),
    ])
}
