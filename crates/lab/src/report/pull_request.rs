//! Result of a gate as Markdown, for the comment or the summary of a pull request.

use core::fmt::Write as _;

use crate::{
    compare::Change,
    figure::Figure,
    gate::Gate,
    noise::{Noise, NoiseOf},
    stats::{compare::Verdict, interval::RUNS_MIN},
    summary::Summary,
    versus::{Digits, effect, words},
};

/// Rows of the table; the rest is counted.
const ROWS_MAX: usize = 60;

/// Markdown of a gate: verdict, reasons, a table with intervals, and the noise beside which it is to be read.
pub fn pull_request(gate: &Gate, after: &Summary, baseline: Option<&Summary>, noise: Option<&Noise>) -> String {
    let scenario = &after.manifest.scenario;
    let mark = if gate.passed { "✅ passes" } else { "❌ fails" };
    let mut out = format!("### `{}`: {mark}\n\n{}\n", plain(&scenario.name), plain(&scenario.title));
    let seeds = after.seeds.len();
    let _ = write!(out, "\n{} contenders, {} points, {seeds} seeds", after.contenders.len(), after.points.len());
    if baseline.is_some() {
        let identical = gate.changes.iter().filter(|change| change.identical).count();
        let _ = write!(out, "; {} figures compared, {identical} of them identical in every run", gate.changes.len());
    }
    out.push_str(".\n");
    if !gate.failing.is_empty() {
        out.push_str("\n**It fails because**\n\n");
        for failing in &gate.failing {
            let _ = writeln!(out, "- {}", plain(&failing.reason));
        }
    }
    if baseline.is_some() {
        out += &table(gate, noise);
        out += &trust(gate, noise);
    }
    out
}

/// Text that Markdown leaves alone, on one line.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' | '\r' => out.push(' '),
            '<' => out.push_str("&lt;"),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' => out.extend(['\\', char]),
            char => out.push(char),
        }
    }
    out
}

/// Failing figures first, then what has changed, then what is undecided or equivalent.
fn table(gate: &Gate, noise: Option<&Noise>) -> String {
    let fails = |change: &Change| {
        let same = |failing: &&crate::gate::Failing| {
            failing.contender.as_deref() == Some(&*change.contender) && failing.figure == Some(change.figure)
        };
        gate.failing.iter().any(|failing| same(&failing))
    };
    let mut rows: Vec<(u8, &Change)> = gate
        .changes
        .iter()
        .filter(|change| !change.identical)
        .map(|change| {
            let place = match change.result.verdict {
                _ if fails(change) => 0,
                Verdict::Worse | Verdict::Different => 1,
                Verdict::Better => 2,
                Verdict::Undecided => 3,
                Verdict::Equivalent => 4,
            };
            (place, change)
        })
        .collect();
    rows.sort_by_key(|(place, _)| *place);
    if rows.is_empty() {
        return "\nNothing has changed: every run is identical in every figure.\n".to_owned();
    }
    let mut out = String::from(
        "\n| | contender | figure | before | after | change, 95 % interval | verdict | noise (A/A) |\n|---|---|---|---|---|---|---|---|\n",
    );
    for (place, change) in rows.iter().take(ROWS_MAX) {
        let Some(figure) = change.figure() else { continue };
        let (unit, scale) = figure.unit().printed();
        let value = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| Digits(value * scale).short());
        let sign = ["❌", "⚠️", "🟢", "", ""][usize::from(*place)];
        let aa = noise.and_then(|noise| noise.find(&change.contender, change.figure));
        let aa = aa.map_or_else(|| "–".to_owned(), |result| effect(figure, result));
        let cells = [
            plain(&change.contender),
            plain(figure.label().trim()),
            format!("{} {unit}", value(change.before)),
            format!("{} {unit}", value(change.after)),
            effect(figure, &change.result),
            words(&change.result, change.presupposes),
            aa,
        ];
        let _ = writeln!(out, "| {sign} | {} |", cells.map(|cell| cell.trim().to_owned()).join(" | "));
    }
    if rows.len() > ROWS_MAX {
        let _ = writeln!(out, "\n{} further rows are left out.", rows.len() - ROWS_MAX);
    }
    out
}

/// Confidence of the gate.
fn trust(gate: &Gate, noise: Option<&Noise>) -> String {
    let mut out = String::new();
    if let Some(needed) = gate.seeds_needed {
        let pairs = gate.changes.iter().map(|change| change.result.pairs).min().unwrap_or(0);
        let told = if pairs < RUNS_MIN {
            format!("Too few seeds to find what is worse: take {needed}, {RUNS_MIN} at least.")
        } else {
            format!("Chance alone may fail this gate: with {needed} seeds at most one in twenty.")
        };
        let _ = write!(out, "\n{told}\n");
    }
    let lost: Vec<String> = gate
        .lost
        .iter()
        .map(|lost| {
            let label = Figure::from_key(lost.figure).map_or(lost.figure, |figure| figure.label().trim());
            format!("{}: {label}", plain(&lost.contender))
        })
        .collect();
    if !lost.is_empty() {
        let _ = write!(out, "\nWithout a value in runs that had one: {}.\n", lost.join("; "));
    }
    let Some(noise) = noise else { return out };
    let of = match noise.of {
        NoiseOf::Again => "the baseline against another run of itself",
        NoiseOf::Halves => "the baseline's odd seeds against its even ones",
    };
    let (covered, all) = noise.covered();
    let _ = match &noise.reason {
        Some(reason) => write!(out, "\nNoise (A/A) was not measured: {}.\n", plain(reason)),
        None => {
            write!(out, "\nNoise (A/A): {of}; {covered} of {all} intervals cover no difference (95 % are expected).\n")
        }
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_table() {
        assert_eq!(plain("a|b`c`\n[x](y) <i>"), "a\\|b\\`c\\` \\[x\\](y) &lt;i>");
    }
}
