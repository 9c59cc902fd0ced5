//! The link model against arithmetic (V1) and the closed form of bursty loss (V2), and its own tests of both.

use std::time::Duration;

use anyhow::Result;
use netem::{Link, LinkConfig, Loss, PacketMeta, Queue, Verdict};
use units::{Bitrate, DataSize, Instant, Probability, Seed};

use super::{
    Context,
    row::{Row, Target},
    tests::binary,
};

const KBPS: [u64; 5] = [1_100, 10_000, 20_000, 50_000, 100_000];
/// Packets of 1,500 bytes that queues of the reference table hold.
const QUEUES: [u64; 3] = [25, 100, 1_000];
const SIZE: u64 = 1_500;

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut rows = arithmetic()?;
    rows.extend(bursts()?);
    let limit = Duration::from_secs(1_800);
    rows.push(binary(context, "link-arithmetic", &["-p", "tiderace-netem", "--test", "arithmetic"], limit));
    rows.push(binary(context, "link-bursts", &["-p", "tiderace-netem", "--test", "gilbert_elliott"], limit));
    Ok(rows)
}

fn packet(number: u64) -> PacketMeta {
    PacketMeta { size: 1_500, number, ..PacketMeta::default() }
}

fn bottleneck(kbps: u64, packets: u64) -> Result<Link> {
    let config = LinkConfig {
        rate: Some(Bitrate::from_bps(kbps * 1_000)),
        queue: Queue::DropTail { bytes: DataSize::from_bytes(packets * SIZE) },
        ..LinkConfig::default()
    };
    Ok(Link::new(&config, Seed::from_number(1))?)
}

/// Exact seconds on the wire.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn wire_seconds(kbps: u64, packets: u64) -> f64 {
    (packets * SIZE * 8) as f64 / (kbps * 1_000) as f64
}

/// V1: the time that a packet takes, the delay of a full queue, and the rate of a saturated link.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn arithmetic() -> Result<Vec<Row>> {
    let (mut serialisation, mut delay, mut rate) = (0.0_f64, 0.0_f64, 0.0_f64);
    for kbps in KBPS {
        let arrival = bottleneck(kbps, 10)?.offer(Instant::ZERO, &packet(0)).verdict.arrival().unwrap_or_default();
        serialisation = serialisation.max(((arrival - Instant::ZERO).as_secs_f64() - wire_seconds(kbps, 1)).abs());
        for packets in QUEUES {
            let mut link = bottleneck(kbps, packets)?;
            let transits = (0..packets + 10).map(|number| link.offer(Instant::ZERO, &packet(number)));
            let longest = transits.map(|transit| transit.queued).max().unwrap_or_default();
            delay = delay.max((longest.as_secs_f64() - wire_seconds(kbps, packets)).abs());
        }
        // Twice what fits, for ten seconds.
        let mut link = bottleneck(kbps, 20)?;
        let gap = wire_seconds(kbps, 1) / 2.0;
        let offered = (10.0 / gap) as u64;
        let arrivals = (0..offered).filter_map(|n| {
            link.offer(Instant::from_nanos((n as f64 * gap * 1e9) as u64), &packet(n)).verdict.arrival()
        });
        let (count, last) = arrivals.fold((0_u64, Instant::ZERO), |(count, last), at| (count + 1, last.max(at)));
        let delivered = (count * SIZE * 8) as f64 / (last - Instant::ZERO).as_secs_f64();
        rate = rate.max((delivered / (kbps * 1_000) as f64 - 1.0).abs());
    }
    let rates = "1.1, 10, 20, 50 and 100 Mbit/s";
    Ok(vec![
        Row::new("V1 serialisation, worst error", serialisation * 1e6, "µs", Target::AtMost(100.0))
            .detail(format!("one packet of 1,500 bytes at {rates}; the simulator is exact to a nanosecond")),
        Row::new("V1 delay of a full queue, worst error", delay * 1e6, "µs", Target::AtMost(100.0))
            .detail(format!("queues of 25, 100 and 1,000 packets at {rates}")),
        Row::new("V1 delivered rate, worst error", rate * 100.0, "%", Target::AtMost(0.5))
            .detail(format!("twice the rate offered for 10 s at {rates}")),
    ])
}

/// V2: mean loss and burst length of twelve chains, in standard deviations of a correlated sample.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn bursts() -> Result<Vec<Row>> {
    const PACKETS: u64 = 2_000_000;
    let (mut worst_mean, mut worst_length) = ((0.0_f64, String::new()), (0.0_f64, String::new()));
    let mut within = 0;
    for mean in [0.006, 0.01, 0.02, 0.05] {
        for length in [3.0, 6.0, 11.0] {
            let loss = Loss::Burst { mean: Probability::new(mean)?, length };
            let (lost, runs) = lose(loss, PACKETS)?;
            let (all, share) = (PACKETS as f64, lost as f64 / PACKETS as f64);
            let seen = lost as f64 / runs as f64;
            // Consecutive losses of a burst are one piece of luck: the binomial variance grows by 2B − 1.
            let off_mean = (share - mean) / (mean * (1.0 - mean) * (2.0 * length - 1.0) / all).sqrt();
            // Lengths are geometric: variance B (B − 1).
            let off_length = (seen - length) / (length * (length - 1.0) / runs as f64).sqrt();
            for (off, worst) in [(off_mean, &mut worst_mean), (off_length, &mut worst_length)] {
                within += usize::from(off.abs() <= 1.96);
                if off.abs() >= worst.0 {
                    *worst = (
                        off.abs(),
                        format!(
                            "at {} % in bursts of {length}: {:.4} % in bursts of {seen:.3}",
                            mean * 100.0,
                            share * 100.0
                        ),
                    );
                }
            }
        }
    }
    let how = format!("12 chains x {PACKETS} packets; {within} of 24 figures within their 95 % interval");
    let row = |what: &str, (off, of): (f64, String)| {
        Row::new(what, off, "deviations", Target::AtMost(3.5)).detail(format!("worst {of}; {how}"))
    };
    Ok(vec![
        row("V2 mean loss, worst of 12 chains", worst_mean),
        row("V2 burst length, worst of 12 chains", worst_length),
    ])
}

/// Packets lost and the number of bursts.
fn lose(loss: Loss, packets: u64) -> Result<(u64, u64)> {
    let mut link = Link::new(&LinkConfig { loss, ..LinkConfig::default() }, Seed::from_number(4))?;
    let (mut lost, mut bursts, mut inside) = (0, 0, false);
    for number in 0..packets {
        let drop = matches!(link.offer(Instant::from_micros(number), &packet(number)).verdict, Verdict::Dropped(_));
        lost += u64::from(drop);
        bursts += u64::from(drop && !inside);
        inside = drop;
    }
    Ok((lost, bursts))
}
