//! Checks of a run: the links of its scenario obey the scenario, each direction and each property separately, with enough packets to detect
//! a deviation of a tenth.

use core::fmt::Write as _;

use netem::{DropReason, Link, LinkConfig, Loss, PacketMeta, Queue, Verdict};
use units::{DataSize, Duration, Instant, Probability, Seed, duration_text::display};

use super::{Check, calibration::number, card::Card};
use crate::{scenario::Scenario, stats::distribution::normal_quantile};

/// Packet size of the checks in bytes.
const SIZE: u32 = 1_500;

/// The deviation, as a share of the stated value, that a check has to see.
const WANTED: f64 = 0.1;

/// Packets that a check offers at most.
const PACKETS_MAX: u64 = 4_000_000;

/// Confidence of the checks: one in 1000 fails by chance, half on each side.
const CONFIDENCE: f64 = 0.9995;

/// One check per property and direction; one only when both directions are equal.
pub(super) fn checks(scenario: &Scenario) -> Vec<Check> {
    let (down, up) = (&scenario.path.down, scenario.path.up());
    let sides: &[(&str, &LinkConfig)] = if up == down { &[("both ways", down)] } else { &[("down", down), ("up", up)] };
    let kinds = [arithmetic, managed, varying, loss, places, changes, outages, jitter, chances, policer];
    kinds.into_iter().filter_map(|kind| both(kind, sides)).collect()
}

/// One check over the directions that it concerns.
fn both(kind: fn(&LinkConfig) -> Option<Check>, sides: &[(&str, &LinkConfig)]) -> Option<Check> {
    let made = sides.iter().filter_map(|(side, link)| Some((side, kind(link)?)));
    made.map(|(side, check)| Check { detail: format!("{side}: {}", check.detail), ..check }).reduce(|one, other| {
        Check {
            name: one.name,
            passed: one.passed && other.passed,
            detail: format!("{}; {}", one.detail, other.detail),
        }
    })
}

fn packet(number: u64) -> PacketMeta {
    PacketMeta { size: SIZE, number, ..PacketMeta::default() }
}

/// A link with only the settings that `keep` copies.
fn bare(link: &LinkConfig, keep: impl FnOnce(&LinkConfig, &mut LinkConfig)) -> Option<Link> {
    let mut config = LinkConfig::default();
    keep(link, &mut config);
    Link::new(&config, Seed::from_number(1)).ok()
}

