//! Effect of a flood of handshakes on the latency of an established connection, and of idle connections on the cost of
//! a packet. Runs examples of the library and of the transport.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{
    Context,
    command::{cargo, load},
    row::{Row, Target},
};

/// Rise of the p99 latency, in milliseconds.
const RISE_MS: f64 = 2.0;
/// A packet beside 10,000 idle connections, of one beside none.
const BESIDE_IDLE: f64 = 1.10;

/// A flood of 5,000 handshakes per second.
pub(crate) fn flood(context: &Context) -> Result<Vec<Row>> {
    let rounds = if context.long { "7" } else { "3" };
    let arguments = ["run", "--profile", "dist", "-p", "tiderace", "--example", "flood", "--", "--rounds", rounds];
    let ended =
        context.commands.run("flood", &mut cargo(&context.root, arguments), Duration::from_secs(3_600))?.ok()?;
    let lines: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with("round ")).collect();
    let rises: Vec<f64> = lines.iter().filter_map(|line| rise(line)).map(|us| us / 1e3).collect();
    ensure!(!rises.is_empty() && rises.len() == lines.len(), "unreadable: {}", ended.stdout);
    let row = Row::median("p99 of requests under 5,000 handshakes/s: rise", &rises, "ms", Target::AtMost(RISE_MS));
    Ok(vec![row.detail(format!("{}\n{}", lines.join("\n"), load()))])
}

/// The p99 with the flood less the p99 without, in microseconds.
fn rise(line: &str) -> Option<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let p99 = |part: &str| -> Option<f64> {
        let from = words.iter().position(|word| *word == part)?;
        let at = from + words[from..].iter().position(|word| *word == "p99_us")?;
        words.get(at + 1)?.parse().ok()
    };
    Some(p99("flood")? - p99("quiet")?)
}

/// A packet beside many idle connections.
pub(crate) fn idle_beside(context: &Context) -> Result<Vec<Row>> {
    let arguments = ["run", "--profile", "dist", "-p", "tiderace-transport", "--example", "many_connections"];
    let mut command = cargo(&context.root, arguments);
    let ended = context.commands.run("many-connections", &mut command, Duration::from_secs(3_600))?.ok()?;
    let text = ended.stdout.trim();
    let ratio = text.split("ratio ").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    let ratio: f64 = ratio.with_context(|| format!("unreadable: {text}"))?;
    let what = "cost of a packet beside 10,000 idle connections / alone";
    Ok(vec![Row::new(what, ratio, "", Target::AtMost(BESIDE_IDLE)).detail(format!("{text}; {}", load()))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rise_is_read_from_a_line() {
        let line =
            "round 1 handshake_p50_us 500 quiet p50_us 100 p99_us 400 max_us 900 flood p50_us 150 p99_us 1900 max_us 9";
        assert_eq!(rise(line), Some(1500.0));
        assert_eq!(rise("round 1 quiet p99_us 400"), None);
    }
}
