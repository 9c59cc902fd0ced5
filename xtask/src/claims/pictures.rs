//! The pictures of docs/congestion.md and docs/claims.md.

use anyhow::{Context as _, Result};
use lab::{
    figure::Figure,
    report::{Along, Curve, Measured, curves},
    stats::{interval::median_interval, quantile::median},
};

use super::{Cell, Runs};

/// A file and what goes into it.
type Picture = (&'static str, String);

/// The pictures of a scenario.
pub(super) fn of(scenario: &str, runs: &Runs) -> Result<Vec<Picture>> {
    let all = ["cubic", "bbr1", "bbr2", "bbr3"];
    let drawn = match scenario {
        "claims-loss" => {
            let field = Varied { field: "path.down.loss", others: &[], figure: Figure::Goodput };
            let title = "Goodput over random loss: 50 Mbit/s, 100 ms, 1 BDP";
            let (x, y) =
                (Along { label: "random loss (%)", log: true }, Along { label: "goodput (Mbit/s)", log: false });
            vec![("goodput-over-loss.svg", curves(title, x, y, &field.curves(runs, &all)?))]
        }
        "claims-rtt" => {
            let mut drawn = Vec::new();
            for (file, loss) in [("goodput-over-rtt.svg", "0.1 %"), ("goodput-over-rtt-1-percent.svg", "1 %")] {
                let others = [("path.down.loss", loss)];
                let field = Varied { field: "path.rtt", others: &others, figure: Figure::Goodput };
                let title = format!("Goodput over RTT: 10 Mbit/s, 1 BDP, {loss} random loss");
                let (x, y) = (Along { label: "RTT (ms)", log: true }, Along { label: "goodput (Mbit/s)", log: false });
                drawn.push((file, curves(&title, x, y, &field.curves(runs, &all)?)));
            }
            drawn
        }
        "claims-packet-rate" => {
            let field = Varied { field: "traffic.packet-rate", others: &[], figure: Figure::Jitter };
            let title = "Jitter of the sender's RTT over the packet rate: 10 Mbit/s, 50 ms";
            let (x, y) = (
                Along { label: "packets per second", log: true },
                Along { label: "p95 - p50 of RTT (ms)", log: false },
            );
            vec![("jitter-over-packet-rate.svg", curves(title, x, y, &field.curves(runs, &["cubic", "bbr2", "bbr3"])?))]
        }
        "claims-narrow" => {
            let mut every = Vec::new();
            for (burst, connections, name) in
                [("1", "1", "single losses"), ("6", "1", "bursts of six"), ("1", "4", "single, 4 connections")]
            {
                let others = [("path.loss-burst", burst), ("traffic.connections", connections)];
                let field = Varied { field: "path.rtt", others: &others, figure: Figure::Goodput };
                every.extend(
                    field.curves(runs, &["cubic"])?.into_iter().map(|curve| Curve { name: name.to_owned(), ..curve }),
                );
            }
            let title = "CUBIC on 1 Mbit/s with 5 % loss";
            let (x, y) = (Along { label: "RTT (ms)", log: true }, Along { label: "goodput (Mbit/s)", log: false });
            vec![("narrow.svg", curves(title, x, y, &every))]
        }
        "claims-fec" => {
            let field = Varied { field: "path.loss-burst", others: &[], figure: Figure::ResidualLoss };
            let title = "What codes leave of 5 % loss over the length of bursts: datagrams, 20 Mbit/s, 50 ms";
            let (x, y) =
                (Along { label: "mean burst (packets)", log: true }, Along { label: "residual loss (%)", log: false });
            vec![("fec-residual-over-burst.svg", curves(title, x, y, &field.curves(runs, &super::numbers::CODES)?))]
        }
        "claims-fec-bulk" => {
            let field = Varied { field: "path.up.loss", others: &[], figure: Figure::Goodput };
            let title = "Bulk transfer with repair over loss: CUBIC, 20 Mbit/s, 50 ms";
            let (x, y) =
                (Along { label: "random loss (%)", log: true }, Along { label: "goodput (Mbit/s)", log: false });
            let codes = ["off", "auto", "rlc:1/10:40", "rlc:1/5:40"];
            vec![("fec-goodput-over-loss.svg", curves(title, x, y, &field.curves(runs, &codes)?))]
        }
        _ => Vec::new(),
    };
    Ok(drawn)
}

/// A figure over one factor, with the others held.
struct Varied<'a> {
    field: &'a str,
    others: &'a [(&'a str, &'a str)],
    figure: Figure,
}

