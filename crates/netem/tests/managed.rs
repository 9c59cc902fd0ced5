//! Queues that decide when packets leave: against arithmetic, against what their RFCs promise, and in fairness.

use netem::{Codel, DropReason, Ecn, EcnTreatment, FqCodel, Link, LinkConfig, PacketMeta, Queue, Verdict};
use tiderace_netem as netem;
use units::{Bitrate, DataSize, Duration, Instant, Seed};

const MS: Duration = Duration::from_millis(1);

fn codel(bytes: u64, ecn: bool) -> Codel {
    Codel { bytes: DataSize::from_bytes(bytes), target: 5 * MS, interval: 100 * MS, ecn }
}

fn link(mbps: u64, queue: Queue) -> Link {
    let config = LinkConfig { rate: Some(Bitrate::from_mbps(mbps)), queue, ..LinkConfig::default() };
    Link::new(&config, Seed::from_number(1)).unwrap()
}

/// Output of a link: when each packet of each flow arrived, and why others did not.
#[derive(Default, Debug)]
struct Seen {
    arrived: Vec<(u32, Instant)>,
    queued: Vec<Duration>,
    dropped: Vec<DropReason>,
    marked: usize,
}

fn drain(link: &mut Link, until: Instant, seen: &mut Seen) {
    while let Some(at) = link.deadline().filter(|at| *at <= until) {
        let mut any = false;
        while let Some(released) = link.poll(at) {
            any = true;
            match released.transit.verdict {
                Verdict::Delivered { first, .. } => {
                    seen.arrived.push((released.packet.flow, first.at));
                    seen.queued.push(released.transit.queued);
                    seen.marked += usize::from(first.ecn == Ecn::Ce);
                }
                Verdict::Dropped(reason) => seen.dropped.push(reason),
                Verdict::Held(_) => panic!("a released packet is decided"),
            }
        }
        assert!(any, "a deadline that has come yields something");
    }
}

/// Offers packets of 1500 bytes: (time in µs, flow).
fn run(link: &mut Link, packets: impl Iterator<Item = (u64, u32)>, ecn: Ecn) -> Seen {
    let mut seen = Seen::default();
    for (number, (at, flow)) in packets.enumerate() {
        let now = Instant::from_micros(at);
        drain(link, now, &mut seen);
        let packet = PacketMeta { size: 1500, flow, number: number as u64, ecn, ..PacketMeta::default() };
        assert!(matches!(link.offer(now, &packet).verdict, Verdict::Held(_)));
        drain(link, now, &mut seen);
    }
    drain(link, Instant::from_nanos(u64::MAX), &mut seen);
    seen
}

#[test]
fn without_a_standing_queue_nothing_is_dropped_and_the_rate_is_exact() {
    // 12 Mbit/s: a packet per millisecond. Bursts of four, every five milliseconds.
    let packets = (0..4_000).map(|n| (n / 4 * 5_000, 0));
    let seen = run(&mut link(12, Queue::Codel(codel(1 << 20, false))), packets, Ecn::NotEct);
    assert_eq!((seen.arrived.len(), seen.dropped.len()), (4_000, 0));
    let last = seen.arrived.last().unwrap().1;
    assert_eq!(last, Instant::from_micros(999 * 5_000 + 4_000));
    assert_eq!(seen.queued.iter().max(), Some(&(3 * MS)));
}

#[test]
fn packets_that_do_not_fit_are_dropped_at_the_tail() {
    let seen = run(&mut link(12, Queue::Codel(codel(6_000, false))), (0..20).map(|_| (0, 0)), Ecn::NotEct);
    // One is being sent, four wait.
    assert_eq!((seen.arrived.len(), seen.dropped), (5, vec![DropReason::Queue; 15]));
}

#[test]
fn drops_come_faster_and_faster_while_the_queue_stands() {
    // 10 % above the rate for 20 s: the queue stands, and CoDel must come to drop one in eleven.
    let packets = (0..22_000).map(|n| (n * 909, 0));
    let seen = run(&mut link(12, Queue::Codel(codel(1 << 24, false))), packets, Ecn::NotEct);
    assert!(seen.dropped.iter().all(|reason| *reason == DropReason::Aqm));
    // A sender that does not slow down is told more and more often: the distance shrinks with the root of the number, so n drops
    // take 2·100 ms·√n. In 20 s that is up to 10,000; what keeps the queue down is 2,000.
    assert!((1_000..=2_100).contains(&seen.dropped.len()), "{}", seen.dropped.len());
    assert_eq!(seen.arrived.len() + seen.dropped.len(), 22_000);
}

