//! Cost of a byte at a server with one and with two shards, and calls to the kernel for locks: what shards share would show in both.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::{
    Context,
    command::load,
    perf::{listening, program},
    row::{Row, Target},
};
use crate::processor;

/// Processor time per byte with two shards, of that with one.
const TWO_TO_ONE: f64 = 1.05;
/// Downloads side by side, each from a process of its own.
const CLIENTS: usize = 4;
const BYTES: &str = "512M";
const LIMIT: Duration = Duration::from_secs(120);
/// Rounds that may be repeated because all clients came to one shard.
const TRIES: u32 = 10;

/// The ratio over interleaved rounds.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let program = program(context)?;
    let rounds = if context.long { 11 } else { 7 };
    let (mut ratios, mut seconds) = (Vec::new(), [Vec::new(), Vec::new()]);
    for round in 0..rounds {
        // The order changes, so that a machine that gets slower favours none.
        let order = if round % 2 == 0 { [1, 2] } else { [2, 1] };
        let mut cost = [0.0; 2];
        for shards in order {
            cost[shards - 1] = run(context, &program, shards)?;
            seconds[shards - 1].push(cost[shards - 1]);
        }
        ratios.push(cost[1] / cost[0]);
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let calls = futex_calls(context, &program)
        .unwrap_or_else(|error| Row::absent("futex calls of a server with two shards", &error));
    let cost = Row::median("CPU per byte at a server: two shards / one", &ratios, "", Target::AtMost(TWO_TO_ONE)).detail(
        format!(
            "{CLIENTS} downloads of {BYTES} side by side, each by a process of its own; {:.2} and {:.2} s on the mean; two shards and the \
             clients share the processors; {}",
            mean(&seconds[0]),
            mean(&seconds[1]),
            load()
        ),
    );
    Ok(vec![cost, calls])
}

/// Threads that wait for a lock of others, or wake them, call `futex`: calls of a server with two shards from its start to its end.
fn futex_calls(context: &Context, program: &Path) -> Result<Row> {
    let calls = context.commands.scratch("shards")?.join("futex.txt");
    let mut traced = Command::new("strace");
    // Traced from aside: the process that is started is the server.
    traced.args(["-D", "-f", "--seccomp-bpf", "-qq", "-e", "trace=futex", "-o"]).arg(&calls).arg(program);
    download(context, traced, program, 2)?;
    let text = fs::read_to_string(&calls).with_context(|| format!("cannot read {}", calls.display()))?;
    // A call that is interrupted by another line is noted twice.
    let count = text.lines().filter(|line| line.contains("futex(")).count();
    let row =
        Row::new("futex calls of a server with two shards", f64::from(u32::try_from(count)?), "", Target::Printed);
    Ok(row.detail(format!("{CLIENTS} downloads of {BYTES}; start and end of the threads included (strace)")))
}

/// Processor time of a server that serves all clients, in seconds. Clients come to shards by the kernel's hash of their addresses: a run
/// in which a shard has none is repeated.
fn run(context: &Context, program: &Path, shards: usize) -> Result<f64> {
    for _ in 0..TRIES {
        if let (spent, true) = download(context, Command::new(program), program, shards)? {
            return Ok(spent);
        }
    }
    bail!("in {TRIES} runs all clients came to one shard")
}

/// Processor time of a server of this command, in seconds, and whether each shard has served a client.
fn download(context: &Context, mut server: Command, client: &Path, shards: usize) -> Result<(f64, bool)> {
    server.args(["perf", "server", "--listen", "127.0.0.1:0", "--json", "--shards"]).arg(shards.to_string());
    let mut server = context.commands.start("shards-server", &mut server)?;
    let to = listening(&mut server)?;
    let before = processor::seconds(server.id())?;
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let arguments = ["perf", "client", &to, "--insecure", "--bytes", BYTES, "--json"];
            context.commands.start(&format!("shards-client-{number}"), Command::new(client).args(arguments))
        })
        .collect::<Result<_>>()?;
    let begun = std::time::Instant::now();
    while clients.iter_mut().any(super::command::Running::alive) {
        ensure!(begun.elapsed() < LIMIT, "the downloads take longer than {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let spent = processor::seconds(server.id())? - before;
    for client in &clients {
        let printed = client.printed();
        let report = printed.lines().find(|line| line.starts_with('{')).context("a client says nothing")?;
        let report: Value = serde_json::from_str(report).context("the client's report")?;
        ensure!(report["partial"] != true, "a download is not complete: {report}");
    }
    ensure!(Command::new("kill").args(["-INT", &server.id().to_string()]).status()?.success());
    let begun = std::time::Instant::now();
    while server.alive() {
        ensure!(begun.elapsed() < LIMIT, "the server does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let all_serve = connections(&server.printed(), shards)?.iter().all(|&connections| connections > 0);
    Ok((spent, all_serve))
}

/// Connections of each shard, as the server prints them at its end; one shard prints nothing.
fn connections(printed: &str, shards: usize) -> Result<Vec<u64>> {
    if shards == 1 {
        return Ok(vec![1]);
    }
    let lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let counts: Vec<u64> =
        lines.filter(|line| line["event"] == "shard").filter_map(|line| line["connections"].as_u64()).collect();
    ensure!(counts.len() == shards, "{} of {shards} shards in: {printed}", counts.len());
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_read_from_the_last_lines() {
        let printed = "{\"address\":\"127.0.0.1:1\"}\n{\"event\":\"shard\",\"shard\":0,\"connections\":3,\"forwarded\":0}\n\
                       {\"event\":\"shard\",\"shard\":1,\"connections\":1,\"forwarded\":0}\n";
        assert_eq!(connections(printed, 2).unwrap(), [3, 1]);
        assert!(connections(printed, 3).is_err());
        assert_eq!(connections("", 1).unwrap(), [1]);
    }
}
