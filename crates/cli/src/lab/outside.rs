//! Table of contenders that are commands.

use std::fmt::Write;

use lab::{
    record::{Commands, RealTime, Record, RunOutcome},
    stats::quantile::median,
};

/// Observations of commands, a line for each contender. Empty without any.
pub(super) fn table(records: &[Record]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for record in records.iter().filter(|record| seen(record).is_some()) {
        if !names.contains(&record.contender.name.as_str()) {
            names.push(&record.contender.name);
        }
    }
    let mut out = String::new();
    if !names.is_empty() {
        out.push_str("\nCommands (medians)       completion  completed         up       down  CPU client  CPU server  exit codes\n");
    }
    for name in names {
        let runs = || records.iter().filter(|record| record.contender.name == name);
        let valid: Vec<(&RealTime, &Commands)> =
            runs().filter(|record| record.outcome == RunOutcome::Valid).filter_map(seen).collect();
        let middle_by = |read: &dyn Fn(&(&RealTime, &Commands)) -> f64| middle(valid.iter().map(read).collect());
        let completions: Vec<f64> =
            valid.iter().flat_map(|(_, one)| one.completion.iter().flatten()).copied().collect();
        let clients: usize = valid.iter().map(|(_, one)| one.completion.len()).sum();
        let completed = format!("{} of {clients}", completions.len());
        let dash = |value: Option<f64>, scale: f64, digits: usize, unit: &str| {
            value.map_or_else(|| "–".to_owned(), |value| format!("{:.digits$} {unit}", value * scale))
        };
        #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 bytes")]
        let bytes = |direction: usize| middle_by(&|(_, one)| one.link_bytes[direction] as f64);
        let _ = writeln!(
            out,
            "{name:<23}  {:>10}  {completed:>9}  {:>9}  {:>9}  {:>10}  {:>10}  {:>10}",
            dash(middle(completions), 1.0, 3, "s"),
            dash(bytes(0), 1e-6, 3, "MB"),
            dash(bytes(1), 1e-6, 3, "MB"),
            dash(middle_by(&|(machine, _)| machine.cpu[0]), 1e3, 0, "ms"),
            dash(middle_by(&|(machine, _)| machine.cpu[1]), 1e3, 0, "ms"),
            codes(runs().filter_map(seen).flat_map(|(_, one)| &one.exit_codes)),
        );
    }
    out
}

fn seen(record: &Record) -> Option<(&RealTime, &Commands)> {
    let machine = record.real_time.as_ref()?;
    Some((machine, machine.commands.as_ref()?))
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    median(&values)
}

/// Exit codes, each once; a dash for clients that the end of the run ended.
fn codes<'a>(all: impl Iterator<Item = &'a Option<u8>>) -> String {
    let mut codes: Vec<Option<u8>> = all.copied().collect();
    codes.sort_unstable();
    codes.dedup();
    let texts: Vec<String> =
        codes.into_iter().map(|code| code.map_or("–".to_owned(), |code| code.to_string())).collect();
    texts.join(", ")
}
