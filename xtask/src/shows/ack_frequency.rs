//! Acknowledgements on request: what they save and what they cost.

use anyhow::{Result, anyhow};
use lab::reference::ack_frequency::{
    AckFrequency, Cell, Effort, fixed_cost, measure as compare, rhythm, thin_way_back,
};

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
    for controller in lab::tiderace::controllers() {
        let finding = thin_way_back(controller, AckFrequency::Adaptive, Effort { seeds: 6, seconds: 30 });
        let row = Row::from(finding.map_err(|error| anyhow!("{error}"))?);
        // A twelfth of the window is what keeps the cost to a neighbour and to loss detection small.
        let reason = "a window that NewReno has halved bears three packets per ACK and no more, which is too many ACKs for this way back";
        let detail = if row.passed || controller != "newreno" {
            row.detail.clone()
        } else {
            format!("{}\n{reason}", row.detail)
        };
        rows.push(row.detail(detail));
    }
    for controller in ["cubic", "bbr3"] {
        let cell = Cell { controller, rate: 50, rtt: 100, loss: 0.001 };
        rows.push(fixed_cost(cell, 10, effort).map_err(|error| anyhow!("{error}"))?.into());
    }
    Ok(rows)
}
