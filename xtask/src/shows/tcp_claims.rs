//! Published claims about QUIC against TCP, with the kernel's TCP beside our stack: the scenarios of `scenarios/real-time`.

use std::{collections::BTreeMap, path::Path, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Context,
    command::load,
    matrices::program,
    row::{Row, Target},
    tcp_claim_sets::{ALONE, CLAIMS, LANES, LOSSES, Ratio, Set, Share},
};

/// A scenario takes some minutes.
const LIMIT: Duration = Duration::from_secs(1_800);

/// Runs the scenarios: two short ones, or with `--long` all, with their own connections and with 20, which takes an hour.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let program = program(context)?;
    let wanted = |set: &&Set| context.long || (["setup", "buffer"].contains(&set.scenario) && !set.is_twenty);
    let lane = |sets: &[Set]| -> Vec<(Set, Result<Runs>)> {
        sets.iter().filter(wanted).map(|&set| (set, run(context, &program, set))).collect()
    };
    // Runs that slow each other down do not count: the limits on the use of the machine by others hold for lanes, too.
    let mut all: Vec<_> = thread::scope(|scope| {
        let lanes = LANES.map(|sets| scope.spawn(move || lane(sets)));
        lanes.into_iter().flat_map(|lane| lane.join().unwrap_or_default()).collect()
    });
    all.extend(lane(ALONE));
    let rows = |set: Set, answers: &dyn Fn(&str, &Runs) -> Vec<Row>| -> Vec<Row> {
        match all.iter().find(|(ran, _)| *ran == set) {
            Some((_, Ok(runs))) => answers(&set.name(), runs),
            Some((_, Err(error))) => vec![Row::unmeasured(&set.name(), error)],
            None if context.long => vec![Row::unmeasured(&set.name(), &anyhow::anyhow!("it did not run"))],
            None => Vec::new(),
        }
    };
    let mut answers = Vec::new();
    for claim in &CLAIMS {
        for is_twenty in [false, true].into_iter().take(1 + usize::from(claim.twenty.is_some())) {
            let set = Set { scenario: claim.scenario, is_twenty };
            answers.extend(rows(set, &|name, runs| claim.ratios.iter().map(|ratio| row(name, ratio, runs)).collect()));
        }
    }
    let (scenario, shares) = LOSSES;
    let set = Set { scenario, is_twenty: false };
    answers.extend(rows(set, &|name, runs| shares.iter().map(|one| share(name, one, runs)).collect()));
    Ok(answers)
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

fn run(context: &Context, program: &Path, set: Set) -> Result<Runs> {
    let file = context.root.join(format!("scenarios/real-time/{}.toml", set.scenario));
    let out = context.commands.target().join("shows/real-time");
    let mut command = Command::new(program);
    command.arg("lab").arg("run").arg(file).args(["--real-time", "--json", "--out"]).arg(&out);
    command.args(set.options());
    let ended = context.commands.run(&format!("real-time-{}", set.name()), &mut command, LIMIT)?;
    // A report of which some runs do not count is one nevertheless.
    ensure!(matches!(ended.code, Some(0 | 1)), "{}", ended.reason());
    let report: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.reason())?;
    let records = report["records"].as_str().context("the report names no records")?;
    let text = std::fs::read_to_string(records).with_context(|| format!("read {records}"))?;
    let mut runs = Runs::new();
    for line in text.lines().skip(1) {
        let record: Value = serde_json::from_str(line)?;
        // Those in doubt have figures, too.
        if record["outcome"] != "valid" {
            continue;
        }
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
    use super::{super::tcp_claim_sets::KERNEL, *};

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
