//! Random loss passed over: the gain, the queue, and what is left for a neighbour.

use anyhow::{Result, anyhow};
use lab::reference::random_loss::{alone, beside_cubic};

use super::{Context, row::Row};

/// Controllers that pass over random loss when they are allowed to.
const CONTROLLERS: [&str; 2] = ["cubic", "bbr3"];

/// One flow on a lossy path, then beside CUBIC on a clean one, with buffers of 0.5 to 4 bandwidth-delay products.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let (seeds, seconds) = if context.long { (30, 60) } else { (10, 30) };
    let mut rows = Vec::new();
    for controller in CONTROLLERS {
        let mut findings = alone(controller, seeds, seconds).map_err(|error| anyhow!("{error}"))?;
        for buffer in [0.5, 1.0, 2.0, 4.0] {
            findings.extend(beside_cubic(controller, buffer, seeds, seconds).map_err(|error| anyhow!("{error}"))?);
        }
        rows.extend(findings.into_iter().map(Row::from));
    }
    Ok(rows)
}
