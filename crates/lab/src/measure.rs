//! Figures of a run from the counters of connections and links.

mod broadcasts;
mod tunnels;

use std::collections::BTreeMap;

use netem::Histogram;
use serde::{Deserialize, Serialize};
use sim::FlowLoss;
use units::{Duration, Instant};

use crate::{
    contender::{Flow, Measured, RepairCounters},
    figure::Figure,
    reading::{count, share},
    residual,
    stats::{
        distribution::to_f64,
        fairness::jain,
        quantile::{TooFewSamples, quantile, samples_needed},
    },
    tally::{FeedTally, VideoTally},
};

pub use crate::reading::{Provenance, Reading};

/// Bytes of the headers in front of a UDP payload over IPv4, as packets of the simulator have them.
const IP_AND_UDP: u64 = 28;

/// Packets of the loaded link while it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkWindow {
    /// Packets offered to the link.
    pub offered: u64,
    /// Bytes of IP packets offered to the link.
    pub offered_bytes: u64,
    /// Packets that found the queue full, or that its management or a policer dropped so that senders slow down.
    pub dropped_queue: u64,
    /// Packets that the loss model took.
    pub dropped_loss: u64,
    /// Bytes of IP packets offered to the link of the other direction.
    #[serde(default)]
    pub reverse_bytes: u64,
    /// Packets dropped for any other reason: too large for the path, in an outage, or by a test's script.
    pub dropped_other: u64,
}

impl LinkWindow {
    fn dropped(&self) -> u64 {
        self.dropped_queue + self.dropped_loss + self.dropped_other
    }
}

/// The figures of one run of `span` that was measured. `queueing` is how long packets waited at the loaded link, `segment`
/// how long a segment of video is played.
pub fn figures(
    connections: &[Measured],
    loaded: &LinkWindow,
    queueing: &Histogram,
    span: Duration,
    segment: Duration,
) -> BTreeMap<Figure, Reading> {
    let mut figures = BTreeMap::new();
    let bits = |connection: &Measured| count(connection.delivered) * 8.0 / span.as_secs_f64();
    let goodputs: Vec<f64> = connections.iter().map(bits).collect();
    figures.insert(Figure::Goodput, Reading::of(goodputs.iter().sum(), Provenance::Measured));
    figures.insert(Figure::Jain, Reading::from_option(jain(&goodputs), Provenance::Derived));
    figures.extend(rtt(connections));
    figures.insert(Figure::Retransmitted, retransmitted(connections));
    for (figure, dropped) in [(Figure::LinkLoss, loaded.dropped()), (Figure::QueueLoss, loaded.dropped_queue)] {
        figures.insert(figure, Reading::from_option(share(dropped, loaded.offered), Provenance::Simulated));
    }
    figures.insert(Figure::QueueDelayP99, queue_delay(queueing));
    let mut handshakes: Vec<Duration> = connections.iter().filter_map(|connection| connection.handshake).collect();
    handshakes.sort_unstable();
    let never = connections.len() - handshakes.len();
    figures.insert(Figure::Handshake, percentile_of_all(&handshakes, never, 0.5));
    figures.extend(overhead(connections, loaded));
    figures.extend(requests(connections, span));
    figures.extend(datagrams(connections));
    figures.extend(residual::parts(connections));
    figures.extend(flows(connections));
    figures.extend(video(connections, segment));
    figures.extend(feed(connections));
    figures.extend(broadcasts::figures(connections));
    figures.extend(tunnels::losses(connections));
    figures.extend(loss_delays(connections));
    figures.extend(repair(connections, loaded));
    if let Some(held) = connections.iter().map(|connection| connection.memory).sum::<Option<u64>>() {
        let mean = (!connections.is_empty()).then(|| count(held) / to_f64(connections.len()));
        figures.insert(Figure::Memory, Reading::from_option(mean, Provenance::Measured));
    }
    figures
}

