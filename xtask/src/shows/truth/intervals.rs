//! Coverage of the intervals that reports print, for laws that runs have.

use anyhow::Result;
use lab::stats::{
    coverage::{Law, coverage},
    interval::median_interval,
};

use super::super::{
    Context,
    row::{Row, Target},
};

/// A row for each law and number of runs.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let rounds = if context.long { 200_000 } else { 20_000 };
    let mut rows = Vec::new();
    for (law, name) in Law::ALL {
        for runs in [6, 10, 20] {
            let median = law.median();
            let share = coverage(law, runs, rounds, 18, |values| {
                median_interval(values, 0.95).map(|interval| (interval.low..=interval.high).contains(&median))
            });
            let what = format!("coverage of the median: {name}, {runs} runs");
            rows.push(match share {
                Some(share) => Row::new(what, 100.0 * share, "%", Target::AtLeast(93.0)),
                None => Row::unmeasured(&what, &anyhow::anyhow!("no interval")),
            });
        }
    }
    Ok(rows)
}
