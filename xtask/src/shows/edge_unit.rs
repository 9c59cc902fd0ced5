//! The units of the gateway in deploy/, as systemd reads them.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    Context,
    command::cargo,
    row::{Row, Target},
};

const LIMIT: Duration = Duration::from_secs(1_800);

/// The service, and its sockets.
const UNITS: [&str; 2] = ["tiderace-edge.service", "tiderace-edge.socket"];

/// Verdict of systemd on the units, with the program where it was built in place of where it will be.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut build = cargo(&context.root, ["build", "--locked", "--workspace", "--bin", "tiderace"]);
    context.commands.run("edge-unit-build", &mut build, LIMIT)?.ok()?;
    let program = std::path::absolute(context.commands.target().join("debug/tiderace"))?;
    let folder = context.commands.target().join("shows");
    std::fs::create_dir_all(&folder)?;
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]);
    for name in UNITS {
        let unit = std::fs::read_to_string(context.root.join("deploy").join(name))?;
        let file = folder.join(name);
        std::fs::write(&file, unit.replace("/usr/local/bin/tiderace", &program.to_string_lossy()))?;
        verify.arg(file);
    }
    let ended = context.commands.run("edge-unit", &mut verify, LIMIT).context("systemd-analyze is not here")?;
    let said = format!("{}{}", ended.stdout, ended.stderr);
    let complaints: Vec<&str> = said.lines().filter(|line| UNITS.iter().any(|name| line.contains(name))).collect();
    let failed = !ended.succeeded();
    Ok(vec![
        Row::new(
            "complaints of systemd about the units",
            complaints.len() as f64 + f64::from(u8::from(failed)),
            "",
            Target::Exactly(0.0),
        )
        .detail(complaints.first().map_or("systemd-analyze verify".to_owned(), |line| (*line).to_owned())),
    ])
}
