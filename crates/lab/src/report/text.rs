//! Complete report as text: all figures with their intervals, the comparison, and a description of the simulation. Readable without colour,
//! at most 80 columns wide.

use core::fmt::{self, Write};

use netem::{LinkConfig, Loss, Queue, VaryingRate};
use units::duration_text::display;

use super::{
    Cell, Report,
    brief::{end_line, never, self_test},
    headline::seeds,
    style::{Style, blocks, width, wrap},
};
use crate::{
    figure::{Figure, Unit},
    measure::Provenance,
    record::Manifest,
    scenario::{Direction, Scenario, Workload},
    stats::interval::{RUNS_MIN, RUNS_RECOMMENDED},
    versus::{effect, words},
};

/// Prints the report.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_all(&mut out, report);
    out
}

fn write_all(out: &mut String, report: &Report) -> fmt::Result {
    let scenario = &report.manifest.scenario;
    *out += &wrap(&format!("{}: {}", scenario.name, scenario.title), 2);
    self_test(out, &report.self_test, Style::default());
    out.push('\n');
    table(out, report)?;
    notes(out, report)?;
    comparisons(out, report)?;
    simulated(out, report)?;
    failures(out, report)?;
    match &report.records {
        Some(path) => writeln!(out, "\nRecords (JSON lines): {}", path.display()),
        None => Ok(()),
    }
}

/// One row per figure, one column per contender.
fn table(out: &mut String, report: &Report) -> fmt::Result {
    let figures: Vec<Figure> = Figure::all()
        .filter(|&figure| (0..report.contenders.len()).any(|i| report.cell(i, figure).is_some()))
        .collect();
    let body: Vec<Vec<String>> = figures
        .iter()
        .map(|&figure| (0..report.contenders.len()).map(|i| entry(report.cell(i, figure), figure.unit())).collect())
        .collect();
    let labels: Vec<String> = figures.iter().map(|&figure| label(figure)).collect();
    let first = labels.iter().map(|label| width(label)).max().unwrap_or(0);
    let names: Vec<String> =
        report.contenders.iter().map(|column| column_name(&column.name, &report.manifest)).collect();
    let widths: Vec<usize> = (names.iter().enumerate())
        .map(|(i, name)| body.iter().map(|row| width(&row[i])).chain([width(name)]).max().unwrap_or(0))
        .collect();
    for (index, block) in blocks(first, &widths).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        write!(out, "{:first$}", "")?;
        for column in block.clone() {
            write!(out, "  {:<1$}", names[column], widths[column])?;
        }
        end_line(out);
        for (label, row) in labels.iter().zip(&body) {
            out.push_str(label);
            pad(out, first - width(label));
            for column in block.clone() {
                write!(out, "  {}", row[column])?;
                pad(out, widths[column] - width(&row[column]));
            }
            end_line(out);
        }
    }
    Ok(())
}

/// A contender's name without what all of them have in common.
pub(super) fn column_name(name: &str, manifest: &Manifest) -> String {
    let ours = manifest.contenders.iter().all(|identity| identity.name.starts_with(OURS));
    if ours { name.strip_prefix(OURS).unwrap_or(name).to_owned() } else { name.to_owned() }
}

/// Prefix of our own profiles' names.
const OURS: &str = "tiderace ";

pub(super) fn label(figure: Figure) -> String {
    match figure.unit().printed().0 {
        "" => figure.label().to_owned(),
        unit => format!("{} ({unit})", figure.label()),
    }
}

/// `12.3 [11.9, 12.8]`, or the reason for a missing value.
fn entry(cell: Option<&Cell>, unit: Unit) -> String {
    let Some(cell) = cell else { return "–".to_owned() };
    let scale = unit.printed().1;
    match (cell.median, cell.interval, cell.provenance) {
        (Some(median), Some(interval), _) => {
            let (low, high) = (interval.low * scale, interval.high * scale);
            let width = if high.is_finite() { high - low } else { 0.0 };
            let largest = [median * scale, low].into_iter().filter(|value| value.is_finite()).fold(0.0, f64::max);
            let digits = decimals(largest, width);
            format!("{} [{}, {}]", fixed(median * scale, digits), fixed(low, digits), fixed(high, digits))
        }
        (Some(median), None, _) => fixed(median * scale, decimals(median * scale, 0.0)),
        (None, _, Provenance::Refused) => "too few samples".to_owned(),
        (None, _, _) => "–".to_owned(),
    }
}

