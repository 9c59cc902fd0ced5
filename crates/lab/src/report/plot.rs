//! Plots as inline SVG: everything a picture needs stands in it, colours come from the page, so that they follow its light
//! or dark scheme.

use core::fmt::Write;

/// A set of points of one contender.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// Name, for the legend and for readers of the picture's text.
    pub(super) name: String,
    /// Horizontal and vertical values, both in printed units.
    pub(super) points: Vec<(f64, f64)>,
}

/// An axis: its label and whether it is logarithmic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis<'a> {
    pub(super) label: &'a str,
    pub(super) log: bool,
    /// Larger values stand to the left: for delays, so that better is to the right.
    pub(super) reversed: bool,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;

/// From values to places.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    fn new(values: impl Iterator<Item = f64>, axis: Axis<'_>, from: f64, to: f64) -> Self {
        let usable = values.filter(|value| value.is_finite() && (!axis.log || *value > 0.0));
        let (mut low, mut high) =
            usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            (low, high) = (1.0, 2.0);
        }
        if axis.log {
            (low, high) = (low / 1.2, high * 1.2);
        } else {
            let room = ((high - low) * 0.06).max(high.abs() * 1e-3).max(1e-9);
            (low, high) = (if low >= 0.0 { (low - room).max(0.0) } else { low - room }, high + room);
        }
        let (from, to) = if axis.reversed { (to, from) } else { (from, to) };
        Self { low, high, from, to, log: axis.log }
    }

    fn place(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Values that people count in: 1, 2 and 5 times powers of ten.
    fn ticks(&self) -> Vec<f64> {
        let mut ticks = Vec::new();
        if self.log {
            let mut power = 10f64.powf(self.low.log10().floor());
            while power <= self.high {
                ticks.extend([1.0, 2.0, 5.0].map(|digit| digit * power));
                power *= 10.0;
            }
            ticks.retain(|tick| (self.low..=self.high).contains(tick));
            if ticks.len() > 9 {
                ticks.retain(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-9);
            }
            // A narrow range has few round powers: then equal distances read better.
            if ticks.len() >= 3 {
                return ticks;
            }
            ticks.clear();
        }
        let rough = (self.high - self.low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|digit| digit * power).find(|step| *step >= rough).unwrap_or(power);
        let mut tick = (self.low / step).ceil() * step;
        while tick <= self.high + step * 1e-9 {
            ticks.push(tick);
            tick += step;
        }
        ticks
    }
}

/// A number as short as it can be.
pub(super) fn number(value: f64) -> String {
    let digits = if value == 0.0 { 0.0 } else { (2.0 - value.abs().log10().floor()).clamp(0.0, 6.0) };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let text = format!("{value:.*}", digits as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Text that may stand in HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn begin(label: &str, height: f64) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\" class=\"plot\">", escape(label))
}

fn axes(out: &mut String, x: &Scale, y: &Scale, labels: (&str, &str)) {
    let (left, right, top, bottom) = (LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM);
    for tick in x.ticks() {
        let at = x.place(tick);
        let _ = write!(
            out,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\" class=\"grid\"/><text x=\"{at:.1}\" y=\"{:.1}\" class=\"tick\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            number(tick)
        );
    }
    for tick in y.ticks() {
        let at = y.place(tick);
        let _ = write!(
            out,
            "<line x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" class=\"grid\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"tick\" text-anchor=\"end\">{}</text>",
            left - 6.0,
            at + 4.0,
            number(tick)
        );
    }
    let _ = write!(
        out,
        "<text x=\"{:.0}\" y=\"{:.0}\" class=\"label\" text-anchor=\"middle\">{}</text><text x=\"14\" y=\"{:.0}\" class=\"label\" text-anchor=\"middle\" transform=\"rotate(-90 14 {:.0})\">{}</text>",
        f64::midpoint(left, right),
        HEIGHT - 8.0,
        escape(labels.0),
        f64::midpoint(top, bottom),
        f64::midpoint(top, bottom),
        escape(labels.1)
    );
}

