//! Arithmetic of a link: times on the wire, delay of a full queue, rate, order of stages, draws.

use netem::{DropReason, Duplicate, Ecn, Forced, Link, LinkConfig, Loss, PacketMeta, Queue, Script, Verdict};
use tiderace_netem as netem;
use units::{Bitrate, DataSize, Duration, Instant, Probability, Seed};

const KBPS: [u64; 5] = [1_100, 10_000, 20_000, 50_000, 100_000];

fn link(config: &LinkConfig) -> Link {
    Link::new(config, Seed::from_number(1)).unwrap()
}

fn packet(number: u64) -> PacketMeta {
    PacketMeta { size: 1500, number, ..PacketMeta::default() }
}

fn bottleneck(kbps: u64, packets: u64) -> LinkConfig {
    LinkConfig {
        rate: Some(Bitrate::from_bps(kbps * 1000)),
        queue: Queue::DropTail { bytes: DataSize::from_bytes(packets * 1500) },
        ..LinkConfig::default()
    }
}

/// Time for `packets` packets of 1500 bytes at `kbps`, in nanoseconds, rounded up.
fn wire_time(kbps: u64, packets: u64) -> u64 {
    (packets * 1500 * 8 * 1_000_000).div_ceil(kbps)
}

#[test]
fn one_packet_takes_the_time_of_its_bits_and_of_the_way() {
    // 1500 bytes: 10.909 ms at 1.1 Mbit/s, 1.2 ms at 10, 0.6 at 20, 0.24 at 50, 0.12 at 100.
    let expected = [10_909_091, 1_200_000, 600_000, 240_000, 120_000];
    for (kbps, nanos) in KBPS.into_iter().zip(expected) {
        let config = LinkConfig { delay: Duration::from_millis(25), ..bottleneck(kbps, 10) };
        let transit = link(&config).offer(Instant::from_millis(1), &packet(0));
        assert_eq!(transit.queued, Duration::ZERO);
        assert_eq!(transit.verdict.arrival(), Some(Instant::from_nanos(26_000_000 + nanos)), "{kbps}");
    }
}

#[test]
fn a_full_queue_delays_by_its_bytes() {
    // The table of reference values, in tenths of a millisecond: rows 25, 100 and 1000 packets of 1500 bytes.
    let table = [[2727, 300, 150, 60, 30], [10909, 1200, 600, 240, 120], [109_091, 12_000, 6000, 2400, 1200]];
    for (packets, row) in [25, 100, 1000].into_iter().zip(table) {
        for (kbps, tenths) in KBPS.into_iter().zip(row) {
            let mut link = link(&bottleneck(kbps, packets));
            // One is being sent, the queue fills, everything else is dropped.
            let transits: Vec<_> = (0..packets + 10).map(|n| link.offer(Instant::ZERO, &packet(n))).collect();
            let last = transits.iter().rev().find(|transit| transit.verdict.arrival().is_some()).unwrap();
            let exact = packets * 1500 * 8 * 1_000_000 / kbps;
            assert_eq!(last.queued, Duration::from_nanos(exact));
            assert_eq!((exact + 50_000) / 100_000, tenths, "{packets} packets at {kbps} kbit/s");
            assert_eq!(link.counters().dropped(DropReason::Queue).packets, 9);
            assert_eq!(link.counters().queue_peak_bytes, packets * 1500);
        }
    }
}

#[test]
fn a_saturated_link_delivers_its_rate_exactly() {
    for kbps in KBPS {
        let mut link = link(&bottleneck(kbps, 20));
        // Twice as many packets as the link can carry, for ten seconds.
        let gap = wire_time(kbps, 1) / 2;
        let arrivals: Vec<Instant> = (0..10_000_000_000 / gap)
            .filter_map(|n| link.offer(Instant::from_nanos(n * gap), &packet(n)).verdict.arrival())
            .collect();
        for (n, at) in (1..).zip(&arrivals) {
            assert_eq!(at.as_nanos(), wire_time(kbps, n));
        }
        let dropped = link.counters().dropped(DropReason::Queue).packets;
        assert_eq!(dropped + arrivals.len() as u64, link.counters().offered.packets);
        assert!(dropped.abs_diff(arrivals.len() as u64) <= 42, "half of the packets do not fit");
    }
}

#[test]
fn a_lost_packet_has_used_the_link() {
    let config = LinkConfig { loss: Loss::Iid { p: Probability::ONE }, ..bottleneck(10_000, 10) };
    let mut all_lost = link(&config);
    assert_eq!(all_lost.offer(Instant::ZERO, &packet(0)).verdict, Verdict::Dropped(DropReason::Loss));
    assert_eq!(all_lost.offer(Instant::ZERO, &packet(1)).queued, Duration::from_micros(1200));
    assert_eq!(all_lost.backlog(Instant::ZERO).as_bytes(), 1500);
}

#[test]
fn a_packet_too_large_uses_nothing() {
    let mut link = link(&LinkConfig { mtu: Some(1499), ..bottleneck(10_000, 10) });
    assert_eq!(link.offer(Instant::ZERO, &packet(0)).verdict, Verdict::Dropped(DropReason::Mtu));
    let small = PacketMeta { size: 1499, ..packet(1) };
    assert_eq!(link.offer(Instant::ZERO, &small).queued, Duration::ZERO);
}

