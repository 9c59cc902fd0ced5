//! The Debian package in a Debian of its own: `deb.sh` installs, serves, upgrades, purges, and says what it has seen.

use std::process::Command;

use anyhow::Result;

use super::{Context, LIMIT, Row, Target, after, make};
use crate::shows::edge_servers::port;

/// Runs the script; a row for each line of it.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let dist = make(context, "deb", &["--deb"])?;
    let package = context.root.join(after(&dist.ended.stdout, "package: ")?);
    let scratch = std::path::absolute(context.commands.scratch("face-deb")?)?;
    let base = std::path::absolute(context.commands.target().join("peers/debian"))?;
    let mut script = Command::new("bash");
    script.arg(context.root.join("xtask/src/shows/face/deb.sh")).arg(package).arg(dist.program());
    script.arg(base).arg(&scratch).arg(port()?.to_string());
    let ended = context.commands.run("face-deb", &mut script, LIMIT)?.ok()?;
    let lines = ended.stdout.lines().filter_map(|line| line.strip_prefix("measured ")?.split_once(": "));
    Ok(lines
        .map(|(what, value)| {
            let (mark, detail) = value.split_once(' ').unwrap_or((value, ""));
            Row::new(what, f64::from(u8::from(mark == "ok")), "", Target::Exactly(1.0)).detail(detail)
        })
        .collect())
}
