//! A scenario with factors on one or two screens: factors, main figures at each point, and the best contender at each.
//!
//! Factors of the contenders' profiles (`fec`, `profile.…`) make columns, as further contenders; factors of the path and the traffic make
//! rows.

use core::fmt::Write;
use std::collections::BTreeSet;

use super::{
    board::{Board, Outcome, Runs, runs_at},
    brief::{BEST, end_line, is_best, largest, self_test, table},
    headline::{conditions, seeds},
    style::{COLUMNS, Style, blocks, width, wrap},
    text::{column_name, decimals, fixed, label},
    verdict::verdict,
};
use crate::{
    figure::Figure,
    regret::Regret,
    scenario::{CELL, Point, Scenario},
    selftest::Check,
    stats::interval::RUNS_MIN,
    summary::Summary,
};

/// More points than this are counted by level in place of being listed.
pub const LISTED: usize = 24;

/// Figures of which points are listed, and with more contenders than fit side by side; more do not fit a screen.
const TABLES: (usize, usize) = (3, 1);

/// Contenders that usually fit side by side.
const ABREAST: usize = 7;

/// The headline figures of a scenario with factors at each point, with the best contender.
#[derive(Clone, Debug)]
pub(super) struct Headlines {
    pub(super) grid: Grid,
    /// By row of the grid.
    pub(super) boards: Vec<Board>,
    /// Figures that are compared point by point.
    pub(super) shown: Vec<Figure>,
    /// Conclusion, with its conditions.
    pub(super) sentence: String,
}

impl Headlines {
    pub(super) fn new(summary: &Summary) -> Self {
        let scenario = &summary.manifest.scenario;
        let grid = Grid::new(summary);
        let figures = scenario.headlines();
        let boards: Vec<Board> = (0..grid.rows.len()).map(|row| grid.board(summary, row, &figures)).collect();
        let held = |names: &[&str]| names.iter().any(|name| scenario.factors.contains_key(*name));
        let mut place = conditions(scenario, &held);
        place.push(seeds(scenario));
        let place = place.join(", ");
        let tables = if grid.columns.len() > ABREAST { TABLES.1 } else { TABLES.0 };
        let shown: Vec<Figure> =
            figures.into_iter().filter(|figure| comparable(&boards, *figure)).take(tables).collect();
        let found = match boards.as_slice() {
            [board] => verdict(board),
            _ if grid.columns.len() < 2 => "one contender, with nothing to compare it with at a point".to_owned(),
            _ if summary.seeds.len() < RUNS_MIN => {
                format!("undecided everywhere, because it takes at least {RUNS_MIN} seeds")
            }
            _ => shown.iter().map(|figure| tally(&grid, &boards, *figure)).collect::<Vec<_>>().join("; "),
        };
        Self { grid, boards, shown, sentence: format!("With {place}: {found}.") }
    }
}

/// Prints the headlines of a scenario with factors.
pub fn points(summary: &Summary, checks: &[Check], style: Style) -> String {
    let scenario = &summary.manifest.scenario;
    let mut out = wrap(&format!("{}: {}", scenario.name, scenario.title), 2);
    self_test(&mut out, checks, style);
    let mut levels = levels(&summary.points);
    if levels.iter().any(|(name, levels)| name == CELL && levels.len() > LISTED) {
        levels.retain(|(name, _)| name != CELL);
        out += &wrap(&format!("{} cells, each a path and a workload of its own.", summary.points.len()), 2);
    }
    for (name, levels) in &levels {
        let count = levels.len();
        out += &wrap(&format!("Varies {name} ({count}\u{a0}values): {}", levels.join(", ")), 2);
    }
    let Headlines { grid: cells, boards, shown, sentence } = Headlines::new(summary);
    let runs = format!(
        "{} x {} contenders x {} = {} runs, {}.",
        if cells.rows.len() == 1 { "1 point".to_owned() } else { format!("{} points", cells.rows.len()) },
        cells.columns.len(),
        if summary.seeds.len() == 1 { "1 seed".to_owned() } else { format!("{} seeds", summary.seeds.len()) },
        summary.runs(),
        summary.manifest.seconds(summary.virtual_seconds)
    );
    out += &wrap(&runs, 2);
    out.push('\n');
    if let [board] = boards.as_slice() {
        table(&mut out, board, style);
        out.push('\n');
        legend(&mut out, &boards, board.seeds, "row");
    } else {
        for figure in &shown {
            if boards.len() <= LISTED {
                listed(&mut out, &cells, &boards, *figure, style);
            } else {
                counted(&mut out, &cells, &boards, *figure, &levels);
            }
            out.push('\n');
        }
        legend(&mut out, &boards, summary.seeds.len(), "point");
    }
    if let Some(regret) = Regret::of(summary) {
        super::regret::brief(&mut out, &regret, &summary.manifest);
    }
    out += &wrap(&sentence, 0);
    trouble(&mut out, summary, style);
    out
}

