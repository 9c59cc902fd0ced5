//! Interoperability over real sockets: the cases of the QUIC interop runner with quic-go, quinn, aioquic, s2n-quic and
//! quiche, in both roles. Runs the command of the workspace `interop/`.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    Context,
    row::{Row, Target},
};

/// The peers with which every case has to pass.
const WANTED: [&str; 2] = ["quic-go", "quinn"];
/// Build arguments of the matrix: with the peers that need a C++ compiler.
const HOW: &str = "--locked --release -p real --features s2n,quiche";

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let workspace = context.root.join("interop");
    let limit = Duration::from_secs(2 * 3_600);
    // The script finds libclang for the bindings of quiche's BoringSSL.
    let run = |name: &str, line: &str| {
        let mut command = Command::new("sh");
        command.current_dir(&workspace).args(["-c", &format!(". ./libclang.sh && exec cargo {line}")]);
        context.commands.run(name, &mut command, limit)
    };
    run("real-interop-build", &format!("build {HOW} --bins"))?.ok().context("the peers")?;
    let ended = run("real-interop", &format!("run {HOW} -- --json --jobs 3"))?;
    let report: Value =
        serde_json::from_str(&ended.stdout).with_context(|| format!("no report; {}", ended.reason()))?;
    let cells = report["cells"].as_array().context("the report has no cells")?;
    let ran: Vec<&Value> = cells.iter().filter(|cell| cell["lacks"].is_null()).collect();
    let name = |cell: &Value| {
        let text = |field: &str| cell[field].as_str().unwrap_or_default().to_owned();
        format!("{} -> {} {}: {}", text("client"), text("server"), text("case"), text("error"))
    };
    let mut rows = Vec::new();
    for peer in WANTED {
        let with = ran.iter().filter(|cell| [&cell["client"], &cell["server"]].iter().any(|side| **side == peer));
        let failed: Vec<String> = with.clone().filter(|cell| cell["ok"] != true).map(|cell| name(cell)).collect();
        let count = f64::from(u32::try_from(failed.len())?);
        rows.push(Row::new(format!("failures with {peer}, both roles"), count, "", Target::Exactly(0.0)).detail(
            format!("{} cases ran; docs/interop.md says whose fault a failure is\n{}", with.count(), failed.join("\n")),
        ));
    }
    let right = ran.iter().filter(|cell| cell["ok"] == true).count();
    let share = f64::from(u32::try_from(right)?) / f64::from(u32::try_from(ran.len().max(1))?);
    rows.push(
        Row::new("cells of the whole matrix that are right", share * 100.0, "%", Target::Printed)
            .detail(format!("{right} of {}; docs/interop.md has the matrix and the failures", ran.len())),
    );
    Ok(rows)
}
