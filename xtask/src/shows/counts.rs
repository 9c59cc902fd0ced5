//! Allocations and system calls of a server per request and handshake: the example `counts` of the library prints them. They do not
//! depend on the load of the machine.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::{
    Context,
    command::cargo,
    row::{Row, Target},
};

/// Allocations of a full handshake at the server, TLS and one request included.
const FULL_HANDSHAKE: f64 = 160.0;

/// A line of the example.
#[derive(Debug, Deserialize)]
struct Line {
    work: String,
    allocations: f64,
    send_calls: f64,
    receive_calls: f64,
}

/// Allocations per unit of each kind of work.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut command =
        cargo(&context.root, ["run", "--locked", "--profile", "dist", "-p", "tiderace", "--example", "counts"]);
    let ended = context.commands.run("counts", &mut command, Duration::from_secs(3_600))?.ok()?;
    rows(&ended.stdout)
}

fn rows(text: &str) -> Result<Vec<Row>> {
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Line>, _>>();
    let lines = lines.with_context(|| format!("unreadable: {text}"))?;
    ensure!(!lines.is_empty(), "the example printed nothing");
    Ok(lines.iter().map(row).collect())
}

fn row(line: &Line) -> Row {
    let (what, target) = match line.work.as_str() {
        "task" => ("allocations per request, server: a task for each", Target::Printed),
        "one-task" => ("allocations per request, server: one task for all", Target::Printed),
        "service" => ("allocations per request, server: service", Target::Printed),
        "full" => ("allocations per full handshake, server", Target::AtMost(FULL_HANDSHAKE)),
        "resumed" => ("allocations per resumed handshake, server", Target::Printed),
        other => (other, Target::Printed),
    };
    let detail = format!("{:.3} sends and {:.3} receives each", line.send_calls, line.receive_calls);
    Row::new(what, line.allocations, "", target).detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_row() {
        let line = |work: &str, allocations: f64| {
            format!("{{\"work\":\"{work}\",\"allocations\":{allocations},\"send_calls\":2.5,\"receive_calls\":1}}\n")
        };
        let rows = rows(&(line("service", 1.25) + &line("full", 161.0))).unwrap();
        assert_eq!((rows[0].value, rows[0].passed, rows[1].passed), (Some(1.25), true, false));
        assert_eq!(rows[1].detail, "2.500 sends and 1.000 receives each");
        assert!(super::rows("").is_err() && super::rows("nonsense").is_err());
    }
}
