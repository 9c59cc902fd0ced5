//! Link model compared with closed forms: times, rates, changes, jitter, order, copies. No stack takes part.

use netem::{
    Change, Duplicate, Fate, Histogram, Link, LinkConfig, Nat, NatConfig, Outage, PacketMeta, Policer, Protocol, Queue,
    Rebinding, Reorder, Verdict,
};
use rand_core::RngCore;
use units::{Bitrate, DataSize, Duration, Instant, Probability, Seed};

use super::{Check, calibration::number, card::Card};

const MS: Duration = Duration::from_millis(1);

/// All of them; none takes more than a fraction of a second.
pub(super) fn checks() -> Result<Vec<Check>, String> {
    Ok(vec![
        one_way_delay()?,
        regular_arrivals()?,
        random_arrivals()?,
        token_bucket()?,
        changes()?,
        outages()?,
        jitter()?,
        distribution_of_jitter()?,
        order_and_copies()?,
        translation(),
        histogram(),
    ])
}

pub(super) fn link(config: &LinkConfig, seed: u64) -> Result<Link, String> {
    Link::new(config, Seed::from_number(seed)).map_err(|error| error.to_string())
}

pub(super) fn share(value: f64) -> Probability {
    Probability::new(value).unwrap_or(Probability::ZERO)
}

pub(super) fn packet(number: u64, size: u32) -> PacketMeta {
    PacketMeta { size, number, ..PacketMeta::default() }
}

fn ms(at: Instant) -> f64 {
    number(at.as_nanos()) / 1e6
}

/// A link that sends 1500 bytes in a millisecond, with room for everything.
fn one_per_ms() -> LinkConfig {
    let queue = Queue::DropTail { bytes: DataSize::from_bytes(1 << 40) };
    LinkConfig { rate: Some(Bitrate::from_mbps(12)), queue, ..LinkConfig::default() }
}

/// Without other traffic, a packet takes the propagation delay plus size over rate, exact to the nanosecond.
fn one_way_delay() -> Result<Check, String> {
    let mut link = link(&LinkConfig { delay: 37 * MS, rate: Some(Bitrate::from_mbps(10)), ..one_per_ms() }, 1)?;
    let mut worst = 0;
    for (count, size) in (0..4_000u64).zip([40, 100, 576, 1_500].into_iter().cycle()) {
        let sent = Instant::from_millis(count * 5);
        let took = link.offer(sent, &packet(count, size)).verdict.arrival().map_or(0, |at| (at - sent).as_nanos());
        worst = worst.max(took.abs_diff(37_000_000 + u128::from(size) * 800));
    }
    Ok(Card::new("V1 one-way delay").equal("largest error over 4000 packets, ns", worst, 0).done())
}

/// A packet each 0.8 ms where each takes 1 ms: the n-th waits n × 0.2 ms; with room for 20, a fifth is dropped.
fn regular_arrivals() -> Result<Check, String> {
    let mut model = link(&one_per_ms(), 1)?;
    let at = |count: u64| Instant::from_micros(count * 800);
    let wrong = (0..2_000u64).filter(|&count| {
        let queued = model.offer(at(count), &packet(count, 1_500)).queued;
        queued != Duration::from_micros(count * 200)
    });
    let wrong = wrong.count();
    let mean = model.queueing().mean().unwrap_or(0.0) / 1e6;
    let p99 = model.queueing().quantile(0.99).map_or(0.0, number) / 1e6;
    let queue = Queue::DropTail { bytes: DataSize::from_bytes(30_000) };
    let mut full = link(&LinkConfig { queue, ..one_per_ms() }, 1)?;
    for count in 0..100_000u64 {
        full.offer(at(count), &packet(count, 1_500));
    }
    let counters = full.counters();
    let dropped = number(counters.dropped(netem::DropReason::Queue).packets) / 1e5;
    let longest = full.queueing().max().map_or(0.0, number) / 1e6;
    Ok(Card::new("V1 regular arrivals")
        .equal("waits other than n x 0.2 ms", wrong, 0)
        .near("mean wait", mean, 199.9, 0.001, " ms")
        .near("p99 of the wait", p99, 395.8, 395.8 * 0.005, " ms")
        .near("dropped by a queue of 20", dropped * 100.0, 20.0, 0.05, " %")
        .within("longest wait in it", longest, 19.0, 20.0, " ms")
        .equal("largest backlog, bytes", counters.queue_peak_bytes, 30_000)
        .equal("offered less delivered and dropped, bytes", books(&full), 0)
        .done())
}