fn legend(out: &mut String, boards: &[Board], seeds: usize, what: &str) {
    let mut text = if seeds == 1 { "One seed.".to_owned() } else { format!("Medians over {seeds} seeds.") };
    if seeds >= RUNS_MIN {
        text += &BEST.replace(" * best,", &format!(" * best of its {what},"));
    }
    *out += &wrap(&text, 0);
    if boards
        .iter()
        .flat_map(|board| &board.rows)
        .flat_map(|row| &row.medians)
        .any(|value| *value == Some(f64::INFINITY))
    {
        *out += &wrap("∞ more of them never came than the percentile leaves out.", 2);
    }
    out.push('\n');
}

/// Places of points and contenders in the matrix.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub(super) columns: Vec<String>,
    /// Levels of the factors of path and traffic.
    pub(super) rows: Vec<Vec<(String, String)>>,
    /// Point and contender by row and column.
    pub(super) cells: Vec<Vec<Option<(usize, usize)>>>,
}

impl Grid {
    fn new(summary: &Summary) -> Self {
        let (mut columns, mut rows): (Vec<String>, Vec<Vec<(String, String)>>) = (Vec::new(), Vec::new());
        let mut cells: Vec<(usize, usize, (usize, usize))> = Vec::new();
        let alone = summary.contenders.len() == 1;
        for contender in 0..summary.contenders.len() {
            for (index, point) in summary.points.iter().enumerate() {
                let owned = |(name, level): (&String, &String)| (name.clone(), level.clone());
                let (own, of_path): (Vec<_>, Vec<_>) = point.iter().map(owned).partition(|(name, _)| of_profile(name));
                let name = column_name(&summary.contenders[contender], &summary.manifest);
                let own: Vec<String> = own.into_iter().map(|(_, level)| level).collect();
                let name = match (own.is_empty(), alone) {
                    (true, _) => name,
                    (false, true) => own.join(" "),
                    (false, false) => format!("{name} {}", own.join(" ")),
                };
                let column = place(&mut columns, name);
                cells.push((place(&mut rows, of_path), column, (index, contender)));
            }
        }
        let mut grid = vec![vec![None; columns.len()]; rows.len()];
        for (row, column, cell) in cells {
            grid[row][column] = Some(cell);
        }
        Self { columns, rows, cells: grid }
    }

    fn board(&self, summary: &Summary, row: usize, figures: &[Figure]) -> Board {
        let runs = |cell: &Option<(usize, usize)>| cell.map_or_else(Runs::new, |cell| runs_at(summary, cell, figures));
        let runs: Vec<Runs> = self.cells[row].iter().map(runs).collect();
        Board::new(self.columns.clone(), &runs, figures)
    }

    /// The name of a row: levels only.
    pub(super) fn row(&self, row: usize) -> String {
        let levels: Vec<&str> = self.rows[row].iter().map(|(_, level)| level.as_str()).collect();
        levels.join(", ")
    }
}

