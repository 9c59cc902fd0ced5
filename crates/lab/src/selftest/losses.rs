//! Loss models and managed queues compared with closed forms.

use netem::{Codel, DropReason, Ecn, FqCodel, LinkConfig, Loss, LossTrace, PacketMeta, Queue, Verdict};
use units::{Bitrate, DataSize, Duration, Instant};

use super::{
    Check,
    calibration::number,
    card::Card,
    links::{books, link, packet, share},
};

/// All of them.
pub(super) fn checks() -> Result<Vec<Check>, String> {
    Ok(vec![independent()?, two_states()?, first_packet()?, trace()?, dropping_law()?, marking()?, fair_in_bytes()?])
}

/// Fates of packets, true for lost.
fn fates(loss: Loss, seed: u64, packets: u64) -> Result<Vec<bool>, String> {
    let mut model = link(&LinkConfig { loss, ..LinkConfig::default() }, seed)?;
    Ok((0..packets)
        .map(|count| model.offer(Instant::from_micros(count), &packet(count, 1_500)).verdict.arrival().is_none())
        .collect())
}

/// Share lost in percent, and mean length of runs of losses.
fn share_and_run(fates: &[bool]) -> (f64, f64) {
    let lost = fates.iter().filter(|lost| **lost).count();
    let runs = fates.windows(2).filter(|pair| pair[1] && !pair[0]).count() + usize::from(fates[0]);
    let length = number(lost as u64) / number(runs.max(1) as u64);
    (number(lost as u64) * 100.0 / number(fates.len() as u64), length)
}

/// Independent loss of 5 %: binomial share, geometric runs. 0.97 × the stated loss would be found.
fn independent() -> Result<Check, String> {
    let (lost, run) = share_and_run(&fates(Loss::Iid { p: share(0.05) }, 21, 500_000)?);
    Ok(Card::new("V2 independent loss")
        // Four and a half standard deviations.
        .near("lost", lost, 5.0, 0.14, " %")
        .near("mean run", run, 1.0 / 0.95, 0.008, "")
        .done())
}

/// A chain that loses in both states: mean and length of stays follow from its four numbers.
fn two_states() -> Result<Check, String> {
    let loss = Loss::GilbertElliott { p: share(0.01), r: share(0.1), loss_good: share(0.002), loss_bad: share(0.6) };
    let (lost, run) = share_and_run(&fates(loss, 22, 1_000_000)?);
    // A bad state is left with 0.1 after each packet: a loss there is followed by another with 0.9 × 0.6 (+ 0.1 × 0.002).
    let bad = 0.01 / 0.11;
    let mean = 100.0 * (bad * 0.6 + (1.0 - bad) * 0.002);
    let from_bad = bad * 0.6 / (bad * 0.6 + (1.0 - bad) * 0.002);
    let again = from_bad * (0.9 * 0.6 + 0.1 * 0.002) + (1.0 - from_bad) * (0.01 * 0.6 + 0.99 * 0.002);
    Ok(Card::new("V2 chain with loss in both states")
        .near("lost", lost, mean, 0.25, " %")
        .near("mean run", run, 1.0 / (1.0 - again), 0.05, "")
        .done())
}

/// A chain starts where it would be found at a random moment: half of the seeds lose their first packet.
fn first_packet() -> Result<Check, String> {
    let loss = || Loss::Burst { mean: share(0.5), length: 50.0 };
    let mut first = 0u64;
    for seed in 0..4_000 {
        first += u64::from(fates(loss(), seed, 1)?[0]);
    }
    Ok(Card::new("V2 first packet").near("lost first of 4000 seeds", number(first) / 40.0, 50.0, 3.6, " %").done())
}

/// A trace is followed packet by packet and begins again.
fn trace() -> Result<Check, String> {
    let trace = LossTrace::parse("a trace", "0001 0011 0000").map_err(|error| error.to_string())?;
    let seen = fates(Loss::Trace(trace), 5, 1_200)?;
    let (lost, _) = share_and_run(&seen);
    Ok(Card::new("V2 trace of losses")
        .near("lost", lost, 25.0, 1e-9, " %")
        .holds("every 12 packets alike", seen.chunks(12).all(|turn| turn == &seen[..12]))
        .done())
}

fn codel(ecn: bool) -> Codel {
    Codel {
        bytes: DataSize::from_bytes(1 << 40),
        target: Duration::from_millis(5),
        interval: Duration::from_millis(100),
        ecn,
    }
}

