//! Policies that withhold HTTP/3: the report of QUIC against TCP as text.

use lab::{
    stats::compare::{Comparison, Verdict},
    trial::{CONFIDENCE, FigureRow, PerArm, Report, Row},
    versus::Digits,
};

/// A value of a figure: milliseconds, or a percentage.
fn value(row: &FigureRow, value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(share) if row.figure == "failures" => format!("{} %", Digits(100.0 * share).short()),
        Some(seconds) => format!("{} ms", Digits(1e3 * seconds)),
    }
}

/// The size of an effect: a ratio, or a difference in points.
fn effect(result: &Comparison) -> String {
    match result.ratio {
        Some(ratio) => format!("x {:.3} [{:.3}, {:.3}]", ratio.value, ratio.low, ratio.high),
        None => {
            let points = [result.difference.value, result.difference.low, result.difference.high]
                .map(|share| format!("{:+.2}", 100.0 * share));
            format!("{} [{}, {}] points", points[0], points[1], points[2])
        }
    }
}

fn verdict(result: &Comparison) -> String {
    match (result.verdict, result.pairs_needed) {
        (Verdict::Better, _) => "QUIC is better".to_owned(),
        (Verdict::Worse, _) => "TCP is better".to_owned(),
        (Verdict::Equivalent, _) => "equivalent".to_owned(),
        (_, Some(clients)) => format!("undecided, about {clients} clients of each would decide"),
        (_, None) => "undecided".to_owned(),
    }
}

fn figure(row: &FigureRow) -> String {
    let PerArm { tcp, quic } = row.values;
    let values = format!("{:>9} {:>9}", value(row, quic), value(row, tcp));
    let said = match (&row.result, &row.not_comparable) {
        (Some(result), _) => format!("{}: {}", effect(result), verdict(result)),
        (None, reason) => format!("not comparable: {}", reason.as_deref().unwrap_or("no data")),
    };
    format!("    {:<9} {values}  {said}\n", row.figure)
}

fn row(row: &Row) -> String {
    let head =
        format!("  {}: {} clients in the QUIC arm, {} in the TCP arm\n", row.name, row.clients.quic, row.clients.tcp);
    row.figures.iter().fold(head, |text, row| text + &figure(row))
}

/// The report as text.
pub(super) fn text(policy: &str, report: &Report) -> String {
    let Report { clients, requests, .. } = report;
    let mut text = format!(
        "{policy}: HTTP/3 withheld from {} % of clients; {} clients in the QUIC arm, {} in the TCP arm, of about {} seen\n",
        100.0 * report.share,
        clients.quic,
        clients.tcp,
        report.clients_seen
    );
    text.push_str(&format!(
        "  QUIC arm: {} of {} requests, of {} clients, came over QUIC; the rest is in the arm all the same\n",
        report.over_quic, requests.quic, report.quic_users
    ));
    if report.off_arm > 0 {
        text.push_str(&format!("  TCP arm: {} requests came over QUIC, and are in no figure\n", report.off_arm));
    }
    if report.in_both > 0 {
        text.push_str(&format!("  {} clients were seen in both arms, and are in no figure\n", report.in_both));
    }
    for doubt in &report.not_comparable {
        text.push_str(&format!("  not comparable: {}\n  hint: {}\n", doubt.reason, doubt.hint));
    }
    for table in &report.tables {
        let together = 100.0 * CONFIDENCE;
        text.push_str(&match table.by {
            "all" => {
                format!("  figure      QUIC arm   TCP arm  QUIC against TCP (all intervals hold with {together} %)\n")
            }
            by => format!("  by {by} (all intervals hold with {together} %)\n"),
        });
        text.extend(table.rows.iter().map(row));
    }
    text
}