/// Returns whether a factor belongs to the contenders.
fn of_profile(name: &str) -> bool {
    name == "fec" || name.starts_with("profile.") || name.starts_with("contenders.")
}

/// The place of a value in a list without repetition.
fn place<T: PartialEq>(list: &mut Vec<T>, value: T) -> usize {
    list.iter().position(|one| *one == value).unwrap_or_else(|| {
        list.push(value);
        list.len() - 1
    })
}

/// The factors with their levels in order.
fn levels(points: &[Point]) -> Vec<(String, Vec<String>)> {
    let names: BTreeSet<&String> = points.iter().flat_map(|point| point.keys()).collect();
    let of = |name: &String| {
        let mut levels = Vec::new();
        for level in points.iter().filter_map(|point| point.get(name)) {
            place(&mut levels, level.clone());
        }
        (name.clone(), levels)
    };
    names.into_iter().map(of).collect()
}

/// Returns whether contenders can be compared by a figure at any point.
fn comparable(boards: &[Board], figure: Figure) -> bool {
    let rows = || boards.iter().filter_map(|board| board.rows.iter().find(|row| row.figure == figure));
    figure.better().is_some() && rows().any(|row| row.medians.iter().flatten().count() > 0)
}

/// A row for each point.
fn listed(out: &mut String, cells: &Grid, boards: &[Board], figure: Figure, style: Style) {
    let scale = figure.unit().printed().1;
    let rows: Vec<_> = boards.iter().map(|board| board.rows.iter().find(|row| row.figure == figure)).collect();
    let medians = rows.iter().flatten().flat_map(|row| row.medians.iter().copied().flatten());
    let digits = decimals(largest(medians) * scale, 0.0);
    let entry = |row: usize, column: usize| {
        let median = rows[row].and_then(|row| row.medians[column]);
        median.map_or_else(|| "–".to_owned(), |value| fixed(value * scale, digits))
    };
    let names: Vec<&str> = cells.rows[0].iter().map(|(name, _)| short(name)).collect();
    let head = names.join(", ");
    let labels: Vec<String> = (0..cells.rows.len()).map(|row| cells.row(row)).collect();
    let first = labels.iter().chain([&head]).map(|label| width(label)).max().unwrap_or(0).min(COLUMNS / 2);
    let widths: Vec<usize> = (cells.columns.iter().enumerate())
        .map(|(column, name)| {
            let widest = (0..rows.len()).map(|row| width(&entry(row, column)) + 1).max().unwrap_or(0);
            widest.max(width(name))
        })
        .collect();
    let _ = writeln!(out, "{}", style.bold(&label(figure)));
    for (index, block) in blocks(first, &widths).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let _ = write!(out, "{head:<first$}");
        for column in block.clone() {
            let _ = write!(out, "  {:>1$}", cells.columns[column], widths[column]);
        }
        end_line(out);
        for (row, label) in labels.iter().enumerate() {
            let _ = write!(out, "{label:<first$}");
            for column in block.clone() {
                let best = rows[row].is_some_and(|row| is_best(row, column));
                let text = format!("{:>2$}{}", entry(row, column), if best { "*" } else { " " }, widths[column] - 1);
                let _ = write!(out, "  {}", if best { style.best(&text) } else { text });
            }
            end_line(out);
        }
    }
}

/// The last parts of a factor's name.
pub(super) fn short(name: &str) -> &str {
    let name = name.strip_prefix("path.").or_else(|| name.strip_prefix("traffic.")).unwrap_or(name);
    name.strip_prefix("run.").unwrap_or(name)
}

