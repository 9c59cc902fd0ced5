//! Promises of the laboratory: a table within a minute, known answers, and speed.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{
    figure::Figure,
    reference::{full_queue, loss_response, speed},
};

use super::{
    Context,
    command::{cargo, load},
    row::{Row, Target},
};

/// `lab run mobile`: how long it runs, and whether its table is complete.
pub(crate) fn fresh(context: &Context) -> Result<Vec<Row>> {
    const BUILD: Duration = Duration::from_secs(3_600);
    const RUN: Duration = Duration::from_secs(600);
    let scratch = context.commands.scratch("fresh-lab")?;
    let tree = if context.long { scratch.join("clone") } else { context.root.clone() };
    let cargo = |arguments: &[&str]| {
        let mut command = cargo(&tree, arguments);
        if context.long {
            command.env("CARGO_TARGET_DIR", scratch.join("target"));
        }
        command
    };
    if context.long {
        let mut clone = std::process::Command::new("git");
        clone.arg("clone").arg("--quiet").arg(&context.root).arg(&tree);
        context.commands.run("fresh-lab-clone", &mut clone, BUILD)?.ok().context("git clone")?;
    }
    let build = context.commands.run("fresh-lab-build", &mut cargo(&["build", "--release"]), BUILD)?.ok()?;
    let out = scratch.join("records");
    let out = out.to_str().context("the target directory is not UTF-8")?;
    let arguments = ["run", "--release", "--", "lab", "run", "mobile", "--all", "--out", out];
    let ended = context.commands.run("fresh-lab", &mut cargo(&arguments), RUN)?.ok()?;
    let rows = Figure::always().filter(|figure| {
        let row = ended.stdout.lines().find(|line| line.starts_with(figure.label()));
        row.is_some_and(|row| row.contains('[') && row.contains(']'))
    });
    let complete = rows.count();
    ensure!(ended.stdout.contains("Self-test"), "the report does not begin with the self-test");
    let records = std::fs::read_dir(out).map_or(0, Iterator::count);
    let whose = if context.long { "fresh clone of the last commit" } else { "this tree" };
    Ok(vec![
        Row::new("`lab run mobile`, running time", ended.seconds, "s", Target::AtMost(60.0)).detail(format!(
            "{whose}; building took {:.0} s beforehand; {}; --long clones and builds from nothing",
            build.seconds,
            load()
        )),
        Row::new(
            "figures with an interval in its table",
            count(complete),
            "",
            Target::Exactly(count(Figure::always().count())),
        )
        .detail(format!("{records} file of records")),
    ])
}

fn count(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// NewReno and CUBIC against the model.
pub(crate) fn model(_: &Context) -> Result<Vec<Row>> {
    let cells = loss_response::CELLS.into_iter();
    cells.map(|cell| Ok(loss_response::measure(cell, loss_response::Effort::default())?.into())).collect()
}

/// CUBIC against the buffer.
pub(crate) fn queue(_: &Context) -> Result<Vec<Row>> {
    let buffers = full_queue::BUFFERS.into_iter();
    buffers.map(|buffer| Ok(full_queue::measure(buffer, full_queue::Effort::default())?.into())).collect()
}

/// Cost of simulating.
pub(crate) fn speed(_: &Context) -> Result<Vec<Row>> {
    let row = Row::from(speed::measure(60, 7)?);
    let detail = format!("{}; {}", row.detail, load());
    Ok(vec![row.detail(detail)])
}
