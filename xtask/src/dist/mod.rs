//! `cargo xtask dist`: downloads for users, in `target/dist`.
//!
//! [`target`] chooses what to build for and builds it, [`program`] looks at the result, [`stage`] lays out the files, [`licences`] collects
//! the texts that have to go with them. An archive, [`deb`] and [`container`] are made from the same files.

mod container;
mod deb;
mod licences;
mod program;
mod stage;
mod target;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

pub(crate) use self::stage::copy_all;
use self::{program::Program, target::Target};

/// Largest program in bytes.
pub(crate) const LARGEST: u64 = 15_000_000;

/// Build the program as users download it, into target/dist: an archive with licences, manual pages and completions, and SHA256SUMS.
///
/// The program is static: it runs on any Linux of its architecture. It is built with musl where rustc has the standard library for it.
/// Otherwise, on x86_64, it is built with glibc, with a message: glibc's licence (LGPL) asks more of those who pass such a program on.
///
/// Exit code 0: complete. 1: the program is too large or not static. 2: something is missing, with a hint.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  cargo xtask dist --deb --container
  cargo xtask dist --arch aarch64")]
pub(crate) struct Args {
    /// Processor architecture
    #[arg(long, value_name = "ARCH", value_enum, default_value_t)]
    arch: target::Arch,
    /// C library; without it musl, or glibc where rustc has no musl
    #[arg(long, value_name = "LIBC", value_enum)]
    libc: Option<target::Libc>,
    /// Make a Debian package as well (needs dpkg-deb)
    #[arg(long)]
    deb: bool,
    /// Lay out the files of the container image as well
    #[arg(long)]
    container: bool,
}

/// Folders of the workspace that take part.
#[derive(Debug)]
struct Folders {
    /// The workspace.
    root: PathBuf,
    /// Target directory of cargo.
    target: PathBuf,
    /// `target/dist`.
    out: PathBuf,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> ExitCode {
    match execute(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Makes everything; whether the program is what it has to be.
fn execute(args: &Args) -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?.to_owned();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folders = Folders { out: target.join("dist"), root, target };
    std::fs::create_dir_all(&folders.out)?;

    let target = Target::choose(args.arch, args.libc)?;
    let program = Program::look(target.build(&folders)?)?;
    println!("{}: {}", target.triple(), program.path.display());
    println!("size: {:.2} MB stripped, at most {:.0} MB", megabytes(program.size), megabytes(LARGEST));
    println!("static: {}", if program.is_static { "yes" } else { "no, it asks for a loader" });

    let name = format!("tiderace-{}-{}", env!("CARGO_PKG_VERSION"), target.triple());
    let staged = stage::lay_out(&folders, &target, &program, &name)?;
    println!("archive: {}", stage::archive(&folders, &staged)?.display());
    if args.deb {
        println!("package: {}", deb::make(&folders, &target, &staged)?.display());
    }
    if args.container {
        println!("container: {}", container::lay_out(&folders, &target, &staged)?.display());
    }
    println!("sums: {}", sums(&folders.out)?.display());
    Ok(program.is_static && program.size <= LARGEST)
}

#[expect(clippy::cast_precision_loss, reason = "sizes of files")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Writes SHA256SUMS of all archives and packages in the folder.
fn sums(out: &Path) -> Result<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(out)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".tar.gz") || name.ends_with(".deb") {
            files.push(name);
        }
    }
    files.sort();
    let sums = finish(Command::new("sha256sum").args(&files).current_dir(out))?;
    let path = out.join("SHA256SUMS");
    std::fs::write(&path, sums)?;
    Ok(path)
}

/// Runs a program to its end; its standard output.
fn finish(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(output.stdout)
}

/// Time of the last commit, which stands in archives so that the same sources make the same bytes; 0 outside of a repository.
fn commit_time(root: &Path) -> String {
    let git = finish(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root));
    let time = git.map(|time| String::from_utf8_lossy(&time).trim().to_owned()).unwrap_or_default();
    if time.is_empty() { "0".to_owned() } else { time }
}
