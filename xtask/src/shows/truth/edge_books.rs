//! Books of the edge: 100,000 requests that clients, back ends and the gateway end at random, over three versions of HTTP.

use std::{fmt::Write as _, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};

use super::super::{
    Context,
    command::cargo,
    row::{Row, Target},
};

const REQUESTS: u32 = 100_000;
const LIMIT: Duration = Duration::from_secs(3_600);

/// All rows.
pub(super) fn edge_books(context: &Context) -> Result<Vec<Row>> {
    let scratch = context.commands.scratch("edge-books")?;
    let figures = scratch.join("figures.txt");
    let mut command = cargo(&context.root, ["test", "--locked", "-p", "tiderace-edge", "--test", "balance"]);
    command.args(["--", "--nocapture"]).env("BOOKS_REQUESTS", REQUESTS.to_string()).env("BOOKS_FIGURES", &figures);
    let ended = context.commands.run("edge-books", &mut command, LIMIT)?;
    let measured = |what: &str| -> Result<f64> {
        let said = ended
            .stdout
            .lines()
            .find_map(|line| line.split_once("measured ")?.1.strip_prefix(what)?.strip_prefix(": "));
        said.and_then(|value| value.parse().ok()).with_context(|| format!("no `{what}`: {}", ended.reason()))
    };
    let by = |who: &str| measured(&format!("ended by {who}"));
    let (begun, finished, written) =
        (measured("requests begun")?, measured("requests ended")?, measured("lines written or counted as dropped")?);
    let shares = format!(
        "ended by a whole answer {}, the client {}, the back end {}, the gateway {}, a limit {}; {} sent, those that were given up at \
         once may not have begun",
        by("answer")?,
        by("client")?,
        by("back_end")?,
        by("gateway")?,
        by("limit")?,
        measured("requests sent")?,
    );
    let alerts = rules(context, &scratch, &figures)?;
    Ok(vec![
        Row::new("requests that have begun and not ended", begun - finished, "", Target::Exactly(0.0)).detail(shares),
        Row::new("requests without a line, or with two", finished - written, "", Target::Exactly(0.0))
            .detail(format!("{finished} ended, {written} lines")),
        Row::new(
            "requests whose line differs from what was seen",
            measured("differences between clients and books")?,
            "",
            Target::Exactly(0.0),
        )
        .detail("status, whose doing, and whether it was whole, by the path of each request"),
        Row::new("errors while only clients give up", measured("errors in clients' aborts")?, "", Target::Exactly(0.0))
            .detail("the numerator of tiderace_edge:errors:ratio5m after the first half"),
        Row::new("failed tests of the books", if ended.succeeded() { 0.0 } else { 1.0 }, "", Target::Exactly(0.0)),
        Row::new("failed tests of the alert over these counts", alerts, "", Target::Exactly(0.0)).detail(
            "promtool: EdgeErrors is silent for what was measured, and fires when the same aborts are booked as a back end's 502",
        ),
    ])
}

/// Has promtool evaluate the rules over what was measured, growing for half an hour; and over the same with clients' aborts as errors.
fn rules(context: &Context, scratch: &Path, figures: &Path) -> Result<f64> {
    let figures = std::fs::read_to_string(figures).context("the test has written no metrics")?;
    let rules = context.root.join("deploy/prometheus/rules.yml");
    let mut text = format!(
        "rule_files: [{}]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n",
        rules.display()
    );
    for line in figures.lines() {
        let Some((labels, value)) =
            line.strip_prefix("tiderace_edge_requests_total{").and_then(|line| line.rsplit_once("} "))
        else {
            continue;
        };
        let mut series = |instance: &str, labels: &str| {
            writeln!(
                text,
                "      - series: 'tiderace_edge_requests_total{{instance=\"{instance}\",{labels}}}'\n        values: 0+{value}x40"
            )
        };
        series("measured", labels)?;
        let wrong = labels.replace("status=\"4xx\",ended_by=\"client\"", "status=\"5xx\",ended_by=\"back_end\"");
        series("wrong", &wrong)?;
    }
    text += "    alert_rule_test:\n      - alertname: EdgeBooksDiffer\n        eval_time: 30m\n    promql_expr_test:\n";
    for (instance, fires) in [("measured", false), ("wrong", true)] {
        let query = format!("count(ALERTS{{alertname=\"EdgeErrors\",alertstate=\"firing\",instance=\"{instance}\"}})");
        let expected = if fires { "[{labels: '{}', value: 1}]" } else { "[]" };
        writeln!(text, "      - expr: '{query}'\n        eval_time: 30m\n        exp_samples: {expected}")?;
    }
    let file = scratch.join("rules.test.yml");
    std::fs::write(&file, text)?;
    let mut command = Command::new("promtool");
    let tested = context.commands.run("edge-books-rules", command.args(["test", "rules"]).arg(&file), LIMIT)?;
    Ok(if tested.succeeded() { 0.0 } else { 1.0 })
}
