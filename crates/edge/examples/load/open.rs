//! An open loop: requests begin when they are due, whatever has become of others.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rand_core::RngCore;
use serde_json::json;
use tokio::sync::mpsc;
use units::Seed;

use crate::{Error, client::Client, latency::percentiles};

/// Times after the begin at which requests are due: `rate` per second on average, with the gaps of a Poisson process.
pub(crate) fn arrivals(rate: f64, seconds: f64, seed: u64) -> Result<Vec<Duration>, Error> {
    if !(rate > 0.0 && seconds > 0.0 && rate * seconds < 1e8) {
        return Err("rate and seconds are above 0, and make no more than 100 million requests".into());
    }
    let mut random = Seed::from_number(seed).stream("arrivals");
    // 53 random bits, in the middle of their steps: never 0.
    let mut uniform = || ((random.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let mut due = 0.0;
    let next = || {
        due -= uniform().ln() / rate;
        (due < seconds).then(|| Duration::from_secs_f64(due))
    };
    Ok(std::iter::from_fn(next).collect())
}

/// Makes the requests, which take turns at the connections.
pub(crate) async fn run(client: Arc<Client>, connections: usize, arrivals: Vec<Duration>) -> Result<(), Error> {
    let ready = client.connect_all(connections, connections, true).await?;
    let begun = Instant::now() + Duration::from_millis(50);
    let planned = arrivals.len();
    // A timer of the runtime has steps of a millisecond; the system's is exact to some tens of microseconds.
    let (due, mut dues) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for after in arrivals {
            let at = begun + after;
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if due.send(at).is_err() {
                return;
            }
        }
    });
    let (mut tasks, mut late) = (tokio::task::JoinSet::new(), Vec::with_capacity(planned));
    let mut turn = 0;
    while let Some(due) = dues.recv().await {
        late.push(due.elapsed());
        let (mut connection, client) = (ready[turn % ready.len()].clone(), client.clone());
        turn += 1;
        tasks.spawn(async move { connection.get(&client.uri).await.map(|bytes| (bytes, due.elapsed())) });
    }
    let (mut bytes, mut times, mut failures) = (0, Vec::with_capacity(planned), Vec::new());
    while let Some(ended) = tasks.join_next().await {
        match ended? {
            Ok((content, time)) => {
                bytes += content;
                times.push(time);
            }
            Err(why) => failures.push(why.to_string()),
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{}",
        json!({
            "requests": times.len(), "bytes": bytes, "seconds": seconds, "latency_ms": percentiles(times),
            "late_ms": percentiles(late), "failed": failures.len(), "failure": failures.first(),
        })
    );
    client.end().await;
    Ok(())
}
