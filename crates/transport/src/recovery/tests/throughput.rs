//! One sender with endless data over a bottleneck with random loss: ledger, acknowledgements, recovery, controller and
//! pacer together, against the throughput that RFC 9438 §5.2 predicts.

use std::collections::VecDeque;

use super::*;
use crate::acks::{AckPolicy, AckState};

/// A path of 100 ms with a rate and a queue of one bandwidth-delay product.
struct Bottleneck {
    rate: Bitrate,
    queue: u64,
    loss_per_million: u64,
    seed: u64,
}

const ONE_WAY: Duration = Duration::from_millis(50);

impl Bottleneck {
    fn draw(&mut self) -> u64 {
        // SplitMix64: losses only have to look independent.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % 1_000_000
    }
}

struct Outcome {
    /// Bytes delivered per second after the first `warm_up`.
    goodput: f64,
    mean_window: f64,
    lost: u64,
    spurious: u64,
    max_queue: Duration,
}

/// Runs for `seconds` of virtual time.
#[expect(clippy::cast_precision_loss, reason = "statistics")]
fn run(algorithm: Algorithm, mut link: Bottleneck, seconds: u64, warm_up: u64) -> Outcome {
    let mut path = Path::new(algorithm);
    let mut acks = AckState::new(AckPolicy::default());
    let mut arrivals: VecDeque<(Instant, u64)> = VecDeque::new();
    let mut feedback: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let (mut now, mut busy_until) = (Instant::ZERO, Instant::ZERO);
    let end = at(seconds * 1000);
    let (mut delivered, mut windows, mut samples, mut lost, mut spurious) = (0_u64, 0.0, 0, 0, 0);
    let mut max_queue = Duration::ZERO;
    while now < end {
        // Send what may leave.
        let mut wake = loop {
            match path.recovery.allowance(now, u64::MAX) {
                Allowance::WindowFull => break Instant::FAR_FUTURE,
                Allowance::PacedUntil(release) => break release,
                Allowance::Bytes(bytes) => {
                    for _ in 0..(bytes / u64::from(SIZE)).max(1) {
                        let pn =
                            path.recovery.on_packet_sent(&mut path.ledger, SpaceId::DATA, &SentPacket::new(now, SIZE));
                        let size = units::DataSize::from_bytes(u64::from(SIZE) + 28);
                        let waiting = link.rate.in_time(busy_until - now).as_bytes();
                        if waiting + size.as_bytes() > link.queue {
                            continue;
                        }
                        busy_until = busy_until.max(now) + link.rate.time_for(size);
                        if now > at(warm_up * 1000) {
                            max_queue = max_queue.max(busy_until - now);
                        }
                        if link.draw() >= link.loss_per_million {
                            arrivals.push_back((busy_until + ONE_WAY, pn));
                        }
                    }
                }
            }
        };
        // Wait for the next thing to happen.
        for next in [arrivals.front().map(|a| a.0), feedback.front().map(|f| f.0), acks.deadline()] {
            wake = wake.min(next.unwrap_or(Instant::FAR_FUTURE));
        }
        if let Some((deadline, _)) = path.deadline() {
            wake = wake.min(deadline);
        }
        now = now.max(wake);
        while let Some((_, pn)) = arrivals.pop_front_if(|arrival| arrival.0 <= now) {
            acks.on_packet(pn, now, true, None);
            if now > at(warm_up * 1000) {
                delivered += u64::from(SIZE);
            }
        }
        if acks.wants_ack(now) {
            let mut buffer = vec![0; 1200];
            let mut w = Writer::new(&mut buffer);
            acks.write(&mut w, now, 0).unwrap();
            let len = w.position();
            buffer.truncate(len);
            feedback.push_back((now + ONE_WAY, buffer));
        }
        while let Some((_, frame)) = feedback.pop_front_if(|frame| frame.0 <= now) {
            let Some(Ok(Frame::Ack(ack))) = Frames::new(&frame).next() else { panic!("no ACK frame") };
            let delay = Duration::from_micros(ack.delay);
            let (ledger, recovery, progress) = (&mut path.ledger, &mut path.recovery, Progress::CONFIRMED);
            let outcome = on_ack_received(
                ledger,
                recovery,
                SpaceId::DATA,
                &ack,
                now,
                delay,
                &progress,
                &mut |_: Verdict, _: SentFrame| {},
            )
            .unwrap();
            lost += outcome.lost_packets;
            spurious += outcome.spurious_packets;
            windows += path.recovery.window() as f64;
            samples += 1;
        }
        match path.deadline() {
            Some((deadline, Reason::LossTime)) if deadline <= now => {
                lost += path.loss_timer(now).lost_packets;
            }
            Some((deadline, _)) if deadline <= now => {
                path.recovery.on_probe_timeout(now);
                let probe = SentPacket { pto_probe: true, ..SentPacket::new(now, SIZE) };
                let pn = path.recovery.on_packet_sent(&mut path.ledger, SpaceId::DATA, &probe);
                arrivals.push_back((busy_until.max(now) + ONE_WAY, pn));
            }
            _ => {}
        }
    }
    let span = (seconds - warm_up) as f64;
    Outcome {
        goodput: delivered as f64 / span,
        mean_window: windows / f64::from(samples) / f64::from(SIZE),
        lost,
        spurious,
        max_queue,
    }
}

