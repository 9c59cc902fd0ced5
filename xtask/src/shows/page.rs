//! The pages of the laboratory in a real browser: they open without a complaint, with plots, in light and dark.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    Context,
    matrices::{program, small_scenario},
    row::{Row, Target},
};

/// Opens the page of a matrix, and the time series of one of its connections.
pub(crate) fn browser(context: &Context) -> Result<Vec<Row>> {
    let (program, scratch) = (program(context)?, context.commands.scratch("lab-page")?);
    let file = scratch.join("scenario.toml");
    fs::write(&file, small_scenario()?)?;
    let limit = Duration::from_secs(900);
    let (matrix, series) = (scratch.join("matrix.html"), scratch.join("series.html"));
    let mut command = Command::new(&program);
    command.args(["lab", "matrix"]).arg(&file).args(["--seeds", "12", "--html"]).arg(&matrix).current_dir(&scratch);
    context.commands.run("lab-page-matrix", &mut command, limit)?.ok()?;
    let mut command = Command::new(&program);
    command.args(["lab", "run", "wifi", "--seeds", "1", "--duration", "5s", "--qlog"]).arg(scratch.join("logs"));
    context.commands.run("lab-page-run", command.current_dir(&scratch), limit)?.ok()?;
    let log = find(&scratch.join("logs"))?.context("there is no qlog file of a server")?;
    let mut command = Command::new(&program);
    command.args(["lab", "series"]).arg(log).arg("--html").arg(&series);
    context.commands.run("lab-page-series", &mut command, limit)?.ok()?;

    let mut rows = Vec::new();
    for (name, page, plots) in [("matrix", &matrix, 3), ("series", &series, 4)] {
        for (scheme, setting) in [("light", "preferredColorScheme=1"), ("dark", "preferredColorScheme=0")] {
            let picture = scratch.join(format!("{name}-{scheme}.png"));
            let mut browser = Command::new("chromium");
            browser.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]);
            browser.args(["--window-size=1200,2600", "--dump-dom"]).arg(format!("--blink-settings={setting}"));
            browser.arg(format!("--screenshot={}", picture.display())).arg(format!("file://{}", page.display()));
            let ended = context.commands.run(&format!("lab-page-{name}-{scheme}"), &mut browser, limit)?.ok()?;
            let complaints = ended.stderr.lines().filter(|line| line.contains(":CONSOLE")).count();
            let seen = ended.stdout.matches("class=\"plot\"").count();
            let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
            rows.push(Row::new(
                format!("{name} page, {scheme}: complaints"),
                number(complaints),
                "",
                Target::Exactly(0.0),
            ));
            rows.push(
                Row::new(format!("{name} page, {scheme}: plots"), number(seen), "", Target::AtLeast(number(plots)))
                    .detail(format!("a picture of it: {}", picture.display())),
            );
        }
    }
    Ok(rows)
}

/// The first qlog file of a server below this directory.
fn find(directory: &Path) -> Result<Option<std::path::PathBuf>> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            if let Some(found) = find(&path)? {
                return Ok(Some(found));
            }
        } else if path.to_string_lossy().ends_with("server.sqlog") {
            return Ok(Some(path));
        }
    }
    Ok(None)
}