#[test]
fn the_first_drop_comes_an_interval_after_the_queue_began_to_stand() {
    let mut link = link(12, Queue::Codel(codel(1 << 24, false)));
    let mut seen = Seen::default();
    // A burst of 50 packets, then the rate exactly: a standing queue of 49 ms.
    let times = (0..50).map(|_| 0).chain((1..1_000).map(|n| n * 1_000));
    let mut first = None;
    for (number, at) in times.enumerate() {
        let now = Instant::from_micros(at);
        drain(&mut link, now, &mut seen);
        link.offer(now, &PacketMeta { size: 1500, number: number as u64, ..PacketMeta::default() });
        if first.is_none() && !seen.dropped.is_empty() {
            first = Some(now);
        }
    }
    // The sixth packet has waited 5 ms, at 5 ms; 100 ms later the first is dropped.
    let first = first.unwrap();
    assert!((105..=107).contains(&(first.as_nanos() / 1_000_000)), "{first:?}");
}

#[test]
fn packets_that_can_be_marked_are_marked_in_place_of_a_drop() {
    let packets = || (0..22_000).map(|n| (n * 909, 0));
    let queue = Queue::Codel(codel(1 << 24, true));
    let ect = run(&mut link(12, queue), packets(), Ecn::Ect0);
    assert!(ect.dropped.is_empty() && ect.marked > 500, "{}", ect.marked);
    let not = run(&mut link(12, queue), packets(), Ecn::NotEct);
    assert!(!not.dropped.is_empty() && not.marked == 0);
}

#[test]
fn flows_share_the_link_evenly_whatever_they_offer() {
    // 12 Mbit/s. Flow 0 offers three times the rate, flow 1 the rate, flow 2 a tenth of it.
    let mut packets: Vec<(u64, u32)> = (0..30_000).map(|n| (n * 333, 0)).collect();
    packets.extend((0..10_000).map(|n| (n * 1_000, 1)));
    packets.extend((0..1_000).map(|n| (n * 10_000 + 77, 2)));
    packets.sort_unstable();
    let fq = Queue::FqCodel(FqCodel { codel: codel(150_000, false), quantum: 1514 });
    let seen = run(&mut link(12, fq), packets.into_iter(), Ecn::NotEct);
    let ten = Instant::from_nanos(10_000_000_000);
    let share = |flow| seen.arrived.iter().filter(|(of, at)| *of == flow && *at <= ten).count() as f64;
    // The small flow gets all it wants, at once; the others halve the rest to within 1 %.
    assert_eq!(share(2), 1_000.0);
    let (greedy, fair) = (share(0), share(1));
    assert!((greedy / (greedy + fair) - 0.5).abs() < 0.01, "{greedy} {fair}");
    assert!((greedy + fair + share(2) - 10_000.0).abs() < 10.0, "the link is never idle");
    let first_come = run(&mut link(12, Queue::Codel(codel(150_000, false))), (0..1).map(|_| (0, 0)), Ecn::NotEct);
    assert_eq!(first_come.arrived.len(), 1);
}

#[test]
fn a_sparse_flow_does_not_wait_behind_a_greedy_one() {
    let mut packets: Vec<(u64, u32)> = (0..20_000).map(|n| (n * 500, 0)).collect();
    packets.extend((0..100).map(|n| (n * 100_000 + 33, 1)));
    packets.sort_unstable();
    let fq = Queue::FqCodel(FqCodel { codel: codel(1 << 20, false), quantum: 1514 });
    let mut link = link(12, fq);
    let mut worst = Duration::ZERO;
    let mut seen = Seen::default();
    let mut sent = Vec::new();
    for (number, (at, flow)) in packets.into_iter().enumerate() {
        let now = Instant::from_micros(at);
        drain(&mut link, now, &mut seen);
        link.offer(now, &PacketMeta { size: 1500, flow, number: number as u64, ..PacketMeta::default() });
        if flow == 1 {
            sent.push(now);
        }
    }
    drain(&mut link, Instant::from_nanos(u64::MAX), &mut seen);
    let arrived = seen.arrived.iter().filter(|(flow, _)| *flow == 1).map(|(_, at)| *at);
    for (sent, arrived) in sent.into_iter().zip(arrived) {
        worst = worst.max(arrived - sent);
    }
    // At most the packet on the wire, one of the other flow, and its own.
    assert!(worst <= 3 * MS, "{worst:?}");
}

