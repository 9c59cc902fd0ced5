//! Audit of published tables: arithmetic that every measurement has to obey.
//!
//! A table is CSV with a header line, or JSON with a list of objects. Columns are recognized by name ([`COLUMNS`]); others are ignored. A
//! rule whose columns are missing is not applied.

use std::collections::BTreeMap;

use serde::Serialize;

/// Columns that the rules use, with their meaning.
pub const COLUMNS: [(&str, &str); 20] = [
    ("goodput_mbps", "what arrived, Mbit/s"),
    ("link_mbps", "rate of the bottleneck, Mbit/s"),
    ("pps", "packets per second of each connection, as asked for"),
    ("connections", "number of connections"),
    ("packet_bytes", "payload of a packet"),
    ("duration_s", "how long it ran"),
    ("packets", "packets that were sent"),
    ("rtt_ms", "round-trip time of the path, propagation alone"),
    ("min_ms", "least latency"),
    ("mean_ms", "mean latency"),
    ("p50_ms", "median latency"),
    ("p95_ms", "95th percentile"),
    ("p99_ms", "99th percentile"),
    ("max_ms", "largest latency"),
    ("jitter_ms", "standard deviation of latency"),
    ("samples", "latency samples"),
    ("jain", "Jain's index"),
    ("repair_share", "repair packets per data packet"),
    ("recovered", "packets that repair brought back"),
    ("loss_percent", "loss of the path"),
];

/// Finding: an impossible or doubtful value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Row of the table, from 1; `None` for the table as a whole.
    pub row: Option<usize>,
    /// The row's first cell, so that people find it.
    pub label: String,
    /// Severity of the finding.
    pub severity: Severity,
    /// The rule: `goodput <= offered`.
    pub rule: &'static str,
    /// The numbers.
    pub detail: String,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Suspect; its reader should ask.
    Suspect,
    /// Impossible.
    Impossible,
}

/// A table that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TableError(String);

/// Rows by column name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    rows: Vec<(String, BTreeMap<String, f64>)>,
}

impl Table {
    /// Reads CSV, or JSON when the text begins with a bracket.
    ///
    /// # Errors
    /// When it is neither, or has no column that a rule knows.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let table = if text.trim_start().starts_with(['[', '{']) { Self::json(text)? } else { Self::csv(text)? };
        let known =
            |row: &(String, BTreeMap<String, f64>)| row.1.keys().any(|name| COLUMNS.iter().any(|c| c.0 == name));
        if !table.rows.iter().any(known) {
            let names: Vec<&str> = COLUMNS.iter().map(|column| column.0).collect();
            return Err(TableError(format!("no column is one of {}", names.join(", "))));
        }
        Ok(table)
    }

    fn csv(text: &str) -> Result<Self, TableError> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        let names = fields(lines.next().ok_or_else(|| TableError("the table is empty".to_owned()))?);
        let mut rows = Vec::new();
        for line in lines {
            let cells = fields(line);
            let number = |text: &str| text.trim().replace(',', "").parse::<f64>().ok().filter(|x| x.is_finite());
            let values = names.iter().zip(&cells).filter_map(|(name, cell)| Some((plain(name), number(cell)?)));
            rows.push((cells.first().cloned().unwrap_or_default(), values.collect()));
        }
        Ok(Self { rows })
    }

    fn json(text: &str) -> Result<Self, TableError> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| TableError(error.to_string()))?;
        let list = value.as_array().cloned().or_else(|| value.get("rows")?.as_array().cloned());
        let list = list.ok_or_else(|| TableError("expected a list of objects".to_owned()))?;
        let rows = list.iter().filter_map(serde_json::Value::as_object).map(|object| {
            let label = object.values().find_map(|value| value.as_str()).unwrap_or_default().to_owned();
            let values = object.iter().filter_map(|(name, value)| Some((plain(name), value.as_f64()?)));
            (label, values.collect())
        });
        Ok(Self { rows: rows.collect() })
    }
}

