//! `tiderace lab list`: the built-in scenarios.

use std::process::ExitCode;

use lab::{
    report::{varied, wrapped},
    scenario::{PRESETS, load},
};

use crate::{failure::Failure, stdout::write_out};

const HEAD: &str = "Scenarios for `tiderace lab run NAME`. Each compares its contenders on the same modelled path. The file is \
                    scenarios/NAME.toml; `tiderace lab new` makes one of your own.";

pub(super) fn list() -> Result<ExitCode, Failure> {
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
    let usual = "Unless a scenario is about others, the contenders are cubic, bbr3, auto (which chooses between the two) and \
                 auto+repair (auto with forward error correction where the path needs it).";
    output += &format!("\n{}", wrapped(usual, 0));
    output += &wrapped(&format!("Congestion controllers for --cc: {}.", lab::tiderace::controllers().join(", ")), 0);
    write_out(&output)?;
    Ok(ExitCode::SUCCESS)
}
