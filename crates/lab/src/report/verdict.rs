//! Sentence on the best contender, its price and the confidence, or that the runs do not decide.

use super::board::{Board, Outcome, Row, Standing};
use crate::{
    figure::{Figure, Unit},
    stats::{
        compare::{Better, Scale},
        interval::RUNS_MIN,
    },
    versus::{Digits, plain},
};

/// Largest number of seeds that is suggested to decide a comparison.
const SEEDS_MAX: usize = 1_000;

/// The sentence, without its conditions.
pub(super) fn verdict(board: &Board) -> String {
    // A figure that somebody lacks, or that has no better and worse, cannot decide.
    let mut judged = board.rows.iter().filter(|row| row.outcome != Outcome::None);
    let Some(first) = judged.next() else {
        return "nothing is compared: no figure has a value from two contenders in every run".to_owned();
    };
    match &first.outcome {
        Outcome::Leads(leaders) => format!("{}{}", lead(board, first, leaders), price(board, first, leaders[0])),
        Outcome::Even => format!("{} is even: {}{}", label(first), range(first), elsewhere(board, judged)),
        Outcome::Open(..) if board.seeds < RUNS_MIN => {
            let verb = if board.seeds == 1 { "decides" } else { "decide" };
            format!("undecided, because {} {verb} nothing: it takes at least {RUNS_MIN}", seeds(board.seeds))
        }
        Outcome::Open(best, rival, needed) => format!(
            "undecided in {}: {} ({}) has the best median, but {} do not tell it from {} ({}){}{}",
            label(first),
            board.columns[*best],
            value(first, *best),
            seeds(board.seeds),
            board.columns[*rival],
            value(first, *rival),
            needed
                .filter(|needed| *needed <= SEEDS_MAX)
                .map_or_else(String::new, |needed| { format!("; about {} would", seeds(needed.max(board.seeds + 1))) }),
            elsewhere(board, judged)
        ),
        Outcome::None => String::new(),
    }
}

fn seeds(count: usize) -> String {
    if count == 1 { "1\u{a0}seed".to_owned() } else { format!("{count}\u{a0}seeds") }
}

/// `A wins with goodput 18.8 Mbit/s (next: B, 17.9 Mbit/s; …)`.
fn lead(board: &Board, row: &Row, leaders: &[usize]) -> String {
    let best = leaders[0];
    let mut text = match leaders {
        [only] => format!("{} wins with {} {}", board.columns[*only], label(row), value(row, *only)),
        [_, others @ ..] => {
            let names: Vec<&str> = others.iter().map(|&index| board.columns[index].as_str()).collect();
            let are = if others.len() == 1 { "is" } else { "are" };
            format!(
                "{} wins with {} {}, and {} {are} within {} of it",
                board.columns[best],
                label(row),
                value(row, best),
                names.join(", "),
                margin(row.figure)
            )
        }
        [] => return String::new(),
    };
    let behind = (0..board.columns.len()).filter(|index| !leaders.contains(index));
    if let Some(next) = behind.min_by(|a, b| rank(row, *a).total_cmp(&rank(row, *b))) {
        text += &format!(" (next: {}, {}", board.columns[next], value(row, next));
        if let Standing::Ahead(interval) = row.standings[next] {
            let (unit, scale) = row.figure.unit().printed();
            let (low, high) =
                (interval.low.abs().min(interval.high.abs()), interval.low.abs().max(interval.high.abs()));
            let points = if row.figure.unit() == Unit::Share { "points" } else { unit };
            text += &format!(
                "; the difference is {} to {}{} with {:.0}\u{a0}% confidence",
                Digits(low * scale).short(),
                Digits(high * scale).short(),
                if points.is_empty() { String::new() } else { format!("\u{a0}{points}") },
                (interval.coverage * 100.0).floor()
            );
        }
        text.push(')');
        text += &presupposed(board, row, best, next);
    }
    text
}

/// The figure that another one presupposes, where the two contenders differ in it.
fn presupposed(board: &Board, row: &Row, one: usize, other: usize) -> String {
    let on = row.figure.declaration().presupposes;
    let on = on.and_then(|on| board.rows.iter().find(|row| row.figure == on)).filter(|on| on.outcome != Outcome::Even);
    on.filter(|on| on.medians[one] != on.medians[other]).map_or_else(String::new, |on| {
        format!(", while {} is {} against {}", label(on), value(on, one), value(on, other))
    })
}

/// Prints the figures in which the winner is worse than another contender.
fn price(board: &Board, first: &Row, winner: usize) -> String {
    let paid: Vec<String> = board
        .rows
        .iter()
        .filter(|row| row.figure != first.figure)
        .filter_map(|row| {
            let Outcome::Leads(leaders) = &row.outcome else { return None };
            let cheapest = leaders[0];
            if leaders.contains(&winner) {
                return None;
            }
            Some(format!(
                "{} {} ({}: {}{})",
                label(row),
                value(row, winner),
                board.columns[cheapest],
                value(row, cheapest),
                presupposed(board, row, winner, cheapest)
            ))
        })
        .collect();
    match paid.as_slice() {
        [] => "; no other headline figure is decided against it".to_owned(),
        paid => format!(", at the price of {}", list(paid)),
    }
}

/// The first further figure with a best contender.
fn elsewhere<'a>(board: &Board, mut rest: impl Iterator<Item = &'a Row>) -> String {
    let found = rest.find_map(|row| match &row.outcome {
        Outcome::Leads(leaders) => Some(lead(board, row, leaders)),
        _ => None,
    });
    found.map_or_else(|| "; no other headline figure has a winner".to_owned(), |text| format!("; {text}"))
}

