//! Bad input: what the network may send (the tests that send it), and what a person may ask for (the program itself).

use std::{fs, net::UdpSocket, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    Context,
    perf::program,
    row::{Row, Target},
    tests::binary,
};

/// Tests that send what no conforming peer would. What a name filter would not find fails: no test ran.
const HOSTILE: [(&str, &[&str]); 6] = [
    ("bad-wire", &["-p", "tiderace-wire"]),
    ("bad-keys", &["-p", "tiderace-transport", "--lib", "--", "keys::", "crypto_stream::", "token::", "cid::"]),
    ("bad-streams", &["-p", "tiderace-transport", "--lib", "--", "attack::", "flood", "bounded", "hostile"]),
    ("bad-packets", &["-p", "tiderace-transport", "--test", "protocol", "hostile::"]),
    ("bad-garbage", &["-p", "tiderace-transport", "--test", "protocol", "garbage::"]),
    ("bad-endings", &["-p", "tiderace-transport", "--test", "protocol", "endings::"]),
];

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let limit = Duration::from_secs(3_600);
    let mut rows: Vec<Row> = HOSTILE.iter().map(|(name, arguments)| binary(context, name, arguments, limit)).collect();
    rows.extend(requests(context)?);
    Ok(rows)
}

/// Wrong requests: each one clear message with a hint, exit code 2, nothing printed as a result, nothing written.
fn requests(context: &Context) -> Result<Vec<Row>> {
    let program = program(context)?;
    let scratch = context.commands.scratch("bad-requests")?;
    let out = scratch.join("out");
    let broken = scratch.join("broken.toml");
    fs::write(&broken, lab::scenario::PRESETS[0].text.replace("delay = ", "dellay = "))?;
    let taken = UdpSocket::bind("127.0.0.1:0")?;
    let in_use = taken.local_addr()?.to_string();
    // Bound and dropped: nobody listens there.
    let nobody = UdpSocket::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let text = |path: &Path| path.to_str().map(str::to_owned).context("the target directory is not UTF-8");
    let (out_text, broken) = (text(&out)?, text(&broken)?);
    let cases: [(&str, Vec<&str>); 6] = [
        ("an unknown scenario", vec!["lab", "run", "moble", "--out", &out_text]),
        ("a field that does not exist", vec!["lab", "run", &broken, "--out", &out_text]),
        ("a value that makes no sense", vec!["lab", "run", "mobile", "--loss", "130 %", "--out", &out_text]),
        ("a port in use", vec!["relay", "--path", "mobile", "--listen", &in_use, "--to", "127.0.0.1:9"]),
        ("a port where nobody listens", vec!["perf", "client", &nobody, "--insecure", "--timeout", "2 s", "--json"]),
        ("a host that does not exist", vec!["perf", "client", "host.invalid:4433", "--insecure", "--json"]),
    ];
    let rows = cases.iter().enumerate().map(|(index, (what, arguments))| {
        let mut command = Command::new(&program);
        let ended =
            context.commands.run(&format!("bad-request-{index}"), command.args(arguments), Duration::from_secs(30))?;
        let lines = |start: &str| ended.stderr.lines().filter(|line| line.starts_with(start)).count();
        let mut faults = Vec::new();
        if lines("error:") != 1 {
            faults.push(format!("{} error lines", lines("error:")));
        }
        if lines("hint:") + ended.stderr.matches("For more information").count() == 0 {
            faults.push("no hint".to_owned());
        }
        if !ended.stdout.is_empty() {
            faults.push("something on the standard output".to_owned());
        }
        if out.exists() {
            faults.push("something was written".to_owned());
        }
        let code = ended.code.map_or(f64::NAN, f64::from);
        let mut row = Row::new(format!("exit code for {what}"), code, "", Target::Exactly(2.0));
        row.passed &= faults.is_empty();
        let said = ended.stderr.lines().filter(|line| !line.trim().is_empty()).take(3).collect::<Vec<_>>().join("\n");
        Ok(row.detail(if faults.is_empty() { said } else { format!("{}\n{said}", faults.join(", ")) }))
    });
    rows.collect()
}