/// Packets that come at once leave one serialisation time apart, and as many fit as the queue has room for.
fn arithmetic(link: &LinkConfig) -> Option<Check> {
    let (Some(rate), Queue::DropTail { bytes }) = (link.rate, link.queue) else { return None };
    let mut model = bare(link, |link, bare| {
        (bare.rate, bare.queue, bare.delay) = (link.rate, link.queue, link.delay);
    })?;
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

/// A queue that decides when packets leave carries exactly its rate at any offered load.
fn managed(link: &LinkConfig) -> Option<Check> {
    let (Some(rate), Queue::Codel(_) | Queue::FqCodel(_)) = (link.rate, link.queue) else { return None };
    let mut model = bare(link, |link, bare| (bare.rate, bare.queue) = (link.rate, link.queue))?;
    let each = rate.time_for(DataSize::from_bytes(SIZE.into()));
    let mut delivered = 0u64;
    for count in 0..8_000u32 {
        let now = Instant::ZERO + each * count / 2;
        while let Some(at) = model.deadline().filter(|at| *at <= now) {
            let Some(released) = model.poll(at) else { break };
            delivered += u64::from(released.transit.verdict.arrival().is_some());
        }
        model.offer(now, &packet(count.into()));
    }
    let card = Card::new("managed queue");
    Some(card.near("packets carried in the time of 4000", number(delivered), 4_000.0, 4.0, "").done())
}

/// The rates of the periods have the distribution that is stated. A packet in the middle of each period measures its rate.
fn varying(link: &LinkConfig) -> Option<Check> {
    /// Small, so that it has left before its period ends.
    const BYTES: u32 = 64;
    let varying = link.varying_rate.as_ref()?;
    let size = DataSize::from_bytes(BYTES.into());
    let mut model = bare(link, |link, bare| {
        (bare.varying_rate, bare.queue) = (link.varying_rate.clone(), link.queue);
    })?;
    let card = Card::new("varying rate");
    if varying.least().time_for(size) > varying.period / 4 {
        return Some(card.holds("the period is long enough for a packet at the lowest rate", false).done());
    }
    // Rates that stay tell less than as many independent ones.
    let memory = (1.0 + varying.stays.get()) / (1.0 - varying.stays.get());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few thousand times at most 199")]
    let periods = (4_000.0 * memory).ceil() as u32;
    let rates: Vec<f64> = (0..periods)
        .filter_map(|period| {
            let at = Instant::ZERO + varying.period * period + varying.period / 2;
            let packet = PacketMeta { size: BYTES, ..packet(period.into()) };
            Some(f64::from(BYTES) * 8.0 / (deliver(&mut model, at, &packet)? - at).as_secs_f64())
        })
        .collect();
    let within = varying.quantiles.iter().filter(|(share, _)| share.get() > 0.0 && share.get() < 1.0);
    let checked = within.fold(card, |card, (share, rate)| {
        let limit = number(rate.as_bps());
        // Times are whole nanoseconds.
        let below = rates.iter().filter(|seen| **seen <= limit * 1.001).count();
        let seen = number(below as u64) / f64::from(periods);
        let spread = normal_quantile(CONFIDENCE) * (share.get() * (1.0 - share.get()) / 4_000.0).sqrt();
        card.near(&format!("share of {periods} periods up to {rate}"), seen, share.get(), spread, "")
    });
    let mean = rates.iter().sum::<f64>() / f64::from(periods);
    let stated = number(varying.mean().as_bps());
    let deviation = (rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / f64::from(periods)).sqrt();
    let allowed = normal_quantile(CONFIDENCE) * deviation / 4_000.0_f64.sqrt() + stated * 1e-3;
    Some(checked.near("mean", mean / 1e6, stated / 1e6, allowed / 1e6, " Mbit/s").done())
}

/// Mean length of a burst, for the spread of the share that is lost.
fn burst(loss: &Loss) -> Option<f64> {
    match *loss {
        Loss::None | Loss::Group { .. } | Loss::Trace(_) => None,
        Loss::Iid { .. } => Some(1.0),
        Loss::Burst { length, .. } => Some(length),
        Loss::GilbertElliott { r, .. } => Some(1.0 / r.get().max(1e-6)),
    }
}

/// Power of a check of a share: the difference that chance explains, and the difference found in 99 of 100 cases, both as shares.
struct Power {
    allowed: f64,
    seen: f64,
}

impl Power {
    fn new(mean: f64, inflation: f64, of: u64) -> Self {
        let deviation = (mean * (1.0 - mean) * inflation / number(of)).sqrt();
        let allowed = normal_quantile(CONFIDENCE) * deviation;
        Self { allowed, seen: allowed + normal_quantile(0.99) * deviation }
    }

    /// Packets that it takes to see [`WANTED`], within bounds.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    fn packets(mean: f64, inflation: f64) -> u64 {
        let quantiles = normal_quantile(CONFIDENCE) + normal_quantile(0.99);
        let needed = (quantiles / WANTED).powi(2) * (1.0 - mean) * inflation / mean.max(1e-9);
        (needed.ceil() as u64).clamp(20_000, PACKETS_MAX)
    }

    /// Deviations that are found.
    fn text(&self, mean: f64) -> String {
        let least = self.seen / mean;
        format!("{:.2} x or {:.2} x as much would be found", 1.0 - least, 1.0 + least)
    }
}

/// The loss model loses the share that it promises, within what chance allows in 999 of 1000 cases.
fn loss(link: &LinkConfig) -> Option<Check> {
    let length = burst(&link.loss)?;
    let mean = link.loss.mean();
    // Losses that come in bursts vary by about 2 × length − 1 times as much as independent ones.
    let inflation = (2.0 * length - 1.0).max(1.0);
    let packets = Power::packets(mean, inflation);
    let mut model = bare(link, |link, bare| bare.loss = link.loss.clone())?;
    let (mut bursts, mut inside) = (0u64, false);
    for number in 0..packets {
        let lost = model.offer(Instant::from_micros(number), &packet(number)).verdict.arrival().is_none();
        bursts += u64::from(lost && !inside);
        inside = lost;
    }
    let lost = model.counters().dropped(DropReason::Loss).packets;
    let share = number(lost) / number(packets);
    let power = Power::new(mean, inflation, packets);
    let mut passed = (share - mean).abs() <= power.allowed;
    let mut detail = format!(
        "{:.3} % of {packets} packets lost, {:.3} % ± {:.3} was expected; {}",
        share * 100.0,
        mean * 100.0,
        power.allowed * 100.0,
        power.text(mean)
    );
    if let Loss::Burst { length, .. } = link.loss {
        // Geometric lengths, and the bursts of this many packets.
        let seen = number(lost) / number(bursts.max(1));
        let allowed = normal_quantile(CONFIDENCE) * (length * (length - 1.0) / number(bursts.max(1))).sqrt();
        passed &= (seen - length).abs() <= allowed;
        let _ = write!(detail, "; bursts of {seen:.2}, {length:.2} ± {allowed:.2} were expected");
    }
    Some(Check { name: "loss", passed, detail })
}

