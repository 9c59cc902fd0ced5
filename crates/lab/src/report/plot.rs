//! Plots as self-contained inline SVG. Colours come from the page, so that they follow its light or dark scheme.

mod cloud;
mod curves;
mod forest;
mod lines;
mod over;
mod shares;

use core::fmt::Write;

pub(super) use cloud::cloud;
pub use curves::{Along, Curve, Measured, curves};
pub(super) use forest::{Bar, forest};
pub(super) use lines::{Band, Shape, TimeLine, lines};
pub(super) use over::{Over, over};
pub(super) use shares::{Steps, shares};

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

    /// Marks at the ticks of a horizontal axis, from left to right.
    fn marks(&self) -> Vec<(f64, String)> {
        let mut marks: Vec<(f64, String)> =
            self.ticks().into_iter().map(|tick| (self.place(tick), number(tick))).collect();
        marks.sort_by(|a, b| a.0.total_cmp(&b.0));
        marks
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
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    // What rounds to zero has no sign.
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Escapes text for HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn begin(label: &str, height: f64) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\" class=\"plot\">", escape(label))
}

/// Places of values along an axis, with the text that stands there.
type Marks = [(f64, String)];

/// Width of a character of a mark with the letters of small screens.
const LETTER: f64 = 10.0;

/// Draws the axes with their marks and titles; the horizontal one ends at `right`.
fn axes(out: &mut String, x: &Marks, right: f64, y: &Scale, labels: (&str, &str)) {
    let (left, top, bottom) = (LEFT, TOP, HEIGHT - BOTTOM);
    let mut free = f64::NEG_INFINITY;
    for (at, text) in x {
        let _ = write!(out, "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\" class=\"grid\"/>");
        #[expect(clippy::cast_precision_loss, reason = "a few characters")]
        let half = text.chars().count() as f64 * LETTER / 2.0;
        // A mark that would lie on the one before is left out.
        if at - half >= free {
            let _ = write!(
                out,
                "<text x=\"{at:.1}\" y=\"{:.1}\" class=\"tick\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                escape(text)
            );
            free = at + half + 2.0;
        }
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

/// A label next to its line or point.
struct Label<'a> {
    x: f64,
    y: f64,
    /// Index of the colour.
    series: usize,
    text: &'a str,
    anchor: &'static str,
}

/// Distance of two lines of labels, enough for the larger letters of small screens.
const LINE: f64 = 19.0;

/// Draws labels in the colours of their lines, moved apart where they would overlap, and within the picture.
fn labels(out: &mut String, mut labels: Vec<Label<'_>>) {
    labels.sort_by(|a, b| a.y.total_cmp(&b.y));
    let mut lowest = f64::NEG_INFINITY;
    for label in &mut labels {
        label.y = label.y.max(lowest + LINE).max(TOP + 10.0);
        lowest = label.y;
    }
    let mut highest = HEIGHT - BOTTOM + LINE;
    for label in labels.iter_mut().rev() {
        label.y = label.y.min(highest - LINE);
        highest = label.y;
    }
    for label in labels {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"name s{}\" text-anchor=\"{}\">{}</text>",
            label.x,
            label.y,
            label.series % 8,
            label.anchor,
            escape(&shortened(label.text))
        );
    }
}

/// A name in at most [`NAME`] characters.
fn shortened(name: &str) -> String {
    let short = name.strip_prefix("tiderace ").unwrap_or(name);
    if short.chars().count() <= NAME { short.to_owned() } else { short.chars().take(NAME - 1).chain(['…']).collect() }
}

/// Characters of a label.
const NAME: usize = 13;
/// Room at the right for labels of this length.
const NAMED: f64 = 136.0;
