//! Forest plots: estimates with their intervals below one another.

use core::fmt::Write;

use super::{Axis, RIGHT, Scale, WIDTH, begin, escape, number};

/// One line of a [`forest`].
pub(in crate::report) struct Bar {
    /// Label.
    pub(in crate::report) label: String,
    /// Index of the contender, for the colour.
    pub(in crate::report) series: usize,
    /// Estimate and interval: ratios.
    pub(in crate::report) value: f64,
    pub(in crate::report) low: f64,
    pub(in crate::report) high: f64,
    /// A gap above: the begin of a group.
    pub(in crate::report) first: bool,
}

/// Estimates with their intervals below one another, around "no difference".
pub(in crate::report) fn forest(bars: &[Bar], label: &str) -> String {
    const LINE: f64 = 18.0;
    const TEXT: f64 = 200.0;
    let gaps = bars.iter().filter(|bar| bar.first).count();
    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    let height = LINE * bars.len() as f64 + 8.0 * gaps as f64 + 46.0;
    let ends = bars.iter().flat_map(|bar| [bar.value, bar.low, bar.high]).filter(|x| x.is_finite() && *x > 1e-6);
    let axis = Axis { label, log: true, reversed: false };
    let scale = Scale::new(ends.chain([0.9, 1.1]), axis, TEXT, WIDTH - RIGHT);
    let mut out = begin(label, height);
    for tick in scale.ticks() {
        let at = scale.place(tick);
        let _ = write!(
            out,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"4\" y2=\"{:.0}\" class=\"grid\"/><text x=\"{at:.1}\" y=\"{:.0}\" class=\"tick\" text-anchor=\"middle\">×{}</text>",
            height - 36.0,
            height - 22.0,
            number(tick)
        );
    }
    let one = scale.place(1.0);
    let _ = write!(
        out,
        "<line x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"4\" y2=\"{:.0}\" class=\"zero\"/><text x=\"{:.0}\" y=\"{:.0}\" class=\"label\" text-anchor=\"middle\">{}</text>",
        height - 36.0,
        f64::midpoint(TEXT, WIDTH),
        height - 6.0,
        escape(label)
    );
    let mut y = 4.0;
    for bar in bars {
        y += if bar.first { 8.0 } else { 0.0 };
        let middle = y + LINE / 2.0;
        let (low, high) = (bar.low.max(scale.low), bar.high.min(scale.high));
        let _ = write!(
            out,
            "<g class=\"s{}\"><title>{} ×{} [{}, {}]</title><text x=\"{}\" y=\"{:.1}\" class=\"tick\" text-anchor=\"end\">{}</text><line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" class=\"bar\"/><circle cx=\"{:.1}\" cy=\"{middle:.1}\" r=\"4\" class=\"point\"/></g>",
            bar.series % 8,
            escape(&bar.label),
            number(bar.value),
            number(bar.low),
            number(bar.high),
            TEXT - 8.0,
            middle + 4.0,
            escape(&bar.label),
            scale.place(low),
            scale.place(high),
            scale.place(bar.value)
        );
        y += LINE;
    }
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinite_ends_stay_within_the_picture() {
        let bars = [Bar { label: "a".into(), series: 0, value: 1.0, low: 0.0, high: f64::INFINITY, first: true }];
        assert!(forest(&bars, "ratio").ends_with("</svg>"));
    }
}