/// Dots, and for each contender the ellipse that holds about two thirds of a normal cloud with the same mean and covariance.
pub(super) fn ellipses(series: &[Series], x: Axis<'_>, y: Axis<'_>) -> String {
    let all = || series.iter().flat_map(|one| &one.points);
    let horizontal = Scale::new(all().map(|point| point.0), x, LEFT, WIDTH - RIGHT);
    let vertical = Scale::new(all().map(|point| point.1), y, HEIGHT - BOTTOM, TOP);
    let mut out = begin(&format!("{} against {}", y.label, x.label), HEIGHT);
    axes(&mut out, &horizontal, &vertical, (x.label, y.label));
    // An ellipse may reach further than its dots, and the axes do not.
    window(&mut out);
    for (index, one) in series.iter().enumerate() {
        let places: Vec<(f64, f64)> =
            one.points.iter().map(|&(a, b)| (horizontal.place(a), vertical.place(b))).collect();
        let _ = write!(out, "<g class=\"s{}\"><title>{}</title>", index % 8, escape(&one.name));
        for (a, b) in &places {
            let _ = write!(out, "<circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"2.5\" class=\"dot\"/>");
        }
        if let Some((centre, radii, angle)) = ellipse(&places) {
            let _ = write!(
                out,
                "<ellipse rx=\"{:.1}\" ry=\"{:.1}\" transform=\"translate({:.1} {:.1}) rotate({angle:.1})\" class=\"ellipse\"/>",
                radii.0, radii.1, centre.0, centre.1
            );
        }
        out.push_str("</g>");
    }
    out.push_str("</svg></svg>");
    out
}

/// A value with its interval, over something that was varied.
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
    /// In ascending order of what was varied.
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

