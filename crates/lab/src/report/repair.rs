//! Benefit of repair: a sentence for each contender that spends bytes on it without a gain.

use super::{Report, board::Outcome, text::column_name, verdict::quantity};
use crate::{
    figure::Figure,
    stats::{
        compare::{Better, MARGIN},
        interval::RUNS_MIN,
    },
};

/// Less of the wire than this is not worth a word.
const WORTH_A_WORD: f64 = 0.01;

/// A sentence for each contender whose repair costs bytes and shows no gain, by the medians of the headline figures.
pub(super) fn notes(report: &Report) -> Vec<String> {
    (0..report.contenders.len()).filter_map(|contender| note(report, contender)).collect()
}

fn note(report: &Report, contender: usize) -> Option<String> {
    report.manifest.contenders.get(contender)?.parameters.get("fec").filter(|fec| *fec != "off")?;
    // Fewer runs decide nothing.
    if report.contenders.get(contender)?.runs < RUNS_MIN {
        return None;
    }
    let cost = report.cell(contender, Figure::Repair)?.median.filter(|cost| *cost >= WORTH_A_WORD)?;
    let name = |contender: usize| column_name(&report.contenders[contender].name, &report.manifest);
    let spends = format!("{} spends {} of the wire on repair", name(contender), quantity(Figure::Repair, cost));
    let Some(without) = without_repair(report, contender) else {
        return Some(format!("{spends}; no contender is the same without repair, so that what it gains is not known."));
    };
    let rows =
        || report.board.rows.iter().filter(|row| row.figure != Figure::Overhead && row.figure.better().is_some());
    if rows().any(|row| is_better(row.figure, row.medians[contender], row.medians[without])) {
        return None;
    }
    let decided = rows().find(|row| row.outcome != Outcome::None).or_else(|| rows().next())?;
    let value = |contender: usize| decided.medians[contender].map(|value| quantity(decided.figure, value));
    Some(format!(
        "{spends} and gains nothing: {} {}, {} has {}.",
        decided.figure.label().trim(),
        value(contender)?,
        name(without),
        value(without)?
    ))
}

/// The contender that differs only in repair.
fn without_repair(report: &Report, contender: usize) -> Option<usize> {
    let parameters = |contender: usize| {
        let mut parameters = report.manifest.contenders.get(contender)?.parameters.clone();
        parameters.remove("name");
        let fec = parameters.remove("fec")?;
        Some((parameters, fec))
    };
    let (own, _) = parameters(contender)?;
    let is_same = |other: &usize| parameters(*other).is_some_and(|(others, fec)| others == own && fec == "off");
    (0..report.contenders.len()).filter(|other| *other != contender).find(is_same)
}

/// Returns whether the first median is better by more than what counts as equal.
fn is_better(figure: Figure, first: Option<f64>, second: Option<f64>) -> bool {
    match (figure.better(), first, second) {
        (Some(Better::Higher), Some(first), Some(second)) => first > second * (1.0 + MARGIN),
        (Some(Better::Lower), Some(first), Some(second)) => first < second * (1.0 - MARGIN),
        // A figure that only one has says nothing of repair.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contender::Contender, measure::Reading, record::Record, run::run_one, scenario::parse, tiderace};

    /// Runs of CUBIC alone, and of CUBIC with a code, whose values are replaced.
    fn said(repair: f64, times: [f64; 2], columns: std::ops::Range<usize>, seeds: u64) -> Vec<String> {
        let text = r#"
            name = "short"
            title = "t"
            about = "a"
            [path.down]
            rate = "5 Mbit/s"
            queue = "30 kB"
            delay = "10 ms"
            [traffic]
            workload = "requests"
            response-size = "5 kB"
            connections = 1
            [run]
            duration = "200 ms"
            seeds = 6
        "#;
        let scenario = parse(text, "test").unwrap();
        let profile = |name: &str, fec: &str| transport::Profile {
            name: name.to_owned(),
            congestion: transport::congestion::Algorithm::Cubic,
            fec: fec.parse().unwrap(),
            ..transport::Profile::default()
        };
        let all = [profile("plain", "off"), profile("coded", "rlc:1/5:40")].map(tiderace::with_profile);
        let all: Vec<&dyn Contender> = all.iter().map(AsRef::as_ref).collect();
        let records: Vec<Record> = columns
            .clone()
            .map(|index| {
                let mut record = run_one(&scenario, all[index], 1, None);
                record.outcome = crate::record::RunOutcome::Valid;
                let mut set = |figure, value| {
                    let reading = Reading { value: Some(value), ..record.figures[&Figure::Goodput].clone() };
                    record.figures.insert(figure, reading);
                };
                for figure in [Figure::RequestP99, Figure::RequestP95, Figure::RequestP50] {
                    set(figure, times[index]);
                }
                set(Figure::RequestRate, 1.0 / times[index]);
                if index == 1 {
                    set(Figure::Repair, repair);
                }
                record
            })
            .flat_map(|record| (1..=seeds).map(move |seed| Record { seed, ..record.clone() }))
            .collect();
        let manifest = crate::record::Manifest {
            schema: crate::record::MANIFEST_SCHEMA.to_owned(),
            lab: crate::record::LAB.to_owned(),
            digest: scenario.digest(),
            contenders: columns.map(|index| all[index].identity()).collect(),
            scenario,
        };
        notes(&Report::new(manifest, &records)).into_iter().map(|text| text.replace('\u{a0}', " ")).collect()
    }

    #[test]
    fn repair_that_gains_nothing_is_said_so() {
        let none: [String; 0] = [];
        let cost = |text: &str| text.contains("coded spends 16.0 % of the wire on repair");
        let [text] = &said(0.16, [0.1, 0.1], 0..2, 6)[..] else { panic!("one sentence") };
        assert!(cost(text) && text.ends_with("and gains nothing: request p99 100 ms, plain has 100 ms."), "{text}");
        assert_eq!(said(0.16, [0.1, 0.09], 0..2, 6), none, "a tenth is a gain");
        assert_eq!(said(0.16, [0.1, 0.1], 0..2, 2), none, "two seeds decide nothing");
        assert_eq!(said(0.005, [0.1, 0.1], 0..2, 6), none, "it costs next to nothing");
        let [text] = &said(0.16, [0.1, 0.1], 1..2, 6)[..] else { panic!("one sentence") };
        assert!(cost(text) && text.contains("no contender is the same without repair"), "{text}");
    }
}
