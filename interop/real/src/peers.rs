//! The peers there are: how each is installed and started.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Stdio,
    str::FromStr,
};

use anyhow::{Context, Result, bail, ensure};
use tokio::process::Command;

/// A peer program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// Our own, built with this workspace.
    Tiderace,
    /// quinn, from crates.io, built with this workspace.
    Quinn,
    /// quic-go, from the Go module proxy.
    QuicGo,
    /// aioquic, from PyPI.
    Aioquic,
    /// s2n-quic, from crates.io, built with this workspace when the feature `s2n` is on.
    S2n,
    /// quiche, from crates.io, built with this workspace when the feature `quiche` is on.
    Quiche,
}

/// A peer that can be started: a program and its first arguments.
#[derive(Clone, Debug)]
pub struct Installed {
    /// Peer of the cell.
    pub peer: Peer,
    program: PathBuf,
    arguments: Vec<String>,
}

impl Peer {
    /// Every peer.
    pub const ALL: &[Self] = &[Self::Tiderace, Self::Quinn, Self::QuicGo, Self::Aioquic, Self::S2n, Self::Quiche];
    /// The peers that need nothing but this workspace's build.
    pub const SHORT: &[Self] = &[Self::Tiderace, Self::Quinn];

    /// Returns whether this build has it: what is compiled here may be left out by a feature.
    pub fn is_built(self) -> bool {
        match self {
            Self::S2n => cfg!(feature = "s2n"),
            Self::Quiche => cfg!(feature = "quiche"),
            _ => true,
        }
    }

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiderace => "tiderace",
            Self::Quinn => "quinn",
            Self::QuicGo => "quic-go",
            Self::Aioquic => "aioquic",
            Self::S2n => "s2n-quic",
            Self::Quiche => "quiche",
        }
    }

    /// Installs what is missing below `cache`. Versions are pinned by `Cargo.lock`, `go.sum` and `requirements.txt`.
    ///
    /// # Errors
    /// When a tool is missing or a download fails.
    pub async fn install(self, sources: &Path, cache: &Path) -> Result<Installed> {
        fs::create_dir_all(cache).with_context(|| format!("create {}", cache.display()))?;
        let (program, arguments) = match self {
            Self::Tiderace => (beside("tiderace-peer")?, vec![]),
            Self::Quinn => (beside("quinn-peer")?, vec![]),
            Self::S2n => (beside("s2n-peer").context("hint: build it with --features s2n")?, vec![]),
            Self::Quiche => (beside("quiche-peer").context("hint: build it with --features quiche")?, vec![]),
            Self::QuicGo => {
                let program = cache.join("quic-go-peer");
                let mut build = Command::new("go");
                build.arg("build").arg("-o").arg(&program).arg(".").current_dir(sources.join("quic-go"));
                finish(&mut build, "quic-go needs Go 1.26 or later on the path").await?;
                (program, vec![])
            }
            Self::Aioquic => {
                let folder = cache.join("aioquic");
                let python = folder.join("bin/python");
                let requirements = sources.join("aioquic/requirements.txt");
                let (mark, wanted) = (folder.join("installed.txt"), fs::read_to_string(&requirements)?);
                if fs::read_to_string(&mark).ok().as_ref() != Some(&wanted) {
                    let hint = "aioquic needs Python 3.10 or later with its `venv` module";
                    finish(Command::new("python3").args(["-m", "venv"]).arg(&folder), hint).await?;
                    let mut install = Command::new(&python);
                    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]);
                    finish(install.arg(&requirements), "aioquic comes from PyPI").await?;
                    fs::write(&mark, wanted)?;
                }
                (python, vec![sources.join("aioquic/peer.py").display().to_string()])
            }
        };
        Ok(Installed { peer: self, program, arguments })
    }
}

impl Installed {
    /// The command of this peer, without its role. Killed when dropped.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        command
    }
}

/// A program that was built together with this one.
fn beside(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.exists(), "{} is missing\nhint: cargo build --release -p real --bins", path.display());
    Ok(path)
}

/// Runs a step of an installation.
async fn finish(command: &mut Command, hint: &str) -> Result<()> {
    let text = format!("{:?}", command.as_std());
    let output = command.stdin(Stdio::null()).output().await.with_context(|| format!("{text}\nhint: {hint}"))?;
    if !output.status.success() {
        bail!("{text}: {}\n{}hint: {hint}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Peer {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.iter().copied().find(|peer| peer.name() == text).with_context(|| {
            let names: Vec<_> = Self::ALL.iter().map(|peer| peer.name()).collect();
            format!("no peer is called `{text}`\nhint: there are {}", names.join(", "))
        })
    }
}
