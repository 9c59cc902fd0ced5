//! Figures over the levels of factors.

use core::fmt::Write;

use super::found::sentence;
use crate::{
    figure::Figure,
    report::{
        MatrixReport,
        plain::{label, plain_name},
        plot::{Axis, Bar, Measured, Over, escape, forest, over},
    },
};

/// Headline figures over each factor, with intervals.
pub(super) fn over_levels(out: &mut String, report: &MatrixReport) {
    let shown: Vec<_> = report.varied().filter(|(_, levels)| levels.len() > 1).collect();
    if shown.is_empty() {
        return;
    }
    out.push_str("<section><h2>Over each factor</h2><p class=\"note\">Medians over all points of a level, with intervals of at least 95 % from six runs on.</p>");
    let mut open = " open";
    for (factor, levels) in shown {
        for figure in figures(report) {
            let lines = report.contenders.iter().map(|name| Over {
                name: name.clone(),
                points: levels.iter().map(|level| measured(report, (factor, level), name, figure)).collect(),
            });
            let lines: Vec<Over> = lines.filter(|line| line.points.iter().any(Option::is_some)).collect();
            if lines.is_empty() {
                continue;
            }
            let values = || lines.iter().flat_map(|line| &line.points).flatten().map(|point| point.value);
            let (low, high) = values().fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
            let y = label(figure.key());
            let axis = Axis { label: &y, log: low > 0.0 && high.is_finite() && high / low >= 20.0, reversed: false };
            let _ = write!(
                out,
                "<details{open}><summary>{} over {}</summary>{}</details>",
                escape(plain_name(figure.key())),
                escape(factor),
                over(&lines, levels, factor, axis)
            );
            open = "";
        }
    }
    out.push_str("</section>");
}

/// Figures of the levels, in their order.
pub(super) fn figures(report: &MatrixReport) -> Vec<Figure> {
    let mut figures = Vec::new();
    for figure in report.level_values.iter().filter_map(|value| Figure::from_key(value.figure)) {
        if !figures.contains(&figure) {
            figures.push(figure);
        }
    }
    figures
}

fn measured(
    report: &MatrixReport,
    (factor, level): (&String, &String),
    contender: &str,
    figure: Figure,
) -> Option<Measured> {
    let scale = figure.unit().printed().1;
    let found = report.level_values.iter().find(|value| {
        value.contender == contender
            && value.figure == figure.key()
            && value.levels[0] == (factor.clone(), level.clone())
    })?;
    let value = found.median * scale;
    let (low, high) = found.interval.map_or((value, value), |ends| (ends.low * scale, ends.high * scale));
    Some(Measured { x: 0.0, value, low, high })
}

/// Contenders against the baseline at each level.
pub(super) fn against_baseline(out: &mut String, report: &MatrixReport) {
    if report.by_level.is_empty() {
        return;
    }
    out.push_str("<section><h2>Against the baseline at each level</h2>");
    super::legend(out, report.contenders.iter().map(String::as_str).enumerate().skip(1));
    let figures: Vec<&str> = {
        let mut figures: Vec<&str> = Vec::new();
        for effect in &report.by_level {
            if !figures.contains(&effect.figure) {
                figures.push(effect.figure);
            }
        }
        figures
    };
    for (index, figure) in figures.iter().enumerate() {
        let (mut bars, mut differences) = (Vec::new(), String::new());
        let mut last = None;
        for effect in report.by_level.iter().filter(|effect| effect.figure == *figure) {
            let Some(level) = &effect.level else { continue };
            let Some(ratio) = effect.result.ratio.filter(|ratio| ratio.value > 0.0) else {
                let _ = write!(
                    differences,
                    "<li>{} {}, {}: {}</li>",
                    escape(level.0.rsplit('.').next().unwrap_or(&level.0)),
                    escape(&level.1),
                    escape(&effect.contender),
                    sentence(effect)
                );
                continue;
            };
            let series = report.contenders.iter().position(|name| *name == effect.contender).unwrap_or(0);
            bars.push(Bar {
                label: format!("{} {}", level.0.rsplit('.').next().unwrap_or(&level.0), level.1),
                series,
                value: ratio.value,
                low: ratio.low,
                high: ratio.high,
                first: last != Some(&level.0),
            });
            last = Some(&level.0);
        }
        let title = format!("{} against {}", plain_name(figure), report.contenders[0]);
        let open = if index == 0 { " open" } else { "" };
        let picture = if bars.is_empty() { String::new() } else { forest(&bars, &title) };
        let list = if differences.is_empty() { differences } else { format!("<ul class=\"found\">{differences}</ul>") };
        let _ = write!(out, "<details{open}><summary>{}</summary>{picture}{list}</details>", escape(&title));
    }
    out.push_str("</section>");
}
