//! What BBR promises: the draft's example cases, the answer to random loss, the queue, two flows on one path.

use anyhow::{Result, anyhow};
use lab::{
    reference::bbr::{BUFFERS, CELLS, Effort, fairness, loss, queue},
    suite,
};

use super::{
    Context,
    row::{Row, Target},
};

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
