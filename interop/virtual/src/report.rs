//! Many runs: spread over the cores, summed up per pair, printed as text or JSON.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde::Serialize;
use units::Seed;

use crate::{
    network::Network,
    plan::Plan,
    run::{EVENT_LIMIT, Failure, Figures, Identities, Pair, TIME_LIMIT, run},
};

/// Sums over the runs of one pair.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The stack that opened the connections.
    pub client: String,
    /// The stack that waited for them.
    pub server: String,
    /// Runs that did as planned.
    pub good: u64,
    /// Runs that did not.
    pub failed: u64,
    /// Runs that ended by a known defect of a peer. They count as neither.
    pub excused: BTreeMap<String, u64>,
    /// Runs that the network ended: it let nothing through to one end for the whole idle timeout.
    pub starved: u64,
    /// Application bytes compared.
    pub bytes_compared: u64,
    /// Packets offered to the links.
    pub packets: u64,
    /// Packets lost.
    pub dropped: u64,
    /// Packets damaged.
    pub corrupted: u64,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Key updates asked for.
    pub key_updates: u64,
    /// Runs whose close got lost, so that the other end learned of it by timeout or stateless reset.
    pub closes_lost: u64,
    /// The longest good run, virtual seconds.
    pub longest_seconds: f64,
    /// The most events of a good run.
    pub most_events: u64,
    /// Parts of the script that these stacks cannot play.
    pub leaves_out: Vec<String>,
}

/// A failed run, with all that is needed to see it again.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    /// The seed.
    pub seed: u64,
    /// Client and server stack.
    pub pair: String,
    /// Fault.
    pub failure: Failure,
    /// The network of the seed.
    pub network: String,
    /// The script of the seed.
    pub plan: String,
    /// The command that runs it again.
    pub again: String,
}

/// All results.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// First seed.
    pub from: u64,
    /// Number of seeds.
    pub seeds: u64,
    /// Bound on virtual time, seconds.
    pub time_limit_seconds: u64,
    /// Bound on events.
    pub event_limit: u64,
    /// One per pair.
    pub pairs: Vec<Summary>,
    /// Every failed run.
    pub failures: Vec<Failed>,
}

/// Sees the result of a run: its seed, the pair, and what came of it.
pub type Each<'a> = dyn Fn(u64, Pair, &Result<Figures, Failure>) + Sync + 'a;

