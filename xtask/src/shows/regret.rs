//! Regret of `auto` on the held-out cells: its loss against the best fixed controller of each cell.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    campaign::{self, Effort},
    journal::Journal,
    plan::Plan,
    record::LAB,
    regret::{Loss, Regret},
    scenario::{Overrides, load},
    summary::Summary,
};

use super::{
    Context,
    row::{Row, Target},
};

/// Cells for tuning, and held-out cells.
const PRESETS: [&str; 2] = ["auto-regret", "auto-regret-holdout"];
/// Seeds of a long run.
const LONG_SEEDS: u32 = 6;

/// Runs the missing held-out cells, and compares.
pub(crate) fn regret(context: &Context) -> Result<Vec<Row>> {
    let [train, judges] = PRESETS.map(load);
    let (train, judges) = (train?, judges?);
    let overrides = Overrides { seeds: context.long.then_some(LONG_SEEDS), ..Overrides::default() };
    let plan = Plan::new(overrides.apply(judges)?)?;
    let all = train.cells.len() + plan.points().len();
    let path = records(context, &plan)?;
    let summary = Summary::read(&path)?;
    ensure!(summary.is_sound(), "{} runs failed: {:?}", summary.failures.len(), summary.failures.first());
    let regret = Regret::of(&summary).context("nobody is judged")?;
    let seeds = plan.base().run.seeds;
    let mut rows = vec![
        Row::new("cells held out", number(plan.points().len()), "", Target::AtLeast(100.0)),
        Row::new("cells in all", number(all), "", Target::AtLeast(300.0)).detail(format!("{seeds} seeds here")),
        Row::new("cells without a value of every contender", number(regret.incomplete.len()), "", Target::Exactly(0.0))
            .detail(regret.incomplete.join("; ")),
    ];
    for loss in Loss::ALL {
        rows.extend(of_loss(&regret, loss, &path));
    }
    Ok(rows)
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn of_loss(regret: &Regret, loss: Loss, path: &Path) -> Vec<Row> {
    let Some(&auto) = regret.judged.first() else { return Vec::new() };
    let Some(own) = regret.total(auto, loss) else { return Vec::new() };
    let (mean, worst) = match loss {
        Loss::Goodput => (Target::AtLeast(0.97), Target::AtLeast(0.85)),
        Loss::Queueing | Loss::Time => (Target::AtMost(1.1), Target::AtMost(1.1)),
    };
    let label = loss.label();
    let detail = format!("{} cells, {} beyond; {}", own.cells, own.beyond, path.display());
    let mut rows =
        vec![Row::new(format!("{label} over the best fixed, geometric mean"), own.mean, "x", mean).detail(detail)];
    if let Some(entry) = regret.worst(auto, loss).first() {
        rows.push(
            Row::new(format!("{label} over the best fixed, worst cell"), entry.ratio, "x", worst).detail(&entry.cell),
        );
    }
    for fixed in (0..regret.contenders.len()).filter(|place| !regret.judged.contains(place)) {
        let Some(other) = regret.total(fixed, loss) else { continue };
        let target = if loss == Loss::Goodput { Target::AtLeast(1.0) } else { Target::AtMost(1.0) };
        let what = format!("{label} of auto / of {}, geometric mean", regret.contenders[fixed]);
        let detail =
            format!("{} has {:.3} of the best, {} cells beyond", regret.contenders[fixed], other.mean, other.beyond);
        rows.push(Row::new(what, own.mean / other.mean, "x", target).detail(detail));
    }
    rows
}

/// The complete file of records. An incomplete file of the same sources is resumed.
fn records(context: &Context, plan: &Plan) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    for source in ["crates/transport/src", "crates/lab/src", "crates/netem/src", "crates/sim/src"] {
        hash_folder(&context.root.join(source), &mut hasher)?;
    }
    serde_json::to_string(plan.base())?.hash(&mut hasher);
    let path = context.commands.target().join(format!("shows/regret-{:016x}.jsonl", hasher.finish()));
    let manifest = plan.manifest(LAB)?;
    let left_behind = Journal::open(&path, |_| plan.len()).ok().filter(|(_, stored, _)| *stored == manifest);
    let mut journal = match left_behind {
        Some((journal, ..)) => journal,
        None => {
            fs::create_dir_all(path.parent().context("a folder")?)?;
            Journal::create(&path, &manifest, plan.len())?
        }
    };
    campaign::run(plan, &mut journal, &Effort::default(), &AtomicBool::new(false), &|_| {})?;
    Ok(journal.tidy()?)
}

fn hash_folder(folder: &Path, hasher: &mut DefaultHasher) -> Result<()> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort_unstable();
    for path in paths {
        if path.is_dir() {
            hash_folder(&path, hasher)?;
        } else {
            path.hash(hasher);
            fs::read(&path)?.hash(hasher);
        }
    }
    Ok(())
}
