//! quic-go: a program in Go (`go/`), built when it is asked for. One goroutine scheduler thread, as it may use only one CPU; its own
//! sockets, its default congestion control (CUBIC), the TLS of Go's standard library.

use std::{
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use crate::job::Job;

/// Beside this program.
fn program() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("bench-quic-go"))
}

/// Builds it; quick when it is built already.
pub fn build() -> Result<()> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("go");
    eprintln!("building quic-go …");
    let built = Command::new("go").arg("build").arg("-o").arg(program()?).arg(".").current_dir(sources).status();
    match built {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("quic-go needs Go 1.26 or later on the path\nhint: leave it out with --peers")
        }
        Err(error) => Err(error).context("cannot start go"),
        Ok(status) => {
            ensure!(status.success(), "go build ended with {status}");
            Ok(())
        }
    }
}

/// Replaces this process; returns only what went wrong.
pub fn become_it(job: Job, time_limit_s: u32, side: &[String]) -> anyhow::Error {
    let start = || -> Result<io::Error> {
        let limit = ["--time-limit".to_owned(), time_limit_s.to_string()];
        Ok(Command::new(program()?).args(job.arguments()).args(limit).args(side).exec())
    };
    match start() {
        Ok(error) => anyhow::Error::from(error).context("cannot start quic-go\nhint: bench builds it when it measures"),
        Err(error) => error,
    }
}
