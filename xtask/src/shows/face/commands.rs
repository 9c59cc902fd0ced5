//! The first use: commands of the documents, as they stand there, in a fresh clone.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;

use super::{BUILD, Context, Row, Target, number};
use crate::{
    shows::command::{Ended, cargo},
    site::commands::{Script, scripts},
};

/// Time that the commands of a document may take.
const LIMIT: Duration = Duration::from_secs(1_800);
/// Commands that end the jobs of a document: the next one may need the same port.
const END: &str = "for job in $(jobs -p); do kill $job || true; wait $job || true; done";
/// Time of README.md's commands on two cores that do nothing else, the build included.
const FIRST_USE: f64 = 600.0;

/// Clones of the repository, one after the other, for the commands of one document each.
///
/// All are at one place and of one time: cargo builds what is at another place or newer than its last build, and the program shall be built
/// once. Programs that the commands build lie apart from those of the repository, as this very program does.
struct Clones<'c> {
    context: &'c Context,
    folder: PathBuf,
    /// Time of the sources, in seconds since 1970.
    time: u64,
    /// Target directory of the repository, which has the crates of others in it already.
    parts: PathBuf,
    /// Place of programs.
    programs: PathBuf,
}

/// Runs each document in a clone of its own.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let folder = std::path::absolute(context.commands.scratch("face-commands")?)?;
    let clones = Clones {
        context,
        time: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        parts: std::path::absolute(context.commands.target())?,
        programs: folder.join("target"),
        folder,
    };
    let built = clones.build()?;
    let (mut run, mut left_out, mut faults, mut first_use) = (0, 0, Vec::new(), 0.0);
    for script in scripts(&context.root)? {
        left_out += script.left_out;
        if script.run.is_empty() {
            continue;
        }
        run += script.run.len();
        let ended = clones.follow(&script)?;
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
                "{:.0} s of building (without crates of others where they were built before), {first_use:.0} s of the rest; {}",
                built.seconds,
                crate::shows::command::load()
            )),
    ])
}

impl Clones<'_> {
    /// Builds the program in a clone.
    fn build(&self) -> Result<Ended> {
        let clone = self.make()?;
        let mut build = cargo(&clone, ["build", "--locked", "--release"]);
        self.place(&mut build);
        let built = self.context.commands.run("face-commands-build", &mut build, BUILD)?.ok()?;
        fs::remove_dir_all(&clone)?;
        Ok(built)
    }

    /// Runs the commands of a document in a clone.
    fn follow(&self, script: &Script) -> Result<Ended> {
        let clone = self.make()?;
        let name = script.document.replace(['/', '.'], "-");
        let file = self.folder.join(format!("{name}.sh"));
        fs::write(&file, format!("set -eux\ntrap '{END}' EXIT\n{}", script.run.concat()))?;
        let path = std::env::var("PATH").unwrap_or_default();
        let mut bash = Command::new("bash");
        bash.arg(file).current_dir(&clone);
        bash.env("PATH", format!("{}:{path}", self.programs.join("release").display()));
        self.place(&mut bash);
        let ended = self.context.commands.run(&format!("face-commands-{name}"), &mut bash, LIMIT)?;
        fs::remove_dir_all(&clone)?;
        Ok(ended)
    }

    fn place(&self, command: &mut Command) {
        command.env("CARGO_BUILD_BUILD_DIR", &self.parts).env("CARGO_TARGET_DIR", &self.programs);
    }

    fn make(&self) -> Result<PathBuf> {
        let clone = self.folder.join("tiderace");
        let mut git = Command::new("git");
        git.args(["clone", "--quiet", "--shared"]).arg(&self.context.root).arg(&clone);
        self.context.commands.run("face-commands-clone", &mut git, LIMIT)?.ok()?;
        let mut touch = Command::new("sh");
        touch.args(["-c", &format!("git ls-files -z | xargs -0 touch --date=@{}", self.time)]).current_dir(&clone);
        self.context.commands.run("face-commands-touch", &mut touch, LIMIT)?.ok()?;
        Ok(clone)
    }
}