/// A number with this many decimals; `∞` for a missing sample.
pub(super) fn fixed(value: f64, digits: usize) -> String {
    if value == f64::INFINITY { "∞".to_owned() } else { format!("{value:.digits$}") }
}

/// Decimals so that an interval's width shows two digits, but no value more than four digits in all.
#[expect(clippy::cast_possible_truncation, reason = "clamped")]
pub(super) fn decimals(value: f64, width: f64) -> usize {
    let shown = |x: f64, digits: i32| digits - 1 - x.abs().log10().floor().clamp(-9.0, 9.0) as i32;
    let by_width = if width > 0.0 { shown(width, 2) } else { i32::MAX };
    let by_value = if value == 0.0 { 1 } else { shown(value, 4) };
    usize::try_from(by_width.min(by_value).clamp(0, 4)).unwrap_or(0)
}

/// Advice for few seeds.
const RECOMMENDED: &str = " With 10 seeds one run that goes wrong no longer decides where an interval ends.";

fn notes(out: &mut String, report: &Report) -> fmt::Result {
    let runs = report.contenders.iter().map(|column| column.runs).min().unwrap_or(0);
    let interval = report.contenders.iter().flat_map(|column| &column.figures).find_map(|cell| cell.interval);
    out.push('\n');
    match interval {
        Some(interval) => {
            let text = format!(
                "Median of {runs} runs, one for each seed; in brackets the interval that covers the median of all runs with \
                 {:.1}\u{a0}% confidence, whatever their distribution (order statistics, at least 95\u{a0}%).{}",
                interval.coverage * 100.0,
                if runs < RUNS_RECOMMENDED { RECOMMENDED } else { "" }
            );
            *out += &wrap(&text, 0);
        }
        None => writeln!(
            out,
            "Median over {runs} seeds: too few. Intervals need at least {RUNS_MIN}: try `--seeds {RUNS_RECOMMENDED}`."
        )?,
    }
    let cells = || report.contenders.iter().flat_map(|column| &column.figures);
    if cells().any(|cell| cell.provenance == Provenance::Unsupported) {
        out.push_str("– the contender cannot report it.\n");
    }
    if let Some(reason) = cells().filter(|cell| cell.median.is_none()).find_map(|cell| cell.reason.as_deref()) {
        *out += &wrap(&format!("too few samples: {reason}; a longer `--duration` gives more."), 0);
    }
    never(out, report, &|_| true);
    for column in report.contenders.iter().filter(|column| column.connections_lost > 0) {
        let (lost, all) = (column.connections_lost, column.connections);
        *out += &wrap(&format!("{}: {lost} of {all} connections broke off or were never established.", column.name), 2);
    }
    Ok(())
}

fn comparisons(out: &mut String, report: &Report) -> fmt::Result {
    let mut pair = None;
    for row in &report.comparisons {
        if pair != Some((&row.contender, &row.baseline)) {
            pair = Some((&row.contender, &row.baseline));
            out.push('\n');
            *out += &wrap(&format!("{} compared with {}, seed by seed:", row.contender, row.baseline), 2);
        }
        let Some(figure) = Figure::from_key(row.figure) else { continue };
        let (label, effect) = (figure.label().trim(), effect(figure, &row.result));
        *out += &wrap(&format!("  {label:<18}{effect:<38}  {}", words(&row.result, row.presupposes)), 20);
    }
    if pair.is_some() {
        *out += &wrap(
            "Median over the seeds of the ratio, or of the difference where a ratio has no meaning, with the interval of at \
             least 95\u{a0}% (order statistics). Equivalent: no difference that matters, 3\u{a0}% for most figures.",
            0,
        );
    }
    Ok(())
}

fn how(report: &Report) -> String {
    let text = if report.manifest.is_real_time() {
        "real protocol code in real time, over an emulated network of this machine, whose time is part of every figure"
    } else {
        "real protocol code in virtual time; not modelled: the time that computers take"
    };
    text.to_owned()
}

