//! Runs of hours: figures and memory over time, and whether memory grows.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::{Meter, memory};

/// Rows of a run.
const ROWS: u32 = 240;
/// Shortest time between two rows.
const SHORTEST: Duration = Duration::from_secs(1);
/// Part of the run at its begin that says nothing about growth: buffers and windows open.
const WARM_UP: f64 = 0.1;
/// Growth between the first and the last third that counts as none: a share of the memory, and bytes, whichever is more.
const FLAT: (f64, u64) = (0.05, 4 << 20);
/// Rows that a judgement takes.
const LEAST: usize = 12;

/// State at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) at_s: f64,
    /// Bytes of the application in both directions since the row before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mbit_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rtt_ms: Option<f64>,
    /// Resident memory in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<u64>,
}

/// Growth of memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Growth {
    /// Medians of the first and the last third after the warm-up, in bytes.
    pub(crate) first: f64,
    pub(crate) last: f64,
    /// Bytes an hour between the middles of both.
    pub(crate) per_hour: f64,
    pub(crate) is_flat: bool,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Soak {
    pub(crate) rows: Vec<Row>,
    /// `None`: the run was too short, or the system does not tell.
    pub(crate) growth: Option<Growth>,
}

impl Soak {
    fn new(rows: Vec<Row>) -> Self {
        Self { growth: growth(&rows), rows }
    }

    /// The judgement for people.
    pub(crate) fn text(&self) -> String {
        let Some(growth) = self.growth else {
            return format!("not judged: {} rows, {LEAST} are needed after the first tenth", self.rows.len());
        };
        let size = |bytes: f64| format!("{:.1} MB", bytes / 1e6);
        let word = if growth.is_flat { "flat" } else { "GROWS" };
        format!(
            "{word}: {} in the first third, {} in the last, {:+.1} MB an hour",
            size(growth.first),
            size(growth.last),
            growth.per_hour / 1e6
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of memory")]
fn growth(rows: &[Row]) -> Option<Growth> {
    let end = rows.last()?.at_s;
    let known: Vec<(f64, f64)> = rows
        .iter()
        .filter(|row| row.at_s >= WARM_UP * end)
        .filter_map(|row| Some((row.at_s, row.memory? as f64)))
        .collect();
    if known.len() < LEAST {
        return None;
    }
    let third = known.len() / 3;
    let middle = |rows: &[(f64, f64)]| {
        let of = |read: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = rows.iter().map(read).collect();
            values.sort_by(f64::total_cmp);
            lab::stats::quantile::median(&values)
        };
        Some((of(|row| row.0)?, of(|row| row.1)?))
    };
    let ((from, first), (to, last)) = (middle(&known[..third])?, middle(&known[known.len() - third..])?);
    let grown = last - first;
    let allowed = (FLAT.0 * first).max(FLAT.1 as f64);
    Some(Growth { first, last, per_hour: grown / (to - from) * 3_600.0, is_flat: grown <= allowed })
}

/// Gathers rows until it is asked for them.
pub(crate) struct Gathering {
    stop: tokio::sync::oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Vec<Row>>,
}

impl Gathering {
    /// Gathers over `length`.
    pub(crate) fn start(meter: Meter, length: Duration) -> Self {
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let every = (length / ROWS).max(SHORTEST);
        let task = tokio::spawn(async move {
            let (begun, mut rows, mut before) = (Instant::now(), Vec::new(), (Instant::now(), moved(&meter)));
            loop {
                tokio::select! {
                    () = tokio::time::sleep(every) => {}
                    _ = &mut stopped => return rows,
                }
                // A run that is late to end adds no rows for ever.
                if rows.len() < 2 * ROWS as usize {
                    let now = (Instant::now(), moved(&meter));
                    rows.push(row(&meter, begun, before, now));
                    before = now;
                }
            }
        });
        Self { stop, task }
    }

    /// Ends it.
    pub(crate) async fn finish(self) -> Soak {
        let _ = self.stop.send(());
        Soak::new(self.task.await.unwrap_or_default())
    }
}

fn moved(meter: &Meter) -> Option<u64> {
    meter.state().moved()
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a minute")]
fn row(meter: &Meter, begun: Instant, before: (Instant, Option<u64>), now: (Instant, Option<u64>)) -> Row {
    let span = now.0.saturating_duration_since(before.0).as_secs_f64();
    let rate = now.1.zip(before.1).map(|(after, before)| after.saturating_sub(before) as f64 * 8.0 / span / 1e6);
    let state = meter.state();
    let rtts: Vec<f64> =
        state.subjects.iter().filter_map(|subject| Some(subject.last.rtt?.as_secs_f64() * 1e3)).collect();
    Row {
        at_s: now.0.saturating_duration_since(begun).as_secs_f64(),
        mbit_per_s: rate,
        rtt_ms: (!rtts.is_empty()).then(|| rtts.iter().sum::<f64>() / rtts.len() as f64),
        memory: memory::resident(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(memory: impl Fn(f64) -> f64) -> Vec<Row> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
        let row = |n: i32| {
            let at_s = f64::from(n) * 15.0;
            Row { at_s, mbit_per_s: Some(9.0), rtt_ms: None, memory: Some(memory(at_s) as u64) }
        };
        (1..=240).map(row).collect()
    }

    #[test]
    fn growth_is_told_from_a_warm_up_and_from_noise() {
        let flat = Soak::new(rows(|at| if at < 200.0 { 10e6 } else { 50e6 + (at * 7.0).sin() * 1e6 }));
        let growth = flat.growth.unwrap();
        assert!(growth.is_flat && growth.per_hour.abs() < 2e6, "{growth:?}");
        // 20 MB an hour.
        let grows = Soak::new(rows(|at| 50e6 + at * 20e6 / 3_600.0));
        let growth = grows.growth.unwrap();
        assert!(!growth.is_flat && (growth.per_hour / 20e6 - 1.0).abs() < 0.05, "{growth:?}");
        assert!(grows.text().contains("GROWS") && flat.text().contains("flat"), "{}", grows.text());
        // Memory that is given back is no growth.
        assert!(Soak::new(rows(|at| 90e6 - at * 1e3)).growth.unwrap().is_flat);
    }

    #[test]
    fn what_is_too_short_or_unknown_is_not_judged() {
        let few = Soak::new(rows(|_| 1e6)[..8].to_vec());
        assert!(few.growth.is_none() && few.text().contains("not judged"), "{}", few.text());
        let mut unknown = rows(|_| 1e6);
        unknown.iter_mut().for_each(|row| row.memory = None);
        assert_eq!(Soak::new(unknown).growth, None);
        assert_eq!(Soak::new(Vec::new()).growth, None);
    }
}
