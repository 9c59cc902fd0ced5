//! Early data: what it gains, that copies of it are refused, and that nothing is lost with it. Runs the tests of the transport
//! that simulate it and reads what they have measured.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    Context,
    command::{Tests, cargo},
    row::{Row, Target},
};

/// Bad networks for each verdict, in a slice and in the whole.
const SLICE: u64 = 60;
const WHOLE: u64 = 1_000;

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let seeds = if context.long { WHOLE } else { SLICE };
    let mut command =
        cargo(&context.root, ["test", "--locked", "-p", "tiderace-transport", "--test", "protocol", "early_data::"]);
    command.args(["--no-fail-fast", "--", "--nocapture", "--test-threads", "1"]);
    command.env("EARLY_DATA_SEEDS", seeds.to_string());
    let ended = context.commands.run("early-data", &mut command, Duration::from_secs(3_600))?;
    let tests = Tests::read(&ended.stdout);
    let measured = read(&ended.stdout);
    let get =
        |what: &str| measured.get(what).copied().with_context(|| format!("no value for `{what}`: {}", ended.reason()));
    let row = |what: &str, unit: &str, target: Target| -> Result<Row> { Ok(Row::new(what, get(what)?, unit, target)) };
    Ok(vec![
        row("ms to the first byte, full handshake", "ms", Target::Exactly(200.0))?
            .detail("of an answer to a request of 1,000 bytes, over a simulated path of 100 ms: two round trips"),
        row("ms to the first byte, 0-RTT", "ms", Target::Exactly(100.0))?
            .detail("the same with a ticket: one round trip"),
        row("replays accepted", "", Target::Exactly(0.0))?.detail(format!(
            "of {} copies of a first flight that was accepted, within 100 s, by two servers that share ring and register",
            get("replays tried")?
        )),
        Row::new("failures of the tests of early data", f64::from(tests.failed), "", Target::Exactly(0.0)).detail(
            format!(
                "{} passed; {} + {} seeds of networks that lose and reorder 10 %, early data accepted and refused, {} MB \
                 compared, {} 0-RTT packets; {} reasons to refuse; {} old or strange tokens: the handshake went on",
                tests.passed,
                get("bad networks with early data accepted")?,
                get("bad networks with early data refused")?,
                get("bytes compared on bad networks")? / 1e6,
                get("0-RTT packets sent on bad networks")?,
                get("reasons to refuse early data")?,
                get("old or strange tokens after which the handshake went on")?,
            ),
        ),
    ])
}

/// Lines of the form `measured WHAT: VALUE`. A test's name may stand before it.
pub(crate) fn read(stdout: &str) -> BTreeMap<&str, f64> {
    let values = stdout.lines().filter_map(|line| {
        let (what, value) = line.split_once("measured ")?.1.rsplit_once(": ")?;
        Some((what, value.trim().parse().ok()?))
    });
    values.collect()
}