/// Deterministic loss: a fixed number of each group, or the losses of a trace.
fn places(link: &LinkConfig) -> Option<Check> {
    let card = Card::new("loss by place");
    match &link.loss {
        Loss::Group { size, drop, min_bytes, after } => {
            let mut model = bare(link, |link, bare| bare.loss = link.loss.clone())?;
            let begin = Instant::ZERO + *after;
            let size_of = SIZE.max(*min_bytes);
            let mut lost = |number: u64| {
                let packet = PacketMeta { size: size_of, number, ..PacketMeta::default() };
                u64::from(model.offer(begin + Duration::from_micros(number), &packet).verdict.arrival().is_none())
            };
            let size = u64::from(*size);
            let wrong = (0..200)
                .filter(|group| (0..size).map(|place| lost(group * size + place)).sum::<u64>() != u64::from(*drop));
            Some(card.equal("groups of 200 with another number of losses", wrong.count(), 0).done())
        }
        Loss::Trace(trace) => {
            let mut model = bare(link, |link, bare| bare.loss = link.loss.clone())?;
            let turn = trace.lost.len() as u64;
            let losses = (0..turn).filter(|number| {
                model.offer(Instant::from_micros(*number), &packet(*number)).verdict.arrival().is_none()
            });
            let listed = trace.lost.iter().filter(|lost| **lost).count();
            Some(card.equal("losses in a turn of the trace", losses.count(), listed).done())
        }
        _ => None,
    }
}

/// Before each change and after it, a packet alone takes the time that rate and delay of the moment give, and the MTU holds.
fn changes(link: &LinkConfig) -> Option<Check> {
    if link.changes.is_empty() {
        return None;
    }
    let mut model = bare(link, |link, bare| {
        (bare.rate, bare.delay, bare.mtu) = (link.rate, link.delay, link.mtu);
        (bare.queue, bare.changes) = (link.queue, link.changes.clone());
    })?;
    let mut card = Card::new("changes in time");
    let (mut rate, mut delay, mut mtu) = (link.rate, link.delay, link.mtu);
    let mut from = Duration::ZERO;
    for index in 0..=link.changes.len() {
        let until = link.changes.get(index).map_or(from + Duration::from_secs(2), |change| change.at);
        let at = Instant::ZERO + (from + until) / 2;
        let size = mtu.unwrap_or(SIZE).min(SIZE);
        let sending = rate.map_or(Duration::ZERO, |rate| rate.time_for(DataSize::from_bytes(size.into())));
        // A span too short for a packet says nothing by itself: the next one does.
        if until - from > sending * 4 {
            let fits = PacketMeta { size, ..packet(0) };
            let took = match deliver(&mut model, at, &fits) {
                Some(arrival) => (arrival - at).as_secs_f64() * 1e3,
                None => f64::NAN,
            };
            let expected = (sending + delay).as_secs_f64() * 1e3;
            card = card.near(&format!("at {}", display(at - Instant::ZERO)), took, expected, 1e-3, " ms");
            if let Some(mtu) = mtu {
                let large = PacketMeta { size: mtu + 1, ..packet(0) };
                let dropped = deliver(&mut model, at + sending * 2, &large).is_none();
                card = card.holds(&format!("{} bytes do not pass then", mtu + 1), dropped);
            }
        }
        if let Some(change) = link.changes.get(index) {
            (rate, delay, mtu) = (change.rate.or(rate), change.delay.unwrap_or(delay), change.mtu.or(mtu));
            from = change.at;
        }
    }
    Some(card.done())
}

/// Time at which a packet arrives that is alone on the link.
fn deliver(model: &mut Link, at: Instant, packet: &PacketMeta) -> Option<Instant> {
    match model.offer(at, packet).verdict {
        Verdict::Held(_) => {
            let due = model.deadline()?;
            model.poll(due)?.transit.verdict.arrival()
        }
        verdict => verdict.arrival(),
    }
}

