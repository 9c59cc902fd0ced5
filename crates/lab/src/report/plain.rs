//! A matrix as Markdown, and as CSV: one row per point, contender and figure.

use core::fmt::Write;

use super::{Effect, FactorEffect, MatrixReport, matrix::percent, plot::number};
use crate::{
    figure::Figure,
    stats::interval::RUNS_MIN,
    versus::{effect, word, words},
};

/// A value in the unit that people read.
pub(super) fn printed(figure: &str, value: f64) -> String {
    if value.is_infinite() {
        return if value < 0.0 { "-∞" } else { "∞" }.to_owned();
    }
    let scale = Figure::from_key(figure).map_or(1.0, |figure| figure.unit().printed().1);
    number(value * scale)
}

/// A figure with its unit.
pub(super) fn label(figure: &str) -> String {
    let Some(figure) = Figure::from_key(figure) else { return figure.to_owned() };
    match figure.unit().printed().0 {
        "" => figure.label().trim().to_owned(),
        unit => format!("{} ({unit})", figure.label().trim()),
    }
}

/// A figure without its unit.
pub(super) fn plain_name(figure: &str) -> &str {
    Figure::from_key(figure).map_or(figure, |figure| figure.label().trim())
}

/// The size of an effect.
pub(super) fn told(entry: &Effect) -> String {
    Figure::from_key(entry.figure).map_or_else(String::new, |figure| effect(figure, &entry.result))
}

/// State that decides whether the other results are valid, in sentences.
pub(super) fn state(report: &MatrixReport) -> Vec<(bool, String)> {
    let mut state = Vec::new();
    let failed: Vec<_> = report.self_test.iter().filter(|check| !check.passed).collect();
    match (failed.first(), report.self_test.len()) {
        (Some(check), _) => {
            state.push((
                false,
                format!("Self-test FAILED: {}: {}. Do not believe what follows.", check.name, check.detail),
            ));
        }
        (None, 0) => {}
        (None, count) => state.push((true, format!("Self-test: {count} checks passed."))),
    }
    let size = report.size;
    if size.stored < size.runs {
        state.push((
            false,
            format!(
                "Incomplete: {} of {} runs are there; `tiderace lab resume` runs the rest.",
                size.stored, size.runs
            ),
        ));
    }
    if report.damaged_lines > 0 {
        state.push((
            false,
            format!("{} lines of the file were damaged; their runs are missing here.", report.damaged_lines),
        ));
    }
    let control = &report.control;
    match &control.reason {
        Some(reason) => state.push((true, format!("A/A control: not made ({reason})."))),
        None => state.push((
            percent(control.covered, control.comparisons) >= 85.0,
            format!(
                "A/A control: the baseline's odd seeds against its even ones: {} of {} intervals cover no difference ({:.0} %; 95 % are expected).",
                control.covered,
                control.comparisons,
                percent(control.covered, control.comparisons)
            ),
        )),
    }
    if let Some(ranking) = &report.ranking {
        let orders: Vec<String> =
            ranking.orders.iter().map(|(level, order)| format!("burst {level}: {}", order.join(" > "))).collect();
        let holds = if ranking.holds { "holds" } else { "does NOT hold" };
        state.push((
            ranking.holds,
            format!("The order by goodput {holds} for all burst lengths ({}).", orders.join("; ")),
        ));
    }
    for breach in report.thresholds.iter().take(10) {
        state.push((false, breach_text(breach)));
    }
    if report.thresholds.len() > 10 {
        state.push((false, format!("and {} more limits do not hold.", report.thresholds.len() - 10)));
    }
    if !report.failures.is_empty() {
        let first = &report.failures[0];
        state.push((
            false,
            format!(
                "{} runs failed and are not used; the first: {}, seed {}: {}",
                report.failures.len(),
                first.contender,
                first.seed,
                first.reason
            ),
        ));
    }
    if report.connections_lost.0 > 0 {
        let (lost, all) = report.connections_lost;
        state.push((true, format!("{lost} of {all} connections broke off or were never established.")));
    }
    state
}

