//! Phases of a measurement: without load, at an even pace, under load, and verification.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::timeout;

use super::{Direction, SMALL, ecn, load, mtu, path::Path, rate, rivals, sample::Shape, tcp};
use crate::{
    probe::{
        ProbeArgs,
        estimate::{
            delay::{RoundTrips, Variation},
            loss::Loss,
            order::Reordering,
        },
        protocol::ExchangeError,
        results::{Cost, Loaded, Measured, Results, Tcp},
        verify,
    },
    stop::Stop,
};

/// Packets a second of a path whose rate is not known: 40 kbit/s.
const CAREFUL: f64 = 50.0;

/// Measurements in progress.
pub(super) struct Probe {
    pub(super) path: Arc<Path>,
    pub(super) results: Results,
    pub(super) begun: Instant,
    pub(super) time: Duration,
    pub(super) stop: Stop,
}

impl Probe {
    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.results.notes.push(text.into());
    }

    /// Time that is left.
    fn left(&self) -> Duration {
        self.time.saturating_sub(self.begun.elapsed())
    }

    /// Runs a measurement and adds up its cost. An error, or the end of the time, becomes a note.
    async fn cost<T>(
        &mut self,
        what: &str,
        work: impl Future<Output = Result<Option<T>, ExchangeError>>,
    ) -> Option<Measured<T>> {
        let (bytes, begun) = (self.path.spent(), Instant::now());
        let left = self.left();
        if self.stop.is_asked() {
            self.note(format!("{what}: not measured, since the run was interrupted"));
            return None;
        }
        if let Some(meter) = &self.path.meter {
            meter.state().stage = Some(what.to_owned());
        }
        if left.is_zero() {
            self.note(format!("{what}: not measured, since `--time` is over"));
            return None;
        }
        let stop = self.stop.clone();
        let found = tokio::select! {
            found = timeout(left.max(Duration::from_secs(1)), work) => found,
            () = stop.wait() => {
                self.note(format!("{what}: not measured, since the run was interrupted"));
                return None;
            }
        };
        let cost = Cost { bytes: self.path.spent() - bytes, seconds: begun.elapsed().as_secs_f64() };
        match found {
            Ok(Ok(Some(value))) => return Some(Measured { value, cost }),
            Ok(Ok(None)) => self.note(format!("{what}: not measured, since too few packets came through")),
            Ok(Err(error)) => self.note(format!("{what}: not measured: {error}")),
            Err(_) => self.note(format!("{what}: not measured, since `--time` is over")),
        }
        None
    }

    /// Measures without a load: round trip, ECN, MTU.
    pub(super) async fn light(&mut self) {
        let path = self.path.clone();
        self.results.rtt = self
            .cost("RTT", async {
                let pings = path.pings(40, Duration::from_millis(15), usize::from(SMALL)).await;
                Ok(RoundTrips::of(&pings.rtts()))
            })
            .await;
        if self.results.rtt.is_none() {
            let port = self.path.welcome.udp_port;
            self.note(format!(
                "datagrams do not come back: does a firewall let UDP port {port} of the server through?"
            ));
        }
        if let Some(Measured { value: [up, down], cost }) = self.cost("ECN", ecn::measure(&path)).await {
            self.results.up.ecn = Some(Measured { value: up, cost });
            self.results.down.ecn = Some(Measured { value: down, cost });
        }
        for direction in Direction::BOTH {
            let what = format!("MTU {}", direction.name());
            let found = self.cost(&what, mtu::search(&path, direction)).await;
            self.results.way_mut(direction).mtu = found;
        }
    }

    /// Measures under load: rate and queue, loss at a pace that the rate allows, round trips under load, TCP.
    pub(super) async fn heavy(&mut self) {
        let path = self.path.clone();
        let mut trains = Vec::new();
        for direction in Direction::BOTH {
            let what = format!("rate {}", direction.name());
            let train = self.cost(&what, rate::find(&path, direction, self.time.mul_f64(0.05), 0.35)).await;
            if let Some(found) = train.as_ref().and_then(|train| train.value.train.analyse(0.0)) {
                let cost = train.as_ref().map_or_else(Cost::default, |train| train.cost);
                self.results.way_mut(direction).rate = Some(Measured { value: found, cost });
            }
            trains.extend(train.map(|train| (direction, train)));
        }
        self.idle(self.time.mul_f64(0.15)).await;
        // Loss without load is known now: what is lost behind the bottleneck was delivered by it.
        for (direction, train) in trains {
            let way = self.results.way_mut(direction);
            let idle = way.loss.as_ref().map_or(0.0, |loss| loss.value.share.value);
            if let Some(value) = train.value.train.analyse(idle) {
                way.rate = Some(Measured { value, cost: train.cost });
            }
            if train.value.unrecorded > 0 {
                self.note(format!("rate {}: the server had no room for the records of all packets", direction.name()));
            }
        }
        for direction in Direction::BOTH {
            let bytes = path.left() / 4;
            let lasts = self.fits(direction, self.time.mul_f64(0.11), bytes);
            let what = format!("round trips under load {}", direction.name());
            let found = self
                .cost(&what, async {
                    let loaded = load::load(&path, direction, lasts, bytes).await?;
                    let rtt = RoundTrips::of(&loaded.rtts);
                    let responsiveness = loaded.probes.responsiveness();
                    Ok(Some(Loaded { rtt, responsiveness, goodput: loaded.goodput }))
                })
                .await;
            self.results.way_mut(direction).loaded = found;
        }
        if path.welcome.tcp_port.is_none() {
            self.note("TCP: not measured, since the server could not listen");
            return;
        }
        for direction in Direction::BOTH {
            let bytes = path.left() / 2;
            let lasts = self.fits(direction, self.time.mul_f64(0.09), bytes);
            let what = format!("TCP {}", direction.name());
            let found = self
                .cost(&what, async {
                    let found = tcp::goodput(&path, direction, lasts, bytes).await;
                    path.settle().await;
                    Ok(found.map(|goodput| Tcp { goodput }))
                })
                .await;
            self.results.way_mut(direction).tcp = found;
        }
    }

    /// Runs the recommended controller and its rivals.
    pub(super) async fn verify(&mut self, args: &ProbeArgs) {
        if self.stop.is_asked() {
            return self.note("verification: not made, since the run was interrupted");
        }
        let Some(recommended) = verify::recommended(&self.results) else {
            return self.note("verification: not made, since nothing is recommended");
        };
        let rate = self.results.down.rate.as_ref().map(|rate| rate.value.rate.value);
        let granted = self.path.welcome.bytes.saturating_sub(self.path.spent());
        let plan = verify::Plan::new(args, rate, args.bytes.as_bytes().min(granted));
        match &self.path.meter {
            Some(meter) => meter.state().stage = Some("verification".to_owned()),
            None => eprintln!("verifying {}: {}", recommended.name(), plan.estimate()),
        }
        let rounds = rivals::run(&self.path, &plan, &self.stop).await;
        self.results.verification = Some(verify::Verification::new(recommended, &plan, rounds));
    }

    /// Duration of a load within a number of bytes at the path's rate: at most `lasts`, and not shortened below one second.
    fn fits(&self, direction: Direction, lasts: Duration, bytes: u64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "bytes far below 2^53")]
        let all = |rate: f64| bytes as f64 * 8.0 * 0.8 / rate;
        let rate = self.results.way(direction).rate.as_ref().map(|rate| rate.value.rate.value);
        let most = rate.map_or(f64::INFINITY, all).clamp(1.0, 3_600.0);
        lasts.min(Duration::from_secs_f64(most))
    }

    /// Paced packets in both directions at once: loss, reordering, variation of delay.
    pub(super) async fn idle(&mut self, lasts: Duration) {
        let path = self.path.clone();
        let shape = |results: &Results, direction| {
            let rate = results.way(direction).rate.as_ref().map(|rate| rate.value.rate.value);
            let wire = f64::from(u32::from(SMALL) + path.overhead()) * 8.0;
            // A quarter of a slow path, which leaves its queue empty.
            let pace = rate.map_or(CAREFUL, |rate| (rate * 0.25 / wire).clamp(10.0, 1_000.0));
            Shape::at(pace * wire, SMALL, path.overhead(), lasts)
        };
        let (up, down) = (shape(&self.results, Direction::Up), shape(&self.results, Direction::Down));
        let both = async {
            let (up, down) = tokio::join!(path.train_up(up, true), path.train_down(down, true));
            Ok(Some([(Direction::Up, up?), (Direction::Down, down?)]))
        };
        let Some(Measured { value, cost }) = self.cost("loss", both).await else { return };
        for (direction, sample) in value {
            let train = &sample.train;
            let numbers: Vec<u32> = train.arrivals.iter().map(|arrival| arrival.number).collect();
            let way = self.results.way_mut(direction);
            if !train.sent.is_empty() && sample.unrecorded == 0 {
                let loss = Loss::of_numbers(train.sent.len(), numbers.iter().copied());
                way.loss = Some(Measured { value: loss, cost });
            }
            way.reordering = (!numbers.is_empty()).then(|| Measured { value: Reordering::of(&numbers), cost });
            way.variation = Variation::of(&train.arrivals).map(|value| Measured { value, cost });
        }
    }
}