/// Offers packets of both sizes at twice the rate of 12 Mbit/s for `seconds`, and drains the link; dropped and marked.
fn overloaded(config: &LinkConfig, ecn: Ecn, seconds: u64) -> Result<(Vec<Instant>, u64), String> {
    let mut model = link(config, 1)?;
    let (mut dropped, mut marked) = (Vec::new(), 0);
    for count in 0..seconds * 2_000 {
        let now = Instant::from_micros(count * 500);
        while let Some(at) = model.deadline().filter(|at| *at <= now) {
            let Some(released) = model.poll(at) else { break };
            match released.transit.verdict {
                Verdict::Delivered { first, .. } => marked += u64::from(first.ecn == Ecn::Ce),
                Verdict::Dropped(DropReason::Aqm) => dropped.push(at),
                _ => {}
            }
        }
        model.offer(now, &PacketMeta { ecn, ..packet(count, 1_500) });
    }
    Ok((dropped, marked))
}

fn managed(ecn: bool) -> LinkConfig {
    LinkConfig { rate: Some(Bitrate::from_mbps(12)), queue: Queue::Codel(codel(ecn)), ..LinkConfig::default() }
}

/// CoDel under an overload that does not yield: the n-th drop follows the one before after 100 ms / √n (RFC 8289 §5.2).
fn dropping_law() -> Result<Check, String> {
    let (dropped, _) = overloaded(&managed(false), Ecn::NotEct, 10)?;
    // The wait passes 5 ms after some 10 ms and has to stay above for an interval.
    let first = dropped.first().map_or(0.0, |at| at.as_secs_f64());
    let mut due = first;
    let mut worst = 0.0f64;
    for (count, at) in (1u64..).zip(&dropped) {
        worst = worst.max((at.as_secs_f64() - due).abs());
        due += 0.1 / number(count).sqrt();
    }
    Ok(Card::new("V3 dropping law of CoDel")
        .near("first drop", first * 1e3, 110.0, 3.0, " ms")
        // The times between follow 100 ms / √n: their sum over 9.89 s is 2 √n × 100 ms.
        .within("drops in 10 s", number(dropped.len() as u64), 2_300.0, 2_650.0, "")
        // A drop waits for the packet that leaves next.
        .within("largest distance from the law", worst * 1e3, 0.0, 2.5, " ms")
        .done())
}

/// CoDel marks packets that can be marked, and drops none of them.
fn marking() -> Result<Check, String> {
    let (dropped, marked) = overloaded(&managed(true), Ecn::Ect0, 2)?;
    let (others, unmarked) = overloaded(&managed(true), Ecn::NotEct, 2)?;
    let (silent, kept) = overloaded(&managed(false), Ecn::Ect0, 2)?;
    Ok(Card::new("V3 marks of CoDel")
        .equal("dropped of packets that can be marked", dropped.len(), 0)
        .within("marked", number(marked), 80.0, 110.0, "")
        .holds("others are dropped instead", others.len() > 80 && unmarked == 0)
        .holds("without `ecn` all are dropped", silent.len() > 80 && kept == 0)
        .done())
}

/// A fair queue shares bytes, not packets: flows of 1500 and 300 bytes get half of the rate each.
fn fair_in_bytes() -> Result<Check, String> {
    let queue = Queue::FqCodel(FqCodel {
        codel: Codel { bytes: DataSize::from_bytes(150_000), ..codel(false) },
        quantum: 1_514,
    });
    let mut model = link(&LinkConfig { queue, ..managed(false) }, 1)?;
    let mut delivered = [0u64; 2];
    let mut take = |model: &mut netem::Link, now: Instant| {
        while model.deadline().is_some_and(|at| at <= now) {
            let Some(released) = model.poll(now) else { break };
            if released.transit.verdict.arrival().is_some() {
                delivered[released.packet.flow as usize] += u64::from(released.packet.size);
            }
        }
    };
    for count in 0..60_000u64 {
        let now = Instant::from_micros(count * 100);
        take(&mut model, now);
        if count % 10 == 0 {
            model.offer(now, &PacketMeta { flow: 0, ..packet(count, 1_500) });
        }
        if count % 2 == 0 {
            model.offer(now, &PacketMeta { flow: 1, ..packet(count, 300) });
        }
    }
    while let Some(at) = model.deadline() {
        take(&mut model, at);
    }
    let [large, small] = delivered.map(number);
    let rate = (large + small) * 8.0 / 6.0 / 1e6;
    Ok(Card::new("V3 fair in bytes")
        .near("share of the flow with large packets", large * 100.0 / (large + small), 50.0, 1.0, " %")
        .near("both together", rate, 12.0, 0.3, " Mbit/s")
        .equal("bytes without an account", books(&model), 0)
        .done())
}
