//! Figures from counters: every figure of hand-made records, and their statistics.

use netem::Histogram;
use sim::FlowLoss;
use units::{Duration, Instant};

use super::{Check, calibration::number, card::Card};
use crate::{
    contender::{DatagramsMeasured, Flow, Losses, Measured, RepairCounters},
    figure::{Figure, Unit},
    measure::{LinkWindow, Provenance, Reading, connections_with_loss, figures, harm},
    stats::{
        compare::{Better, Pair, Rule, Scale, Tolerance, Verdict, compare},
        distribution::{normal_quantile, student_quantile},
        fairness::jain,
        interval::{median_interval, median_interval_with_unknown},
        quantile::{median, quantile},
    },
    tally::{BroadcastTally, FeedTally, Missing, VideoTally},
    tunnelling::TunnelCounters,
};

/// All of them.
pub(super) fn checks() -> Vec<Check> {
    vec![by_hand(), of_rivals(), loss_in_set_up(), refusals(), statistics(), verdicts(), units()]
}

fn millis(range: impl Iterator<Item = u64>) -> Vec<Duration> {
    range.map(Duration::from_millis).collect()
}

/// A connection with every workload at once, which none has: each figure reads its own part.
fn connection(delivered: u64, index: u64) -> Measured {
    let tally = VideoTally {
        watched: Duration::from_secs(40),
        stalled: Duration::from_secs(2 * index),
        stalls: 3,
        switches: 8,
        segments: 10,
        bits: 50e6,
        began: None,
    };
    let repair = RepairCounters {
        symbols_sent: 1_000,
        repairs_sent: 100,
        repair_bytes: 120_000,
        header_bytes: 7_200,
        not_sent_again: 7,
        recovered: 30,
        needless: 6,
        unrecovered: 10,
        repairs_received: 80,
        repairs_late: 4,
        repairs_spurious: 20,
        recovery_delay: 240_000_000,
    };
    Measured {
        delivered,
        handshake: Some(Duration::from_millis(50 + index)),
        rtt: Some(millis((51..=550).map(|rtt| rtt + 500 * index))),
        rtt_min: Some(Duration::from_millis(50 + index)),
        loss_delays: Some(millis(1..=400)),
        stream_bytes_sent: Some(100_000),
        stream_bytes_resent: Some(5_000),
        packets_sent: Some(1_000),
        losses: losses(),
        memory: Some(10_000 + 1_000 * index),
        repair: Some(repair),
        requests: Some(millis(1..=300)),
        flow: Some(if index == 0 { Flow::Took(Duration::from_millis(120)) } else { Flow::Unfinished }),
        datagrams: Some(DatagramsMeasured {
            due: 500,
            arrived: 475,
            delays: millis((1..=475).map(|delay| delay * 2)),
            missing: Some(Missing { network: 10, dropped: 8, expired: 5, late: 2 }),
        }),
        video: Some((tally, Some(Duration::from_millis(300)))),
        feed: Some(FeedTally { seen: 30, missed: 10, image_bytes: 900, wasted_bytes: 100 }),
        broadcast: Some(broadcast()),
        ..Measured::default()
    }
}

/// Of 400 pictures 380 arrived, 360 of them in time; two of 16 groups were reset.
fn broadcast() -> BroadcastTally {
    BroadcastTally {
        pictures_due: 400,
        groups_due: 16,
        groups_reset: Some(2),
        group_bytes: 50_000,
        audio_due: 500,
        latencies: millis(101..=480),
        pictures_in_time: 360,
        useful_bytes: 45_000,
        audio_in_time: 490,
    }
}

/// Losses of both ends, inside and outside of a tunnel.
fn losses() -> [Losses; 2] {
    let end = |lost, dropped, outer_lost| Losses {
        packets_sent: Some(1_000),
        packets_lost: Some(lost),
        tunnel: Some(TunnelCounters {
            given: 1_000,
            dropped,
            packets_sent: Some(2_000),
            packets_lost: Some(outer_lost),
        }),
    };
    [end(50, 20, 80), end(10, 5, 40)]
}

