//! Published claims about QUIC against TCP, with the kernel's TCP beside our stack: the scenarios of `scenarios/real-time`.

use std::{collections::BTreeMap, path::Path, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Context,
    command::load,
    matrices::program,
    row::{Row, Target},
};

/// A scenario takes some minutes.
const LIMIT: Duration = Duration::from_secs(1_800);

/// A figure of one contender over that of another; shares, which may be zero, as a difference.
struct Ratio {
    figure: &'static str,
    of: &'static str,
    over: &'static str,
}

const fn ratio(figure: &'static str, of: &'static str, over: &'static str) -> Ratio {
    Ratio { figure, of, over }
}

const CUBIC: &str = "tiderace cubic";
const AUTO: &str = "tiderace auto";
const KERNEL: &str = "kernel-cubic";
const HTTP1: &str = "kernel-cubic:http1:6";

/// Scenarios, and the ratios that answer their claims.
const CLAIMS: [(&str, &[Ratio]); 9] = [
    (
        "api",
        &[
            ratio("request_p50", CUBIC, KERNEL),
            ratio("request_p50", AUTO, KERNEL),
            ratio("request_p95", CUBIC, KERNEL),
            ratio("request_p95", AUTO, KERNEL),
            ratio("request_p95", "kernel-bbr", KERNEL),
        ],
    ),
    (
        "feed",
        &[
            ratio("request_p50", CUBIC, KERNEL),
            ratio("request_p50", AUTO, KERNEL),
            ratio("request_p50", AUTO, HTTP1),
            ratio("feed_seen", AUTO, KERNEL),
            ratio("feed_seen", HTTP1, KERNEL),
        ],
    ),
    ("proxy", &[ratio("goodput", CUBIC, KERNEL), ratio("goodput", AUTO, KERNEL)]),
    (
        "uploads",
        &[
            ratio("goodput", "kernel-cubic:4", KERNEL),
            ratio("goodput", CUBIC, KERNEL),
            ratio("goodput", AUTO, KERNEL),
            ratio("goodput", AUTO, "kernel-cubic:4"),
        ],
    ),
    (
        "blocking",
        &[
            ratio("request_p50", CUBIC, KERNEL),
            ratio("request_p95", CUBIC, KERNEL),
            ratio("request_p95", AUTO, KERNEL),
            ratio("request_p95", HTTP1, KERNEL),
            ratio("request_p95", "kernel-bbr", KERNEL),
        ],
    ),
    (
        "setup",
        &[
            ratio("flow_p50", "tiderace new connection", KERNEL),
            ratio("flow_p50", "tiderace 0-RTT", KERNEL),
            ratio("flow_p50", "tiderace new connection", "kernel-cubic:tls1.2"),
            ratio("flow_p50", "kernel-cubic:tls1.2", KERNEL),
            ratio("flow_p50", "kernel-cubic:fast-open", KERNEL),
            ratio("flow_p50", "kernel-cubic:fast-open:x25519", KERNEL),
            ratio("flow_p50", "tiderace 0-RTT", "kernel-cubic:fast-open:x25519"),
            ratio("flow_p95", "tiderace new connection", KERNEL),
            ratio("flow_p95", "tiderace 0-RTT", KERNEL),
            ratio("flow_p95", "kernel-cubic:fast-open:x25519", KERNEL),
        ],
    ),
    ("buffer", &[ratio("goodput", "kernel-cubic:buffer=128KiB", KERNEL), ratio("goodput", CUBIC, KERNEL)]),
    (
        "home",
        &[
            ratio("goodput", CUBIC, KERNEL),
            ratio("goodput", AUTO, KERNEL),
            ratio("cpu", CUBIC, KERNEL),
            ratio("cpu", AUTO, KERNEL),
        ],
    ),
    ("video", &[ratio("video_stalled", CUBIC, KERNEL), ratio("video_stalled", AUTO, KERNEL)]),
];

/// A share of the connections of a contender, in percent, with the share that a claim has.
struct Share {
    figure: &'static str,
    of: &'static str,
    claimed: Option<f64>,
}