/// From the least to the most median.
fn range(row: &Row) -> String {
    let values = || row.medians.iter().copied().flatten();
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    let (low, high) = (quantity(row.figure, low), quantity(row.figure, high));
    if low == high {
        format!("all have {low}")
    } else {
        format!("all lie within {}, from {low} to {high}", margin(row.figure))
    }
}

/// The difference that does not matter, in words.
fn margin(figure: Figure) -> String {
    let declaration = figure.declaration();
    let tolerance = declaration.tolerance;
    let relative = format!("{}\u{a0}%", plain(tolerance.relative * 100.0));
    let (unit, scale) = figure.unit().printed();
    let unit = if figure.unit() == Unit::Share { "points" } else { unit };
    let absolute = plain(tolerance.absolute * scale);
    let absolute = if unit.is_empty() { absolute } else { format!("{absolute}\u{a0}{unit}") };
    match declaration.scale {
        Scale::Ratio => relative,
        Scale::Difference => absolute,
        Scale::Both => format!("{relative} or {absolute}"),
    }
}

/// Smaller is better.
fn rank(row: &Row, index: usize) -> f64 {
    let value = row.medians[index].unwrap_or(f64::INFINITY);
    if row.figure.better() == Some(Better::Higher) { -value } else { value }
}

fn label(row: &Row) -> String {
    row.figure.label().trim().replace(' ', "\u{a0}")
}

fn value(row: &Row, index: usize) -> String {
    row.medians[index].map_or_else(|| "–".to_owned(), |value| quantity(row.figure, value))
}

/// A value with its unit, in three digits.
pub(super) fn quantity(figure: Figure, value: f64) -> String {
    let (unit, scale) = figure.unit().printed();
    let number = Digits(value * scale).short();
    if unit.is_empty() || value.is_infinite() { number } else { format!("{number}\u{a0}{unit}") }
}

/// `a, b and c`.
fn list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::report::board::Runs;

    /// Contenders with goodput (Mbit/s) and RTT p95 (ms), the same in six seeds but for a little.
    fn said(contenders: &[(&str, f64, f64)], seeds: u32) -> String {
        let figures = [Figure::Goodput, Figure::RttP95];
        let runs: Vec<Runs> = contenders
            .iter()
            .map(|(_, goodput, rtt)| {
                let run = |seed: u32| {
                    let noise = 1.0 + 0.001 * f64::from(seed);
                    Some(BTreeMap::from([(figures[0], goodput * 1e6 * noise), (figures[1], rtt * 1e-3 * noise)]))
                };
                (0..seeds).map(run).collect()
            })
            .collect();
        let names = contenders.iter().map(|contender| contender.0.to_owned()).collect();
        verdict(&Board::new(names, &runs, &figures)).replace('\u{a0}', " ")
    }

    #[test]
    fn who_wins_and_what_it_costs() {
        assert_eq!(
            said(&[("a", 10.0, 50.0), ("b", 12.0, 60.0), ("c", 11.0, 55.0)], 6),
            "b wins with goodput 12.0 Mbit/s (next: c, 11.0 Mbit/s; the difference is 1.00 to 1.00 Mbit/s with 96 % \
             confidence), at the price of RTT p95 60.1 ms (a: 50.1 ms)"
        );
        let shared = said(&[("a", 10.0, 50.0), ("b", 12.0, 40.0), ("c", 12.1, 40.0)], 6);
        assert!(
            shared.starts_with("c wins with goodput 12.1 Mbit/s, and b is within 3 % of it (next: a, 10.0"),
            "{shared}"
        );
        assert!(shared.ends_with("; no other headline figure is decided against it"), "{shared}");
    }

    #[test]
    fn a_figure_names_the_one_that_it_presupposes() {
        let figures = [Figure::RequestP99, Figure::RequestRate];
        let run = |p99: f64, rate: f64| Some(BTreeMap::from([(figures[0], p99), (figures[1], rate)]));
        let runs: [Runs; 2] = [vec![run(0.1, 5.0); 6], vec![run(0.2, 9.0); 6]];
        let told = verdict(&Board::new(vec!["a".into(), "b".into()], &runs, &figures)).replace('\u{a0}', " ");
        assert!(told.contains("confidence), while requests is 5.00 1/s against 9.00 1/s, at the price of"), "{told}");
    }

    #[test]
    fn what_is_not_decided_is_said_so() {
        let even = said(&[("a", 10.0, 50.0), ("b", 10.1, 60.0)], 6);
        assert!(even.starts_with("goodput is even: all lie within 3 %, from 10.0 Mbit/s to 10.1 Mbit/s"), "{even}");
        assert!(even.contains("; a wins with RTT p95 50.1 ms (next: b, 60.1 ms"), "{even}");
        let few = said(&[("a", 10.0, 50.0), ("b", 12.0, 60.0)], 2);
        assert_eq!(few, "undecided, because 2 seeds decide nothing: it takes at least 6");
        let one = said(&[("a", 10.0, 50.0), ("b", 12.0, 60.0)], 1);
        assert_eq!(one, "undecided, because 1 seed decides nothing: it takes at least 6");
        assert!(said(&[("a", 10.0, 50.0)], 6).starts_with("nothing is compared"));
        let short = |value| Digits(value).short();
        assert_eq!((short(0.0), short(0.98765), short(12_345.0)), ("0".into(), "0.988".into(), "12345".into()));
    }
}