impl Varied<'_> {
    fn curves(&self, runs: &Runs, contenders: &[&str]) -> Result<Vec<Curve>> {
        let mut drawn = Vec::new();
        for contender in contenders {
            let mut points = Vec::new();
            for level in runs.levels(self.field) {
                let mut point = self.others.to_vec();
                point.push((self.field, level));
                let values = runs.by_seed(&Cell { contender, point: &point, figure: self.figure })?;
                points.push(measured(number(level)?, &values.into_values().collect::<Vec<_>>()).context("no runs")?);
            }
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            drawn.push(Curve { name: (*contender).to_owned(), points });
        }
        Ok(drawn)
    }
}

fn measured(x: f64, values: &[f64]) -> Option<Measured> {
    let mut ascending = values.to_vec();
    ascending.sort_by(f64::total_cmp);
    let value = median(&ascending)?;
    let interval = median_interval(values, 0.95);
    Some(Measured { x, value, low: interval.map_or(value, |at| at.low), high: interval.map_or(value, |at| at.high) })
}

/// The number that a level begins with; `none` is none.
fn number(level: &str) -> Result<f64> {
    if level == "none" {
        return Ok(0.0);
    }
    let end = level.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(level.len());
    level[..end].parse().with_context(|| format!("`{level}` does not begin with a number"))
}

/// Shares and waits over the buffer, from the document that `cargo xtask shows congestion --save` stored.
pub(super) fn of_shows(document: &str) -> Result<Vec<Picture>> {
    let document: serde_json::Value = serde_json::from_str(document)?;
    let rows = document["rows"].as_array().context("the document has no rows")?;
    let over_buffer = |name: &str, begin: &str, end: &str| -> Curve {
        let mut points: Vec<Measured> = Vec::new();
        for row in rows {
            let Some(what) = row["what"].as_str() else { continue };
            let Some(x) = what.strip_prefix(begin).and_then(|rest| rest.strip_suffix(end)?.trim().parse().ok()) else {
                continue;
            };
            let (Some(value), interval) = (row["value"].as_f64(), &row["interval"]) else { continue };
            let bound = |index: usize| interval[index].as_f64().unwrap_or(value);
            points.push(Measured { x, value, low: bound(0), high: bound(1) });
        }
        Curve { name: name.to_owned(), points }
    };
    let shares =
        ["bbr3", "bbr1", "newreno"].map(|name| over_buffer(name, &format!("share of {name} beside cubic, "), " BDP"));
    let alike = ["cubic", "newreno", "bbr3"]
        .map(|name| over_buffer(name, &format!("two {name} flows, "), " BDP, Jain's index"));
    let x = Along { label: "buffer (BDP)", log: true };
    let share = Along { label: "share of the goodput (%)", log: false };
    let jain = Along { label: "Jain's index", log: false };
    Ok(vec![
        ("share-beside-cubic.svg", curves("Share beside CUBIC over the buffer: 20 Mbit/s, 50 ms", x, share, &shares)),
        ("two-of-a-kind.svg", curves("Two flows of a kind over the buffer: 20 Mbit/s, 50 ms", x, jain, &alike)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_numbers() {
        assert_eq!(number("0.1 %").unwrap(), 0.1);
        assert_eq!(number("50 ms").unwrap(), 50.0);
        assert_eq!(number("none").unwrap(), 0.0);
        assert!(number("fast").is_err());
    }

    #[test]
    fn a_stored_document_is_drawn() {
        let document = r#"{"rows": [{"what": "share of bbr3 beside cubic, 0.5 BDP", "value": 52.0, "interval": [51.0, 58.0]},
            {"what": "share of bbr3 beside cubic, 8 BDP", "value": 46.0, "interval": null}, {"what": "another", "value": 1.0}]}"#;
        let drawn = of_shows(document).unwrap();
        assert!(drawn[0].1.contains("bbr3: 52 [51, 58]") && drawn[0].1.contains("bbr3: 46 [46, 46]"));
        assert!(of_shows("{}").is_err());
    }
}
