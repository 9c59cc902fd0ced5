//! Settings of congestion control that there are not: the program has to refuse them and to say what there is.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    Context,
    matrices::program,
    row::{Row, Target},
};

/// Mistake of a person, and the words that the answer has to have.
struct Wrong {
    what: &'static str,
    /// Options of `tiderace lab`, without the scenario and the directory of records.
    options: &'static [&'static str],
    /// Replaces `congestion = "cubic"` in a profile of a scenario file, when it is the file that is wrong.
    setting: Option<&'static str>,
    names: &'static [&'static str],
}

const CONTROLLERS: [&str; 6] = ["newreno", "cubic", "bbr1", "bbr2", "bbr3", "auto"];
const RHYTHMS: [&str; 3] = ["off", "fixed:N", "adaptive"];

const fn option(what: &'static str, options: &'static [&'static str], names: &'static [&'static str]) -> Wrong {
    Wrong { what, options, setting: None, names }
}

const fn setting(what: &'static str, setting: &'static str, names: &'static [&'static str]) -> Wrong {
    Wrong { what, options: &["run", "FILE"], setting: Some(setting), names }
}

const CASES: [Wrong; 9] = [
    option("a controller that there is not", &["run", "mobile", "--cc", "bbr9"], &CONTROLLERS),
    option("no packets per acknowledgement", &["run", "mobile", "--ack", "fixed:0"], &RHYTHMS),
    option("too many packets per acknowledgement", &["run", "mobile", "--ack", "fixed:1001"], &RHYTHMS),
    option("a rhythm that there is not", &["run", "mobile", "--ack", "sometimes"], &RHYTHMS),
    option("a controller that the suite does not know", &["suite", "bbr", "--cc", "vegas"], &CONTROLLERS),
    setting("a controller in a file", "congestion = \"bbr9\"", &CONTROLLERS),
    setting("a tolerance of random loss that is too large", "random_loss_tolerance = \"40 %\"", &["0 to 15 %"]),
    setting("a tolerance that is no share", "random_loss_tolerance = \"-1 %\"", &["%"]),
    setting("a setting that there is not", "auto = { busy = 10 }", &["auto", "random_loss_tolerance"]),
];

/// One row per case: the exit code, and whether the answer is of use.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let (program, scratch) = (program(context)?, context.commands.scratch("wrong-settings")?);
    let out = scratch.join("out");
    let mut rows = Vec::new();
    for (index, wrong) in CASES.iter().enumerate() {
        let mut command = Command::new(&program);
        command.arg("lab").current_dir(&scratch);
        if let Some(setting) = wrong.setting {
            let file = scratch.join(format!("wrong-{index}.toml"));
            let profile = format!("\n[[contenders.profiles]]\nname = \"wrong\"\n{setting}\n");
            let text = lab::scenario::PRESETS.iter().find(|preset| preset.name == "claims-pacing");
            let text = text.context("there is no `claims-pacing`")?.text;
            let (head, _) = text.split_once("\n[[contenders.profiles]]").context("it has no profiles")?;
            fs::write(&file, format!("{head}{profile}"))?;
            command.arg("run").arg(&file);
        } else {
            command.args(wrong.options);
        }
        if wrong.options[0] == "run" {
            command.arg("--out").arg(&out);
        }
        let ended = context.commands.run(&format!("wrong-setting-{index}"), &mut command, Duration::from_secs(60))?;
        let mut faults = Vec::new();
        faults.extend(
            wrong
                .names
                .iter()
                .filter(|name| !ended.stderr.contains(**name))
                .map(|name| format!("does not name {name}")),
        );
        if ended.stderr.lines().filter(|line| line.starts_with("error:")).count() != 1 {
            faults.push("not one line that begins with error:".to_owned());
        }
        if !ended.stdout.is_empty() || out.exists() {
            faults.push("something was printed or written".to_owned());
        }
        let code = ended.code.map_or(f64::NAN, f64::from);
        let mut row = Row::new(format!("exit code for {}", wrong.what), code, "", Target::Exactly(2.0));
        row.passed &= faults.is_empty();
        let said = ended.stderr.lines().filter(|line| !line.trim().is_empty()).take(4).collect::<Vec<_>>().join("\n");
        rows.push(row.detail(if faults.is_empty() { said } else { format!("{}\n{said}", faults.join(", ")) }));
    }
    Ok(rows)
}
