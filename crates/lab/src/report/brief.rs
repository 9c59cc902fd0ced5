//! Report on one screen: main figures of the workload, the best of each row marked, and a sentence on the best contender. At most 80
//! columns wide.

use core::fmt::Write;
use std::path::Path;

use super::{
    Report,
    board::{Board, Outcome, Row},
    headline::{conditions, seeds},
    repair,
    style::{COLUMNS, Style, blocks, width, wrap},
    text::{column_name, decimals, fixed, label},
    verdict::verdict,
};
use crate::{measure::Provenance, selftest::Check};

/// Prints the headlines of a report.
pub fn brief(report: &Report, style: Style) -> String {
    let scenario = &report.manifest.scenario;
    let mut out = wrap(&format!("{}: {}", scenario.name, scenario.title), 2);
    self_test(&mut out, &report.self_test, style);
    out.push('\n');
    let board = &report.board;
    table(&mut out, board, style);
    let few = report.contenders.iter().flat_map(|column| &column.figures).any(|cell| {
        cell.provenance == Provenance::Refused && board.rows.iter().any(|row| row.figure.key() == cell.figure)
    });
    legend(&mut out, board, few);
    never(&mut out, report, &|figure| board.rows.iter().any(|row| row.figure.key() == figure));
    let conditions = conditions(scenario, &|_| false).join(", ");
    let sentence = if board.columns.len() < 2 {
        format!("One contender alone, nobody to compare it with ({conditions}, {}).", seeds(scenario))
    } else {
        format!("With {conditions} and {}, {}.", seeds(scenario), verdict(board))
    };
    out.push('\n');
    out += &wrap(&sentence.replace(" and seed", " and\u{a0}seed"), 0);
    for note in repair::notes(report) {
        out += &wrap(&note, 0);
    }
    trouble(&mut out, report, style);
    match &report.records {
        Some(path) => {
            out.push('\n');
            out += &records(path);
        }
        None => out.push_str("\nAll figures, with intervals: --all\n"),
    }
    out
}

/// Names the records of a run and the command that prints all figures: on a line of its own where one of 80 columns has no place for it.
pub fn records(path: &Path) -> String {
    let (path, label) = (path.display(), "All figures:");
    let command = format!("tiderace lab report --all {path}");
    let joint = if label.len() + 1 + command.len() > COLUMNS { "\n" } else { " " };
    format!("Records: {path}\n{label}{joint}{command}\n")
}

/// Prints the self-test; one line when all checks pass.
pub(super) fn self_test(out: &mut String, checks: &[Check], style: Style) {
    let (passed, failed): (Vec<_>, Vec<_>) = checks.iter().partition(|check| check.passed);
    if !passed.is_empty() {
        let names: Vec<&str> = passed.iter().map(|check| check.name).collect();
        *out += &wrap(&format!("Self-test: {} passed ({}).", passed.len(), names.join(", ")), 2);
    }
    for check in failed {
        let text = format!("Self-test FAILED: {}: {}. Do not believe what follows.", check.name, check.detail);
        *out += &style.alarm(wrap(&text, 2).trim_end());
        out.push('\n');
    }
}

/// A row for each figure, a column for each contender, as many side by side as fit.
pub(super) fn table(out: &mut String, board: &Board, style: Style) {
    let labels: Vec<String> = board.rows.iter().map(|row| label(row.figure)).collect();
    let first = labels.iter().map(|label| width(label)).max().unwrap_or(0);
    let body: Vec<Vec<String>> = board.rows.iter().map(entries).collect();
    let bar = usize::from(style.colour);
    // The mark of the best has a column of its own behind the number, and so has the bar.
    let widths: Vec<usize> = (board.columns.iter().enumerate())
        .map(|(index, name)| {
            let widest = body.iter().map(|row| width(&row[index]) + 1 + bar).max().unwrap_or(0);
            widest.max(width(name))
        })
        .collect();
    for (index, block) in blocks(first, &widths).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let _ = write!(out, "{:first$}", "");
        for column in block.clone() {
            let (name, width) = (&board.columns[column], widths[column]);
            let _ = write!(out, "  {}", style.bold(&format!("{name:>width$}")));
        }
        end_line(out);
        for ((row, label), entries) in board.rows.iter().zip(&labels).zip(&body) {
            let largest = largest(row.medians.iter().copied().flatten());
            let _ = write!(out, "{label}{}", " ".repeat(first - width(label)));
            for column in block.clone() {
                let entry = format!("{:>1$}", entries[column], widths[column] - 1 - bar);
                let mark = if is_best(row, column) { style.best("*") } else { " ".to_owned() };
                let entry = if is_best(row, column) { style.best(&entry) } else { entry };
                let bar = row.medians[column].map_or_else(String::new, |value| style.bar(value, largest));
                let _ = write!(out, "  {entry}{mark}{bar}");
            }
            end_line(out);
        }
    }
}

