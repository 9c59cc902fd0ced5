//! Promises of BBR: the draft's example cases, the answer to random loss, the queue, two flows on one path.

use anyhow::{Result, anyhow};
use lab::{
    reference::bbr::{BUFFERS, CELLS, CLIFFS, Effort, cliff, fairness, loss, many, queue},
    reference::shares,
    suite,
};

use units::{Bitrate, Duration};

use super::{
    Context,
    row::{Row, Target},
};
use crate::instructions;

/// Building other stacks takes its time.
const BUILD: std::time::Duration = std::time::Duration::from_secs(3_600);

/// The example cases of the draft with our BBRv3.
pub(crate) fn cases(_: &Context) -> Result<Vec<Row>> {
    let contender = suite::contender("bbr3").ok_or_else(|| anyhow!("there is no `bbr3`"))?;
    let results = suite::run(contender.as_ref()).map_err(|error| anyhow!(error))?;
    let count = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let row = |result: &suite::CaseResult| {
        let all = result.clauses.len();
        Row::new(result.case.name, count(result.count()), "clauses", Target::Exactly(count(all)))
            .detail(result.case.note.unwrap_or_default())
    };
    Ok(results.iter().map(row).collect())
}

/// Sum of the path models of many flows, and the resulting queue.
pub(crate) fn crowds(context: &Context) -> Result<Vec<Row>> {
    let effort = if context.long { Effort { seeds: 12, seconds: 30 } } else { Effort { seeds: 6, seconds: 10 } };
    let mut rows = Vec::new();
    for (mbps, rtt) in [(20, 50), (100, 20)] {
        for count in [1, 4, 20, 50] {
            let found = many(count, Bitrate::from_mbps(mbps), Duration::from_millis(rtt), effort);
            rows.extend(found.map_err(|error| anyhow!("{error}"))?.into_iter().map(Row::from));
        }
    }
    Ok(rows)
}

/// Cases that pass with the other controllers, ours and those of other stacks: no target, the cases are the draft's.
pub(crate) fn others(context: &Context) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let row = |name: &str, passed: f64, detail: String| {
        Row::new(format!("cases of the draft that pass with {name}"), passed, "of 22", Target::Printed).detail(detail)
    };
    for name in ["bbr2", "bbr1", "cubic"] {
        let contender = suite::contender(name).ok_or_else(|| anyhow!("there is no `{name}`"))?;
        let results = suite::run(contender.as_ref()).map_err(|error| anyhow!(error))?;
        let passed = results.iter().filter(|result| result.passed()).count();
        let detail = format!("clause by clause: tiderace lab suite bbr --cc {name}");
        rows.push(row(name, f64::from(u32::try_from(passed)?), detail));
    }
    // Other stacks live in another workspace.
    let root = context.root.join("interop");
    let mut command = super::command::cargo(&root, ["run", "--release", "-p", "virtual", "--bin", "suite", "--"]);
    let ended = context.commands.run("bbr-others", command.args(["--peer", "noq-bbr3,quinn-bbr"]), BUILD)?.ok()?;
    for line in ended.stdout.lines() {
        let Some((name, rest)) =
            line.split_once(": ").filter(|(_, rest)| rest.contains(" cases of draft-ietf-ccwg-bbr"))
        else {
            continue;
        };
        let passed = rest.split(' ').next().and_then(|count| count.parse().ok());
        let detail = if name.starts_with("quinn") {
            "it shows nothing of its BBR, so that no clause can be judged; "
        } else {
            ""
        };
        let detail = format!(
            "{detail}clause by clause: cargo run --release -p virtual --bin suite -- --peer {name}, in interop/"
        );
        rows.push(row(name, passed.ok_or_else(|| anyhow!("cannot read `{line}`"))?, detail));
    }
    Ok(rows)
}

/// BBRv1 and BBRv3 below and beyond the loss that they bear.
pub(crate) fn losses(_: &Context) -> Result<Vec<Row>> {
    CELLS.into_iter().map(|cell| Ok(loss(cell, Effort::default())?.into())).collect()
}

/// Breaking points of BBRv1 and BBRv3.
pub(crate) fn cliffs(_: &Context) -> Result<Vec<Row>> {
    CLIFFS.into_iter().map(|edge| Ok(cliff(edge, Effort { seeds: 10, seconds: 30 })?.into())).collect()
}

/// BBRv3 in buffers of 1 to 8 bandwidth-delay products.
pub(crate) fn queues(_: &Context) -> Result<Vec<Row>> {
    BUFFERS.into_iter().map(|buffer| Ok(queue(buffer, Effort::default())?.into())).collect()
}

/// Two BBRv3 flows that start at different times.
pub(crate) fn shares(_: &Context) -> Result<Vec<Row>> {
    Ok(vec![fairness(Effort { seeds: 12, seconds: 60 })?.into()])
}

/// BBRv3 and NewReno beside CUBIC over the size of the buffer, and two flows of a kind.
pub(crate) fn neighbours(_: &Context) -> Result<Vec<Row>> {
    let effort = shares::Effort { offsets: 12, ..shares::Effort::default() };
    let mut rows = Vec::new();
    // Shares of BBRv3 differ by ten points between offsets: with a dozen of them medians differ by eight for no reason.
    for (first, offsets) in [("bbr3", 24), ("bbr1", 12), ("newreno", 12)] {
        let effort = shares::Effort { offsets, ..effort };
        rows.extend(shares::beside(first, "cubic", effort)?.into_iter().map(Row::from));
    }
    for controller in ["cubic", "newreno", "bbr3"] {
        for buffer in [0.5, 1.0, 2.0] {
            rows.push(shares::alike(controller, buffer, effort)?.into());
        }
    }
    Ok(rows)
}

/// Cost of each controller to the sender of a bulk transfer.
pub(crate) fn cost(_: &Context) -> Result<Vec<Row>> {
    let counts = instructions::controllers(&["newreno", "cubic", "bbr1", "bbr2", "bbr3", "auto"])?;
    let base = counts[0].1 as f64;
    let row = |&(name, count): &(&str, u64)| {
        Row::new(
            format!("{name}: instructions of the sender / newreno's"),
            count as f64 / base,
            "x",
            Target::AtMost(1.03),
        )
        .detail(format!("{count} and {base:.0} per 1,452 bytes of stream data; both ends in memory, callgrind"))
    };
    Ok(counts[1..].iter().map(row).collect())
}