/// A limit that does not hold, as a sentence.
pub(super) fn breach_text(breach: &super::Breach) -> String {
    let found = breach
        .value
        .map_or_else(|| "nothing was measured".to_owned(), |value| format!("the median is {value:.6} in base units"));
    format!("Limit \"{}\" does not hold: {}: {found}.", breach.limit, breach.place)
}

/// Figures of rivals' effect on one another, of which there are any.
pub(super) const OF_RIVALS: [Figure; 5] =
    [Figure::Share, Figure::HarmFirst, Figure::HarmSecond, Figure::HarmDelayFirst, Figure::HarmDelaySecond];

/// A row for each pair of rivals: its name and [`OF_RIVALS`], from the least to the most over the points.
pub(super) fn rivals(report: &MatrixReport) -> Vec<(String, Vec<String>)> {
    let row = |(index, name): (usize, &String)| {
        let range = |figure: Figure| -> Option<String> {
            let medians: Vec<f64> = report
                .points
                .iter()
                .filter_map(|point| point.figures[index].iter().find(|quoted| quoted.figure == figure.key()))
                .map(|quoted| quoted.median)
                .collect();
            let low = medians.iter().copied().reduce(f64::min)?;
            let high = medians.iter().copied().reduce(f64::max)?;
            let text = |value| printed(figure.key(), value);
            Some(if medians.len() == 1 { text(low) } else { format!("{} to {}", text(low), text(high)) })
        };
        let figures: Vec<Option<String>> = OF_RIVALS.into_iter().map(range).collect();
        // Beside another one a contender has a share, and nobody asks what it does to the other.
        figures[1..].iter().flatten().next()?;
        Some((name.clone(), figures.into_iter().map(|text| text.unwrap_or_else(|| "–".to_owned())).collect()))
    };
    report.contenders.iter().enumerate().filter_map(row).collect()
}

/// Title, number of runs and trace.
fn opening(out: &mut String, report: &MatrixReport) {
    let size = report.size;
    let _ = writeln!(out, "# {}: {}\n", report.name, report.title);
    // Nobody traces packets in real time.
    let traced = if report.manifest.is_real_time() {
        String::new()
    } else {
        format!(", {} packets. Trace hash {}", report.simulated.1, report.trace_hash)
    };
    let _ = writeln!(
        out,
        "{} points x {} contenders x {} seeds = {} runs, {}{}.\n",
        size.points,
        report.contenders.len(),
        size.seeds,
        size.runs,
        report.manifest.seconds(report.simulated.0),
        traced
    );
}