/// Forward error correction, if anything was protected.
fn repair(connections: &[Measured], loaded: &LinkWindow) -> Vec<(Figure, Reading)> {
    let counts: Vec<RepairCounters> = connections.iter().filter_map(|connection| connection.repair).collect();
    if counts.is_empty() {
        return Vec::new();
    }
    let sum = |read: fn(&RepairCounters) -> u64| -> u64 { counts.iter().map(read).sum() };
    let of_repair = |part: u64| Reading::from_option(share(part, sum(|c| c.repairs_received)), Provenance::Measured);
    let (rebuilt, unrecovered) = (sum(|c| c.recovered), sum(|c| c.unrecovered));
    // What arrived after all was late, and not lost.
    let recovered = rebuilt.saturating_sub(sum(|c| c.needless));
    let bytes = sum(|c| c.repair_bytes) + IP_AND_UDP * sum(|c| c.repairs_sent) + sum(|c| c.header_bytes);
    let delay = (rebuilt > 0).then(|| count(sum(|c| c.recovery_delay)) / 1e9 / count(rebuilt));
    vec![
        (Figure::Repair, Reading::from_option(share(bytes, loaded.offered_bytes), Provenance::Derived)),
        (Figure::Recovered, Reading::from_option(share(recovered, recovered + unrecovered), Provenance::Measured)),
        (Figure::RecoveryDelay, Reading::from_option(delay, Provenance::Measured)),
        (Figure::RepairSpurious, of_repair(sum(|c| c.repairs_spurious))),
        (Figure::RepairLate, of_repair(sum(|c| c.repairs_late))),
    ]
}

/// Short flows, one per connection.
fn flows(connections: &[Measured]) -> Vec<(Figure, Reading)> {
    let all: Option<Vec<Flow>> = connections.iter().map(|connection| connection.flow).collect();
    let Some(all) = all else { return Vec::new() };
    let mut times: Vec<Duration> =
        all.iter().filter_map(|flow| if let Flow::Took(time) = flow { Some(*time) } else { None }).collect();
    times.sort_unstable();
    let unfinished = all.iter().filter(|flow| **flow == Flow::Unfinished).count();
    let share = share(unfinished as u64, (unfinished + times.len()) as u64);
    vec![
        (Figure::FlowP50, percentile_of_all(&times, unfinished, 0.5)),
        (Figure::FlowP95, percentile_of_all(&times, unfinished, 0.95)),
        (Figure::FlowP99, percentile_of_all(&times, unfinished, 0.99)),
        (Figure::FlowsUnfinished, Reading::from_option(share, Provenance::Measured)),
    ]
}

/// Videos. `segment` is how long each of their segments is played.
fn video(connections: &[Measured], segment: Duration) -> Vec<(Figure, Reading)> {
    let all: Option<Vec<_>> = connections.iter().map(|connection| connection.video).collect();
    let Some(all) = all else { return Vec::new() };
    let mut starts: Vec<Duration> = all.iter().filter_map(|(_, start)| *start).collect();
    starts.sort_unstable();
    let never = all.len() - starts.len();
    let sum = |read: fn(&VideoTally) -> f64| -> f64 { all.iter().map(|(tally, _)| read(tally)).sum() };
    let watched = sum(|tally| tally.watched.as_secs_f64());
    let of_watched = |value: f64| Reading::from_option((watched > 0.0).then(|| value / watched), Provenance::Measured);
    let played = sum(|tally| count(tally.segments)) * segment.as_secs_f64();
    let rate = (played > 0.0).then(|| sum(|tally| tally.bits) / played);
    vec![
        (Figure::VideoStart, percentile_of_all(&starts, never, 0.5)),
        (Figure::VideoStalled, of_watched(sum(|tally| tally.stalled.as_secs_f64()))),
        (Figure::VideoStalls, of_watched(sum(|tally| count(tally.stalls)))),
        (Figure::VideoSwitches, of_watched(sum(|tally| count(tally.switches)))),
        (Figure::VideoRate, Reading::from_option(rate, Provenance::Measured)),
    ]
}

/// Feeds.
fn feed(connections: &[Measured]) -> Vec<(Figure, Reading)> {
    let all: Option<Vec<FeedTally>> = connections.iter().map(|connection| connection.feed).collect();
    let Some(all) = all else { return Vec::new() };
    let sum = |read: fn(&FeedTally) -> u64| -> u64 { all.iter().map(read).sum() };
    let (seen, missed) = (sum(|feed| feed.seen), sum(|feed| feed.missed));
    let (useful, wasted) = (sum(|feed| feed.image_bytes), sum(|feed| feed.wasted_bytes));
    vec![
        (Figure::FeedSeen, Reading::from_option(share(seen, seen + missed), Provenance::Measured)),
        (Figure::FeedWasted, Reading::from_option(share(wasted, useful + wasted), Provenance::Measured)),
    ]
}

