//! A closed loop: the next request is sent when one has ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    Error,
    client::{Client, Connection},
    latency::percentiles,
};

/// Makes the requests over so many connections, each with `parallel` in progress.
pub(crate) async fn run(client: Arc<Client>, connections: usize, parallel: usize, requests: u64) -> Result<(), Error> {
    let ready = client.connect_all(connections, connections, false).await?;
    let begun = Instant::now();
    let sets = ready
        .iter()
        .flat_map(|connection| std::iter::repeat_n(connection.clone(), parallel))
        .map(|connection| vec![connection]);
    let (bytes, times) = over(&client, sets, requests).await?;
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{}",
        json!({ "requests": times.len(), "bytes": bytes, "seconds": seconds, "latency_ms": percentiles(times) })
    );
    client.end().await;
    Ok(())
}

/// Makes the requests, one at a time over each set of connections, whose members take turns. Returns the bytes of content, and the time of each.
pub(crate) async fn over(
    client: &Arc<Client>,
    sets: impl IntoIterator<Item = Vec<Connection>>,
    requests: u64,
) -> Result<(u64, Vec<Duration>), Error> {
    let left = Arc::new(AtomicU64::new(requests));
    let mut tasks = tokio::task::JoinSet::new();
    for mut connections in sets {
        let (left, client) = (left.clone(), client.clone());
        tasks.spawn(async move {
            let (mut bytes, mut times) = (0, Vec::new());
            for at in (0..connections.len()).cycle() {
                if left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err() {
                    break;
                }
                let begun = Instant::now();
                bytes += connections[at].get(&client.uri).await?;
                times.push(begun.elapsed());
            }
            Ok::<_, Error>((bytes, times))
        });
    }
    let (mut bytes, mut times) = (0, Vec::new());
    while let Some(ended) = tasks.join_next().await {
        let (more, of_task) = ended??;
        bytes += more;
        times.extend(of_task);
    }
    Ok((bytes, times))
}
