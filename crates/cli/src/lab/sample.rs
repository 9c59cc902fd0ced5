//! One connection of each contender over time, for the page of a matrix: repeats one of its runs, with a qlog file.

use std::{
    fs,
    io::BufReader,
    path::{Path, PathBuf},
};

use lab::{
    campaign::{self, Effort},
    plan::Plan,
    qlog::Logs,
    report::{MatrixReport, Samples, TimeSeries},
    scenario::{Direction, Scenario},
    stats::compare::Comparison,
};

/// Contenders that are shown: more fill a page.
const SHOWN: usize = 8;

/// The first connection of each contender with the first seed, at the point where the contenders differ most. What cannot be had,
/// as from a stack that writes no qlog, is left out: the page says what it shows.
pub(super) fn samples(report: &MatrixReport, scenario: &Scenario, records: &Path) -> Samples {
    let Ok(plan) = Plan::new(scenario.clone()) else { return Samples::default() };
    let far = |point: usize| {
        let verdicts = report.points.get(point).into_iter().flat_map(|row| row.verdicts.iter().flatten());
        let size = |result: &Comparison| match result.ratio {
            Some(ratio) => ratio.value.ln().abs(),
            None => result.difference.value.abs(),
        };
        verdicts.map(size).filter(|far| far.is_finite()).fold(0.0, f64::max)
    };
    let point = (0..plan.points().len()).rev().max_by(|a, b| far(*a).total_cmp(&far(*b))).unwrap_or(0);
    let scratch = records.with_extension(format!("qlog-{}", std::process::id()));
    let series = (0..plan.contender_count().min(SHOWN))
        .filter_map(|contender| {
            // The first round has the points in order, and in each the contenders.
            let index = point * plan.contender_count() + contender;
            let root = scratch.join(contender.to_string());
            let record =
                campaign::one(&plan, index, &Effort { threads: None, qlog: Some(Logs::newest(root.clone())) }).ok()?;
            let side = if scenario.traffic.direction == Direction::Download { "server" } else { "client" };
            let file = find(&root, &format!("connection-000-{side}.sqlog"))?;
            let series = TimeSeries::read(BufReader::new(fs::File::open(file).ok()?)).ok()?;
            Some((record.contender.name, series))
        })
        .collect();
    // What stays behind is in the way of nothing.
    let _ = fs::remove_dir_all(&scratch);
    let levels: Vec<String> =
        plan.points().get(point).into_iter().flatten().map(|(name, level)| format!("{name} {level}")).collect();
    let place = if levels.is_empty() {
        String::new()
    } else {
        format!(", at the point where the contenders differ most: {}", levels.join(", "))
    };
    let about = format!(
        "The first connection of each contender with seed {}{place}. `tiderace lab replay FILE --run {} --qlog DIR` writes the files \
         behind it, with `--qlog-format 0.3` for qvis.",
        scenario.run.seed,
        point * plan.contender_count()
    );
    Samples { about, series }
}

/// The file with this name below a directory.
fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    for entry in fs::read_dir(directory).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = find(&path, name) {
                return Some(found);
            }
        } else if entry.file_name().to_string_lossy() == name {
            return Some(path);
        }
    }
    None
}
