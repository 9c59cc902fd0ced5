//! Tests that cargo runs: those of the whole workspace, and single binaries for other cases.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{
    Context,
    command::{Tests, cargo},
    row::{Row, Target},
};

/// `cargo test --workspace`.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    Ok(vec![run(
        context,
        "tests",
        "failures of `cargo test --workspace`",
        &["--workspace"],
        Duration::from_secs(7_200),
    )?])
}

/// The tests that `arguments` choose. Tests that cannot be run are a miss of their own and take nothing else with them.
pub(crate) fn binary(context: &Context, name: &str, arguments: &[&str], limit: Duration) -> Row {
    let what = format!("failures of tests: {}", arguments.join(" "));
    run(context, name, &what, arguments, limit).unwrap_or_else(|error| Row::unmeasured(&what, &error))
}

fn run(context: &Context, name: &str, what: &str, arguments: &[&str], limit: Duration) -> Result<Row> {
    let mut command = cargo(&context.root, ["test", "--no-fail-fast"]);
    let ended = context.commands.run(name, command.args(arguments), limit)?;
    let tests = Tests::read(&ended.stdout);
    // Nothing ran: it did not compile, or the filter names nothing.
    ensure!(tests.passed + tests.failed > 0, "no test ran: {}", ended.reason());
    let names: Vec<&str> =
        ended.stdout.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED")).collect();
    let mut row = Row::new(what, f64::from(tests.failed), "", Target::Exactly(0.0)).detail(format!(
        "{} passed, {} ignored in {} test binaries, {:.0} s{}{}",
        tests.passed,
        tests.ignored,
        tests.binaries,
        ended.seconds,
        if names.is_empty() { "" } else { "; failed: " },
        names.join(", ")
    ));
    if !ended.succeeded() {
        row.passed = false;
        row.detail = format!("{}; {}", row.detail, ended.reason());
    }
    Ok(row)
}
