//! Numbers asked of each scenario: figures of single cells, and of two cells the median of the ratios of runs with one seed.

use core::fmt;

use anyhow::{Context as _, Result};
use lab::{
    figure::Figure,
    stats::{interval::median_interval, quantile::median},
};

use super::{Cell, Runs};

/// The scenarios behind the documents, in their order.
pub(crate) const SCENARIOS: [&str; 16] = [
    "claims-rtt",
    "claims-ack",
    "claims-packet-rate",
    "claims-narrow",
    "claims-fairness",
    "claims-pacing",
    "claims-loss",
    "claims-fec",
    "claims-fec-bulk",
    "claims-features",
    "claims-keys",
    "claims-nat",
    "claims-setup",
    "claims-tunnel",
    "claims-tunnel-live",
    "video",
];

/// One number to be measured.
pub(super) struct Number {
    what: String,
    contender: String,
    point: Vec<(&'static str, &'static str)>,
    figure: Figure,
    /// Divisor, run by run: another contender or another point.
    over: Option<(String, Vec<(&'static str, &'static str)>)>,
}

/// A measured number as a line of a table.
pub(super) struct Line {
    what: String,
    value: f64,
    interval: Option<(f64, f64)>,
    unit: &'static str,
    runs: usize,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: f64| {
            format!(
                "{value:.*}",
                if value.abs() >= 100.0 {
                    0
                } else if value.abs() >= 10.0 {
                    1
                } else {
                    3
                }
            )
        };
        let interval =
            self.interval.map_or_else(|| "–".to_owned(), |(low, high)| format!("[{}, {}]", number(low), number(high)));
        let Self { what, unit, runs, .. } = self;
        let space = if unit.is_empty() { "" } else { " " };
        write!(f, "| {what} | {}{space}{unit} | {interval} | {runs} |", number(self.value))
    }
}

impl Number {
    pub(super) fn measure(&self, runs: &Runs) -> Result<Line> {
        let values = runs.by_seed(&Cell { contender: &self.contender, point: &self.point, figure: self.figure })?;
        let (values, unit): (Vec<f64>, &str) = match &self.over {
            None => (values.into_values().collect(), self.figure.unit().printed().0),
            Some((contender, point)) => {
                let base = runs.by_seed(&Cell { contender, point, figure: self.figure })?;
                let ratio = |(seed, value): (u64, f64)| Some(value / base.get(&seed)?);
                (values.into_iter().filter_map(ratio).collect(), "")
            }
        };
        let mut ascending = values.clone();
        ascending.sort_by(f64::total_cmp);
        let value = median(&ascending).with_context(|| format!("{}: no run", self.what))?;
        let interval = median_interval(&values, 0.95).map(|interval| (interval.low, interval.high));
        Ok(Line { what: self.what.clone(), value, interval, unit, runs: values.len() })
    }
}

fn at(point: &[(&'static str, &'static str)]) -> String {
    point
        .iter()
        .map(|(field, value)| format!("{} {value}", field.rsplit('.').next().unwrap_or(field)))
        .collect::<Vec<_>>()
        .join(", ")
}

fn value(figure: Figure, contender: &str, point: &[(&'static str, &'static str)]) -> Number {
    let place = at(point);
    let comma = if place.is_empty() { "" } else { ", " };
    Number {
        what: format!("{}, {contender}{comma}{place}", figure.label().trim()),
        contender: contender.to_owned(),
        point: point.to_vec(),
        figure,
        over: None,
    }
}

/// One contender over another, at one point.
fn beside(figure: Figure, contender: &str, base: &str, point: &[(&'static str, &'static str)]) -> Number {
    let plain = value(figure, contender, point);
    let place = at(point);
    let comma = if place.is_empty() { "" } else { ", " };
    Number {
        what: format!("{}, {contender} / {base}{comma}{place}", figure.label().trim()),
        over: Some((base.to_owned(), point.to_vec())),
        ..plain
    }
}

/// Numbers asked of a scenario.
pub(super) fn of(scenario: &str) -> Vec<Number> {
    match scenario {
        "claims-rtt" => rtt(),
        "claims-ack" => ack(),
        "claims-packet-rate" => packet_rate(),
        "claims-narrow" => narrow(),
        "claims-fairness" => fairness(),
        "claims-pacing" => pacing(),
        "claims-loss" => loss(),
        "claims-fec" => fec(),
        "claims-fec-bulk" => fec_bulk(),
        "claims-features" => features(),
        "claims-keys" => keys(),
        "claims-nat" => nat(),
        "claims-setup" => setup(),
        "claims-tunnel" => tunnels(),
        "claims-tunnel-live" => tunnels_live(),
        "video" => video(),
        _ => Vec::new(),
    }
}