/// The report as Markdown.
pub fn markdown(report: &MatrixReport) -> String {
    let mut out = String::new();
    opening(&mut out, report);
    for (_, sentence) in state(report) {
        let _ = writeln!(out, "- {sentence}");
    }
    if !report.overall.is_empty() {
        // With one point there is nothing to count.
        let many = report.size.points > 1;
        let _ = writeln!(
            out,
            "\n## Against {}\n\nMedian{} of the ratio, or of the difference where a ratio has no meaning, with its interval of at least 95 %; equivalent means no difference that matters, 3 % for most figures.{}\n\n| contender | figure | effect | verdict |{}\n|---|---|---|---|{}",
            report.contenders.first().map_or("", String::as_str),
            if report.size.points >= RUNS_MIN { " over the points" } else { " over the seeds" },
            if many {
                " The last column counts points in which the contender is better / worse / equivalent / undecided."
            } else {
                ""
            },
            if many { " points |" } else { "" },
            if many { "---|" } else { "" }
        );
        for entry in &report.overall {
            let [better, worse, equivalent, undecided, _] = entry.tally;
            let tally =
                if many { format!(" {better} / {worse} / {equivalent} / {undecided} |") } else { String::new() };
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} |{tally}",
                entry.contender,
                plain_name(entry.figure),
                told(entry),
                words(&entry.result, entry.presupposes)
            );
        }
    }
    if let Some(regret) = &report.regret {
        super::regret::markdown(&mut out, regret, &report.manifest);
    }
    of_factors(&mut out, report);
    let rivals = rivals(report);
    if !rivals.is_empty() {
        let heads: Vec<String> = OF_RIVALS.iter().map(|figure| label(figure.key())).collect();
        let _ = writeln!(
            out,
            "\n## Rivals on one path\n\nHarm is what each loses against the same run in which the other is silent.\n\n| first + second | {} |\n|---|{}",
            heads.join(" | "),
            "---|".repeat(heads.len())
        );
        for (name, figures) in rivals {
            let _ = writeln!(out, "| {name} | {} |", figures.join(" | "));
        }
    }
    for (name, levels) in report.varied() {
        let _ = writeln!(
            out,
            "\n## By {name}\n\n| contender | figure | {} |\n|---|---|{}",
            levels.join(" | "),
            "---|".repeat(levels.len())
        );
        let mut rows: Vec<(&str, &str)> = Vec::new();
        let of_factor =
            || report.by_level.iter().filter(|effect| effect.level.as_ref().is_some_and(|level| level.0 == *name));
        for effect in of_factor() {
            if !rows.contains(&(effect.contender.as_str(), effect.figure)) {
                rows.push((&effect.contender, effect.figure));
            }
        }
        for (contender, figure) in rows {
            let entries: Vec<String> = levels
                .iter()
                .map(|level| {
                    let found = of_factor().find(|effect| {
                        effect.contender == contender
                            && effect.figure == figure
                            && effect.level.as_ref().is_some_and(|at| at.1 == *level)
                    });
                    found.map_or_else(
                        || "–".to_owned(),
                        |effect| format!("{} {}", told(effect), word(effect.result.verdict)),
                    )
                })
                .collect();
            let _ = writeln!(out, "| {contender} | {} | {} |", plain_name(figure), entries.join(" | "));
        }
    }
    out
}

/// Effect of each factor on each contender: a table for each factor.
fn of_factors(out: &mut String, report: &MatrixReport) {
    for (name, levels) in report.varied().filter(|(_, levels)| levels.len() > 1) {
        let of_factor: Vec<&FactorEffect> = report.factor_effects.iter().filter(|one| one.factor == *name).collect();
        let mut rows: Vec<(&str, &str)> = Vec::new();
        for one in &of_factor {
            if !rows.contains(&(one.contender.as_str(), one.figure)) {
                rows.push((&one.contender, one.figure));
            }
        }
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(
            out,
            "\n## Effect of {name}, against {name} {}\n\n| contender | figure | {} |\n|---|---|{}",
            levels[0],
            levels[1..].join(" | "),
            "---|".repeat(levels.len() - 1)
        );
        for (contender, figure) in rows {
            let entries: Vec<String> = levels[1..]
                .iter()
                .map(|level| {
                    let mut own = of_factor.iter().filter(|one| one.contender == contender && one.figure == figure);
                    own.find(|one| one.level == *level).map_or_else(
                        || "–".to_owned(),
                        |one| {
                            let size =
                                Figure::from_key(figure).map_or_else(String::new, |key| effect(key, &one.result));
                            format!("{size} {}", words(&one.result, one.presupposes))
                        },
                    )
                })
                .collect();
            let _ = writeln!(out, "| {contender} | {} | {} |", plain_name(figure), entries.join(" | "));
        }
    }
}

/// The points as CSV: a row per point, contender and figure, values in base units.
pub fn csv(report: &MatrixReport) -> String {
    let quote = |text: &str| {
        if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
    };
    let mut out = String::new();
    for (name, _) in &report.factors {
        let _ = write!(out, "{},", quote(name));
    }
    out.push_str("contender,figure,unit,median,low,high\n");
    for point in &report.points {
        for (contender, figures) in report.contenders.iter().zip(&point.figures) {
            for figure in figures {
                for level in &point.levels {
                    let _ = write!(out, "{},", quote(level));
                }
                let unit = Figure::from_key(figure.figure).map_or("", |figure| figure.unit().base());
                let (low, high) = figure
                    .interval
                    .map_or((String::new(), String::new()), |(low, high)| (low.to_string(), high.to_string()));
                let _ = writeln!(out, "{},{},{unit},{},{low},{high}", quote(contender), figure.figure, figure.median);
            }
        }
    }
    out
}