/// Runs `seeds` seeds from `from` on with each pair, on `threads` threads. `each` sees every result as it comes.
pub fn run_all(
    from: u64,
    seeds: u64,
    pairs: &[Pair],
    threads: usize,
    identities: &Identities,
    each: &Each<'_>,
) -> Report {
    let jobs: Vec<_> = (from..from.saturating_add(seeds)).flat_map(|n| pairs.iter().map(move |p| (n, *p))).collect();
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(jobs.len()));
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, 64) {
            scope.spawn(|| {
                while let Some(&(number, pair)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = run(number, pair, identities);
                    each(number, pair, &result);
                    results.lock().unwrap_or_else(|poison| poison.into_inner()).push((number, pair, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|poison| poison.into_inner());
    results.sort_by_key(|(number, pair, _)| (*pair, *number));
    summarize(from, seeds, pairs, results)
}

fn summarize(from: u64, seeds: u64, pairs: &[Pair], results: Vec<(u64, Pair, Result<Figures, Failure>)>) -> Report {
    let mut sums: BTreeMap<Pair, Summary> = pairs.iter().map(|pair| (*pair, empty(*pair))).collect();
    let mut failures = vec![];
    for (number, pair, result) in results {
        let sum = sums.entry(pair).or_insert_with(|| empty(pair));
        match result {
            Ok(figures) => {
                sum.good += u64::from(!figures.starved);
                sum.starved += u64::from(figures.starved);
                sum.bytes_compared += figures.bytes_compared;
                sum.packets += figures.packets;
                sum.dropped += figures.dropped;
                sum.corrupted += figures.corrupted;
                sum.duplicated += figures.duplicated;
                sum.key_updates += figures.key_updates;
                sum.closes_lost += u64::from(figures.close_lost);
                sum.longest_seconds = sum.longest_seconds.max(figures.seconds);
                sum.most_events = sum.most_events.max(figures.events);
            }
            Err(Failure { known_defect: Some(defect), .. }) => *sum.excused.entry(defect).or_default() += 1,
            Err(failure) => {
                sum.failed += 1;
                failures.push(failed(number, pair, failure));
            }
        }
    }
    Report {
        from,
        seeds,
        time_limit_seconds: TIME_LIMIT.as_secs(),
        event_limit: EVENT_LIMIT,
        pairs: sums.into_values().collect(),
        failures,
    }
}

fn empty(pair: Pair) -> Summary {
    let mut leaves_out = vec![];
    for stack in [pair.client, pair.server] {
        leaves_out.extend(stack.leaves_out().iter().map(|what| format!("{stack} {what}")));
    }
    leaves_out.dedup();
    Summary { client: pair.client.to_string(), server: pair.server.to_string(), leaves_out, ..Summary::default() }
}

/// Report of a failed run.
pub fn failed(number: u64, pair: Pair, failure: Failure) -> Failed {
    let seed = Seed::from_number(number);
    let features = if pair.to_string().contains("quiche") { " --features quiche" } else { "" };
    Failed {
        seed: number,
        pair: pair.to_string(),
        failure,
        network: format!("{:?}", Network::new(&seed)),
        plan: format!("{:?}", Plan::new(&seed)),
        again: format!("cargo run --release -p virtual{features} -- --pair {pair} --from {number} --seeds 1"),
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seconds, what) = (self.failure.seconds, &self.failure.what);
        writeln!(f, "FAILED seed {} {} at {seconds:.3} s: {what}", self.seed, self.pair)?;
        writeln!(f, "  network: {}", self.network)?;
        writeln!(f, "  plan: {}", self.plan)?;
        write!(f, "  hint: {}", self.again)
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{:<18} {:>7} {:>7} {:>7} {:>9} {:>9} {:>7} {:>8} {:>8} {:>7} {:>7} {:>9} {:>8}",
            "client:server",
            "good",
            "failed",
            "starved",
            "MB read",
            "packets",
            "lost",
            "corrupt",
            "twice",
            "keys",
            "closes",
            "longest s",
            "events"
        )?;
        for pair in &self.pairs {
            writeln!(
                f,
                "{:<18} {:>7} {:>7} {:>7} {:>9.1} {:>9} {:>7} {:>8} {:>8} {:>7} {:>7} {:>9.1} {:>8}",
                format!("{}:{}", pair.client, pair.server),
                pair.good,
                pair.failed,
                pair.starved,
                pair.bytes_compared as f64 / 1e6,
                pair.packets,
                pair.dropped,
                pair.corrupted,
                pair.duplicated,
                pair.key_updates,
                pair.closes_lost,
                pair.longest_seconds,
                pair.most_events
            )?;
        }
        writeln!(
            f,
            "\nstarved: the network let nothing through to one end for its whole idle timeout, while the other kept sending; what \
             was read until\nthen was compared. MB read: every byte was compared. lost, corrupt, twice: packets, by the links. keys: key updates asked for. \
             closes: those that got lost\non the way, so that the other end learned of them by idle timeout or stateless \
             reset. longest, events: of one good run; bounds {} s, {}.",
            self.time_limit_seconds, self.event_limit
        )?;
        for pair in &self.pairs {
            for (defect, count) in &pair.excused {
                writeln!(f, "excused: {}:{} {count} run(s): {defect}", pair.client, pair.server)?;
            }
        }
        let mut left_out: Vec<_> = self.pairs.iter().flat_map(|pair| &pair.leaves_out).collect();
        left_out.sort();
        left_out.dedup();
        for what in left_out {
            writeln!(f, "left out: {what}")?;
        }
        Ok(())
    }
}