/// Two connections, 2 s, a link that was offered 4 MB: each figure by hand.
fn by_hand() -> Check {
    let link = LinkWindow {
        offered: 1_000,
        offered_bytes: 4_000_000,
        dropped_queue: 20,
        dropped_loss: 30,
        reverse_bytes: 100_000,
        dropped_other: 10,
    };
    let mut queue = Histogram::new();
    (1..=1_000).for_each(|millis| queue.record_duration(Duration::from_millis(millis)));
    let both = [connection(1_500_000, 0), connection(500_000, 1)];
    let seen = figures(&both, &link, &queue, Duration::from_secs(2), Duration::from_secs(2));
    let expected = [
        (Figure::Goodput, 8e6),
        (Figure::Jain, 0.8),
        // RTTs from 51 to 1050 ms, a thousand.
        (Figure::RttP50, 0.550),
        (Figure::RttP95, 1.000),
        (Figure::RttP99, 1.040),
        (Figure::Jitter, 0.450),
        (Figure::Bufferbloat, 0.5505 / 0.05 - 1.0),
        (Figure::LinkLoss, 0.06),
        (Figure::QueueLoss, 0.02),
        (Figure::Retransmitted, 0.05),
        (Figure::Handshake, 0.050),
        (Figure::RequestRate, 300.0),
        (Figure::RequestP50, 0.150),
        (Figure::RequestP95, 0.285),
        (Figure::RequestP99, 0.297),
        (Figure::ResidualLoss, 0.05),
        (Figure::ResidualNetwork, 0.02),
        (Figure::ResidualDropped, 0.016),
        (Figure::ResidualExpired, 0.01),
        (Figure::ResidualLate, 0.004),
        // One in twenty never came, and is longer than all others.
        (Figure::DelayP50, 0.500),
        (Figure::DelayP95, 0.950),
        (Figure::ArrivedP50, 0.476),
        (Figure::ArrivedP95, 0.904),
        (Figure::ArrivedP99, 0.942),
        (Figure::Overhead, 0.5),
        (Figure::OverheadResent, 0.0025),
        (Figure::OverheadRest, 0.4975),
        (Figure::Reverse, 0.025),
        (Figure::FlowP50, 0.120),
        (Figure::FlowsUnfinished, 0.5),
        (Figure::VideoStart, 0.3),
        (Figure::VideoStalled, 2.0 / 80.0),
        (Figure::VideoStalls, 6.0 / 80.0),
        (Figure::VideoSwitches, 16.0 / 80.0),
        (Figure::VideoRate, 100e6 / 40.0),
        (Figure::FeedSeen, 0.75),
        (Figure::FeedWasted, 0.1),
        (Figure::PicturesInTime, 0.9),
        // One in twenty never came.
        (Figure::PictureP50, 0.300),
        (Figure::PictureP95, 0.480),
        (Figure::GroupsReset, 0.125),
        (Figure::PicturesWasted, 0.1),
        (Figure::AudioInTime, 0.98),
        (Figure::InnerLost, 0.05),
        (Figure::InnerLostBack, 0.01),
        (Figure::OuterLost, 0.04),
        (Figure::OuterLostBack, 0.02),
        (Figure::TunnelDropped, 0.02),
        (Figure::LossDelayP50, 0.200),
        (Figure::LossDelayP95, 0.380),
        (Figure::LossDelayP99, 0.396),
        (Figure::Repair, 0.065),
        // Of 30 that were rebuilt six arrived after all; ten were not rebuilt.
        (Figure::Recovered, 24.0 / 34.0),
        (Figure::RecoveryDelay, 0.008),
        (Figure::RepairSpurious, 0.25),
        (Figure::RepairLate, 0.05),
        (Figure::Memory, 10_500.0),
    ];
    let wrong: Vec<String> = expected
        .iter()
        .filter_map(|(figure, expected)| {
            let value = seen.get(figure).and_then(|reading| reading.value).unwrap_or(f64::NAN);
            let off = (value - expected).abs() > 1e-9 * expected.abs().max(1e-3);
            (off || value.is_nan()).then(|| format!("{} {value} ({expected})", figure.key()))
        })
        .collect();
    let wait = seen.get(&Figure::QueueDelayP99).and_then(|reading| reading.value).unwrap_or(f64::NAN);
    Card::new("figures of a record made by hand")
        .holds(
            &format!("{} figures equal what a hand computes{}{}", expected.len(), space(&wrong), wrong.join(", ")),
            wrong.is_empty(),
        )
        .holds(
            "the p99 of delay never came",
            seen.get(&Figure::DelayP99).is_some_and(|reading| reading.provenance == Provenance::Censored),
        )
        .near("queue delay p99", wait * 1e3, 990.0, 4.0, " ms")
        .done()
}

fn space(wrong: &[String]) -> &'static str {
    if wrong.is_empty() { "" } else { ", but " }
}