/// Scenario that counts connections, and the shares of them that answer its claims.
const LOSSES: (&str, &[Share]) = (
    "losses",
    &[
        Share { figure: "resent", of: KERNEL, claimed: Some(45.0) },
        Share { figure: "resent_setup", of: KERNEL, claimed: Some(30.0) },
        Share { figure: "resent_after", of: KERNEL, claimed: None },
        Share { figure: "resent", of: "kernel-cubic:x25519", claimed: Some(45.0) },
        Share { figure: "resent_setup", of: "kernel-cubic:x25519", claimed: Some(30.0) },
    ],
);

/// Scenarios that run one after another, beside those of the other lanes: they take little of a CPU.
const LANES: [&[&str]; 3] =
    [&["api", "feed"], &["setup", "video", "losses"], &["buffer", "uploads", "blocking", "proxy"]];
/// Scenarios that run alone, because CPU time is compared.
const ALONE: &[&str] = &["home"];

/// Runs the scenarios: two short ones, or with `--long` all, which takes half an hour.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let program = program(context)?;
    let wanted = |name: &&&str| context.long || ["setup", "buffer"].contains(*name);
    let lane = |names: &[&'static str], beside: &[&str]| -> Vec<(&'static str, Result<Runs>)> {
        names.iter().filter(wanted).map(|&name| (name, run(context, &program, name, beside))).collect()
    };
    // Packets that are late or lost on this machine make a run invalid all the same.
    let mut all: Vec<_> = thread::scope(|scope| {
        let lanes = LANES.map(|names| scope.spawn(move || lane(names, &["--accept-busy"])));
        lanes.into_iter().flat_map(|lane| lane.join().unwrap_or_default()).collect()
    });
    all.extend(lane(ALONE, &[]));
    let mut rows = Vec::new();
    for (name, ratios) in CLAIMS {
        match all.iter().find(|(ran, _)| *ran == name) {
            Some((_, Ok(runs))) => rows.extend(ratios.iter().map(|ratio| row(name, ratio, runs))),
            Some((_, Err(error))) => rows.push(Row::unmeasured(name, error)),
            None if context.long => rows.push(Row::unmeasured(name, &anyhow::anyhow!("it did not run"))),
            None => {}
        }
    }
    let (name, shares) = LOSSES;
    match all.iter().find(|(ran, _)| *ran == name) {
        Some((_, Ok(runs))) => rows.extend(shares.iter().map(|one| share(name, one, runs))),
        Some((_, Err(error))) => rows.push(Row::unmeasured(name, error)),
        None => {}
    }
    Ok(rows)
}

/// A share of the connections, beside the claim.
fn share(scenario: &str, share: &Share, runs: &Runs) -> Row {
    let runs = runs.get(share.of).into_iter().flatten();
    let values: Vec<f64> = runs.filter_map(|(_, figures)| Some(*figures.get(share.figure)? * 100.0)).collect();
    let row = Row::median(format!("{scenario}: {} of {}", share.figure, share.of), &values, "%", Target::Printed);
    let verdict = share.claimed.map(|claimed| format!("{}; ", verdict(claimed, row.interval))).unwrap_or_default();
    row.detail(format!("{verdict}{} seeds of a response of 8 kB on 60 connections; {}", values.len(), load()))
}

/// A claim beside the interval of what was measured.
fn verdict(claimed: f64, interval: Option<[f64; 2]>) -> String {
    match interval {
        None => format!("{claimed} % undecided: too few seeds for an interval"),
        Some([low, _]) if claimed < low => format!("{claimed} % refuted: it is more"),
        Some([_, high]) if claimed > high => format!("{claimed} % refuted: it is less"),
        Some(_) => format!("{claimed} % lies in the interval"),
    }
}

/// Figures by contender and seed.
type Runs = BTreeMap<String, BTreeMap<u64, BTreeMap<String, f64>>>;

