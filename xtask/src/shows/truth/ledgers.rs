//! Books that balance: every byte at both ends, every packet at the links, every datagram in one column.

use anyhow::{Context as _, Result, ensure};
use lab::{
    record::RunOutcome,
    run::run_one,
    scenario::{PRESETS, Scenario, load},
};
use units::Duration;

use super::super::{
    Context,
    hardening::{field, lines, test},
    row::{Row, Target},
};

/// Random simulations of the transport, and a run of every preset of the lab.
pub(crate) fn ledgers(context: &Context) -> Result<Vec<Row>> {
    Ok(vec![random(context)?, presets(context)?])
}

/// Random networks and applications.
fn random(context: &Context) -> Result<Row> {
    let arguments = ["--release", "-p", "tiderace-transport", "--test", "protocol", "books::"];
    let after: &[&str] = if context.long { &["--ignored"] } else { &[] };
    let ended = test(context, "ledgers", &arguments, after)?;
    let all = lines(&ended.stdout, "books: ");
    // The name of the line is its first field.
    let (first, fields) = all.first().with_context(|| format!("nothing was simulated: {}", ended.reason()))?;
    let get = |name| field(fields, name);
    let row = Row::new("differences in the books of random simulations", get("differences")?, "", Target::Exactly(0.0));
    Ok(row.detail(format!("{first}; {} packets, of which links dropped {}", get("packets")?, get("dropped")?)))
}

/// Runs of the lab whose books, of stacks and network, do not agree.
fn presets(context: &Context) -> Result<Row> {
    let span = Duration::from_secs(if context.long { 20 } else { 2 });
    let (mut runs, mut wrong) = (0, Vec::new());
    for preset in PRESETS {
        let mut scenario: Scenario = load(preset.name)?;
        (scenario.run.warmup, scenario.run.duration) = (Duration::ZERO, span);
        scenario.traffic.connections = scenario.traffic.connections.min(20);
        scenario.traffic.start_spread = scenario.traffic.start_spread.min(span);
        for name in ["cubic", "bbr3"] {
            let contender = lab::tiderace::contender(name).context("a controller is gone")?;
            let record = run_one(&scenario, contender.as_ref(), 1, None);
            ensure!(!record.books.network.is_empty(), "{}: the record has no books", preset.name);
            runs += 1;
            if let RunOutcome::Failed(reason) = record.outcome
                && reason.contains("books")
            {
                wrong.push(format!("{}: {reason}", preset.name));
            }
        }
    }
    let row = Row::new("runs of the lab whose books do not balance", wrong.len() as f64, "", Target::Exactly(0.0));
    Ok(row.detail(format!(
        "{runs} runs: every preset for {} s with cubic and bbr3; {}",
        span.as_secs(),
        wrong.join("; ")
    )))
}
