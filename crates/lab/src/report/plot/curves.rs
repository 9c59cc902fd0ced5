//! Curves with intervals as a picture file.

use core::fmt::Write;

use super::{Axis, BOTTOM, HEIGHT, LEFT, RIGHT, Scale, TOP, WIDTH, axes, escape, number};

/// A value with its interval, over a varied parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Varied value.
    pub x: f64,
    /// The estimate.
    pub value: f64,
    /// Interval.
    pub low: f64,
    /// …
    pub high: f64,
}

/// Measured values of one contender.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Name, for the legend.
    pub name: String,
    /// Points in ascending order of the parameter.
    pub points: Vec<Measured>,
}

/// Content of an axis of a [`curves`] picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Along<'a> {
    /// With its unit.
    pub label: &'a str,
    /// Logarithmic axis: equal distances are equal ratios. Values that are not above zero are left out then.
    pub log: bool,
}

/// Height of the legend of a [`curves`] picture.
const LEGEND: f64 = 22.0;

/// Curves with intervals as a picture file, with colours for light and dark pages.
pub fn curves(title: &str, x: Along<'_>, y: Along<'_>, curves: &[Curve]) -> String {
    let axis = |along: Along<'_>| (along.log, along.label.to_owned());
    let ((x_log, x_label), (y_log, y_label)) = (axis(x), axis(y));
    let (x, y) =
        (Axis { label: &x_label, log: x_log, reversed: false }, Axis { label: &y_label, log: y_log, reversed: false });
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let horizontal = Scale::new(all().map(|point| point.x), x, LEFT, WIDTH - RIGHT);
    let ends = all().flat_map(|point| [point.value, point.low, point.high]);
    let vertical = Scale::new(ends.chain((!y.log).then_some(0.0)), y, HEIGHT - BOTTOM, TOP);
    let style = include_str!("../style.css");
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{}\" class=\"plot\"><title>{}</title><style>{}</style><rect width=\"100%\" height=\"100%\" style=\"fill:var(--bg)\"/>",
        HEIGHT + LEGEND,
        escape(title),
        escape(title),
        // Of the page's style only what pictures use.
        style
            .lines()
            .filter(|line| [":root", "@media", ".plot", ".grid", ".s0", ".dot"]
                .iter()
                .any(|part| line.starts_with(part)))
            .collect::<Vec<_>>()
            .join("")
    );
    let mut at = LEFT;
    for (index, curve) in curves.iter().enumerate() {
        let _ = write!(
            out,
            "<g class=\"s{}\"><circle cx=\"{at:.0}\" cy=\"11\" r=\"4\" class=\"point\"/><text x=\"{:.0}\" y=\"15\" class=\"label\">{}</text></g>",
            (index + 1) % 8,
            at + 9.0,
            escape(&curve.name)
        );
        #[expect(clippy::cast_precision_loss, reason = "a name")]
        let width = curve.name.chars().count() as f64 * 7.0 + 32.0;
        at += width;
    }
    let _ = write!(out, "<g transform=\"translate(0 {LEGEND})\">");
    axes(&mut out, &horizontal.marks(), WIDTH - RIGHT, &vertical, (x.label, y.label));
    for (index, curve) in curves.iter().enumerate() {
        let drawn =
            |point: &&Measured| point.value.is_finite() && (!x_log || point.x > 0.0) && (!y_log || point.value > 0.0);
        let _ = write!(out, "<g class=\"s{}\"><title>{}</title>", (index + 1) % 8, escape(&curve.name));
        let mut path = String::new();
        for point in curve.points.iter().filter(drawn) {
            let (a, b) = (horizontal.place(point.x), vertical.place(point.value));
            let _ = write!(path, "{}{a:.1} {b:.1}", if path.is_empty() { 'M' } else { 'L' });
            let (low, high) = (vertical.place(point.low), vertical.place(point.high));
            let _ = write!(
                out,
                "<line x1=\"{a:.1}\" x2=\"{a:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" class=\"bar\" style=\"opacity:.4\"/><circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"3\" class=\"point\"><title>{}: {} [{}, {}]</title></circle>",
                escape(&curve.name),
                number(point.value),
                number(point.low),
                number(point.high)
            );
        }
        let _ = write!(out, "<path d=\"{path}\" class=\"line\"/></g>");
    }
    out.push_str("</g></svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_a_file_of_their_own() {
        let points = [1.0, 10.0].map(|x| Measured { x, value: x, low: 0.9 * x, high: 1.2 * x }).to_vec();
        let lost = vec![Measured { x: 0.0, value: f64::NAN, low: f64::NAN, high: f64::NAN }];
        let both = [Curve { name: "a & b".into(), points }, Curve { name: "nothing".into(), points: lost }];
        let plot = curves("a < b", Along { label: "x", log: true }, Along { label: "y", log: false }, &both);
        assert!(plot.starts_with("<svg xmlns=") && plot.ends_with("</svg>\n") && !plot.contains("NaN"), "{plot}");
        assert_eq!(plot.matches("class=\"bar\"").count(), 2);
        assert!(plot.contains("a &amp; b") && plot.contains("--c1"));
    }
}