fn run(context: &Context, program: &Path, name: &str, options: &[&str]) -> Result<Runs> {
    let file = context.root.join(format!("scenarios/real-time/{name}.toml"));
    let out = context.commands.target().join("shows/real-time");
    let mut command = Command::new(program);
    command.arg("lab").arg("run").arg(file).args(["--real-time", "--json", "--out"]).arg(&out).args(options);
    let ended = context.commands.run(&format!("real-time-{name}"), &mut command, LIMIT)?;
    // A report of which some runs do not count is one nevertheless.
    ensure!(matches!(ended.code, Some(0 | 1)), "{}", ended.reason());
    let report: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.reason())?;
    let records = report["records"].as_str().context("the report names no records")?;
    let text = std::fs::read_to_string(records).with_context(|| format!("read {records}"))?;
    let mut runs = Runs::new();
    for line in text.lines().skip(1) {
        let record: Value = serde_json::from_str(line)?;
        let contender = record["contender"]["name"].as_str().context("a record without a contender")?;
        let seed = record["seed"].as_u64().context("a record without a seed")?;
        let figures = record["figures"].as_object().into_iter().flatten();
        let known = figures.filter_map(|(name, reading)| Some((name.clone(), reading["value"].as_f64()?)));
        runs.entry(contender.to_owned()).or_default().insert(seed, known.collect());
    }
    Ok(runs)
}

fn row(scenario: &str, ratio: &Ratio, runs: &Runs) -> Row {
    let is_share = ["feed_seen", "video_stalled"].contains(&ratio.figure);
    let word = if is_share { "less that of" } else { "over" };
    let what = format!("{scenario}: {} of {} {word} {}", ratio.figure, ratio.of, ratio.over);
    let of = |contender: &str| -> BTreeMap<u64, f64> {
        let runs = runs.get(contender).into_iter().flatten();
        runs.filter_map(|(&seed, figures)| Some((seed, *figures.get(ratio.figure)?))).collect()
    };
    let (ours, theirs) = (of(ratio.of), of(ratio.over));
    let pairs: Vec<(f64, f64)> = ours.iter().filter_map(|(seed, value)| Some((*value, *theirs.get(seed)?))).collect();
    let compared: Vec<f64> =
        pairs.iter().map(|(ours, theirs)| if is_share { (ours - theirs) * 100.0 } else { ours / theirs }).collect();
    let middle = |values: Vec<f64>| Row::median("", &values, "", Target::Printed).value.unwrap_or(f64::NAN);
    let (ours, theirs) =
        (middle(pairs.iter().map(|pair| pair.0).collect()), middle(pairs.iter().map(|pair| pair.1).collect()));
    Row::median(what, &compared, if is_share { "points" } else { "×" }, Target::Printed).detail(format!(
        "{} pairs of seeds; medians {} and {}; {}",
        compared.len(),
        plain(ours),
        plain(theirs),
        load()
    ))
}

/// A value in the unit of the records (seconds, bit/s, shares) with four digits.
fn plain(value: f64) -> String {
    if value.abs() >= 1e4 { format!("{value:.3e}") } else { format!("{value:.4}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_stand_beside_the_interval() {
        let runs = |shares: &[f64]| -> Runs {
            let seed = |(seed, share): (usize, &f64)| (seed as u64, [("resent".to_owned(), *share)].into());
            [(KERNEL.to_owned(), shares.iter().enumerate().map(seed).collect())].into()
        };
        let one = Share { figure: "resent", of: KERNEL, claimed: Some(45.0) };
        for (shares, said) in [
            (&[0.40, 0.42, 0.45, 0.47, 0.50, 0.51][..], "45 % lies in the interval"),
            (&[0.50, 0.52, 0.55, 0.57, 0.60, 0.61], "45 % refuted: it is more"),
            (&[0.10, 0.12, 0.15, 0.17, 0.20, 0.21], "45 % refuted: it is less"),
            (&[0.45], "undecided"),
        ] {
            let row = share("losses", &one, &runs(shares));
            assert!(row.detail.contains(said), "{shares:?}: {}", row.detail);
        }
        assert_eq!(share("losses", &one, &Runs::new()).value, None);
    }
}