/// Delays by loss, where there was one.
fn loss_delays(connections: &[Measured]) -> Vec<(Figure, Reading)> {
    let Some(delays) = pooled(connections, |connection| connection.loss_delays.as_ref()) else { return Vec::new() };
    if delays.is_empty() {
        return Vec::new();
    }
    vec![
        (Figure::LossDelayP50, percentile(&delays, 0.5)),
        (Figure::LossDelayP95, percentile(&delays, 0.95)),
        (Figure::LossDelayP99, percentile(&delays, 0.99)),
    ]
}

/// Figures of runs in real time only. `cpu` is the CPU seconds of both ends.
pub(crate) fn in_real_time(
    cpu: f64,
    delivered: u64,
    mut smoothed_rtts: Vec<Duration>,
    delivery_rate: Option<f64>,
) -> [(Figure, Reading); 3] {
    let cost = (delivered > 0).then(|| cpu / (count(delivered) / 1e6));
    smoothed_rtts.sort_unstable();
    let smoothed = match smoothed_rtts.len() {
        0 => Reading::none(Provenance::Unsupported),
        _ => percentile(&smoothed_rtts, 0.5),
    };
    let rate =
        delivery_rate.map_or(Reading::none(Provenance::Unsupported), |rate| Reading::of(rate, Provenance::Measured));
    [
        (Figure::Cpu, Reading::from_option(cost, Provenance::Measured)),
        (Figure::SmoothedRtt, smoothed),
        (Figure::DeliveryRate, rate),
    ]
}

/// Connections of TCP that sent packets again: at all, in set-up, after it.
pub(crate) fn connections_with_resent(connections: &[Measured]) -> Vec<(Figure, Reading)> {
    let all: Option<Vec<[u64; 2]>> = connections.iter().map(|connection| connection.resent).collect();
    let Some(all) = all else { return Vec::new() };
    let of_all = |has: fn(&[u64; 2]) -> bool| {
        let count = all.iter().filter(|resent| has(resent)).count();
        Reading::from_option(share(count as u64, all.len() as u64), Provenance::Measured)
    };
    vec![
        (Figure::Resent, of_all(|[setup, after]| setup + after > 0)),
        (Figure::ResentSetup, of_all(|[setup, _]| *setup > 0)),
        (Figure::ResentAfter, of_all(|[_, after]| *after > 0)),
    ]
}

/// Connections of which a link dropped a packet before and after their handshake was complete: when they began, and what their
/// flow lost in the whole run.
pub(crate) fn connections_with_loss(
    connections: &[Measured],
    flows: impl Iterator<Item = (Instant, FlowLoss)>,
) -> [(Figure, Reading); 2] {
    let (mut setup, mut after) = (0, 0);
    for (connection, (start, loss)) in connections.iter().zip(flows) {
        // What is lost of a connection that is never established is lost in set-up.
        let established = connection.handshake.map(|took| start + took);
        let before = |at: Instant| established.is_none_or(|established| at <= established);
        setup += u64::from(loss.first.is_some_and(before));
        after += u64::from(loss.last.is_some_and(|at| !before(at)));
    }
    let of_all = |count| Reading::from_option(share(count, connections.len() as u64), Provenance::Simulated);
    [(Figure::LossSetup, of_all(setup)), (Figure::LossAfter, of_all(after))]
}

