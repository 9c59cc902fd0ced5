//! Paths: moves of clients over simulated networks, datagram sizes, versions, header bits and keys.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{
    Context,
    command::cargo,
    row::{Row, Target},
    tests::binary,
};

/// Groups of tests for the transport.
const TESTS: [(&str, &[&str]); 4] = [
    ("paths-addresses", &["-p", "tiderace-transport", "--test", "protocol", "paths::"]),
    ("paths-mtu", &["-p", "tiderace-transport", "--test", "protocol", "mtu::"]),
    ("paths-versions", &["-p", "tiderace-transport", "--test", "protocol", "versions::"]),
    ("paths-bits", &["-p", "tiderace-transport", "--test", "protocol", "header_bits::"]),
];

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let limit = Duration::from_secs(3_600);
    let mut rows = moves(context)?;
    rows.extend(TESTS.iter().map(|(name, arguments)| binary(context, name, arguments, limit)));
    Ok(rows)
}

/// Rebindings of NATs and migrations in the middle of transfers: 1,000 seeded runs in full, 40 as a slice.
fn moves(context: &Context) -> Result<Vec<Row>> {
    let mut arguments = vec!["test", "-p", "tiderace-transport", "--test", "protocol"];
    arguments.extend(if context.long {
        &["a_thousand_moves", "--", "--nocapture", "--ignored"][..]
    } else {
        &["transfers_survive_moves", "--", "--nocapture"][..]
    });
    let mut command = cargo(&context.root, arguments);
    let ended = context.commands.run("moves", &mut command, Duration::from_secs(3_600))?;
    let line = |start: &str| ended.stdout.lines().find(|line| line.starts_with(start));
    let all = line("all: ").with_context(|| format!("the runs printed no summary: {}", ended.reason()))?;
    let number = |after: &str| -> Result<f64> {
        let text = all.split(after).nth(1).with_context(|| format!("no `{after}` in `{all}`"))?;
        Ok(text.trim_start().split([',', ' ']).next().unwrap_or_default().parse()?)
    };
    let kinds: Vec<&str> = ended.stdout.lines().filter(|line| line.contains(" runs, finished")).collect();
    let detail = format!(
        "random paths of 2 to 40 Mbit/s, 10 to 200 ms, up to 2 % loss; the client sends a PING every 50 ms where it only \
         receives; the bound takes the slower path's round trip and the sender's timeout before the move\n{}",
        kinds.join("\n")
    );
    Ok(vec![
        Row::new("transfers finished over moves of clients", number("finished ")?, "", Target::AtLeast(0.999))
            .detail(detail),
        Row::new("stall over 2 RTT + PTO, median", number("median ")?, "", Target::AtMost(1.0)),
    ])
}
