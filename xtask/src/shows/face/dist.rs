//! The archive: size of the program, files, checksums, and the program alone in a root directory.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};

use super::{Context, Dist, LIMIT, Row, Target, after, make, number};
use crate::dist::LARGEST;

/// Files that an archive has, below its folder.
const NEEDED: [&str; 13] = [
    "tiderace",
    "README.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "THIRD-PARTY-LICENCES.txt",
    "man/tiderace.1",
    "man/tiderace-get.1",
    "man/tiderace-edge-run.1",
    "completions/tiderace.bash",
    "completions/_tiderace",
    "completions/tiderace.fish",
    "deploy/tiderace-edge.service",
    "deploy/tiderace-edge.socket",
];

/// Measures the archive.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let dist = make(context, "dist", &["--deb"])?;
    let archive = after(&dist.ended.stdout, "archive: ")?;
    let list = context
        .commands
        .run("face-dist-list", Command::new("tar").args(["tzf", archive]).current_dir(&context.root), LIMIT)?
        .ok()?;
    let files: Vec<&str> = list.stdout.lines().filter_map(|line| line.split_once('/')).map(|(_, name)| name).collect();
    let missing: Vec<&str> = NEEDED.into_iter().filter(|name| !files.contains(name)).collect();
    let mut check = Command::new("sha256sum");
    let sums = context.commands.run(
        "face-dist-sums",
        check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(&dist.out),
        LIMIT,
    )?;
    let size = fs::metadata(dist.program())?.len();
    let megabyte = 1e6;
    #[expect(clippy::cast_precision_loss, reason = "the size of a file")]
    let (size, largest) = (size as f64 / megabyte, LARGEST as f64 / megabyte);
    let is_static = after(&dist.ended.stdout, "static: ")? == "yes";
    Ok(vec![
        Row::new("program, stripped", size, "MB", Target::AtMost(largest)).detail(archive),
        Row::new("program needs no loader", f64::from(u8::from(is_static)), "", Target::Exactly(1.0)),
        Row::new("files missing from the archive", number(missing.len()), "", Target::Exactly(0.0)).detail(format!(
            "{} files {}",
            files.len(),
            missing.join(", ")
        )),
        Row::new("checksums that fail", f64::from(u8::from(!sums.succeeded())), "", Target::Exactly(0.0))
            .detail(sums.stdout.trim()),
        alone(context, &dist)?,
        reproducible(context, &dist)?,
    ])
}

/// A run of the program in a root directory that has nothing else.
fn alone(context: &Context, dist: &Dist) -> Result<Row> {
    let root = context.commands.scratch("face-dist-root")?;
    fs::copy(dist.program(), root.join("tiderace"))?;
    let mut chroot = Command::new("chroot");
    let ended = context.commands.run(
        "face-dist-alone",
        chroot.arg(&root).args(["/tiderace", "version", "--verbose"]),
        LIMIT,
    )?;
    let ran = ended.succeeded() && ended.stdout.starts_with("tiderace ");
    let detail = if ran { ended.stdout.trim().to_owned() } else { ended.reason() };
    Ok(Row::new("program runs in an empty root", f64::from(u8::from(ran)), "", Target::Exactly(1.0)).detail(detail))
}

/// A second archive of the same sources: the same bytes.
fn reproducible(context: &Context, dist: &Dist) -> Result<Row> {
    let sums = || fs::read_to_string(dist.out.join("SHA256SUMS")).context("SHA256SUMS");
    let before = sums()?;
    make(context, "dist-again", &["--deb"])?;
    let same = before == sums()?;
    Ok(Row::new("archive and package repeat byte for byte", f64::from(u8::from(same)), "", Target::Exactly(1.0))
        .detail(before.trim()))
}
