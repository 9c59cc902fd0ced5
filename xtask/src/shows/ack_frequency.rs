//! Acknowledgements on request: what they save and what they cost.

use anyhow::{Result, anyhow};
use lab::reference::ack_frequency::{AckFrequency, Cell, Effort, measure as compare, rhythm};

use super::{Context, row::Row};

/// `adaptive` against asking for nothing: without loss and at 0.1 %, at 20 and 50 Mbit/s; and what a fixed number costs.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let effort = if context.long { Effort { seeds: 30, seconds: 60 } } else { Effort { seeds: 10, seconds: 30 } };
    let mut rows = Vec::new();
    for packets in [2, 3, 5, 11, 21] {
        rows.push(rhythm(packets, Effort { seeds: 3, seconds: 30 }).map_err(|error| anyhow!("{error}"))?.into());
    }
    for (rate, rtt) in [(20, 50), (50, 50), (50, 100)] {
        for loss in [0.0, 0.001] {
            for controller in lab::tiderace::controllers() {
                let cell = Cell { controller, rate, rtt, loss };
                let findings = compare(cell, AckFrequency::Adaptive, effort).map_err(|error| anyhow!("{error}"))?;
                rows.extend(findings.into_iter().map(Row::from));
            }
        }
    }
    Ok(rows)
}