/// Bytes that the counters of a link do not explain.
pub(super) fn books(link: &Link) -> u64 {
    let counters = link.counters();
    let known = counters.delivered.bytes + counters.dropped_in_all().bytes;
    counters.offered.bytes.abs_diff(known)
}

/// M/D/1 at a load of 0.7: the mean wait is load / (2 (1 - load)) of a packet (Pollaczek and Khinchine).
fn random_arrivals() -> Result<Check, String> {
    const PACKETS: u64 = 500_000;
    let mut model = link(&one_per_ms(), 1)?;
    let mut draws = Seed::from_number(11).stream("arrivals");
    let mut now = 0.0f64;
    for count in 0..PACKETS {
        // Evenly from (0, 1].
        let even = (number(draws.next_u64() >> 11) + 1.0) / number(1 << 53);
        now -= even.ln() * 1e-3 / 0.7;
        model.offer(Instant::ZERO + Duration::from_secs_f64(now), &packet(count, 1_500));
    }
    let mean = model.queueing().mean().unwrap_or(0.0) / 1e6;
    Ok(Card::new("V1 random arrivals").near("mean wait of M/D/1", mean, 0.7 / 0.6, 0.04, " ms").done())
}

/// A token bucket of ten packets at half the rate that is offered, before and after a silence, and for UDP alone.
fn token_bucket() -> Result<Check, String> {
    let policer = Policer { rate: Bitrate::from_mbps(6), burst: DataSize::from_bytes(15_000), udp_only: true };
    let mut model = link(&LinkConfig { policer: Some(policer), ..LinkConfig::default() }, 1)?;
    let mut passes = |at: u64, protocol| {
        let packet = PacketMeta { size: 1_500, protocol, ..PacketMeta::default() };
        u64::from(model.offer(Instant::from_micros(at), &packet).verdict.arrival().is_some())
    };
    // A packet each millisecond, tokens for one each two.
    let busy: u64 = (0..10_000).map(|count| passes(count * 1_000, Protocol::Udp)).sum();
    let burst: u64 = (0..30).map(|_| passes(60_000_000, Protocol::Udp)).sum();
    let other: u64 = (0..30).map(|_| passes(60_000_000, Protocol::Tcp)).sum();
    Ok(Card::new("V3 token bucket")
        .within("of 10000 packets at twice the rate pass", number(busy), 5_008.0, 5_010.0, "")
        .equal("of 30 at once after a silence pass", burst, 10)
        .equal("of 30 of TCP, which it does not concern", other, 30)
        .done())
}

/// Rate, delay and MTU change at given moments, also in the middle of a packet.
fn changes() -> Result<Check, String> {
    let change = |at: u64, rate, delay, mtu| Change { at: Duration::from_millis(at), rate, delay, mtu };
    let config = LinkConfig {
        delay: 10 * MS,
        changes: vec![
            change(1_000, Some(Bitrate::from_mbps(6)), Some(40 * MS), None),
            change(2_000, None, None, Some(1_300)),
        ],
        ..one_per_ms()
    };
    let mut model = link(&config, 1)?;
    let mut took = |at: f64, size: u32| {
        let sent = Instant::ZERO + Duration::from_secs_f64(at);
        model.offer(sent, &packet(0, size)).verdict.arrival().map_or(-1.0, |arrived| ms(arrived) - ms(sent))
    };
    Ok(Card::new("V1 changes in time")
        .near("before", took(0.5, 1_500), 11.0, 1e-5, " ms")
        .near("in the middle of a packet", took(0.9995, 1_500), 41.5, 1e-5, " ms")
        .near("after", took(1.5, 1_500), 42.0, 1e-5, " ms")
        .near("larger than the new MTU", took(2.5, 1_500), -1.0, 1e-5, "")
        .near("smaller", took(2.6, 750), 41.0, 1e-5, " ms")
        .done())
}

