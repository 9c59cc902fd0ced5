//! Clients that behave: each asks ten times a second over a connection of its own, in turn for a file and for the back end.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Request;
use http_body_util::{BodyExt, Empty};
use tokio::{task::JoinSet, time::Instant};

use super::Target;

const INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for an answer; beyond it the request has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Response times and failures of the clients.
#[derive(Default)]
pub(crate) struct Seen {
    /// From a request to the end of its answer, in seconds.
    times: Vec<f64>,
    pub(crate) failures: usize,
}

impl Seen {
    pub(crate) fn count(&self) -> usize {
        self.times.len()
    }

    /// The 99th percentile, in seconds; failures count as the longest wait.
    pub(crate) fn p99(&self) -> f64 {
        let mut times = self.times.clone();
        times.extend(std::iter::repeat_n(PATIENCE.as_secs_f64(), self.failures));
        times.sort_by(f64::total_cmp);
        let rank = (times.len() * 99).div_ceil(100);
        times.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }
}

pub(crate) struct Crowd {
    seen: Arc<Mutex<Seen>>,
    _clients: JoinSet<()>,
}

impl Crowd {
    /// Connects all, then lets them ask.
    pub(crate) async fn start(target: &Target, clients: usize) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut tasks = JoinSet::new();
        for number in 0..clients {
            let (endpoint, quic) = target.connect(b"h3").await.expect("a gateway at peace accepts");
            let mut requests = h3_quic::client::begin(quic).await.unwrap();
            let seen = seen.clone();
            tasks.spawn(async move {
                let _endpoint = endpoint;
                let begin = Instant::now() + INTERVAL * u32::try_from(number).unwrap() / 50;
                let mut ticks = tokio::time::interval_at(begin, INTERVAL);
                ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                for path in ["small", "back/"].into_iter().cycle() {
                    let due = ticks.tick().await;
                    let request = Request::get(format!("https://localhost/{path}")).body(Empty::new()).unwrap();
                    let exchange = async {
                        let answer = requests.send(request).await.ok()?;
                        let good = answer.status() == 200;
                        answer.into_body().collect().await.ok()?;
                        good.then_some(())
                    };
                    let ended = tokio::time::timeout(PATIENCE, exchange).await.ok().flatten();
                    let mut seen = seen.lock().unwrap();
                    match ended {
                        Some(()) => seen.times.push(due.elapsed().as_secs_f64()),
                        None => seen.failures += 1,
                    }
                }
            });
        }
        Self { seen, _clients: tasks }
    }

    /// Response times and failures since the last call.
    pub(crate) fn take(&self) -> Seen {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}