#[test]
fn a_copy_takes_no_rate_and_comes_second() {
    let duplicate = Duplicate { probability: Probability::ONE, delay: Duration::from_millis(3) };
    let mut link = link(&LinkConfig { duplicate: Some(duplicate), ..bottleneck(10_000, 10) });
    for n in 0..5 {
        let transit = link.offer(Instant::ZERO, &packet(n));
        assert_eq!(transit.queued, Duration::from_micros(1200 * n));
        let [first, second] = transit.verdict.deliveries().collect::<Vec<_>>()[..] else { panic!("two arrivals") };
        assert!(second.at >= first.at && second.at - first.at <= duplicate.delay);
    }
    assert_eq!(link.counters().duplicated, 5);
    assert_eq!(link.counters().delivered.packets, 5);
}

#[test]
fn a_script_has_the_last_word() {
    let mut link = link(&LinkConfig { loss: Loss::Iid { p: Probability::ONE }, ..LinkConfig::default() });
    link.set_script(Script::new(|packet| match packet.number {
        0 => Some(Forced::Keep),
        1 => Some(Forced::Drop),
        2 => Some(Forced::Corrupt),
        3 => Some(Forced::Delay(Duration::from_millis(7))),
        _ => None,
    }));
    let verdicts: Vec<Verdict> = (0..5).map(|n| link.offer(Instant::ZERO, &packet(n)).verdict).collect();
    assert_eq!(verdicts[0].arrival(), Some(Instant::ZERO));
    assert_eq!(verdicts[1], Verdict::Dropped(DropReason::Script));
    assert!(verdicts[2].deliveries().all(|delivery| delivery.corrupt.is_some()));
    assert_eq!(verdicts[3].arrival(), Some(Instant::from_millis(7)));
    assert_eq!(verdicts[4], Verdict::Dropped(DropReason::Loss));
    let counters = link.counters();
    assert_eq!((counters.corrupted, counters.dropped_in_all().packets, counters.reordered), (1, 2, 0));
}

#[test]
fn ecn_bits_pass() {
    let ect = PacketMeta { ecn: Ecn::Ect0, ..packet(0) };
    let verdict = link(&bottleneck(10_000, 1)).offer(Instant::ZERO, &ect).verdict;
    assert!(verdict.deliveries().all(|delivery| delivery.ecn == Ecn::Ect0));
}

/// Link with all impairments at once.
fn rough() -> LinkConfig {
    let probability = |value| Probability::new(value).unwrap();
    LinkConfig {
        delay: Duration::from_millis(10),
        jitter: Duration::from_millis(5),
        reorder: Some(netem::Reorder { probability: probability(0.05), delay: Duration::from_millis(2) }),
        duplicate: Some(Duplicate { probability: probability(0.05), delay: Duration::from_millis(1) }),
        loss: Loss::Iid { p: probability(0.05) },
        corrupt: probability(0.05),
        ..bottleneck(20_000, 30)
    }
}

/// Common random numbers: the n-th packet's luck depends on the seed and n alone, not on what became of others.
#[test]
fn the_luck_of_a_packet_does_not_depend_on_other_settings() {
    // Packets 100 µs apart overflow a queue of 30; without a rate nothing is dropped there.
    let narrow = rough();
    let wide = LinkConfig { rate: None, queue: Queue::Unlimited, ..rough() };
    let lossless = LinkConfig { loss: Loss::None, ..wide.clone() };
    let fates = |config: &LinkConfig| {
        let mut link = link(config);
        (0..20_000).map(|n| link.offer(Instant::from_micros(n * 100), &packet(n)).verdict).collect::<Vec<_>>()
    };
    let (narrow, wide, lossless) = (fates(&narrow), fates(&wide), fates(&lossless));
    let mut compared = 0;
    for n in 0..wide.len() {
        // Lost on the wide link = lost on the narrow one, unless the queue dropped it before.
        if narrow[n] != Verdict::Dropped(DropReason::Queue) {
            assert_eq!(
                wide[n] == Verdict::Dropped(DropReason::Loss),
                narrow[n] == Verdict::Dropped(DropReason::Loss),
                "{n}"
            );
        }
        let luck = |verdict: &Verdict| match verdict {
            Verdict::Dropped(_) | Verdict::Held(_) => None,
            Verdict::Delivered { first, copy } => Some((first.corrupt, copy.map(|copy| copy.at - first.at))),
        };
        for other in [&narrow[n], &lossless[n]] {
            if let (Some(one), Some(other)) = (luck(&wide[n]), luck(other)) {
                assert_eq!(one, other, "{n}");
                compared += 1;
            }
        }
    }
    assert!(compared > 20_000);
    assert!(narrow.contains(&Verdict::Dropped(DropReason::Queue)));
}

#[test]
fn the_same_seed_gives_the_same_fates_and_another_does_not() {
    let fates = |seed| {
        let mut link = Link::new(&rough(), Seed::from_number(seed)).unwrap();
        (0..2000).map(|n| link.offer(Instant::from_micros(n * 500), &packet(n))).collect::<Vec<_>>()
    };
    assert_eq!(fates(1), fates(1));
    assert_ne!(fates(1), fates(2));
}

#[test]
fn counters_add_up() {
    let mut link = link(&LinkConfig { mtu: Some(1400), ..rough() });
    for n in 0..20_000 {
        let size = if n % 7 == 0 { 1500 } else { 1200 };
        link.offer(Instant::from_micros(n * 400), &PacketMeta { size, ..packet(n) });
    }
    let counters = link.counters();
    assert_eq!(counters.offered.packets, counters.delivered.packets + counters.dropped_in_all().packets);
    assert_eq!(counters.offered.bytes, counters.delivered.bytes + counters.dropped_in_all().bytes);
    assert_eq!(counters.dropped(DropReason::Mtu).packets, 20_000u64.div_ceil(7));
    for count in [counters.duplicated, counters.corrupted, counters.reordered, link.queueing().count()] {
        assert!(count > 100, "{counters:?}");
    }
}