/// An outage for a tenth of the time: packets are lost, or wait.
fn outages() -> Result<Check, String> {
    let outage = |packets| Outage { at: 300 * MS, lasts: 100 * MS, every: Some(1_000 * MS), packets };
    let mut losing = link(&LinkConfig { outages: vec![outage(Fate::Lost)], ..LinkConfig::default() }, 1)?;
    let lost = (0..1_000u64).filter(|&count| {
        losing.offer(Instant::from_millis(count * 10), &packet(count, 100)).verdict.arrival().is_none()
    });
    let lost = lost.count();
    let mut holding = link(&LinkConfig { outages: vec![outage(Fate::Held)], ..one_per_ms() }, 1)?;
    let mut arrival = |at| holding.offer(Instant::from_millis(at), &packet(0, 1_500)).verdict.arrival().map_or(0.0, ms);
    Ok(Card::new("V1 outages")
        .equal("lost of 1000", lost, 100)
        .near("held at 350 ms arrives at", arrival(350), 401.0, 1e-5, " ms")
        .near("and at 3399 ms", arrival(3_399), 3_401.0, 1e-5, " ms")
        .near("and at 3500 ms", arrival(3_500), 3_501.0, 1e-5, " ms")
        .done())
}

/// Delays of packets sent every `gap`, beyond the propagation delay, in milliseconds, and whether the order was kept.
fn delays(config: &LinkConfig, gap: Duration, packets: u64) -> Result<(Vec<f64>, bool), String> {
    let mut model = link(config, 9)?;
    let (mut all, mut last, mut ordered, mut sent) = (Vec::new(), Instant::ZERO, true, Instant::ZERO);
    for count in 0..packets {
        let Some(at) = model.offer(sent, &packet(count, 1_000)).verdict.arrival() else { continue };
        all.push(ms(at) - ms(sent) - config.delay.as_secs_f64() * 1e3);
        ordered &= at >= last;
        last = last.max(at);
        sent += gap;
    }
    Ok((all, ordered))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / number(values.len() as u64)
}

/// Jitter of 8 ms: even draws; the order kept; a line that wanders without leaps.
fn jitter() -> Result<Check, String> {
    let base = LinkConfig { delay: 20 * MS, jitter: 8 * MS, ..LinkConfig::default() };
    let (free, ordered_free) = delays(&LinkConfig { jitter_reorders: true, ..base.clone() }, MS, 100_000)?;
    let (_, ordered) = delays(&base, MS, 20_000)?;
    let (line, ordered_line) = delays(&LinkConfig { jitter_period: 100 * MS, ..base }, MS, 400_000)?;
    let largest = free.iter().copied().fold(0.0, f64::max);
    let least = free.iter().copied().fold(f64::INFINITY, f64::min);
    let leap = line.windows(2).map(|pair| (pair[1] - pair[0]).abs()).fold(0.0, f64::max);
    let ends = line.iter().copied().fold(0.0, f64::max);
    Ok(Card::new("V1 jitter")
        .near("mean of even draws to 8 ms", mean(&free), 4.0, 0.04, " ms")
        .within("least", least, 0.0, 0.01, " ms")
        .within("largest", largest, 7.99, 8.0, " ms")
        .holds("the order changes only where it may", !ordered_free && ordered && ordered_line)
        .near("mean of a wandering line", mean(&line), 4.0, 0.2, " ms")
        .within("its largest step in 1 ms", leap, 0.05, 0.080_001, " ms")
        .within("its largest value", ends, 7.9, 8.0, " ms")
        .done())
}

/// No delay for half of the time, then linear to 40 ms at 90 % and 100 ms at 100 %.
fn distribution_of_jitter() -> Result<Check, String> {
    let quantiles = vec![(share(0.5), Duration::ZERO), (share(0.9), 40 * MS), (share(1.0), 100 * MS)];
    let config = LinkConfig {
        jitter_quantiles: quantiles,
        jitter_period: 10 * MS,
        jitter_reorders: true,
        ..LinkConfig::default()
    };
    let (mut all, _) = delays(&config, 10 * MS, 100_000)?;
    all.sort_by(f64::total_cmp);
    let none = number(all.iter().filter(|delay| **delay == 0.0).count() as u64) / 1e3;
    Ok(Card::new("V1 distribution of jitter")
        .near("share without", none, 50.0, 0.8, " %")
        .near("p70", all[70_000], 20.0, 0.7, " ms")
        .near("p95", all[95_000], 70.0, 2.0, " ms")
        // 0.4 × 20 + 0.1 × 70.
        .near("mean", mean(&all), 15.0, 0.4, " ms")
        .done())
}

