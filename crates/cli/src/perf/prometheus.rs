//! The report as metrics for Prometheus: for a file that node_exporter reads (textfile collector), or a push gateway.
//!
//! Each figure is a gauge of the last run. A figure that was not measured has no series.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::text::encode,
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

use super::{
    datagrams::Datagrams,
    report::{Goodput, Report},
    samples::Summary,
    tcp,
};

/// Labels of a series beside those that all have.
type Labels = Vec<(&'static str, String)>;
/// Series of a metric.
type Series = Vec<(Labels, f64)>;

/// Seconds in a millisecond.
const MS: f64 = 1e-3;
/// Bit/s in a Mbit/s.
const MEGA: f64 = 1e6;

/// Metrics, each registered when it has a series.
struct Metrics(Registry);

impl Metrics {
    fn add(&mut self, name: &str, help: &str, unit: Option<Unit>, series: Series) {
        if series.is_empty() {
            return;
        }
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in series {
            family.get_or_create(&labels).set(value);
        }
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, family),
            None => self.0.register(name, help, family),
        }
    }
}

/// Percentiles of a set, in seconds.
fn quantiles(labels: &[(&'static str, &str)], set: Option<&Summary>) -> Series {
    let Some(set) = set else { return Vec::new() };
    let of = [("0.5", Some(set.p50_ms)), ("0.95", set.p95_ms), ("0.99", set.p99_ms)];
    of.into_iter()
        .filter_map(|(quantile, ms)| Some((owned(&[labels, &[("quantile", quantile)]].concat()), ms? * MS)))
        .collect()
}

fn owned(labels: &[(&'static str, &str)]) -> Labels {
    labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

/// A gauge without labels of its own, if there is a value.
fn one(value: Option<f64>) -> Series {
    value.map(|value| (Vec::new(), value)).into_iter().collect()
}

#[expect(clippy::cast_precision_loss, reason = "figures for a report")]
fn counts(label: &'static str, counts: &[(&str, Option<u64>)]) -> Series {
    counts.iter().filter_map(|(value, count)| Some((owned(&[(label, value)]), (*count)? as f64))).collect()
}

/// The text exposition format of OpenMetrics, which Prometheus reads.
pub(super) fn text(report: &Report) -> String {
    let labels = [("server", report.server.clone()), ("transport", report.transport.to_owned())];
    let labels = labels.map(|(name, value)| (name.into(), value.into()));
    let mut metrics = Metrics(Registry::with_prefix_and_labels("tiderace_perf", labels.into_iter()));
    let seconds = || Some(Unit::Seconds);
    let partial = Some(f64::from(u8::from(report.partial)));
    metrics.add("partial", "1 when Ctrl-C ended the run early", None, one(partial));
    let made = &report.connections;
    let made = [("attempted", made.attempted), ("established", made.established), ("completed", made.completed)];
    let made = made.map(|(outcome, count)| (outcome, Some(count.into())));
    metrics.add("connections", "Connections by their outcome", None, counts("outcome", &made));
    let errors = report.errors.values().map(|count| u64::from(*count)).sum();
    metrics.add("errors", "Errors of connections", None, counts("kind", &[("connection", Some(errors))]));
    let mut handshake = quantiles(&[("kind", "all")], report.handshake.as_ref());
    let mut first = Vec::new();
    for kind in &report.handshakes {
        handshake.extend(quantiles(&[("kind", kind.kind)], kind.handshake.as_ref()));
        first.extend(quantiles(&[("kind", kind.kind)], kind.first_response.as_ref()));
    }
    metrics.add("handshake", "Time until the handshake is complete", seconds(), handshake);
    metrics.add("first_response", "Time from the first packet until the answer begins", seconds(), first);
    transfer(&mut metrics, report);
    datagrams(&mut metrics, &report.datagrams);
    kernel(&mut metrics, &report.tcp);
    let mut out = String::new();
    encode(&mut out, &metrics.0).expect("a string takes everything");
    out
}

/// Goodput, statistics of the senders and CPU time.
#[expect(clippy::cast_precision_loss, reason = "figures for a report")]
fn transfer(metrics: &mut Metrics, report: &Report) {
    let each = |of: fn(&Goodput) -> f64| -> Series {
        let directions = [("download", &report.download), ("upload", &report.upload)];
        let directions = directions.into_iter().filter_map(|(name, goodput)| Some((name, goodput.as_ref()?)));
        directions.map(|(name, goodput)| (owned(&[("direction", name)]), of(goodput))).collect()
    };
    metrics.add("received", "Bytes of the application", Some(Unit::Bytes), each(|goodput| goodput.bytes as f64));
    metrics.add("elapsed", "Time of the transfer", Some(Unit::Seconds), each(|goodput| goodput.elapsed_s));
    let rate = each(|goodput| goodput.goodput_mbit_per_s * MEGA);
    metrics.add("goodput_bits_per_second", "Bytes of the application in bit/s", None, rate);
    let Some(sender) = &report.sender else { return };
    metrics.add("rtt", "RTT that the senders saw", Some(Unit::Seconds), quantiles(&[], sender.rtt.as_ref()));
    let fates = [
        ("sent", Some(sender.packets_sent)),
        ("lost", sender.packets_lost),
        ("retransmitted", sender.packets_retransmitted),
    ];
    metrics.add("packets", "Packets of the senders by their fate", None, counts("fate", &fates));
    metrics.add("retransmitted", "Share of bytes sent again", Some(Unit::Ratios), one(sender.retransmitted_share));
    let cpu = report.cpu.as_ref().map(|cpu| cpu.cpu_s);
    metrics.add("cpu", "CPU time of the client", Some(Unit::Seconds), one(cpu));
}

/// Datagrams of each direction.
fn datagrams(metrics: &mut Metrics, of: &[Datagrams]) {
    let (mut fates, mut jitter, mut variation, mut one_way) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for of in of {
        let direction = ("direction", of.direction);
        let own = [
            ("offered", of.offered),
            ("unsent", of.unsent),
            ("received", of.received),
            ("lost", of.lost),
            ("unread", of.unread),
            ("reordered", of.reordered),
        ];
        for (mut labels, count) in counts("fate", &own.map(|(fate, count)| (fate, Some(count)))) {
            labels.push((direction.0, direction.1.to_owned()));
            fates.push((labels, count));
        }
        jitter.push((owned(&[direction]), of.jitter_ms * MS));
        variation.extend(quantiles(&[direction], of.delay_variation.as_ref()));
        one_way.extend(quantiles(&[direction], of.one_way_delay.as_ref()));
    }
    let seconds = || Some(Unit::Seconds);
    metrics.add("datagrams", "Datagrams by their fate", None, fates);
    metrics.add("jitter", "Interarrival jitter of datagrams (RFC 3550)", seconds(), jitter);
    metrics.add("delay_variation", "Delay of datagrams above the smallest", seconds(), variation);
    metrics.add("one_way_delay", "Delay of datagrams by the clocks of both hosts", seconds(), one_way);
}

/// Statistics of the kernel's TCP.
#[expect(clippy::cast_precision_loss, reason = "figures for a report")]
fn kernel(metrics: &mut Metrics, of: &[tcp::Direction]) {
    let each = |value: &dyn Fn(&tcp::Direction) -> Option<f64>| -> Series {
        of.iter().filter_map(|of| Some((owned(&[("direction", of.direction)]), value(of)?))).collect()
    };
    let rates = each(&|of| Some(of.delivery_rate_mbit_per_s? * MEGA));
    metrics.add("tcp_delivery_rate_bits_per_second", "Delivery rate that the kernel saw last", None, rates);
    let rtts = each(&|of| Some(of.min_rtt_ms? * MS));
    metrics.add("tcp_min_rtt", "Smallest RTT that the kernel saw", Some(Unit::Seconds), rtts);
    metrics.add("tcp_cwnd", "Congestion windows at the end", Some(Unit::Bytes), each(&|of| Some(of.cwnd_bytes as f64)));
}
