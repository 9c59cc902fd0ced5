//! Clients that people use, in front of the edge: quic-go, aioquic, curl and Chromium. Runs interop/clients/run.py.

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    Context,
    command::cargo,
    early_data::read,
    row::{Row, Target},
};

const LIMIT: Duration = Duration::from_secs(1_800);
/// Objects of the page.
const OBJECTS: f64 = 100.0;

/// Python with the packages of the clients.
fn python(context: &Context) -> Result<PathBuf> {
    let folder = context.commands.target().join("peers/http-clients");
    let python = folder.join("bin/python");
    let requirements = context.root.join("interop/clients/requirements.txt");
    let (mark, wanted) = (folder.join("installed.txt"), std::fs::read_to_string(&requirements)?);
    if std::fs::read_to_string(&mark).ok().as_ref() != Some(&wanted) {
        let mut make = Command::new("python3");
        context.commands.run("edge-clients-venv", make.args(["-m", "venv"]).arg(&folder), LIMIT)?.ok()?;
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&requirements);
        context.commands.run("edge-clients-pip", &mut install, LIMIT)?.ok()?;
        std::fs::write(&mark, wanted)?;
    }
    Ok(python)
}

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut build = cargo(&context.root, ["build", "--locked", "--workspace", "--bin", "tiderace"]);
    context.commands.run("edge-clients-build", &mut build, LIMIT)?.ok()?;
    let sources = context.root.join("interop/clients");
    let quic_go = context.commands.target().join("peers/quic-go-h3");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&quic_go).arg(".").current_dir(sources.join("quic-go"));
    context.commands.run("edge-clients-go", &mut go, LIMIT)?.ok()?;
    let mut clients = Command::new(python(context)?);
    clients.arg(sources.join("run.py")).arg(context.commands.target().join("debug/tiderace")).arg(quic_go);
    let ended = context.commands.run("edge-clients", &mut clients, LIMIT)?;
    let values = read(&ended.stdout);
    ensure!(!values.is_empty(), "{}", ended.reason());
    let row = |what: &str| {
        let value = values.get(what).copied().with_context(|| ended.reason());
        value.map_or_else(
            |error| Row::unmeasured(what, &error),
            |value| Row::new(what, value, "", Target::Exactly(OBJECTS)),
        )
    };
    let time = |what: &str| values.get(what).map_or_else(String::new, |ms| format!("{ms:.0} ms to the page"));
    Ok(vec![
        row("objects over HTTP/3, quic-go").detail("of a page with 100 objects of 20 kB, on one connection"),
        row("objects over HTTP/3, aioquic").detail("the same"),
        row("objects over HTTP/3, curl").detail(format!("curl_cffi; {}", time("ms to the page, curl"))),
        row("objects over HTTP/2 without UDP, curl")
            .detail(format!("falls back by itself; {}", time("ms to the page without UDP, curl"))),
        row("objects over HTTP/3, Chromium")
            .detail("headless, QUIC forced to the origin; by what the page itself sees"),
        row("objects over HTTP/2 without UDP, Chromium").detail("not forced: Chromium that is forced to QUIC gives up"),
    ])
}