/// In the first period of each outage nothing arrives; directly before and after it everything does.
fn outages(link: &LinkConfig) -> Option<Check> {
    let outage = *link.outages.first()?;
    let mut model = bare(link, |_, bare| bare.outages = vec![netem::Outage { packets: netem::Fate::Lost, ..outage }])?;
    let moment = |at: Duration| Instant::ZERO + at;
    let (begin, end) = (outage.at, outage.at + outage.lasts);
    let before = begin.saturating_sub(Duration::from_micros(1));
    let mut passes = |at: Duration| model.offer(moment(at), &packet(0)).verdict.arrival().is_some();
    let (first, inside, last) = (begin.is_zero() || passes(before), !passes(begin + outage.lasts / 2), passes(end));
    let again = outage.every.is_none_or(|every| !passes(begin + every + outage.lasts / 2));
    Some(
        Card::new("outages")
            .holds("everything passes before and after", first && last)
            .holds("nothing passes inside", inside)
            .holds("it comes again as stated", again)
            .done(),
    )
}

/// Mean, ends and quantiles of jitter.
fn jitter(link: &LinkConfig) -> Option<Check> {
    const PACKETS: u32 = 40_000;
    if link.jitter.is_zero() && link.jitter_quantiles.is_empty() {
        return None;
    }
    let mut model = bare(link, |link, bare| {
        (bare.jitter, bare.jitter_period) = (link.jitter, link.jitter_period);
        (bare.jitter_quantiles, bare.jitter_reorders) = (link.jitter_quantiles.clone(), true);
    })?;
    // Half a period further each time, so that draws follow draws and points between them.
    let step = if link.jitter_period.is_zero() { Duration::from_millis(1) } else { link.jitter_period / 2 };
    let mut seen: Vec<f64> = (0..PACKETS)
        .filter_map(|count| {
            let at = Instant::ZERO + step * count;
            model.offer(at, &packet(count.into())).verdict.arrival().map(|arrival| (arrival - at).as_secs_f64() * 1e3)
        })
        .collect();
    seen.sort_by(f64::total_cmp);
    let mean = seen.iter().sum::<f64>() / number(seen.len() as u64);
    let mut card = Card::new("jitter");
    if link.jitter_quantiles.is_empty() {
        let span = link.jitter.as_secs_f64() * 1e3;
        // Even draws; half of them when there is a draw for two packets.
        let allowed = normal_quantile(CONFIDENCE) * span / (12.0 * f64::from(PACKETS) / 2.0).sqrt();
        card = card
            .near("mean", mean, span / 2.0, allowed, " ms")
            .within("least", seen.first().copied().unwrap_or(f64::NAN), 0.0, span / 50.0, " ms")
            .within("largest", seen.last().copied().unwrap_or(f64::NAN), span * 0.98, span + 1e-6, " ms");
    }
    for (share, delay) in &link.jitter_quantiles {
        let limit = delay.as_secs_f64() * 1e3 + 1e-6;
        let below = number(seen.partition_point(|value| *value <= limit) as u64) / f64::from(PACKETS);
        // The same draw for two packets.
        let power = Power::new(share.get(), 2.0, PACKETS.into());
        card = card.near(
            &format!("up to {}", display(*delay)),
            below * 100.0,
            share.get() * 100.0,
            power.allowed * 100.0 + 1e-9,
            " %",
        );
    }
    Some(card.done())
}

