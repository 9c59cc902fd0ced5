//! Every figure at every point.

use core::fmt::Write;

use crate::{
    figure::Figure,
    report::{
        MatrixReport,
        plain::{label, plain_name, printed},
        plot::escape,
    },
    versus::{effect, words},
};

/// Rows of the table of points at most: a page of a few megabytes is still read by a browser at once.
const ROWS_MAX: usize = 6_000;

/// Prints the table of points.
pub(super) fn table(out: &mut String, report: &MatrixReport) {
    let mut figures: Vec<&str> = Vec::new();
    for quoted in report.points.iter().flat_map(|point| &point.figures).flatten() {
        if !figures.contains(&quoted.figure) {
            figures.push(quoted.figure);
        }
    }
    let open = if report.size.points <= 12 { " open" } else { "" };
    let _ = write!(
        out,
        "<section><h2>Every point</h2><details{open}><summary>{} points</summary><div class=\"wide\"><table class=\"every\"><thead><tr>",
        report.size.points
    );
    for (name, _) in &report.factors {
        let _ = write!(out, "<th>{}</th>", escape(name));
    }
    // The contender stays in view while the figures scroll.
    out.push_str("<th class=\"held\">contender</th>");
    for figure in &figures {
        let _ = write!(out, "<th class=\"n\">{}</th>", escape(&label(figure)));
    }
    let _ = write!(out, "<th>{} against the baseline</th></tr></thead><tbody>", escape(plain_name(report.deciding)));
    let mut rows = 0;
    for point in &report.points {
        if rows > ROWS_MAX {
            break;
        }
        for (index, own) in point.figures.iter().enumerate() {
            rows += 1;
            out.push_str("<tr>");
            for level in &point.levels {
                let _ = write!(out, "<td>{}</td>", escape(level));
            }
            let _ = write!(out, "<td class=\"held\">{}</td>", escape(&report.contenders[index]));
            for figure in &figures {
                let quoted = own.iter().find(|quoted| quoted.figure == *figure);
                let text = quoted.map_or_else(
                    || "–".to_owned(),
                    |quoted| match quoted.interval {
                        Some((low, high)) => format!(
                            "{} <small>[{}, {}]</small>",
                            printed(figure, quoted.median),
                            printed(figure, low),
                            printed(figure, high)
                        ),
                        None => printed(figure, quoted.median),
                    },
                );
                let _ = write!(out, "<td class=\"n\">{text}</td>");
            }
            let against = index.checked_sub(1).and_then(|index| point.verdicts[index].as_ref());
            let text = against.zip(Figure::from_key(report.deciding)).map_or_else(String::new, |(result, figure)| {
                format!("{} {}", effect(figure, result), words(result, None))
            });
            let _ = write!(out, "<td>{}</td></tr>", escape(&text));
        }
    }
    out.push_str("</tbody></table></div></details>");
    if rows > ROWS_MAX {
        let _ = write!(out, "<p class=\"note\">The first {rows} rows; `--csv` has all.</p>");
    }
    out.push_str("</section>");
}
