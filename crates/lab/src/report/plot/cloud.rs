//! Scatter plots, one cloud for each contender.

use core::fmt::Write;

use super::{Axis, BOTTOM, HEIGHT, LEFT, Label, RIGHT, Scale, Series, TOP, WIDTH, axes, begin, escape, labels, number};

/// Dots, and for each contender the ellipse that holds about two thirds of a normal cloud with the same mean and covariance. The axes
/// reach as far as the ellipses.
pub(in crate::report) fn cloud(series: &[Series], x: Axis<'_>, y: Axis<'_>) -> String {
    let reach = |read: fn(&(f64, f64)) -> f64, axis: Axis<'_>| {
        let own = move |one: &Series| reach(one.points.iter().map(read), axis.log);
        series.iter().flat_map(own).collect::<Vec<f64>>()
    };
    let horizontal = Scale::new(reach(|point| point.0, x).into_iter(), x, LEFT, WIDTH - RIGHT);
    let vertical = Scale::new(reach(|point| point.1, y).into_iter(), y, HEIGHT - BOTTOM, TOP);
    let mut out = begin(&format!("{} against {}", y.label, x.label), HEIGHT);
    axes(&mut out, &horizontal.marks(), WIDTH - RIGHT, &vertical, (x.label, y.label));
    let mut names = Vec::new();
    for (index, one) in series.iter().enumerate() {
        let shown = |axis: Axis<'_>, value: f64| value.is_finite() && (!axis.log || value > 0.0);
        let drawn: Vec<(f64, f64)> =
            one.points.iter().copied().filter(|point| shown(x, point.0) && shown(y, point.1)).collect();
        let places: Vec<(f64, f64)> = drawn.iter().map(|&(a, b)| (horizontal.place(a), vertical.place(b))).collect();
        let _ = write!(out, "<g class=\"s{}\"><title>{}</title>", index % 8, escape(&one.name));
        let radius = if places.len() < 3 { 5.0 } else { 2.5 };
        for ((a, b), (x_value, y_value)) in places.iter().zip(&drawn) {
            let _ = write!(
                out,
                "<circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"{radius}\" class=\"dot\"><title>{}: {}, {}</title></circle>",
                escape(&one.name),
                number(*x_value),
                number(*y_value)
            );
        }
        let ellipse = ellipse(&places);
        if let Some((centre, radii, angle)) = ellipse {
            let _ = write!(
                out,
                "<ellipse rx=\"{:.1}\" ry=\"{:.1}\" transform=\"translate({:.1} {:.1}) rotate({angle:.1})\" class=\"ellipse\"/>",
                radii.0, radii.1, centre.0, centre.1
            );
        }
        out.push_str("</g>");
        let place = ellipse.map(|(centre, ..)| (centre, 0.0)).or_else(|| Some((*places.first()?, 9.0)));
        if let Some(((a, b), aside)) = place {
            // Beyond the middle there is more room to the left.
            let right = a < f64::midpoint(LEFT, WIDTH - RIGHT);
            let (x, anchor) = if right { (a + aside, "start") } else { (a - aside, "end") };
            names.push(Label { x, y: b + 4.0, series: index, text: &one.name, anchor });
        }
    }
    labels(&mut out, names);
    out.push_str("</svg>");
    out
}

/// Values, and the ends of an ellipse around them along this axis.
fn reach(values: impl Iterator<Item = f64>, log: bool) -> Vec<f64> {
    let usable: Vec<f64> = values.filter(|value| value.is_finite() && (!log || *value > 0.0)).collect();
    let to = |value: f64| if log { value.ln() } else { value };
    let from = |place: f64| if log { place.exp() } else { place };
    let placed: Vec<f64> = usable.iter().copied().map(to).collect();
    if placed.len() < 3 {
        return usable;
    }
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let n = placed.len() as f64;
    let mean = placed.iter().sum::<f64>() / n;
    let deviation = (placed.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n).sqrt();
    usable.into_iter().chain([from(mean - RADII * deviation), from(mean + RADII * deviation)]).collect()
}