/// Curves with intervals as a picture that is a file of its own, with colours for light and dark pages.
pub fn curves(title: &str, x: Along<'_>, y: Along<'_>, curves: &[Curve]) -> String {
    let axis = |along: Along<'_>| (along.log, along.label.to_owned());
    let ((x_log, x_label), (y_log, y_label)) = (axis(x), axis(y));
    let (x, y) =
        (Axis { label: &x_label, log: x_log, reversed: false }, Axis { label: &y_label, log: y_log, reversed: false });
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let horizontal = Scale::new(all().map(|point| point.x), x, LEFT, WIDTH - RIGHT);
    let ends = all().flat_map(|point| [point.value, point.low, point.high]);
    let vertical = Scale::new(ends.chain((!y.log).then_some(0.0)), y, HEIGHT - BOTTOM, TOP);
    let style = include_str!("style.css");
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
    axes(&mut out, &horizontal, &vertical, (x.label, y.label));
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

/// Begins a picture within the picture that ends at the axes.
fn window(out: &mut String) {
    let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let _ = write!(
        out,
        "<svg x=\"{LEFT}\" y=\"{TOP}\" width=\"{width}\" height=\"{height}\" viewBox=\"{LEFT} {TOP} {width} {height}\">"
    );
}

/// Part of the horizontal axis with a colour of its own.
pub(super) struct Band {
    pub(super) from: f64,
    pub(super) to: f64,
    /// Index of the colour.
    pub(super) series: usize,
    pub(super) label: String,
}

/// Values over time. Of the values that share a column of the picture the smallest and the largest are drawn, so that no peak
/// is lost however long the series is.
pub(super) fn lines(series: &[Series], bands: &[Band], y: Axis<'_>, span: (f64, f64)) -> String {
    let x = Axis { label: "time (s)", log: false, reversed: false };
    let horizontal = Scale { low: span.0, high: span.1.max(span.0 + 1e-9), from: LEFT, to: WIDTH - RIGHT, log: false };
    let values = series.iter().flat_map(|one| one.points.iter().map(|point| point.1));
    let vertical = Scale::new(values.chain([0.0]), y, HEIGHT - BOTTOM, TOP);
    let mut out = begin(&format!("{} over time", y.label), HEIGHT);
    axes(&mut out, &horizontal, &vertical, (x.label, y.label));
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
        let mut column: Option<(i64, f64, f64)> = None;
        let mut draw = |(at, low, high): (i64, f64, f64)| {
            let sign = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{sign}{at} {low:.1}");
            if (high - low).abs() > 0.05 {
                let _ = write!(path, "V{high:.1}");
            }
        };
        for &(time, value) in one.points.iter().filter(|point| point.0.is_finite() && point.1.is_finite()) {
            #[expect(clippy::cast_possible_truncation, reason = "a place in the picture")]
            let at = horizontal.place(time).round() as i64;
            let place = vertical.place(value);
            column = match column {
                Some((same, low, high)) if same == at => Some((at, low.min(place), high.max(place))),
                Some(done) => {
                    draw(done);
                    Some((at, place, place))
                }
                None => Some((at, place, place)),
            };
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
    // The square of a radius of two dimensions: 1.5² holds 68 % of a normal cloud.
    Some((
        centre,
        (1.5 * (middle + spread).max(0.0).sqrt(), 1.5 * (middle - spread).max(0.0).sqrt()),
        angle.to_degrees(),
    ))
}

/// The share of values that do not exceed each value.
pub(super) fn distribution(series: &[(String, Vec<f64>)], x: Axis<'_>, reference: Option<f64>) -> String {
    let all = series.iter().flat_map(|(_, values)| values.iter().copied()).chain(reference);
    let horizontal = Scale::new(all, x, LEFT, WIDTH - RIGHT);
    let y = Axis { label: "share", log: false, reversed: false };
    let vertical = Scale::new([0.0, 1.0].into_iter(), y, HEIGHT - BOTTOM, TOP);
    let mut out = begin(&format!("distribution of {}", x.label), HEIGHT);
    axes(&mut out, &horizontal, &vertical, (x.label, "share of points at or below"));
    if let Some(reference) = reference {
        let at = horizontal.place(reference);
        let _ =
            write!(out, "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{}\" class=\"zero\"/>", HEIGHT - BOTTOM);
    }
    for (index, (name, values)) in series.iter().enumerate() {
        let mut ascending: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        ascending.sort_by(f64::total_cmp);
        let mut path = String::new();
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        let count = ascending.len().max(1) as f64;
        for (rank, value) in (1u32..).zip(&ascending) {
            let (a, b) = (horizontal.place(*value), vertical.place(f64::from(rank) / count));
            let _ = if rank == 1 {
                write!(path, "M{a:.1} {:.1}V{b:.1}", vertical.place(0.0))
            } else {
                write!(path, "H{a:.1}V{b:.1}")
            };
        }
        let _ = write!(
            out,
            "<g class=\"s{}\"><title>{}</title><path d=\"{path}\" class=\"line\"/></g>",
            index % 8,
            escape(name)
        );
    }
    out.push_str("</svg>");
    out
}

/// One line of a [`forest`].
pub(super) struct Bar {
    /// Label.
    pub(super) label: String,
    /// Index of the contender, for the colour.
    pub(super) series: usize,
    /// Estimate and interval: ratios.
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// A gap above: the begin of a group.
    pub(super) first: bool,
}

/// Estimates with their intervals below one another, around "no difference".
pub(super) fn forest(bars: &[Bar], label: &str) -> String {
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
    fn the_ellipse_of_a_tilted_cloud() {
        let places: Vec<(f64, f64)> =
            (0..100).map(f64::from).map(|x| (x, x + if x as i32 % 2 == 0 { 5.0 } else { -5.0 })).collect();
        let (centre, radii, angle) = ellipse(&places).unwrap();
        assert!((centre.0 - 49.5).abs() < 1e-9 && (angle - 45.0).abs() < 2.0 && radii.0 > 8.0 * radii.1);
        assert!(ellipse(&places[..2]).is_none());
    }

    #[test]
    fn a_peak_is_drawn_however_long_the_series_is() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i) / 1e3, 1.0)).collect();
        points[54_321].1 = 100.0;
        let axis = Axis { label: "y", log: false, reversed: false };
        let plot = lines(&[Series { name: "a".into(), points }], &[], axis, (0.0, 100.0));
        assert!(plot.len() < 40_000, "{}", plot.len());
        let top = Scale::new([0.0, 1.0, 100.0].into_iter(), axis, HEIGHT - BOTTOM, TOP).place(100.0);
        assert!(plot.contains(&format!("{top:.1}")), "{top}");
    }

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

    #[test]
    fn names_cannot_break_out_and_odd_values_do_not_break_in() {
        let series =
            [Series { name: "<script>".to_owned(), points: vec![(0.0, f64::NAN), (1.0, 2.0), (f64::INFINITY, 1.0)] }];
        let axis = Axis { label: "x & y", log: true, reversed: true };
        let plot = ellipses(&series, axis, Axis { log: false, ..axis });
        assert!(!plot.contains("<script>") && !plot.contains("inf"), "{plot}");
        let bars = [Bar { label: "a".into(), series: 0, value: 1.0, low: 0.0, high: f64::INFINITY, first: true }];
        assert!(forest(&bars, "ratio").ends_with("</svg>"));
    }
}
