//! Connections that stay open, at rest and in use.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{Error, client::Client, closed, latency::percentiles};

/// Connections that are opened at a time.
const AT_A_TIME: usize = 64;

/// Steps once the connections are there.
pub(crate) struct Plan {
    /// Time without requests.
    pub(crate) seconds: f64,
    /// Requests at a time, and altogether, over all connections.
    pub(crate) parallel: usize,
    pub(crate) requests: u64,
}

/// Opens so many connections with a request each, lets them rest, and makes requests over all of them in turn.
pub(crate) async fn run(client: Arc<Client>, connections: usize, plan: Plan) -> Result<(), Error> {
    let begun = Instant::now();
    let ready = client.connect_all(connections, AT_A_TIME, true).await?;
    say(&json!({ "open": ready.len(), "seconds": begun.elapsed().as_secs_f64() }));
    tokio::time::sleep(Duration::from_secs_f64(plan.seconds)).await;
    say(&json!({ "rested": plan.seconds }));
    let begun = Instant::now();
    let of = |set| ready.iter().skip(set).step_by(plan.parallel).cloned().collect();
    let sets = (0..plan.parallel.min(ready.len())).map(of);
    let (bytes, times) = closed::over(&client, sets, plan.requests).await?;
    let seconds = begun.elapsed().as_secs_f64();
    say(&json!({ "requests": times.len(), "bytes": bytes, "seconds": seconds, "latency_ms": percentiles(times) }));
    client.end().await;
    Ok(())
}

/// Says it at once: whoever measures waits for it.
fn say(line: &serde_json::Value) {
    use std::io::Write;
    println!("{line}");
    let _ = std::io::stdout().flush();
}
