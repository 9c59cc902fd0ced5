//! Certificates from an authority: a real Pebble, built by Go from its module proxy.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    Context,
    command::{Tests, cargo},
    row::{Row, Target},
};

const LIMIT: Duration = Duration::from_secs(1_800);
/// The version that is built.
const PEBBLE: &str = "github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.1";

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let folder = context.commands.target().join("peers");
    let program = folder.join("pebble");
    if !program.exists() {
        std::fs::create_dir_all(&folder)?;
        let mut go = Command::new("go");
        go.args(["install", PEBBLE]).env("GOBIN", std::path::absolute(&folder)?);
        let built =
            context.commands.run("edge-acme-go", &mut go, LIMIT).context("Pebble is built by Go, which is not here")?;
        built.ok()?;
    }
    let mut command = cargo(&context.root, ["test", "--locked", "--workspace", "--test", "acme", "--"]);
    command.args(["--ignored", "--nocapture"]).env("PEBBLE", std::path::absolute(&program)?);
    let ended = context.commands.run("edge-acme", &mut command, LIMIT)?;
    let tests = Tests::read(&ended.stdout);
    ensure!(tests.passed + tests.failed > 0, "{}", ended.reason());
    let value = |what: &str| {
        let line = ended
            .stdout
            .lines()
            .find_map(|line| line.split_once("measured ")?.1.strip_prefix(what)?.strip_prefix(": "));
        line.and_then(|value| value.trim().parse::<f64>().ok())
            .with_context(|| format!("no `{what}`: {}", ended.reason()))
    };
    Ok(vec![
        Row::new("failures of the test with Pebble", f64::from(tests.failed), "", Target::Exactly(0.0)),
        Row::new("to the first certificate", value("seconds to the first certificate")?, "s", Target::AtMost(60.0))
            .detail("account, order, TLS-ALPN-01 at the address that is served, and in use"),
        Row::new("to its successor", value("seconds to its successor")?, "s", Target::AtMost(45.0))
            .detail("certificates are good for 45 s: replaced before the end, with the same account"),
        Row::new("replaced by a failure", value("certificates replaced by a failure")?, "", Target::Exactly(0.0))
            .detail("Pebble ended, and the file spoilt: the certificate stays in use"),
    ])
}
