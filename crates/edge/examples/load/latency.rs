//! Percentiles of latencies.

use std::time::Duration;

use serde_json::{Value, json};

/// The nearest-rank percentiles of these times in ms; p99 and p99.9 only where at least three lie beyond.
pub(crate) fn percentiles(mut times: Vec<Duration>) -> Value {
    times.sort_unstable();
    let of = |per_mille: usize, needed: usize| {
        let rank = (times.len() * per_mille).div_ceil(1_000).max(1);
        (times.len() >= needed).then(|| times[rank - 1].as_secs_f64() * 1e3)
    };
    json!({ "p50": of(500, 1), "p99": of(990, 300), "p999": of(999, 3_000), "max": of(1_000, 1) })
}