/// A tenth leaves the order by exactly 20 ms, a fifth arrives twice within 5 ms, a twentieth is damaged.
fn order_and_copies() -> Result<Check, String> {
    const PACKETS: u64 = 200_000;
    let config = LinkConfig {
        delay: 10 * MS,
        reorder: Some(Reorder { probability: share(0.1), delay: 20 * MS }),
        duplicate: Some(Duplicate { probability: share(0.2), delay: 5 * MS }),
        corrupt: share(0.05),
        ..LinkConfig::default()
    };
    let mut model = link(&config, 3)?;
    let (mut late, mut other, mut copies, mut damaged, mut apart) = (0u64, 0u64, 0u64, 0u64, 0.0);
    for count in 0..PACKETS {
        let sent = Instant::from_micros(count * 500);
        let Verdict::Delivered { first, copy } = model.offer(sent, &packet(count, 1_000)).verdict else { continue };
        match first.at - sent {
            span if span == 30 * MS => late += 1,
            span => other += u64::from(span != 10 * MS),
        }
        damaged += u64::from(first.corrupt.is_some());
        if let Some(copy) = copy {
            copies += 1;
            apart += ms(copy.at) - ms(first.at);
        }
    }
    let percent = |count: u64| number(count) * 100.0 / number(PACKETS);
    Ok(Card::new("V1 order and copies")
        .near("later by 20 ms", percent(late), 10.0, 0.35, " %")
        .equal("neither late nor in time", other, 0)
        .near("arrive twice", percent(copies), 20.0, 0.45, " %")
        .near("mean time to the copy", apart / number(copies.max(1)), 2.5, 0.04, " ms")
        .near("damaged", percent(damaged), 5.0, 0.25, " %")
        .equal("delivered, each once", model.counters().delivered.packets, PACKETS)
        .equal("counted twice", model.counters().duplicated, copies)
        .equal("counted as damaged", model.counters().corrupted, damaged)
        .equal("bytes without an account", books(&model), 0)
        .done())
}

/// A mapping lives as long as packets use it, and a rebinding replaces it.
fn translation() -> Check {
    let client = sim::client_address(0);
    let config = NatConfig {
        timeout: Duration::from_secs(15),
        rebind: vec![Rebinding { at: Duration::from_secs(100), address: true }],
        ..NatConfig::default()
    };
    let mut nat = Nat::new(&config, &Seed::from_number(1));
    let at = Instant::from_millis;
    let first = nat.outward(at(0), client);
    let used = nat.inward(at(14_000), first) == Some(client) && nat.outward(at(28_000), client) == first;
    let silent = nat.inward(at(43_100), first).is_none();
    let second = nat.outward(at(43_200), client);
    let third = nat.outward(at(44_000), client);
    let (early, late) = (nat.outward(at(58_000), client), nat.outward(at(100_000), client));
    Card::new("V1 address translation")
        .holds("a mapping in use stays", used && third == second && early == second)
        .holds(
            "a silence of 15 s ends it, and another port follows",
            silent && second != first && second.ip() == first.ip(),
        )
        .holds("a rebinding changes the address", late.ip() != second.ip())
        .equal("replaced", nat.replaced(), 2)
        .done()
}

/// The histogram of waits: quantiles of 1 to 100,000 us within its resolution of 0.4 %.
fn histogram() -> Check {
    let mut histogram = Histogram::new();
    (1..=100_000).for_each(|micros| histogram.record_duration(Duration::from_micros(micros)));
    let at = |q: f64| histogram.quantile(q).map_or(0.0, number) / 1e6;
    Card::new("histogram of waits")
        .near("p50", at(0.5), 50.0, 0.2, " ms")
        .near("p99", at(0.99), 99.0, 0.4, " ms")
        .near("mean", histogram.mean().unwrap_or(0.0) / 1e6, 50.0005, 1e-6, " ms")
        .equal("values", histogram.count(), 100_000)
        .done()
}