/// The codes of `claims-fec`.
pub(super) const CODES: [&str; 5] = ["xor:10", "rs:10+2", "rlc:1/10:40", "rlc:1/5:40", "rlc:1/5:160"];

fn fec() -> Vec<Number> {
    let mut numbers = Vec::new();
    for burst in ["1", "3", "6", "10"] {
        let point = [("path.loss-burst", burst)];
        numbers.push(value(Figure::ResidualLoss, "off", &point));
        for code in CODES {
            numbers.extend([Figure::ResidualLoss, Figure::Recovered].map(|figure| value(figure, code, &point)));
        }
    }
    numbers.extend(CODES.map(|code| value(Figure::Repair, code, &[("path.loss-burst", "1")])));
    numbers
}

fn fec_bulk() -> Vec<Number> {
    let mut numbers = Vec::new();
    for loss in ["none", "0.1 %", "1 %", "5 %", "10 %"] {
        let point = [("path.up.loss", loss)];
        numbers.push(value(Figure::Goodput, "off", &point));
        numbers.extend(["auto", "rlc:1/10:40", "rlc:1/5:40"].map(|code| beside(Figure::Goodput, code, "off", &point)));
    }
    numbers
}

const RTTS: [&str; 3] = ["5 ms", "50 ms", "200 ms"];

fn rtt() -> Vec<Number> {
    let mut numbers = Vec::new();
    for loss in ["none", "0.1 %", "1 %"] {
        for rtt in RTTS {
            let point = [("path.rtt", rtt), ("path.down.loss", loss)];
            numbers.extend(["cubic", "bbr1", "bbr2", "bbr3"].map(|name| value(Figure::Goodput, name, &point)));
            numbers.extend(["bbr2", "bbr3"].map(|name| beside(Figure::Goodput, name, "cubic", &point)));
        }
    }
    for rtt in RTTS {
        let point = [("path.rtt", rtt), ("path.down.loss", "none")];
        numbers.extend(["bbr2", "bbr3"].map(|name| value(Figure::Jitter, name, &point)));
        numbers.push(beside(Figure::Jitter, "bbr3", "bbr2", &point));
        numbers.extend(["cubic", "bbr1", "bbr2", "bbr3"].map(|name| value(Figure::Bufferbloat, name, &point)));
        numbers.extend(["cubic", "bbr1", "bbr2", "bbr3"].map(|name| value(Figure::QueueDelayP99, name, &point)));
    }
    numbers
}

const RHYTHMS: [&str; 5] = ["fixed:3", "fixed:4", "fixed:5", "fixed:10", "adaptive"];

fn ack() -> Vec<Number> {
    let mut numbers = Vec::new();
    for controller in ["cubic", "bbr3"] {
        let asking = |rhythm: &str| format!("{controller} ack={rhythm}");
        let wide = [("path.up.rate", "10 Mbit/s"), ("path.down.loss", "none")];
        let lossy = [("path.up.rate", "10 Mbit/s"), ("path.down.loss", "0.1 %")];
        let thin = [("path.up.rate", "100 kbit/s"), ("path.down.loss", "none")];
        for rhythm in RHYTHMS {
            numbers.push(beside(Figure::Reverse, &asking(rhythm), controller, &wide));
            numbers.push(beside(Figure::RttP50, &asking(rhythm), controller, &wide));
            numbers.push(beside(Figure::Goodput, &asking(rhythm), controller, &lossy));
        }
        numbers.push(value(Figure::Goodput, controller, &thin));
        numbers.push(value(Figure::RttP50, controller, &thin));
        for rhythm in RHYTHMS {
            numbers.push(value(Figure::Goodput, &asking(rhythm), &thin));
            numbers.push(value(Figure::RttP50, &asking(rhythm), &thin));
        }
    }
    numbers
}

const PACKET_RATES: [&str; 13] = ["10", "15", "20", "24", "26", "28", "30", "32", "35", "38", "45", "60", "100"];

fn packet_rate() -> Vec<Number> {
    let cells = PACKET_RATES.into_iter().flat_map(|rate| {
        let point = [("traffic.packet-rate", rate)];
        [
            value(Figure::Jitter, "cubic", &point),
            value(Figure::Jitter, "bbr3", &point),
            value(Figure::ArrivedP95, "cubic", &point),
        ]
    });
    cells.collect()
}

fn narrow() -> Vec<Number> {
    let mut numbers = Vec::new();
    for burst in ["1", "6"] {
        for rtt in ["25 ms", "50 ms", "100 ms", "200 ms"] {
            let point =
                |connections| [("path.rtt", rtt), ("path.loss-burst", burst), ("traffic.connections", connections)];
            numbers.push(value(Figure::Goodput, "cubic", &point("1")));
            numbers.extend(["cubic", "bbr1", "bbr3"].map(|name| Number {
                what: format!("goodput, {name}, 4 connections / 1, rtt {rtt}, loss-burst {burst}"),
                over: Some((name.to_owned(), point("1").to_vec())),
                ..value(Figure::Goodput, name, &point("4"))
            }));
        }
    }
    numbers
}

