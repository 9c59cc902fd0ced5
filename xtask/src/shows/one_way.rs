//! Receive times: the variation of delay in each direction against the simulator's truth.

use anyhow::{Result, anyhow};
use lab::reference::one_way;

use super::{Context, row::Row};

/// With clocks that agree in rate and with clocks that drift apart.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let seconds = if context.long { 120 } else { 40 };
    let mut rows = Vec::new();
    for drift_ppm in [0, 50, -50] {
        let findings = one_way::measure(drift_ppm, seconds, 1).map_err(|error| anyhow!("{error}"))?;
        rows.extend(findings.into_iter().map(Row::from));
    }
    Ok(rows)
}
