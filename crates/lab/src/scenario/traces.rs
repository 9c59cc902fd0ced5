//! Traces that a scenario names. They are read at the start, so that the scenario holds everything on which a run depends.

use std::{fs, path::Path};

use netem::{LinkConfig, Loss, LossTrace, RateTrace};

use super::{Fault, Scenario, check::fault};

/// Reads every trace that has not been read. File names are relative to `directory`.
pub(super) fn read(scenario: &mut Scenario, directory: &Path) -> Result<(), Fault> {
    read_link("path.down", &mut scenario.path.down, directory)?;
    scenario.path.up.as_mut().map_or(Ok(()), |up| read_link("path.up", up, directory))
}

fn read_link(prefix: &str, link: &mut LinkConfig, directory: &Path) -> Result<(), Fault> {
    let text = |field: &str, file: &str| {
        fs::read_to_string(directory.join(file)).map_err(|error| {
            fault(field, format!("cannot read {file}: {error}")).hint("file names are relative to the scenario's file")
        })
    };
    if let Some(trace) = link.rate_trace.as_mut().filter(|trace| trace.opportunities.is_empty()) {
        let field = format!("{prefix}.rate-trace");
        let read = RateTrace::parse(&trace.file, &text(&field, &trace.file)?);
        *trace = read.map_err(|error| {
            fault(&field, format!("{}: {error}", trace.file))
                .hint("a line for each packet of 1500 bytes that could be sent, with its millisecond")
        })?;
    }
    if let Loss::Trace(trace) = &mut link.loss
        && trace.lost.is_empty()
    {
        let field = format!("{prefix}.loss");
        let read = LossTrace::parse(&trace.file, &text(&field, &trace.file)?);
        *trace = read.map_err(|error| fault(&field, format!("{}: {error}", trace.file)))?;
    }
    Ok(())
}
