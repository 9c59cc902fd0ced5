//! Scatter plots and distributions.

use core::fmt::Write;

use super::legend;
use crate::{
    figure::Figure,
    report::{
        MatrixReport, PointRow,
        plain::label,
        plot::{Axis, Series, Steps, cloud, escape, shares},
    },
};

/// A figure of a contender at a point, in printed units.
fn at(point: &PointRow, contender: usize, figure: Figure) -> Option<f64> {
    let found = point.figures[contender].iter().find(|quoted| quoted.figure == figure.key())?;
    Some(found.median * figure.unit().printed().1)
}

/// A figure of a contender in every point, in printed units.
fn across(report: &MatrixReport, contender: usize, figure: Figure) -> Vec<Option<f64>> {
    report.points.iter().map(|point| at(point, contender, figure)).collect()
}

/// Goodput against delay, and how often by how much it differs from the baseline's.
pub(super) fn clouds(out: &mut String, report: &MatrixReport) {
    // A delay that somebody feels: in the queue where there is one, else that of the workload.
    let delays = [Figure::QueueDelayP99, Figure::DelayP95, Figure::RequestP95, Figure::RttP95];
    let present =
        |figure: &Figure| across(report, 0, *figure).iter().flatten().any(|value| *value > 0.0 && value.is_finite());
    let Some(delay) = delays.into_iter().find(present) else { return };
    let grid = &report.headlines.grid;
    let series: Vec<Series> = (grid.columns.iter().enumerate())
        .map(|(column, name)| {
            let cells = grid.cells.iter().filter_map(|row| row[column]);
            let place = |(point, contender): (usize, usize)| {
                let point = &report.points[point];
                Some((at(point, contender, delay)?, at(point, contender, Figure::Goodput)?))
            };
            Series { name: name.clone(), points: cells.filter_map(place).collect() }
        })
        .collect();
    let many = grid.rows.len() > 1;
    let (delay_label, goodput_label) = (label(delay.key()), label(Figure::Goodput.key()));
    let ellipse = if grid.rows.len() > 2 { " An ellipse holds about two thirds of a contender's dots." } else { "" };
    let _ = write!(
        out,
        "<section><h2>Goodput against delay</h2><p class=\"note\">A dot is a point of the matrix (median over its seeds). Up and to the right is better.{ellipse}</p>"
    );
    legend(out, grid.columns.iter().map(String::as_str).enumerate());
    out.push_str(&cloud(
        &series,
        Axis { label: &delay_label, log: many, reversed: true },
        Axis { label: &goodput_label, log: many, reversed: false },
    ));
    out.push_str("</section>");
    if report.size.points > 1 && report.contenders.len() > 1 {
        ratios(out, report);
    }
}

fn ratios(out: &mut String, report: &MatrixReport) {
    let base = across(report, 0, Figure::Goodput);
    let mut lines = Vec::new();
    for (index, name) in report.contenders.iter().enumerate().skip(1) {
        let own = across(report, index, Figure::Goodput);
        let ratio = own.iter().zip(&base).filter_map(|(own, base)| Some((*own)? / (*base)?));
        let mut ratios: Vec<f64> = ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0).collect();
        ratios.sort_by(f64::total_cmp);
        #[expect(clippy::cast_precision_loss, reason = "a few thousand points")]
        let count = ratios.len().max(1) as f64;
        let steps = (1_u32..).zip(ratios).map(|(rank, ratio)| (ratio, f64::from(rank) / count)).collect();
        lines.push((index, name.as_str(), steps));
    }
    let name = format!("goodput / goodput of {}", report.contenders[0]);
    out.push_str("<section><h2>How often, by how much</h2><p class=\"note\">The share of points in which the ratio is at most the value below. Right of the line is better than the baseline.</p>");
    let axis = Axis { label: &name, log: true, reversed: false };
    out.push_str(&shares(&lines, axis, "share of points at or below", Some(1.0)));
    out.push_str("</section>");
}

/// Distributions of RTT and latency at the point where the contenders differ most.
pub(super) fn spreads(out: &mut String, report: &MatrixReport) {
    let spreads = &report.spreads;
    if spreads.kinds.is_empty() {
        return;
    }
    let place = match spreads.place.as_str() {
        "" => "All samples of all seeds, each run with the same weight.".to_owned(),
        place => format!(
            "All samples of all seeds, each run with the same weight, at the point where the contenders differ most: {place}."
        ),
    };
    let _ = write!(
        out,
        "<section><h2>Distribution of RTT and latency</h2><p class=\"note\">{} Left is better. A line that ends below 1: the rest never came.</p>",
        escape(&place)
    );
    for spread in &spreads.kinds {
        let lines: Vec<(usize, &str, Steps)> = spread
            .contenders
            .iter()
            .map(|(name, steps)| {
                let colour = report.headlines.grid.columns.iter().position(|column| column == name).unwrap_or(0);
                (colour, name.as_str(), steps.iter().map(|(seconds, share)| (seconds * 1e3, *share)).collect())
            })
            .collect();
        let values = || lines.iter().flat_map(|(_, _, steps)| steps).map(|step| step.0);
        let (low, high) = values().fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
        let name = format!("{} (ms)", spread.kind.label());
        let axis = Axis { label: &name, log: low > 0.0 && high / low >= 10.0, reversed: false };
        let _ = write!(out, "<h3>{}</h3>", escape(spread.kind.heading()));
        out.push_str(&shares(&lines, axis, "share of samples at or below", None));
    }
    out.push_str("</section>");
}
