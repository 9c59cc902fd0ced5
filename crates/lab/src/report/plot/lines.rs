//! Values over time, with states in the background.

use core::fmt::Write;

use super::{Axis, BOTTOM, HEIGHT, LEFT, RIGHT, Scale, TOP, WIDTH, axes, begin, escape};

/// Course of a line between its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum Shape {
    /// Straight from one to the next: samples.
    Joined,
    /// Constant until the next: a state, such as a window.
    Steps,
}

/// Values over time of one line.
#[derive(Clone, Debug)]
pub(in crate::report) struct TimeLine {
    /// Name, for the legend and for readers of the picture's text.
    pub(in crate::report) name: String,
    /// Seconds and values.
    pub(in crate::report) points: Vec<(f64, f64)>,
    pub(in crate::report) shape: Shape,
}

/// Part of the horizontal axis with a background colour.
pub(in crate::report) struct Band {
    pub(in crate::report) from: f64,
    pub(in crate::report) to: f64,
    /// Index of the colour.
    pub(in crate::report) series: usize,
    pub(in crate::report) label: String,
}

/// Values that share a column of the picture, as places.
#[derive(Clone, Copy)]
struct Column {
    at: i64,
    first: f64,
    low: f64,
    high: f64,
    last: f64,
}

/// Values over time. Of the values that share a column of the picture the smallest and the largest are drawn, so that no peak
/// is lost however long the series is.
pub(in crate::report) fn lines(series: &[TimeLine], bands: &[Band], y: Axis<'_>, span: (f64, f64)) -> String {
    let x = Axis { label: "time (s)", log: false, reversed: false };
    let horizontal = Scale { low: span.0, high: span.1.max(span.0 + 1e-9), from: LEFT, to: WIDTH - RIGHT, log: false };
    let values = series.iter().flat_map(|one| one.points.iter().map(|point| point.1));
    let vertical = Scale::new(values.chain([0.0]), y, HEIGHT - BOTTOM, TOP);
    let mut out = begin(&format!("{} over time", y.label), HEIGHT);
    axes(&mut out, &horizontal.marks(), WIDTH - RIGHT, &vertical, (x.label, y.label));
    for band in bands {
        let (from, to) = (horizontal.place(band.from), horizontal.place(band.to));
        let _ = write!(
            out,
            "<g class=\"s{}\"><title>{} {:.2} s to {:.2} s</title><rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\" class=\"band\"/></g>",
            band.series % 8,
            escape(&band.label),
            band.from,
            band.to,
            (to - from).max(0.1),
            HEIGHT - TOP - BOTTOM
        );
    }
    for (index, one) in series.iter().enumerate() {
        let mut path = String::new();
        let mut column: Option<Column> = None;
        let mut draw = |Column { at, first, low, high, last }: Column| {
            let _ = match (path.is_empty(), one.shape) {
                (true, _) => write!(path, "M{at} {first:.1}"),
                (false, Shape::Joined) => write!(path, "L{at} {low:.1}"),
                // The value before holds until here.
                (false, Shape::Steps) => write!(path, "H{at}V{first:.1}"),
            };
            if (high - low).abs() > 0.05 {
                let _ = write!(path, "V{low:.1}V{high:.1}");
                if one.shape == Shape::Steps {
                    let _ = write!(path, "V{last:.1}");
                }
            }
        };
        for &(time, value) in one.points.iter().filter(|point| point.0.is_finite() && point.1.is_finite()) {
            #[expect(clippy::cast_possible_truncation, reason = "a place in the picture")]
            let at = horizontal.place(time).round() as i64;
            let place = vertical.place(value);
            let fresh = Column { at, first: place, low: place, high: place, last: place };
            column = Some(match column {
                Some(same) if same.at == at => {
                    Column { low: same.low.min(place), high: same.high.max(place), last: place, ..same }
                }
                Some(done) => {
                    draw(done);
                    fresh
                }
                None => fresh,
            });
        }
        column.into_iter().for_each(draw);
        let _ = write!(
            out,
            "<g class=\"s{}\"><title>{}</title><path d=\"{path}\" class=\"line thin\"/></g>",
            index % 8,
            escape(&one.name)
        );
    }
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const AXIS: Axis<'static> = Axis { label: "y", log: false, reversed: false };

    #[test]
    fn a_peak_is_drawn_however_long_the_series_is() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i) / 1e3, 1.0)).collect();
        points[54_321].1 = 100.0;
        let top = Scale::new([0.0, 1.0, 100.0].into_iter(), AXIS, HEIGHT - BOTTOM, TOP).place(100.0);
        for shape in [Shape::Joined, Shape::Steps] {
            let plot = lines(&[TimeLine { name: "a".into(), points: points.clone(), shape }], &[], AXIS, (0.0, 100.0));
            assert!(plot.len() < 60_000, "{}", plot.len());
            assert!(plot.contains(&format!("{top:.1}")), "{top}");
        }
    }

    #[test]
    fn a_state_holds_until_the_next() {
        let points = vec![(0.0, 10.0), (50.0, 20.0), (100.0, 20.0)];
        let path = |shape| {
            let plot = lines(&[TimeLine { name: "w".into(), points: points.clone(), shape }], &[], AXIS, (0.0, 100.0));
            let start = plot.find("<path d=\"").unwrap() + 9;
            plot[start..].split('"').next().unwrap().to_owned()
        };
        let (joined, steps) = (path(Shape::Joined), path(Shape::Steps));
        assert!(joined.matches('L').count() == 2 && !joined.contains('H'), "{joined}");
        assert!(steps.matches('H').count() == 2 && !steps.contains('L'), "{steps}");
    }
}
