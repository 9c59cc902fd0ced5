//! The page of `tiderace lab play` in a real browser.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{BUILD, Context, LIMIT, Row, Target, number};
use crate::shows::command::cargo;

/// Checks of the page.
const CHECKS: f64 = 10.0;

/// Runs interop/clients/play.py.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut build = cargo(&context.root, ["build", "--locked", "--workspace", "--bin", "tiderace"]);
    context.commands.run("face-play-build", &mut build, BUILD)?.ok()?;
    let scratch = std::path::absolute(context.commands.scratch("face-play")?)?;
    let mut page = Command::new("python3");
    page.arg(context.root.join("interop/clients/play.py"))
        .arg(context.commands.target().join("debug/tiderace"))
        .arg(&scratch);
    let ended = context.commands.run("face-play", &mut page, LIMIT)?;
    let results: Vec<&str> = ended.stdout.lines().filter_map(|line| line.strip_prefix("measured ")).collect();
    ensure!(!results.is_empty(), "{}", ended.reason());
    let good = results.iter().filter(|line| line.ends_with(": ok")).count();
    let row = Row::new("checks of the page in Chromium that pass", number(good), "", Target::Exactly(CHECKS));
    Ok(vec![row.detail(format!("{}\npictures: {}", results.join("\n"), scratch.display()))])
}
