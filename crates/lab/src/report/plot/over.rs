//! Figures over the levels of a factor, with intervals.

use core::fmt::Write;

use super::{
    Axis, BOTTOM, HEIGHT, LEFT, Label, Measured, NAMED, Scale, TOP, WIDTH, axes, begin, escape, labels, number,
};

/// Values of one contender over the levels, in their order; `None` where there is none.
#[derive(Clone, Debug)]
pub(in crate::report) struct Over {
    pub(in crate::report) name: String,
    /// Value and interval of each level; `x` is not used.
    pub(in crate::report) points: Vec<Option<Measured>>,
}

/// Values over levels. Numeric levels are placed by value; others at equal distances, without connecting lines.
pub(in crate::report) fn over(lines: &[Over], levels: &[String], factor: &str, y: Axis<'_>) -> String {
    let right = WIDTH - NAMED;
    let numeric = numbers(levels);
    let places = places(levels.len(), numeric.as_deref(), LEFT + 24.0, right - 24.0);
    let ends = lines.iter().flat_map(|line| &line.points).flatten();
    let ends = ends.flat_map(|point| [point.value, point.low, point.high]);
    let vertical = Scale::new(ends.chain((!y.log).then_some(0.0)), y, HEIGHT - BOTTOM, TOP);
    let mut out = begin(&format!("{} over {factor}", y.label), HEIGHT);
    let marks: Vec<(f64, String)> = places.iter().copied().zip(levels.iter().cloned()).collect();
    axes(&mut out, &marks, right, &vertical, (factor, y.label));
    let mut names = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        // Intervals of contenders that stand at the same level lie side by side.
        #[expect(clippy::cast_precision_loss, reason = "a few contenders")]
        let aside = (index as f64 - (lines.len() as f64 - 1.0) / 2.0) * 5.0;
        let _ = write!(out, "<g class=\"s{}\"><title>{}</title>", index % 8, escape(&line.name));
        let mut path = String::new();
        let mut end = None;
        for ((point, place), level) in line.points.iter().zip(&places).zip(levels) {
            let Some(point) = point.filter(|point| point.value.is_finite() && (!y.log || point.value > 0.0)) else {
                continue;
            };
            let (a, b) = (place + aside, vertical.place(point.value));
            let (low, high) =
                (vertical.place(point.low.max(vertical.low)), vertical.place(point.high.min(vertical.high)));
            let _ = write!(path, "{}{a:.1} {b:.1}", if path.is_empty() { 'M' } else { 'L' });
            let _ = write!(
                out,
                "<line x1=\"{a:.1}\" x2=\"{a:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" class=\"bar whisker\"/><circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"4\" class=\"point\"><title>{}, {} {}: {} [{}, {}]</title></circle>",
                escape(&line.name),
                escape(factor),
                escape(level),
                number(point.value),
                number(point.low),
                number(point.high)
            );
            end = Some((a, b));
        }
        if numeric.is_some() {
            let _ = write!(out, "<path d=\"{path}\" class=\"line thin\"/>");
        }
        out.push_str("</g>");
        if let Some((_, b)) = end {
            names.push(Label { x: right + 6.0, y: b + 4.0, series: index, text: &line.name, anchor: "start" });
        }
    }
    labels(&mut out, names);
    out.push_str("</svg>");
    out
}

/// Places of levels along the axis.
fn places(count: usize, numbers: Option<&[f64]>, from: f64, to: f64) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a few levels")]
    let even = |index: usize| if count < 2 { 0.5 } else { index as f64 / (count as f64 - 1.0) };
    let share = |index: usize| match numbers {
        Some(numbers) => {
            let (low, high, own) = (numbers[0], numbers[count - 1], numbers[index]);
            if low > 0.0 && high / low >= 20.0 {
                (own / low).ln() / (high / low).ln()
            } else {
                (own - low) / (high - low)
            }
        }
        None => even(index),
    };
    (0..count).map(|index| from + share(index) * (to - from)).collect()
}

/// Levels as ascending numbers of one unit; `None` where they are not.
fn numbers(levels: &[String]) -> Option<Vec<f64>> {
    let parts: Vec<(f64, &str)> = levels.iter().map(|level| number_and_unit(level)).collect::<Option<_>>()?;
    let ascending = parts.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 == pair[1].1);
    (ascending && parts.len() > 1).then(|| parts.into_iter().map(|(number, _)| number).collect())
}

/// Parts of a level such as `5 ms` or `12`.
fn number_and_unit(level: &str) -> Option<(f64, &str)> {
    let end = level.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(level.len());
    Some((level[..end].parse().ok()?, level[end..].trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn numbers_of_one_unit_stand_where_their_values_are() {
        assert_eq!(numbers(&levels(&["5 ms", "50 ms", "500 ms"])), Some(vec![5.0, 50.0, 500.0]));
        for other in [&["5 ms", "1 s"][..], &["2", "1"], &["off", "xor:10"], &["1"]] {
            assert_eq!(numbers(&levels(other)), None, "{other:?}");
        }
        let near = |found: Vec<f64>, expected: [f64; 3]| found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(near(places(3, Some(&[5.0, 50.0, 500.0]), 0.0, 10.0), [0.0, 5.0, 10.0]), "logarithmic");
        assert!(near(places(3, Some(&[0.0, 1.0, 4.0]), 0.0, 10.0), [0.0, 2.5, 10.0]), "linear");
        assert!(near(places(3, None, 0.0, 10.0), [0.0, 5.0, 10.0]), "names");
    }

    #[test]
    fn what_has_no_number_is_not_joined() {
        let point = |value| Some(Measured { x: 0.0, value, low: value, high: f64::INFINITY });
        let line = Over { name: "a <b>".to_owned(), points: vec![point(1.0), None, point(f64::INFINITY)] };
        let axis = Axis { label: "loss", log: false, reversed: false };
        let plot = over(std::slice::from_ref(&line), &levels(&["off", "xor:10", "auto"]), "fec", axis);
        assert_eq!((plot.matches("<circle").count(), plot.matches("<path").count()), (1, 0), "{plot}");
        assert!(!plot.contains("<b>") && !plot.contains("NaN") && !plot.contains("y2=\"inf"), "{plot}");
        assert!(over(&[line], &levels(&["1", "2", "3"]), "n", axis).contains("<path"));
    }
}
