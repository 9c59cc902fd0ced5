//! Links beside Lindley's recursion, the generic cell rate algorithm and the transition matrix of a chain.

use netem::{DropReason, Link, LinkConfig, Loss, PacketMeta, Policer, Queue, Verdict};
use tiderace_reference::{bucket, chain::Chain, day, queue};
use units::{Bitrate, DataSize, Duration, Instant, Probability, Seed};

/// Rates at which a byte takes a whole number of nanoseconds, so that both sides compute without rounding.
const NANOS_PER_BYTE: [u64; 6] = [80, 100, 400, 800, 1_000, 8_000];

fn rate(nanos_per_byte: u64) -> Bitrate {
    Bitrate::from_bps(8_000_000_000 / nanos_per_byte)
}

fn packet(number: u64, bytes: u64) -> PacketMeta {
    PacketMeta { size: u32::try_from(bytes).unwrap(), number, ..PacketMeta::default() }
}

/// Packets of random sizes with exponential times between them, at a load of the server that is drawn.
fn arrivals(draws: &mut tiderace_reference::draws::Draws, nanos_per_byte: u64, count: usize) -> Vec<(u64, u64)> {
    let load = 0.5 + draws.unit();
    let mut now = 0.0;
    (0..count)
        .map(|_| {
            let bytes = draws.one_of(&[40, 100, 576, 1_200, 1_500]);
            now -= draws.unit().ln() * 683.0 * nanos_per_byte as f64 / load;
            (now as u64, bytes)
        })
        .collect()
}

/// Every packet waits, leaves and is dropped as the recursion says, to the nanosecond.
#[test]
fn a_queue_is_lindleys() {
    let mut draws = day::draws(1);
    for _ in 0..12 {
        let nanos = draws.one_of(&NANOS_PER_BYTE);
        let room = 1_500 * (1 + draws.below(60));
        let delay = draws.below(200_000_000);
        let packets = arrivals(&mut draws, nanos, 20_000);
        let config = LinkConfig {
            rate: Some(rate(nanos)),
            queue: Queue::DropTail { bytes: DataSize::from_bytes(room) },
            delay: Duration::from_nanos(delay),
            ..LinkConfig::default()
        };
        let mut link = Link::new(&config, Seed::from_number(draws.bits())).unwrap();
        let expected = queue::lindley(&packets, nanos, room);
        for (number, (&(at, bytes), expected)) in (0..).zip(packets.iter().zip(expected)) {
            let transit = link.offer(Instant::from_nanos(at), &packet(number, bytes));
            match (transit.verdict, expected) {
                (Verdict::Dropped(DropReason::Queue), None) => {}
                (Verdict::Delivered { first, .. }, Some(stay)) => {
                    assert_eq!(transit.queued, Duration::from_nanos(stay.wait), "packet {number}");
                    assert_eq!(first.at, Instant::from_nanos(stay.leaves + delay), "packet {number}");
                }
                other => panic!("packet {number}, {nanos} ns a byte, room {room}: {other:?}"),
            }
        }
    }
}

/// A policer passes exactly what the generic cell rate algorithm finds conforming.
#[test]
fn a_policer_is_a_cell_rate_algorithm() {
    let mut draws = day::draws(2);
    for _ in 0..12 {
        let nanos = draws.one_of(&NANOS_PER_BYTE);
        let burst = 1_500 * (1 + draws.below(40));
        let packets = arrivals(&mut draws, nanos, 20_000);
        let policer = Policer { rate: rate(nanos), burst: DataSize::from_bytes(burst), udp_only: false };
        let mut link =
            Link::new(&LinkConfig { policer: Some(policer), ..LinkConfig::default() }, Seed::from_number(1)).unwrap();
        let expected = bucket::conforming(&packets, nanos, burst);
        for (number, (&(at, bytes), expected)) in (0..).zip(packets.iter().zip(expected)) {
            let passed = link.offer(Instant::from_nanos(at), &packet(number, bytes)).verdict.arrival().is_some();
            assert_eq!(passed, expected, "packet {number}, {nanos} ns a byte, burst {burst}");
        }
    }
}

/// Share lost and mean run of losses of chains, within six standard deviations (2 × 10⁻⁹ each) and what their estimates add.
#[test]
fn losses_follow_the_transition_matrix() {
    const PACKETS: u64 = 1_000_000;
    let mut draws = day::draws(3);
    let share = |value: f64| Probability::new(value).unwrap();
    for cell in 0..8 {
        let loss = 0.002 * 50f64.powf(draws.unit());
        let (chain, config) = if cell % 2 == 0 {
            (Chain::independent(loss), Loss::Iid { p: share(loss) })
        } else {
            let length = 1.5 + 8.0 * draws.unit();
            let chain = Chain { to_good: 1.0 / length, to_bad: loss / (1.0 - loss) / length, good: 0.0, bad: 1.0 };
            (chain, Loss::Burst { mean: share(loss), length })
        };
        let config = LinkConfig { loss: config, ..LinkConfig::default() };
        let mut link = Link::new(&config, Seed::from_number(draws.bits())).unwrap();
        let (mut lost, mut runs, mut before) = (0u64, 0u64, false);
        for number in 0..PACKETS {
            let now = link.offer(Instant::from_micros(number), &packet(number, 1_500)).verdict.arrival().is_none();
            lost += u64::from(now);
            runs += u64::from(now && !before);
            before = now;
        }
        let (lost, runs) = (lost as f64, runs as f64);
        let off = (lost / PACKETS as f64 - chain.share()) / chain.deviation(PACKETS as f64);
        assert!(off.abs() < 6.0, "{chain:?}: {lost} lost, {off} standard deviations from {}", chain.share());
        // Lengths of runs are geometric: their mean has the deviation run sqrt(1 - 1 / run) / sqrt(runs).
        let spread = chain.run() * (1.0 - 1.0 / chain.run()).sqrt() / runs.sqrt();
        let off = (lost / runs - chain.run()) / spread.max(1e-9);
        assert!(off.abs() < 6.0, "{chain:?}: runs of {}, {off} standard deviations from {}", lost / runs, chain.run());
    }
}
