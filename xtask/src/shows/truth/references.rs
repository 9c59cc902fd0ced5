//! Independent references beside the project, on the cells of today and, with `--long`, of a month.

use std::time::Duration;

use anyhow::Result;

use super::super::{
    Context,
    command::cargo,
    row::{Row, Target},
};

/// As in crates/reference/src/day.rs.
const VARIABLE: &str = "TIDERACE_REFERENCE_DAY";
/// Days of the long measure, from 1 January 2026 on.
const DAYS: core::ops::Range<u64> = 20_454..20_484;
const LIMIT: Duration = Duration::from_secs(3_600);

/// Runs the tests of the crate, once or for each day.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let run = |name: &str, day: Option<u64>, all: bool| -> Result<Option<String>> {
        let mut command = cargo(&context.root, ["test", "--locked", "-p", "tiderace-reference", "--", "--nocapture"]);
        if all {
            command.arg("--include-ignored");
        }
        if let Some(day) = day {
            command.env(VARIABLE, day.to_string());
        }
        let ended = context.commands.run(name, &mut command, LIMIT)?;
        let said = ended.stdout.lines().find(|line| line.contains(VARIABLE)).unwrap_or_default().to_owned();
        Ok((ended.code == Some(0)).then_some(said))
    };
    let today = run("references", None, context.long)?;
    let what = if context.long { "comparisons of today and all cells of controllers" } else { "comparisons of today" };
    let mut rows = vec![
        Row::new(what, f64::from(u8::from(today.is_none())), "failures", Target::Exactly(0.0))
            .detail(today.unwrap_or_default()),
    ];
    if context.long {
        let mut failed = Vec::new();
        for day in DAYS {
            if run(&format!("references-{day}"), Some(day), false)?.is_none() {
                failed.push(day.to_string());
            }
        }
        let count = f64::from(u32::try_from(failed.len()).unwrap_or(u32::MAX));
        rows.push(
            Row::new("days of January 2026 that fail", count, "of 30", Target::Exactly(0.0)).detail(failed.join(", ")),
        );
    }
    Ok(rows)
}