/// Rivals: the first keeps 3 of the 8 MB that it reaches alone, the second 1 of 10; RTTs of 40 and 50 ms grow to 100.
fn of_rivals() -> Check {
    let of = |delivered: u64, rtt: u64| Measured {
        delivered,
        rtt: Some(vec![Duration::from_millis(rtt); 100]),
        ..Measured::default()
    };
    let silent = Measured::default;
    let together = [of(3_000_000, 100), of(1_000_000, 100)];
    let alone = [vec![of(8_000_000, 40), silent()], vec![silent(), of(10_000_000, 50)]];
    let seen = harm(&together, &alone, |connection| connection % 2);
    let value = |wanted: Figure| -> f64 {
        seen.iter().find(|(figure, _)| *figure == wanted).and_then(|(_, reading)| reading.value).unwrap_or(f64::NAN)
    };
    Card::new("harm")
        .near("share of the first", value(Figure::Share), 0.75, 1e-9, "")
        .near("harm to the first", value(Figure::HarmFirst), 0.625, 1e-9, "")
        .near("harm to the second", value(Figure::HarmSecond), 0.9, 1e-9, "")
        .near("delay harm to the first", value(Figure::HarmDelayFirst), 0.6, 1e-9, "")
        .near("delay harm to the second", value(Figure::HarmDelaySecond), 0.5, 1e-9, "")
        .done()
}

/// Of four connections one loses its first packet, one its tenth, one both, one nothing.
fn loss_in_set_up() -> Check {
    let at = Instant::from_millis;
    let lost =
        |first: Option<u64>, last: Option<u64>| FlowLoss { first: first.map(at), last: last.map(at), packets: 1 };
    let connections =
        [0, 1, 2, 3].map(|_| Measured { handshake: Some(Duration::from_millis(60)), ..Measured::default() });
    let flows = [
        (at(0), lost(Some(10), Some(10))),
        (at(100), lost(Some(200), Some(200))),
        (at(0), lost(Some(10), Some(200))),
        (at(0), lost(None, None)),
    ];
    let value = |(figure, reading): &(Figure, Reading)| (figure.key(), reading.value.unwrap_or(f64::NAN));
    let seen = connections_with_loss(&connections, flows.into_iter());
    let [(_, setup), (_, after)] = [value(&seen[0]), value(&seen[1])];
    Card::new("losses in set-up and after")
        .near("in set-up", setup, 0.5, 1e-9, "")
        .near("after", after, 0.5, 1e-9, "")
        .done()
}

/// Percentiles of too few samples are refused: a p99 of 299, a p95 of 59.
fn refusals() -> Check {
    let of = |samples: u64| {
        let one = Measured { rtt: Some(millis(1..=samples)), ..Measured::default() };
        figures(&[one], &LinkWindow::default(), &Histogram::new(), Duration::from_secs(1), Duration::ZERO)
    };
    let refused = |samples, figure| of(samples).get(&figure).is_some_and(|one| one.provenance == Provenance::Refused);
    Card::new("too few samples")
        .holds("a p99 needs 300", refused(299, Figure::RttP99) && !refused(300, Figure::RttP99))
        .holds("a p95 needs 60", refused(59, Figure::RttP95) && !refused(60, Figure::RttP95))
        .done()
}

/// Percentiles, medians, Jain's index, quantiles of distributions and intervals against tables.
fn statistics() -> Check {
    let thousand: Vec<u64> = (1..=1_000).collect();
    let at = |q: f64| quantile(&thousand, q).map_or(0.0, number);
    let shuffled = [9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0];
    let ends = median_interval(&shuffled, 0.95)
        .map_or((0.0, 0.0, 0.0), |interval| (interval.low, interval.value, interval.high));
    // The value that is not known may be the smallest or the largest.
    let known = (1..=9).map(|value| Some(f64::from(value)));
    let unknown: Vec<Option<f64>> = known.chain([None]).collect();
    let wide =
        median_interval_with_unknown(&unknown, 0.95).map_or((0.0, 0.0), |interval| (interval.low, interval.high));
    Card::new("statistics")
        .near("p50 of 1 to 1000", at(0.5), 500.0, 0.0, "")
        .near("p95", at(0.95), 950.0, 0.0, "")
        .near("p99", at(0.99), 990.0, 0.0, "")
        .near("median of 1, 2, 9, 10", median(&[1.0, 2.0, 9.0, 10.0]).unwrap_or(f64::NAN), 5.5, 0.0, "")
        .near("Jain's index of 3 and 1", jain(&[3.0, 1.0]).unwrap_or(f64::NAN), 0.8, 1e-12, "")
        .near("and of one of four", jain(&[5.0, 0.0, 0.0, 0.0]).unwrap_or(f64::NAN), 0.25, 1e-12, "")
        .near("97.5 % of the normal", normal_quantile(0.975), 1.959_963_985, 1e-8, "")
        .near("97.5 % of Student's with 9", student_quantile(0.975, 9), 2.262_157, 1e-5, "")
        .near("low end of the median of 1 to 10", ends.0, 2.0, 0.0, "")
        .near("middle", ends.1, 5.5, 0.0, "")
        .near("high end", ends.2, 9.0, 0.0, "")
        .near("low end of 1 to 9 and one that is unknown", wide.0, 1.0, 0.0, "")
        .near("high end", wide.1, 9.0, 0.0, "")
        .done()
}