/// Effect of rivals on one another: the connections of all of them together, and those of each kind when the other kinds are
/// silent. `mine` says of which kind a connection is.
pub(crate) fn harm(
    together: &[Measured],
    alone: &[Vec<Measured>],
    mine: impl Fn(usize) -> usize,
) -> Vec<(Figure, Reading)> {
    let of = |connections: &[Measured], kind: usize| -> Vec<Measured> {
        let own = connections.iter().enumerate().filter(|(index, _)| mine(*index) == kind);
        own.map(|(_, connection)| connection.clone()).collect()
    };
    let delivered = |connections: &[Measured]| connections.iter().map(|one| one.delivered).sum::<u64>();
    let median = |connections: &[Measured]| -> Option<f64> {
        let samples = pooled(connections, |connection| connection.rtt.as_ref())?;
        percentile(&samples, 0.5).value
    };
    let mut figures = vec![(
        Figure::Share,
        Reading::from_option(share(delivered(&of(together, 0)), delivered(together)), Provenance::Derived),
    )];
    let names = [(Figure::HarmFirst, Figure::HarmDelayFirst), (Figure::HarmSecond, Figure::HarmDelaySecond)];
    for (kind, ((goodput, delay), alone)) in names.into_iter().zip(alone).enumerate() {
        let (with, without) = (of(together, kind), of(alone, kind));
        let kept = share(delivered(&with), delivered(&without));
        figures.push((goodput, Reading::from_option(kept.map(|kept| 1.0 - kept), Provenance::Derived)));
        let longer = median(&with).zip(median(&without)).filter(|(with, _)| *with > 0.0);
        let harm = longer.map(|(with, without)| 1.0 - without / with);
        figures.push((delay, Reading::from_option(harm, Provenance::Derived)));
    }
    figures
}

/// RTT percentiles, jitter and bufferbloat, from the samples of all connections together.
fn rtt(connections: &[Measured]) -> Vec<(Figure, Reading)> {
    const PERCENTILES: [(Figure, f64); 3] = [(Figure::RttP50, 0.5), (Figure::RttP95, 0.95), (Figure::RttP99, 0.99)];
    let Some(samples) = pooled(connections, |connection| connection.rtt.as_ref()) else {
        let figures = [Figure::RttP50, Figure::RttP95, Figure::RttP99, Figure::Jitter, Figure::Bufferbloat];
        return figures.map(|figure| (figure, Reading::none(Provenance::Unsupported))).into();
    };
    let mut figures: Vec<_> = PERCENTILES.iter().map(|&(figure, q)| (figure, percentile(&samples, q))).collect();
    let jitter = match (figures[0].1.value, figures[1].1.value) {
        (Some(p50), Some(p95)) => Reading::of(p95 - p50, Provenance::Derived),
        _ => Reading { provenance: figures[1].1.provenance, ..figures[1].1.clone() },
    };
    figures.push((Figure::Jitter, jitter));
    let mean = samples.iter().map(Duration::as_secs_f64).sum::<f64>() / to_f64(samples.len().max(1));
    let least = connections.iter().filter_map(|connection| connection.rtt_min).min();
    let bloat = match least {
        Some(least) if !samples.is_empty() && !least.is_zero() => {
            Reading::of(mean / least.as_secs_f64() - 1.0, Provenance::Derived)
        }
        None if !samples.is_empty() => Reading::none(Provenance::Unsupported),
        _ => Reading::none(Provenance::Empty),
    };
    figures.push((Figure::Bufferbloat, bloat));
    figures
}

fn queue_delay(queueing: &Histogram) -> Reading {
    let have = usize::try_from(queueing.count()).unwrap_or(usize::MAX);
    let samples = Some(have);
    match queueing.quantile_duration(0.99) {
        Some(value) if have >= samples_needed(0.99) => {
            Reading { samples, ..Reading::of(value.as_secs_f64(), Provenance::Simulated) }
        }
        Some(_) => {
            let reason = Some(TooFewSamples { needed: samples_needed(0.99), have }.to_string());
            Reading { samples, reason, ..Reading::none(Provenance::Refused) }
        }
        None => Reading::none(Provenance::Empty),
    }
}

fn retransmitted(connections: &[Measured]) -> Reading {
    let sum = |read: fn(&Measured) -> Option<u64>| -> Option<u64> { connections.iter().map(read).sum() };
    match (sum(|c| c.stream_bytes_resent), sum(|c| c.stream_bytes_sent)) {
        (Some(resent), Some(sent)) => Reading::from_option(share(resent, sent), Provenance::Measured),
        _ => Reading::none(Provenance::Unsupported),
    }
}

