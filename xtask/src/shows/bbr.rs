//! What BBR promises: the draft's example cases, the answer to random loss, the queue, two flows on one path.

use anyhow::{Result, anyhow};
use lab::{
    reference::bbr::{BUFFERS, CELLS, Effort, fairness, loss, queue},
    reference::shares,
    suite,
};

use super::{
    Context,
    row::{Row, Target},
};
use crate::instructions;

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

/// BBRv1 and BBRv3 below and beyond the loss that they bear.
pub(crate) fn losses(_: &Context) -> Result<Vec<Row>> {
    CELLS.into_iter().map(|cell| Ok(loss(cell, Effort::default())?.into())).collect()
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
    let effort = shares::Effort::default();
    let mut rows = Vec::new();
    for first in ["bbr3", "bbr1", "newreno"] {
        rows.extend(shares::beside(first, "cubic", effort)?.into_iter().map(Row::from));
    }
    for controller in ["cubic", "newreno", "bbr3"] {
        for buffer in [0.5, 1.0, 2.0] {
            rows.push(shares::alike(controller, buffer, effort)?.into());
        }
    }
    Ok(rows)
}

/// What each controller costs the sender of a bulk transfer.
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