/// The cells of a line of CSV, with quotes.
fn fields(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    for symbol in line.chars() {
        match symbol {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(core::mem::take(&mut cell).trim().to_owned()),
            symbol => cell.push(symbol),
        }
    }
    cells.push(cell.trim().to_owned());
    cells
}

fn plain(name: &str) -> String {
    name.trim().to_lowercase().replace([' ', '-'], "_")
}

/// Applies every rule to every row, and those for the table as a whole.
pub fn audit(table: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, (label, row)) in table.rows.iter().enumerate() {
        let mut add = |severity, rule, detail: String| {
            findings.push(Finding { row: Some(index + 1), label: label.clone(), severity, rule, detail });
        };
        throughput(row, &mut add);
        latency(row, &mut add);
        spread(row, &mut add);
        sharing(row, &mut add);
    }
    findings.extend(repeated(table));
    findings.extend(parity(table));
    findings
}

type Row = BTreeMap<String, f64>;
type Add<'a> = dyn FnMut(Severity, &'static str, String) + 'a;

fn offered(row: &Row) -> Option<f64> {
    Some(row.get("pps")? * row.get("connections").unwrap_or(&1.0) * row.get("packet_bytes")? * 8.0 / 1e6)
}

fn throughput(row: &Row, add: &mut Add<'_>) {
    if let (Some(goodput), Some(offered)) = (row.get("goodput_mbps"), offered(row)) {
        if *goodput > offered * 1.001 {
            let detail =
                format!("{goodput} Mbit/s arrived of {offered:.2} that were offered ({:.1} times)", goodput / offered);
            add(Severity::Impossible, "goodput <= offered", detail);
        } else if (goodput / offered - 1.0).abs() < 1e-3 {
            let detail = format!("{goodput} Mbit/s is the load that was offered: it says nothing of what was compared");
            add(Severity::Suspect, "goodput is the offered load", detail);
        }
    }
    if let (Some(goodput), Some(link)) = (row.get("goodput_mbps"), row.get("link_mbps"))
        && goodput > link
    {
        add(Severity::Impossible, "goodput <= link", format!("{goodput} Mbit/s through a link of {link}"));
    }
    if let (Some(pps), Some(seconds), Some(packets)) = (row.get("pps"), row.get("duration_s"), row.get("packets")) {
        let expected = pps * seconds * row.get("connections").unwrap_or(&1.0);
        if (packets / expected - 1.0).abs() > 0.05 {
            let detail = format!(
                "{packets} packets of {expected:.0} at the rate that was asked for ({:.0} %)",
                packets / expected * 100.0
            );
            add(Severity::Impossible, "the packet rate was held", detail);
        }
    }
}

fn latency(row: &Row, add: &mut Add<'_>) {
    let order = ["min_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms"];
    let known: Vec<(&str, f64)> = order.iter().filter_map(|name| Some((*name, *row.get(*name)?))).collect();
    for pair in known.windows(2) {
        if pair[0].1 > pair[1].1 {
            let detail = format!("{} {} is above {} {}", pair[0].0, pair[0].1, pair[1].0, pair[1].1);
            add(Severity::Impossible, "percentiles ascend", detail);
        }
    }
    let least = known.first().map(|(name, value)| (*name, *value)).or_else(|| Some(("mean_ms", *row.get("mean_ms")?)));
    if let (Some(rtt), Some((name, value))) = (row.get("rtt_ms"), least)
        && value < *rtt * 0.999
    {
        add(
            Severity::Impossible,
            "latency >= propagation",
            format!("{name} {value} on a path whose round trip takes {rtt}"),
        );
    }
    if let (Some(_), Some(samples)) = (row.get("p99_ms"), row.get("samples"))
        && *samples < 300.0
    {
        add(Severity::Suspect, "p99 needs 300 samples", format!("there are {samples}"));
    }
    // Even numbers from a to b: percentiles on a straight line, which no queue makes.
    if let (Some(p50), Some(p95), Some(p99)) = (row.get("p50_ms"), row.get("p95_ms"), row.get("p99_ms")) {
        let width = (p95 - p50) / 0.45;
        let line = p50 + 0.49 * width;
        if width > 0.0 && (line - p99).abs() < 0.01_f64.max(width * 0.01) {
            let (from, to) = (p50 - width / 2.0, p50 + width / 2.0);
            let sd = width / 12f64.sqrt();
            let jitter =
                row.get("jitter_ms").map(|jitter| format!("; jitter {jitter}, an even distribution has {sd:.3}"));
            let detail = format!(
                "p50, p95 and p99 are those of random numbers drawn evenly from {from:.2} to {to:.2}{}",
                jitter.unwrap_or_default()
            );
            add(Severity::Suspect, "latency is not a random number", detail);
        }
    }
}

