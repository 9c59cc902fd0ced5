//! Known hazards of congestion control.

use anyhow::Result;
use lab::reference::hazards::{Effort, probe_rtt, reordering};

use super::{Context, row::Row};

/// The dips of ProbeRTT, and reordering together with sparse acknowledgements.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let effort = if context.long { Effort { seeds: 30, seconds: 60 } } else { Effort { seeds: 6, seconds: 40 } };
    let mut rows = Vec::new();
    for controller in ["bbr1", "bbr2", "bbr3"] {
        rows.extend(probe_rtt(controller, effort)?.into_iter().map(Row::from));
    }
    for controller in ["cubic", "bbr2", "bbr3"] {
        rows.extend(reordering(controller, effort)?.into_iter().map(Row::from));
    }
    Ok(rows)
}
