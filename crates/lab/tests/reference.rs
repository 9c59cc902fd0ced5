//! Results that are known from elsewhere: if the laboratory does not reproduce them, nothing else it says counts.

extern crate tiderace_lab as lab;

use lab::{
    experiment::{Experiment, Yield},
    figure::Figure,
    record::{Record, RunOutcome},
    run::Execution,
    scenario::{Overrides, Scenario, load},
    stats::quantile::median,
    tiderace::contender,
};

/// A single download without random loss on the way back.
fn single(overrides: Overrides, warmup_secs: u64) -> Scenario {
    let mut scenario = load("satellite").unwrap();
    scenario.path.up.as_mut().unwrap().loss = netem::Loss::None;
    let loss = overrides.loss;
    let mut scenario = Overrides { loss: None, connections: Some(1), ..overrides }.apply(scenario).unwrap();
    scenario.path.down.loss = loss.filter(|p| p.get() > 0.0).map_or(netem::Loss::None, |p| netem::Loss::Iid { p });
    scenario.run.warmup = units::Duration::from_secs(warmup_secs);
    scenario
}

fn run(scenario: &Scenario) -> Vec<Record> {
    let contenders = scenario.contenders.congestion.iter().map(|name| contender(name).unwrap()).collect();
    let Yield { records, checks, .. } =
        Experiment::new(scenario.clone(), contenders).run("test", &Execution::default(), &|_| {});
    assert!(checks.iter().all(|check| check.passed), "{checks:?}");
    assert!(records.iter().all(|record| record.outcome == RunOutcome::Valid), "{records:?}");
    records
}

fn median_of(records: &[Record], controller: &str, value: impl Fn(&Record) -> f64) -> f64 {
    let own = records.iter().filter(|record| record.factors[0].value == controller);
    let mut values: Vec<f64> = own.map(value).collect();
    values.sort_by(f64::total_cmp);
    median(&values).unwrap()
}

/// RFC 9438 §5.1 and §5.2: the average window of CUBIC (C = 0.4, β = 0.7) and of Reno at this loss, in packets. CUBIC
/// never has less than Reno.
fn model_window(controller: &str, loss: f64, rtt: f64) -> f64 {
    let reno = 1.2 / loss.sqrt();
    match controller {
        "newreno" => reno,
        _ => reno.max(1.054 * (rtt / loss).powf(0.75)),
    }
}

#[test]
fn goodput_follows_the_loss_as_rfc_9438_says() {
    for (loss, seconds) in [("0.1 %", 120), ("1 %", 60)] {
        let scenario = single(
            Overrides {
                loss: Some(loss.parse().unwrap()),
                rate: Some(units::Bitrate::from_mbps(50)),
                delay: Some(units::Duration::from_millis(50)),
                queue: Some("1 BDP".parse().unwrap()),
                duration: Some(units::Duration::from_secs(seconds)),
                seeds: Some(10),
                ..Overrides::default()
            },
            10,
        );
        let records = run(&scenario);
        for controller in ["newreno", "cubic"] {
            let goodput = median_of(&records, controller, |record| record.figures[&Figure::Goodput].value.unwrap());
            // The run's own payload: application bytes per packet that the sender sent, less what it sent again.
            let payload = median_of(&records, controller, |record| {
                let connection = &record.connections[0];
                connection.stream_bytes_sent.unwrap() as f64 / connection.packets_sent.unwrap() as f64
            });
            let p = scenario.path.down.loss.mean();
            let model = model_window(controller, p, 0.1) * payload * 8.0 / 0.1;
            let ratio = goodput / model;
            println!("{controller} at {loss}: {:.2} Mbit/s, model {:.2}, ratio {ratio:.2}", goodput / 1e6, model / 1e6);
            assert!((0.75..=1.25).contains(&ratio), "{controller} at {loss}: {ratio:.2} of the model");
        }
    }
}

#[test]
fn cubic_fills_the_buffer_whatever_its_size() {
    for products in ["0.5 BDP", "1 BDP", "2 BDP", "4 BDP"] {
        let scenario = single(
            Overrides {
                loss: Some("0 %".parse().unwrap()),
                rate: Some(units::Bitrate::from_mbps(20)),
                delay: Some(units::Duration::from_millis(25)),
                queue: Some(products.parse().unwrap()),
                duration: Some(units::Duration::from_secs(60)),
                seeds: Some(1),
                congestion: vec!["cubic".to_owned()],
                ..Overrides::default()
            },
            10,
        );
        let records = run(&scenario);
        let p99 = median_of(&records, "cubic", |record| record.figures[&Figure::QueueDelayP99].value.unwrap());
        let netem::Queue::DropTail { bytes } = scenario.path.down.queue else { panic!("drop-tail") };
        let buffer = scenario.path.down.rate.unwrap().time_for(bytes).as_secs_f64();
        println!("{products}: p99 {:.1} ms of {:.1} ms", p99 * 1e3, buffer * 1e3);
        assert!((0.96..=1.005).contains(&(p99 / buffer)), "{products}: {:.3}", p99 / buffer);
    }
}