fn spread(row: &Row, add: &mut Add<'_>) {
    let Some(jitter) = row.get("jitter_ms") else { return };
    if let (Some(min), Some(max)) = (row.get("min_ms"), row.get("max_ms"))
        && *jitter > (max - min) / 2.0 + 1e-9
    {
        let detail = format!(
            "{jitter} with all values between {min} and {max}: a standard deviation is at most half of the range"
        );
        add(Severity::Impossible, "jitter <= range / 2", detail);
    }
    if let (Some(mean), Some(samples)) = (row.get("mean_ms"), row.get("samples").or_else(|| row.get("packets")))
        && *samples > 2.0
        && *mean > 0.0
    {
        // One value of n·mean among zeros is the most that values of this mean can spread: sd = mean·√(n−1).
        let most = mean * (samples - 1.0).sqrt();
        if *jitter > most * 1.001 {
            let root = jitter.sqrt();
            let hint = if root <= most * 1.001 && root > most * 0.9 {
                format!(
                    "; its root {root:.2} is what one value of {:.0} ms among {samples} makes: a variance was printed as a deviation",
                    mean * samples
                )
            } else {
                String::new()
            };
            add(
                Severity::Impossible,
                "jitter <= mean x root of n",
                format!("{jitter} with a mean of {mean} over {samples} values{hint}"),
            );
        } else if *jitter > most * 0.9 {
            let detail =
                format!("one value of about {:.0} ms makes nearly all of it; the others are near zero", mean * samples);
            add(Severity::Suspect, "jitter of a single outlier", detail);
        }
    }
}

fn sharing(row: &Row, add: &mut Add<'_>) {
    if let Some(jain) = row.get("jain") {
        let least = 1.0 / row.get("connections").copied().unwrap_or(f64::INFINITY).max(1.0);
        if *jain > 1.0 + 1e-9 || *jain < least - 1e-9 {
            add(Severity::Impossible, "1/n <= Jain's index <= 1", format!("{jain}"));
        } else if row.get("connections") == Some(&1.0) && *jain < 1.0 {
            add(Severity::Impossible, "1/n <= Jain's index <= 1", format!("{jain} of a single connection"));
        }
    }
    if let (Some(repair), Some(recovered), Some(loss)) =
        (row.get("repair_share"), row.get("recovered"), row.get("loss_percent"))
        && *repair > 0.0
        && *recovered == 0.0
        && *loss > 0.0
    {
        add(
            Severity::Suspect,
            "repair repairs",
            format!("{repair} repair packets per packet at {loss} % loss, and nothing was recovered"),
        );
    }
}

/// Rows whose results are equal although their conditions are not.
fn repeated(table: &Table) -> Vec<Finding> {
    let results = ["goodput_mbps", "mean_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms", "jitter_ms"];
    let key = |row: &Row| -> Vec<(usize, u64)> {
        results.iter().enumerate().filter_map(|(i, name)| Some((i, row.get(*name)?.to_bits()))).collect()
    };
    let mut findings = Vec::new();
    for (index, (label, row)) in table.rows.iter().enumerate() {
        let own = key(row);
        let twin = table.rows[..index].iter().position(|(_, other)| own.len() >= 3 && key(other) == own);
        if let Some(twin) = twin {
            let detail = format!("all {} results are those of row {}", own.len(), twin + 1);
            findings.push(Finding {
                row: Some(index + 1),
                label: label.clone(),
                severity: Severity::Suspect,
                rule: "different things differ",
                detail,
            });
        }
    }
    findings
}

