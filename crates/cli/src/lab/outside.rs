//! Table of contenders that are commands.

use lab::{
    record::{Commands, RealTime, Record, RunOutcome},
    stats::quantile::median,
};

use super::{live::tables::labelled, table::Table};

/// Observations of commands, a line for each label. Empty without any.
pub(super) fn table(records: &[Record], label: &dyn Fn(&Record) -> String) -> String {
    let mut table = Table::new(&[
        "Commands (medians)",
        "completion",
        "completed",
        "up",
        "down",
        "CPU client",
        "CPU server",
        "exit codes",
    ]);
    let outside = records.iter().filter(|record| seen(record).is_some());
    for (name, runs) in labelled(outside, label) {
        let counting = runs.iter().filter(|record| record.outcome == RunOutcome::Valid);
        let valid: Vec<(&RealTime, &Commands)> = counting.filter_map(|record| seen(record)).collect();
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
        table.add(
            &name,
            [
                dash(middle(completions), 1.0, 3, "s"),
                completed,
                dash(bytes(0), 1e-6, 3, "MB"),
                dash(bytes(1), 1e-6, 3, "MB"),
                dash(middle_by(&|(machine, _)| machine.cpu[0]), 1e3, 0, "ms"),
                dash(middle_by(&|(machine, _)| machine.cpu[1]), 1e3, 0, "ms"),
                codes(runs.iter().filter_map(|record| seen(record)).flat_map(|(_, one)| &one.exit_codes)),
            ],
        );
    }
    table.text()
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
