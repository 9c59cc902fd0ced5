//! Cumulative distributions.

use core::fmt::Write;

use super::{Axis, BOTTOM, HEIGHT, LEFT, Label, NAMED, Scale, TOP, WIDTH, axes, begin, escape, labels};

/// Steps of one distribution: values, each with the share that does not exceed it.
pub(in crate::report) type Steps = Vec<(f64, f64)>;

/// Empirical distribution functions, with the names of the lines at their ends. A line that ends below 1 has missing samples.
pub(in crate::report) fn shares(
    series: &[(usize, &str, Steps)],
    x: Axis<'_>,
    of: &str,
    reference: Option<f64>,
) -> String {
    let usable = |value: f64| value.is_finite() && (!x.log || value > 0.0);
    let all = series.iter().flat_map(|(_, _, steps)| steps.iter().map(|step| step.0)).chain(reference);
    let right = WIDTH - NAMED;
    let horizontal = Scale::new(all, x, LEFT, right);
    let y = Axis { label: "share", log: false, reversed: false };
    let vertical = Scale::new([0.0, 1.0].into_iter(), y, HEIGHT - BOTTOM, TOP);
    let mut out = begin(&format!("distribution of {}", x.label), HEIGHT);
    axes(&mut out, &horizontal.marks(), right, &vertical, (x.label, of));
    if let Some(reference) = reference {
        let at = horizontal.place(reference);
        let _ =
            write!(out, "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{}\" class=\"zero\"/>", HEIGHT - BOTTOM);
    }
    let mut names = Vec::new();
    for (colour, name, steps) in series {
        let mut path = String::new();
        let mut end = None;
        for &(value, share) in steps.iter().filter(|step| usable(step.0)) {
            let (a, b) = (horizontal.place(value), vertical.place(share));
            let _ = if path.is_empty() {
                write!(path, "M{a:.1} {:.1}V{b:.1}", vertical.place(0.0))
            } else {
                write!(path, "H{a:.1}V{b:.1}")
            };
            end = Some(b);
        }
        let Some(end) = end else { continue };
        let _ = write!(
            out,
            "<g class=\"s{}\"><title>{}</title><path d=\"{path}H{right:.1}\" class=\"line\"/></g>",
            colour % 8,
            escape(name)
        );
        names.push(Label { x: right + 6.0, y: end + 4.0, series: *colour, text: name, anchor: "start" });
    }
    labels(&mut out, names);
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_where_their_names_stand() {
        let steps = vec![(1.0, 0.5), (2.0, 0.9), (f64::INFINITY, 1.0)];
        let axis = Axis { label: "ms", log: true, reversed: false };
        let plot = shares(&[(1, "a <b>", steps)], axis, "share", Some(1.0));
        assert_eq!(plot.matches("class=\"line\"").count(), 1);
        assert!(plot.contains(">a &lt;b&gt;</text>") && !plot.contains("inf"), "{plot}");
        assert!(!shares(&[(1, "none", Vec::new())], axis, "share", None).contains("<path"));
    }
}