/// Goodput that grows by exactly the share of repair: the repair was counted as goodput.
fn parity(table: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, (label, row)) in table.rows.iter().enumerate() {
        let (Some(goodput), Some(repair)) =
            (row.get("goodput_mbps"), row.get("repair_share").filter(|share| **share > 0.0))
        else {
            continue;
        };
        let without = table.rows.iter().position(|(_, other)| {
            other.get("repair_share").is_some_and(|share| *share == 0.0)
                && other.get("goodput_mbps").is_some_and(|base| (base * (1.0 + repair) / goodput - 1.0).abs() < 2e-3)
        });
        if let Some(base) = without {
            let detail = format!(
                "{goodput} is the goodput of row {} times {}: repair packets were counted as goodput",
                base + 1,
                1.0 + repair
            );
            findings.push(Finding {
                row: Some(index + 1),
                label: label.clone(),
                severity: Severity::Suspect,
                rule: "goodput without repair",
                detail,
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<(usize, &'static str)> {
        let findings = audit(&Table::parse(text).unwrap());
        findings.into_iter().map(|finding| (finding.row.unwrap_or(0), finding.rule)).collect()
    }

    #[test]
    fn numbers_that_cannot_be() {
        let text = "name,pps,connections,packet_bytes,goodput_mbps,rtt_ms,p50_ms\n\
                    a,100,1,1200,95.2,50,42.1\nb,600,4,1200,22.0,50,55\nc,100,1,1200,0.96,5,6\n";
        assert_eq!(
            rules(text),
            [(1, "goodput <= offered"), (1, "latency >= propagation"), (3, "goodput is the offered load")]
        );
    }

    #[test]
    fn random_numbers_and_single_outliers() {
        let even = "case,p50_ms,p95_ms,p99_ms,jitter_ms\n20 ms,20.50,20.95,20.99,0.29\nreal,20.5,24,40,3\n";
        assert_eq!(rules(even), [(1, "latency is not a random number")]);
        // A variance printed as a deviation: 138 values, mean 206.01 ms.
        let variance = "case,mean_ms,jitter_ms,packets\nT3,206.01,5813102.71,138\n";
        let findings = audit(&Table::parse(variance).unwrap());
        assert!(findings[0].detail.contains("a variance was printed as a deviation"), "{findings:?}");
        assert_eq!(rules("case,mean_ms,jitter_ms,samples\nx,10,99,100\n"), [(1, "jitter of a single outlier")]);
    }

    #[test]
    fn rates_that_were_not_held_and_repair_that_counts() {
        assert_eq!(
            rules("t,pps,connections,duration_s,packets\nT2,20,1,30,359\nok,20,1,30,600\n"),
            [(1, "the packet rate was held")]
        );
        let repair = "t,goodput_mbps,repair_share,recovered,loss_percent\nplain,3.628,0,0,5\nfec,3.991,0.1,0,5\n";
        assert_eq!(rules(repair), [(2, "repair repairs"), (2, "goodput without repair")]);
        assert_eq!(rules("t,connections,jain\na,1,0.9\nb,4,0.2\nc,4,0.99\n").len(), 2);
    }

    #[test]
    fn tables_in_both_forms() {
        let json = r#"[{"name": "a", "goodput_mbps": 20, "link_mbps": 10}]"#;
        assert_eq!(rules(json), [(1, "goodput <= link")]);
        assert_eq!(rules("name,p50_ms,p95_ms,max_ms\nx,1,2,3\ny,1,2,3\n"), [(2, "different things differ")]);
        assert!(Table::parse("a,b\n1,2\n").is_err() && Table::parse("").is_err() && Table::parse("[1]").is_err());
    }
}
