//! Runs of the page: the contenders side by side, and what is drawn of them.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use lab::{
    contender::Contender,
    figure::Figure,
    record::{Record, RunOutcome},
    run::run_watched,
    scenario::Scenario,
    stats::compare::Better,
    watch::{Moment, Watch},
};
use serde::Serialize;

use super::request::Asked;

/// Moments of a run that are drawn.
const MOMENTS: u32 = 240;
/// Packets that a rate is of, at least, where the link is full.
const PACKETS: f64 = 20.0;
/// Time that a run of the page may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Document for the page.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    title: String,
    /// Scenario file with these settings.
    scenario: String,
    /// Virtual seconds: figures count from the first to the second.
    measured: [f64; 2],
    /// Wall-clock seconds that the runs took.
    took: f64,
    contenders: Vec<Run>,
}

/// Figures and series of one contender.
#[derive(Debug, Serialize)]
struct Run {
    name: String,
    /// Reason why the figures may not be used.
    failed: Option<String>,
    figures: Vec<Value>,
    series: Series,
    /// Quantiles at equal distances, in milliseconds; `null` is a sample that never came.
    spread: BTreeMap<&'static str, Vec<Option<f64>>>,
}

#[derive(Debug, Serialize)]
struct Value {
    /// Key in records.
    figure: &'static str,
    label: &'static str,
    unit: &'static str,
    value: Option<f64>,
    /// `higher`, `lower`, or neither.
    better: Option<&'static str>,
    /// Definition.
    meaning: &'static str,
}

/// Values at moments, all lists of the same length.
#[derive(Debug, Default, Serialize)]
struct Series {
    /// Seconds.
    at: Vec<f64>,
    /// Rate that the loaded link delivers, Mbit/s.
    rate: Vec<f64>,
    /// Time that a packet would wait in its queue, ms.
    queue: Vec<f64>,
    /// Congestion window of the first connection, kB.
    window: Vec<Option<f64>>,
    /// Bytes in flight of the first connection, kB.
    flight: Vec<Option<f64>>,
}

/// Runs all contenders, on as many threads. Breaks off once `stop` is set.
///
/// # Errors
/// When it was broken off, or took too long.
pub(super) fn run(asked: &Asked, stop: &AtomicBool) -> Result<Outcome, String> {
    let begun = Instant::now();
    let one = |contender: &dyn Contender| {
        watched(&asked.scenario, contender, &|| stop.load(Ordering::Relaxed) || begun.elapsed() > LIMIT)
    };
    let contenders: Vec<Run> = thread::scope(|scope| {
        let runs: Vec<_> = asked.contenders.iter().map(|contender| scope.spawn(|| one(contender.as_ref()))).collect();
        runs.into_iter().map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    if begun.elapsed() > LIMIT {
        return Err(format!(
            "the run took more than {} s: measure a shorter time, or fewer connections",
            LIMIT.as_secs()
        ));
    }
    let run = &asked.scenario.run;
    Ok(Outcome {
        title: asked.scenario.title.clone(),
        scenario: asked.text.clone(),
        measured: [run.measure_from().as_secs_f64(), run.end().as_secs_f64()],
        took: begun.elapsed().as_secs_f64(),
        contenders,
    })
}

fn watched(scenario: &Scenario, contender: &dyn Contender, stop: &dyn Fn() -> bool) -> Run {
    let rate = scenario.loaded_link().mean_rate().map_or(f64::INFINITY, |rate| rate.as_bps() as f64);
    let every = Duration::from_secs_f64(scenario.run.end().as_secs_f64() / f64::from(MOMENTS));
    // A rate of a few packets says nothing.
    let back = (PACKETS * 12_000.0 / rate / every.as_secs_f64()).ceil().clamp(1.0, f64::from(MOMENTS));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 240")]
    let back = back as usize;
    let mut series = Series::default();
    let mut before = std::collections::VecDeque::from([(0.0, 0)]);
    let mut see = |moment: Moment| {
        if stop() {
            return ControlFlow::Break(());
        }
        let (at, bytes) = (moment.at.as_secs_f64(), moment.link.delivered.bytes);
        series.at.push(at);
        let then = before.front().copied().unwrap_or_default();
        series.rate.push(megabits(bytes - then.1) / (at - then.0));
        series.queue.push(moment.backlog.as_bytes() as f64 * 8e3 / rate);
        let first = moment.senders.first().copied().flatten();
        series.window.push(first.map(|sender| sender.window as f64 / 1e3));
        series.flight.push(first.map(|sender| sender.in_flight as f64 / 1e3));
        before.push_back((at, bytes));
        if before.len() > back {
            before.pop_front();
        }
        ControlFlow::Continue(())
    };
    let record = run_watched(scenario, contender, scenario.run.seed, &mut Watch::new(every, &mut see));
    told(scenario, &record, series)
}

fn told(scenario: &Scenario, record: &Record, series: Series) -> Run {
    let spread = record.distributions.iter().map(|(kind, quantiles)| {
        let millis = quantiles.iter().map(|value| value.map(|seconds| seconds * 1e3)).collect();
        (kind.label(), millis)
    });
    Run {
        name: record.contender.name.trim_start_matches("tiderace ").to_owned(),
        failed: match &record.outcome {
            RunOutcome::Failed(reason) => Some(reason.clone()),
            RunOutcome::Valid => None,
        },
        figures: scenario.headlines().into_iter().map(|figure| value(figure, record)).collect(),
        series,
        spread: spread.collect(),
    }
}

fn value(figure: Figure, record: &Record) -> Value {
    let (unit, factor) = figure.unit().printed();
    Value {
        figure: figure.key(),
        label: figure.label(),
        unit,
        value: record.figures.get(&figure).and_then(|reading| reading.value).map(|value| value * factor),
        better: figure.better().map(|better| match better {
            Better::Higher => "higher",
            Better::Lower => "lower",
        }),
        meaning: figure.meaning(),
    }
}

fn megabits(bytes: u64) -> f64 {
    bytes as f64 * 8e-6
}
