//! Targets of the distribution: which can be built on this machine, and with which tools.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;

use super::Folders;

/// Processor architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arch {
    #[default]
    #[value(name = "x86_64")]
    X86_64,
    #[value(name = "aarch64")]
    Aarch64,
}

impl Arch {
    /// As Rust writes it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// As Debian writes it.
    pub(super) const fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// Returns whether this machine has it.
    pub(super) fn is_native(self) -> bool {
        self.name() == std::env::consts::ARCH
    }
}

/// C library that the program contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Libc {
    Musl,
    Gnu,
}

/// C compiler and linker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tools {
    /// The machine's own, for its own architecture.
    Native,
    /// `cargo zigbuild`, which brings a C compiler and a linker for every target.
    Zig,
}

/// Target that this machine can build.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) arch: Arch,
    pub(super) libc: Libc,
    tools: Tools,
}

/// Standard libraries and tools of this machine.
#[derive(Clone, Copy, Debug)]
struct Machine {
    is_native: bool,
    musl: bool,
    gnu: bool,
    musl_gcc: bool,
    zig: bool,
}

impl Target {
    /// Target for this architecture.
    pub(super) fn choose(arch: Arch, libc: Option<Libc>) -> Result<Self> {
        let machine = Machine {
            is_native: arch.is_native(),
            musl: has_std(&triple(arch, Libc::Musl))?,
            gnu: has_std(&triple(arch, Libc::Gnu))?,
            musl_gcc: starts("musl-gcc", &["--version"]),
            // It looks for a zig in turn.
            zig: starts("cargo-zigbuild", &["zig", "cc", "--", "--version"]),
        };
        let (libc, tools) = decide(arch, libc, machine)?;
        if libc == Libc::Gnu {
            eprintln!(
                "warning: the program is linked with glibc, statically. It runs everywhere, but whoever passes it on has to offer the \
                 means to link it again (LGPL).\nhint: rustup target add {}; apt-get install musl-tools",
                triple(arch, Libc::Musl)
            );
        }
        Ok(Self { arch, libc, tools })
    }

    /// As Rust names it.
    pub(super) fn triple(&self) -> String {
        triple(self.arch, self.libc)
    }

    /// Builds the program; its path.
    pub(super) fn build(&self, folders: &Folders) -> Result<PathBuf> {
        let triple = self.triple();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&folders.root).arg(if self.tools == Tools::Zig { "zigbuild" } else { "build" });
        cargo.args(["--locked", "--profile", "distribution", "--package", "tiderace-cli", "--bin", "tiderace"]);
        cargo.args(["--target", &triple]);
        let variable = triple.replace('-', "_");
        match (self.tools, self.libc) {
            (Tools::Zig, _) => {}
            (Tools::Native, Libc::Musl) => _ = cargo.env(format!("CC_{variable}"), "musl-gcc"),
            (Tools::Native, Libc::Gnu) => {
                let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", variable.to_uppercase());
                _ = cargo.env(flags, "-C target-feature=+crt-static");
            }
        }
        let status = cargo.status().context("cannot start cargo")?;
        ensure!(status.success(), "the program for {triple} cannot be built");
        Ok(folders.target.join(&triple).join("distribution/tiderace"))
    }
}

fn triple(arch: Arch, libc: Libc) -> String {
    let libc = match libc {
        Libc::Musl => "musl",
        Libc::Gnu => "gnu",
    };
    format!("{}-unknown-linux-{libc}", arch.name())
}

/// Library and tools for an architecture on such a machine.
fn decide(arch: Arch, wanted: Option<Libc>, machine: Machine) -> Result<(Libc, Tools)> {
    let musl = triple(arch, Libc::Musl);
    let tools = match (machine.is_native && machine.musl_gcc, machine.zig) {
        (true, _) => Some(Tools::Native),
        (false, true) => Some(Tools::Zig),
        (false, false) => None,
    };
    match (wanted, tools) {
        (Some(Libc::Musl) | None, Some(tools)) if machine.musl => Ok((Libc::Musl, tools)),
        (Some(Libc::Gnu) | None, _) if machine.gnu && machine.is_native => Ok((Libc::Gnu, Tools::Native)),
        (Some(Libc::Gnu), _) => {
            bail!("a static glibc is linked on a machine of its own architecture only\nhint: leave --libc out")
        }
        (_, _) if !machine.musl => bail!("rustc has no standard library for {musl}\nhint: rustup target add {musl}"),
        (_, _) if machine.is_native => bail!("there is no C compiler for {musl}\nhint: apt-get install musl-tools"),
        (_, _) => bail!(
            "there is no C compiler for {musl}\nhint: pip install cargo-zigbuild, which brings zig; in a virtual environment, activate it, so that its python3 is found"
        ),
    }
}

/// Returns whether rustc has the standard library of a target.
fn has_std(triple: &str) -> Result<bool> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let folder = super::finish(Command::new(rustc).args(["--print", "target-libdir", "--target", triple]))?;
    let Ok(entries) = std::fs::read_dir(String::from_utf8_lossy(&folder).trim()) else { return Ok(false) };
    Ok(entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-")))
}

fn starts(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Machine = Machine { is_native: true, musl: true, gnu: true, musl_gcc: true, zig: true };

    #[test]
    fn musl_is_preferred_and_glibc_takes_its_place() {
        let choose = |wanted, machine| decide(Arch::X86_64, wanted, machine).ok();
        assert_eq!(choose(None, ALL), Some((Libc::Musl, Tools::Native)));
        assert_eq!(choose(None, Machine { musl_gcc: false, ..ALL }), Some((Libc::Musl, Tools::Zig)));
        assert_eq!(choose(None, Machine { musl: false, ..ALL }), Some((Libc::Gnu, Tools::Native)));
        assert_eq!(choose(None, Machine { musl_gcc: false, zig: false, ..ALL }), Some((Libc::Gnu, Tools::Native)));
        assert_eq!(choose(Some(Libc::Gnu), ALL), Some((Libc::Gnu, Tools::Native)));
        assert_eq!(choose(Some(Libc::Musl), Machine { musl: false, ..ALL }), None);
    }

    #[test]
    fn what_is_missing_comes_with_a_hint() {
        let foreign = Machine { is_native: false, ..ALL };
        let hint = |wanted, machine| decide(Arch::Aarch64, wanted, machine).unwrap_err().to_string();
        assert_eq!(decide(Arch::Aarch64, None, foreign).unwrap(), (Libc::Musl, Tools::Zig));
        assert!(
            hint(None, Machine { musl: false, ..foreign }).ends_with("rustup target add aarch64-unknown-linux-musl")
        );
        assert!(hint(None, Machine { zig: false, ..foreign }).contains("hint: pip install cargo-zigbuild"));
        assert!(hint(Some(Libc::Gnu), foreign).contains("hint: leave --libc out"));
        let bare = Machine { musl_gcc: false, zig: false, gnu: false, ..ALL };
        assert!(hint(None, bare).contains("hint: apt-get install musl-tools"));
    }
}
