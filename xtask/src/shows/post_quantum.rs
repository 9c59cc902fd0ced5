//! The hybrid key exchange beside X25519 alone, over the paths of the lab in virtual time. Runs the test of the transport that
//! simulates it and reads what it has measured.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{
    Context,
    command::cargo,
    early_data::read,
    row::{Row, Target},
};

/// Pairs of runs on each path, in a slice and in the whole. With 300 pairs the interval of the goodput on `mobile` is wider than
/// the target.
const SLICE: u64 = 2_000;
const WHOLE: u64 = 10_000;

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let seeds = if context.long { WHOLE } else { SLICE };
    let mut command =
        cargo(&context.root, ["test", "--locked", "-p", "tiderace-transport", "--test", "protocol", "post_quantum::"]);
    command.args(["--no-fail-fast", "--", "--nocapture", "--test-threads", "1"]);
    command.env("POST_QUANTUM_SEEDS", seeds.to_string());
    let ended = context.commands.run("post-quantum", &mut command, Duration::from_secs(3_600))?;
    let measured = read(&ended.stdout);
    let get =
        |what: &str| measured.get(what).copied().with_context(|| format!("no value for `{what}`: {}", ended.reason()));
    let more = "round trips of 100 ms more with the hybrid";
    let mut rows = vec![
        Row::new("round trips more in a handshake with X25519MLKEM768", get(more)?, "", Target::Exactly(0.0))
            .detail("than with X25519, on a path without loss"),
    ];
    for path in ["mobile", "production"] {
        let get = |what: &str| get(&format!("{path} {what}"));
        let ratio = |what: &str| -> Result<(f64, [f64; 2])> {
            Ok((get(what)?, [get(&format!("{what}, low"))?, get(&format!("{what}, high"))?]))
        };
        let (value, interval) = ratio("p95 handshake ratio")?;
        let handshake = Row::new(format!("{path}: p95 of the handshake over X25519"), value, "", Target::AtMost(1.1));
        let detail = format!(
            "{:.1} ms against {:.1} ms; {} pairs of runs, one connection each, bootstrap over pairs",
            get("p95 handshake ms, hybrid")?,
            get("p95 handshake ms, X25519")?,
            get("pairs of runs")?
        );
        rows.push(Row { interval: Some(interval), ..handshake.detail(detail) });
        let (value, interval) = ratio("goodput ratio")?;
        let goodput = Row::new(format!("{path}: goodput over X25519"), value, "", Target::Between(0.95, 1.05));
        rows.push(Row {
            interval: Some(interval),
            ..goodput.detail("of 400 kB after the handshake, the median of the same runs")
        });
        let too_large = get("datagrams above the path MTU")?;
        rows.push(
            Row::new(format!("{path}: datagrams above the path MTU"), too_large, "", Target::Exactly(0.0))
                .detail("the links drop what is larger than 1,200 bytes of UDP payload"),
        );
    }
    Ok(rows)
}
