//! Reports of every preset fit a terminal of 80 columns, whatever the figures are: made from records with invented values, so
//! that nothing has to be simulated.

use std::collections::BTreeMap;

use tiderace_lab::{
    figure::Figure,
    measure::{LinkWindow, Provenance, Reading},
    plan::Plan,
    record::{RECORD_SCHEMA, Record, RunOutcome, TraceSummary},
    report::{Report, Style, brief, points, text},
    scenario::{Overrides, PRESETS, Scenario, load},
    summary::Summary,
};

const COLUMNS: usize = 80;

/// A run with this value in every figure, in the unit that is printed.
fn record(plan: &Plan, index: usize, scenario: &Scenario, printed: f64) -> Record {
    let job = plan.job(index);
    let contenders = plan.contenders(scenario).unwrap();
    let reading = |figure: Figure| {
        let value = Some(printed / figure.unit().printed().1);
        (figure, Reading { value, provenance: Provenance::Measured, samples: None, never: None, reason: None })
    };
    Record {
        schema: RECORD_SCHEMA.to_owned(),
        run: index as u64,
        point: plan.points()[job.point].clone(),
        scenario: scenario.name.clone(),
        digest: plan.base().digest(),
        contender: contenders[job.contender].identity(),
        seed: job.seed,
        outcome: RunOutcome::Valid,
        virtual_seconds: 30.0,
        events: 1,
        trace: TraceSummary { hash: "0123456789abcdef".to_owned(), packets: 12_345_678 },
        link: LinkWindow::default(),
        figures: Figure::all().map(reading).collect::<BTreeMap<_, _>>(),
        distributions: BTreeMap::new(),
        factors: Vec::new(),
        connections: Vec::new(),
        books: Default::default(),
        real_time: None,
    }
}

/// Output of `lab run` for a preset, brief and whole, if contender number `n` has `values(n)` everywhere.
fn printed(scenario: Scenario, values: &dyn Fn(usize) -> f64) -> Vec<String> {
    let plan = Plan::new(scenario).unwrap();
    let manifest = plan.manifest("test 1").unwrap();
    let scenarios: Vec<Scenario> = (0..plan.points().len()).map(|point| plan.scenario(point).unwrap()).collect();
    let records = (0..plan.len()).map(|index| {
        let job = plan.job(index);
        let value = values(job.contender + job.point) * (1.0 + 0.001 * number(usize::try_from(job.seed).unwrap()));
        record(&plan, index, &scenarios[job.point], value)
    });
    if plan.points().len() > 1 {
        let mut summary = Summary::empty(manifest, &plan);
        records.for_each(|record| summary.add(&record));
        return vec![points(&summary, &[], Style::default())];
    }
    let report = Report::new(manifest, &records.collect::<Vec<_>>());
    vec![brief(&report, Style::default()), text(&report)]
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

fn small(name: &str) -> Scenario {
    let mut scenario = load(name).unwrap();
    // The rows of the largest matrix are counted, not listed: a tenth of it looks the same.
    if name == "matrix-rtt-load" {
        let two = serde_json::from_str(r#"["fixed:1", "fixed:5"]"#).unwrap();
        scenario.factors.insert("profile.ack_frequency".to_owned(), two);
    }
    Overrides { seeds: Some(6), ..Overrides::default() }.apply(scenario).unwrap()
}

#[test]
fn every_preset_fits() {
    let spread = |index: usize| [0.0, 17.89, 1234.5, 0.004, 99.97][index % 5];
    let close = |index: usize| [100.0, 100.4][index % 2];
    for preset in PRESETS {
        for values in [&spread as &dyn Fn(usize) -> f64, &close] {
            for output in printed(small(preset.name), values) {
                for line in output.lines() {
                    assert!(line.chars().count() <= COLUMNS, "{}: {line}\n{output}", preset.name);
                    assert!(!line.ends_with(' ') && !line.contains('\x1b'), "{}: {line:?}", preset.name);
                }
            }
        }
    }
}

#[test]
fn five_contenders_fit_side_by_side() {
    let mut scenario = small("mobile");
    scenario.contenders.congestion.push("newreno".to_owned());
    let output = printed(scenario, &|index| 1000.0 + 100.0 * number(index)).remove(0);
    let heads: Vec<&str> = output.lines().filter(|line| line.contains("cubic") && line.starts_with(' ')).collect();
    assert_eq!(heads.len(), 1, "{output}");
    assert!(["cubic", "bbr3", "auto", "newreno", "auto+repair"].iter().all(|name| heads[0].contains(name)), "{output}");
}

#[test]
fn the_mark_the_sentence_and_its_conditions() {
    // Larger values for later contenders: the last has most goodput, and the first the shortest RTT.
    let output = printed(small("mobile"), &|index| 10.0 + number(index)).remove(0);
    insta::assert_snapshot!("brief", output);
    let output = printed(small("fec-iid"), &|index| 10.0 - number(index)).remove(0);
    insta::assert_snapshot!("one_contender_with_profile_factors", output);
    let output = printed(small("claims-rtt"), &|index| 10.0 + number(index % 5)).remove(0);
    insta::assert_snapshot!("points_of_a_path", output);
    let output = printed(small("matrix-rtt-load"), &|index| 10.0 + number(index % 3)).remove(0);
    insta::assert_snapshot!("many_points", output);
}
