//! Comparisons and gates of real runs, and of records that a test alters: crates/lab/tests/gate.rs says what it found.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::super::{
    Context,
    command::cargo,
    row::{Row, Target},
    tests::binary,
};

const LIMIT: Duration = Duration::from_secs(3_600);

/// Twelve regressions, each of another figure: how many make the gate fail because of that figure.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut command = cargo(
        &context.root,
        ["test", "--locked", "-p", "tiderace-lab", "--test", "gate", "--no-fail-fast", "--", "--nocapture"],
    );
    let ended = context.commands.run("truth-gate", &mut command, LIMIT)?;
    let found = regressions(&ended.stdout);
    ensure!(!found.is_empty(), "no regression was tried: {}", ended.reason());
    let count = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let caught = found.iter().filter(|regression| regression.caught).count();
    let mut figures: Vec<&str> = found.iter().map(|regression| regression.figure).collect();
    figures.sort_unstable();
    figures.dedup();
    let told: Vec<String> = found
        .iter()
        .map(|regression| {
            let mark = if regression.caught { "" } else { "NOT " };
            format!("{mark}caught: {}, {}: {}", regression.kind, regression.figure, regression.size)
        })
        .collect();
    Ok(vec![
        Row::new("regressions that the gate catches", count(caught), "", Target::AtLeast(12.0)).detail(told.join("\n")),
        Row::new("regressions that it lets pass", count(found.len() - caught), "", Target::Exactly(0.0)),
        Row::new("figures among them", count(figures.len()), "", Target::AtLeast(12.0)),
    ])
}

struct Regression<'a> {
    kind: &'a str,
    figure: &'a str,
    caught: bool,
    size: &'a str,
}

/// Lines `regression: KIND | FIGURE | caught 1 | SIZE`; the test harness may have begun the line.
fn regressions(stdout: &str) -> Vec<Regression<'_>> {
    let parse = |line| -> Option<Regression<'_>> {
        let (_, rest): (&str, &str) = str::split_once(line, "regression: ")?;
        let mut parts = rest.split(" | ");
        let (kind, figure, caught, size) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        Some(Regression { kind, figure, caught: caught == "caught 1", size })
    };
    stdout.lines().filter_map(parse).collect()
}

/// Zeros, what never came and what is unknown in comparisons, one interval in every output, and what gates say.
pub(crate) fn comparisons(context: &Context) -> Result<Vec<Row>> {
    let tests = |name, arguments: &[&str]| binary(context, name, arguments, LIMIT);
    Ok(vec![
        tests("truth-comparisons", &["-p", "tiderace-lab", "--test", "gate"]),
        tests("truth-statistics", &["-p", "tiderace-lab", "--lib"]),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_regressions() {
        let text = "running 1 test\ntest a ... regression: repair off | residual_loss | caught 1 | +3 points\n\
                    regression: b | jain | caught 0 | x 1\nnothing\n";
        let found = regressions(text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].kind, found[0].figure, found[0].caught), ("repair off", "residual_loss", true));
        assert!(!found[1].caught && found[1].size == "x 1");
        assert!(text.lines().count() == 4);
    }
}