#[test]
fn the_longest_queue_pays_when_the_room_is_used_up() {
    let fq = Queue::FqCodel(FqCodel { codel: codel(15_000, false), quantum: 1514 });
    // Flow 0 fills the room, then flow 1 sends two.
    let packets = (0..30).map(|_| (0, 0)).chain((0..2).map(|_| (1, 1)));
    let seen = run(&mut link(12, fq), packets, Ecn::NotEct);
    assert_eq!(seen.arrived.iter().filter(|(flow, _)| *flow == 1).count(), 2);
    assert!(seen.dropped.iter().all(|reason| *reason == DropReason::Queue));
}

#[test]
fn settings_as_people_write_them() {
    let config: LinkConfig =
        toml::from_str("rate = \"20 Mbit/s\"\nqueue = { fq-codel = { bytes = \"1 MB\", ecn = true } }").unwrap();
    let Queue::FqCodel(fq) = config.queue else { panic!("{config:?}") };
    assert_eq!((fq.codel.target, fq.codel.interval, fq.quantum, fq.codel.ecn), (5 * MS, 100 * MS, 1514, true));
    let again: LinkConfig = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
    assert_eq!(again, config);
    let full: LinkConfig = toml::from_str(
        r#"
        rate = "20 Mbit/s"
        queue = { codel = { bytes = "100 kB", target = "2 ms" } }
        policer = { rate = "10 Mbit/s", burst = "30 kB", udp-only = true }
        jitter-quantiles = [["50 %", "0 ms"], ["100 %", "2 s"]]
        jitter-period = "500 ms"
        loss = { group = { size = 11 } }
        changes = [{ at = "5 s", rate = "2 Mbit/s" }, { at = "6 s", mtu = 1300, delay = "80 ms" }]
        outages = [{ at = "3 s", lasts = "200 ms", every = "10 s", packets = "held" }]
        "#,
    )
    .unwrap();
    full.check().unwrap();
    let again: LinkConfig = toml::from_str(&toml::to_string(&full).unwrap()).unwrap();
    assert_eq!(again, full);
}

#[test]
fn marks_are_rewritten_behind_the_queue() {
    use Ecn::{Ce, Ect0, Ect1, NotEct};
    use EcnTreatment as T;
    let sent = [NotEct, Ect0, Ect1, Ce];
    for (ecn, arrive) in [
        (T::Pass, sent),
        (T::Bleach, [NotEct; 4]),
        (T::BleachEct1, [NotEct, Ect0, NotEct, Ce]),
        (T::Ect1ToEct0, [NotEct, Ect0, Ect0, Ce]),
        (T::Ect1ToCe, [NotEct, Ect0, Ce, Ce]),
    ] {
        let mut link = Link::new(&LinkConfig { ecn, ..LinkConfig::default() }, Seed::from_number(1)).unwrap();
        let arrived = sent.map(|ecn| {
            let packet = PacketMeta { size: 1500, ecn, ..PacketMeta::default() };
            link.offer(Instant::ZERO, &packet).verdict.deliveries().next().unwrap().ecn
        });
        assert_eq!(arrived, arrive, "{ecn:?}");
    }
    // Marks of the queue are among them: without the treatment some packets of this load are marked.
    for (ecn, is_marked) in [(T::Pass, true), (T::Bleach, false)] {
        let queue = Queue::Codel(codel(1 << 20, true));
        let config = LinkConfig { rate: Some(Bitrate::from_mbps(12)), queue, ecn, ..LinkConfig::default() };
        let mut link = Link::new(&config, Seed::from_number(1)).unwrap();
        let seen = run(&mut link, (0..4_000).map(|n| (n * 900, 0)), Ect0);
        assert_eq!((seen.marked > 0, seen.dropped.len()), (is_marked, 0), "{ecn:?}");
    }
}