/// Half of the delay is better, half of the goodput worse; 1 % is no difference that matters; three pairs decide nothing.
fn verdicts() -> Check {
    let pairs = |factor: f64, count: u64| -> Vec<Pair> {
        (0..count).map(|index| 10.0 + number(index) / 10.0).map(|value| (Some(value * factor), Some(value))).collect()
    };
    let rule = |better: Better, scale: Scale| Rule {
        better: Some(better),
        scale,
        tolerance: Tolerance { relative: 0.03, absolute: 0.001 },
    };
    let of = |pairs: &[Pair], better: Better, scale: Scale| {
        compare(pairs, &rule(better, scale)).map(|comparison| comparison.verdict)
    };
    let say = |factor: f64, count: u64, better: Better| of(&pairs(factor, count), better, Scale::Ratio);
    let ratio = compare(&pairs(0.5, 10), &rule(Better::Lower, Scale::Ratio))
        .and_then(|one| one.ratio)
        .map_or(f64::NAN, |ratio| ratio.value);
    // A share of what was lost, against none; and a time that never came, against one that did.
    let against = |own: f64, other: f64| vec![(Some(own), Some(other)); 10];
    let lost = of(&against(0.02, 0.0), Better::Lower, Scale::Both);
    let never = of(&against(f64::INFINITY, 0.1), Better::Lower, Scale::Ratio);
    Card::new("verdicts")
        .near("ratio of contender to baseline", ratio, 0.5, 1e-9, "")
        .holds("half of a delay is better", say(0.5, 10, Better::Lower) == Some(Verdict::Better))
        .holds("half of a goodput is worse", say(0.5, 10, Better::Higher) == Some(Verdict::Worse))
        .holds("twice a delay is worse", say(2.0, 10, Better::Lower) == Some(Verdict::Worse))
        .holds("1 % more is equivalent", say(1.01, 10, Better::Higher) == Some(Verdict::Equivalent))
        .holds("three pairs decide nothing", say(2.0, 3, Better::Higher) == Some(Verdict::Undecided))
        .holds("a loss of 2 % against none is worse", lost == Some(Verdict::Worse))
        .holds("what never comes is worse", never == Some(Verdict::Worse))
        .done()
}

/// Bits, milliseconds, per cent: what is printed of a value in its base unit; and which way figures improve.
fn units() -> Check {
    let printed = |unit: Unit, value: f64| value * unit.printed().1;
    let better = |figure: Figure| figure.better();
    let lower = [
        Figure::RttP50,
        Figure::RttP99,
        Figure::ResidualLoss,
        Figure::DelayP99,
        Figure::RequestP99,
        Figure::FlowP99,
        Figure::HarmFirst,
    ];
    Card::new("units and directions")
        .near("2e6 bit/s", printed(Unit::BitsPerSecond, 2e6), 2.0, 1e-12, " Mbit/s")
        .near("0.05 s", printed(Unit::Seconds, 0.05), 50.0, 1e-12, " ms")
        .near("0.05", printed(Unit::Share, 0.05), 5.0, 1e-12, " %")
        .near("4096 B", printed(Unit::Bytes, 4_096.0), 4.0, 1e-12, " KiB")
        .holds(
            "more goodput is better",
            better(Figure::Goodput) == Some(Better::Higher) && better(Figure::Jain) == Some(Better::Higher),
        )
        .holds("less delay, loss and harm is better", lower.iter().all(|figure| better(*figure) == Some(Better::Lower)))
        .done()
}