fn simulated(out: &mut String, report: &Report) -> fmt::Result {
    let scenario = &report.manifest.scenario;
    out.push_str(if report.manifest.is_real_time() { "\nRun\n" } else { "\nSimulated\n" });
    let runs = format!(
        "{} x {}, each {} of warm-up that no figure counts and {} measured; {} in all, on one path model \
         with the same random numbers for all",
        report.contenders.len(),
        seeds(scenario),
        display(scenario.run.warmup),
        display(scenario.run.duration),
        report.manifest.seconds(report.virtual_seconds)
    );
    for (title, text) in [
        ("down", link(&scenario.path.down)),
        ("up", link(scenario.path.up())),
        ("traffic", traffic(scenario)),
        ("runs", runs),
        ("how", how(report)),
    ] {
        *out += &wrap(&format!("  {title:<9} {text}"), 12);
    }
    let names: Vec<String> =
        report.contenders.iter().map(|column| column_name(&column.name, &report.manifest)).collect();
    let longest = names.iter().map(|name| width(name)).max().unwrap_or(0);
    for (index, (name, column)) in names.iter().zip(&report.contenders).enumerate() {
        let title = if index == 0 { "traces" } else { "" };
        let trace =
            format!("{name:<longest$}  {}  hash {}  {} packets", column.version, column.trace_hash, column.packets);
        *out += &wrap(&format!("  {title:<9} {trace}"), 12);
    }
    Ok(())
}

/// A rate by a distribution in words.
fn varying(varying: &VaryingRate) -> String {
    let quantiles = varying.quantiles.iter().map(|(share, rate)| format!("{share} {rate}"));
    let quantiles: Vec<String> = quantiles.collect();
    format!(" on average ({}; drawn each {}, {} stay)", quantiles.join(", "), display(varying.period), varying.stays)
}

/// One direction of the path in words.
fn link(link: &LinkConfig) -> String {
    let mut words = Vec::new();
    match (link.mean_rate(), link.queue.bytes()) {
        (Some(rate), Some(bytes)) => {
            // Whole microseconds are enough for people.
            let micros = u64::try_from(rate.time_for(bytes).as_micros()).unwrap_or(u64::MAX);
            let full = display(units::Duration::from_micros(micros)).to_string();
            let kind = match link.queue {
                Queue::Codel(_) => "CoDel",
                Queue::FqCodel(_) => "FQ-CoDel",
                Queue::DropTail { .. } | Queue::Unlimited => "drop-tail",
            };
            let trace = link.rate_trace.as_ref().map(|trace| format!(" on average (trace {})", trace.file));
            let varying = link.varying_rate.as_ref().map(varying);
            let trace = trace.or(varying);
            words.push(format!("{rate}{}, {kind} queue {bytes} ({full})", trace.unwrap_or_default()));
        }
        (Some(rate), None) => words.push(format!("{rate}, unlimited queue")),
        (None, _) => words.push("unlimited rate".to_owned()),
    }
    if let Some(policer) = &link.policer {
        let whom = if policer.udp_only { " for UDP" } else { "" };
        words.push(format!("policer {} with a burst of {}{whom}", policer.rate, policer.burst));
    }
    words.push(format!("delay {}", display(link.delay)));
    if !link.jitter.is_zero() {
        words.push(format!("jitter up to {}", display(link.jitter)));
    }
    if !link.jitter_quantiles.is_empty() {
        let quantiles = link.jitter_quantiles.iter().map(|(share, delay)| format!("{share} {}", display(*delay)));
        words.push(format!("jitter by quantiles ({})", quantiles.collect::<Vec<_>>().join(", ")));
    }
    match &link.loss {
        Loss::None => words.push("no loss".to_owned()),
        Loss::Iid { p } => words.push(format!("loss {p} (independent)")),
        Loss::Burst { mean, length } => words.push(format!("loss {mean} in bursts of {length}")),
        Loss::GilbertElliott { p, r, .. } => words.push(format!("Gilbert-Elliott loss (p {p}, r {r})")),
        Loss::Group { size, drop, .. } => words.push(format!("{drop} of each {size} packets lost")),
        Loss::Trace(trace) => words.push(format!("loss {:.2} % (trace {})", trace.mean() * 100.0, trace.file)),
    }
    if let Some(reorder) = &link.reorder {
        words.push(format!("reordering {}", reorder.probability));
    }
    if let Some(duplicate) = &link.duplicate {
        words.push(format!("duplication {}", duplicate.probability));
    }
    if link.corrupt.get() > 0.0 {
        words.push(format!("corruption {}", link.corrupt));
    }
    if let Some(mtu) = link.mtu {
        words.push(format!("MTU {mtu}"));
    }
    if !link.changes.is_empty() {
        words.push(format!("{} changes while it runs", link.changes.len()));
    }
    for outage in &link.outages {
        let again = outage.every.map(|every| format!(" every {}", display(every))).unwrap_or_default();
        words.push(format!("outage of {} at {}{again}", display(outage.lasts), display(outage.at)));
    }
    words.join(", ")
}

