//! Connections that carry one request each.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use serde_json::json;

use crate::{Error, client::Client, latency::percentiles};

/// Opens the connections, `parallel` at a time, and closes each after its request.
pub(crate) async fn run(client: Arc<Client>, parallel: usize, connections: usize) -> Result<(), Error> {
    let opened = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    let begun = Instant::now();
    for _ in 0..parallel {
        let (client, opened) = (client.clone(), opened.clone());
        tasks.spawn(async move {
            let (mut times, mut resumed) = (Vec::new(), 0);
            while opened.fetch_add(1, Relaxed) < connections {
                let begun = Instant::now();
                let (mut connection, is_resumed) = client.connect().await?;
                connection.get(&client.uri).await?;
                times.push(begun.elapsed());
                resumed += usize::from(is_resumed);
                connection.close();
            }
            Ok::<_, Error>((times, resumed))
        });
    }
    let (mut times, mut resumed) = (Vec::new(), 0);
    while let Some(ended) = tasks.join_next().await {
        let (more, of_task) = ended??;
        times.extend(more);
        resumed += of_task;
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{}",
        json!({ "connections": times.len(), "resumed": resumed, "seconds": seconds, "latency_ms": percentiles(times) })
    );
    Ok(())
}
