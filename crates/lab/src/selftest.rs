//! Whether the laboratory itself works: known answers that its parts must give before anything else is believed.
//!
//! Checked with the scenario at hand: the arithmetic of its bottleneck, the share that its loss model loses, and that a
//! run repeats bit for bit.

mod anchors;
mod calibration;

use netem::{Link, LinkConfig, Loss, PacketMeta, Queue};
use serde::Serialize;
use units::{DataSize, Duration, Instant, Seed, duration_text::display};

use crate::{
    contender::Contender,
    record::{Record, RunOutcome},
    run::run_one,
    scenario::Scenario,
    stats::distribution::normal_quantile,
};

pub use calibration::{Fault, NOT_CHECKED, calibrate};

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What is checked.
    pub name: &'static str,
    /// Whether it holds.
    pub passed: bool,
    /// What was expected and seen.
    pub detail: String,
}

/// Packet size of the checks in bytes.
const SIZE: u32 = 1_500;

/// Runs all checks. `records` are those of the experiment: the first valid one is run again.
pub fn run(scenario: &Scenario, contenders: &[Box<dyn Contender>], records: &[Record]) -> Vec<Check> {
    let link = scenario.loaded_link();
    let checks = [arithmetic(link), loss(link), repeatability(scenario, contenders, records)];
    checks.into_iter().flatten().collect()
}

fn packet(number: u64) -> PacketMeta {
    PacketMeta { size: SIZE, number, ..PacketMeta::default() }
}

/// Packets that come at once leave one serialisation time apart, and as many fit as the queue has room for.
fn arithmetic(link: &LinkConfig) -> Option<Check> {
    let (Some(rate), Queue::DropTail { bytes }) = (link.rate, link.queue) else { return None };
    let bare = LinkConfig { rate: link.rate, queue: link.queue, delay: link.delay, ..LinkConfig::default() };
    let mut model = Link::new(&bare, Seed::from_number(1)).ok()?;
    let each = rate.time_for(DataSize::from_bytes(SIZE.into()));
    // One packet is being sent, the others wait.
    let room = bytes.as_bytes() / u64::from(SIZE) + 1;
    let tried = room.min(100_000) + 1;
    let arrivals: Vec<Option<Instant>> =
        (0..tried).map(|number| model.offer(Instant::ZERO, &packet(number)).verdict.arrival()).collect();
    let taken = arrivals.iter().flatten().count() as u64;
    let last = arrivals.iter().flatten().max().copied().unwrap_or_default();
    let expected = link.delay + each * u32::try_from(taken).unwrap_or(u32::MAX);
    // Each serialisation may be rounded by a nanosecond.
    let off = (last - Instant::ZERO).abs_diff(expected);
    let passed = taken == room.min(tried) && off <= Duration::from_nanos(taken);
    let detail = format!(
        "{taken} packets of {SIZE} bytes at once, {room} fit; the last arrives after {}, {} was expected",
        display(last - Instant::ZERO),
        display(expected)
    );
    Some(Check { name: "link arithmetic", passed, detail })
}

/// The loss model loses the share that it promises, within what chance allows in 999 of 1000 cases.
fn loss(link: &LinkConfig) -> Option<Check> {
    const PACKETS: u64 = 200_000;
    let mean = link.loss.mean();
    let burst = match link.loss {
        Loss::None => return None,
        Loss::Iid { .. } => 1.0,
        Loss::Burst { length, .. } => length,
        Loss::GilbertElliott { r, .. } => 1.0 / r.get().max(1e-6),
        // Exactly so many of each group: no luck about it, and a trace has no law that it could follow.
        Loss::Group { .. } | Loss::Trace(_) => return None,
    };
    let bare = LinkConfig { loss: link.loss.clone(), ..LinkConfig::default() };
    let mut model = Link::new(&bare, Seed::from_number(2)).ok()?;
    for number in 0..PACKETS {
        model.offer(Instant::from_micros(number), &packet(number));
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let (lost, all) = (model.counters().dropped_in_all().packets as f64, PACKETS as f64);
    // Losses that come in bursts vary by about 2 × length − 1 times as much as independent ones.
    let deviation = (mean * (1.0 - mean) * (2.0 * burst - 1.0).max(1.0) / all).sqrt();
    let share = lost / all;
    let passed = (share - mean).abs() <= normal_quantile(0.9995) * deviation;
    let detail = format!("{:.3} % of {PACKETS} packets lost, {:.3} % was expected", share * 100.0, mean * 100.0);
    Some(Check { name: "loss", passed, detail })
}

/// The same seed gives the same packets and figures.
fn repeatability(scenario: &Scenario, contenders: &[Box<dyn Contender>], records: &[Record]) -> Option<Check> {
    let first = records.iter().find(|record| record.outcome == RunOutcome::Valid)?;
    let contender = contenders.iter().find(|contender| contender.identity() == first.contender)?;
    let again = run_one(scenario, contender.as_ref(), first.seed, None);
    let passed = again == *first;
    let detail = format!(
        "{} with seed {} twice: trace {} and {}",
        first.contender.name, first.seed, first.trace.hash, again.trace.hash
    );
    Some(Check { name: "repeatability", passed, detail })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{PRESETS, load};

    #[test]
    fn presets_pass() {
        for preset in PRESETS {
            let scenario = load(preset.name).unwrap();
            let checks = run(&scenario, &[], &[]);
            assert!(!checks.is_empty(), "{}", preset.name);
            for check in checks {
                assert!(check.passed, "{}: {check:?}", preset.name);
            }
        }
    }

    #[test]
    fn bursts_are_allowed_for() {
        let mut link = load("mobile").unwrap().path.down;
        link.loss = Loss::Burst { mean: "1 %".parse().unwrap(), length: 6.0 };
        assert!(loss(&link).unwrap().passed);
        link.loss = Loss::None;
        assert_eq!(loss(&link), None);
    }
}