fn fairness() -> Vec<Number> {
    let contenders = ["cubic", "bbr2", "bbr3"].into_iter();
    contenders
        .flat_map(|name| ["2", "30", "50"].map(|n| value(Figure::Jain, name, &[("traffic.connections", n)])))
        .collect()
}

fn pacing() -> Vec<Number> {
    let mut numbers = Vec::new();
    for queue in ["6250 B", "12500 B", "31250 B", "62500 B"] {
        let point = [("path.down.queue", queue)];
        for name in ["cubic in bursts", "cubic paced"] {
            numbers.push(value(Figure::Retransmitted, name, &point));
        }
        for figure in [Figure::FlowP50, Figure::FlowP95] {
            numbers.push(beside(figure, "cubic paced", "cubic in bursts", &point));
        }
    }
    numbers
}

fn loss() -> Vec<Number> {
    let mut numbers = Vec::new();
    for loss in ["none", "0.1 %", "1 %", "2 %", "3 %", "5 %", "10 %", "15 %", "18 %", "20 %", "22 %", "25 %"] {
        let point = [("path.down.loss", loss)];
        numbers.extend(["cubic", "bbr1", "bbr2", "bbr3"].map(|name| value(Figure::Goodput, name, &point)));
    }
    numbers
}

fn features() -> Vec<Number> {
    let mut numbers = vec![value(Figure::Goodput, "usual", &[])];
    for name in ["no greasing", "key updates", "1350 bytes", "1200 bytes"] {
        numbers.extend(
            [Figure::Goodput, Figure::RttP95, Figure::Overhead].map(|figure| beside(figure, name, "usual", &[])),
        );
    }
    numbers
}

fn keys() -> Vec<Number> {
    let figures = [Figure::DelayP50, Figure::DelayP99, Figure::ResidualLoss];
    figures
        .into_iter()
        .flat_map(|figure| {
            ["no key update", "every 1000 packets", "every 100 packets"].map(|name| value(figure, name, &[]))
        })
        .collect()
}

fn nat() -> Vec<Number> {
    let figures = [Figure::RequestP50, Figure::RequestP95, Figure::FeedSeen];
    figures
        .into_iter()
        .flat_map(|figure| ["no keep-alive", "keep-alive 10 s"].map(|name| value(figure, name, &[])))
        .collect()
}

fn setup() -> Vec<Number> {
    let mut numbers = Vec::new();
    for loss in ["0 %", "1 %", "5 %"] {
        for figure in [Figure::FlowP50, Figure::FlowP95] {
            numbers.extend(["new connection", "0-RTT"].map(|name| value(figure, name, &[("path.loss", loss)])));
        }
    }
    numbers
}

/// Paths of the scenarios with tunnels: RTT, loss, connections.
fn tunnel_points() -> impl Iterator<Item = [(&'static str, &'static str); 3]> {
    ["1", "20"].into_iter().flat_map(|connections| {
        ["20 ms", "100 ms", "300 ms"].into_iter().flat_map(move |rtt| {
            ["0 %", "1 %", "3 %"]
                .map(|loss| [("path.rtt", rtt), ("path.loss", loss), ("traffic.connections", connections)])
        })
    })
}

fn tunnels() -> Vec<Number> {
    let mut numbers = Vec::new();
    for point in tunnel_points() {
        for direct in ["cubic", "bbr3"] {
            let tunnels = [format!("{direct} in datagrams"), format!("{direct} in a stream")];
            numbers.push(value(Figure::Goodput, direct, &point));
            numbers.push(value(Figure::RttP50, direct, &point));
            for tunnel in &tunnels {
                numbers.push(beside(Figure::Goodput, tunnel, direct, &point));
                numbers.extend([Figure::RttP50, Figure::InnerLost].map(|figure| value(figure, tunnel, &point)));
            }
        }
    }
    numbers
}

fn tunnels_live() -> Vec<Number> {
    let contenders = ["cubic", "cubic in datagrams", "cubic in a stream"];
    let all = tunnel_points().flat_map(|point| {
        contenders.into_iter().flat_map(move |name| {
            [Figure::ResidualLoss, Figure::ArrivedP50, Figure::ArrivedP95, Figure::ArrivedP99]
                .map(|figure| value(figure, name, &point))
        })
    });
    all.collect()
}

fn video() -> Vec<Number> {
    let figures = [Figure::VideoRate, Figure::VideoStalled, Figure::VideoSwitches];
    figures
        .into_iter()
        .flat_map(|figure| ["cubic", "bbr1", "bbr2", "bbr3"].map(|name| value(figure, name, &[])))
        .collect()
}