/// Bytes on the wire by purpose.
fn overhead(connections: &[Measured], loaded: &LinkWindow) -> Vec<(Figure, Reading)> {
    if loaded.offered_bytes == 0 {
        return Vec::new();
    }
    let of_wire = |bytes: u64| count(bytes) / count(loaded.offered_bytes);
    // What arrived at the begin of measuring was sent before it: the difference may be below zero by a round trip's worth.
    let overhead = 1.0 - of_wire(connections.iter().map(|connection| connection.delivered).sum());
    let mut figures = vec![
        (Figure::Overhead, Reading::of(overhead, Provenance::Derived)),
        (Figure::Reverse, Reading::of(of_wire(loaded.reverse_bytes), Provenance::Simulated)),
    ];
    let resent: Option<u64> = connections.iter().map(|connection| connection.stream_bytes_resent).sum();
    let split = match resent.map(of_wire) {
        Some(resent) => [resent, overhead - resent].map(|share| Reading::of(share, Provenance::Derived)),
        None => [Reading::none(Provenance::Unsupported), Reading::none(Provenance::Unsupported)],
    };
    figures.extend([Figure::OverheadResent, Figure::OverheadRest].into_iter().zip(split));
    figures
}

fn requests(connections: &[Measured], span: Duration) -> Vec<(Figure, Reading)> {
    let Some(times) = pooled(connections, |connection| connection.requests.as_ref()) else { return Vec::new() };
    let rate = to_f64(times.len()) / span.as_secs_f64();
    vec![
        (Figure::RequestRate, Reading::of(rate, Provenance::Measured)),
        (Figure::RequestP50, percentile(&times, 0.5)),
        (Figure::RequestP95, percentile(&times, 0.95)),
        (Figure::RequestP99, percentile(&times, 0.99)),
    ]
}

