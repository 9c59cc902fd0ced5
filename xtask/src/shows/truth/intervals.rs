//! Coverage of the intervals that reports print, for laws that runs have.

use anyhow::Result;
use lab::stats::{
    compare::{Better, Pair, Rule, Scale, Tolerance, compare, compare_unpaired},
    coverage::{Law, coverage},
    interval::{CONFIDENCE, RUNS_MIN, median_interval},
};

use super::super::{
    Context,
    row::{Row, Target},
};

const RULE: Rule =
    Rule { better: Some(Better::Lower), scale: Scale::Both, tolerance: Tolerance { relative: 0.0, absolute: 0.0 } };

/// Share of intervals that cover, over so many runs of a law; `None` when they are too few.
type Promise<'a> = &'a dyn Fn(Law, usize) -> Option<f64>;

/// A row for each kind of interval and number of runs: the law that is covered least; and that five runs have none.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let rounds = if context.long { 200_000 } else { 20_000 };
    let kinds: [(&str, Promise<'_>); 3] = [
        ("median of runs", &|law, runs| {
            coverage(law, runs, rounds, 18, |values| {
                median_interval(values, CONFIDENCE).map(|interval| interval.covers(law.median()))
            })
        }),
        ("paired difference", &|law, runs| {
            coverage(law, runs, rounds, 19, |values| {
                let pairs: Vec<Pair> = values.iter().map(|value| (Some(*value), Some(0.0))).collect();
                let found = compare(&pairs, &RULE)?.difference;
                found.low.is_finite().then(|| found.covers(law.median()))
            })
        }),
        ("unpaired shift", &|law, runs| {
            // The first half of each draw against the second.
            coverage(law, 2 * runs, rounds / 10, 20, |values| {
                let (own, other) = values.split_at(runs);
                let found = compare_unpaired(own, other, &RULE)?.difference;
                found.low.is_finite().then(|| found.covers(0.0))
            })
        }),
    ];
    let mut rows = Vec::new();
    for (kind, promise) in kinds {
        for runs in [RUNS_MIN, 10, 20] {
            let shares: Vec<(Option<f64>, &str)> =
                Law::ALL.into_iter().map(|(law, name)| (promise(law, runs), name)).collect();
            let told = |(share, name): &(Option<f64>, &str)| match share {
                Some(share) => format!("{name} {:.1} %", 100.0 * share),
                None => format!("{name}: too few"),
            };
            let detail = shares.iter().map(told).collect::<Vec<_>>().join(", ");
            let least = shares.iter().filter_map(|(share, _)| *share).fold(f64::INFINITY, f64::min);
            let what = format!("least coverage of the {kind}, {runs} runs");
            rows.push(Row::new(what, 100.0 * least, "%", Target::Between(93.0, 100.0)).detail(detail));
        }
        let few = Law::ALL.into_iter().filter(|(law, _)| promise(*law, RUNS_MIN - 1).is_none()).count();
        let what = format!("laws of which five runs give no {kind} interval");
        rows.push(Row::new(what, f64::from(u8::try_from(few)?), "", Target::Exactly(5.0)));
    }
    Ok(rows)
}