/// Standard deviations of an ellipse: the square of 1.5 holds 68 % of a normal cloud of two dimensions.
const RADII: f64 = 1.5;

/// Centre, half axes and angle.
type Ellipse = ((f64, f64), (f64, f64), f64);

/// The ellipse of a cloud.
fn ellipse(places: &[(f64, f64)]) -> Option<Ellipse> {
    if places.len() < 3 {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let n = places.len() as f64;
    let centre = (places.iter().map(|p| p.0).sum::<f64>() / n, places.iter().map(|p| p.1).sum::<f64>() / n);
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for place in places {
        let (x, y) = (place.0 - centre.0, place.1 - centre.1);
        (xx, xy, yy) = (xx + x * x / n, xy + x * y / n, yy + y * y / n);
    }
    let (middle, spread) = (f64::midpoint(xx, yy), (((xx - yy) / 2.0).powi(2) + xy * xy).sqrt());
    let angle = 0.5 * (2.0 * xy).atan2(xx - yy);
    Some((
        centre,
        (RADII * (middle + spread).max(0.0).sqrt(), RADII * (middle - spread).max(0.0).sqrt()),
        angle.to_degrees(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ellipse_of_a_tilted_cloud() {
        let places: Vec<(f64, f64)> =
            (0..100).map(f64::from).map(|x| (x, x + if x as i32 % 2 == 0 { 5.0 } else { -5.0 })).collect();
        let (centre, radii, angle) = ellipse(&places).unwrap();
        assert!((centre.0 - 49.5).abs() < 1e-9 && (angle - 45.0).abs() < 2.0 && radii.0 > 8.0 * radii.1);
        assert!(ellipse(&places[..2]).is_none());
    }

    #[test]
    fn no_ellipse_leaves_the_axes() {
        let points: Vec<(f64, f64)> = (0..40).map(f64::from).map(|i| (10.0 + i % 7.0, 100.0 + i * i)).collect();
        for log in [false, true] {
            let axis = Axis { label: "v", log, reversed: false };
            let plot = cloud(&[Series { name: "one".to_owned(), points: points.clone() }], axis, axis);
            let part = |from: &str, to: &str| {
                let ellipse = &plot[plot.find("<ellipse").unwrap()..];
                let rest = ellipse.split(from).nth(1).unwrap();
                rest.split(to)
                    .next()
                    .unwrap()
                    .split(' ')
                    .map(|number| number.parse::<f64>().unwrap())
                    .collect::<Vec<_>>()
            };
            let (centre, angle) = (part("translate(", ")"), part("rotate(", ")")[0].to_radians());
            let (rx, ry) = (part("rx=\"", "\"")[0], part("ry=\"", "\"")[0]);
            let half = ((rx * angle.cos()).hypot(ry * angle.sin()), (rx * angle.sin()).hypot(ry * angle.cos()));
            assert!(centre[0] - half.0 >= LEFT - 1.0 && centre[0] + half.0 <= WIDTH - RIGHT + 1.0, "{plot}");
            assert!(centre[1] - half.1 >= TOP - 1.0 && centre[1] + half.1 <= HEIGHT - BOTTOM + 1.0, "{plot}");
        }
    }

    #[test]
    fn names_cannot_break_out_and_odd_values_do_not_break_in() {
        let series =
            [Series { name: "<script>".to_owned(), points: vec![(0.0, f64::NAN), (1.0, 2.0), (f64::INFINITY, 1.0)] }];
        let axis = Axis { label: "x & y", log: true, reversed: true };
        let plot = cloud(&series, axis, Axis { log: false, ..axis });
        assert!(!plot.contains("<script>") && !plot.contains("inf") && !plot.contains("NaN"), "{plot}");
    }
}
