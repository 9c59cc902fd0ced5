//! `tiderace lab list`: the built-in scenarios.

use std::process::ExitCode;

use lab::{
    report::{varied, wrapped},
    scenario::{PRESETS, load},
};

use crate::{failure::Failure, stdout::write_out};

const HEAD: &str = "Scenarios for `tiderace lab run NAME`. Each compares its contenders on the same modelled path. The file is \
                    scenarios/NAME.toml; `tiderace lab new` makes one of your own.";

/// One scenario of `--json`.
#[derive(serde::Serialize)]
struct Listed {
    name: &'static str,
    group: &'static str,
    title: String,
    /// Factors and the number of their levels.
    varies: Vec<Factor>,
}

#[derive(serde::Serialize)]
struct Factor {
    name: String,
    levels: usize,
}

pub(super) fn list(json: bool) -> Result<ExitCode, Failure> {
    if json {
        let mut all = Vec::new();
        for preset in PRESETS {
            let scenario = load(preset.name)?;
            let varies = varied(&scenario).into_iter();
            let varies = varies.map(|(name, levels)| Factor { name: name.to_string(), levels: levels.len() }).collect();
            all.push(Listed { name: preset.name, group: preset.group, title: scenario.title, varies });
        }
        let json = serde_json::to_string(&all).map_err(|error| Failure::new(format_args!("{error}")))?;
        write_out(&(json + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut output = wrapped(HEAD, 0);
    let width = PRESETS.iter().map(|preset| preset.name.len()).max().unwrap_or(0);
    let mut group = "";
    for preset in PRESETS {
        if group != preset.group {
            group = preset.group;
            output += &format!("\n{group}\n");
        }
        let scenario = load(preset.name)?;
        let indent = 2 + width + 2;
        output += &wrapped(&format!("  {:<width$}  {}", preset.name, scenario.title), indent);
        let varied = varied(&scenario);
        if !varied.is_empty() {
            let factors: Vec<String> =
                varied.iter().map(|(name, levels)| format!("{name}\u{a0}({})", levels.len())).collect();
            output += &wrapped(&format!("{}varies {}", " ".repeat(indent), factors.join(", ")), indent);
        }
    }
    let usual = "Unless a scenario is about others, the contenders are cubic, bbr3, auto (which keeps the queue short and passes over random loss) and \
                 auto+repair (auto with forward error correction where the path needs it).";
    output += &format!("\n{}", wrapped(usual, 0));
    output += &wrapped(&format!("Congestion controllers for --cc: {}.", lab::tiderace::controllers().join(", ")), 0);
    write_out(&output)?;
    Ok(ExitCode::SUCCESS)
}