fn mobile(loss_per_million: u64, seed: u64) -> Bottleneck {
    // 50 Mbit/s over 100 ms: 625 kB.
    Bottleneck { rate: Bitrate::from_mbps(50), queue: 625_000, loss_per_million, seed }
}

/// Packets per RTT by RFC 9438 §5.2: sqrt(3/2 / p) for Reno; for CUBIC the larger of that and 1.054 (RTT / p)^(3/4).
fn model(algorithm: Algorithm, p: f64) -> f64 {
    let reno = (1.5 / p).sqrt();
    match algorithm {
        Algorithm::NewReno => reno,
        _ => reno.max(1.054 * (0.1 / p).powf(0.75)),
    }
}

#[test]
fn random_loss_gives_the_throughput_of_the_model() {
    for algorithm in LOSS_BASED {
        for per_million in [1_000, 10_000] {
            let seeds = 10;
            let goodput = (0..seeds).map(|seed| run(algorithm, mobile(per_million, seed), 70, 10).goodput).sum::<f64>();
            let per_round = goodput / f64::from(u32::try_from(seeds).unwrap()) * 0.1 / f64::from(SIZE);
            #[expect(clippy::cast_precision_loss)]
            let expected = model(algorithm, per_million as f64 / 1e6);
            let ratio = per_round / expected;
            println!(
                "{algorithm} at {per_million} ppm: {per_round:.1} packets per RTT, model {expected:.1}: {ratio:.2}"
            );
            assert!(
                (0.75..=1.25).contains(&ratio),
                "{algorithm} at {per_million} ppm: {per_round:.1} of {expected:.1}"
            );
        }
    }
}

#[test]
fn without_loss_the_path_fills_and_the_queue_with_it() {
    for algorithm in LOSS_BASED {
        let link = Bottleneck { rate: Bitrate::from_mbps(20), queue: 250_000, loss_per_million: 0, seed: 0 };
        let outcome = run(algorithm, link, 100, 20);
        let capacity = 20e6 / 8.0 * 1200.0 / 1228.0;
        println!("{algorithm}: {:.3} of capacity, queue {:?}", outcome.goodput / capacity, outcome.max_queue);
        assert!(outcome.goodput > 0.97 * capacity, "{algorithm}: {:.3}", outcome.goodput / capacity);
        assert!(outcome.max_queue > 95 * MS, "{algorithm}: {:?}", outcome.max_queue);
        assert_eq!(outcome.spurious, 0);
        assert!(outcome.lost > 0 && outcome.mean_window > 200.0);
    }
}

/// BBR fills the path, and its queue does not grow with the buffer.
#[test]
fn a_model_of_the_path_fills_it_without_its_queue() {
    for algorithm in [Algorithm::Bbr2, Algorithm::Bbr3] {
        for queue in [125_000, 1_000_000] {
            let link = Bottleneck { rate: Bitrate::from_mbps(20), queue, loss_per_million: 0, seed: 0 };
            let outcome = run(algorithm, link, 60, 10);
            let capacity = 20e6 / 8.0 * 1200.0 / 1228.0;
            println!(
                "{algorithm}, queue {queue}: {:.3} of capacity, queue {:?}, lost {}, window {:.0}",
                outcome.goodput / capacity,
                outcome.max_queue,
                outcome.lost,
                outcome.mean_window
            );
            assert!(outcome.goodput > 0.9 * capacity, "{algorithm}: {:.3}", outcome.goodput / capacity);
            assert!(outcome.max_queue <= 100 * MS, "{algorithm}: {:?}", outcome.max_queue);
        }
    }
}

/// Random loss below the threshold costs BBR little.
#[test]
fn random_loss_is_borne() {
    for per_million in [1_000, 10_000] {
        let goodput = (0..4).map(|seed| run(Algorithm::Bbr3, mobile(per_million, seed), 40, 10).goodput).sum::<f64>();
        let mbps = goodput / 4.0 * 8.0 / 1e6;
        println!("bbr3 at {per_million} ppm: {mbps:.1} Mbit/s");
        assert!(mbps > 30.0, "{mbps:.1} at {per_million} ppm");
    }
}
