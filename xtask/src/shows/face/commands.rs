//! The first use: commands of the documents, as they stand there, in a fresh clone.

use std::{path::Path, process::Command, time::Duration};

use anyhow::Result;

use super::{BUILD, Context, Row, Target, number};
use crate::{
    shows::command::{Ended, cargo},
    site::commands::{Script, scripts},
};

/// Time that the commands of a document may take.
const LIMIT: Duration = Duration::from_secs(1_800);
/// Time of README.md's commands on two cores that do nothing else, the build included.
const FIRST_USE: f64 = 600.0;

/// Runs each document in a clone of its own.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let build = &mut cargo(&context.root, ["build", "--locked", "--release"]);
    let built = context.commands.run("face-commands-build", build, BUILD)?.ok()?;
    let target = std::path::absolute(context.commands.target())?;
    let scratch = std::path::absolute(context.commands.scratch("face-commands")?)?;
    let (mut run, mut left_out, mut faults, mut first_use) = (0, 0, Vec::new(), 0.0);
    for script in scripts(&context.root)? {
        left_out += script.left_out;
        if script.run.is_empty() {
            continue;
        }
        run += script.run.len();
        let ended = follow(context, &script, &scratch, &target)?;
        if script.document == "README.md" {
            first_use = ended.seconds;
        }
        if !ended.succeeded() {
            let at = ended.stderr.lines().rev().find_map(|line| line.strip_prefix("+ ")).unwrap_or("the first command");
            faults.push(format!("{}: {at}: {}", script.document, ended.reason()));
        }
    }
    Ok(vec![
        Row::new("commands of documents that are run", number(run), "", Target::AtLeast(25.0))
            .detail(format!("{left_out} are not, each with a reason in xtask/commands.toml")),
        Row::new("documents whose commands fail", number(faults.len()), "", Target::Exactly(0.0))
            .detail(faults.join("\n")),
        Row::new("README.md's commands, the build included", built.seconds + first_use, "s", Target::AtMost(FIRST_USE))
            .detail(format!(
                "{:.0} s of building (nothing where it was built before), {first_use:.0} s of the rest; {}",
                built.seconds,
                crate::shows::command::load()
            )),
    ])
}

fn follow(context: &Context, script: &Script, scratch: &Path, target: &Path) -> Result<Ended> {
    let name = script.document.replace(['/', '.'], "-");
    let clone = scratch.join(&name);
    let mut git = Command::new("git");
    git.args(["clone", "--quiet", "--shared"]).arg(&context.root).arg(&clone);
    context.commands.run("face-commands-clone", &mut git, LIMIT)?.ok()?;
    let text = format!("set -eux\ntrap 'kill $(jobs -p)' EXIT\n{}", script.run.concat());
    std::fs::write(scratch.join(format!("{name}.sh")), text)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut bash = Command::new("bash");
    bash.arg(scratch.join(format!("{name}.sh"))).current_dir(&clone).env("CARGO_TARGET_DIR", target);
    bash.env("PATH", format!("{}:{path}", target.join("release").display()));
    let ended = context.commands.run(&format!("face-commands-{name}"), &mut bash, LIMIT)?;
    std::fs::remove_dir_all(&clone)?;
    Ok(ended)
}