fn traffic(scenario: &Scenario) -> String {
    let traffic = &scenario.traffic;
    let plural = |count: u32, word: &str| if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") };
    let direction = match traffic.direction {
        Direction::Download => "download",
        Direction::Upload => "upload",
    };
    let kind = match traffic.workload {
        Workload::Bulk | Workload::Tunnel => format!("bulk {direction}, {} each", plural(traffic.streams, "stream")),
        Workload::Requests => {
            let after = traffic.warm_bytes.map_or(String::new(), |bytes| format!(", after {bytes} at once"));
            let (number, request) = (plural(traffic.streams, "request"), traffic.request_size());
            format!("{number} in flight each, {request} answered with {}{after}", traffic.response_size())
        }
        Workload::Flows => {
            format!("one flow each, {} answered with {}", traffic.request_size(), traffic.response_size())
        }
        Workload::Video => {
            let video = traffic.video();
            format!("a video each, {} bitrates, segments of {}", video.ladder.len(), display(video.segment))
        }
        Workload::Page => {
            let page = traffic.page();
            format!("a page each, {} objects", 1 + page.styles + page.images)
        }
        Workload::Feed => {
            let feed = traffic.feed();
            format!(
                "a feed each, {} and {} every {}",
                plural(feed.calls, "answer"),
                plural(feed.images, "image"),
                display(feed.every)
            )
        }
        Workload::Webtransport => {
            let live = traffic.webtransport();
            format!(
                "a live broadcast each ({direction}), groups of {} every {}, budget of {}",
                plural(live.group, "picture"),
                display(live.picture_interval * live.group),
                display(live.latency)
            )
        }
        Workload::Datagrams | Workload::Messages => {
            let all = || traffic.packet_rate.map(|rate| format!("{rate} per second in all"));
            let rate = traffic.datagram_rate.map(|rate| format!("{rate} each")).or_else(all).unwrap_or_default();
            let what = if traffic.workload == Workload::Messages { "messages in order" } else { "datagrams" };
            format!("{direction} of {what} of {} at {rate}", traffic.datagram_size())
        }
    };
    let spread = match traffic.start_spread {
        units::Duration::ZERO => String::new(),
        spread => format!(", starting within {}", display(spread)),
    };
    format!("{}{spread}: {kind}", plural(traffic.connections, "connection"))
}

fn failures(out: &mut String, report: &Report) -> fmt::Result {
    if report.failures.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nFailed: {} runs, whose figures are not used", report.failures.len())?;
    for failure in report.failures.iter().take(10) {
        *out += &wrap(&format!("  {} seed {}: {}", failure.contender, failure.seed, failure.reason), 4);
    }
    match report.failures.len().checked_sub(10) {
        Some(more @ 1..) => writeln!(out, "  and {more} more"),
        _ => Ok(()),
    }
}

fn pad(out: &mut String, columns: usize) {
    out.extend(core::iter::repeat_n(' ', columns));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_follow_the_interval() {
        assert_eq!(decimals(12.345, 0.5), 2);
        assert_eq!(decimals(123.45, 20.0), 0);
        assert_eq!(decimals(12.345, 0.0), 2);
        assert_eq!(decimals(0.051, 0.004), 4);
        assert_eq!(decimals(100.4032, 0.0004), 1);
        assert_eq!(decimals(1e9, 0.0), 0);
        assert_eq!(decimals(f64::INFINITY, f64::INFINITY), 0);
        assert_eq!(decimals(0.0, 0.0), 1);
    }
}