pub(super) fn is_best(row: &Row, column: usize) -> bool {
    matches!(&row.outcome, Outcome::Leads(leaders) if leaders.contains(&column))
}

/// The largest absolute value among the finite ones.
pub(super) fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.map(f64::abs).filter(|value| value.is_finite()).fold(0.0, f64::max)
}

/// The medians of a row with the same number of decimals.
fn entries(row: &Row) -> Vec<String> {
    let scale = row.figure.unit().printed().1;
    let digits = decimals(largest(row.medians.iter().copied().flatten()) * scale, 0.0);
    let entry = |value: &Option<f64>| value.map_or_else(|| "–".to_owned(), |value| fixed(value * scale, digits));
    row.medians.iter().map(entry).collect()
}

/// Legend of the mark.
pub(super) const BEST: &str = " * best, or no further from the best than matters (3\u{a0}% for most figures), and every other \
                               contender is worse with at least 95\u{a0}% confidence (paired by seed).";

/// Percentiles include missing samples; prints how many there were.
pub(super) fn never(out: &mut String, report: &Report, shown: &dyn Fn(&str) -> bool) {
    let mut told: Vec<(&str, Vec<String>)> = Vec::new();
    for column in &report.contenders {
        // The percentiles of one kind of sample tell of the same ones.
        let mut samples = Vec::new();
        for cell in column.figures.iter().filter(|cell| shown(cell.figure)) {
            let Some((never, all)) = cell.never.filter(|never| !samples.contains(never)) else { continue };
            samples.push((never, all));
            let what = cell.figure.rsplit_once('_').map_or(cell.figure, |(what, _)| what);
            let name = column_name(&column.name, &report.manifest);
            let text = format!("{name} {never} of {all}");
            match told.iter_mut().find(|(other, _)| *other == what) {
                Some((_, texts)) => texts.push(text),
                None => told.push((what, vec![text])),
            }
        }
    }
    for (what, texts) in told {
        let text = format!("Never came, and counts as a {what} longer than any other (∞): {}.", texts.join(", "));
        *out += &wrap(&text, 2);
    }
}

fn legend(out: &mut String, board: &Board, few: bool) {
    let seeds = if board.seeds == 1 { "one seed".to_owned() } else { format!("{} seeds", board.seeds) };
    let mut text = if board.seeds == 1 { "One seed.".to_owned() } else { format!("Medians over {seeds}.") };
    if board.rows.iter().any(|row| matches!(row.outcome, Outcome::Leads(_))) {
        text += BEST;
    }
    if few {
        text += " – too few samples; a longer --duration gives more.";
    }
    out.push('\n');
    *out += &wrap(&text, 0);
}

/// Runs and connections that failed.
fn trouble(out: &mut String, report: &Report, style: Style) {
    for column in report.contenders.iter().filter(|column| column.connections_lost > 0) {
        let (lost, all) = (column.connections_lost, column.connections);
        let name = column_name(&column.name, &report.manifest);
        *out += &wrap(&format!("{name}: {lost} of {all} connections broke off or were never established."), 2);
    }
    if let Some(first) = report.failures.first() {
        let text = format!(
            "{} runs FAILED and are not used; the first: {}, seed {}: {}",
            report.failures.len(),
            first.contender,
            first.seed,
            first.reason
        );
        *out += &style.alarm(wrap(&text, 2).trim_end());
        out.push('\n');
    }
}

/// Ends a line without spaces before its end.
pub(super) fn end_line(out: &mut String) {
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_for_all_figures_fits_80_columns() {
        let short = records(Path::new("lab-out/mobile-486cb85d.jsonl"));
        assert!(short.ends_with("\nAll figures: tiderace lab report --all lab-out/mobile-486cb85d.jsonl\n"), "{short}");
        let long = records(Path::new("lab-out/auto-regret-holdout-486cb85d.jsonl"));
        let command = "tiderace lab report --all lab-out/auto-regret-holdout-486cb85d.jsonl";
        assert!(long.ends_with(&format!("\nAll figures:\n{command}\n")), "{long}");
        assert!(long.lines().all(|line| line.len() <= 80), "{long}");
    }
}