/// For each level of each factor: at how many points each contender leads.
fn counted(out: &mut String, cells: &Grid, boards: &[Board], figure: Figure, levels: &[(String, Vec<String>)]) {
    let _ = writeln!(out, "{}: points with the best value", figure.label().trim());
    let leads =
        |row: usize, column: usize| boards[row].rows.iter().any(|line| line.figure == figure && is_best(line, column));
    let of_path = levels.iter().filter(|(name, _)| !of_profile(name));
    let label = |name: &str, level: &str, count: usize| format!("{} {level} (of {count})", short(name));
    let mut lines: Vec<(String, Vec<usize>)> = Vec::new();
    for (name, levels) in of_path {
        for level in levels {
            let rows: Vec<usize> = (0..boards.len())
                .filter(|&row| cells.rows[row].iter().any(|(factor, at)| factor == name && at == level))
                .collect();
            let counts = (0..cells.columns.len()).map(|column| rows.iter().filter(|&&row| leads(row, column)).count());
            lines.push((label(name, level, rows.len()), counts.collect()));
        }
    }
    let first = lines.iter().map(|line| width(&line.0)).max().unwrap_or(0);
    let widths: Vec<usize> = cells.columns.iter().map(|name| width(name).max(4)).collect();
    for (index, block) in blocks(first, &widths).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let _ = write!(out, "{:first$}", "");
        for column in block.clone() {
            let _ = write!(out, "  {:>1$}", cells.columns[column], widths[column]);
        }
        end_line(out);
        for (label, counts) in &lines {
            let _ = write!(out, "{label:<first$}");
            for column in block.clone() {
                let _ = write!(out, "  {:>1$}", counts[column], widths[column]);
            }
            end_line(out);
        }
    }
}

/// Counts the points at which each contender leads a figure.
fn tally(cells: &Grid, boards: &[Board], figure: Figure) -> String {
    let name = figure.label().trim();
    let rows: Vec<_> = boards.iter().filter_map(|board| board.rows.iter().find(|row| row.figure == figure)).collect();
    let mut alone = vec![0_usize; cells.columns.len()];
    let (mut shared, mut even, mut open) = (0, 0, 0);
    for row in &rows {
        match &row.outcome {
            Outcome::Leads(leaders) if leaders.len() == 1 => alone[leaders[0]] += 1,
            Outcome::Leads(_) => shared += 1,
            Outcome::Even => even += 1,
            Outcome::Open(..) => open += 1,
            Outcome::None => {}
        }
    }
    let missing = boards.len() - alone.iter().sum::<usize>() - shared - even - open;
    let mut ranked: Vec<usize> = (0..alone.len()).filter(|&column| alone[column] > 0).collect();
    ranked.sort_by_key(|&column| core::cmp::Reverse(alone[column]));
    let mut parts: Vec<String> =
        ranked.into_iter().map(|column| format!("{} wins {}", cells.columns[column], alone[column])).collect();
    let rest = [(shared, "shared"), (even, "even"), (open, "undecided"), (missing, "without a comparison")];
    parts.extend(rest.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")));
    format!("{name}, {} points: {}", boards.len(), parts.join(", "))
}

fn trouble(out: &mut String, summary: &Summary, style: Style) {
    if summary.stored() < summary.runs() {
        let text = format!("PARTIAL: {} of {} runs are there.", summary.stored(), summary.runs());
        *out += &style.alarm(wrap(&text, 2).trim_end());
        out.push('\n');
    }
    if summary.connections_lost.0 > 0 {
        let (lost, all) = summary.connections_lost;
        *out += &wrap(&format!("{lost} of {all} connections broke off or were never established."), 2);
    }
    if let Some(first) = summary.failures.first() {
        let (count, who, seed, reason) = (summary.failures.len(), &first.contender, first.seed, &first.reason);
        let text = format!("{count} runs FAILED and are not used; the first: {who}, seed {seed}: {reason}");
        *out += &style.alarm(wrap(&text, 2).trim_end());
        out.push('\n');
    }
}

/// Factors of a scenario and their levels, before it runs.
pub fn varied(scenario: &Scenario) -> Vec<(String, Vec<String>)> {
    scenario.points().map(|points| levels(&points)).unwrap_or_default()
}