/// Reordered, copied and damaged packets: their shares.
fn chances(link: &LinkConfig) -> Option<Check> {
    let reorder = link.reorder.filter(|reorder| !reorder.delay.is_zero());
    let stated = [
        ("out of order", reorder.map_or(Probability::ZERO, |reorder| reorder.probability)),
        ("twice", link.duplicate.map_or(Probability::ZERO, |duplicate| duplicate.probability)),
        ("damaged", link.corrupt),
    ];
    let least = stated.iter().map(|(_, share)| share.get()).filter(|share| *share > 0.0).fold(1.0, f64::min);
    if stated.iter().all(|(_, share)| share.get() <= 0.0) {
        return None;
    }
    let packets = Power::packets(least, 1.0);
    let mut model = bare(link, |link, bare| {
        (bare.reorder, bare.duplicate, bare.corrupt) = (reorder, link.duplicate, link.corrupt);
    })?;
    let late = reorder.map_or(Duration::MAX, |reorder| reorder.delay);
    let mut counts = [0u64; 3];
    for count in 0..packets {
        let at = Instant::from_micros(count);
        if let Verdict::Delivered { first, copy } = model.offer(at, &packet(count)).verdict {
            counts[0] += u64::from(first.at - at == late);
            counts[1] += u64::from(copy.is_some());
            counts[2] += u64::from(first.corrupt.is_some());
        }
    }
    let mut card = Card::new("order, copies, damage");
    for ((what, share), count) in stated.iter().zip(counts).filter(|((_, share), _)| share.get() > 0.0) {
        let power = Power::new(share.get(), 1.0, packets);
        let text = format!("{what}, where {},", power.text(share.get()));
        card =
            card.near(&text, number(count) * 100.0 / number(packets), share.get() * 100.0, power.allowed * 100.0, " %");
    }
    Some(card.done())
}

/// A policer passes its burst and then its rate: of twice the rate, half.
fn policer(link: &LinkConfig) -> Option<Check> {
    const PACKETS: u32 = 20_000;
    let policer = link.policer?;
    let mut model = bare(link, |link, bare| bare.policer = link.policer)?;
    let each = policer.rate.time_for(DataSize::from_bytes(SIZE.into()));
    let passed = (0..PACKETS)
        .filter(|count| {
            let at = Instant::ZERO + each * *count / 2;
            model.offer(at, &packet((*count).into())).verdict.arrival().is_some()
        })
        .count() as u64;
    let burst = number(policer.burst.as_bytes()) / f64::from(SIZE);
    let expected = (burst.floor() + (f64::from(PACKETS) - burst.floor()) / 2.0).min(f64::from(PACKETS));
    // While the burst is spent, half of what is spent comes back.
    let again = burst.floor().min(f64::from(PACKETS) / 2.0) / 2.0;
    let card = Card::new("policer");
    Some(
        card.within(
            &format!("of {PACKETS} at twice the rate pass"),
            number(passed),
            expected - 3.0,
            expected + again + 3.0,
            "",
        )
        .done(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::parse;

    #[test]
    fn a_tenth_less_is_found() {
        for (mean, length) in [(0.01, 1.0), (0.05, 1.0), (0.01, 4.66), (0.1, 6.0)] {
            let inflation = 2.0 * length - 1.0;
            let power = Power::new(mean, inflation, Power::packets(mean, inflation));
            assert!(power.seen <= WANTED * mean * 1.000_1, "{mean} in bursts of {length}: {}", power.seen);
        }
        // So rare that four million packets do not show it: the check says what they do show.
        let power = Power::new(1e-5, 1.0, Power::packets(1e-5, 1.0));
        assert!(power.seen > WANTED * 1e-5 && power.text(1e-5).starts_with("0.1"), "{}", power.text(1e-5));
    }

    #[test]
    fn every_property_of_both_directions_is_checked() {
        let scenario = parse(
            r#"
name = "all"
title = "All"
about = "Everything that a link can do."
[path.down]
rate = "20 Mbit/s"
queue = "100 kB"
delay = "10 ms"
loss = "2 %"
jitter = "2 ms"
reorder = { probability = "1 %", delay = "5 ms" }
duplicate = "1 %"
changes = [{ at = "3 s", rate = "10 Mbit/s", delay = "20 ms" }]
outages = [{ at = "1 s", lasts = "100 ms", packets = "lost" }]
[path.up]
rate = "5 Mbit/s"
queue = { codel = { bytes = "100 kB" } }
delay = "10 ms"
loss = { group = { size = 10, drop = 1 } }
policer = { rate = "4 Mbit/s", burst = "15 kB" }
[traffic]
workload = "bulk"
connections = 1
[run]
duration = "10 s"
"#,
            "a test",
        )
        .unwrap();
        let checks = checks(&scenario);
        let seen: Vec<(&str, bool)> = checks.iter().map(|check| (check.name, check.passed)).collect();
        let names = [
            "link arithmetic",
            "managed queue",
            "loss",
            "loss by place",
            "changes in time",
            "outages",
            "jitter",
            "order, copies, damage",
            "policer",
        ];
        assert_eq!(seen, names.map(|name| (name, true)), "{checks:#?}");
        assert!(checks[0].detail.starts_with("down: ") && checks[1].detail.starts_with("up: "));
    }
}