fn datagrams(connections: &[Measured]) -> Vec<(Figure, Reading)> {
    let read =
        |connection: &'_ Measured| connection.datagrams.as_ref().map(|datagrams| (datagrams.due, datagrams.arrived));
    let Some(counts) = connections.iter().map(read).collect::<Option<Vec<_>>>() else { return Vec::new() };
    let delays = pooled(connections, |connection| connection.datagrams.as_ref().map(|datagrams| &datagrams.delays));
    let (due, arrived) = counts.iter().fold((0, 0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
    let delays = delays.unwrap_or_default();
    let missing = due.saturating_sub(arrived);
    let never = usize::try_from(missing).unwrap_or(usize::MAX);
    vec![
        (Figure::ResidualLoss, Reading::from_option(share(missing, due), Provenance::Measured)),
        (Figure::DelayP50, percentile_of_all(&delays, never, 0.5)),
        (Figure::DelayP95, percentile_of_all(&delays, never, 0.95)),
        (Figure::DelayP99, percentile_of_all(&delays, never, 0.99)),
        (Figure::ArrivedP50, percentile(&delays, 0.5)),
        (Figure::ArrivedP95, percentile(&delays, 0.95)),
        (Figure::ArrivedP99, percentile(&delays, 0.99)),
    ]
}

/// All samples in ascending order; `None` when a connection does not report them.
fn pooled(connections: &[Measured], read: impl Fn(&Measured) -> Option<&Vec<Duration>>) -> Option<Vec<Duration>> {
    let mut samples = Vec::new();
    for connection in connections {
        samples.extend_from_slice(read(connection)?);
    }
    samples.sort_unstable();
    Some(samples)
}

fn percentile(ascending: &[Duration], q: f64) -> Reading {
    let samples = Some(ascending.len());
    match quantile(ascending, q) {
        Ok(value) => Reading { samples, ..Reading::of(value.as_secs_f64(), Provenance::Measured) },
        Err(TooFewSamples { have: 0, .. }) => Reading::none(Provenance::Empty),
        Err(error) => Reading { samples, reason: Some(error.to_string()), ..Reading::none(Provenance::Refused) },
    }
}

/// A percentile of samples, `never` further ones of which are missing: they rank above all others.
fn percentile_of_all(ascending: &[Duration], never: usize, q: f64) -> Reading {
    let all: Vec<Option<Duration>> =
        ascending.iter().copied().map(Some).chain(core::iter::repeat_n(None, never)).collect();
    let samples = Some(all.len());
    let reading = match quantile(&all, q) {
        Ok(Some(value)) => Reading { samples, ..Reading::of(value.as_secs_f64(), Provenance::Measured) },
        Ok(None) => Reading { samples, ..Reading::none(Provenance::Censored) },
        Err(TooFewSamples { have: 0, .. }) => return Reading::none(Provenance::Empty),
        Err(error) => Reading { samples, reason: Some(error.to_string()), ..Reading::none(Provenance::Refused) },
    };
    Reading { never: Some(never).filter(|never| *never > 0), ..reading }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_sent_again_count_once() {
        let of = |resent| Measured { resent, ..Measured::default() };
        let all = [[0, 0], [1, 3], [0, 2], [2, 0]].map(|resent| of(Some(resent)));
        let values = |all: &[Measured]| -> Vec<_> {
            connections_with_resent(all).into_iter().map(|(figure, reading)| (figure, reading.value)).collect()
        };
        let expected = [(Figure::Resent, 0.75), (Figure::ResentSetup, 0.5), (Figure::ResentAfter, 0.5)];
        assert_eq!(values(&all), expected.map(|(figure, value)| (figure, Some(value))));
        assert!(values(&[of(Some([1, 0])), of(None)]).is_empty());
    }
    use crate::{contender::DatagramsMeasured, record::RealTime};

    fn millis(range: impl Iterator<Item = u64>) -> Option<Vec<Duration>> {
        Some(range.map(Duration::from_millis).collect())
    }

    fn connection(delivered: u64) -> Measured {
        Measured {
            delivered,
            handshake: Some(Duration::from_millis(55)),
            rtt: millis(51..=150),
            rtt_min: Some(Duration::from_millis(50)),
            stream_bytes_sent: Some(1_000),
            stream_bytes_resent: Some(50),
            ..Measured::default()
        }
    }

    #[test]
    fn definitions() {
        let link = LinkWindow {
            offered: 1_000,
            offered_bytes: 4_000_000,
            reverse_bytes: 100_000,
            dropped_loss: 30,
            dropped_queue: 20,
            ..LinkWindow::default()
        };
        let mut queue = Histogram::new();
        (1..=1_000).for_each(|millis| queue.record_duration(Duration::from_millis(millis)));
        let connections: Vec<_> = [500_000, 500_000, 500_000, 1_000_000].map(connection).into();
        let figures = figures(&connections, &link, &queue, Duration::from_secs(2), Duration::ZERO);
        let value = |figure| figures[&figure].value.unwrap();
        let close =
            |figure, expected: f64| assert!((value(figure) - expected).abs() < 1e-9, "{figure:?} {}", value(figure));
        close(Figure::Goodput, 10e6);
        close(Figure::RttP50, 0.100);
        close(Figure::RttP95, 0.145);
        close(Figure::RttP99, 0.149);
        close(Figure::Jitter, 0.045);
        close(Figure::Bufferbloat, 0.1005 / 0.05 - 1.0);
        close(Figure::LinkLoss, 0.05);
        close(Figure::QueueLoss, 0.02);
        close(Figure::Retransmitted, 0.05);
        close(Figure::Jain, 6.25 / (4.0 * 1.75));
        close(Figure::Handshake, 0.055);
        // 2.5 MB delivered of 4 MB on the wire; 4 × 50 bytes were sent again.
        close(Figure::Overhead, 0.375);
        close(Figure::OverheadResent, 0.000_05);
        close(Figure::OverheadRest, 0.374_95);
        close(Figure::Reverse, 0.025);
        assert!((value(Figure::QueueDelayP99) - 0.99).abs() < 0.004);
        assert_eq!(figures[&Figure::LinkLoss].provenance, Provenance::Simulated);
        assert_eq!(figures[&Figure::RttP99].samples, Some(400));
        assert!(!figures.contains_key(&Figure::RequestP50));
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let mut silent = connection(1);
        (silent.rtt, silent.stream_bytes_resent) = (None, None);
        let link = LinkWindow::default();
        let known = figures(&[connection(1), silent], &link, &Histogram::new(), Duration::from_secs(1), Duration::ZERO);
        for figure in [Figure::RttP50, Figure::RttP99, Figure::Jitter, Figure::Bufferbloat, Figure::Retransmitted] {
            assert_eq!(known[&figure], Reading::none(Provenance::Unsupported), "{figure:?}");
        }
        assert_eq!(known[&Figure::LinkLoss].provenance, Provenance::Empty);
        let one = figures(&[connection(0)], &link, &Histogram::new(), Duration::from_secs(1), Duration::ZERO);
        assert_eq!(one[&Figure::RttP99].provenance, Provenance::Refused);
        assert_eq!(one[&Figure::RttP99].reason.as_deref(), Some("needs 300 samples, there are 100"));
        assert_eq!(one[&Figure::Goodput].value, Some(0.0));
        assert_eq!(one[&Figure::Jain].provenance, Provenance::Empty);
    }

    #[test]
    fn what_people_see() {
        let tally = VideoTally {
            watched: Duration::from_secs(40),
            stalled: Duration::from_secs(2),
            stalls: 1,
            switches: 4,
            segments: 10,
            bits: 50e6,
            ..VideoTally::default()
        };
        let feed = FeedTally { seen: 30, missed: 10, image_bytes: 900, wasted_bytes: 100 };
        let one =
            Measured { video: Some((tally, Some(Duration::from_millis(300)))), feed: Some(feed), ..connection(1) };
        let span = Duration::from_secs(40);
        let figures =
            figures(&[one.clone(), one], &LinkWindow::default(), &Histogram::new(), span, Duration::from_secs(2));
        for (figure, expected) in [
            (Figure::VideoStart, 0.3),
            (Figure::VideoStalled, 0.05),
            (Figure::VideoStalls, 0.025),
            (Figure::VideoSwitches, 0.1),
            (Figure::VideoRate, 2.5e6),
            (Figure::FeedSeen, 0.75),
            (Figure::FeedWasted, 0.1),
        ] {
            assert!((figures[&figure].value.unwrap() - expected).abs() < 1e-9, "{figure:?}");
        }
    }

    #[test]
    fn a_flow_that_is_not_complete_takes_longer_than_any_other() {
        let flow = |flow| Measured { flow: Some(flow), ..connection(1) };
        let mut flows: Vec<Measured> = (1..=96).map(|n| flow(Flow::Took(Duration::from_millis(n)))).collect();
        flows.extend((0..4).map(|_| flow(Flow::Unfinished)));
        let span = Duration::from_secs(1);
        let measured = figures(&flows, &LinkWindow::default(), &Histogram::new(), span, Duration::ZERO);
        assert_eq!((measured[&Figure::FlowP50].value, measured[&Figure::FlowP95].value), (Some(0.050), Some(0.095)));
        flows.extend((0..4).map(|_| flow(Flow::Unfinished)));
        let measured = figures(&flows, &LinkWindow::default(), &Histogram::new(), span, Duration::ZERO);
        assert_eq!(measured[&Figure::FlowP95].provenance, Provenance::Censored);
    }

    #[test]
    fn what_the_machine_spends_is_counted_per_megabyte() {
        let machine = RealTime { cpu: [0.2, 0.3], cpu_emulator: 2.5, cpu_receiving: Some(0.5), ..RealTime::default() };
        let rtts = millis(1..=101).unwrap();
        let figures = BTreeMap::from(in_real_time(machine.cpu_of_ends(), 4_000_000, rtts, Some(5e6)));
        let value = |figure: Figure| figures[&figure].value;
        assert_eq!((value(Figure::Cpu), value(Figure::DeliveryRate)), (Some(0.25), Some(5e6)));
        assert_eq!(value(Figure::SmoothedRtt), Some(0.051));
        let silent = BTreeMap::from(in_real_time(machine.cpu_of_ends(), 0, Vec::new(), None));
        assert!(silent.values().all(|reading| reading.value.is_none()), "{silent:?}");
    }

    #[test]
    fn residual_loss() {
        let datagrams = DatagramsMeasured { due: 400, arrived: 390, delays: millis(1..=390).unwrap(), missing: None };
        let connection = Measured { datagrams: Some(datagrams), ..connection(1) };
        let figures =
            figures(&[connection], &LinkWindow::default(), &Histogram::new(), Duration::from_secs(1), Duration::ZERO);
        assert_eq!(figures[&Figure::ResidualLoss].value, Some(0.025));
        // Ten of four hundred never came: they rank behind all others, and are not among those that arrived.
        assert_eq!(figures[&Figure::ArrivedP50].value, Some(0.195));
        assert_eq!(figures[&Figure::DelayP50].value, Some(0.200));
        let (p95, p99) = (&figures[&Figure::DelayP95], &figures[&Figure::DelayP99]);
        assert_eq!((p95.value, p95.never, p95.samples), (Some(0.380), Some(10), Some(400)));
        assert_eq!((p99.value, p99.provenance), (None, Provenance::Censored));
        assert_eq!(p99.ranked(Figure::DelayP99), Some(f64::INFINITY));
    }
}
