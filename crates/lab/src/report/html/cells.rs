//! Cells of two factors as heat maps, one for each contender: a stronger colour is a larger value.

use core::fmt::Write;

use super::levels::figures;
use crate::{
    figure::Figure,
    report::{
        LevelValue, MatrixReport,
        plain::{label, printed},
        plot::escape,
        points::short,
    },
};

/// Prints a heat map of each headline figure for each pair of factors.
pub(super) fn cells(out: &mut String, report: &MatrixReport) {
    if report.cells.is_empty() {
        return;
    }
    out.push_str("<section><h2>Cells of two factors</h2><p class=\"note\">The stronger the colour, the larger the value. ★ marks the contender that is best in a cell.</p>");
    let mut open = " open";
    for (index, (one, rows)) in report.factors.iter().enumerate() {
        for (other, columns) in &report.factors[index + 1..] {
            let of_pair = |value: &&LevelValue| value.levels[0].0 == *one && value.levels[1].0 == *other;
            let pair: Vec<&LevelValue> = report.cells.iter().filter(of_pair).collect();
            if pair.is_empty() {
                continue;
            }
            let _ = write!(out, "<details{open}><summary>{} × {}</summary>", escape(short(one)), escape(short(other)));
            open = "";
            for figure in figures(report) {
                let of_figure: Vec<&LevelValue> =
                    pair.iter().copied().filter(|value| value.figure == figure.key()).collect();
                maps(out, report, figure, &of_figure, ((one, rows), (other, columns)));
            }
            out.push_str("</details>");
        }
    }
    out.push_str("</section>");
}

/// A factor and its levels.
type Factor<'a> = (&'a String, &'a Vec<String>);

fn maps(
    out: &mut String,
    report: &MatrixReport,
    figure: Figure,
    values: &[&LevelValue],
    ((one, rows), (other, columns)): (Factor<'_>, Factor<'_>),
) {
    let shade = Shade::of(values);
    let _ = write!(out, "<h3>{}</h3><div class=\"heats\">", escape(&label(figure.key())));
    for contender in &report.contenders {
        let own = || values.iter().filter(|value| value.contender == *contender);
        if own().count() == 0 {
            continue;
        }
        let _ = write!(
            out,
            "<div class=\"wide\"><table class=\"heat\"><caption>{}</caption><thead><tr><th>{} \\ {}</th>",
            escape(contender),
            escape(short(one)),
            escape(short(other))
        );
        for column in columns {
            let _ = write!(out, "<th>{}</th>", escape(column));
        }
        out.push_str("</tr></thead><tbody>");
        for row in rows {
            let _ = write!(out, "<tr><th>{}</th>", escape(row));
            for column in columns {
                let found = own().find(|value| value.levels[0].1 == *row && value.levels[1].1 == *column);
                let _ = match found {
                    Some(value) => write!(
                        out,
                        "<td style=\"--h:{:.0}%\"{}>{}{}</td>",
                        shade.of_value(value.median) * 100.0,
                        ends(figure, value),
                        printed(figure.key(), value.median),
                        if value.best { " ★" } else { "" }
                    ),
                    None => write!(out, "<td>–</td>"),
                };
            }
            out.push_str("</tr>");
        }
        out.push_str("</tbody></table></div>");
    }
    out.push_str("</div>");
}

/// The interval, shown as the cell's tooltip.
fn ends(figure: Figure, value: &LevelValue) -> String {
    let text = |ends: crate::stats::interval::Interval| {
        format!(" title=\"[{}, {}]\"", printed(figure.key(), ends.low), printed(figure.key(), ends.high))
    };
    value.interval.map_or_else(String::new, text)
}

/// From values to shares of the darkest shade.
struct Shade {
    low: f64,
    high: f64,
    log: bool,
}

impl Shade {
    fn of(values: &[&LevelValue]) -> Self {
        let finite = values.iter().map(|value| value.median).filter(|value| value.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        Self { low, high, log: low > 0.0 && high / low >= 10.0 }
    }

    fn of_value(&self, value: f64) -> f64 {
        if !value.is_finite() {
            return 1.0;
        }
        if self.high <= self.low {
            return 0.0;
        }
        let share = if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        share.clamp(0.0, 1.0)
    }
}
